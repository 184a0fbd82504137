"""The portfolio of `auto`: a table of stages.

Each stage says when to use it, which planners to ask, and for how long. `members` asks them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from math import inf
from typing import NamedTuple

from remat_cli.core.graph import Phase
from remat_cli.core.problem import Observer, PlanResult, Problem, Scope
from remat_cli.errors import PlannerRefuses
from remat_cli.machine.system_limits import refusal_of
from remat_cli.planners.auto.members import AutoPlanners
from remat_cli.planners.retention.options import SHARE_OF_TURN, WORK_OF_TURN
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shortest_path.planner import is_small

_LOG = logging.getLogger("remat")

# The gap, as a share of the plain run's time, up to which most planners have nothing to add.
NEAR = 0.002


class Standing:
    """The facts that decide on the next stage.

    These are the kind of graph, the planners asked so far, and the best plan's distance from the bound.

    Attributes:
        asked: names of the planners asked so far, in order.
    """

    def __init__(self, members: AutoPlanners) -> None:
        self.asked: list[str] = []
        self._members = members
        self._graph = members.problem.graph

    @property
    def ops(self) -> int:
        """Number of ops in the graph."""
        return len(self._graph.ops)

    @cached_property
    def is_training(self) -> bool:
        """Whether the graph has a backward pass."""
        return any(op.phase is Phase.BACKWARD for op in self._graph.ops)

    @cached_property
    def is_tiny(self) -> bool:
        """Whether all plans can be tried in seconds at most."""
        return is_small(self._graph, 24)

    @cached_property
    def is_small(self) -> bool:
        """Whether all plans can be tried in seconds, and a bound is wanted."""
        return is_small(self._graph, 48) and not self.is_tiny and not self._members.observe.takes_any_plan

    @property
    def gap(self) -> float:
        """Time of the best plan beyond the bound, as a share of the plain run's; infinite without a plan."""
        return self._members.incumbent.gap

    @property
    def has_annealed(self) -> bool:
        """Whether annealing has run."""
        return "annealing" in self.asked

    @property
    def found_by(self) -> str | None:
        """The planner of the best plan without transfers; None without a plan."""
        best = self._members.recomputing.best
        return None if best is None else best.found_by

    @property
    def can_recompute_better(self) -> bool:
        """Whether a plan without transfers can beat the best plan."""
        best = self._members.incumbent.best
        return best is None or best.time > self._members.recomputing.bound_on(Scope.ANY_ORDER).time

    # Kinds of graphs that stages are for

    @property
    def is_usual_training(self) -> bool:
        """Whether this is a training graph of usual size.

        On such graphs, a bound at several moments and plans of chains take seconds.
        """
        return self.is_training and self.ops <= 3_000

    @property
    def is_tangled(self) -> bool:
        """Whether the order of first runs decides as much as recomputation.

        This holds for graphs without a backward pass.
        """
        return not self.is_training and self.ops > 24

    @property
    def anneals_first(self) -> bool:
        """Whether annealing should run before retention.

        Graphs of more than 5,000 ops are too large for models. In others, annealing comes first once it is compiled.
        """
        return self.is_tangled and (self.ops > 5_000 or (self._needs_orders and _is_compiled()))

    @property
    def _needs_orders(self) -> bool:
        """Whether annealing soon finds better orders than retention.

        It does except in small graphs, whose models are solved quickly. In graphs of 600 to 1,500 ops this holds near
        the bound, too.
        """
        is_far = self.gap > (0.01 if 600 < self.ops <= 1_500 else 0.1)
        return self.is_tangled and is_far and self.ops >= 200

    @property
    def retention_shares(self) -> bool:
        """Whether retention gets only a share of the time."""
        if self.is_training:
            return self.gap > NEAR  # the last searches by cuts need time, too
        # Large tangled graphs need time for annealing.
        return self.is_tangled and not self.has_annealed and (self.ops > 600 or self._needs_orders)


