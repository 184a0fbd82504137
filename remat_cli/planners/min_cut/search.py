"""Large neighbourhood search over plans of graphs of any size, in rounds that several processes share.

A move drops part of a plan's reruns, makes it fit again by cuts at other prices, and leaves out what the budget has
room to do without. Each task of a round makes a few moves from the round's best plan; the best of the tasks is the next
round's.

Source: Shaw, Using Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems, CP 1998; ruin and
recreate: Schrimpf et al., Record Breaking Optimization Results, J. Comput. Phys. 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from multiprocessing import get_context
from time import monotonic

import numpy as np

from remat_cli.cores import leave_ctrl_c_to_parent
from remat_cli.graph import Graph
from remat_cli.planners.min_cut.exact_choice import Window
from remat_cli.planners.min_cut.fitting import Prices, Work, fit, without_needless
from remat_cli.planners.min_cut.moves import STARTS, move
from remat_cli.planners.min_cut.options import SearchLimits
from remat_cli.planners.min_cut.priced_cut import CutPoint
from remat_cli.planners.shared.cp_sat import SolverLimits
from remat_cli.planners.shared.sequence import GraphReads, RematSequence
from remat_cli.planners.shared.stages import Ints
from remat_cli.problem import Observer, PlanResult, Problem, Scope, Status
from remat_cli.schedule import Free, Schedule, with_frees

# Cuts after which a first plan is given up: at first, and where none was found so.
_FEW_CUTS, _MANY_CUTS = 6, 200
_TASKS = 4
_MOVES = 4
# A part that takes so many seconds is worth the time that it takes to start processes.
_WORTH_PROCESSES = 1.0
# A search ends after so many rounds in a row that find nothing better; sooner where a plan has few reruns.
_PATIENCE = 4
_RERUNS_A_ROUND = 4
_MILLION = 1_000_000
# Moments at which the bound is taken, at most; fewer where they and the ops multiply to more than this.
_MOST_MOMENTS = 8
_OPS_FOR_ALL_MOMENTS = 100_000
# Up to how many ops the choice at a moment is solved exactly, and the solver's counted work that it may take.
_MOST_FOR_EXACT = 20_000
_BOUND_WORK = 2.0


def improve(problem: Problem, schedule: Schedule, limits: SearchLimits, observe: Observer) -> Schedule:
    """Return the best plan found from a schedule, never one that is slower; first runs keep its order.

    Args:
        problem: what is planned.
        schedule: a valid schedule. One that does not fit, such as the plain run in some order, is given back if no plan
            is found; and one with transfers always, as moves know recomputation only.
        limits: where the search stops.
        observe: is told of better plans; and of the bound, where the order is the input order.
    """
    computes = schedule.computes
    if len(computes) + _frees(schedule) != len(schedule.steps) or limits.seconds <= 0:
        return schedule
    index = problem.graph.arrays.op_index
    ops = np.fromiter((index[name] for name in computes), dtype=np.int64, count=len(computes))
    search = Search(problem, limits, observe, ops)
    search.run()
    return schedule if search.best_schedule is None else search.best_schedule


def _frees(schedule: Schedule) -> int:
    return sum(isinstance(step, Free) for step in schedule.steps)


@dataclass(frozen=True, slots=True)
class Task:
    """A few moves from one plan.

    Attributes:
        ops: of the plan.
        budget_bytes: device memory.
        seed: of the random choices.
        deadline: `time.monotonic()`, which all processes share, at which it ends.
        work: runs of ops that may be laid out.
    """

    ops: Ints
    budget_bytes: int
    seed: tuple[int, ...]
    deadline: float
    work: float


def carry_out(reads: GraphReads, task: Task) -> tuple[Ints, float]:
    """Return the ops of the best plan that a task comes to, and the work that it took."""
    work = Work(task.deadline, task.work)
    rng = np.random.default_rng(task.seed)
    best = RematSequence(reads, task.ops)
    for _ in range(_MOVES):
        if work.is_over:
            break
        sequence = move(best, task.budget_bytes, rng, work)
        if sequence is not None and sequence.time <= best.time:
            best = sequence
    return best.ops, task.work - work.left


_RunAll = Callable[[Sequence[Task]], Iterable[tuple[Ints, float]]]


class Search:
    """One search: first plans, then rounds of moves."""

    def __init__(self, problem: Problem, limits: SearchLimits, observe: Observer, start: Ints | None = None) -> None:
        """Prepare a search, from a schedule if one is given: the ops that it runs, in order."""
        graph = problem.graph
        self._problem = problem
        self._limits = limits
        self._observe = observe
        self._budget = problem.budget.device_bytes
        self._reads = GraphReads.of(graph)
        self._work = Work(monotonic() + limits.seconds, inf if limits.work is None else limits.work * _MILLION)
        self._tightest: CutPoint | None = None  # the moment that the bound is of
        self._nothing_fits = False
        self._longest_part = 0.0  # seconds that a part of the search took: a first plan, or a round
        self.rounds = 0
        self.time_bound = graph.total_time
        self.closest: RematSequence | None = None
        self.best: RematSequence | None = None
        self.best_schedule: Schedule | None = None
        if start is None:
            self._plain = RematSequence(self._reads, np.arange(len(graph.ops)))
        else:
            given = RematSequence(self._reads, start)
            self._plain = RematSequence(self._reads, start[~given.is_rerun])
            self.best = given if given.peak <= self._budget else None
        self._is_input_order = np.array_equal(self._plain.ops, np.arange(len(graph.ops)))

    @property
    def plain_fits(self) -> bool:
        """Whether nothing needs to be recomputed."""
        return self._plain.peak <= self._budget

    def run(self) -> None:
        """Search until it no longer pays, the gap is closed, or the limits are reached."""
        self.prove()
        self.start()
        self.sharpen()
        self.improve()

    def prove(self) -> None:
        """Bound what plans with this order of first runs cost."""
        self._observe.phase("proving a bound")
        extra = self._least_rerun_time()
        if extra > self._problem.graph.total_time:  # to run everything again would take no longer
            self._nothing_fits = True
        else:
            self._raise_bound(extra)

    def start(self) -> None:
        """Look for first plans."""
        self._observe.phase("first plans by minimum cuts")
        for prices in STARTS:
            self._start_at(prices, _FEW_CUTS)
        if self.best is None:  # much of what is made again must be made again again: leave room for that
            for prices in reversed(STARTS):
                self._start_at(prices, _MANY_CUTS)

    def _start_at(self, prices: Prices, most_cuts: int) -> None:
        if self.is_done:
            return
        began = monotonic()
        sequence = fit(self._plain, self._budget, prices, self._work, most_cuts)
        if sequence.peak <= self._budget:
            sequence = without_needless(sequence, self._budget, self._work)
        self._longest_part = max(self._longest_part, monotonic() - began)
        self._take(sequence)

    def improve(self) -> None:
        """Make moves until they no longer pay, the gap is closed, or the limits are reached."""
        if self.best is None:
            return
        self._observe.phase("searching neighbourhoods")
        fruitless = 0
        run_all: _RunAll = partial(map, partial(carry_out, self._reads))
        is_alone = True
        with ExitStack() as stack:
            while fruitless < self._patience(self.best) and not self.is_done:
                if is_alone and self._limits.jobs > 1 and self._longest_part > _WORTH_PROCESSES:
                    run_all, is_alone = _in_processes(self._problem.graph, self._limits.jobs, stack), False
                began, before = monotonic(), self.best.time
                for ops, work in run_all(self._tasks()):
                    self._work.left -= work
                    self._take(RematSequence(self._reads, ops))
                self.rounds += 1
                fruitless = 0 if self.best.time < before else fruitless + 1
                self._longest_part = max(self._longest_part, monotonic() - began)

    @property
    def is_done(self) -> bool:
        """Whether a limit is reached, or the best plan is as near to the bound as is asked for."""
        if self._work.is_over or self._nothing_fits:
            return True
        near = self.time_bound + self._limits.gap * self._problem.graph.total_time
        return self.best is not None and self.best.time <= near

    def result(self) -> PlanResult:
        """Return the best plan, that there is none, or that none was found."""
        stats = {"rounds": self.rounds}
        if self._nothing_fits:
            reason = "what is needed at one moment of the input order does not fit, whatever is recomputed"
            return PlanResult(Status.INFEASIBLE, Scope.FIXED_ORDER, reason=reason, stats=stats)
        if self.best is None:
            return PlanResult(
                Status.UNKNOWN,
                Scope.FIXED_ORDER,
                time_bound=self.time_bound,
                closest=None if self.closest is None else self.schedule(self.closest),
                reason="no plan was found that fits, which proves nothing",
                stats=stats,
            )
        is_met = self.best.time == self.time_bound
        status = Status.OPTIMAL if is_met else Status.FEASIBLE
        return PlanResult(
            status, Scope.FIXED_ORDER, schedule=self.best_schedule, time_bound=self.time_bound, stats=stats
        )

    @staticmethod
    def _patience(sequence: RematSequence) -> int:
        return min(_PATIENCE, ceil(int(sequence.is_rerun.sum()) / _RERUNS_A_ROUND))

    def sharpen(self) -> None:
        """Raise the bound to the exact optimum of the choice at the moment where most must be run again."""
        if self.is_done or self._tightest is None or len(self._plain) > _MOST_FOR_EXACT:
            return
        cut_point = self._tightest
        none = np.zeros(cut_point.at, dtype=np.bool_)
        limits = SolverLimits(time_limit=max(0.0, self._work.deadline - monotonic()) / 4, work_limit=_BOUND_WORK)
        outcome = Window(cut_point, none, ~none).solve(self._budget - cut_point.least_own_bytes, limits)
        if outcome.status is Status.INFEASIBLE:
            self._nothing_fits = True
        elif outcome.bound is not None:
            self._raise_bound(outcome.bound)

    def _raise_bound(self, extra: int) -> None:
        bound = self._problem.graph.total_time + extra
        if bound > self.time_bound:
            self.time_bound = bound
            if self._is_input_order:
                self._observe.bound(bound, Scope.FIXED_ORDER)

    def _least_rerun_time(self) -> int:
        plain = self._plain
        parts = max(1, min(_MOST_MOMENTS, _OPS_FOR_ALL_MOMENTS // len(plain)))
        best = 0
        for part in np.array_split(np.arange(len(plain)), min(parts, len(plain))):
            at = int(part[plain.memory[part].argmax()])
            if plain.memory[at] > self._budget:
                cut_point = CutPoint(plain, at)
                extra = cut_point.bound(self._budget - cut_point.least_own_bytes)
                if extra > best:
                    best, self._tightest = extra, cut_point
        return best

    def _tasks(self) -> list[Task]:
        assert self.best is not None
        work = self._work
        return [
            Task(
                self.best.ops, self._budget, (self._limits.seed, self.rounds, number), work.deadline, work.left / _TASKS
            )
            for number in range(_TASKS)
        ]

    def _take(self, sequence: RematSequence) -> None:
        """Keep a plan if it is the best so far."""
        if sequence.peak > self._budget:
            if self.closest is None or sequence.peak < self.closest.peak:
                self.closest = sequence
        elif self.best is None or sequence.time < self.best.time:
            self.best = sequence
            self.best_schedule = self.schedule(sequence)
            self._observe.found(self.best_schedule)

    def schedule(self, sequence: RematSequence) -> Schedule:
        """Return a sequence as a schedule."""
        graph = self._problem.graph
        return with_frees(graph, [graph.ops[op].name for op in sequence.ops.tolist()])


def _in_processes(graph: Graph, jobs: int, stack: ExitStack) -> _RunAll:
    """Return what carries out tasks in processes that end with `stack`."""
    # New processes rather than forks: a solver's threads may be running. Ctrl-C is for the one that started them.
    pool = get_context("spawn").Pool(min(jobs, _TASKS), initializer=_prepare, initargs=(graph,))
    return partial(stack.enter_context(pool).imap, _carry_out)


_own_reads: GraphReads  # of a process of the pool


def _prepare(graph: Graph) -> None:
    global _own_reads
    leave_ctrl_c_to_parent()
    _own_reads = GraphReads.of(graph)


def _carry_out(task: Task) -> tuple[Ints, float]:
    return carry_out(_own_reads, task)
