"""Tensors copied to the host and back, by the steps of a schedule.

The steps are offload, prefetch and wait.

A tensor's whole storage is copied, so that the tensor comes back with its strides and offset. The host copy is a tensor
of the same layout. On CUDA each direction has a stream of its own, apart from the compute stream. On the CPU device and
host are one, and the same steps are plain copies; host copies are in memory that torch's allocator does not count.

torch's own ops (`torch.ops.ao.offload`, `reload`, `wait_tensor`) do not fit: they have one stream for both directions
and nothing for the CPU, and can wait for a copy only once, where the second backward pass of a step waits again.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy
import torch

from remat_cli.core.link import Direction

HostBytes = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]


def offload(value: torch.Tensor) -> torch.Tensor:
    """Start copying a tensor's memory to the host; return the host copy.

    The memory must not be freed or overwritten before `wait` is called.
    """
    return _laid_out(COPIES[value.device.type].out(_bytes_of(value)), value)


def prefetch(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Start copying back; return the tensor.

    The tensor must not be read or freed before `wait` is called.
    """
    return _laid_out(COPIES[device.type].back(_bytes_of(host), device), host)


def wait(host: torch.Tensor, value: torch.Tensor) -> None:
    """Let later computation wait for the last copy of a tensor.

    The copy is from or to the host copy.

    Args:
        host: the host copy.
        value: the copied tensor; the argument keeps its memory until now.
    """
    COPIES[value.device.type].wait(_bytes_of(host), value.device)


