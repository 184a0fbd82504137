"""Plans of one kind of region that keep less and less between its passes: the points of a curve.

The graph of a region may have cuts: some of its ops run in parts. Each set of cuts gives a graph, with a curve of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import inf, log2

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Phase
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.solve import baseline_of
from remat_cli.errors import DoesNotFit, InvalidSchedule, UsageError
from remat_cli.prepare import Prepared
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.plan.block_step import CurvePoint
from remat_cli.pytorch.plan.budget_source import BudgetSource
from remat_cli.splitting import Split
from remat_cli.units import parse_budget

# Shares of a plain region's kept memory, beyond the memory that every plan keeps.
_SHARES = (0.8, 0.6, 0.4, 0.2, 0.0)
# Shares of a plain region's peak, beyond the least peak: the first is taken at which a plan keeps no more than it must.
_SHARES_OF_PEAK = (0.0, 0.2, 0.5)
_SHARES_IN_PARTS = (0.5, 0.0)  # the same, for each number of parts
_PLAN_SECONDS = 1.0  # for each plan of a region, by default
_SHARE_OF_EACH = 0.2  # of these, for each of the many plans that a search for cuts asks for
_SEARCH, _TRIAL = 20, 4  # times these seconds, for that search, and for one that explains a refusal
# Peaks of a plan in parts, in the order in which they are tried: the least peak, and this share of what it keeps more.
_MORE = (0.0, 1.0)
_FEWER = (16, 4, 1)  # fewer parts than those of the least peak, too
_WHOLE: Mapping[str, Split] = {}
# Cuts of another region are taken if they bring the peak down to no more than this multiple of its share there.
_AS_GOOD = 1.05


@dataclass(eq=False)
class RegionGraphs:
    """The graphs of one kind of region, whole and with cuts.

    Attributes:
        source: source of plans for the region alone.
        piece: the captured region.
    """

    source: BudgetSource
    piece: Piece
    _prepared: dict[frozenset[tuple[str, Split]], Prepared] = field(default_factory=dict)  # by their cuts

    def prepared(self, cuts: Mapping[str, Split] = _WHOLE) -> Prepared:
        """Return the graph with some cuts.

        Raises:
            UsageError: the region has no such ops, or they cannot be split.
        """
        key = frozenset(cuts.items())
        if key not in self._prepared:
            self._prepared[key] = self.source.prepared(self.piece.in_parts(cuts))
        return self._prepared[key]

    def point(self, schedule: Schedule, cuts: Mapping[str, Split] = _WHOLE) -> CurvePoint:
        """Return a plan as measured by the judge.

        With cuts, its overhead is that beside the whole region.

        Raises:
            UsageError: see `prepared`.
            InvalidSchedule: the schedule does not run on this graph.
        """
        point = CurvePoint.of(self.prepared(cuts).graph, schedule, self.outputs)
        if not cuts:
            return point
        return replace(point, planned=point.planned.in_parts(cuts, self.prepared().graph))

    @cached_property
    def outputs(self) -> int:
        """Bytes of the region's outputs."""
        return sum(storage.bytes for storage in self.piece.joint.returned)

    def plain(self, cuts: Mapping[str, Split] = _WHOLE) -> CurvePoint:
        """Return the plan that recomputes nothing."""
        return self.point(plain_run(self.prepared(cuts).graph), cuts)

    def curve(self) -> list[CurvePoint]:
        """Return plans of the whole region that keep less and less, the plain one first."""
        plain = self.plain()
        floor = _kept_in_any_case(self.prepared().graph)
        peak = plain.planned.predicted_peak_bytes
        limits = ((floor + int(share * max(0, plain.kept - floor)), peak) for share in _SHARES)
        return [plain, *self._within(limits)]

    def lower(self) -> list[CurvePoint]:
        """Return plans of the whole region that peak lower: one that keeps least, and the one of the least peak."""
        smallest = self.point(self._least.plan_of(self.prepared()).schedule)
        least, peak = smallest.planned.predicted_peak_bytes, self.plain().planned.predicted_peak_bytes
        floor = _kept_in_any_case(self.prepared().graph)
        limits = ((floor, least + int(share * (peak - least))) for share in _SHARES_OF_PEAK)
        return [*islice(self._within(limits), 1), smallest]

    def curve_in_parts(self, known: Sequence[Sequence[CurvePoint]], *, is_trial: bool = False) -> list[CurvePoint]:
        """Return plans of the region in parts that keep less and less, the one of the least peak last.

        Plans that keep more may peak by as much above the least peak. Where parts need no less memory, there are no
        plans.

        Args:
            known: such plans of other regions, the last ones first, which are tried before others are made.
            is_trial: the search is short, and fewer parts are not tried: for a refusal.
        """
        for curves_of in (self._with_schedules, self._with_cuts):
            for curve in known:
                points = curves_of(curve)
                if points and points[-1].peak_share <= _AS_GOOD * curve[-1].peak_share:
                    return points
        options = self.source.request.in_time(_TRIAL if is_trial else _SEARCH, usual=_PLAN_SECONDS).chosen.options
        limit = options.get("time_limit", inf)
        cuts = replace(self._least, search_seconds=limit).best_cuts(self.prepared(), self.piece)
        if not cuts:
            return []
        return list(self._curve_with_just(cuts)) if is_trial else self._curve_with(cuts)

    def _with_schedules(self, curve: Sequence[CurvePoint]) -> list[CurvePoint]:
        """Return the plans of another region; none where this one has other ops or twice the memory."""
        with suppress(UsageError, InvalidSchedule):
            if self._growth(curve) == 1:
                return [self.point(point.planned.schedule, point.cuts) for point in curve]
        return []

    def _with_cuts(self, curve: Sequence[CurvePoint]) -> list[CurvePoint]:
        """Return plans with the cuts of another region, in twice the parts for twice the memory; none without rows."""
        factor = self._growth(curve)
        with suppress(UsageError):
            return self._curve_with(
                {name: replace(cut, parts=cut.parts * factor) for name, cut in curve[-1].cuts.items()}
            )
        return []

    def _growth(self, curve: Sequence[CurvePoint]) -> int:
        """Return the power of two by which this region is larger than another."""
        growth = baseline_of(self.prepared().graph).peak_bytes / max(1, curve[-1].planned.plain_peak_bytes)
        return int(2 ** int(log2(max(1.0, growth))))

    def _curve_with(self, cuts: Mapping[str, Split]) -> list[CurvePoint]:
        """Return plans with cuts, and with the same cuts in fewer parts, which take less time."""
        points: list[CurvePoint] = []
        for fewer in _FEWER:
            reduced = {name: replace(cut, parts=max(2, cut.parts // fewer)) for name, cut in cuts.items()}
            if not any(point.cuts == reduced for point in points):
                points += self._curve_with_just(reduced)
        return points

    def _curve_with_just(self, cuts: Mapping[str, Split]) -> Iterator[CurvePoint]:
        smallest = self.point(self._least.plan_of(self.prepared(cuts)).schedule, cuts)
        plain, peak = self.plain(cuts), smallest.planned.predicted_peak_bytes
        floor = _kept_in_any_case(self.prepared(cuts).graph)
        yield plain
        for share in _SHARES_IN_PARTS:
            kept = floor + int(share * max(0, plain.kept - floor))
            limits = ((kept, peak + int(more * kept)) for more in _MORE)
            yield from islice(self._within(limits, cuts), 1)
        yield smallest

    @cached_property
    def _least(self) -> BudgetSource:
        """The source of plans of the least peak."""
        request = replace(self.source.request, budget=parse_budget("min"))
        return replace(self.source, request=request.in_time(_SHARE_OF_EACH, usual=_PLAN_SECONDS))

    def _within(self, limits: Iterable[tuple[int, int]], cuts: Mapping[str, Split] = _WHOLE) -> Iterator[CurvePoint]:
        """Yield plans within limits of bytes: those kept between the passes, and the peak."""
        for kept, peak in limits:
            schedule = _plan_that_keeps(self.source, self.prepared(cuts), kept + 2 * self.outputs, peak)
            if schedule is not None:
                yield self.point(schedule, cuts)


def _plan_that_keeps(source: BudgetSource, prepared: Prepared, kept: int, peak: int) -> Schedule | None:
    """Return a plan of a region with a limit on kept bytes.

    `kept` bytes may stay between the passes, without memory from before.

    A planner knows one limit for all moments, so the boundary between the passes counts the rest as workspace.
    """
    graph, request = prepared.graph, source.request
    rest = peak - graph.fixed_bytes - kept
    ops = tuple(op.edited(workspace_bytes=max(0, rest)) if op.type == BOUNDARY_TYPE else op for op in graph.ops)
    request = request.in_time(usual=_PLAN_SECONDS)
    limited = replace(prepared, graph=graph.edited(ops=ops).checked())
    within = replace(source, request=request.at(peak))
    key = within.key(limited)
    try:
        return within.kept_or_new(key, limited).schedule
    except DoesNotFit:
        return None


def _kept_in_any_case(graph: Graph) -> int:
    """Return the bytes that every plan keeps for the backward pass, besides the region's outputs.

    No op may recompute these tensors.
    """
    (boundary,) = (op for op in graph.ops if op.type == BOUNDARY_TYPE)
    read = {name for op in graph.ops if op.phase is Phase.BACKWARD for name in op.inputs}.difference(boundary.inputs)
    once = (op for op in graph.ops if op.phase is Phase.FORWARD and not op.recomputable)
    return sum(graph.tensors[name].bytes for op in once for name in op.outputs if name in read)
