"""Choice of a plan for each chunk and microbatch, in a given order of jobs, by an integer program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from remat_cli.pipelines.chunks import JobKind
from remat_cli.pipelines.curve import ChunkPoint
from remat_cli.pipelines.jobs import RankJob, Room
from remat_cli.pipelines.orders import Order
from remat_cli.planners.shared.cp_model import CpModel, IntVar, LinearExpr
from remat_cli.planners.shared.cp_sat import solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.scaling import Rounding

# The solver gets times and bytes as whole numbers of at most this size, rounded so that its solutions fit.
_RESOLUTION = 1_000_000
_WORK = 1.0  # deterministic time of one program
_SECONDS = 600.0  # far beyond that work

Chosen = dict[tuple[int, int], int]


@dataclass(frozen=True)
class Needs:
    """Jobs that a job waits for, with the time of the transfer from each."""

    of: Mapping[RankJob, Sequence[tuple[RankJob, int]]]


def best_plans(
    order: Order, curves: Sequence[Sequence[ChunkPoint]], room: Room, needs: Needs, below: int | None = None
) -> Chosen | None:
    """Return the point of each chunk and microbatch with which the order ends soonest.

    Memory of a rank at each job: what other microbatches in flight keep, and the peak of the job.

    Args:
        order: jobs of each rank.
        curves: [chunks] plans of each chunk, the fastest one first.
        room: memory of each rank.
        needs: what each job waits for.
        below: only a result that ends sooner is of use.

    Returns:
        The index of a point by chunk and microbatch; None without a choice that fits and ends soon enough, or where the
        solver's work is spent.
    """
    if any(limit < 0 for limit in room.limits):
        return None
    fastest = dict.fromkeys(((job.chunk, job.microbatch) for rank in order for job in rank), 0)
    if fits(order, curves, room, fastest):
        return fastest
    model = CpModel()
    longest = sum(max(point.time(job.kind) for point in curves[job.chunk]) for rank in order for job in rank)
    longest += sum(time for waits in needs.of.values() for _, time in waits)
    unit = max(1, ceil(longest / _RESOLUTION))
    takes = {
        (job.chunk, job.microbatch): [model.new_bool_var("") for _ in curves[job.chunk]]
        for rank in order
        for job in rank
        if job.kind is JobKind.FORWARD
    }
    for choices in takes.values():
        model.add_exactly_one(choices)
    latest = longest if below is None else min(longest, below - 1)
    horizon = latest // unit + sum(map(len, order)) + 1
    ends = {job: model.new_int_var(0, horizon, "") for rank in order for job in rank}
    makespan = model.new_int_var(0, horizon, "")
    for rank, jobs in enumerate(order):
        _add_memory(model, jobs, curves, takes, room.of(rank, jobs))
        waits = {job: [*needs.of.get(job, ())] for job in jobs}
        for before, job in pairwise(jobs):
            waits[job].append((before, 0))
        for job in jobs:
            lasts = _chosen(takes, job, [ceil(point.time(job.kind) / unit) for point in curves[job.chunk]])
            model.add(ends[job] >= lasts)
            for other, time in waits[job]:
                model.add(ends[job] >= ends[other] + ceil(time / unit) + lasts)
        model.add(makespan >= ends[jobs[-1]])
        _keep_order_of_sums(model, jobs, curves, takes)
    model.minimize(makespan)
    limits = Limits.of(_SECONDS, _WORK, cores=1, seed=0)
    outcome = solve_model(model, limits, rounding=Rounding.RESTRICT)
    if outcome.values is None:
        return None
    return {
        key: next(index for index, choice in enumerate(choices) if outcome.values[choice.index])
        for key, choices in takes.items()
    }


_Takes = Mapping[tuple[int, int], Sequence[IntVar]]  # for each chunk and microbatch, whether it takes each plan


def _chosen(takes: _Takes, job: RankJob, figures: Sequence[int]) -> LinearExpr:
    """Return the figure of a job's chosen plan."""
    return LinearExpr.weighted_sum(takes[job.chunk, job.microbatch], figures)


