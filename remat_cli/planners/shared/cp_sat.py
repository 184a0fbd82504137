"""Running CP-SAT: limits, Ctrl-C, repeatable searches, and solutions as arrays.

What the planners that build CP-SAT models share. The solver runs in a thread of its own; whoever called waits, and
is told of solutions and bounds in the thread that called. So an exception in a callback, or Ctrl-C, comes up where it
is expected, after the search was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from queue import Empty, SimpleQueue
from threading import Thread

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python.cp_model import (
    FEASIBLE,
    INFEASIBLE,
    MODEL_INVALID,
    OPTIMAL,
    UNKNOWN,
    CpModel,
    CpSolver,
    CpSolverSolutionCallback,
)

from remat_cli.cores import usable_cores
from remat_cli.problem import Status

Values = NDArray[np.int64]  # of every variable of a model, by the variable's index
OnSolution = Callable[[Values], None]
OnBound = Callable[[int], None]

_STATUS = {
    OPTIMAL: Status.OPTIMAL,
    FEASIBLE: Status.FEASIBLE,
    INFEASIBLE: Status.INFEASIBLE,
    UNKNOWN: Status.UNKNOWN,
}
# Seconds between two looks at whether Ctrl-C was pressed, where waiting itself cannot be interrupted.
_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class SolverLimits:
    """What a search may use. The same model under the same limits gives the same outcome, unless the clock cuts in.

    Attributes:
        time_limit: seconds on the clock.
        work_limit: the solver's deterministic time, which counts work done and takes no notice of how busy the machine
            is; None for no such limit.
        workers: threads; 0 for as many as there are cores that may be used. A model with a hint has one.
        seed: of the solver's random choices.
    """

    time_limit: float
    work_limit: float | None = None
    workers: int = 1
    seed: int = 0

    @property
    def threads(self) -> int:
        """Threads that are meant by `workers`."""
        return self.workers or usable_cores()

    @property
    def leave_no_room(self) -> bool:
        """Whether there is nothing to search with."""
        return self.time_limit <= 0 or (self.work_limit is not None and self.work_limit <= 0)


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a search ended.

    Attributes:
        status: optimal, feasible, infeasible or unknown; of the model, which proves only what the model stands for.
        values: [variables] of the best solution, by variable index; None without one.
        objective: its value; None without a solution or an objective.
        bound: no solution has a smaller objective; None where nothing was proven.
        work: deterministic time used.
    """

    status: Status
    values: Values | None = None
    objective: int | None = None
    bound: int | None = None
    work: float = 0.0


def solve_model(
    model: CpModel,
    limits: SolverLimits,
    *,
    settings: Mapping[str, int] | None = None,
    on_solution: OnSolution | None = None,
    on_bound: OnBound | None = None,
) -> Outcome:
    """Search for a solution of `model` of the least objective.

    Args:
        model: to be minimised, or without an objective.
        limits: where the search stops.
        settings: further parameters of the solver that suit the model, by name.
        on_solution: is told the values of each better solution, by variable index, in this thread.
        on_bound: is told of each better bound on the objective, in this thread.

    Raises:
        ValueError: the solver does not accept the model: a fault in whoever built it.
        KeyboardInterrupt: Ctrl-C; the search has ended, and every solution found until then was handed over.
    """
    if limits.leave_no_room:
        return Outcome(Status.UNKNOWN)
    search = _Search(model, limits, settings or {}, on_solution, on_bound)
    search.run()
    return search.outcome()


class _Solutions(CpSolverSolutionCallback):
    """Hands on the values of each solution."""

    def __init__(self, take: OnSolution) -> None:
        super().__init__()
        self._take = take

    def on_solution_callback(self) -> None:
        """Called by the solver, in one of its threads."""
        self._take(_values(self.response_proto.solution))


