"""What a planner is given, and what it may claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, ClassVar, Literal, Protocol

from remat_cli.graph import Graph
from remat_cli.schedule import Schedule


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
        bytes_per_time: rate of the link to the host, in bytes per unit of the graph's time; None: no transfers.
    """

    graph: Graph
    budget: Budget
    bytes_per_time: Fraction | None = None


class Status(StrEnum):
    """How a run of a planner ended."""

    OPTIMAL = "optimal"  # a plan, and the bound is met within its scope
    FEASIBLE = "feasible"  # a plan
    INFEASIBLE = "infeasible"  # proven: no plan in scope fits
    UNKNOWN = "unknown"  # stopped before a plan was found; proves nothing


class Scope(StrEnum):
    """The plans over which a proof holds: of these, all that move nothing to the host.

    What the judge proves of every plan holds of the others as well: that no op is left out, and that what an op reads
    and writes is in memory while it runs.
    """

    ANY_ORDER = "any-order"  # every valid schedule
    FIXED_ORDER = "fixed-order"  # schedules whose ops run for the first time in the input order
    PLANNER = "planner"  # only what this planner searches


@dataclass(frozen=True, slots=True)
class ModelFigure:
    """What a method's own model says of its plan: shown beside what the judge measured, and trusted by nobody.

    Attributes:
        name: what it is, for people: "stored + largest segment".
        value: in bytes, or in the graph's time unit.
        unit: which of the two.
    """

    name: str
    value: int
    unit: Literal["bytes", "time"]


@dataclass(frozen=True)
class PlanResult:
    """A planner's claim. Its cost and peak are not in it: the simulator measures those.

    Attributes:
        status: how the run ended.
        scope: the plans over which `OPTIMAL`, `INFEASIBLE` and `time_bound` hold.
        schedule: the plan; there if and only if the status is optimal or feasible.
        time_bound: no plan in scope takes less time; None where nothing was proven.
        closest: without a plan: the schedule of the smallest peak that was found, so that the report can say what
            would fit.
        reason: without a plan: why, for people.
        stats: counted work (never seconds), so that tests can hold it.
        model_figures: what the method's own model predicts, where that differs in kind from what the judge measures.
        found_by: of a portfolio: the planner whose plan it is.
    """

    status: Status
    scope: Scope = Scope.PLANNER
    schedule: Schedule | None = None
    time_bound: int | None = None
    closest: Schedule | None = None
    reason: str = ""
    stats: Mapping[str, int] = field(default_factory=dict)
    model_figures: tuple[ModelFigure, ...] = ()
    found_by: str | None = None

    def __post_init__(self) -> None:
        has_plan = self.status in (Status.OPTIMAL, Status.FEASIBLE)
        if has_plan != (self.schedule is not None):
            raise ValueError(f"a result that is {self.status} {'needs' if has_plan else 'cannot have'} a schedule")
        if self.status is Status.OPTIMAL and self.time_bound is None:
            raise ValueError("an optimal result needs the bound that it meets")


class Observer:
    """Is told what a planner finds while it works; silent unless a subclass listens."""

    def phase(self, text: str) -> None:
        """The planner starts something that may take a while, such as "searching the DP's budget"."""

    def found(self, schedule: Schedule) -> None:
        """The planner has a plan that it believes to fit; it is kept should the run be interrupted."""

    def bound(self, time: int, scope: Scope) -> None:
        """The planner has proven that no plan in scope takes less than `time`."""

    def asks(self, planner: str) -> None:
        """A portfolio turns to this planner; what is found from now on is found by it."""

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        """There is a better plan or bound: both as shares of the plain run's time beyond it.

        Told by whoever verifies plans, not by planners.

        Args:
            overhead: of the best plan so far.
            bound: no plan has less, in the scope in which that was proven.
            found_by: of a portfolio: the planner whose plan it is.
        """


class Planner(Protocol):
    """A frozen dataclass whose fields are its options, checked against a YAML config.

    Its class docstring gives method, source, scope and complexity; `remat planners` prints it.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    # Options that leave no room to work; a planner so starved must say "unknown". Empty where nothing limits it.
    starved: ClassVar[Mapping[str, object]]

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Return a claim for `problem`.

        Raises:
            PlannerRefuses: the planner cannot take this graph; the hint names one that can.
        """
        ...
