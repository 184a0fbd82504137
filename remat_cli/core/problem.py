"""Problems as planners are given them, and the claims that they may make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.schedule import Schedule
from remat_cli.errors import ExitCode, UsageError
from remat_cli.settings import Setting


@dataclass(frozen=True, slots=True)
class Budget:
    """What a plan may use.

    Attributes:
        device_bytes: total device memory, resident bytes included.
    """

    device_bytes: int


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph and a budget.

    Attributes:
        graph: what is planned.
        budget: what a plan may use.
        link: to the host; None: it is not known, and nothing is moved.
        offload: plans of any planner may use the link; without, only planners that exist for it do.

    Raises:
        UsageError: plans may use a link that is not known.
    """

    graph: Graph
    budget: Budget
    link: Link | None = None
    offload: bool = False

    def __post_init__(self) -> None:
        if self.offload and self.link is None:
            raise UsageError(
                f"plans of {self.graph.name!r} may move tensors to the host, but no link to it is known",
                hint=("give ", Setting("device"), " or ", Setting("link_bandwidth")),
            )


class Status(StrEnum):
    """How a run of a planner ended."""

    OPTIMAL = "optimal"  # a plan, and the bound is met within its scope
    FEASIBLE = "feasible"  # a plan
    INFEASIBLE = "infeasible"  # a proof that no plan in scope fits
    UNKNOWN = "unknown"  # stopped before a plan was found; proves nothing

    @property
    def exit_code(self) -> ExitCode:
        """How a process ends that was asked for a plan."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Status.OPTIMAL: ExitCode.DONE,
    Status.FEASIBLE: ExitCode.DONE,
    Status.INFEASIBLE: ExitCode.NO_FIT,
    Status.UNKNOWN: ExitCode.NO_PLAN,
}


class Scope(StrEnum):
    """The plans over which a proof holds, widest scope first; each proof covers the narrower scopes, except PLANNER.

    The plans that a planner searches may lie in any scope.
    """

    ANY_PLAN = "any-plan"  # every valid schedule; in files "any-order", with a remark
    ANY_ORDER = "any-order"  # every one that moves nothing to the host
    FIXED_ORDER = "fixed-order"  # of these, the ones whose ops run for the first time in the input order
    PLANNER = "planner"  # only what this planner searches

    @property
    def which_plans(self) -> str:
        """The plans in words, to follow "no plan"; transfers are left to the caller."""
        return _WHICH_PLANS[self]

    @property
    def written(self) -> str:
        """Its name in files and reports, which state separately whether transfers are covered."""
        return Scope.ANY_ORDER.value if self is Scope.ANY_PLAN else self.value

    @property
    def leaves_out_transfers(self) -> bool:
        """Whether a proof excludes plans with transfers, whichever planner made it."""
        return self in (Scope.ANY_ORDER, Scope.FIXED_ORDER)


_WHICH_PLANS = {
    Scope.ANY_PLAN: "in any order",
    Scope.ANY_ORDER: "in any order",
    Scope.FIXED_ORDER: "in input order",
    Scope.PLANNER: "of this planner",
}


class Basis(StrEnum):
    """What a proof rests on."""

    COUNTED = "counted"  # derived by remat, or from a certificate that remat checked, in whole numbers
    TWO_SOLVERS = "two-solvers"  # two solvers that share no code agree
    ONE_SOLVER = "one-solver"  # one solver says so


@dataclass(frozen=True, slots=True)
class Bound:
    """No plan in a scope takes less time.

    Attributes:
        time: in the graph's time unit.
        scope: the plans over which it holds.
        basis: what it rests on.
    """

    time: int
    scope: Scope
    basis: Basis = Basis.COUNTED


@dataclass(frozen=True, slots=True)
class ModelFigure:
    """A figure of a method's own model of its plan: shown beside the judge's measurement, never relied on.

    Attributes:
        name: what it is, for people: "stored + largest segment".
        value: in bytes, or in the graph's time unit.
        unit: which of the two.
    """

    name: str
    value: int
    unit: Literal["bytes", "time"]


class Plan:
    """A schedule, with what it costs by its planner's own count. The judge counts again.

    Attributes:
        time: in the graph's time unit.
        peak_bytes: resident bytes and graph inputs included.
        figures: what the method's own model says of it.
        found_by: of a portfolio: the planner whose plan it is.
    """

    def __init__(
        self,
        time: int,
        peak_bytes: int,
        make_schedule: Callable[[], Schedule],
        figures: tuple[ModelFigure, ...] = (),
        found_by: str | None = None,
    ) -> None:
        """Note the costs; the schedule, slow to write for large graphs, is made on demand."""
        self.time, self.peak_bytes = time, peak_bytes
        self.figures, self.found_by = figures, found_by
        self._make_schedule = make_schedule

    @cached_property
    def schedule(self) -> Schedule:
        """The steps."""
        return self._make_schedule()


@dataclass(frozen=True)
class PlanResult:
    """A planner's claim. Its cost and peak are not in it: the simulator measures those.

    Attributes:
        status: how the run ended.
        schedule: the plan; there if and only if the status is optimal or feasible.
        bounds: lower bounds on the time of plans. The first is the one that an optimal plan meets, or the strongest for
            plans like this planner's.
        scope: the plans over which `INFEASIBLE` holds.
        basis: what `INFEASIBLE` rests on.
        closest: without a plan: the schedule of the smallest peak found, so that a report can name a budget that fits.
        reason: without a plan: why, for people.
        stats: counted work (never seconds), so that tests can hold it.
        model_figures: what the method's own model predicts, where that differs in kind from what the judge measures.
        found_by: of a portfolio: the planner whose plan it is.
    """

    status: Status
    schedule: Schedule | None = None
    bounds: tuple[Bound, ...] = ()
    scope: Scope = Scope.PLANNER
    basis: Basis = Basis.COUNTED
    closest: Schedule | None = None
    reason: str = ""
    stats: Mapping[str, int] = field(default_factory=dict)
    model_figures: tuple[ModelFigure, ...] = ()
    found_by: str | None = None

    def __post_init__(self) -> None:
        has_plan = self.status in (Status.OPTIMAL, Status.FEASIBLE)
        if has_plan != (self.schedule is not None):
            raise ValueError(f"a result that is {self.status} {'needs' if has_plan else 'cannot have'} a schedule")
        if self.status is Status.OPTIMAL and not self.bounds:
            raise ValueError("an optimal result needs the bound that it meets")

    @property
    def bound(self) -> Bound | None:
        """The foremost bound; None where nothing was proven."""
        return self.bounds[0] if self.bounds else None

    @property
    def time_bound(self) -> int | None:
        """Time of the foremost bound; None where nothing was proven."""
        return self.bounds[0].time if self.bounds else None


class Observer:
    """Receives what a planner finds while it works; ignores it unless a subclass listens."""

    @property
    def has_enough(self) -> bool:
        """Whether a planner may end: what it has found so far is all that is wanted."""
        return False

    @property
    def takes_any_plan(self) -> bool:
        """Whether any plan that fits will do, whatever time it takes: bounds on that time are of no use then."""
        return False

    def begins(self) -> None:
        """A planner is asked; what it told of before was of another problem."""

    def phase(self, text: str) -> None:
        """The planner starts something that may take a while, such as "searching the DP's budget"."""

    def found(self, plan: Plan) -> None:
        """The planner has a plan that it believes to fit; an interrupted run keeps it."""

    def bound(self, bound: Bound) -> None:
        """The planner has proven a bound."""

    def asks(self, planner: str) -> None:
        """A portfolio turns to this planner; what is found from now on is found by it."""

    def judging(self) -> AbstractContextManager[None]:
        """Return what surrounds the replay of a plan, which a planner's time does not count.

        Entered by whoever verifies plans, not by planners.
        """
        return nullcontext()

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        """There is a better plan or bound: both as shares of the plain run's time beyond it.

        Told by whoever verifies plans, not by planners.

        Args:
            overhead: of the best plan so far.
            bound: no plan has less, in the scope in which that was proven.
            found_by: of a portfolio: the planner whose plan it is.
        """


class PassingObserver(Observer):
    """Passes on all that it is told; a subclass changes some of it."""

    def __init__(self, observe: Observer) -> None:
        """Pass it on to `observe`."""
        self.observe = observe

    @property
    def has_enough(self) -> bool:
        """Whether a planner may end."""
        return self.observe.has_enough

    @property
    def takes_any_plan(self) -> bool:
        """Whether any plan that fits will do."""
        return self.observe.takes_any_plan

    def begins(self) -> None:
        """Pass on that a planner is asked."""
        self.observe.begins()

    def phase(self, text: str) -> None:
        """Pass on what is started."""
        self.observe.phase(text)

    def found(self, plan: Plan) -> None:
        """Pass on the plan."""
        self.observe.found(plan)

    def bound(self, bound: Bound) -> None:
        """Pass on the bound."""
        self.observe.bound(bound)

    def asks(self, planner: str) -> None:
        """Pass on which planner a portfolio turns to."""
        self.observe.asks(planner)

    def judging(self) -> AbstractContextManager[None]:
        """Return what whoever asked surrounds it with."""
        return self.observe.judging()

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        """Pass on the best plan and bound."""
        self.observe.standing(overhead, bound, found_by)


class Planner(Protocol):
    """A frozen dataclass whose fields are its options, checked against a YAML config.

    Its class docstring gives method, source, scope and complexity; `remat planners` prints it. The planner of another
    package whose plans may move tensors to the host has a class attribute `can_offload = True`.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Return a claim for `problem`.

        Raises:
            PlannerRefuses: the planner cannot take this graph; the hint names one that can.
        """
        ...