class _Search:
    """One run of the solver."""

    def __init__(
        self,
        model: CpModel,
        limits: SolverLimits,
        settings: Mapping[str, int],
        on_solution: OnSolution | None,
        on_bound: OnBound | None,
    ) -> None:
        self._model = model
        self._on_solution = on_solution
        self._on_bound = on_bound
        self._solver = _solver(limits, settings, has_hint=bool(model.proto.solution_hint.vars))
        self._solver.best_bound_callback = lambda bound: self._news.put(_whole_bound(bound))
        self._bound: int | None = None
        # Solutions and bounds in the order in which they came up; None once the solver has ended.
        self._news: SimpleQueue[Values | int | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._solve, name="cp-sat")

    def run(self) -> None:
        """Search to the end, and pass on what comes up."""
        self._thread.start()
        try:
            while (news := self._next()) is not None:
                self._pass_on(news)
        except KeyboardInterrupt:
            self._stop()
            while (news := self._next()) is not None:
                self._pass_on(news)
            raise
        finally:
            self._stop()

    def outcome(self) -> Outcome:
        """Return what the search came to.

        Raises:
            ValueError: the model is faulty.
        """
        if self._failure is not None:
            raise self._failure
        response = self._solver.response_proto
        if response.status == MODEL_INVALID:
            raise ValueError(f"CP-SAT does not accept the model: {self._model.validate()}")
        status = _STATUS[response.status]
        if status in (Status.INFEASIBLE, Status.UNKNOWN):
            # Without a solution the response's own bound may be none at all: 0 where the search had not begun.
            bound = self._bound if status is Status.UNKNOWN else None
            return Outcome(status, bound=bound, work=response.deterministic_time)
        values = _values(response.solution)
        if not self._model.has_objective():
            return Outcome(status, values, work=response.deterministic_time)
        objective = _objective(self._model, values)
        bound = objective if status is Status.OPTIMAL else _whole_bound(response.best_objective_bound)
        return Outcome(status, values, objective, bound, response.deterministic_time)

    def _solve(self) -> None:
        try:
            self._solver.solve(self._model, _Solutions(self._news.put))
        except BaseException as failure:  # it is raised again where somebody can see it
            self._failure = failure
        finally:
            self._news.put(None)

    def _next(self) -> Values | int | None:
        while True:
            try:
                return self._news.get(timeout=_LOOK)
            except Empty:
                continue

    def _pass_on(self, news: Values | int) -> None:
        if isinstance(news, int):
            self._bound = news
            if self._on_bound is not None:
                self._on_bound(news)
        elif self._on_solution is not None:
            self._on_solution(news)

    def _stop(self) -> None:
        """End the search and wait for it; nothing where it has ended."""
        while self._thread.is_alive():
            # Again and again: the solver forgets a request that comes before it has begun.
            self._solver.stop_search()
            self._thread.join(timeout=_LOOK)


def _solver(limits: SolverLimits, settings: Mapping[str, int], *, has_hint: bool) -> CpSolver:
    solver = CpSolver()
    # With a hint, threads that take turns end the whole process where presolve leaves little ("Check failed:
    # heuristics.fixed_search != nullptr", OR-tools 9.15).
    threads = 1 if has_hint else limits.threads
    parameters = solver.parameters
    parameters.max_time_in_seconds = limits.time_limit
    if limits.work_limit is not None:
        parameters.max_deterministic_time = limits.work_limit
    parameters.num_workers = threads
    parameters.random_seed = limits.seed
    # Threads that share what they learn as it comes up would make the outcome a matter of chance.
    parameters.interleave_search = threads > 1
    # Ctrl-C is Python's: the solver's own handler would swallow it.
    parameters.catch_sigint_signal = False
    for name, value in settings.items():
        setattr(parameters, name, value)
    return solver


def _values(solution: Iterable[int]) -> Values:
    return np.array(solution, dtype=np.int64)


def _objective(model: CpModel, values: Values) -> int:
    """Return the objective of a solution, exactly: the solver gives it as a floating-point number."""
    objective = model.proto.objective
    terms = zip(objective.coeffs, objective.vars, strict=True)
    return sum((int(factor) * int(values[variable]) for factor, variable in terms), start=round(objective.offset))


def _whole_bound(bound: float) -> int:
    """Return the least whole number that a proven bound leaves; never more than was proven."""
    return ceil(bound - max(1e-6, abs(bound) * 2**-52))
