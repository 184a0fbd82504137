"""What a training step holds in memory from start to end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from remat_cli.core.operators import Operand
from remat_cli.errors import UsageError

# Copies of each trained parameter that the optimizer keeps beside it: momentum one, Adam its first and second moments.
OPTIMIZERS: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2}


def training_resident_bytes(
    resident_bytes: int, trainable: Iterable[Operand], optimizer: str, *, gradients: bool = True
) -> int:
    """Return the resident bytes of a training step: weights, one gradient of each trained one, and optimizer state.

    Args:
        resident_bytes: of the graph itself; of a forward graph: one copy of all weights and constants.
        trainable: the trained parameters (see `trainable_parameters`).
        optimizer: one of `OPTIMIZERS`; its state has the element type of the parameters.
        gradients: whether the gradients are there from start to end; they are not where the step makes them.

    Raises:
        UsageError: an unknown optimizer.
    """
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"unknown optimizer {optimizer!r}", hint=f"use one of {', '.join(OPTIMIZERS)}")
    copies = OPTIMIZERS[optimizer] + gradients
    return resident_bytes + copies * sum(parameter.bytes for parameter in trainable)
