"""A schedule as a memory snapshot in PyTorch's format.

`torch.cuda.memory._dump_snapshot` writes such files.

They are shown by pytorch.org/memory_viz and `torch.cuda._memory_viz`. Allocations have the addresses of an arena;
resident bytes are a block of their own. The most bytes allocated at one time are the schedule's peak.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.allocation.of_schedule import arena_of
from remat_cli.allocation.portfolio import limits_of
from remat_cli.core.arena import AT_START, Arena
from remat_cli.core.graph import Graph, Op
from remat_cli.core.schedule import Compute, Free, Inplace, Prefetch, Schedule, inputs_at_start

# Addresses of the two segments: as on a device, and far enough apart.
_RESIDENT_AT, _ARENA_AT = 0x7000_0000_0000, 0x7800_0000_0000
# Seconds for the search of addresses, if the schedule has none.
_SECONDS = 5.0
_PROTOCOL = 4
Frame = dict[str, Any]


def snapshot_bytes(graph: Graph, schedule: Schedule, times: Sequence[int], arena: Arena | None = None) -> bytes:
    """Return a schedule as the bytes of a snapshot.

    Args:
        graph: graph of the schedule.
        schedule: a valid schedule.
        times: [steps + 1] end of each step, the start first, by the simulator.
        arena: arena of the schedule; None to search an arena.
    """
    if arena is None:
        _, arena = arena_of(graph, schedule, limits_of(_SECONDS, cores=1))
    assert arena is not None, "without a capacity, any search finds offsets"
    recorder = _Recorder(graph, times, arena)
    recorder.begin(inputs_at_start(graph, schedule))
    for index, step in enumerate(schedule.steps):
        recorder.begin_step(index)
        match step:
            case Compute(op=name):
                recorder.compute(graph.op[name])
            case Inplace(op=name):
                recorder.compute_inplace(graph.op[name])
            case Prefetch(tensor=name):
                recorder.allocate(name)
            case Free(tensor=name):
                recorder.free(name)
    document = {
        "segments": recorder.segments(),
        "device_traces": [recorder.events],
        "allocator_settings": {},
        "external_annotations": [],
    }
    return pickle.dumps(document, protocol=_PROTOCOL)


@dataclass(frozen=True, slots=True)
class _Block:
    address: int
    bytes: int
    frames: tuple[Frame, ...]


class _Recorder:
    """Records each allocation and free of a schedule.

    Attributes:
        events: events in the format of the allocator's history.
    """

    def __init__(self, graph: Graph, times: Sequence[int], arena: Arena) -> None:
        self.events: list[dict[str, Any]] = []
        self._index = AT_START
        self._now = times[0]
        self._graph = graph
        self._times = times
        self._per_micro = 1000 if graph.time_unit == "ns" else 1
        self._size = arena.span_bytes
        starts = arena.bank_starts
        self._offsets = {
            (address.step, address.tensor): starts[address.bank] + address.offset for address in arena.addresses
        }
        self._living: dict[str, _Block] = {}
        self._handed_on: dict[str, int] = {}  # addresses by the outputs of in-place steps
        self._resident: _Block | None = None

    def begin(self, inputs: Sequence[str]) -> None:
        """Allocate the tensors that exist before the first step: resident bytes, and graph inputs."""
        if self._graph.resident_bytes:
            self._note("segment_alloc", _RESIDENT_AT, self._graph.resident_bytes, ())
            frames = (_frame("resident: parameters, gradients, optimizer state"),)
            self._resident = _Block(_RESIDENT_AT, self._graph.resident_bytes, frames)
            self._note("alloc", _RESIDENT_AT, self._graph.resident_bytes, frames)
        if self._size:
            self._note("segment_alloc", _ARENA_AT, self._size, ())
        for name in inputs:
            self.allocate(name)

    def begin_step(self, index: int) -> None:
        """Go on to the next step.

        It begins at the end of the previous step.
        """
        self._index, self._now = index, self._times[index]

    def compute(self, op: Op) -> None:
        """Run an op: allocate its outputs, and briefly its workspace."""
        for name in op.outputs:
            self.allocate(name)
        self._workspace(op)

    def compute_inplace(self, op: Op) -> None:
        """Run an op in place: its first output reuses its input's storage.

        The larger of the two counts while the op runs.
        """
        assert op.inplace is not None, "the schedule is valid"
        output, size = op.outputs[0], self._graph.tensors[op.outputs[0]].bytes
        taken = self._living.get(op.inplace)
        shrinks = taken is not None and size < taken.bytes
        if not shrinks:
            self._hand_on(op.inplace, output)
        for name in op.outputs[1:]:
            self.allocate(name)
        self._workspace(op)
        self._now = self._times[self._index + 1]
        if shrinks:
            self._hand_on(op.inplace, output)

    def _hand_on(self, taken: str, output: str) -> None:
        block = self._living.get(taken)
        address = self._handed_on.get(taken) if block is None else block.address
        self.free(taken)
        if address is not None:
            self._handed_on[output] = address
        self.allocate(output, address)

    def allocate(self, name: str, address: int | None = None) -> None:
        """Allocate a missing tensor; empty ones take no memory."""
        size = self._graph.tensors[name].bytes
        if size == 0 or name in self._living:
            return
        if address is None:
            address = _ARENA_AT + self._offsets[self._index, name]
        block = self._living[name] = _Block(address, size, _frames(self._graph, name))
        self._note("alloc", block.address, block.bytes, block.frames)

    def free(self, name: str) -> None:
        """Free a tensor."""
        block = self._living.pop(name, None)
        if block is not None:
            self._release(block)

    def _workspace(self, op: Op) -> None:
        if op.workspace_bytes:
            address = _ARENA_AT + self._offsets[self._index, None]
            block = _Block(address, op.workspace_bytes, (_frame(f"workspace of {op.name}"), *_places(op)))
            self._note("alloc", block.address, block.bytes, block.frames)
            self._now = self._times[self._index + 1]
            self._release(block)

    def _release(self, block: _Block) -> None:
        for action in ("free_requested", "free_completed"):
            self._note(action, block.address, block.bytes, block.frames)

    def _note(self, action: str, address: int, size: int, frames: Sequence[Frame]) -> None:
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self._now // self._per_micro,
                "frames": list(frames),
            }
        )

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments at the end of the schedule."""
        resident = () if self._resident is None else (self._resident,)
        segments = [_segment(_RESIDENT_AT, self._graph.resident_bytes, resident)]
        segments.append(_segment(_ARENA_AT, self._size, tuple(self._living.values())))
        return [segment for segment in segments if segment["total_size"]]


