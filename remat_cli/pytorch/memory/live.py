"""Live bytes on a device during a step.

A step begins with a call of the model, and ends when the caller ends it.

On the CPU a dispatch mode sees the results of every op, and weak references show their end, as in
`torch.distributed._tools.mem_tracker`; the workspace of kernels is not seen. On CUDA the allocator counts; this is
untried, for lack of a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

import torch

from remat_cli.pytorch.capture.live_storages import LiveStorages
from remat_cli.pytorch.capture.recurrent import CARRIED_OUT_BY
from remat_cli.pytorch.memory.transfers import is_host_copy
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.autograd import after_backward, current_pass
from remat_cli.pytorch.unstable.dispatch import TorchDispatchMode, modes_in_force
from remat_cli.pytorch.unstable.resizes import tell_no_more, tell_of_resizes
from remat_cli.pytorch.unstable.tensors import is_wrapper, local_part, storage_key

# Classes of tensors with memory of their own. Tensors without data, and wrappers of others, have other classes.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class LiveBytes(Protocol):
    """Follows the live bytes on a device during a step.

    A step has two parts.
    """

    def begin(self, tensors: Collection[torch.Tensor]) -> None:
        """Begin a step, within the call of the model.

        Args:
            tensors: tensors of the step that are in memory.
        """

    def pause(self) -> None:
        """Stop looking at the end of the model's call.

        torch has work of its own around the call.
        """

    def resume(self) -> bool:
        """Look again after `pause`; return whether this is possible."""

    def look(self) -> bool:
        """Look again after `pause`, within dispatch modes that stay entered; return whether this is possible.

        `pause` must come again before any mode is left that is entered now.
        """

    def mark(self) -> None:
        """End the first part of the step."""

    def end(self) -> tuple[int, int]:
        """End the step; return the peak of live bytes in each part.

        A missing second part has 0.
        """

    def forget(self) -> None:
        """Forget the last step: the next one counts memory from the start."""


class LiveOnCpu:
    """Follows storages of given tensors, and of results of this thread's ops."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._most = 0
        self._most_before: int | None = None
        self._storages = LiveStorages(self._changed)
        self._mode = _EveryOp(self.see)

    @property
    def bytes(self) -> int:
        """Live bytes now."""
        return self._storages.bytes

    def begin(self, tensors: Collection[torch.Tensor]) -> None:
        """Begin a step."""
        self.see([local_part(tensor) for tensor in tensors])
        self._most, self._most_before = self.bytes, None
        self.look()

    def pause(self) -> None:
        """Stop looking."""
        self._mode.leave()
        tell_no_more(self._follow)

    def resume(self) -> bool:
        """Look again.

        Within a dispatch mode of the user this is impossible, as modes are left in reverse order; so it is in a
        backward pass that began without this mode, as autograd's engine takes the mode off after each node.
        """
        modes = modes_in_force()
        may_stay = current_pass() is None or self._mode in modes
        return may_stay and all(isinstance(mode, _EveryOp) for mode in modes) and self.look()

    def look(self) -> bool:
        """Look again; return whether ops of this thread are seen."""
        self._storages.refresh()
        tell_no_more(self._follow)
        tell_of_resizes(self._follow)
        return self._mode.enter()

    def mark(self) -> None:
        """End the first part of the step."""
        self._most_before, self._most = self._most, self.bytes

    def end(self) -> tuple[int, int]:
        """End the step; return the peak of live bytes in each part."""
        self.pause()
        return (self._most, 0) if self._most_before is None else (self._most_before, self._most)

    def forget(self) -> None:
        """Do nothing: memory freed between two steps is seen."""

    def see(self, results: object) -> None:
        """Follow the storages of tensors among an op's results."""
        for tensor in pytree.tree_leaves(results):
            if type(tensor) in _PLAIN and tensor.device.type == self._device and tensor.layout is torch.strided:
                self._follow(tensor.untyped_storage())

    def _follow(self, storage: torch.UntypedStorage) -> None:
        if storage.device.type == self._device and not is_host_copy(storage):
            self._storages.follow(storage)

    def _changed(self) -> None:
        self._most = max(self._most, self._storages.bytes)


class LiveOnCuda:
    """Asks CUDA's allocator (untried)."""

    def __init__(self) -> None:
        self._base = 0
        self._net: int | None = None  # bytes left by a step that the next one ended
        self._before = 0
        self._most_before: int | None = None

    def begin(self, tensors: Collection[torch.Tensor]) -> None:
        """Begin a step."""
        self._base = bytes_in(tensors) if self._net is None else self._base + self._net
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._before, self._most_before = torch.cuda.memory_allocated(), None

    def pause(self) -> None:
        """Do nothing: the allocator sees all memory."""

    def resume(self) -> bool:
        """Do nothing."""
        return True

    def look(self) -> bool:
        """Do nothing."""
        return True

    def mark(self) -> None:
        """End the first part of the step."""
        self._most_before = self._most()
        torch.cuda.reset_peak_memory_stats()

    def end(self) -> tuple[int, int]:
        """End the step; return the peak of live bytes in each part."""
        most = self._most()
        self._net = int(torch.cuda.memory_allocated() - self._before)
        return (most, 0) if self._most_before is None else (self._most_before, most)

    def forget(self) -> None:
        """Forget the last step: the next one counts memory from the start."""
        self._net = None

    def _most(self) -> int:
        torch.cuda.synchronize()
        return self._base + int(torch.cuda.max_memory_allocated() - self._before)


class _EveryOp(TorchDispatchMode):
    """Shows the results of ops.

    The mode stays entered while the user's code runs. Ops within one of higher order, such as `torch.cond`, count as
    its workspace.
    """

    supports_higher_order_operators = True

    def __init__(self, see: Callable[[object], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._see = see
        self._thread: int | None = None  # thread that entered the mode
        self._entered_in: int | None = None  # backward pass that entered the mode
        self._is_showing = False
        self._is_leaving = False  # after the running backward pass

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work as usual for the user's other functions."""
        return True

    def enter(self) -> bool:
        if self._thread is None:
            self.__enter__()  # type: ignore[no-untyped-call]
            self._thread, self._entered_in = threading.get_ident(), current_pass()
        self._is_showing = self._thread == threading.get_ident()
        return self._is_showing

    def leave(self) -> None:
        self._is_showing = False
        # Below another mode, or in another thread, the mode stays and shows nothing until that one is left.
        while (stack := modes_in_force()) and isinstance(top := stack[-1], _EveryOp):
            if top._is_showing:
                break
            if top._entered_in != current_pass():
                # autograd's engine would put the mode back after this node.
                top._leave_after_backward()
                break
            top.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            top._thread = None

    def _leave_after_backward(self) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            after_backward(self._leave_now)

    def _leave_now(self) -> None:
        self._is_leaving = False
        self.leave()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented  # seen with the local tensors, and with the wrapper's ops on them
        carried_out = CARRIED_OUT_BY.get(func) if self._is_showing else None
        if carried_out is not None:  # a layer holds tensors that no op returns
            with self:
                return carried_out(*args, **(kwargs or {}))
        results = func(*args, **(kwargs or {}))
        if self._is_showing:
            self._see(results)
        return results


def live_on(device: str) -> LiveBytes | None:
    """Return the follower of a kind of device; None if there is none."""
    if device == "cuda":
        return LiveOnCuda()
    return LiveOnCpu() if device == "cpu" else None


def bytes_in(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors' storages, each counted once."""
    parts = map(local_part, tensors)
    return sum({storage_key(part): part.untyped_storage().nbytes() for part in parts}.values())
