"""Choice of a plan for each chunk and microbatch, in a given order of jobs, by an integer program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from remat_cli.core.graph import Phase
from remat_cli.pipelines.curve import ChunkPoint
from remat_cli.pipelines.jobs import RankJob
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
    order: Order, curves: Sequence[Sequence[ChunkPoint]], memory: Sequence[int], needs: Needs, seed: int = 0
) -> Chosen | None:
    """Return the point of each chunk and microbatch with which the order ends soonest.

    Memory of a rank at each job: what other microbatches in flight keep, and the peak of the job.

    Args:
        order: jobs of each rank.
        curves: [chunks] plans of each chunk, the fastest one first.
        memory: [ranks] bytes beside the fixed ones.
        needs: what each job waits for.
        seed: seed of the solver.

    Returns:
        The index of a point by chunk and microbatch; None where no choice fits, or the solver's work is spent.
    """
    if any(limit < 0 for limit in memory):
        return None
    fastest = dict.fromkeys(((job.chunk, job.microbatch) for rank in order for job in rank), 0)
    if _fits(order, curves, memory):
        return fastest
    model = CpModel()
    longest = sum(max(point.time(job.phase) for point in curves[job.chunk]) for rank in order for job in rank)
    longest += sum(time for waits in needs.of.values() for _, time in waits)
    unit = max(1, ceil(longest / _RESOLUTION))
    takes = {
        (job.chunk, job.microbatch): [model.new_bool_var("") for _ in curves[job.chunk]]
        for rank in order
        for job in rank
        if job.phase is Phase.FORWARD
    }
    for choices in takes.values():
        model.add_exactly_one(choices)
    horizon = longest // unit + sum(map(len, order)) + 1
    ends = {job: model.new_int_var(0, horizon, "") for rank in order for job in rank}
    makespan = model.new_int_var(0, horizon, "")
    for rank, jobs in enumerate(order):
        _add_memory(model, jobs, curves, takes, memory[rank])
        for position, job in enumerate(jobs):
            lasts = _chosen(takes, job, [ceil(point.time(job.phase) / unit) for point in curves[job.chunk]])
            waits = [(other, ceil(time / unit)) for other, time in needs.of.get(job, ())]
            if position:
                waits.append((jobs[position - 1], 0))
            for other, time in waits:
                model.add(ends[job] >= ends[other] + time + lasts)
            if not waits:
                model.add(ends[job] >= lasts)
        model.add(makespan >= ends[jobs[-1]])
    model.minimize(makespan)
    limits = Limits.of(_SECONDS, _WORK, cores=1, seed=seed)
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
    model: CpModel, jobs: Sequence[RankJob], curves: Sequence[Sequence[ChunkPoint]], takes: _Takes, memory_bytes: int
) -> None:
    """Hold a rank's memory at each of its jobs."""
    unit = max(1, ceil(memory_bytes / _RESOLUTION))
    in_flight: dict[RankJob, None] = {}
    for job in jobs:
        own = RankJob(job.chunk, job.microbatch, Phase.FORWARD)
        in_flight.pop(own, None)
        peak = _chosen(takes, job, [ceil(point.peak_bytes(job.phase) / unit) for point in curves[job.chunk]])
        kept = [
            _chosen(takes, other, [ceil(point.kept_bytes / unit) for point in curves[other.chunk]])
            for other in in_flight
        ]
        model.add(LinearExpr.sum([peak, *kept]) <= memory_bytes // unit)
        if job.phase is Phase.FORWARD:
            in_flight[own] = None


def least_makespan(order: Order, curves: Sequence[Sequence[ChunkPoint]], needs: Needs) -> int:
    """Return the makespan of an order if every job had its fastest plan, in the graph's time unit."""
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
                ends[job] = start + curves[job.chunk][0].time(job.phase)
                places[rank] += 1
        assert sum(places) > before, "an order whose jobs wait for each other"
    return max(ends.values())


def _fits(order: Order, curves: Sequence[Sequence[ChunkPoint]], memory: Sequence[int]) -> bool:
    """Tell whether the fastest plans fit each rank's memory in this order."""
    for jobs, limit in zip(order, memory, strict=True):
        kept = 0
        for job in jobs:
            point = curves[job.chunk][0]
            if job.phase is Phase.BACKWARD:
                kept -= point.kept_bytes
            if kept + point.peak_bytes(job.phase) > limit:
                return False
            if job.phase is Phase.FORWARD:
                kept += point.kept_bytes
    return True
