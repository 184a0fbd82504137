"""Memory snapshots of `torch.cuda.memory._dump_snapshot`.

The result is the peak, and the lines of code that allocated its memory. Snapshots are pickles of plain lists,
dictionaries, texts and numbers. No other object is loaded from a snapshot.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from remat_cli.errors import GraphError
from remat_cli.formats.source import read_bytes

Result = TypeVar("Result")

_ENDINGS = (".pickle", ".pkl")
_BEFORE = "allocated before the recording began"
_NOBODY = "no place was recorded"
# The effect of events on allocated bytes, and on the allocator's reserved bytes.
_ALLOCATED = {"alloc": 1, "free_completed": -1}
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
# path parts of the framework's files, in contrast to the user's
_FRAMEWORK = ("/site-packages/", "/dist-packages/", "/torch/")
_HINT = "record it by torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(FILE)"


@dataclass(frozen=True)
class RecordedMemory:
    """The memory of a device at the moment of most allocated bytes.

    Attributes:
        device: number of the device.
        peak_bytes: bytes allocated then, including roundings of the allocator.
        reserved_bytes: bytes that the allocator had reserved on the device then.
        most_reserved_bytes: most bytes reserved at any time of the recording.
        events: number of events in the recording; 0 if its history was off.
        places: bytes by place of allocation, most first: a line of the user's code, or the best known place.
    """

    device: int
    peak_bytes: int
    reserved_bytes: int
    most_reserved_bytes: int
    events: int
    places: Mapping[str, int]

    @property
    def fragmentation(self) -> float:
        """The share of the reserved bytes that was not allocated at the peak."""
        return 1 - self.peak_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


def is_snapshot(path: Path) -> bool:
    """Whether a file has the name of a snapshot."""
    return path.name.endswith(_ENDINGS)


@dataclass(frozen=True)
class RecordedAllocation:
    """A block of memory. Moments count the events of the recording.

    Attributes:
        bytes: its size, rounded up by the allocator.
        begin: the event that allocated it; -1: an earlier one than those recorded.
        end: the event that freed it; the number of events where none did.
        place: who allocated it: a line of the user's, or else what is known.
    """

    bytes: int
    begin: int
    end: int
    place: str


@dataclass(frozen=True)
class RecordedHistory:
    """All allocations of one device that a recording tells of.

    Attributes:
        device: the device's number.
        events: number of recorded events.
        peak_bytes: the most bytes that were allocated at one time.
        peak: number of the event that reached this peak; -1 before the first event.
        allocations: the allocations in the order in which they begin.
    """

    device: int
    events: int
    peak_bytes: int
    peak: int
    allocations: tuple[RecordedAllocation, ...]


def read_snapshot(path: Path) -> list[RecordedMemory]:
    """Return each device's memory at its peak, without empty devices.

    Raises:
        GraphError: the file cannot be read, is no snapshot, or holds more than plain values.
    """
    memories = [memory for memory in _of_each_device(path, _device) if memory.peak_bytes]
    if not memories:
        raise GraphError(f"{path}: nothing is allocated in this snapshot", hint=_HINT)
    return memories


def read_history(path: Path) -> RecordedHistory:
    """Return the allocations of the device with the highest peak.

    Raises:
        GraphError: the file cannot be read, is no snapshot, holds more than plain values, or has no history.
    """
    histories = [history for history in _of_each_device(path, _history) if history.events]
    if not histories:
        raise GraphError(f"{path}: this snapshot has no history of allocations", hint=_HINT)
    return max(histories, key=lambda history: history.peak_bytes)


def _of_each_device(path: Path, read: Callable[[int, Sequence[Any], Sequence[Any]], Result]) -> list[Result]:
    content = read_bytes(path)
    try:
        document = _PlainValues(io.BytesIO(content), path).load()
        segments, traces = document["segments"], document["device_traces"]
        devices = {int(segment["device"]) for segment in segments} | {at for at, trace in enumerate(traces) if trace}
        return [read(number, segments, traces) for number in sorted(devices)]
    except GraphError:
        raise
    except Exception as problem:  # a pickle can raise any exception
        raise GraphError(f"{path} is no memory snapshot: {type(problem).__name__}: {problem}", hint=_HINT) from None


class _PlainValues(pickle.Unpickler):
    """Loads lists, dictionaries, texts and numbers, but no class or code."""

    def __init__(self, file: io.BytesIO, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every class and function."""
        raise GraphError(
            f"{self._path}: holds {module}.{name}, which no memory snapshot does; nothing of it was loaded", hint=_HINT
        )


