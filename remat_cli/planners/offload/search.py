"""Plans that keep, make again and move: what the best prices choose, then large neighbourhood search.

A plan is given by its sequence of runs, by which tensors may move, and by how long the device waits where. The sequence
is made to fit as without transfers, except that a tensor which may move takes no memory while it can be away. What
really leaves, and when, is decided last; then the waits are those of the replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import numpy as np

from remat_cli.planners.min_cut.fitting import STARTS, Prices, drawn_prices, fit, refit, ruined, without_needless
from remat_cli.planners.min_cut.search import MinCutSearch
from remat_cli.planners.offload.link_bound import LinkCut, moments
from remat_cli.planners.offload.planner import Offload
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Bools
from remat_cli.planners.shared.transfers import OffloadSequence, known_link
from remat_cli.problem import Observer, Plan, PlanResult, Problem, Scope
from remat_cli.simulate import simulate

# How much of the time that a copy takes is allowed for when it is decided what is made again: with less, the device may
# wait for the link, which can cost less than running again. And how many of the prices of first plans are tried with it
# where a plan is known: the best of four often has half the overhead of the first (GPT, DenseNet-121).
_ALLOWANCES = {1.0: 4, 0.5: 2, 0.0: 1}
# How many of the prices that were tried for the bound begin a search, those with the largest bounds.
_CHOICES = 5
# Cuts after which a sequence is given up, at first, and where none has been found so.
_FEW_CUTS, _MANY_CUTS = 60, 200
# Moves in a round, and rounds in a row without a gain that end the search.
_MOVES, _PATIENCE = 16, 6
# What the bound may take of the time.
_SHARE_OF_BOUND = 0.25
# What plans without transfers may take of it.
_SHARE_OF_START = 0.25
# What a move does in a part of the graph, and how large that part is, as a share of the ops.
_MAY_MOVE = (True, True, False, None)  # lets all move, or none, or draws one by one
_WAITS = (0.0, 0.5, 1.0, 1.5)  # on what waits are multiplied
_KEEP_WAITS = 2 / 3  # how likely the waits of the rest of the graph stay
_ROUNDS = (0, 1, 4, 16)  # of waiting where memory lacks most
_BEFORE = 0.5  # how likely one waits for the way out there; else for the way back
_REGIONS = (1 / 64, 1 / 16, 1 / 4, 1)


@dataclass(frozen=True, eq=False)
class _Plan:
    """A plan that fits, and its time with the transfers."""

    sequence: OffloadSequence
    time: int


class OffloadSearch:
    """One search, which may go on when it has ended.

    Attributes:
        limits: where it stops; may be set anew before it goes on.
    """

    def __init__(self, incumbent: Incumbent, limits: Limits, options: Offload) -> None:
        """Prepare a search.

        Args:
            incumbent: keeps what is found and proven.
            limits: where the search stops.
            options: gap, moves and seed.

        Raises:
            PlannerRefuses: the link's bandwidth is not known.
        """
        problem = incumbent.problem
        self.limits = limits
        self._incumbent, self._options = incumbent, options
        self._graph, self._budget = problem.graph, problem.budget.device_bytes
        self._rate = known_link(problem, "offload", instead="min_cut").bytes_per_time
        self._plain = RematSequence.plain(self._graph)
        self._chosen: list[Bools] = []
        self._best: _Plan | None = None
        self._has_begun = False
        self._moves = 0
        self._rng = np.random.default_rng(options.seed)

    @classmethod
    def of(cls, problem: Problem, options: Offload, observe: Observer) -> OffloadSearch:
        """Return the search of a planner that works alone."""
        limits = Limits.of(options.time_limit, seed=options.seed, observe=observe)
        return cls(Incumbent(problem, observe, Scope.ANY_PLAN), limits, options)

    def run(self) -> PlanResult:
        """Search until it no longer pays, the gap is closed, or the limits are reached."""
        if not self._has_begun and not self.limits.is_over:
            self._has_begun = True
            if self._incumbent.fits(self._incumbent.offer(self._plain)):
                return self._incumbent.result(stats={"moves": 0})
            self._prove()
            self._begin(self._recomputing())
        self._improve()
        return self._incumbent.result(stats={"moves": self._moves})

    def _prove(self) -> None:
        """Bound what any plan loses, and note what is moved at prices near the best ones."""
        self._incumbent.observe.phase("proving a bound")
        share = self.limits.part(_SHARE_OF_BOUND)
        best = -1
        for op in moments(self._graph, self._budget - self._graph.fixed_bytes).tolist():
            if best >= 0 and share.is_over:
                break
            cut = LinkCut(self._graph, op, self._budget, self._rate)
            # The most promising moment may take what time there is: after a few prices its bound is often nothing yet.
            extra = cut.bound(self.limits if best < 0 else share)
            if extra > best:
                best = extra
                ranked = sorted(cut.choices, key=lambda choice: -choice.value)
                sets = map(cut.moved, (*ranked[:_CHOICES], None))
                self._chosen = list({moved.tobytes(): moved for moved in sets}.values())
        if best > 0:
            self._incumbent.prove(self._graph.total_time + best, Scope.ANY_PLAN)

    def start_from(self, sequence: RematSequence) -> None:
        """Go on from the runs of another plan, if they take less with the transfers that are found here."""
        for allowance in _ALLOWANCES:
            self._take(self._with(sequence, self._first_sets()[0], allowance))

    def _recomputing(self) -> RematSequence | None:
        """Return a plan without transfers, where one is found."""
        search = MinCutSearch(Incumbent(self._incumbent.problem, Observer()), self.limits.part(_SHARE_OF_START))
        if not self._is_done:
            search.start()
        if search.best is not None:
            self._incumbent.offer(search.best)
        return search.best

    def _begin(self, recomputing: RematSequence | None) -> None:
        self._incumbent.observe.phase("first plans with transfers")
        if recomputing is not None:
            self._shorten(recomputing)
        for sequence, prices, most_cuts in self._first_tries():
            if self._is_done:
                break
            self._fit(sequence, prices, most_cuts)

    def _first_tries(self) -> Iterator[tuple[OffloadSequence, Prices, int]]:
        """Yield what is made to fit, by which prices, and by how many cuts; all there are while nothing is found."""
        for most_cuts in (_FEW_CUTS, _MANY_CUTS):
            for allowance, most_prices in _ALLOWANCES.items():
                for number, prices in enumerate(STARTS):
                    if self._best is not None and number >= most_prices:
                        break
                    for may_move in self._first_sets():
                        yield self._with(self._plain, may_move, allowance), prices, most_cuts
            if self._best is not None:
                break

    def _first_sets(self) -> list[Bools]:
        """Return sets of tensors that may move: all, and what the best prices choose."""
        return [np.ones(len(self._graph.tensors), dtype=np.bool_), *self._chosen]

    def _with(self, sequence: RematSequence, may_move: Bools, allowance: float) -> OffloadSequence:
        return OffloadSequence.moving(sequence, may_move, allowance / float(self._rate))

    def _shorten(self, recomputing: RematSequence) -> None:
        """Leave out of a plan without transfers what need not run again with them."""
        for allowance in _ALLOWANCES:
            if not self._is_done:
                sequence = self._with(recomputing, self._first_sets()[0], allowance)
                self._take(without_needless(sequence, self._budget, self.limits))

    def _fit(self, sequence: OffloadSequence, prices: Prices, most_cuts: int) -> None:
        fitting = fit(sequence, self._budget, prices, self.limits, most_cuts)
        self._take(fitting)
        if fitting.peak <= self._budget and not self._is_done:
            self._take(without_needless(fitting, self._budget, self.limits))

    def _take(self, sequence: OffloadSequence) -> None:
        """Find out what a sequence takes with its transfers, and keep it if that is the least."""
        true = replace(sequence, time_per_byte=1 / float(self._rate))
        if true.least_bytes > self._budget:
            self._incumbent.take(Plan(0, true.least_bytes, partial(true.schedule_within, true.least_bytes)))
            return
        for early in (True, False):
            if self._replay(true, early) == true.time:
                return

    def _replay(self, sequence: OffloadSequence, early: bool) -> int:
        """Offer the schedule of a sequence, keep that with its waits if it is the best, and return its time."""
        schedule = sequence.schedule_within(self._budget, early)
        trace = simulate(self._graph, schedule, link=self._incumbent.problem.link)
        self._incumbent.take(Plan(trace.time, trace.peak_bytes, lambda: schedule))
        if self._best is None or trace.time <= self._best.time:
            self._best = _Plan(sequence.waiting_as(schedule, trace), trace.time)
        return trace.time

    def _improve(self) -> None:
        """Make moves until they no longer pay, the gap is closed, or the limits are reached."""
        if self._best is None:
            return
        self._incumbent.observe.phase("searching neighbourhoods")
        fruitless = 0
        while fruitless < _PATIENCE and not self._is_done:
            before = self._best.time
            for _ in range(_MOVES):
                if not self._is_done:
                    self._move(self._best.sequence)
            fruitless = 0 if self._best.time < before else fruitless + 1

    def _move(self, sequence: OffloadSequence) -> None:
        """In a part of the graph let other tensors move and wait otherwise; drop reruns, and make it fit again."""
        self._moves += 1
        rng, producer = self._rng, self._graph.arrays.producer
        count = len(self._graph.ops)
        centre, width = rng.integers(count), rng.choice(_REGIONS) * count
        inside = np.flatnonzero(np.abs(producer - centre) <= width / 2)
        may_move = sequence.may_move.copy()
        kind = _MAY_MOVE[rng.integers(len(_MAY_MOVE))]
        may_move[inside] = rng.random(len(inside)) < rng.random() if kind is None else kind
        is_near = np.abs(np.arange(count) - centre) <= width / 2
        factor = rng.choice(_WAITS) if rng.random() < _KEEP_WAITS else 0.0
        waits = np.where(is_near, np.rint(factor * sequence.waits), sequence.waits if factor else 0.0)
        other = replace(ruined(sequence, rng), may_move=may_move, waits=waits)
        other = self._with_waits_where_memory_lacks(other, int(rng.choice(_ROUNDS)))
        fitted = refit(other, self._budget, drawn_prices(rng), self.limits)
        if fitted is not None:
            self._take(fitted)

    def _with_waits_where_memory_lacks(self, sequence: OffloadSequence, rounds: int) -> OffloadSequence:
        """Return the sequence with waits around where memory lacks most: for as long as that much takes to leave."""
        is_first = ~sequence.is_rerun
        for _ in range(rounds):
            lacking = sequence.peak - self._budget
            if lacking <= 0:
                break
            at = int(sequence.memory.argmax())
            before, after = np.flatnonzero(is_first[: at + 1]), np.flatnonzero(is_first[at + 1 :]) + at + 1
            place = before[-1] if self._rng.random() < _BEFORE or not len(after) else after[0]
            waits = sequence.waits.copy()
            waits[sequence.ops[place]] += ceil(lacking / self._rate)
            sequence = replace(sequence, waits=waits)
        return sequence

    @property
    def _is_done(self) -> bool:
        work_limit = self._options.work_limit
        if self.limits.is_over or (work_limit is not None and self._moves >= work_limit):
            return True
        return self._incumbent.gap <= self._options.gap
