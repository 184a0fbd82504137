"""CUDA's streams as the rules allow them at their worst: a copy is made when somebody waits for it, and not before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy
import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from remat_cli.core.schedule import Compute, Offload, Prefetch, Step, Wait
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.memory.transfers import CopiesOnStreams, HostBytes

_GARBAGE = 0xFF  # NaN in any float


class MemoryGone(AssertionError):
    """A copy writes into memory that was given back: it may be somebody else's."""


class Event:
    """A place in what was issued to a stream."""

    def __init__(self, stream: LateStream) -> None:
        self.stream, self.place = stream, stream.issued

    def complete(self) -> None:
        """Have the stream come to this place."""
        while self.stream.issued - len(self.stream.queue) < self.place:
            self.stream.queue.pop(0)()


class LateStream:
    """Does what is issued to it once it must; the one that computes, `eager`, at once."""

    def __init__(self, device: object = None, *, eager: bool = False) -> None:
        del device
        self.eager, self.issued = eager, 0
        self.queue: list[Callable[[], object]] = []

    def issue(self, work: Callable[[], object]) -> None:
        self.issued += 1
        self.queue.append(work)
        if self.eager:
            self.queue.pop()()

    def wait_event(self, event: Event) -> None:
        self.issue(event.complete)

    def wait_stream(self, other: LateStream) -> None:
        self.wait_event(other.record_event())

    def record_event(self) -> Event:
        return Event(self)


class Streams:
    """What `torch.cuda` has for streams.

    Attributes:
        current: the stream to which work is issued; at first the one that computes.
    """

    Stream = LateStream

    def __init__(self) -> None:
        self.current = LateStream(eager=True)

    def current_stream(self, device: object = None) -> LateStream:
        del device
        return self.current

    @contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class LateCopies(CopiesOnStreams):
    """Copies within the CPU's memory on such streams; memory that nothing was copied to yet is garbage."""

    def __init__(self) -> None:
        self.late = Streams()
        super().__init__(self.late)
        self.pinned: dict[int, HostBytes] = {}

    def start(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Issue a copy; like CUDA's, it keeps nothing of the device's from being given back."""
        outwards = target.data_ptr() in self.pinned
        if not outwards:
            target.fill_(_GARBAGE)
        of_host, of_device = (target, source) if outwards else (source, target)
        host = self.pinned[of_host.data_ptr()][: of_host.numel()]
        there = StorageWeakRef(of_device.untyped_storage())  # type: ignore[no-untyped-call]

        def copy() -> None:
            storage = torch.UntypedStorage._new_with_weak_ptr(there.cdata)
            if storage is not None:
                device = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
                numpy.copyto(*((host, device) if outwards else (device, host)))
            elif outwards:
                host[:] = _GARBAGE
            else:
                raise MemoryGone

        self.late.current.issue(copy)

    def host_memory(self, size: int) -> HostBytes:
        """Return new memory, with garbage in it."""
        memory = numpy.full(size, _GARBAGE, numpy.uint8)
        self.pinned[memory.ctypes.data] = memory
        return memory


class RecordedCopies(LateCopies):
    """Such copies, which write down what is computed and copied, in the order in which it is issued.

    Attributes:
        steps: what was issued, as steps of a schedule.
    """

    def __init__(self, joint: Joint) -> None:
        """Begin with nothing.

        Args:
            joint: whose step is run.
        """
        super().__init__()
        self.steps: list[Step] = []
        self._joint = joint
        self._on_device: dict[int, str] = {}  # names of tensors by the address of their memory
        self._on_host: dict[int, str] = {}

    def computed(self, op: str, made: tuple[torch.Tensor, ...]) -> None:
        """Write down that an op has run; a function that watches the step."""
        self.steps.append(Compute(op))
        self.given(self._joint.op[op].values, made)

    def given(self, nodes: Sequence[fx.Node], values: Sequence[object]) -> None:
        """Know the memory of values that nodes of the joint graph stand for."""
        for value, node in zip(values, nodes, strict=True):
            if isinstance(value, torch.Tensor):
                self._on_device[value.untyped_storage().data_ptr()] = self._joint.storage(node).name

    def out(self, source: torch.Tensor) -> torch.Tensor:
        """Start copying to the host."""
        host = super().out(source)
        name = self._on_host[host.data_ptr()] = self._on_device[source.data_ptr()]
        self.steps.append(Offload(name))
        return host

    def back(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Start copying back."""
        target = super().back(host, device)
        name = self._on_device[target.data_ptr()] = self._on_host[host.data_ptr()]
        self.steps.append(Prefetch(name))
        return target

    def wait(self, host: torch.Tensor, device: torch.device) -> None:
        """Wait for the last copy."""
        super().wait(host, device)
        self.steps.append(Wait(self._on_host[host.data_ptr()]))
