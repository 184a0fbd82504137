"""Large neighbourhood search over plans of graphs of any size.

A move drops part of a plan's reruns, fits the plan again by cuts at other prices, and drops reruns that the budget can
do without. Processes share the tasks of a round: each task makes a few moves from the round's best plan, and the best
result starts the next round.

Source: Shaw, Using Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems, CP 1998; ruin and
recreate: Schrimpf et al., Record Breaking Optimization Results, J. Comput. Phys. 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from time import monotonic

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Basis, Scope, Status
from remat_cli.machine.cores import process_pool, run_in, serve_parent
from remat_cli.planners.min_cut.fitting import STARTS, BytePrices, drawn_prices, fit, move, refit, without_needless
from remat_cli.planners.min_cut.priced_cut import CutPoint
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import GraphReads, Ints
from remat_cli.planners.shared.sequence import RematSequence

# The number of cuts after which a first plan is given up: at first, and if there is no plan yet.
_FEW_CUTS, _MANY_CUTS = 6, 200
# The number of first plans of a restarted search. On ResNet-50 at 60 % ten such searches, of 3 s each, came to 16.8 to
# 19.9 %; from the one best first plan, to 17.2 to 19.7 %.
_DRAWN_STARTS = 6
# Tasks of a round, and moves of a task. They are the same for any number of processes, and so is the plan.
_TASKS = 4
_MOVES = 4
# The seconds of a part of the search from which on more processes pay.
_WORTH_PROCESSES = 1.0
# A search ends after this many rounds in a row without a gain; sooner if the plan has few reruns.
_PATIENCE = 4
_RERUNS_A_ROUND = 4
# The largest number of moments for the bound; fewer if moments times ops would exceed the second number.
_MOST_MOMENTS = 8
_OPS_FOR_ALL_MOMENTS = 100_000
# The largest number of ops for an exact choice at a moment, and the solver's counted work for it.
_MOST_FOR_EXACT = 20_000
_BOUND_WORK = 2.0
# The share of the remaining time for the exact proof.
_SHARE_OF_PROOF = 0.25


@dataclass(frozen=True, slots=True)
class Task:
    """A few moves from one plan.

    Attributes:
        ops: ops of the plan's runs.
        budget_bytes: device memory.
        seed: seed of the random choices.
        deadline: end of the task by `time.monotonic()`, which all processes share.
        work: limit on the runs of ops laid out.
    """

    ops: Ints
    budget_bytes: int
    seed: tuple[int, ...]
    deadline: float
    work: float


def carry_out(reads: GraphReads, task: Task) -> tuple[Ints, float]:
    """Carry out a task; return the best plan's ops and the work."""
    limits = Limits(task.deadline, task.work)
    rng = np.random.default_rng(task.seed)
    best = RematSequence(reads, task.ops)
    for _ in range(_MOVES):
        if limits.is_over:
            break
        sequence = move(best, task.budget_bytes, rng, limits)
        if sequence is not None and sequence.time <= best.time:
            best = sequence
    return best.ops, task.work - limits.work


_RunAll = Callable[[Sequence[Task]], Iterable[tuple[Ints, float]]]


