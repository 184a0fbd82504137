"""The memory that a training step holds from start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil, prod

from remat_cli.core.operators import Operand
from remat_cli.errors import UsageError

# Blocks of bitsandbytes's 8-bit states, each with a scale, and the smallest parameter whose state has 8 bits.
_BLOCK_ELEMENTS = 256
_LEAST_ELEMENTS = 4096


def _copies(number: int) -> Callable[[tuple[int, ...], int], int]:
    return lambda shape, size: number * size


def _factored(shape: tuple[int, ...], size: int) -> int:
    """Return the bytes of one value for each row and one for each column; vectors have a value for each element."""
    if len(shape) < 2 or 0 in shape:
        return size
    return size // shape[-1] + size // shape[-2]


def _in_8_bits(shape: tuple[int, ...], size: int) -> int:
    """Return the bytes of two moments in 8 bits; small parameters have them in float32."""
    elements = prod(shape)
    if elements < _LEAST_ELEMENTS:
        return 2 * 4 * elements
    return 2 * (elements + 4 * ceil(elements / _BLOCK_ELEMENTS))


# Bytes of each optimizer's state for a parameter of some shape and bytes. Moments have the parameter's type: one of
# Lion, two of Adam. Adafactor is torch's, which factors the second moment and has no first; adam8bit is bitsandbytes's.
OPTIMIZERS: Mapping[str, Callable[[tuple[int, ...], int], int]] = {
    "sgd": _copies(0),
    "momentum": _copies(1),
    "adam": _copies(2),
    "adamw": _copies(2),
    "lion": _copies(1),
    "adafactor": _factored,
    "adam8bit": _in_8_bits,
}


def training_resident_bytes(
    resident_bytes: int, trainable: Iterable[Operand], optimizer: str, *, gradients: bool = True
) -> int:
    """Return the resident bytes of a training step.

    They hold the weights, a gradient of each trained weight, and the optimizer state.

    Args:
        resident_bytes: resident bytes of the graph itself: for a forward graph one copy of all weights and constants.
        trainable: the trained parameters (see `trainable_parameters`).
        optimizer: one of `OPTIMIZERS`.
        gradients: whether the gradients are resident; they are not if the step allocates them.

    Raises:
        UsageError: an unknown optimizer.
    """
    trained, state_of = tuple(trainable), _state_of(optimizer)
    # Of an unknown shape, elements are as small as they can be.
    shapes = ((each.bytes,) if each.shape is None else each.shape for each in trained)
    state = sum(state_of(shape, each.bytes) for shape, each in zip(shapes, trained, strict=True))
    return resident_bytes + state + gradients * sum(parameter.bytes for parameter in trained)


def state_bytes(optimizer: str, shape: tuple[int, ...] | None, size: int) -> int:
    """Return the bytes of an optimizer's state for a parameter.

    Args:
        optimizer: one of `OPTIMIZERS`.
        shape: of the parameter; of an unknown shape, elements are as small as they can be.
        size: bytes of the parameter.

    Raises:
        UsageError: an unknown optimizer.
    """
    return _state_of(optimizer)((size,) if shape is None else shape, size)


def _state_of(optimizer: str) -> Callable[[tuple[int, ...], int], int]:
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"unknown optimizer {optimizer!r}", hint=f"use one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[optimizer]
