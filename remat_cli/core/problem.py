"""Problems for planners, and the claims that planners return."""

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
    """The memory that a plan may use.

    Attributes:
        device_bytes: total device memory, resident bytes included.
    """

    device_bytes: int


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to plan and its budget.

    Attributes:
        graph: the graph to plan.
        budget: the memory that a plan may use.
        link: the link to the host; None if unknown, and then nothing is moved.
        offload: whether every planner may use the link; otherwise only the planners made for offloading do.

    Raises:
        UsageError: plans may offload, but the link is unknown.
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
    FEASIBLE = "feasible"  # a plan that fits
    INFEASIBLE = "infeasible"  # a proof that no plan in scope fits
    UNKNOWN = "unknown"  # stopped before it found a plan; proves nothing

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a process that was asked for a plan."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Status.OPTIMAL: ExitCode.DONE,
    Status.FEASIBLE: ExitCode.DONE,
    Status.INFEASIBLE: ExitCode.NO_FIT,
    Status.UNKNOWN: ExitCode.NO_PLAN,
}


class Scope(StrEnum):
    """The plans that a proof covers, widest scope first.

    A proof covers the narrower scopes, too, except PLANNER: a planner may search plans of any scope.
    """

    ANY_PLAN = "any-plan"  # every valid schedule; written as "any-order" in files, with a remark
    ANY_ORDER = "any-order"  # every schedule without transfers
    FIXED_ORDER = "fixed-order"  # schedules without transfers whose ops first run in the input order
    PLANNER = "planner"  # only the plans that this planner searches

    @property
    def which_plans(self) -> str:
        """The covered plans in words, to follow "no plan".

        The caller adds whether transfers are covered.
        """
        return _WHICH_PLANS[self]

    @property
    def written(self) -> str:
        """The name in files and reports.

        They state separately whether transfers are covered.
        """
        return Scope.ANY_ORDER.value if self is Scope.ANY_PLAN else self.value

    @property
    def leaves_out_transfers(self) -> bool:
        """Whether a proof excludes plans with transfers, for every planner."""
        return self in (Scope.ANY_ORDER, Scope.FIXED_ORDER)


_WHICH_PLANS = {
    Scope.ANY_PLAN: "in any order",
    Scope.ANY_ORDER: "in any order",
    Scope.FIXED_ORDER: "in input order",
    Scope.PLANNER: "of this planner",
}


class Basis(StrEnum):
    """The evidence behind a proof."""

    COUNTED = "counted"  # derived in whole numbers by remat, or from a certificate that remat checked
    TWO_SOLVERS = "two-solvers"  # two solvers that share no code agree
    ONE_SOLVER = "one-solver"  # the word of one solver


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the time of all plans in a scope.

    Attributes:
        time: in the graph's time unit.
        scope: the plans that it covers.
        basis: the evidence for it.
    """

    time: int
    scope: Scope
    basis: Basis = Basis.COUNTED


@dataclass(frozen=True, slots=True)
class ModelFigure:
    """A figure from a planner's own model of its plan.

    Reports show it beside the judge's measurement; nothing relies on it.

    Attributes:
        name: for people, such as "stored + largest segment".
        value: in bytes, or in the graph's time unit.
        unit: which of the two.
    """

    name: str
    value: int
    unit: Literal["bytes", "time"]


class Plan:
    """A schedule, with its costs by the planner's own count.

    The judge counts again.

    Attributes:
        time: in the graph's time unit.
        peak_bytes: resident bytes and graph inputs included.
        figures: figures from the planner's own model.
        found_by: in a portfolio, the planner that found the plan.
    """

    def __init__(
        self,
        time: int,
        peak_bytes: int,
        make_schedule: Callable[[], Schedule],
        figures: tuple[ModelFigure, ...] = (),
        found_by: str | None = None,
    ) -> None:
        """Store the costs; build the schedule on demand.

        Building it takes long for large graphs.
        """
        self.time, self.peak_bytes = time, peak_bytes
        self.figures, self.found_by = figures, found_by
        self._make_schedule = make_schedule

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule, built at the first access."""
        return self._make_schedule()