class MinCutSearch:
    """A search of first plans, then rounds of moves, in one order.

    The order is that of first runs.

    Ops run for the first time in one order throughout.

    Attributes:
        incumbent: receives every plan, and bounds if the order is the input order.
        limits: where the search stops; may be replaced between parts of the search.
        current: the plan that moves start from: the best in this order since the last restart; None before one fits.
            The best of all is the incumbent's.
        rounds: number of rounds so far.
    """

    def __init__(
        self, incumbent: Incumbent, limits: Limits, gap: float = 0.0, start: RematSequence | None = None
    ) -> None:
        """Prepare a search.

        Args:
            incumbent: keeps the plans found.
            limits: limits of the search. Work is counted in runs laid out. Under a work limit alone, the plan does not
                depend on the number of cores.
            gap: distance to the bound at which the search ends, as a share of the plain run's time.
            start: a first plan, whose order of first runs is kept; a sequence that does not fit, such as the plain run
                in some order, gives only the order.
        """
        graph = incumbent.problem.graph
        self.incumbent = incumbent
        self.rounds = 0
        self.limits = limits
        self._gap = gap
        self._budget = incumbent.problem.budget.device_bytes
        start = start or RematSequence.plain(graph)
        self._plain = RematSequence(start.reads, start.first_runs)  # every op once, in this order
        self._is_input_order = start.keeps_input_order
        self.current = start if start.peak <= self._budget else None
        self._bound = graph.total_time  # bound on plans in this order
        self._has_begun = False
        self._nothing_fits = False
        self._restarts = 0
        self._tightest: CutPoint | None = None  # the moment of the bound
        self._longest_part = 0.0  # longest time of a part of the search, a first plan or a round, in seconds

    def run(self) -> None:
        """Search until gain, gap or limits end the search."""
        if not self._has_begun:
            self.begin()
        self._prove()
        self.start()
        self._sharpen()
        self._improve()

    def begin(self) -> None:
        """Look for a quick first plan."""
        self._has_begun = True
        self.incumbent.observe.phase("first plans by minimum cuts")
        self._start_at(STARTS[0], _FEW_CUTS)

    def start(self) -> None:
        """Look for first plans at all prices."""
        self.incumbent.observe.phase("first plans by minimum cuts")
        for prices in STARTS[1:] if self._has_begun else STARTS:
            self._start_at(prices, _FEW_CUTS)
        if self.current is None:  # many reruns need reruns themselves: prices with margins leave memory for them
            for prices in reversed(STARTS):
                self._start_at(prices, _MANY_CUTS)

    def restart(self) -> None:
        """Search again, with other first plans and random choices."""
        before, self.current = self.current, None
        self._restarts += 1
        rng = np.random.default_rng((self.limits.seed, self._restarts))
        self.incumbent.observe.phase("first plans by minimum cuts")
        for _ in range(_DRAWN_STARTS):
            if (start := refit(self._plain, self._budget, drawn_prices(rng), self.limits)) is not None:
                self._take(start)
        self._improve()
        if before is not None and (self.current is None or before.time < self.current.time):
            self.current = before

    def _start_at(self, prices: BytePrices, most_cuts: int) -> None:
        if self._is_done:
            return
        began = monotonic()
        sequence = fit(self._plain, self._budget, prices, self.limits, most_cuts)
        found_at = monotonic()
        self._take(sequence)
        if sequence.peak <= self._budget:
            # Leave time for judging the result within the limits.
            limits = replace(self.limits, deadline=self.limits.deadline - (monotonic() - found_at))
            self._take(without_needless(sequence, self._budget, limits))
            self.limits.work = limits.work
        self._longest_part = max(self._longest_part, monotonic() - began)

    def _improve(self) -> None:
        """Make moves until gain, gap or limits end the search."""
        if self.current is None:
            return
        self.incumbent.observe.phase("searching neighbourhoods")
        fruitless = 0
        run_all: _RunAll = partial(map, partial(carry_out, self._plain.reads))
        is_alone = True
        with ExitStack() as stack:
            while fruitless < _patience(self.current) and not self._is_done:
                if is_alone and self.limits.cores > 1 and self._longest_part > _WORTH_PROCESSES:
                    run_all, is_alone = _in_processes(self._plain.reads, self.limits.cores, stack), False
                began, before = monotonic(), self.current.time
                for ops, work in run_all(self._tasks(self.current)):
                    self.limits.spend(work)
                    self._take(RematSequence(self._plain.reads, ops))
                self.rounds += 1
                fruitless = 0 if self.current.time < before else fruitless + 1
                self._longest_part = max(self._longest_part, monotonic() - began)

    def _tasks(self, best: RematSequence) -> list[Task]:
        limits = self.limits
        share = limits.work / _TASKS
        seeds = ((limits.seed + self._restarts, self.rounds, number) for number in range(_TASKS))
        return [Task(best.ops, self._budget, seed, limits.deadline, share) for seed in seeds]

    @property
    def _is_done(self) -> bool:
        """Whether a limit is reached, or the plan is near enough to the bound."""
        if self.limits.is_over or self._nothing_fits:
            return True
        near = self._bound + self._gap * self._plain.time
        return self.current is not None and self.current.time <= near

    def _take(self, sequence: RematSequence) -> None:
        self.incumbent.offer(sequence)
        if sequence.peak <= self._budget and (self.current is None or sequence.time < self.current.time):
            self.current = sequence

    # Proofs

    def _prove(self) -> None:
        """Bound the time of plans with this order of first runs."""
        if self._is_done:
            return
        self.incumbent.observe.phase("proving a bound")
        plain = self._plain
        parts = max(1, min(_MOST_MOMENTS, _OPS_FOR_ALL_MOMENTS // len(plain)))
        best = 0
        for part in np.array_split(np.arange(len(plain)), min(parts, len(plain))):
            at = int(part[plain.memory[part].argmax()])
            if plain.memory[at] > self._budget and not self.limits.is_over:
                cut_point = CutPoint(plain, at)
                extra = cut_point.bound(self._budget - cut_point.least_own_bytes, self.limits)
                if extra > best:
                    best, self._tightest = extra, cut_point
        if best > plain.time:  # running everything again would take no longer
            self._note_that_none_fits(Basis.COUNTED)
        else:
            self._raise_bound(best, Basis.COUNTED)

    def _sharpen(self) -> None:
        """Raise the bound to the exact optimum at the tightest moment.

        That is the moment with the most reruns.
        """
        if self._is_done or self._tightest is None or len(self._plain) > _MOST_FOR_EXACT:
            return
        cut_point = self._tightest
        none = np.zeros(cut_point.at, dtype=np.bool_)
        room = self._budget - cut_point.least_own_bytes
        limits = self.limits.part(_SHARE_OF_PROOF)
        known = self._bound - self._plain.time
        from remat_cli.planners.min_cut.exact_choice import ChoiceWindow  # loads a solver

        outcome = ChoiceWindow(cut_point, none, ~none).prove(room, replace(limits, work=_BOUND_WORK), known)
        if outcome.status is Status.INFEASIBLE:
            self._note_that_none_fits(outcome.basis)
        elif outcome.bound is not None:
            self._raise_bound(outcome.bound, outcome.basis)

    def _raise_bound(self, extra: int, basis: Basis) -> None:
        bound = self._plain.time + extra
        if bound > self._bound:
            self._bound = bound
            if self._is_input_order:
                self.incumbent.prove(bound, Scope.FIXED_ORDER, basis)

    def _note_that_none_fits(self, basis: Basis) -> None:
        self._nothing_fits = True
        if self._is_input_order:
            why = "what is needed at one moment of the input order does not fit, whatever is recomputed"
            self.incumbent.prove_that_none_fits(Scope.FIXED_ORDER, why, basis)


def _patience(sequence: RematSequence) -> int:
    """Return the number of fruitless rounds that end the search."""
    return min(_PATIENCE, ceil(int(sequence.is_rerun.sum()) / _RERUNS_A_ROUND))


def _in_processes(reads: GraphReads, jobs: int, stack: ExitStack) -> _RunAll:
    """Return a function that runs tasks in processes, which end with `stack`."""
    pool = stack.enter_context(process_pool(min(jobs, _TASKS), _prepare, (reads.graph,)))
    return partial(run_in, pool, _carry_out, alone=partial(carry_out, reads))


_own_reads: GraphReads  # the graph of a worker process


def _prepare(graph: Graph) -> None:
    global _own_reads
    serve_parent()
    _own_reads = GraphReads.of(graph)


def _carry_out(task: Task) -> tuple[Ints, float]:
    return carry_out(_own_reads, task)