def in_memory_of(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return a tensor in `one`'s memory, with the layout of `other`."""
    return _laid_out(one, other)


def is_host_copy(storage: torch.UntypedStorage) -> bool:
    """Return whether a storage is a host copy's memory."""
    address = storage.data_ptr()
    return any(address in copies.memory.taken for copies in COPIES.values())


def _bytes_of(value: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())


def _laid_out(memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor in one's memory, with the layout of another.

    The layout is element type, shape, strides and offset.
    """
    empty = torch.empty(0, dtype=like.dtype, device=memory.device)
    return empty.set_(memory.untyped_storage(), like.storage_offset(), like.shape, like.stride())


class HostMemory:
    """Host memory that is reused: pinning takes longer than a copy.

    Memory is free again once its tensor is gone.

    Attributes:
        make: allocates memory of a size in bytes.
        free: free memory, by its size in bytes.
        taken: addresses of memory in use.
    """

    def __init__(self, make: Callable[[int], HostBytes]) -> None:
        self.make = make
        self.free: defaultdict[int, list[HostBytes]] = defaultdict(list)
        self.taken: set[int] = set()
        self._taking = threading.Lock()  # autograd has a thread for each device

    def take(self, size: int) -> torch.Tensor:
        """Return [size] bytes, reused if possible.

        No memory of more than twice the size is reused.
        """
        with self._taking:
            fitting = min((free for free in self.free if size <= free <= 2 * size and self.free[free]), default=None)
            memory = self.make(size) if fitting is None else self.free[fitting].pop()
            self.taken.add(memory.ctypes.data)
        # The tensor, and all that shares its memory, keeps this array; when it goes, they have all gone.
        taken = memory[:size]
        weakref.finalize(taken, self._given_back, memory).atexit = False
        return torch.from_numpy(taken)

    def _given_back(self, memory: HostBytes) -> None:
        self.taken.discard(memory.ctypes.data)
        self.free[memory.nbytes].append(memory)

    def free_bytes(self) -> int:
        """Return the bytes of free memory."""
        with self._taking:
            return sum(memory.nbytes for free in self.free.values() for memory in free)


class Copies(Protocol):
    """Copies bytes between a kind of device and the host.

    Attributes:
        memory: memory of the host.
    """

    memory: HostMemory

    def out(self, source: torch.Tensor) -> torch.Tensor:
        """Start copying [N] bytes to the host; return the copy."""
        ...

    def back(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Start copying [N] bytes from the host to a device; return the copy."""
        ...

    def wait(self, host: torch.Tensor, device: torch.device) -> None:
        """Let a device's computation wait for the last copy of a host copy."""
        ...


class CopiesAtOnce:
    """Copies within the CPU's memory, complete at once."""

    def __init__(self) -> None:
        # Not torch's memory: the host's share must not count where a step's memory is measured.
        self.memory = HostMemory(lambda size: numpy.empty(size, numpy.uint8))

    def out(self, source: torch.Tensor) -> torch.Tensor:
        """Copy [N] bytes; return the copy."""
        return self.memory.take(source.numel()).copy_(source)

    def back(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Copy [N] bytes back; return the copy."""
        return torch.empty_like(host, device=device).copy_(host)

    def wait(self, host: torch.Tensor, device: torch.device) -> None:
        """Do nothing: all copies are done."""


class DeviceStream(Protocol):
    """A queue of work on a device, as `torch.cuda.Stream`."""

    def wait_stream(self, other: Any) -> None:
        """Let later work wait for all earlier work of another stream."""
        ...

    def wait_event(self, event: Any) -> None:
        """Let later work wait for an event."""
        ...

    def record_event(self) -> Any:
        """Return the event that all work issued so far is done."""
        ...


class Streams(Protocol):
    """The streams of a kind of device, in the manner of `torch.cuda`."""

    def Stream(self, device: torch.device) -> DeviceStream:
        """Return a new stream."""
        ...

    def current_stream(self, device: torch.device) -> DeviceStream:
        """Return the stream that work is issued to."""
        ...

    def stream(self, stream: Any) -> AbstractContextManager[object]:
        """Issue work to a stream while the context is entered."""
        ...


class CopiesOnStreams:
    """Copies between CUDA and pinned memory, on a stream for each direction (untried on a GPU).

    A copy begins after all earlier work of the compute stream. So a tensor is complete before it goes out; and the
    memory of a tensor that comes back, which belongs to the compute stream, has no earlier use left. Memory is freed
    after the compute stream has waited for the copy. So its next user comes after the copy, too, and the allocator need
    not know the other streams (`record_stream` would hold memory back).

    A step may end before its waits: an op fails, or there is no backward pass. Host copies then stay unread. Tensors on
    their way back are kept here until the next wait for that host memory.

    Attributes:
        streams: streams of the device.
        memory: memory of the host.
    """

    def __init__(self, streams: Streams = torch.cuda) -> None:
        self.streams = streams
        self.memory = HostMemory(self.host_memory)
        self._copying: dict[tuple[torch.device, Direction], DeviceStream] = {}
        # By the address of host memory: when the last copy from or to it ends. The next copy waits for that, also where
        # the memory has gone to another step.
        self._ends: dict[int, Any] = {}
        self._arriving: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

    def out(self, source: torch.Tensor) -> torch.Tensor:
        """Start copying [N] bytes to the host; return the copy."""
        host = self.memory.take(source.numel())
        self._copy(host, source, host, source.device, Direction.TO_HOST)
        return host

    def back(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Start copying [N] bytes from the host; return the copy."""
        target = torch.empty_like(host, device=device)
        self._arriving[host.data_ptr()].append(target)
        self._copy(target, host, host, device, Direction.TO_DEVICE)
        return target

    def wait(self, host: torch.Tensor, device: torch.device) -> None:
        """Let the compute stream wait for the last copy of a host copy."""
        self.streams.current_stream(device).wait_event(self._ends[host.data_ptr()])
        self._arriving.pop(host.data_ptr(), None)

    def _copy(
        self, target: torch.Tensor, source: torch.Tensor, host: torch.Tensor, device: torch.device, direction: Direction
    ) -> None:
        if (device, direction) not in self._copying:
            self._copying[device, direction] = self.streams.Stream(device)
        stream = self._copying[device, direction]
        stream.wait_stream(self.streams.current_stream(device))
        if host.data_ptr() in self._ends:
            stream.wait_event(self._ends[host.data_ptr()])
        with self.streams.stream(stream):
            self.start(target, source)
        self._ends[host.data_ptr()] = stream.record_event()

    def start(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Start copying on the current stream."""
        target.copy_(source, non_blocking=True)

    def host_memory(self, size: int) -> HostBytes:
        """Return new pinned memory, for copies while the CPU works."""
        pinned: HostBytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned


# By kind of device.
COPIES: dict[str, Copies] = {"cpu": CopiesAtOnce(), "cuda": CopiesOnStreams()}
