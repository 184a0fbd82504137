"""Tensors of blocks on the host between the passes of their block: inputs, and saved tensors.

A block's input goes out when its forward pass begins, and the input's memory is released at the end of that pass. Saved
tensors go out when that pass ends, and their memory is released at the end of the next block's. Both come back when the
block one earlier in the backward pass begins there. Autograd saves a handle in the place of each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from remat_cli.pytorch.memory.transfers import COPIES, offload, prefetch, wait
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.tensors import storage_key


def can_leave(value: Any) -> bool:
    """Return whether a value is a tensor that may leave for the host.

    It must fill its memory, on a device that can copy to the host.
    """
    if type(value) is not torch.Tensor or value.device.type not in COPIES or not value.is_contiguous():
        return False
    return 0 < value.nbytes == value.untyped_storage().nbytes()


@dataclass(eq=False)
class _Away:
    """The memory of a tensor on the host, or on its way.

    Attributes:
        here: the tensor until it is released.
        device: device that the tensor comes back to.
        host: the host copy, once copying has begun.
        arriving: the tensor on its way back, until it is read.
        there: the storage after a read, as long as it lives.
        is_saved: whether autograd holds a handle of the tensor.
    """

    here: torch.Tensor | None
    device: torch.device
    host: torch.Tensor | None = None
    arriving: torch.Tensor | None = None
    there: Callable[[], torch.UntypedStorage | None] = lambda: None
    is_saved: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Away:
        """Return a tensor's memory, which is still on its device."""
        return cls(tensor, tensor.device)

    def send(self) -> _Away:
        """Start copying to the host."""
        assert self.here is not None
        self.host = offload(self.here)
        return self

    def release(self) -> None:
        """Release the tensor once the copy is complete."""
        assert self.host is not None
        assert self.here is not None
        wait(self.host, self.here)
        self.here = None

    def fetch(self) -> None:
        """Start copying back, unless the copy has begun."""
        if self.here is None and self.arriving is None and self.there() is None:
            assert self.host is not None
            self.arriving = prefetch(self.host, self.device)

    def read(self) -> torch.UntypedStorage:
        """Return the memory once the copy is complete."""
        if self.here is not None:
            return self.here.untyped_storage()
        self.fetch()
        if self.arriving is not None:
            assert self.host is not None
            wait(self.host, self.arriving)
            storage = self.arriving.untyped_storage()
            self.arriving, self.there = None, weakref.ref(storage)
            return storage
        held = self.there()
        assert held is not None, "looked at just before"
        return held


@dataclass(frozen=True, eq=False)
class _Handle:
    """Autograd's handle of a tensor on the host.

    It has the memory, and the tensor's layout there.
    """

    away: _Away
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    def read(self) -> torch.Tensor:
        empty = torch.empty(0, dtype=self.dtype, device=self.away.device)
        return empty.set_(self.away.read(), self.offset, self.shape, self.stride)


def _handle(away: _Away, tensor: torch.Tensor) -> _Handle:
    return _Handle(away, tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())


