"""A schedule as a trace for Perfetto and chrome://tracing.

The format is Chrome's. Times are in microseconds. If a graph's time has no unit, one of its units is one microsecond;
if no op takes time, one step is.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from remat_cli import __version__
from remat_cli.core.graph import Graph
from remat_cli.core.link import Direction
from remat_cli.core.schedule import STEP_NAMES, Compute, Free, Inplace, Step
from remat_cli.core.simulate import Transfer
from remat_cli.reports.timeline import Run

Event = dict[str, Any]

_PROCESS = 1
_COMPUTE, _FREES, _TO_HOST, _TO_DEVICE = 1, 2, 3, 4
_TRACKS = {_COMPUTE: "compute", _FREES: "frees", _TO_HOST: "to host", _TO_DEVICE: "to device"}
_LANES = {Direction.TO_HOST: _TO_HOST, Direction.TO_DEVICE: _TO_DEVICE}


def trace_bytes(run: Run, *, budget_bytes: int | None, compressed: bool = False) -> bytes:
    """Return a run and the plain run's memory as a trace.

    Args:
        run: the run to show.
        budget_bytes: budget, drawn as a line; None for no line.
        compressed: whether to compress by gzip, as `.json.gz`.
    """
    events = [*_names(run), *_slices(run), *_flows(run), *_counters(run, budget_bytes)]
    return events_bytes(events, run.graph.name, compressed=compressed)


def events_bytes(events: Iterable[Event], graph_name: str, *, compressed: bool) -> bytes:
    """Return events as a trace file."""
    texts = ",\n".join(map(_json, events))
    others = _json({"displayTimeUnit": "ms", "otherData": {"tool": f"remat {__version__}", "graph": graph_name}})
    content = f'{{"traceEvents": [\n{texts}\n], {others[1:]}\n'.encode("ascii")
    return gzip.compress(content, mtime=0) if compressed else content


_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _micros(run: Run, time: int) -> float:
    return time / 1000 if run.graph.time_unit == "ns" and not run.counts_steps else time


def _starts(run: Run) -> Sequence[int]:
    """Return [steps + 1] start of each step, and the end.

    They are in the run's own time.
    """
    if run.counts_steps:
        return range(len(run.schedule.steps) + 1)
    return run.trace.times


def _names(run: Run) -> Iterator[Event]:
    yield _named("process_name", {"name": f"remat: {run.graph.name}"})
    moves = run.schedule.has_transfers
    for number, name in _TRACKS.items():
        if moves or number in (_COMPUTE, _FREES):
            yield _named("thread_name", {"name": name}, number)
            yield _named("thread_sort_index", {"sort_index": number}, number)


def _named(kind: str, args: Mapping[str, Any], track: int = 0) -> Event:
    return {"ph": "M", "pid": _PROCESS, "tid": track, "name": kind, "args": args}


def _slices(run: Run) -> Iterator[Event]:
    """Yield a slice for each step.

    Runs and waits, frees, and copies of each direction have a track each.
    """
    starts, again = _starts(run), frozenset(run.recomputing)
    transfers = {transfer.step: transfer for transfer in run.trace.transfers}
    for index, step in enumerate(run.schedule.steps):
        if (transfer := transfers.get(index)) is not None:
            yield _copy(run, step, transfer)
            continue
        start, end = starts[index], starts[index + 1]
        track = _FREES if isinstance(step, Free) else _COMPUTE
        name, args = _described(run.graph, step, index in again)
        yield _slice(run, track, name, (start, start if track == _FREES else end), {"step": index, **args}, step)


def _slice(run: Run, track: int, name: str, span: tuple[int, int], args: Mapping[str, Any], step: Step) -> Event:
    start, end = span
    kind = STEP_NAMES[type(step)] + (", again" if args.get("recomputed") else "")
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": track,
        "name": name,
        "cat": kind,
        "ts": _micros(run, start),
        "dur": _micros(run, end - start),
        "args": args,
    }


def _copy(run: Run, step: Step, transfer: Transfer) -> Event:
    args = {"step": transfer.step, "bytes": transfer.bytes}
    return _slice(run, _LANES[transfer.direction], transfer.tensor, (transfer.start, transfer.end), args, step)


def _described(graph: Graph, step: Step, again: bool) -> tuple[str, dict[str, Any]]:
    if not isinstance(step, Compute | Inplace):
        return step.tensor, {"bytes": graph.tensors[step.tensor].bytes}
    op = graph.op[step.op]
    args: dict[str, Any] = {
        "type": op.type,
        "phase": op.phase.value,
        "bytes": sum(graph.tensors[name].bytes for name in op.outputs),
        "recomputed": again,
    }
    for key, value in (("workspace_bytes", op.workspace_bytes), ("module", op.module), ("source", op.source)):
        if value:
            args[key] = value
    return op.name, args


def _flows(run: Run) -> Iterator[Event]:
    """Yield an arrow from each copy to the host to its copies back."""
    left: dict[str, Transfer] = {}
    number = 0
    for transfer in run.trace.transfers:
        if transfer.direction is Direction.TO_HOST:
            left[transfer.tensor] = transfer
            continue
        if transfer.tensor not in left:  # a resident that was on the host at the start
            continue
        number += 1
        common = {"pid": _PROCESS, "name": transfer.tensor, "cat": "offload", "id": number}
        gone = left[transfer.tensor]
        yield {**common, "ph": "s", "tid": _TO_HOST, "ts": _micros(run, gone.start)}
        yield {**common, "ph": "f", "bp": "e", "tid": _TO_DEVICE, "ts": _micros(run, transfer.start)}


def _counters(run: Run, budget_bytes: int | None) -> Iterator[Event]:
    plain = Run.plain(run.graph)
    yield from _memory("memory", run)
    yield from _memory("memory of the plain run", plain)
    if budget_bytes is not None:
        for time in (0.0, max(_micros(each, _starts(each)[-1]) for each in (run, plain))):
            yield _counter("budget", time, budget_bytes)


def _memory(name: str, run: Run) -> Iterator[Event]:
    """Yield the memory of each step at its start, when it changes."""
    starts, steps = _starts(run), run.schedule.steps
    held, at_start = -1, run.trace.memory_bytes[0]
    for index, memory in enumerate((at_start, *run.trace.memory_bytes[1:])):
        if memory != held:
            yield _counter(name, _micros(run, starts[max(index - 1, 0)]), memory)
            held = memory
    sizes = run.graph.tensors
    left = run.graph.fixed_bytes + sum(sizes[tensor].bytes for tensor in run.live_at(len(steps) - 1))
    left -= sum(sizes[tensor].bytes for tensor in run.schedule.on_host)
    yield _counter(name, _micros(run, starts[-1]), left)


def _counter(name: str, time: float, value: int) -> Event:
    return {"ph": "C", "pid": _PROCESS, "name": name, "ts": time, "args": {"bytes": value}}
