"""The first steps of a planned model, measured as wholes: what the model does not see is in them, too.

A step lasts from a planned call to the end of the backward pass, and of the optimizer's step. After the first steps,
and two after the optimizer's first one, which makes its state, nothing is measured any more. (torch's profiler would
see more on the CPU, but crashes the interpreter where it stays open from one call to the next.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from remat_cli.pytorch.capture.optimizer import kept_state
from remat_cli.pytorch.memory.live import LiveBytes, LiveOnCpu, bytes_in, live_on
from remat_cli.pytorch.memory.memory import profiler_runs
from remat_cli.pytorch.memory.shards import gathered_parameters, parameters_at_rest

_FIRST_STEPS = 3
_STEPS_WITH_STATE = 2  # the second one is that in which gradients are accumulated, where they are


@dataclass(frozen=True)
class MeasuredStep:
    """What a whole step took, with what was there before it.

    Attributes:
        passes_bytes: the most at one time before the optimizer's step: forward pass, what the caller computes, backward
            pass.
        optimizer_bytes: the most at one time in the optimizer's step; 0 where there was none.
        gradient_bytes: of gradients that were there when it began.
    """

    passes_bytes: int
    optimizer_bytes: int
    gradient_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """The most at one time."""
        return max(self.passes_bytes, self.optimizer_bytes)


class StepWatch:
    """Measures the first steps of a model; those in which another profiler runs are left out.

    Attributes:
        left: how many steps are still to be measured.
        state_bytes: of the state that optimizers had when the last measured step began.
        calls: how many came before the last measured backward pass, or since.
    """

    def __init__(self) -> None:
        self.left = _FIRST_STEPS
        self.state_bytes = 0
        self.calls = 0
        self._gradient_bytes = 0
        self._live: LiveBytes | None = None
        self._is_begun = False
        self._step = 0
        self._is_in_optimizer = False
        self._is_dropped = False
        self._has_gone_back = False
        self._measured: MeasuredStep | None = None
        self._awaits_optimizer = True
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._parameters: set[int] = set()
        self._hooks: list[Any] = []

    @property
    def without(self) -> str:
        """What measured peaks leave out, in words: on the CPU nobody tells of the memory of kernels."""
        return ", without the workspace of kernels" if isinstance(self._live, LiveOnCpu) else ""

    def again(self) -> None:
        """Measure as many steps as at first, as another plan runs now."""
        self.left = _FIRST_STEPS

    def stop(self) -> None:
        """Measure no more."""
        self.left, self._awaits_optimizer = 0, False

    def begin(self, device: str, modules: Iterable[nn.Module], given: Any) -> None:
        """Begin to measure a step, where one is still to be measured.

        Args:
            device: kind of device.
            modules: whose parameters are in memory.
            given: what the model is called with.
        """
        self.calls = 1 if self._has_gone_back else self.calls + 1
        self._has_gone_back = False
        if not self.left or profiler_runs():
            return
        if self._live is None and (live := live_on(device)) is not None:
            self._live = live
        modules = list(modules)
        parameters = [parameter for module in modules for parameter in parameters_at_rest(module)]
        gathered = [parameter for module in modules for parameter in gathered_parameters(module)]
        buffers = [buffer for module in modules for buffer in module.buffers()]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        inputs = [value for value in pytree.tree_leaves(given) if isinstance(value, torch.Tensor)]
        state = [tensor for optimizer in self._optimizers for tensor in kept_state(optimizer)]
        if self._live is None:
            return
        self.state_bytes, self._gradient_bytes = bytes_in(state), bytes_in(gradients)
        self._live.begin((*parameters, *gathered, *buffers, *gradients, *inputs, *state))
        self._parameters = {id(parameter) for parameter in parameters}
        if not self._hooks:
            self._hooks = [
                register_optimizer_step_pre_hook(_weakly(self._optimizer_begins)),
                register_optimizer_step_post_hook(_weakly(self._optimizer_ends)),
            ]
            for hook in self._hooks:
                weakref.finalize(self, hook.remove).atexit = False
        self._is_begun, self._is_in_optimizer, self._is_dropped = True, False, False
        self._step += 1

    def pause(self) -> None:
        """Look away where the model has run: torch still has to do with its results."""
        if self._is_begun and self._live is not None:
            self._live.pause()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look on while it is entered; torch may be within dispatch modes of its own, as at a first run."""
        if not self._is_begun or self._live is None:
            yield
            return
        self._live.look()
        try:
            yield
        finally:
            self._live.pause()

    def resume(self, result: Any = None) -> None:
        """Look on as the planned call ends, until the backward pass has ended, or `result` goes without one.

        A step that cannot be seen from there on is not measured.
        """
        if self._is_begun and self._live is not None:
            self._is_begun = self._live.resume()
            for node in {getattr(leaf, "grad_fn", None) for leaf in pytree.tree_leaves(result)}:
                if isinstance(node, BackwardCFunction):  # others go with the object that stands for them in Python
                    weakref.finalize(node, self._pause_in, self._step).atexit = False

    def backward_begins(self) -> None:
        """Look away where this backward pass ends: a mode that stays on would be in the way of what comes then."""
        self._has_gone_back = True
        if self._is_begun:
            torch.autograd.Variable._execution_engine.queue_callback(_AtEnd(partial(self._pause_in, self._step)))

    def _pause_in(self, step: int) -> None:
        if step == self._step and not self._is_in_optimizer:
            self.pause()

    def drop(self) -> None:
        """Do not measure this step: eager runs its backward pass."""
        self._is_dropped = True

    def end(self) -> MeasuredStep | None:
        """End the step that is being measured; return the last one that was, once."""
        self._finish()
        measured, self._measured = self._measured, None
        if not self.left and not self._awaits_optimizer:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
        return measured

    def _finish(self) -> None:
        if self._is_begun and self._live is not None:
            self._is_begun = False
            most = self._live.end()
            if not self._is_dropped:
                self.left -= 1
                self._measured = MeasuredStep(*most, self._gradient_bytes)

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_begun and self._live is not None and self._is_ours(optimizer) and not self._is_in_optimizer:
            self._live.mark()
            self._is_in_optimizer = True
            self.resume()

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_ours(optimizer):
            self._optimizers.add(optimizer)
            self._finish()
            if self._live is not None:
                self._live.forget()
            if self._awaits_optimizer:
                self.left, self._awaits_optimizer = max(self.left, _STEPS_WITH_STATE), False

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        groups = optimizer.param_groups
        return any(id(parameter) in self._parameters for group in groups for parameter in group["params"])


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return what calls a method of an object as long as something else holds that."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        if (held := reference()) is not None:
            held(*args)

    return call


class _AtEnd:
    """A callback of autograd's engine that acts when it is dropped.

    When it is called, the engine has still to bring back the dispatch modes that there were as it began.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def __call__(self) -> None:
        """Wait."""

    def __del__(self) -> None:
        self._act()


def standing_bytes(modules: Iterable[nn.Module], *, gradients: bool) -> int:
    """Return what is there at a call beside parameters and buffers.

    Args:
        modules: that are called.
        gradients: count those that are there, beside the buckets of DistributedDataParallel.
    """
    parameters = [parameter for module in modules for parameter in parameters_at_rest(module)]
    there = [parameter.grad for parameter in parameters if parameter.grad is not None and gradients]
    parallel = nn.parallel.DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if parallel is None:
        return bytes_in(there)
    buckets: int = sum(parameter.nbytes for parameter in parallel.parameters() if parameter.requires_grad)
    return buckets + (0 if parallel.gradient_as_bucket_view else bytes_in(there))