@dataclass(eq=False)
class HostedStep:
    """The tensors of blocks on the host in one step.

    Attributes:
        running: numbers of the calls whose backward pass has not begun, by the order of their forward passes.
    """

    running: set[int] = field(default_factory=set)
    _away: dict[int, list[_Away]] = field(default_factory=dict)
    _saved: dict[int, _Away] = field(default_factory=dict)  # by the last block, by storage
    _leaving: list[_Away] = field(default_factory=list)  # on the way to the host
    _given: frozenset[int] = frozenset()  # storages that exist before the block's call

    @contextmanager
    def leaving(self, number: int, values: Sequence[torch.Tensor], *, saves: bool = False) -> Iterator[None]:
        """Let values leave for the host while a block's forward pass runs.

        Their device memory is released when the pass ends.

        Args:
            number: number of the block's call.
            values: inputs of the block.
            saves: let saved tensors leave, too, when the pass has ended.
        """
        self.running.add(number)
        if not values and not saves:
            yield
            self._release()
            return
        going = {storage_key(value): _Away.of(value).send() for value in values}

        def pack(saved: torch.Tensor) -> torch.Tensor | _Handle:
            away = going.get(storage_key(saved))
            if away is None:
                if not saves or storage_key(saved) in self._given or not _is_movable(saved):
                    return saved
                away = self._saved.setdefault(storage_key(saved), _Away.of(saved))
            away.is_saved = True
            return _handle(away, saved)

        with saved_tensors_hooks(pack, _unpack):
            yield
        self._release()
        self._given = frozenset()
        for away in going.values():
            away.release()
        self._away[number] = [away for away in going.values() if away.is_saved]

    def note_given(self, given: Iterable[Any]) -> None:
        """Note the tensors that a block's forward pass is given: they stay."""
        self._given = frozenset(storage_key(value) for value in given if isinstance(value, torch.Tensor))

    def _release(self) -> None:
        """Release the tensors that an earlier block has saved."""
        for away in self._leaving:
            away.release()
        self._leaving = []

    def watch(self, number: int, result: Any) -> None:
        """Let a block's saved tensors leave, and fetch the next block's at its backward pass.

        Args:
            number: number of the block's call.
            result: the result of the call.
        """
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        returned = {storage_key(leaf) for leaf in leaves} if self._saved else set()
        self._leaving = [away for key, away in self._saved.items() if key not in returned]
        self._saved = {}
        for away in self._leaving:
            away.send()
        self._away[number] = [*self._away.get(number, ()), *self._leaving]
        begin = _Begin(self, number)
        for node in {leaf.grad_fn for leaf in leaves}:
            if node is not None:
                node.register_prehook(begin)

    def begin(self, number: int) -> None:
        """Fetch the tensors of a block's backward pass, and the next block's."""
        if number not in self.running:  # a second backward pass
            return
        self.running.remove(number)
        self._release()
        coming = [number, max(self.running)] if self.running else [number]
        for away in (one for call in coming for one in self._away.get(call, ())):
            away.fetch()


@dataclass(frozen=True)
class _Begin:
    """Called at the beginning of a block's backward pass."""

    step: HostedStep
    number: int

    def __call__(self, gradients: tuple[torch.Tensor, ...]) -> None:
        self.step.begin(self.number)


def _unpack(saved: torch.Tensor | _Handle) -> torch.Tensor:
    return saved.read() if isinstance(saved, _Handle) else saved


def _is_movable(saved: torch.Tensor) -> bool:
    return type(saved) is torch.Tensor and saved.device.type in COPIES and saved.untyped_storage().nbytes() > 0


class MovableInputs:
    """Arguments of a block that may leave for the host.

    They come back when the block runs again.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._leaves, self._structure = pytree.tree_flatten((args, dict(kwargs)))
        self._away: dict[int, tuple[_Handle, bool]] = {}

    def __call__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with tensors fetched from the host."""
        leaves = [self._back(place) if place in self._away else leaf for place, leaf in enumerate(self._leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return args, kwargs

    def _back(self, place: int) -> torch.Tensor:
        handle, requires_grad = self._away[place]
        # No leaf of autograd: the block may change it in place, like its arguments.
        return handle.read().requires_grad_(requires_grad).view(handle.shape)

    def leave(self, staying: Callable[[int, torch.Tensor], bool]) -> dict[int, torch.UntypedStorage]:
        """Let tensors leave; return their earlier memory by place.

        A place is an index among the leaves.

        Args:
            staying: returns whether the tensor at a place stays.
        """
        memory: dict[int, torch.UntypedStorage] = {}
        keys = [storage_key(leaf) if isinstance(leaf, torch.Tensor) else 0 for leaf in self._leaves]
        for place, leaf in enumerate(self._leaves):
            if can_leave(leaf) and keys.count(keys[place]) == 1 and not staying(place, leaf):
                away = _Away.of(leaf).send()
                away.release()
                self._away[place] = _handle(away, leaf), leaf.requires_grad
                memory[place] = leaf.untyped_storage()
                self._leaves[place] = None
        return memory
