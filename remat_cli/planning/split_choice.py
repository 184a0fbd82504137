"""Which regions to split, and in how many parts: tried, beginning with the op that alone needs most.

Each attempt is a graph of its own, planned as any other. The region around the op that is in the way goes in 2, 4, 8
parts, until a plan fits, or another op is in the way, whose region is split then, too. A plan that takes more time than
the step without parts is held against others. A plan without parts counts, too: splitting never makes a plan worse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path

from remat_cli.config import GraphOptions, Request
from remat_cli.core.bounds import WorkingSet, largest_working_set, working_set_bytes
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer
from remat_cli.core.solve import baseline_of, share_over
from remat_cli.errors import UsageError
from remat_cli.planners.shared.limits import Limits
from remat_cli.planning.one_graph import Planning, plan_graph
from remat_cli.planning.refusal import quick_peak
from remat_cli.planning.summary import Summary
from remat_cli.prepare import Prepared, PreparedWith, why_not_in_parts
from remat_cli.splitting import Split, cuts_in_words, original, written_cuts
from remat_cli.units import exact_bytes, format_bytes, format_time, more_time

# Least seconds of a trial for a refusal.
LEAST_TRIAL = 2.0
# Most parts of a region that are tried.
MOST_PARTS = 64
_MOST_PLANS = 6
# Of the planner's time limit, what each plan in parts may take.
SHARE_OF_TIME = 0.25
# Limit in seconds of the quick run that tells whether a plan is within reach, and how far above the budget its peak may
# be for one: of nanoGPT's head in parts, the peaks of both were within 12 % of each other.
_QUICK_SECONDS = 1.0
_NEAR = 1.15
# Of the smallest budget, plans in parts that are asked for: those of the least quick peaks.
_MOST_SMALLEST = 3
_MOST_GRAPHS = 40
# Larger steps are not tried for a refusal: to read one with 2,900 ops in parts takes twice as long as without.
_MOST_OPS_OF_TRIAL = 2_000
_MOST_SEEDS = 3
# Of cuts that held at another size, the multiples of their parts that are tried.
_FACTORS = (1, 2, 4)
_MOST_REGIONS = 6
# How the region around an op is cut: kinds that are tried beside each other, and those tried where these do not fit.
_KINDS = ((Split(2), Split(2, wide=True)), (Split(2, again=True), Split(2, wide=True, again=True)))
# Where any plan will do, narrow regions come first: their graphs are smaller, and read sooner.
_KINDS_IN_TURN = tuple((kind,) for kinds in _KINDS for kind in kinds)


@dataclass(frozen=True)
class SplitPlanning:
    """The result of a search for a plan with regions in parts.

    Attributes:
        planning: the best plan; without one, the result without parts.
        cuts: its regions in parts; empty where the plan without is the best.
        whole: the result of the graph without parts.
        bound_by: without cuts, what is in the way in parts, in words; empty where nothing was tried.
        closest: without a plan, the result in parts of the least peak; None where no parts have a lower one.
        closest_cuts: its regions in parts.
        cut_short: the time was over before all was tried.
    """

    planning: Planning
    cuts: Mapping[str, Split]
    whole: Planning
    bound_by: str = ""
    closest: Planning | None = None
    closest_cuts: Mapping[str, Split] = field(default_factory=dict)
    cut_short: bool = False

    @property
    def noted(self) -> Planning:
        """The planning, with a note on what is in the way in parts."""
        if self.cuts or not self.bound_by:
            return self.planning
        note, prepared = f"split was tried: {self.obstacle}", self.planning.prepared
        return replace(self.planning, prepared=replace(prepared, notes=(*prepared.notes, note)))

    @property
    def peak_bytes(self) -> int | None:
        """Least peak in parts: of the plan, or of the closest result; None without either."""
        if self.cuts:
            return self.planning.peak_bytes
        return None if self.closest is None else _closest_bytes(self.closest)

    @property
    def obstacle(self) -> str:
        """The obstacle to a plan in parts, with the least peak found, in words."""
        if self.peak_bytes is None or not self.closest_cuts:
            return self.bound_by
        cuts = cuts_in_words(self.closest_cuts)
        return f"the least peak found is {exact_bytes(self.peak_bytes)}, with {cuts}; {self.bound_by}"

    def summary(self) -> Summary:
        """Return the JSON values of a trial for a refusal."""
        return {
            "fits": bool(self.cuts),
            "parts": written_cuts(self.cuts or self.closest_cuts),
            "peak_bytes": self.peak_bytes,
            "reason": self.bound_by,
        }

    def in_words(self, option: str) -> str:
        """State the effect of splitting on a budget that no plan without parts fits.

        Args:
            option: the name by which users ask for it.
        """
        if not self.cuts or self.planning.trace is None:
            refused = "would not help" if self.closest is None else "does not fit either"
            if self.cut_short:
                refused = "may fit, but the trial was short"
            return f"{option} {refused}: {self.obstacle}"
        over = share_over(self.planning.trace.time, self.whole.solution.baseline.time)
        return (
            f"{option} fits: {cuts_in_words(self.cuts)}, a predicted peak of "
            f"{format_bytes(self.planning.trace.peak_bytes)}, {more_time(over)} (results differ in the last digits)"
        )


def plan_split(
    prepared_with: PreparedWith,
    request: Request,
    observe: Observer | None = None,
    *,
    prepared: Prepared | None = None,
    whole: Planning | None = None,
    draft: PreparedWith | None = None,
    former: Iterable[Mapping[str, Split]] = (),
    any_plan: bool = False,
    has_loss: bool = True,
    seconds: float = inf,
) -> SplitPlanning:
    """Plan a graph, with regions in parts where that is needed or takes less time.

    Args:
        prepared_with: returns the graph with some cuts.
        request: names a budget; a share is one of the plain peak without parts.
        observe: is told what the planner finds.
        prepared: the graph without parts; None: it is prepared here.
        whole: the result for this request without parts; None: it is planned here.
        draft: returns the graph with some cuts sooner, without what is measured of its kernels; None: there is no such
            difference.
        former: cuts of the same graph at other sizes. If a plan fits with them, no others are tried.
        any_plan: the first plan that fits will do.
        has_loss: gradients may be multiples of a number that is known later. Without it, no gradients are made at once,
            so it makes no difference to make them again.
        seconds: limit of the search in seconds, after which no more parts are tried.

    Raises:
        UsageError: as `plan_graph`.
    """
    request = replace(request, split=False)
    if whole is None:
        whole = plan_graph(prepared or prepared_with({}), request, observe)
    if request.budget is not None and not request.budget.smallest:
        size = request.budget_bytes(whole.prepared.graph)
        assert size is not None
        request = request.at(size)
    search = _SplitSearch(prepared_with, request, observe or Observer(), whole, draft, any_plan, has_loss, seconds)
    return search.best(former)


def try_split(
    refused: Planning, path: Path, options: GraphOptions, seconds: float, observe: Observer | None = None
) -> SplitPlanning | None:
    """Try to split a step that was refused; None where it cannot be tried, or would take long.

    Args:
        refused: the result without parts.
        path: FILE.py:NAME, which is read again.
        options: how it was read.
        seconds: limit of the search in seconds.
        observe: is told what the planner finds.

    Raises:
        GraphError: as `prepare_in_parts`.
    """
    request = refused.request
    # The ops of a step that inductor decomposes are not those among which parts are found.
    if options.parts or options.fused or request.banks or request.arena or request.allocator is not None:
        return None
    if len(refused.prepared.graph.ops) > _MOST_OPS_OF_TRIAL or why_not_in_parts(path, options) is not None:
        return None
    with suppress(KeyboardInterrupt):  # the answer to the request, that no plan fits, is known
        return plan_split(refused.prepared.in_parts, request, observe, whole=refused, any_plan=True, seconds=seconds)
    return None


@dataclass(frozen=True)
class _Reached:
    """The result of planning with cuts.

    Attributes:
        cuts: that were tried.
        needed: the least that the graph needs with them.
        peak_bytes: peak of a quick run of it; None where it needs more than the budget.
        planned: a plan was asked for.
        fits: a plan was found.
        better: it is the best so far.
    """

    cuts: dict[str, Split]
    needed: WorkingSet
    peak_bytes: int | None = None
    planned: bool = False
    fits: bool = False
    better: bool = False

    def is_of_no_use_after(self, last: _Reached | None) -> bool:
        """Tell whether more parts than those before gained nothing."""
        if last is None or (last.peak_bytes is None) != (self.peak_bytes is None):
            return False
        if last.planned and self.planned:
            return not self.better
        if last.peak_bytes is not None and self.peak_bytes is not None:
            return self.peak_bytes >= last.peak_bytes
        return self.needed.bytes >= last.needed.bytes


@dataclass
class _SplitSearch:
    prepared_with: PreparedWith
    request: Request
    observe: Observer
    whole: Planning
    draft: PreparedWith | None = None
    any_plan: bool = False
    has_loss: bool = True
    seconds: float = inf
    plans: int = 0
    graphs: int = 0
    refusal: str = ""
    known: dict[str, Prepared | None] = field(default_factory=dict)
    early: dict[str, Prepared] = field(default_factory=dict)  # drafts that are asked for next

    def __post_init__(self) -> None:
        self.found: tuple[Planning, dict[str, Split]] = self.whole, {}
        self.closest: tuple[Planning, dict[str, Split]] | None = None
        self.least: _Reached | None = None
        self.cut_short = False
        self.limits = Limits.of(self.seconds)

    def best(self, former: Iterable[Mapping[str, Split]]) -> SplitPlanning:
        """Search, with former cuts first, and return the best plan."""
        bound, graph = "", self.whole.prepared.graph
        at_end = graph.fixed_bytes + sum(graph.freeable_bytes[name] for name in graph.outputs if name in graph.producer)
        if at_end > self.most_bytes(at_end):
            bound = f"what is in memory at the end, {format_bytes(at_end)}, is the same in parts"
        elif self._is_smallest or (self._may_gain and not any(map(self.fits_with, former))):
            bound = self.search()
        planning, cuts = self.found
        if cuts or planning.schedule is not None:
            return SplitPlanning(planning, cuts, self.whole, "" if cuts else bound)
        self.try_least()
        closest, of_closest = self.closest or (None, {})
        return SplitPlanning(planning, {}, self.whole, bound, closest, of_closest, self.cut_short)

    def fits_with(self, cuts: Mapping[str, Split]) -> bool:
        """Try cuts in more and more parts; return whether a plan fits."""
        last: _Reached | None = None
        fits = False
        for factor in _FACTORS:
            if factor > 1 and factor * max(cut.parts for cut in cuts.values()) > MOST_PARTS:
                break
            reached = self.reached({name: replace(cut, parts=factor * cut.parts) for name, cut in cuts.items()})
            if reached is None or reached.is_of_no_use_after(last):
                break
            last, fits = reached, fits or reached.fits
            if fits and self._is_ideal:
                break
        return fits

    def try_least(self) -> None:
        """Plan the cuts that need least, where no plan was asked for: the least peak found is that of a schedule."""
        if self.closest is not None or self.least is None:
            return
        if self.least.needed.bytes < largest_working_set(self.whole.prepared.graph).bytes:
            prepared = self.prepared(self.least.cuts)
            if prepared is not None:
                self.try_plan(prepared, self.least.cuts)

    @property
    def _may_gain(self) -> bool:
        return self.whole.schedule is None or bool(self.whole.overhead)

    @property
    def _is_smallest(self) -> bool:
        return self.request.budget is not None and self.request.budget.smallest

    @property
    def _is_over(self) -> bool:
        most = _MOST_GRAPHS // 2 if self.any_plan else _MOST_GRAPHS
        late = self.limits.is_over and (self.least is not None or bool(self.refusal))  # something is always tried
        return self.plans >= _MOST_PLANS or self.graphs >= most or late

    def search(self) -> str:
        """Try region after region; return the last obstacle, in words."""
        cuts: Mapping[str, Split] = {}
        needed = largest_working_set(self.whole.prepared.graph)
        for _ in range(_MOST_REGIONS):
            reached = self.with_one_more(cuts, needed)
            if self.found[1] or reached is None:
                break
            cuts, needed = reached.cuts, reached.needed
            if self._is_over:
                break
        if self.refusal and self.least is None:
            return self.refusal
        self.cut_short = self.limits.is_over
        ended = f" (tried for {format_time(round(self.seconds * 1e9), 'ns')})" if self.cut_short else ""
        if not cuts:
            at_end = needed.op is None
            region = "what is in memory at the end" if at_end else f"the region around op {needed.op!r}"
            other = None if self.least is None or self.least.needed.op is None else original(self.least.needed.op)
            if other in (None, needed.op):
                return f"{region} needs no less in parts{ended}"
            return f"with {region} in parts, op {other!r} needs as much{ended}"
        if needed.bytes <= self.most_bytes(needed.bytes):
            return f"in parts, no plan was found, though no op needs more than {format_bytes(needed.bytes)}{ended}"
        what = "what is in memory at the end" if needed.op is None else f"op {needed.op!r}"
        return f"in parts, {what} needs {format_bytes(needed.bytes)}{ended}"

    def with_one_more(self, cuts: Mapping[str, Split], needed: WorkingSet) -> _Reached | None:
        """Try the regions around an obstacle; return the cuts of least memory.

        Args:
            cuts: that are made already.
            needed: what is in the way then.
        """
        graph, tried = self.whole.prepared.graph, list[_Reached]()
        for seed in list(dict.fromkeys(_seeds(graph, needed)))[:_MOST_SEEDS]:
            before = len(tried)
            for kinds in () if seed in cuts else self.kinds:
                tried += self.with_seeds(cuts, {kind: self.alike(cuts, needed, seed, kind) for kind in kinds})
                if self._is_over or (self.found[1] and not self._is_smallest):
                    break
            if self._is_smallest:
                self.plan_smallest(tried[before:])
            if self._is_over or self.found[1]:
                break
        gaining = [reached for reached in tried if reached.needed.bytes < needed.bytes]
        return min(gaining, key=lambda reached: reached.needed.bytes, default=None)

    @property
    def kinds(self) -> Iterator[tuple[Split, ...]]:
        """Yield kinds of cuts that are tried beside each other, until one fits."""
        for kinds in _KINDS_IN_TURN if self.any_plan else _KINDS:
            if self.has_loss or not any(kind.again for kind in kinds):
                yield kinds

    def plan_smallest(self, tried: Collection[_Reached]) -> None:
        """Plan the graphs of the least quick peaks, for the smallest budget."""
        quick = [reached for reached in tried if reached.peak_bytes is not None]
        for reached in sorted(quick, key=lambda reached: reached.peak_bytes or 0)[:_MOST_SMALLEST]:
            if reached.needed.bytes <= self.most_bytes(reached.needed.bytes):
                self.planned(reached)

    def alike(self, cuts: Mapping[str, Split], needed: WorkingSet, seed: str, kind: Split) -> tuple[str, ...]:
        """Return an op, with its twins in equal layers if a region around it leaves these in the way.

        Twins are ops of one type that need as much.

        Args:
            cuts: that are made already.
            needed: what is in the way then.
            seed: the op.
            kind: how its region is cut.
        """
        graph = self.whole.prepared.graph
        type_, size = graph.op[seed].type, working_set_bytes(graph, graph.op[seed])
        twins = [op.name for op in graph.ops if op.type == type_ and working_set_bytes(graph, op) == size]
        if len(twins) == 1:
            return (seed,)
        alone = {**cuts, seed: kind}
        drawn = self.drafted(alone)
        if drawn is None:
            return (seed,)
        if largest_working_set(drawn.graph).bytes < needed.bytes:
            self.early[_name(alone)] = drawn
            return (seed,)
        return (seed, *(name for name in twins if name != seed and name not in cuts and name in drawn.graph.op))

    def with_seeds(self, cuts: Mapping[str, Split], seeds_of: Mapping[Split, Collection[str]]) -> Iterator[_Reached]:
        """Try ops' regions in more and more parts; yield each need of memory.

        Args:
            cuts: that are made already.
            seeds_of: the ops, by how their regions are cut, each tried until more parts are of no use.
        """
        last: dict[Split, _Reached] = {}
        live, parts = list(seeds_of), 2
        while live and parts <= MOST_PARTS and not self._is_over:
            for kind in tuple(live):
                reached = self.reached({**cuts, **dict.fromkeys(seeds_of[kind], replace(kind, parts=parts))})
                if reached is not None:
                    yield reached
                if self.found[1] and self._is_ideal:
                    return
                if reached is None or reached.is_of_no_use_after(last.get(kind)):
                    live.remove(kind)
                else:
                    last[kind] = reached
            parts *= 2

    def reached(self, cuts: dict[str, Split]) -> _Reached | None:
        """Try cuts; return the result, or None for impossible cuts."""
        drawn = self.drafted(cuts)
        if drawn is None:
            return None
        needed = largest_working_set(drawn.graph)
        if self.least is None or needed.bytes < self.least.needed.bytes:
            self.least = _Reached(cuts, needed)
        most = self.most_bytes(needed.bytes)
        if needed.bytes > most:
            return _Reached(cuts, needed)
        if self.request.offload:  # a quick run moves nothing to the host
            peak = needed.bytes
        else:
            budget = needed.bytes if self._is_smallest else most
            peak = quick_peak(drawn.graph, budget, min(self.seconds, _QUICK_SECONDS))
        tried = _Reached(cuts, needed, peak)
        return tried if self._is_smallest or peak > _NEAR * most else self.planned(tried)

    def planned(self, tried: _Reached) -> _Reached:
        """Plan a graph with cuts, and keep the plan if it is the best."""
        prepared = self.prepared(tried.cuts)
        if prepared is None or (needed := largest_working_set(prepared.graph).bytes) > self.most_bytes(needed):
            return tried
        planning = self.try_plan(prepared, tried.cuts)
        better = planning.schedule is not None and self.is_better(planning)
        if better:
            self.found = planning, tried.cuts
        return replace(tried, planned=True, fits=planning.schedule is not None, better=better)

    def most_bytes(self, needed: int) -> int:
        """Return the most that a plan may need, where a graph needs so much at least."""
        if not self._is_smallest:
            return self.request.budget_bytes(self.whole.prepared.graph) or needed
        trace = self.found[0].trace
        return needed if trace is None else trace.peak_bytes - 1

    def drafted(self, cuts: Mapping[str, Split]) -> Prepared | None:
        """Return the graph with some cuts, perhaps without measured kernels; None where there is no such graph."""
        if self.draft is None:
            return self.prepared(cuts)
        if (early := self.early.pop(_name(cuts), None)) is not None:
            return early
        self.graphs += 1
        try:
            return self.draft(cuts)
        except UsageError as refusal:
            self.refusal = refusal.message
            return None

    def prepared(self, cuts: Mapping[str, Split]) -> Prepared | None:
        """Return the graph with some cuts; None where it cannot be."""
        key = _name(cuts)
        if key not in self.known:
            self.observe.phase(f"splitting {key}")
            self.graphs += self.draft is None
            try:
                self.known[key] = self.prepared_with(cuts)
            except UsageError as refusal:
                self.refusal, self.known[key] = refusal.message, None
        return self.known[key]

    def try_plan(self, prepared: Prepared, cuts: dict[str, Split]) -> Planning:
        """Plan the graph with these cuts, in a share of the time limit."""
        self.plans += 1
        planning = plan_graph(prepared, self.quick_request, self.observe)
        if planning.schedule is None and planning.solution.closest is not None:
            least = _closest_bytes(self.whole if self.closest is None else self.closest[0])
            if _closest_bytes(planning) < least:
                self.closest = planning, cuts
        return planning

    @cached_property
    def quick_request(self) -> Request:
        """The request, with less time."""
        return self.request.in_time(SHARE_OF_TIME, most=self.seconds)

    def is_better(self, planning: Planning) -> bool:
        """Tell whether a plan is better than the best so far."""
        best, trace = self.found[0], planning.trace
        if best.schedule is None or best.trace is None or trace is None:
            return True
        if self._is_smallest:
            return trace.peak_bytes < best.trace.peak_bytes
        return trace.time < best.trace.time

    @property
    def _is_ideal(self) -> bool:
        """Whether the best plan is fast enough to end the search."""
        trace = self.found[0].trace
        if self._is_smallest or trace is None:
            return False
        own = baseline_of(self.found[0].prepared.graph).time
        return self.any_plan or trace.time <= max(own, self.whole.solution.baseline.time)


def _name(cuts: Mapping[str, Split]) -> str:
    return ", ".join(f"{name}={cut}" for name, cut in sorted(cuts.items()))


def _closest_bytes(refused: Planning) -> int:
    """Return the least peak found; that of the plain run where no other run was found."""
    closest = refused.solution.closest
    return (refused.solution.baseline if closest is None else closest).peak_bytes


def _seeds(graph: Graph, needed: WorkingSet) -> Iterator[str]:
    if needed.op is not None:
        yield original(needed.op)
    for name in needed.tensors:
        if name in graph.producer:
            yield original(graph.producer[name].name)
