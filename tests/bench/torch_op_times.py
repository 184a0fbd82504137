"""What a call takes by measured times of the ops that run in it: the same time for the same op, whoever runs it.

Whole steps of small models cannot be timed to a few percent on a machine that does other work too, and gradients of an
untrained model may be denormal numbers, which take 40 times as long. An op's median on drawn numbers can be had, and as
all calls share it, their difference is the time of the ops that one runs more often than the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from remat_cli.pytorch.memory.measure import drawn_like, median_time


class OpTimes:
    """Measures each op when it first runs, and knows it by its signature from then on.

    Attributes:
        known: nanoseconds by signature: the op, types, shapes and strides of its tensors, and its other arguments.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.known: dict[str, int] = {}

    def total(self, call: Callable[[], object]) -> int:
        """Call, and return the sum of the times of the ops that ran, in nanoseconds."""
        mode = _Summing(self)
        with mode:
            call()
        return mode.total

    def of(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Return the time of an op on arguments like these; these are left as they are."""
        described = f"{op} {pytree.tree_map_only(torch.Tensor, _described, (args, kwargs))}"
        if described not in self.known:
            args, kwargs = pytree.tree_map_only(torch.Tensor, _drawn, (args, kwargs))
            self.known[described] = median_time(lambda: op(*args, **kwargs), self.device)
        return self.known[described]


class _Summing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, times: OpTimes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.times = times
        self.total = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # else torch.compile gives way to a mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.total += self.times.of(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _described(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, tuple(value.shape), value.stride()


def _drawn(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor with other numbers; integers stay as they are, as they may be indices."""
    if not value.dtype.is_floating_point:
        return value.clone()
    drawn: torch.Tensor = drawn_like(value, 1)
    return drawn