class Turn(NamedTuple):
    """A request to one planner.

    Attributes:
        planner: name of the planner.
        ask: function that asks the planner.
        share: largest share of the remaining time.
        work: limit in the planner's own count.
    """

    planner: str
    ask: Callable[[AutoPlanners, Limits], None]
    share: float | Callable[[Standing], float] = 1.0
    work: float = inf


class Stage(NamedTuple):
    """Planners to ask in turn.

    Attributes:
        when: whether the stage is worth its time; evaluated once, before its first planner.
        turns: the requests.
        why: the reason, for readers of this table.
    """

    when: Callable[[Standing], bool]
    turns: tuple[Turn, ...]
    why: str


def _always(_: Standing) -> bool:
    return True


def _is_compiled() -> bool:
    from remat_cli.planners.annealing.sweeps import MOVES

    return MOVES.is_ready


# A quarter of the remaining time. On graphs of usual size none of these planners needs that much, so their plans do not
# depend on the clock.
_QUICK = 0.25
_MOST = 0.7
_restart_few = partial(AutoPlanners.restart_min_cuts, most_fruitless=2)
_restart_many = partial(AutoPlanners.restart_min_cuts, most_fruitless=4)

FIRST = (
    Stage(_always, (Turn("keep_all", AutoPlanners.keep_all),), "the plain run: where it fits, nothing is better"),
    Stage(lambda s: s.ops <= 3_000, (Turn("dtr", AutoPlanners.evict, _QUICK),), "a plan at once"),
    Stage(lambda s: s.ops > 3_000, (Turn("min_cut", AutoPlanners.cut_once),), "the same where eviction takes too long"),
    Stage(_always, (Turn("", AutoPlanners.prove, _QUICK),), "a bound: what follows depends on how far it is"),
)
WITH_TRANSFERS = (
    Stage(
        _always,
        (Turn("offload", AutoPlanners.offload, 0.4),),
        "the first plans with transfers, and a bound on all plans",
    ),
    Stage(
        lambda s: s.is_training and s.ops <= 1_500,
        (Turn("pofo", AutoPlanners.plan_fluid_chain, 0.4),),
        "on chains, the best plans at tight budgets",
    ),
)
RECOMPUTING = (
    Stage(
        lambda s: s.is_tiny,
        (Turn("shortest_path", AutoPlanners.settle, work=1_000),),
        "settles most small graphs in a fraction of a second",
    ),
    Stage(
        lambda s: s.is_tangled and s.gap > NEAR,
        (Turn("", AutoPlanners.compile_annealing),),
        "it takes some twenty seconds, once: other planners come first until then",
    ),
    Stage(
        _always,
        (Turn("min_cut", AutoPlanners.search_min_cuts, lambda s: 1.0 if s.is_training else _QUICK),),
        "near the best on training graphs; on others the order matters, so others should have their time",
    ),
    Stage(
        lambda s: s.is_usual_training,
        (Turn("retention", AutoPlanners.prove_at_cuts, SHARE_OF_TURN, WORK_OF_TURN),),
        "a better bound, and often the best plan",
    ),
    Stage(
        lambda s: s.is_small and s.is_training and s.gap > NEAR,
        (Turn("rotor", AutoPlanners.plan_chain, _QUICK),),
        "the best plan of many chains, in some hundredths of a second",
    ),
    Stage(
        lambda s: s.is_small and s.is_training and s.ops <= 40,
        (Turn("shortest_path", AutoPlanners.settle, _QUICK, work=20_000),),
        "settles most of them sooner than those below; of more ops, the others are sooner",
    ),
    Stage(
        lambda s: s.is_usual_training and s.gap > NEAR,
        (
            Turn("min_cut", _restart_few, _QUICK),
            Turn("rotor", AutoPlanners.plan_chain, _QUICK),
        ),
        "plans of other kinds, from which others go on; on chains, plans in budgets where others have none",
    ),
    Stage(
        lambda s: s.anneals_first,
        (Turn("annealing", AutoPlanners.anneal, lambda s: _MOST if s.ops <= 5_000 else 1.0),),
        "far from the bound: better orders, soon",
    ),
    Stage(
        lambda s: s.ops <= (5_000 if s.gap > NEAR else 1_000),
        (Turn("retention", AutoPlanners.retain, lambda s: _MOST if s.retention_shares else 1.0),),
        "goes on from the best plan; near the bound little is left for its time in large graphs",
    ),
    Stage(
        lambda s: s.is_tangled and not s.has_annealed and s.gap > NEAR,
        (Turn("annealing", AutoPlanners.anneal),),
        "what retention leaves open",
    ),
    Stage(
        lambda s: s.found_by not in (None, "min_cut"),
        (Turn("min_cut", AutoPlanners.improve_by_min_cuts),),
        "the neighbourhoods of the best plan, in the order that it has now",
    ),
    Stage(
        lambda s: s.is_usual_training and s.gap > NEAR,
        (
            Turn("min_cut", _restart_many, _QUICK),
            Turn("retention", AutoPlanners.prove_at_cuts, work=20.0),
        ),
        "the gap is still wide: one long turn of the bound proves more than two short ones",
    ),
    Stage(
        lambda s: s.is_tiny,
        (Turn("shortest_path", AutoPlanners.settle, work=20_000),),
        "settles the tiny graphs that are left",
    ),
    Stage(
        lambda s: s.is_small and s.is_training,
        (Turn("shortest_path", AutoPlanners.settle, work=40_000),),
        "settles most of the small ones that are left",
    ),
    Stage(
        lambda s: s.is_small and s.is_tangled,
        (Turn("shortest_path", AutoPlanners.settle, work=20_000),),
        "settles half of them, often with a better plan; a state takes longer where the order is free",
    ),
)
LAST_WITH_TRANSFERS = (Stage(_always, (Turn("offload", AutoPlanners.offload),), "goes on from the best plan of all"),)


