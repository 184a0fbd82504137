"""The memory that a training step holds from start to end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from remat_cli.core.operators import Operand
from remat_cli.errors import UsageError

# Copies of each trained parameter in the optimizer's state: momentum has one, Adam its first and second moments.
OPTIMIZERS: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2}


def training_resident_bytes(
    resident_bytes: int, trainable: Iterable[Operand], optimizer: str, *, gradients: bool = True
) -> int:
    """Return the resident bytes of a training step.

    They hold the weights, a gradient of each trained weight, and the optimizer state.

    Args:
        resident_bytes: resident bytes of the graph itself: for a forward graph one copy of all weights and constants.
        trainable: the trained parameters (see `trainable_parameters`).
        optimizer: one of `OPTIMIZERS`; its state has the element type of the parameters.
        gradients: whether the gradients are resident; they are not if the step allocates them.

    Raises:
        UsageError: an unknown optimizer.
    """
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"unknown optimizer {optimizer!r}", hint=f"use one of {', '.join(OPTIMIZERS)}")
    copies = OPTIMIZERS[optimizer] + gradients
    return resident_bytes + copies * sum(parameter.bytes for parameter in trainable)
