"""The first steps of a planned model, measured as wholes.

They include memory that the model does not see.

A step lasts from a planned call to the end of the backward pass, and of the optimizer's step. Measuring ends after the
first steps, and after two steps beyond the optimizer's first, which allocates its state. (torch's profiler would see
more on the CPU, but crashes the interpreter where it stays open from one call to the next.)
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
from torch.autograd.graph import Node
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from remat_cli.pytorch.capture.optimizer import kept_state
from remat_cli.pytorch.memory.live import LiveBytes, LiveOnCpu, bytes_in, live_on
from remat_cli.pytorch.memory.shards import gathered_parameters, parameters_at_rest
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.autograd import after_backward, current_pass, is_profiling, keep_in
from remat_cli.pytorch.unstable.modules import enclosing_parallel

_FIRST_STEPS = 3
_KEY = "remat.watch"
# Calls before a backward pass after which measured steps are counted, as none may come.
_MOST_CALLS = 64
_STEPS_WITH_STATE = 2  # gradients are accumulated in the second such step, if at all


@dataclass(frozen=True)
class MeasuredStep:
    """The memory of a whole step, with memory from before.

    Attributes:
        passes_bytes: peak before the optimizer's step: in forward pass, the caller's own computation, and backward
            pass.
        optimizer_bytes: peak in the optimizer's step; 0 without such a step.
        gradient_bytes: gradients in memory at the start of the step.
    """

    passes_bytes: int
    optimizer_bytes: int
    gradient_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """The peak of the step."""
        return max(self.passes_bytes, self.optimizer_bytes)


class StepWatch:
    """Measures the first steps of a model.

    Steps under another profiler are left out.

    Attributes:
        left: number of steps still to measure.
        state_bytes: optimizers' state at the start of the last measured step.
        calls: number of calls before the last measured backward pass, or since.
    """

    def __init__(self) -> None:
        self.left = _FIRST_STEPS
        self.state_bytes = 0
        self.calls = 0
        self._gradient_bytes = 0
        self._left_out_bytes = 0
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
        """The part that measured peaks leave out, in words.

        On the CPU it is the memory of kernels.
        """
        return ", without the workspace of kernels" if isinstance(self._live, LiveOnCpu) else ""

    @property
    def awaits_backward(self) -> bool:
        """Whether the calls so far may be followed by more before their backward passes."""
        return not self._has_gone_back and self.calls < _MOST_CALLS

    def again(self) -> None:
        """Measure as many steps again, for another plan."""
        self.left = _FIRST_STEPS

    def stop(self) -> None:
        """Stop measuring."""
        self.left, self._awaits_optimizer = 0, False

    def begin(self, device: str, modules: Iterable[nn.Module], given: Any) -> None:
        """Begin to measure a step, if any are left to measure.

        Args:
            device: kind of device.
            modules: modules with their parameters in memory.
            given: arguments of the model's call.
        """
        self.calls = 1 if self._has_gone_back else self.calls + 1
        self._left_out_bytes *= not self._has_gone_back
        self._has_gone_back = False
        if not self.left or is_profiling():
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
                register_optimizer_step_pre_hook(weakly(self._optimizer_begins)),
                register_optimizer_step_post_hook(weakly(self._optimizer_ends)),
            ]
            for hook in self._hooks:
                weakref.finalize(self, hook.remove).atexit = False
        self._is_begun, self._is_in_optimizer, self._is_dropped = True, False, False
        self._step += 1

    def pause(self) -> None:
        """Stop looking after the model's run.

        torch has work of its own on the results.
        """
        if self._is_begun and self._live is not None:
            self._live.pause()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look again while the context is entered.

        torch may be within dispatch modes of its own, as at a first run.
        """
        if not self._is_begun or self._live is None:
            yield
            return
        self._live.look()
        try:
            yield
        finally:
            self._live.pause()

    def resume(self, result: Any = None) -> None:
        """Look again from the end of the planned call.

        This ends with the backward pass, or when `result` is freed without one.

        A step that cannot be followed from there is not measured.
        """
        if self._is_begun and self._live is not None:
            self._is_begun = self._live.resume()
            if nodes := _nodes_of(result):
                graph = _Graph()
                weakref.finalize(graph, self._pause_in, self._step).atexit = False
                for node in nodes:
                    keep_in(node, _KEY, graph)

    def backward_begins(self) -> None:
        """Stop looking at the end of this backward pass.

        A mode that stays on would disturb later code.
        """
        self._has_gone_back = True
        if self._is_begun:
            after_backward(partial(self._pause_in, self._step))

    def _pause_in(self, step: int) -> None:
        if step == self._step and not self._is_in_optimizer:
            self.pause()

    def leave_out(self, size: int) -> None:
        """Leave memory that only the first steps have out of this step's peak."""
        self._left_out_bytes += size

    def drop(self) -> None:
        """Leave this step out: eager runs its backward pass."""
        self._is_dropped = True

    def end(self) -> MeasuredStep | None:
        """End the current step; return the last measured step.

        Each step is returned once.
        """
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
            passes_bytes, optimizer_bytes = self._live.end()
            if not self._is_dropped:
                self.left -= not self.awaits_backward
                passes_bytes -= self._left_out_bytes
                self._measured = MeasuredStep(passes_bytes, optimizer_bytes, self._gradient_bytes)

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if current_pass() is not None:  # a part of the backward pass, as many optimizers of one parameter each
            return
        if self._is_begun and self._live is not None and self._is_ours(optimizer) and not self._is_in_optimizer:
            self._live.mark()
            self._is_in_optimizer = True
            self.resume()

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_ours(optimizer):
            self._optimizers.add(optimizer)
            if current_pass() is None:
                self._finish()
                if self._live is not None:
                    self._live.forget()
            if self._awaits_optimizer:
                self.left, self._awaits_optimizer = max(self.left, _STEPS_WITH_STATE), False

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        groups = optimizer.param_groups
        return any(id(parameter) in self._parameters for group in groups for parameter in group["params"])


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method while its object lives."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        held = reference()
        return None if held is None else held(*args)

    return call


class _Graph:
    """Stands for the autograd graph of a result: it is freed with the graph's last node."""


def _nodes_of(result: Any) -> set[Node]:
    """Return the autograd nodes of the tensors in a result.

    Attributes of objects that pytree does not know are searched, too.
    """
    leaves = pytree.tree_leaves(result)
    inner = [vars(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor) and hasattr(leaf, "__dict__")]
    tensors = (leaf for leaf in (*leaves, *pytree.tree_leaves(inner)) if isinstance(leaf, torch.Tensor))
    return {tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None}


def standing_bytes(modules: Iterable[nn.Module], *, gradients: bool) -> int:
    """Return the bytes in memory at a call, without parameters and buffers.

    Args:
        modules: the called modules.
        gradients: count existing gradients, in addition to the buckets of DistributedDataParallel.
    """
    parameters = [parameter for module in modules for parameter in parameters_at_rest(module)]
    there = [parameter.grad for parameter in parameters if parameter.grad is not None and gradients]
    parallel = enclosing_parallel()
    if parallel is None:
        return bytes_in(there)
    buckets: int = sum(parameter.nbytes for parameter in parallel.parameters() if parameter.requires_grad)
    return buckets + (0 if parallel.gradient_as_bucket_view else bytes_in(there))
