"""Overhead against budget: plans of several planners at many budgets.

`solve` replays all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic

from remat_cli.core.problem import Observer, Status
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import Solution, baseline_of, bytes_of_budget, with_plan_of
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planning import Request, at_budget, plan
from remat_cli.prepare import Prepared
from remat_cli.studies.progress import Prefixed
from remat_cli.units import BudgetSpec, format_bytes


@dataclass(frozen=True)
class Point:
    """The result of a planner at one budget.

    Attributes:
        solution: the verified result, with a plan or without.
        seconds: time of the planner; 0 if it did not run.
        asked_for_smallest: the budget is the smallest found, not a given one.
        found_at: the budget in bytes of a faster plan from another budget, if this point has such a plan; otherwise
            None.
    """

    solution: Solution
    seconds: float = 0.0
    asked_for_smallest: bool = False
    found_at: int | None = None

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        return self.solution.problem.budget.device_bytes

    @property
    def trace(self) -> Trace | None:
        """The replayed plan; None without a plan."""
        return self.solution.trace


@dataclass(frozen=True)
class Curve:
    """The points of one planner.

    Attributes:
        label: label of the planner.
        points: points by ascending budget.
        refusal: why the planner cannot take the graph; None if it can.
    """

    label: str
    points: tuple[Point, ...]
    refusal: PlannerRefuses | UsageError | None = None

    def at(self, budget_bytes: int) -> Point | None:
        """Return the point at a given budget."""
        points = (point for point in self.points if point.budget_bytes == budget_bytes)
        return next((point for point in points if not point.asked_for_smallest), None)

    @cached_property
    def smallest(self) -> Point | None:
        """The point of the smallest budget with a plan."""
        return next((point for point in self.points if point.trace is not None), None)

    @cached_property
    def knee(self) -> Point | None:
        """The point from which less memory costs more time.

        It lies farthest below the line between both ends of the front.

        That is the knee of Satopää et al., Finding a "kneedle" in a haystack, 2011; it does not depend on the units of
        the axes. None if the front has fewer than three points or none is below the line.
        """
        front = self._front
        if len(front) < 3:
            return None
        (_, first), (_, last) = front[0], front[-1]
        width, height = last.peak_bytes - first.peak_bytes, first.time - last.time
        below = [
            width * (first.time - trace.time) - (trace.peak_bytes - first.peak_bytes) * height for _, trace in front
        ]
        farthest = max(below)
        return front[below.index(farthest)][0] if farthest > 0 else None

    @cached_property
    def _front(self) -> list[tuple[Point, Trace]]:
        """The Pareto front in peak and time, by ascending peak, each plan once."""
        planned = [(point, point.trace) for point in self.points if point.trace is not None]
        front: list[tuple[Point, Trace]] = []
        for point, trace in sorted(planned, key=lambda each: (each[1].peak_bytes, each[1].time)):
            if not front or trace.time < front[-1][1].time:
                front.append((point, trace))
        return front


@dataclass(frozen=True)
class Sweep:
    """The curves of several planners on one graph.

    Attributes:
        baseline: the plain run.
        curves: curves in the order of the planners.
        interrupted: the user stopped the sweep; it has the points finished by then.
    """

    baseline: Trace
    curves: tuple[Curve, ...]
    interrupted: bool = False

    @property
    def budgets(self) -> tuple[int, ...]:
        """The given budgets in bytes that have a point, ascending."""
        points = (point for curve in self.curves for point in curve.points if not point.asked_for_smallest)
        return tuple(sorted({point.budget_bytes for point in points}))

    @property
    def points(self) -> tuple[Point, ...]:
        """All points of all curves."""
        return tuple(point for curve in self.curves for point in curve.points)

    @property
    def status(self) -> Status:
        """The status of the whole sweep.

        Feasible if any budget has a plan. Infeasible if every refusal is proven. Otherwise unknown.
        """
        statuses = {point.solution.status for point in self.points}
        if statuses & {Status.OPTIMAL, Status.FEASIBLE}:
            return Status.FEASIBLE
        return Status.INFEASIBLE if statuses == {Status.INFEASIBLE} else Status.UNKNOWN


def sweep(
    prepared: Prepared,
    requests: Mapping[str, Request],
    budgets: Sequence[BudgetSpec],
    observe: Observer | None = None,
    *,
    share_plans: bool = True,
) -> Sweep:
    """Run each planner at each budget.

    A planner that refuses the graph does not stop the others.

    Planners keep results that serve every budget of a graph, such as rotor's table, between calls. Below a budget that
    is proven infeasible the planner does not run.

    Args:
        prepared: the graph.
        requests: requests of the curves, by label; their budgets are ignored.
        budgets: budgets in any order.
        observe: is told planner, budget and progress.
        share_plans: give each budget the planner's fastest plan of all budgets that fits, so that no curve gets worse
            with more memory. Otherwise each point is the planner's result at that budget.

    Raises:
        FalseClaim: the simulator contradicts a planner's claim.
        UsageError: plans may use the host, and its link is not known.
        KeyboardInterrupt: interrupted before anything was finished.
    """
    sizes = {bytes_of_budget(budget, prepared.graph) for budget in budgets if not budget.smallest}
    given = [BudgetSpec(device_bytes=size) for size in sorted(sizes, reverse=True)]
    asks = [*given, *([BudgetSpec(smallest=True)] if any(budget.smallest for budget in budgets) else [])]
    progress = _Progress(observe or Observer(), len(requests) * len(asks))
    curves: list[Curve] = []
    interrupted = False
    for label, request in requests.items():
        run = _CurveRun(prepared, request, label, progress)
        interrupted = run.ask_all(asks)
        curves.append(run.curve(share_plans=share_plans))
        if interrupted:
            break
    if interrupted and not any(curve.points for curve in curves):
        raise KeyboardInterrupt
    return Sweep(baseline_of(prepared.graph), tuple(curves), interrupted)


class _CurveRun:
    """One planner at all budgets, from the largest down."""

    def __init__(self, prepared: Prepared, request: Request, label: str, progress: _Progress) -> None:
        self._prepared = prepared
        self._request = request
        self._label = label
        self._progress = progress
        self._points: list[Point] = []
        self._refusal: PlannerRefuses | UsageError | None = None

    def ask_all(self, budgets: Sequence[BudgetSpec]) -> bool:
        """Run the planner at all budgets in this order.

        Return whether the user interrupted the run.
        """
        for number, budget in enumerate(budgets):
            self._progress.next(self._label, budget)
            try:
                point = self._ask(budget)
            except (PlannerRefuses, UsageError) as refusal:
                self._refusal = refusal
                self._progress.skip(len(budgets) - number - 1)
                return False
            except KeyboardInterrupt:
                return True
            self._points.append(point)
            if point.solution.interrupted:
                return True
        return False

    def _ask(self, budget: BudgetSpec) -> Point:
        proven = self._points[-1].solution if self._points else None
        if budget.device_bytes is not None and proven is not None and proven.status is Status.INFEASIBLE:
            return Point(at_budget(proven, budget.device_bytes))
        start = monotonic()
        solution = plan(self._prepared, replace(self._request, budget=budget), self._progress).solution
        return Point(solution, monotonic() - start, asked_for_smallest=budget.smallest)

    def curve(self, *, share_plans: bool) -> Curve:
        points = [_with_fastest(point, self._points) for point in self._points] if share_plans else self._points
        ascending = sorted(points, key=lambda point: (point.budget_bytes, not point.asked_for_smallest))
        return Curve(self._label, tuple(ascending), self._refusal)


def _with_fastest(point: Point, points: Sequence[Point]) -> Point:
    """Replace a point's plan by the fastest plan that fits its budget."""
    fitting = [
        (other.trace.time, needed, other.budget_bytes, other.solution)
        for other in points
        if other.trace is not None
        and (needed := other.solution.needed_bytes) is not None
        and needed <= point.budget_bytes
    ]
    if not fitting:
        return point
    time, _, found_at, plan = min(fitting, key=lambda item: item[:3])
    if point.trace is not None and point.trace.time <= time:
        return point
    return replace(point, solution=with_plan_of(point.solution, plan), found_at=found_at)


class _Progress(Prefixed):
    """Shows planner, budget and progress of the sweep."""

    def __init__(self, observe: Observer, count: int) -> None:
        super().__init__(observe)
        self._count = count
        self._number = 0

    def next(self, label: str, budget: BudgetSpec) -> None:
        self._number += 1
        what = "the smallest budget" if budget.device_bytes is None else format_bytes(budget.device_bytes)
        self.prefix = f"{self._number}/{self._count} · {label} at {what}: "
        self.phase("starting")

    def skip(self, count: int) -> None:
        self._number += count