def _segment(address: int, size: int, living: Sequence[_Block]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    at = address
    for block in sorted(living, key=lambda block: block.address):
        if block.address > at:
            blocks.append(_gap(at, block.address - at))
        sizes = {"size": block.bytes, "requested_size": block.bytes}
        blocks.append({"address": block.address, **sizes, "state": "active_allocated", "frames": list(block.frames)})
        at = block.address + block.bytes
    if at < address + size:
        blocks.append(_gap(at, address + size - at))
    allocated = sum(block.bytes for block in living)
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": allocated,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _gap(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}


def _frames(graph: Graph, tensor: str) -> tuple[Frame, ...]:
    """Return a tensor's frames: its op, then the op's modules.

    The innermost frame comes first.
    """
    op = graph.producer.get(tensor)
    if op is None:
        return (_frame(f"input {tensor}"),)
    label = tensor if tensor == op.name else f"{op.name}: {tensor}"
    file, line = _place(op.source)
    return (_frame(f"{label} ({op.type})", file, line), *_places(op))


def _places(op: Op) -> tuple[Frame, ...]:
    parts = (op.module or "").split(".")
    paths = [".".join(parts[: end + 1]) for end in range(len(parts))]
    file, line = _place(op.source)
    return tuple(_frame(path, file, line) for path in reversed(paths) if path)


def _place(source: str | None) -> tuple[str, int]:
    """Return file and line of "file:line"; without a number, the file."""
    file, colon, line = (source or "").rpartition(":")
    return (file, int(line)) if colon and line.isascii() and line.isdecimal() else (source or "", 0)


def _frame(name: str, file: str = "", line: int = 0) -> Frame:
    return {"filename": file, "line": line, "name": name}
