"""Tensors copied to the host and back: what the steps offload, prefetch and wait of a schedule do.

All the memory that a tensor is in is copied, so that it comes back with the strides and the offset that it had. Its
host copy is a tensor too, of the same layout. On CUDA each direction has a stream of its own beside the one that
computes. On the CPU, where device and host are one, the same steps are plain copies, and the host's are in memory that
torch's allocator does not count.

torch's own ops (`torch.ops.ao.offload`, `reload`, `wait_tensor`) do not fit: they have one stream for both directions
and nothing for the CPU, and can wait for a copy only once, where the second backward pass of a step waits again.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Protocol

import numpy
import torch

HostBytes = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]


def offload(value: torch.Tensor) -> torch.Tensor:
    """Start copying the memory that a tensor is in to the host; return the host copy.

    The memory must not be given back, or overwritten, before `wait` was called.
    """
    return _laid_out(COPIES[value.device.type].out(_bytes_of(value)), value)


def prefetch(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Start copying back; return the tensor, which must not be read or given back before `wait` was called."""
    return _laid_out(COPIES[device.type].back(_bytes_of(host), device), host)


def wait(host: torch.Tensor, value: torch.Tensor) -> None:
    """Have whatever is computed from now on wait for the last copy from or to a host copy.

    Args:
        host: the copy.
        value: what it is a copy of; being named here keeps its memory until now.
    """
    COPIES[value.device.type].wait(_bytes_of(host), value.device)


def beside(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the memory that `one` is in, where `other` is in its own."""
    return _laid_out(one, other)


def is_host_copy(storage: torch.UntypedStorage) -> bool:
    """Tell whether memory is the host's, taken for a copy of what is on a device."""
    address = storage.data_ptr()
    return any(address in copies.memory.taken for copies in COPIES.values())


def _bytes_of(value: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())


def _laid_out(memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the memory of one, with element type, shape, strides and offset of another."""
    empty = torch.empty(0, dtype=like.dtype, device=memory.device)
    return empty.set_(memory.untyped_storage(), like.storage_offset(), like.shape, like.stride())


class HostMemory:
    """Memory of the host that is used again once the tensor in it is gone: pinning it takes longer than a copy.

    Attributes:
        make: gives new memory of a size in bytes.
        free: what no tensor is in, by its size in bytes.
        taken: addresses of memory that tensors are in.
    """

    def __init__(self, make: Callable[[int], HostBytes]) -> None:
        self.make = make
        self.free: defaultdict[int, list[HostBytes]] = defaultdict(list)
        self.taken: set[int] = set()
        self._taking = threading.Lock()  # autograd has a thread for each device

    def take(self, size: int) -> torch.Tensor:
        """Return [size] bytes; of memory that is there, none of more than twice the size is taken."""
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
        """Return the bytes of memory that no tensor is in."""
        with self._taking:
            return sum(memory.nbytes for free in self.free.values() for memory in free)


class Copies(Protocol):
    """Copies bytes between a kind of device and the host.

    Attributes:
        memory: of the host.
    """

    memory: HostMemory

    def out(self, source: torch.Tensor) -> torch.Tensor:
        """Start copying [N] bytes to the host; return the copy."""
        ...

    def back(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Start copying [N] bytes from the host to a device; return the copy."""
        ...

    def wait(self, host: torch.Tensor, device: torch.device) -> None:
        """Have what is computed on a device wait for the last copy that a host copy had part in."""
        ...


class CopiesAtOnce:
    """Copies within the CPU's memory, each done before what follows it."""

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


class Way(Enum):
    """The direction of a copy."""

    OUT = "to the host"
    BACK = "from the host"


class DeviceStream(Protocol):
    """A queue of work on a device, as `torch.cuda.Stream`."""

    def wait_stream(self, other: Any) -> None:
        """Have what is issued from now on wait for all that was issued to another stream."""
        ...

    def wait_event(self, event: Any) -> None:
        """Have what is issued from now on wait for an event."""
        ...

    def record_event(self) -> Any:
        """Return the event that all that was issued so far is done."""
        ...


class Streams(Protocol):
    """The streams of a kind of device, as `torch.cuda` has them."""

    def Stream(self, device: torch.device) -> DeviceStream:
        """Return a new stream."""
        ...

    def current_stream(self, device: torch.device) -> DeviceStream:
        """Return the stream to which work is issued."""
        ...

    def stream(self, stream: Any) -> AbstractContextManager[object]:
        """Have work issued to a stream while the context is entered."""
        ...


class CopiesOnStreams:
    """Copies between CUDA and pinned memory, on a stream for each direction (untried on a GPU).

    A copy begins once all is done that was issued before it to the stream that computes. So a tensor is made before it
    goes out; and the memory of one that comes back, which belongs to the stream that computes, has no earlier use left.
    Memory is given back after the stream that computes has waited for the copy, so whatever gets it next comes after
    the copy, too, and the allocator need not be told of the other streams (`record_stream` would hold memory back).

    A step may end before it has waited: an op fails, or there is no backward pass. What goes out then stays unread.
    What comes back is kept here until the next wait for that host memory.

    Attributes:
        streams: of the device.
        memory: of the host.
    """

    def __init__(self, streams: Streams = torch.cuda) -> None:
        self.streams = streams
        self.memory = HostMemory(self.host_memory)
        self._copying: dict[tuple[torch.device, Way], DeviceStream] = {}
        # By the address of host memory, the end of the last copy from or to it. Its next copy, perhaps that of another
        # step that has this memory next, comes after that.
        self._ends: dict[int, Any] = {}
        self._arriving: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

    def out(self, source: torch.Tensor) -> torch.Tensor:
        """Start copying [N] bytes to the host; return the copy."""
        host = self.memory.take(source.numel())
        self._copy(host, source, host, source.device, Way.OUT)
        return host

    def back(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Start copying [N] bytes from the host; return the copy."""
        target = torch.empty_like(host, device=device)
        self._arriving[host.data_ptr()].append(target)
        self._copy(target, host, host, device, Way.BACK)
        return target

    def wait(self, host: torch.Tensor, device: torch.device) -> None:
        """Have the stream that computes wait for the last copy that a host copy had part in."""
        self.streams.current_stream(device).wait_event(self._ends[host.data_ptr()])
        self._arriving.pop(host.data_ptr(), None)

    def _copy(
        self, target: torch.Tensor, source: torch.Tensor, host: torch.Tensor, device: torch.device, way: Way
    ) -> None:
        if (device, way) not in self._copying:
            self._copying[device, way] = self.streams.Stream(device)
        stream = self._copying[device, way]
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
        """Return new memory that copies can reach while the CPU does other things."""
        pinned: HostBytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned


# By kind of device.
COPIES: dict[str, Copies] = {"cpu": CopiesAtOnce(), "cuda": CopiesOnStreams()}
