"""Ops that jobs of a pipeline run again."""

from __future__ import annotations

from remat_cli.core.schedule import Compute, Inplace, Schedule
from remat_cli.pipelines.chunks import Chunk, JobKind
from remat_cli.pipelines.jobs import Pipeline, RankJob


def rerun_ops(pipeline: Pipeline) -> dict[RankJob, tuple[str, ...]]:
    """Return the ops that each job runs again, once for each extra run; jobs without any are left out."""
    known: dict[tuple[int, int], dict[JobKind, tuple[str, ...]]] = {}
    reruns = {}
    for (index, microbatch), schedule in pipeline.schedules.items():
        key = (index, id(schedule))
        if key not in known:
            known[key] = _by_pass(pipeline.chunks[index], schedule)
        reruns.update({RankJob(index, microbatch, kind): names for kind, names in known[key].items() if names})
    return reruns


def _by_pass(chunk: Chunk, schedule: Schedule) -> dict[JobKind, tuple[str, ...]]:
    """Return the ops that each pass of a chunk's schedule runs again."""
    kinds = iter(chunk.kinds)
    kind, seen = next(kinds), set[str]()
    again: dict[JobKind, list[str]] = {kind: [] for kind in chunk.kinds}
    for step in schedule.steps:
        if not isinstance(step, Compute | Inplace):
            continue
        if step.op in seen:
            again[kind].append(step.op)
        seen.add(step.op)
        if step.op in (chunk.turn, chunk.sent):
            kind = next(kinds)
    return {kind: tuple(names) for kind, names in again.items()}