@dataclass(frozen=True)
class _Block:
    bytes: int
    place: str


def _device(number: int, segments: Sequence[Any], traces: Sequence[Any]) -> RecordedMemory:
    own = [segment for segment in segments if segment["device"] == number]
    events = traces[number] if number < len(traces) else []
    live = dict(_at_the_end(own))
    # Go back in time from the end: a recording may begin at any time, and drop its oldest events.
    allocated = sum(block.bytes for block in live.values())
    reserved = sum(segment["total_size"] for segment in own)
    for event in reversed(events):
        size = event["size"]
        allocated -= _ALLOCATED.get(event["action"], 0) * size
        reserved -= _RESERVED.get(event["action"], 0) * size
        if event["action"] == "alloc":
            live.pop(event["addr"], None)
        elif event["action"] == "free_completed":
            live[event["addr"]] = _Block(size, _BEFORE)
    peak, then, most_reserved = allocated, reserved, reserved
    highest = 0  # number of events up to the peak
    for count, event in enumerate(events, start=1):
        allocated += _ALLOCATED.get(event["action"], 0) * event["size"]
        reserved += _RESERVED.get(event["action"], 0) * event["size"]
        most_reserved = max(most_reserved, reserved)
        if allocated > peak:
            peak, then, highest = allocated, reserved, count
    for event in events[:highest]:
        if event["action"] == "alloc":
            live[event["addr"]] = _Block(event["size"], _place(event.get("frames", ())))
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
    places: Counter[str] = Counter()
    for block in live.values():
        places[block.place] += block.bytes
    return RecordedMemory(number, peak, then, most_reserved, len(events), dict(places.most_common()))


def _history(number: int, segments: Sequence[Any], traces: Sequence[Any]) -> RecordedHistory:
    events = traces[number] if number < len(traces) else []
    living: dict[int, tuple[int, int, str]] = {}
    allocations: list[RecordedAllocation] = []
    for at, event in enumerate(events):
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            living[address] = size, at, _place(event.get("frames", ()))
        elif event["action"] == "free_completed":
            size, begin, place = living.pop(address, (size, -1, _BEFORE))
            allocations.append(RecordedAllocation(size, begin, at, place))
    at_the_end = dict(_at_the_end([segment for segment in segments if segment["device"] == number]))
    for address, (size, begin, place) in living.items():
        at_the_end.pop(address, None)
        allocations.append(RecordedAllocation(size, begin, len(events), place))
    allocations += [RecordedAllocation(block.bytes, -1, len(events), _BEFORE) for block in at_the_end.values()]
    allocations.sort(key=lambda item: item.begin)
    peak_bytes = allocated = sum(item.bytes for item in allocations if item.begin < 0)
    peak = -1
    for at, event in enumerate(events):
        allocated += _ALLOCATED.get(event["action"], 0) * event["size"]
        if allocated > peak_bytes:
            peak_bytes, peak = allocated, at
    return RecordedHistory(number, len(events), peak_bytes, peak, tuple(allocations))


def _at_the_end(segments: Sequence[Any]) -> Iterator[tuple[int, _Block]]:
    """Yield the blocks allocated at the time of the snapshot, by address."""
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            at = block.get("address", address)
            address = at + block["size"]
            if block["state"].startswith("active"):
                yield at, _Block(block["size"], _place(block.get("frames", ())))


def _place(frames: Sequence[Any]) -> str:
    """Return the innermost line of the user's code, or the innermost known."""
    for frame in frames:
        file = str(frame["filename"])
        if file.endswith(".py") and not any(part in file for part in _FRAMEWORK):
            return f"{file}:{frame['line']} {frame['name']}"
    return str(frames[0]["name"]) if frames else _NOBODY
