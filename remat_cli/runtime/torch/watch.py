"""The first steps of a planned model, measured as wholes: what the model does not see is in them, too.

A step lasts from a planned call to the end of the optimizer's step, or to the next call. Its allocations come from
CUDA's allocator (untried). After the first steps nothing is measured any more. On the CPU steps are not measured:
torch's profiler, open from one call to the next, crashed the interpreter in some of the runs in which it was tried.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from time import time_ns
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from remat_cli.formats.torch.ops import storage_key
from remat_cli.formats.torch.optimizer import kept_state_bytes
from remat_cli.runtime.torch.memory import Recording, profiler_runs

_FIRST_STEPS = 3
_DEVICES = ("cuda",)


@dataclass(frozen=True)
class MeasuredStep:
    """What a whole step took, with what was there before it.

    Attributes:
        passes_bytes: the most at one time before the optimizer's step: forward pass, what the caller computes, backward
            pass.
        optimizer_bytes: the most at one time in the optimizer's step; 0 where there was none.
    """

    passes_bytes: int
    optimizer_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most at one time."""
        return max(self.passes_bytes, self.optimizer_bytes)


class StepWatch:
    """Measures the first steps of a model; those in which another profiler runs are left out.

    Attributes:
        left: how many steps are still to be measured.
    """

    def __init__(self) -> None:
        self.left = _FIRST_STEPS
        self._recording: Recording | None = None
        self._base = 0
        self._net: int | None = None  # what a step left behind that was ended by the next call
        self._optimizer_began: int | None = None
        self._measured: MeasuredStep | None = None
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._parameters: set[int] = set()
        self._hooks: list[Any] = []

    def again(self) -> None:
        """Measure as many steps as at first, as another plan runs now."""
        self.left = _FIRST_STEPS

    def stop(self) -> None:
        """Measure no more."""
        self.left = 0

    def begin(self, device: str, modules: Iterable[nn.Module], given: Any) -> None:
        """Begin to measure a step, where one is still to be measured.

        Args:
            device: kind of device.
            modules: whose parameters are in memory.
            given: what the model is called with.
        """
        if device not in _DEVICES or not self.left or profiler_runs():
            return
        modules = list(modules)
        parameters = [parameter for module in modules for parameter in module.parameters()]
        self._parameters = {id(parameter) for parameter in parameters}
        if self._net is None:
            buffers = [buffer for module in modules for buffer in module.buffers()]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            inputs = [value for value in pytree.tree_leaves(given) if isinstance(value, torch.Tensor)]
            state = sum(kept_state_bytes(optimizer) for optimizer in self._optimizers)
            self._base = _bytes_in((*parameters, *buffers, *gradients, *inputs)) + state
        else:
            self._base += self._net
        if not self._hooks:
            self._hooks = [
                register_optimizer_step_pre_hook(self._optimizer_begins),
                register_optimizer_step_post_hook(self._optimizer_ends),
            ]
        self._optimizer_began = None
        self._recording = Recording(device, gives_way=True)

    def end(self) -> MeasuredStep | None:
        """End the step that is being measured; return the last one that was, once."""
        if self._recording is not None:
            self._net = self._finish()
        measured, self._measured = self._measured, None
        if not self.left:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
        return measured

    def _finish(self) -> int:
        recording, self._recording = self._recording, None
        assert recording is not None
        recording.stop()
        self.left -= 1
        began = self._optimizer_began
        optimizer = 0 if began is None else self._base + recording.peak(began, None)
        self._measured = MeasuredStep(self._base + recording.peak(None, began), optimizer)
        return recording.left_behind

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._recording is not None and self._is_ours(optimizer) and self._optimizer_began is None:
            self._recording.mark()
            self._optimizer_began = time_ns()

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_ours(optimizer):
            self._optimizers.add(optimizer)
            if self._recording is not None:
                self._finish()
            self._net = None

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        groups = optimizer.param_groups
        return any(id(parameter) in self._parameters for group in groups for parameter in group["params"])


def standing_bytes(modules: Iterable[nn.Module], *, gradients: bool) -> int:
    """Return what is there at a call beside parameters and buffers.

    Args:
        modules: that are called.
        gradients: count those that are there, beside the buckets of DistributedDataParallel.
    """
    there = [p.grad for module in modules for p in module.parameters() if p.grad is not None and gradients]
    parallel = nn.parallel.DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if parallel is None:
        return _bytes_in(there)
    buckets: int = sum(parameter.nbytes for parameter in parallel.parameters() if parameter.requires_grad)
    return buckets + (0 if parallel.gradient_as_bucket_view else _bytes_in(there))


def _bytes_in(tensors: Iterable[torch.Tensor]) -> int:
    return sum({storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
