"""Runs of CP-SAT: limits, Ctrl-C, repeatable searches, solutions as arrays.

All planners that build CP-SAT models use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, inf
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.problem import Basis, Status
from remat_cli.planners.shared.cp_model import (
    FEASIBLE,
    INFEASIBLE,
    MODEL_INVALID,
    OPTIMAL,
    UNKNOWN,
    CpModel,
    CpSolver,
    CpSolverSolutionCallback,
)
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.scaling import LARGEST, Rounding, cost_unit, scale_row
from remat_cli.planners.shared.solver_thread import SolverThread

Values = NDArray[np.int64]  # value of every variable of a model, by the variable's index
OnSolution = Callable[[Values], None]
OnBound = Callable[[int], None]

_STATUS = {
    OPTIMAL: Status.OPTIMAL,
    FEASIBLE: Status.FEASIBLE,
    INFEASIBLE: Status.INFEASIBLE,
    UNKNOWN: Status.UNKNOWN,
}
# Presolve's search for constraints that include others makes CP-SAT call wrong solutions optimal if numbers are large
# (google/or-tools issue 5293, OR-tools 9.15). Without it, all of 122 wrong instances came out right.
_SAFE_SETTINGS = {"presolve_inclusion_work_limit": 0}
# In the domain of a constraint: no limit.
_NO_LIMIT = 2**60
# The least seconds of the second solver.
_LEAST_SECOND_OPINION = 1.0


@dataclass(frozen=True, eq=False)
class SolverOutcome:
    """The result of a solver's search.

    Attributes:
        status: optimal, feasible, infeasible or unknown; it concerns the model alone.
        values: [variables] values of the best solution, by variable index; None without a solution.
        bound: lower bound on the objective of the model before scaling; None without a proof.
        work: deterministic time used.
        basis: the evidence for the bound, or for the infeasibility.
        unit: divisor of the objective in the scaled model.
    """

    status: Status
    values: Values | None = None
    bound: int | None = None
    work: float = 0.0
    basis: Basis = Basis.ONE_SOLVER
    unit: int = 1


def solve_model(
    model: CpModel,
    limits: Limits,
    *,
    rounding: Rounding | None,
    settings: Mapping[str, int] | None = None,
    on_solution: OnSolution | None = None,
    on_bound: OnBound | None = None,
) -> SolverOutcome:
    """Search for a solution of `model` with the least objective.

    Its proofs rest on one solver; see `prove`.

    Args:
        model: the model to minimise, or a model without an objective. It is scaled here to numbers that the solver gets
            right.
        limits: limits of the search. Work is the solver's deterministic time. A model with a hint gets one core.
        rounding: direction in which rows with too large numbers are rounded: RELAX to prove, RESTRICT to find plans.
            None: the model is small, and its numbers stay.
        settings: further parameters of the solver that suit the model, by name.
        on_solution: receives the values of each better solution, by variable index, in this thread.
        on_bound: receives each better bound on the objective, in this thread.

    Raises:
        ValueError: the solver rejects the model: a fault of the caller.
        KeyboardInterrupt: Ctrl-C; the search has ended after passing on every solution found until then.
    """
    if limits.is_over:
        return SolverOutcome(Status.UNKNOWN)
    unit = 1 if rounding is None else scale_model(model, rounding)
    search = _CpSatSearch(model, limits, settings or {}, on_solution, on_bound, unit)
    search.run()
    return search.outcome()


def prove(
    model: CpModel, limits: Limits, *, known: int = 0, settings: Mapping[str, int] | None = None
) -> SolverOutcome:
    """Bound a model's objective, and ask a second solver to confirm.

    The model has 0-1 variables, rows and clauses.

    Args:
        model: the model to minimise; rows with large numbers are relaxed, so that proofs hold.
        limits: where the search stops; the second solver may take as long again.
        known: a proven bound; the second solver checks only better bounds.
        settings: as for `solve_model`.

    Returns:
        The first solver's outcome; its `basis` says whether the second solver confirms it.
    """
    began = monotonic()
    outcome = first_opinion(model, limits, settings)
    says_more = outcome.status is Status.INFEASIBLE or (outcome.bound is not None and outcome.bound > known)
    return second_opinion(model, outcome, limits, monotonic() - began) if says_more else outcome


def first_opinion(model: CpModel, limits: Limits, settings: Mapping[str, int] | None = None) -> SolverOutcome:
    """Bound the objective as `prove` does, by the first solver alone."""
    unit = scale_model(model, Rounding.RELAX)
    outcome = solve_model(model, limits, rounding=Rounding.RELAX, settings=settings)
    return replace(outcome, bound=None if outcome.bound is None else outcome.bound * unit, unit=unit)


def second_opinion(model: CpModel, outcome: SolverOutcome, limits: Limits, seconds: float) -> SolverOutcome:
    """Ask the second solver to confirm the first one's result.

    This is a bound, or that there is no solution.

    Args:
        model: the model given to the first solver.
        outcome: result of the first solver.
        limits: as for `prove`.
        seconds: time limit of the second solver; at least one second.

    Returns:
        The outcome; its `basis` says whether the second solver confirms it.
    """
    from remat_cli.planners.shared.second_solver import agrees

    again = replace(limits, deadline=min(limits.deadline, monotonic() + max(_LEAST_SECOND_OPINION, seconds)))
    bound = None if outcome.bound is None else outcome.bound // outcome.unit
    return replace(outcome, basis=Basis.TWO_SOLVERS) if agrees(model, bound, again) else outcome


def add_choices(model: CpModel, count: int) -> None:
    """Add `count` 0-1 variables to a model in bulk.

    Models have up to 100,000 of them.
    """
    for _ in range(count):
        model.proto.variables.add().domain.extend((0, 1))


def minimise(model: CpModel, costs: Values, first: int = 0) -> None:
    """Minimise the sum of costs of the variables from `first` on."""
    costly = np.flatnonzero(costs)
    model.proto.objective.vars.extend((first + costly).tolist())
    model.proto.objective.coeffs.extend(costs[costly].tolist())


def limit_cost(model: CpModel, most: int) -> None:
    """Forbid solutions that cost more than `most`.

    The model must get an objective.
    """
    model.proto.objective.domain.extend((-_NO_LIMIT, most))


def scale_model(model: CpModel, rounding: Rounding) -> int:
    """Scale a model's rows and costs in place.

    Returns the divisor of the objective.

    Raises:
        ValueError: a row with large numbers is not an upper limit on a sum, which is a fault of the caller.
    """
    for constraint in model.proto.constraints:
        if constraint.has_linear():
            linear = constraint.linear
            coefficients = np.array(linear.coeffs, dtype=np.int64)
            if np.abs(coefficients).max(initial=0) > LARGEST:
                low, high = linear.domain
                if low > min(0, int(np.minimum(coefficients, 0).sum())) or high >= _NO_LIMIT:
                    raise ValueError(f"a row of large numbers must have an upper limit only, not {low} to {high}")
                coefficients, high = scale_row(coefficients, high, rounding)
                _replace(linear.coeffs, coefficients.tolist())
                _replace(linear.domain, (-_NO_LIMIT, high))
    objective = model.proto.objective
    costs = np.array(objective.coeffs, dtype=np.int64)
    unit = cost_unit(costs)
    if unit > 1:
        _replace(objective.coeffs, (costs // unit).tolist())
        _replace(objective.domain, [limit // unit if abs(limit) < _NO_LIMIT else limit for limit in objective.domain])
    return unit


def _replace(field: Any, values: Iterable[int]) -> None:
    values = list(values)
    field.clear()
    field.extend(values)


class _Solutions(CpSolverSolutionCallback):
    """Passes on the values of each solution."""

    def __init__(self, take: OnSolution) -> None:
        super().__init__()
        self._take = take

    def on_solution_callback(self) -> None:
        """Pass on a solution; the solver calls this in one of its threads."""
        self._take(_values(self.response_proto.solution))


class _CpSatSearch:
    """One run of the solver on a model."""

    def __init__(
        self,
        model: CpModel,
        limits: Limits,
        settings: Mapping[str, int],
        on_solution: OnSolution | None,
        on_bound: OnBound | None,
        unit: int,
    ) -> None:
        self._model = model
        self._limits = limits
        self._unit = unit  # divisor of the objective
        self._on_solution = on_solution
        self._on_bound = on_bound
        self._solver = _solver(limits, settings, has_hint=bool(model.proto.solution_hint.vars))
        self._thread: SolverThread[Values | int] = SolverThread("cp-sat", self._solve, self._solver.stop_search, limits)
        self._solver.best_bound_callback = lambda bound: self._thread.tell(_whole_bound(bound) * unit)
        self._bound: int | None = None

    def run(self) -> None:
        """Search to the end, and pass on solutions and bounds."""
        self._thread.run(self._pass_on)

    def outcome(self) -> SolverOutcome:
        """Return the result of the search.

        Raises:
            ValueError: the model is faulty.
        """
        response = self._solver.response_proto
        if response.status == MODEL_INVALID:
            raise ValueError(f"CP-SAT does not accept the model: {self._model.validate()}")
        status = _STATUS[response.status]
        if status in (Status.INFEASIBLE, Status.UNKNOWN):
            # Without a solution, the response's own bound may be missing: it is 0 if the search had not begun.
            bound = self._bound if status is Status.UNKNOWN else None
            return SolverOutcome(status, bound=bound, work=response.deterministic_time)
        values = _values(response.solution)
        if not self._model.has_objective():
            return SolverOutcome(status, values, work=response.deterministic_time)
        scaled = objective_of(self._model, values) if status is Status.OPTIMAL else None
        bound = _whole_bound(response.best_objective_bound) if scaled is None else scaled
        return SolverOutcome(status, values, bound * self._unit, response.deterministic_time)

    def _solve(self) -> None:
        self._solver.solve(self._model, _Solutions(self._thread.tell))

    def _pass_on(self, news: Values | int) -> None:
        if isinstance(news, int):
            self._bound = news
            if self._on_bound is not None:
                self._on_bound(news)
        elif self._on_solution is not None:
            self._on_solution(news)


def _solver(limits: Limits, settings: Mapping[str, int], *, has_hint: bool) -> CpSolver:
    solver = CpSolver()
    # With a hint, threads that take turns end the whole process if presolve leaves little ("Check failed:
    # heuristics.fixed_search != nullptr", OR-tools 9.15).
    threads = 1 if has_hint else limits.cores
    parameters = solver.parameters
    parameters.max_time_in_seconds = limits.seconds
    if limits.work < inf:
        parameters.max_deterministic_time = limits.work
    parameters.num_workers = threads
    parameters.random_seed = limits.seed
    # Threads that share results as they arrive would make the outcome a matter of chance.
    parameters.interleave_search = threads > 1
    # Python handles Ctrl-C: the solver's own handler would swallow it.
    parameters.catch_sigint_signal = False
    for name, value in {**_SAFE_SETTINGS, **settings}.items():
        setattr(parameters, name, value)
    return solver


def _values(solution: Iterable[int]) -> Values:
    return np.array(solution, dtype=np.int64)


def objective_of(model: CpModel, values: Values) -> int:
    """Return the exact objective of a solution.

    The solver gives it as a floating-point number.
    """
    objective = model.proto.objective
    terms = zip(objective.coeffs, objective.vars, strict=True)
    return sum((int(factor) * int(values[variable]) for factor, variable in terms), start=round(objective.offset))


def _whole_bound(bound: float) -> int:
    """Round a proven bound up, minus possible floating-point errors."""
    return ceil(bound - max(1e-6, abs(bound) * 2**-52))
