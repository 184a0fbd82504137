"""Which regions to split, and in how many parts: tried, beginning with the op that alone needs most.

Each attempt is a graph of its own, planned as any other. The regions of the op that is in the way go in 2, 4, 8 parts,
until a plan fits, or until another op is in the way; a plan that fits is held against one in twice as many parts, and
against one whose region is wide, for its time. A plan without parts counts, too: splitting never makes a plan worse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from remat_cli.config import Request
from remat_cli.core.bounds import WorkingSet, largest_working_set
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer
from remat_cli.errors import UsageError
from remat_cli.planning.main_path import Planning, plan
from remat_cli.prepare import Prepared
from remat_cli.splitting import Split

# Returns the graph with these cuts; raises UsageError where one cannot be made.
PreparedWith = Callable[[Mapping[str, Split]], Prepared]

_MOST_PARTS = 64
_MOST_PLANS = 8
_MOST_GRAPHS = 24
# What a part is called after the op that it is a part of.
_PART = re.compile(r"_(part\d+|rows\d*|sum\d+|slice\d+|scaled|mean|viewed|of_one)$", re.ASCII)


@dataclass(frozen=True)
class SplitPlanning:
    """What came of a search for a plan with regions in parts.

    Attributes:
        planning: the best plan; without one, what came closest.
        cuts: its regions in parts; empty where the plan without is the best.
        whole: what came of the graph without parts.
        bound_by: why nothing more could be split, in words; empty where that is not the end.
    """

    planning: Planning
    cuts: Mapping[str, Split]
    whole: Planning
    bound_by: str = ""


def plan_split(
    prepared_with: PreparedWith, request: Request, observe: Observer | None = None, *, any_plan: bool = False
) -> SplitPlanning:
    """Plan a graph, with regions in parts where that is needed or takes less time.

    Args:
        prepared_with: returns the graph with some cuts.
        request: names a budget; a share is one of the plain peak without parts.
        observe: is told what the planner finds.
        any_plan: the first plan that fits will do.

    Raises:
        UsageError: as `plan`.
    """
    whole = plan(prepared_with({}), request, observe)
    if request.budget is not None and not request.budget.smallest:
        size = request.budget_bytes(whole.prepared.graph)
        assert size is not None
        request = request.at(size - request.beside(whole.prepared.graph))
    return _Search(prepared_with, request, observe or Observer(), whole, any_plan).best()


@dataclass
class _Search:
    prepared_with: PreparedWith
    request: Request
    observe: Observer
    whole: Planning
    any_plan: bool = False
    plans: int = 0
    graphs: int = 0
    bound_by: str = ""
    known: dict[str, Prepared | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found: tuple[Planning, dict[str, Split]] = self.whole, {}

    def best(self) -> SplitPlanning:
        """Search; return the best of what was found."""
        if self.whole.schedule is None or self.whole.overhead or self._is_smallest:
            self.search()
        planning, cuts = self.found
        return SplitPlanning(planning, cuts, self.whole, self.bound_by)

    @property
    def _is_smallest(self) -> bool:
        return self.request.budget is not None and self.request.budget.smallest

    def search(self) -> None:
        seeds = self.seeds(self.whole)
        for seed in seeds:
            for wide in (False, True):
                self.with_seed({}, seed, wide=wide)
            if self.found[1]:
                break
        if not self.found[1] and not self.bound_by and seeds:
            self.bound_by = f"the regions around {', '.join(map(repr, seeds))} were tried"

    def with_seed(self, cuts: Mapping[str, Split], seed: str, *, wide: bool) -> None:
        """Try the region around an op in more and more parts."""
        fits, parts = False, 2
        while parts <= _MOST_PARTS and self.plans < _MOST_PLANS and self.graphs < _MOST_GRAPHS:
            cut = Split(parts, wide)
            tried = {**cuts, seed: cut}
            prepared = self.prepared(tried)
            if prepared is None:
                return
            if self.is_within_reach(prepared.graph):
                better = self.try_plan(prepared, tried)
                if fits and not better:
                    return
                fits = fits or better
                if better and self._is_ideal():
                    return
            else:
                self.without_factor(tried, seed, cut, prepared.graph)
            parts *= 2

    def without_factor(self, cuts: dict[str, Split], seed: str, cut: Split, graph: Graph) -> None:
        """Where gradients made at once are in the way, try to make them in the backward pass."""
        op = largest_working_set(graph).op or ""
        if op.endswith("_scaled"):
            again = {**cuts, seed: replace(cut, again=True)}
            prepared = self.prepared(again)
            if prepared is not None and self.is_within_reach(prepared.graph):
                self.try_plan(prepared, again)

    def is_within_reach(self, graph: Graph) -> bool:
        size = self.request.budget_bytes(graph)
        if size is None:
            now = self.found[0].prepared.graph
            return largest_working_set(graph).bytes < largest_working_set(now).bytes
        return largest_working_set(graph).bytes <= size

    def prepared(self, cuts: Mapping[str, Split]) -> Prepared | None:
        """Return the graph with some cuts; None where it cannot be."""
        key = ", ".join(f"{name}={cut}" for name, cut in sorted(cuts.items()))
        if key not in self.known:
            self.observe.phase(f"splitting {key}")
            self.graphs += 1
            try:
                self.known[key] = self.prepared_with(cuts)
            except UsageError as refusal:
                self.bound_by, self.known[key] = refusal.message, None
        return self.known[key]

    def try_plan(self, prepared: Prepared, cuts: dict[str, Split]) -> bool:
        """Plan a graph; return whether the plan is the best so far."""
        self.plans += 1
        planning = plan(prepared, self.request, self.observe)
        if planning.schedule is None or not self.is_better(planning):
            return False
        self.found = planning, cuts
        return True

    def is_better(self, planning: Planning) -> bool:
        best, trace = self.found[0], planning.trace
        if best.schedule is None or best.trace is None or trace is None:
            return True
        if self._is_smallest:
            return trace.peak_bytes < best.trace.peak_bytes
        return trace.time < best.trace.time

    def _is_ideal(self) -> bool:
        return not self._is_smallest and (self.any_plan or not self.found[0].overhead)

    def seeds(self, planning: Planning) -> list[str]:
        """Return the ops to begin with: the one that alone needs most, then those that made what it holds."""
        needed = largest_working_set(planning.prepared.graph)
        return list(dict.fromkeys(_seeds(planning.prepared.graph, needed)))[:3]


def _seeds(graph: Graph, needed: WorkingSet) -> Iterator[str]:
    if needed.op is not None:
        yield original(needed.op)
    for name in needed.tensors:
        if name in graph.producer:
            yield original(graph.producer[name].name)


def original(op: str) -> str:
    """Return the name of the op that an op is a part of, or was made for."""
    while (shorter := _PART.sub("", op)) != op:
        op = shorter
    return op