class Portfolio:
    """One run of `auto` down the table of stages.

    It ends when no plan can be better, or the time is up.
    """

    def __init__(
        self,
        problem: Problem,
        observe: Observer,
        limits: Limits,
        gap: float,
        patience: float,
        work: float | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            problem: the problem to plan.
            observe: receives better plans and bounds, and the name of each planner asked.
            limits: limits of all planners together.
            gap: distance to the bound at which the search ends, as a share of the plain run's time.
            patience: patience of retention.
            work: limit on the counted work of each turn of min_cut and of retention; None for no limit but time.
        """
        self._members = AutoPlanners(problem, observe, limits, gap, patience, inf if work is None else work)
        self._standing = Standing(self._members)

    def run(self) -> PlanResult:
        """Ask the planners one after the other."""
        members, standing = self._members, self._standing
        for turn in self._turns():
            if standing.asked and members.is_over:
                break
            if turn.planner and standing.asked[-1:] != [turn.planner]:
                standing.asked.append(turn.planner)
                members.announce(turn.planner)
            share = turn.share if isinstance(turn.share, float) else turn.share(standing)
            try:
                turn.ask(members, members.limits.part(share, turn.work))
            except PlannerRefuses as refusal:
                members.refuse(refusal.message)
            except (MemoryError, OSError, ImportError, RuntimeError) as error:
                refused = refusal_of(error)
                if refused is None or members.incumbent.best is None:
                    raise
                _LOG.warning("%s: %s; the best plan until then is kept", turn.planner or "auto", refused.message)
                return members.incumbent.result(note=members.note)
        members.confirm()
        return members.incumbent.result(note=members.note)

    def _turns(self) -> Iterator[Turn]:
        """Yield the next request.

        Each stage is evaluated when its turn comes.
        """
        for stage in self._stages():
            if stage.when(self._standing):
                yield from stage.turns

    def _stages(self) -> Iterator[Stage]:
        yield from FIRST
        if self._members.problem.offload:
            yield from WITH_TRANSFERS
        if self._standing.can_recompute_better:
            yield from RECOMPUTING
        if self._members.problem.offload:
            yield from LAST_WITH_TRANSFERS