@dataclass(frozen=True)
class PlanResult:
    """A planner's claim.

    It has no cost and no peak: the simulator measures those.

    Attributes:
        status: how the run ended.
        schedule: the plan; present if and only if the status is optimal or feasible.
        bounds: lower bounds on the time of plans. The first is the bound that an optimal plan meets, or the strongest
            one for plans like this planner's.
        scope: the plans that `INFEASIBLE` covers.
        basis: the evidence for `INFEASIBLE`.
        closest: without a plan: the schedule of the smallest peak found, so that a report can name a budget that fits.
        reason: without a plan: why, for people.
        stats: counts of work, never seconds, so that tests can compare them.
        model_figures: predictions of the planner's own model that differ in kind from the judge's measurements.
        found_by: in a portfolio, the planner that found the plan.
        note: for people, which part of the search was left out, or slow.
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
    note: str = ""

    def __post_init__(self) -> None:
        has_plan = self.status in (Status.OPTIMAL, Status.FEASIBLE)
        if has_plan != (self.schedule is not None):
            raise ValueError(f"a result that is {self.status} {'needs' if has_plan else 'cannot have'} a schedule")
        if self.status is Status.OPTIMAL and not self.bounds:
            raise ValueError("an optimal result needs the bound that it meets")

    @property
    def bound(self) -> Bound | None:
        """The first bound; None without a proof."""
        return self.bounds[0] if self.bounds else None

    @property
    def time_bound(self) -> int | None:
        """Time of the first bound; None without a proof."""
        return self.bounds[0].time if self.bounds else None


class Observer:
    """Receives plans, bounds and phases while a planner works.

    The methods do nothing; a subclass overrides those that it needs.
    """

    @property
    def has_enough(self) -> bool:
        """Whether the planner may stop: the found plans are enough."""
        return False

    @property
    def takes_any_plan(self) -> bool:
        """Whether any plan that fits will do, at any time.

        Bounds on the time are of no use then.
        """
        return False

    def begins(self) -> None:
        """A planner starts on a problem; earlier plans and bounds are void."""

    def phase(self, text: str) -> None:
        """The planner starts a long phase, such as "searching the DP's budget"."""

    def found(self, plan: Plan) -> None:
        """The planner has found a plan that it expects to fit.

        An interrupted run keeps this plan.
        """

    def bound(self, bound: Bound) -> None:
        """The planner has proven a bound."""

    def asks(self, planner: str) -> None:
        """A portfolio starts this planner, which finds the following plans."""

    def judging(self) -> AbstractContextManager[None]:
        """Return a context around the replay of a plan.

        A planner's time does not count the replay. Only the verifier of plans enters the context, never a planner.
        """
        return nullcontext()

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        """The best plan or the best bound has improved.

        Both are given as extra time over the plain run, as a share of its time. Only the verifier of plans calls this,
        never a planner.

        Args:
            overhead: overhead of the best plan so far.
            bound: lower bound on the overhead of plans in the bound's scope.
            found_by: in a portfolio, the planner that found the plan.
        """


class PassingObserver(Observer):
    """Forwards every call to another observer; a subclass changes some."""

    def __init__(self, observe: Observer) -> None:
        """Forward calls to `observe`."""
        self.observe = observe

    @property
    def has_enough(self) -> bool:
        """Whether the planner may stop."""
        return self.observe.has_enough

    @property
    def takes_any_plan(self) -> bool:
        """Whether any plan that fits will do, at any time."""
        return self.observe.takes_any_plan

    def begins(self) -> None:
        """Forward the start of a planner."""
        self.observe.begins()

    def phase(self, text: str) -> None:
        """Forward the phase."""
        self.observe.phase(text)

    def found(self, plan: Plan) -> None:
        """Forward the plan."""
        self.observe.found(plan)

    def bound(self, bound: Bound) -> None:
        """Forward the bound."""
        self.observe.bound(bound)

    def asks(self, planner: str) -> None:
        """Forward the name of the portfolio's next planner."""
        self.observe.asks(planner)

    def judging(self) -> AbstractContextManager[None]:
        """Return the other observer's context around a replay."""
        return self.observe.judging()

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        """Forward the best plan and bound."""
        self.observe.standing(overhead, bound, found_by)


class Planner(Protocol):
    """A frozen dataclass whose fields are the planner's options.

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
