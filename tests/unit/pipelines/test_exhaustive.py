"""Pipelines of two ranks held against all orders of their jobs, and all choices of two plans for each microbatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import pytest

from remat_cli.config import Request
from remat_cli.pipelines import planner
from remat_cli.pipelines.chunks import Chunk, JobKind, Residents
from remat_cli.pipelines.curve import ChunkPoint, curve
from remat_cli.pipelines.jobs import RankJob
from remat_cli.pipelines.planner import PipelinePlanning, plan_pipeline
from remat_cli.pipelines.request import PipelineRequest, parse_rank_budgets
from remat_cli.prepare import Prepared
from tests.graphs import layered_step
from tests.plans import prepared

Run = tuple[tuple[RankJob, int], ...]  # jobs of a rank in order, each with its time


def two_plans(
    chunk: Chunk, whole: Prepared, request: Request, known: Sequence[tuple[Chunk, tuple[ChunkPoint, ...]]]
) -> tuple[ChunkPoint, ...]:
    """The plain run, and the plan that keeps least."""
    points = curve(chunk, whole, request, ())
    return tuple(dict.fromkeys((points[0], min(points, key=lambda point: point.figures))))


def orders(
    counts: tuple[int, ...], done: tuple[RankJob, ...], kinds: tuple[JobKind, ...]
) -> Iterator[tuple[RankJob, ...]]:
    """Yield all orders of a rank's jobs; `counts` says how many passes of each microbatch are done."""
    if all(count == len(kinds) for count in counts):
        yield done
    for i, count in enumerate(counts):
        if count < len(kinds):
            later = tuple(number + (place == i) for place, number in enumerate(counts))
            yield from orders(later, (*done, RankJob(0, i, kinds[count])), kinds)


@dataclass(frozen=True)
class Rank:
    """All that a rank can run within its memory."""

    chunk: Chunk
    points: tuple[ChunkPoint, ...]
    memory: int
    sent: int

    def runs(self, microbatches: int, *, in_order: bool) -> set[Run]:
        kinds = self.chunk.kinds
        found = set()
        for order in orders((0,) * microbatches, (), kinds):
            first = [job.microbatch for job in order if job.kind is JobKind.FORWARD]
            if in_order and first != sorted(first):
                continue  # the same with other names
            for chosen in product(self.points, repeat=microbatches):
                if self.fits(order, chosen):
                    found.add(tuple((job, chosen[job.microbatch].time(job.kind)) for job in order))
        return found

    def fits(self, order: tuple[RankJob, ...], chosen: Sequence[ChunkPoint]) -> bool:
        kept: dict[int, int] = {}
        sent = 0
        for job in order:
            kept.pop(job.microbatch, None)
            if sum(kept.values()) + chosen[job.microbatch].peak_bytes(job.kind) + sent > self.memory:
                return False
            kept[job.microbatch] = chosen[job.microbatch].left_bytes(job.kind)
            sent += self.sent if job.kind.sends_gradients else 0
        return True


def makespan(first: Run, last: Run) -> int | None:
    """Return the makespan of two ranks; None if they wait for each other."""
    ends: dict[tuple[int, int, JobKind], int] = {}
    runs, places, times = (first, last), [0, 0], [0, 0]
    moved = True
    while moved:
        moved = False
        for rank, run in enumerate(runs):
            while places[rank] < len(run):
                job, lasts = run[places[rank]]
                need: tuple[int, int, JobKind] | None = None
                if rank == 1 and job.kind is JobKind.FORWARD:
                    need = (0, job.microbatch, job.kind)
                elif rank == 0 and job.kind.sends_gradients:
                    need = (1, job.microbatch, job.kind)
                if need is not None and need not in ends:
                    break
                times[rank] = max(times[rank], ends.get(need, 0) if need else 0) + lasts
                ends[rank, job.microbatch, job.kind] = times[rank]
                places[rank] += 1
                moved = True
    return max(times) if places == [len(first), len(last)] else None


def best_of_all(planning: PipelinePlanning, curves: Sequence[tuple[ChunkPoint, ...]], microbatches: int) -> int | None:
    chunks = planning.chunks
    sent = (0, chunks[0].backward_from[1])
    ranks = [
        Rank(chunk, points, budget - chunk.fixed_bytes(microbatches), size)
        for chunk, points, budget, size in zip(chunks, curves, planning.budgets, sent, strict=True)
    ]
    pairs = product(ranks[0].runs(microbatches, in_order=True), ranks[1].runs(microbatches, in_order=False))
    known = lru_cache(maxsize=None)(makespan)
    return min((time for first, last in pairs if (time := known(first, last)) is not None), default=None)


@pytest.mark.parametrize("share", ["100%", "85%", "75%"])
@pytest.mark.parametrize(("split", "microbatches"), [(False, 3), (True, 2)])
def test_no_order_and_choice_is_faster(
    monkeypatch: pytest.MonkeyPatch, share: str, split: bool, microbatches: int
) -> None:
    monkeypatch.setattr(planner, "curve", two_plans)
    graph = layered_step(4, times=(3, 4, 2))
    request = PipelineRequest(2, microbatches, parse_rank_budgets(share), cuts=("f3",), split_backward=split)
    seen: list[Sequence[tuple[ChunkPoint, ...]]] = []
    original = planner._CutSearch._search

    def watched(self: planner._CutSearch, curves: Sequence[tuple[ChunkPoint, ...]]) -> bool:
        seen.append(curves)
        return original(self, curves)

    monkeypatch.setattr(planner._CutSearch, "_search", watched)
    planning = plan_pipeline(prepared(graph), Residents({}, {}), request, Request())
    best = best_of_all(planning, seen[-1], microbatches)
    assert (None if planning.replay is None else planning.replay.makespan) == best
    assert best is None or planning.bound <= best
