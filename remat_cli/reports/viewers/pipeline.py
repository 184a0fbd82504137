"""A pipeline for other viewers: a trace with one track a rank, and the order of jobs as torch reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from remat_cli.core.graph import Graph
from remat_cli.pipelines import Replay
from remat_cli.reports.viewers.trace import Event, events_bytes


def pipeline_csv(replay: Replay) -> bytes:
    """Return the order of jobs, one line a rank, as `torch.distributed.pipelining` reads it (`compute_only`)."""
    return "".join(f"{','.join(run.job.text for run in rank)}\n" for rank in replay.ran).encode("ascii")


def pipeline_trace(replay: Replay, graph: Graph, budgets: Sequence[int], *, compressed: bool) -> bytes:
    """Return all ranks as a trace: a process for each rank, with its jobs, memory and budget.

    Times are in microseconds; if the graph's time has no unit, one of its units is one microsecond.

    Args:
        replay: the replayed pipeline.
        graph: the graph of one microbatch.
        budgets: [ranks] budget in bytes.
        compressed: whether to compress by gzip, as `.json.gz`.
    """
    return events_bytes(
        _events(replay, budgets, 1000 if graph.time_unit == "ns" else 1), graph.name, compressed=compressed
    )


def _events(replay: Replay, budgets: Sequence[int], units: int) -> Iterator[Event]:
    for rank, runs in enumerate(replay.ran):
        yield {"ph": "M", "pid": rank, "tid": 0, "name": "process_name", "args": {"name": f"rank {rank}"}}
        for run in runs:
            yield {
                "ph": "X",
                "pid": rank,
                "tid": 0,
                "name": run.job.text,
                "cat": run.job.kind.name.lower(),
                "ts": run.start / units,
                "dur": (run.end - run.start) / units,
                "args": {"chunk": run.job.chunk, "microbatch": run.job.microbatch},
            }
        for time, level in replay.memory[rank]:
            args = {"bytes": level, "budget": budgets[rank]}
            yield {"ph": "C", "pid": rank, "name": "memory", "ts": time / units, "args": args}
