"""Bytes that are alive on a device, from a call of a model until somebody says that the step is over.

On the CPU a dispatch mode sees the results of every op, and weak references tell when these are freed, as in
`torch.distributed._tools.mem_tracker`; the workspace of kernels is not seen. On CUDA the allocator
tells; that is untried, as there was no GPU to try it on.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from remat_cli.pytorch.capture.ops import is_wrapper, local_part, storage_key
from remat_cli.pytorch.capture.recurrent import CARRIED_OUT_BY
from remat_cli.pytorch.memory.resizes import tell_no_more, tell_of_resizes
from remat_cli.pytorch.memory.transfers import is_host_copy

# Tensors with memory of their own. Those without data, and those that wrap others, are of other classes.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class LiveBytes(Protocol):
    """Follows what is alive on a device during a step, which has two parts."""

    def begin(self, tensors: Collection[torch.Tensor]) -> None:
        """Begin a step, within the call of the model.

        Args:
            tensors: that are in memory and belong to the step.
        """

    def pause(self) -> None:
        """Look away, as the call of the model ends: torch has its own to do around it."""

    def resume(self) -> bool:
        """Look on after `pause`; return whether that can be done."""

    def look(self) -> None:
        """Look on after `pause`, where it is paused again before any dispatch mode is left that is entered now."""

    def mark(self) -> None:
        """End the first part of the step."""

    def end(self) -> tuple[int, int]:
        """End the step; return the most bytes that were alive at one time in each part, 0 for a missing second part."""

    def forget(self) -> None:
        """Count what is in memory anew when the next step begins: the last one is over."""


class LiveOnCpu:
    """Follows the storages of tensors: those that it is told of, and those that ops of this thread make."""

    def __init__(self, device: str = "cpu") -> None:
        self.bytes = 0  # that are alive now
        self._device = device
        self._most = 0
        self._most_before: int | None = None
        self._followed: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # by address, with its bytes
        self._mode = _EveryOp(self.see)

    def begin(self, tensors: Collection[torch.Tensor]) -> None:
        """Begin a step."""
        self.see([local_part(tensor) for tensor in tensors])
        self._most, self._most_before = self.bytes, None
        self._mode.enter()
        tell_no_more(self._follow)
        tell_of_resizes(self._follow)

    def pause(self) -> None:
        """Look away."""
        self._mode.leave()

    def resume(self) -> bool:
        """Look on; that cannot be done within a dispatch mode of the user's, as modes are left in the reverse order."""
        return all(isinstance(mode, _EveryOp) for mode in _get_current_dispatch_mode_stack()) and self._mode.enter()

    def look(self) -> None:
        """Look on."""
        self._mode.enter()

    def mark(self) -> None:
        """End the first part of the step."""
        self._most_before, self._most = self._most, self.bytes

    def end(self) -> tuple[int, int]:
        """End the step; return the most bytes at one time in each part."""
        self._mode.leave()
        tell_no_more(self._follow)
        return (self._most, 0) if self._most_before is None else (self._most_before, self._most)

    def forget(self) -> None:
        """Do nothing: what is freed between two steps is seen."""

    def see(self, results: object) -> None:
        """Follow the storages of the tensors among what an op has made."""
        for tensor in pytree.tree_leaves(results):
            if type(tensor) in _PLAIN and tensor.device.type == self._device and tensor.layout is torch.strided:
                self._follow(tensor.untyped_storage())

    def _follow(self, storage: torch.UntypedStorage) -> None:
        if storage.device.type != self._device or is_host_copy(storage):
            return
        address, size = storage._cdata, storage.nbytes()
        reference, before = self._followed.get(address, (None, 0))
        if reference is None:
            reference = weakref.ref(storage, lambda _: self._freed(address))
        if size != before:
            self._followed[address] = reference, size
            self._change(size - before)

    def _freed(self, address: int) -> None:
        _, size = self._followed.pop(address)
        self._change(-size)

    def _change(self, size: int) -> None:
        self.bytes += size
        self._most = max(self._most, self.bytes)


class LiveOnCuda:
    """Asks CUDA's allocator (untried)."""

    def __init__(self) -> None:
        self._base = 0
        self._net: int | None = None  # what a step left behind that was ended by the next one
        self._before = 0
        self._most_before: int | None = None

    def begin(self, tensors: Collection[torch.Tensor]) -> None:
        """Begin a step."""
        self._base = bytes_in(tensors) if self._net is None else self._base + self._net
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._before, self._most_before = torch.cuda.memory_allocated(), None

    def pause(self) -> None:
        """Do nothing: the allocator sees all."""

    def resume(self) -> bool:
        """Do nothing."""
        return True

    def look(self) -> None:
        """Do nothing."""

    def mark(self) -> None:
        """End the first part of the step."""
        self._most_before = self._most()
        torch.cuda.reset_peak_memory_stats()

    def end(self) -> tuple[int, int]:
        """End the step; return the most bytes at one time in each part."""
        most = self._most()
        self._net = int(torch.cuda.memory_allocated() - self._before)
        return (most, 0) if self._most_before is None else (self._most_before, most)

    def forget(self) -> None:
        """Count what is in memory anew when the next step begins."""
        self._net = None

    def _most(self) -> int:
        torch.cuda.synchronize()
        return self._base + int(torch.cuda.max_memory_allocated() - self._before)


class _EveryOp(TorchDispatchMode):
    """Shows the results of ops; it stays entered while code of the user runs."""

    def __init__(self, see: Callable[[object], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._see = see
        self._thread: int | None = None  # in which it is entered
        self._is_showing = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work as ever for other functions of the user's."""
        return True

    def enter(self) -> bool:
        if self._thread is None:
            self.__enter__()  # type: ignore[no-untyped-call]
            self._thread = threading.get_ident()
        self._is_showing = self._thread == threading.get_ident()
        return self._is_showing

    def leave(self) -> None:
        self._is_showing = False
        # Below another mode, or in another thread, it stays and shows nothing, until that one is left.
        while (stack := _get_current_dispatch_mode_stack()) and isinstance(top := stack[-1], _EveryOp):
            if top._is_showing:
                break
            top.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            top._thread = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented  # it is seen with the local tensors, and what the wrapper does with them
        carried_out = CARRIED_OUT_BY.get(func) if self._is_showing else None
        if carried_out is not None:  # a layer holds what no op returns
            with self:
                return carried_out(*args, **(kwargs or {}))
        results = func(*args, **(kwargs or {}))
        if self._is_showing:
            self._see(results)
        return results


def live_on(device: str) -> LiveBytes | None:
    """Return what follows a kind of device; None for one that cannot be followed."""
    if device == "cuda":
        return LiveOnCuda()
    return LiveOnCpu() if device == "cpu" else None


def bytes_in(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages of tensors, each once."""
    parts = map(local_part, tensors)
    return sum({storage_key(part): part.untyped_storage().nbytes() for part in parts}.values())