def _add_memory(
    model: CpModel,
    jobs: Sequence[RankJob],
    curves: Sequence[Sequence[ChunkPoint]],
    takes: _Takes,
    limits: Sequence[int],
) -> None:
    """Hold a rank's memory at each of its jobs."""
    unit = max(1, ceil(max(limits) / _RESOLUTION))
    in_flight: dict[tuple[int, int], RankJob] = {}  # the last pass of each microbatch in flight
    for job, limit in zip(jobs, limits, strict=True):
        in_flight.pop((job.chunk, job.microbatch), None)
        peak = _chosen(takes, job, [ceil(point.peak_bytes(job.kind) / unit) for point in curves[job.chunk]])
        kept = [
            _chosen(takes, other, [ceil(point.left_bytes(other.kind) / unit) for point in curves[other.chunk]])
            for other in in_flight.values()
        ]
        model.add(LinearExpr.sum([peak, *kept]) <= limit // unit)
        if not job.kind.is_last:
            in_flight[job.chunk, job.microbatch] = job


def _keep_order_of_sums(
    model: CpModel, jobs: Sequence[RankJob], curves: Sequence[Sequence[ChunkPoint]], takes: _Takes
) -> None:
    """Add gradients of weights in the order of their microbatches, so that sums have the same last digits."""
    for earlier, later in _overtaking(jobs):
        for point, taken in zip(curves[earlier[0]], takes[earlier], strict=True):
            for other, also in zip(curves[later[0]], takes[later], strict=True):
                if not other.early <= point.early:
                    model.add_bool_or(taken.negated(), also.negated())


def _overtaking(jobs: Sequence[RankJob]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield microbatches of a chunk of which the second one's inputs come before the first one's weights.

    What the second one adds early, the first one has to add early, too.
    """
    waiting: list[tuple[int, int]] = []
    for job in jobs:
        key = (job.chunk, job.microbatch)
        if job.kind is JobKind.INPUTS:
            yield from ((other, key) for other in waiting if other[0] == job.chunk)
            waiting.append(key)
        elif job.kind is JobKind.WEIGHTS:
            waiting.remove(key)


def makespan_of(order: Order, curves: Sequence[Sequence[ChunkPoint]], needs: Needs, chosen: Chosen) -> int:
    """Return the makespan of an order with these plans, in the graph's time unit."""
    ends: dict[RankJob, int] = {}
    places = [0] * len(order)
    while any(place < len(jobs) for place, jobs in zip(places, order, strict=True)):
        before = sum(places)
        for rank, jobs in enumerate(order):
            while places[rank] < len(jobs):
                job = jobs[places[rank]]
                waits = needs.of.get(job, ())
                if any(other not in ends for other, _ in waits):
                    break
                start = max([ends[other] + time for other, time in waits], default=0)
                start = max(start, ends[jobs[places[rank] - 1]] if places[rank] else 0)
                ends[job] = start + curves[job.chunk][chosen[job.chunk, job.microbatch]].time(job.kind)
                places[rank] += 1
        assert sum(places) > before, "an order whose jobs wait for each other"
    return max(ends.values())


def memory_of(order: Order, curves: Sequence[Sequence[ChunkPoint]], sent: Sequence[int], chosen: Chosen) -> list[int]:
    """[ranks] the least bytes beside the fixed ones within which these plans run in this order.

    Args:
        order: jobs of each rank.
        curves: [chunks] plans of each chunk.
        sent: [chunks] bytes of gradients that go to other ranks.
        chosen: the plan of each chunk and microbatch.
    """
    needed = []
    for jobs in order:
        kept: dict[tuple[int, int], int] = {}
        beside = most = 0
        for job in jobs:
            key = (job.chunk, job.microbatch)
            point = curves[job.chunk][chosen[key]]
            beside -= kept.pop(key, 0)
            most = max(most, beside + point.peak_bytes(job.kind))
            kept[key] = point.left_bytes(job.kind)
            beside += kept[key] + (sent[job.chunk] if job.kind.sends_gradients else 0)
        needed.append(max(most, beside))
    return needed


def fits(order: Order, curves: Sequence[Sequence[ChunkPoint]], room: Room, chosen: Chosen) -> bool:
    """Tell whether these plans fit each rank's memory in this order."""
    needed = memory_of(order, curves, room.sent, chosen)
    return all(size <= limit for size, limit in zip(needed, room.limits, strict=True))
