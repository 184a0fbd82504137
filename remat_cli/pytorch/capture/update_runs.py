"""The functions that run the steps of a schedule that update parameters, and move the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch


class UpdateRun(NamedTuple):
    """An update of one parameter.

    Attributes:
        gradient: position of its gradient among the backward pass's outputs.
        run: updates the parameter by its gradient.
    """

    gradient: int
    run: Callable[[torch.Tensor], None]


class StateMoves(NamedTuple):
    """The moves of one parameter's state, by the steps of a schedule."""

    prefetch: Callable[[], None]
    wait: Callable[[], None]
    offload: Callable[[], None]
    free: Callable[[], None]


@dataclass(frozen=True, eq=False)
class UpdateRuns:
    """What runs the updates of a step.

    Attributes:
        ops: updates by the name of their op.
        states: moves by the name of the state's tensor.
    """

    ops: Mapping[str, UpdateRun]
    states: Mapping[str, StateMoves]
