"""Plans of a chunk that keep less and less between its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from remat_cli.config import Request
from remat_cli.config.planner_choice import named_planner
from remat_cli.core.bounds import largest_working_set
from remat_cli.core.schedule import Compute, Free, Inplace, Schedule, plain_run, renamed
from remat_cli.core.solve import baseline_of
from remat_cli.pipelines.chunks import Chunk, JobKind
from remat_cli.pipelines.judge import Stretch, stretches
from remat_cli.planning import plan
from remat_cli.prepare import Prepared

# Shares of what a chunk keeps in its plain run, beyond what every plan keeps.
_SHARES = (0.75, 0.5, 0.25, 0.0)
# Shares of the plain run's peak, beyond what every plan needs.
_SHARES_OF_PEAK = (0.4, 0.1)
# The planners asked by default: both are quick, and find the same plans on every machine.
_PLANNERS = (named_planner("min_cut"), named_planner("dtr"))


@dataclass(frozen=True, eq=False)
class ChunkPoint:
    """A plan of a chunk, as the judge measures it.

    Attributes:
        schedule: the plan.
        passes: its passes, in their order.
        early: ops of the pass of weights that this plan runs with the gradients that are sent, if nothing in the chunk
            reads them: they make gradients of weights.
    """

    schedule: Schedule
    passes: dict[JobKind, Stretch]
    early: frozenset[str] = frozenset()

    @classmethod
    def of(cls, chunk: Chunk, schedule: Schedule) -> ChunkPoint:
        """Measure a schedule of a chunk."""
        return cls(schedule, stretches(chunk, schedule), _early(chunk, schedule))

    @property
    def kept_bytes(self) -> int:
        """Bytes kept between forward and backward pass."""
        return self.left_bytes(JobKind.FORWARD)

    def left_bytes(self, kind: JobKind) -> int:
        """Return the bytes kept after a pass."""
        return self.passes[kind].left_bytes

    def time(self, kind: JobKind) -> int:
        """Return the time of a pass."""
        return self.passes[kind].time

    def peak_bytes(self, kind: JobKind) -> int:
        """Return the peak of a pass, of this microbatch alone."""
        return self.passes[kind].peak_bytes

    @cached_property
    def figures(self) -> tuple[int, ...]:
        """What no plan should have more of: bytes kept, peaks and times."""
        passes = self.passes.values()
        return (*(each.left_bytes for each in passes), *(each.peak_bytes for each in passes),
                *(each.time for each in passes))  # fmt: skip


def _early(chunk: Chunk, schedule: Schedule) -> frozenset[str]:
    """Return the ops that make gradients of weights before gradients are sent."""
    if chunk.sent is None:
        return frozenset()
    names = [op.name for op in chunk.graph.ops]
    weights = {
        name
        for name in names[names.index(chunk.sent) + 1 :]
        if not any(chunk.graph.consumers[output] for output in chunk.graph.op[name].outputs)
    }
    runs = [step.op for step in schedule.steps if isinstance(step, Compute | Inplace)]
    return frozenset(weights.intersection(runs[: runs.index(chunk.sent)]))


def with_sending(chunk: Chunk, whole: ChunkPoint) -> ChunkPoint:
    """Return a plan of a whole backward pass as one of the split chunk: nothing is left for the pass of weights.

    Args:
        chunk: the chunk with a split backward pass.
        whole: a plan of the same chunk without that.
    """
    assert chunk.sent is not None, "the backward pass is split"
    sent = [name for name in chunk.graph.op[chunk.sent].inputs if name != chunk.turn]
    steps = (*whole.schedule.steps, Compute(chunk.sent), *(Free(name) for name in sent))
    return ChunkPoint.of(chunk, Schedule(steps))


def curve(
    chunk: Chunk, prepared: Prepared, request: Request, known: Sequence[tuple[Chunk, tuple[ChunkPoint, ...]]]
) -> tuple[ChunkPoint, ...]:
    """Return plans of a chunk, none of which is at least as good as another in all; the plain run is the first.

    How much a plan keeps is limited by a workspace of the turn: then what is kept and the workspace are to fit the
    budget together.

    Args:
        chunk: the chunk.
        prepared: how the whole graph was prepared.
        request: planner and its options; its budget is not read.
        known: curves of other chunks, which are taken over where the graphs are equal.
    """
    for other, known_points in known:
        schedules = [renamed(point.schedule, other.graph, chunk.graph) for point in known_points]
        if other.graph.total_time == chunk.graph.total_time and all(schedules):
            again = tuple(ChunkPoint.of(chunk, schedule) for schedule in schedules if schedule is not None)
            if [point.figures for point in again] == [point.figures for point in known_points]:
                return again
    plain = ChunkPoint.of(chunk, plain_run(chunk.graph))
    points: list[ChunkPoint] = [plain]
    peak, fixed = baseline_of(chunk.graph).peak_bytes, chunk.graph.fixed_bytes
    floor = sum(chunk.graph.freeable_bytes[name] for name in chunk.graph.op[chunk.turn].inputs)
    for share in _SHARES:
        kept = floor + int(share * max(0, plain.kept_bytes - floor))
        points += _within(chunk, prepared, request, peak, peak - fixed - kept)
    least = min(point.kept_bytes for point in points)
    low = largest_working_set(chunk.graph).bytes
    for share in _SHARES_OF_PEAK:
        budget = low + int(share * max(0, peak - low))
        for workspace_bytes in (max(0, budget - fixed - least), 0):
            points += _within(chunk, prepared, request, budget, workspace_bytes)
    return best_points(points)


def _within(
    chunk: Chunk, prepared: Prepared, request: Request, budget_bytes: int, workspace_bytes: int
) -> list[ChunkPoint]:
    """Return plans within a budget, with a workspace at the turn; none where there is no plan."""
    turn = chunk.graph.op[chunk.turn]
    ops = tuple(op if op is not turn else op.edited(workspace_bytes=max(0, workspace_bytes)) for op in chunk.graph.ops)
    prepared = replace(prepared, graph=chunk.graph.edited(ops=ops).checked(), link=None)
    planners = _PLANNERS if request.planner is None else (request.planner,)
    plannings = (plan(prepared, replace(request.at(budget_bytes), planner=planner)) for planner in planners)
    return [ChunkPoint.of(chunk, planning.schedule) for planning in plannings if planning.schedule is not None]


def best_points(points: Sequence[ChunkPoint]) -> tuple[ChunkPoint, ...]:
    """Return the points to which none is equal or better in every figure, the plain run first."""
    best: list[ChunkPoint] = []
    for point in points:
        others = (*best, *(other for other in points if other.figures != point.figures))
        if not any(all(a <= b for a, b in zip(other.figures, point.figures, strict=True)) for other in others):
            best.append(point)
    return tuple(best)
