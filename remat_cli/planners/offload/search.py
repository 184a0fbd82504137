"""The search for plans that keep, recompute and move tensors.

It starts from the choice at the best prices, and goes on with large neighbourhood search. A plan is given by its
sequence of runs, the tensors that may move, and the waits of the device. The sequence is fitted as without transfers,
but a tensor that may move takes no memory while it can be on the host. The transfers and their times are decided last;
then the waits are those of the replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf

import numpy as np

from remat_cli.core.problem import Observer, Scope
from remat_cli.core.simulate import simulate
from remat_cli.planners.min_cut.fitting import STARTS, BytePrices, drawn_prices, fit, refit, ruined, without_needless
from remat_cli.planners.min_cut.search import MinCutSearch
from remat_cli.planners.offload.link_bound import LinkCut, moments
from remat_cli.planners.shared.incumbent import Incumbent, SequencePlan
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.transfers import OffloadSequence, known_link

# The share of a copy's time that counts when reruns are chosen, and the number of first prices to try with it after the
# first plan. With a smaller share the device may wait for the link, which can cost less than recomputing. The best of
# four prices often has half the overhead of the first (GPT, DenseNet-121).
_ALLOWANCES = {1.0: 4, 0.5: 2, 0.0: 1}
# The number of the bound's prices that begin a search: those with the largest bounds.
_CHOICES = 5
# The number of cuts after which a sequence is given up: at first, and if there is no plan yet.
_FEW_CUTS, _MANY_CUTS = 60, 200
# Moves in a round, and rounds in a row without a gain that end the search.
_MOVES, _PATIENCE = 16, 6
# The share of the time for the bound.
_SHARE_OF_BOUND = 0.25
# The share of the time for plans without transfers.
_SHARE_OF_START = 0.25
# The choices of a move in a part of the graph, and the size of that part as a share of the ops.
_MAY_MOVE = (True, True, False, None)  # lets all tensors move, or none, or draws for each
_WAITS = (0.0, 0.5, 1.0, 1.5)  # factors on the waits
_KEEP_WAITS = 2 / 3  # probability of keeping the waits in the rest of the graph
_ROUNDS = (0, 1, 4, 16)  # numbers of waits to add where memory lacks most
_BEFORE = 0.5  # probability of waiting for the way out there, instead of the way back
_REGIONS = (1 / 64, 1 / 16, 1 / 4, 1)


@dataclass(frozen=True, eq=False)
class _ReplayedPlan:
    """A plan that fits, and its time with the transfers."""

    sequence: OffloadSequence
    time: int


class OffloadSearch:
    """A search that can be continued after its end.

    Attributes:
        limits: limits of the search; may be replaced before it continues.
        moves: number of moves so far.
    """

    def __init__(self, incumbent: Incumbent, limits: Limits, gap: float = 0.0, most_moves: float | None = None) -> None:
        """Prepare a search.

        Args:
            incumbent: keeps plans and bounds.
            limits: limits of the search; their seed is that of the random choices.
            gap: distance to the bound at which the search ends, as a share of the plain run's time.
            most_moves: limit on the moves; None for as many as pay.

        Raises:
            PlannerRefuses: the link's bandwidth is unknown.
        """
        problem = incumbent.problem
        self.limits = limits
        self._incumbent, self._gap = incumbent, gap
        self._most_moves = inf if most_moves is None else most_moves
        self._graph, self._budget = problem.graph, problem.budget.device_bytes
        self._rate = known_link(problem, "offload", instead="min_cut").bytes_per_time
        self._plain = RematSequence.plain(self._graph)
        self._chosen: list[Bools] = []
        self._current: _ReplayedPlan | None = None
        self._has_begun = False
        self.moves = 0
        self._rng = np.random.default_rng(limits.seed)

    def run(self) -> None:
        """Search until gain, gap or limits end the search."""
        if not self._has_begun and not self.limits.is_over:
            self._has_begun = True
            if self._incumbent.fits(self._incumbent.offer(self._plain)):
                return
            self._prove()
            self._begin(self._recomputing())
        self._improve()

    def _prove(self) -> None:
        """Bound the loss of any plan; note tensors that move near the best prices."""
        self._incumbent.observe.phase("proving a bound")
        share = self.limits.part(_SHARE_OF_BOUND)
        best = -1
        for op in moments(self._graph, self._budget - self._graph.fixed_bytes).tolist():
            if best >= 0 and share.is_over:
                break
            cut = LinkCut(self._graph, op, self._budget, self._rate)
            # The most promising moment may take all the time: after a few prices its bound is often still 0.
            extra = cut.bound(self.limits if best < 0 else share)
            if extra > best:
                best = extra
                ranked = sorted(cut.choices, key=lambda choice: -choice.value)
                sets = map(cut.moved, (*ranked[:_CHOICES], None))
                self._chosen = list({moved.tobytes(): moved for moved in sets}.values())
        if best > 0:
            self._incumbent.prove(self._graph.total_time + best, Scope.ANY_PLAN)

    def start_from(self, sequence: RematSequence) -> None:
        """Continue from another plan's runs, if transfers make them faster."""
        for allowance in _ALLOWANCES:
            self._take(self._with(sequence, self._first_sets()[0], allowance))

    def _recomputing(self) -> RematSequence | None:
        """Return a plan without transfers, or None."""
        search = MinCutSearch(Incumbent(self._incumbent.problem, Observer()), self.limits.part(_SHARE_OF_START))
        if not self._is_done:
            search.start()
        if search.current is not None:
            self._incumbent.offer(search.current)
        return search.current

    def _begin(self, recomputing: RematSequence | None) -> None:
        self._incumbent.observe.phase("first plans with transfers")
        if recomputing is not None:
            self._shorten(recomputing)
        for sequence, prices, most_cuts in self._first_tries():
            if self._is_done:
                break
            self._fit(sequence, prices, most_cuts)

    def _first_tries(self) -> Iterator[tuple[OffloadSequence, BytePrices, int]]:
        """Yield first sequences with their prices and numbers of cuts.

        All combinations follow as long as there is no plan.
        """
        for most_cuts in (_FEW_CUTS, _MANY_CUTS):
            for allowance, most_prices in _ALLOWANCES.items():
                for number, prices in enumerate(STARTS):
                    if self._current is not None and number >= most_prices:
                        break
                    for may_move in self._first_sets():
                        yield self._with(self._plain, may_move, allowance), prices, most_cuts
            if self._current is not None:
                break

    def _first_sets(self) -> list[Bools]:
        """Return sets of tensors that may move.

        The first has all tensors, the others those chosen by the best prices.
        """
        return [np.ones(len(self._graph.tensors), dtype=np.bool_), *self._chosen]

    def _with(self, sequence: RematSequence, may_move: Bools, allowance: float) -> OffloadSequence:
        return OffloadSequence.moving(sequence, may_move, allowance / float(self._rate))

    def _shorten(self, recomputing: RematSequence) -> None:
        """Remove the reruns that transfers make needless from a plan."""
        for allowance in _ALLOWANCES:
            if not self._is_done:
                sequence = self._with(recomputing, self._first_sets()[0], allowance)
                self._take(without_needless(sequence, self._budget, self.limits))

    def _fit(self, sequence: OffloadSequence, prices: BytePrices, most_cuts: int) -> None:
        fitting = fit(sequence, self._budget, prices, self.limits, most_cuts)
        self._take(fitting)
        if fitting.peak <= self._budget and not self._is_done:
            self._take(without_needless(fitting, self._budget, self.limits))

    def _take(self, sequence: OffloadSequence) -> None:
        """Replay a sequence with its transfers, and keep the fastest."""
        true = replace(sequence, time_per_byte=1 / float(self._rate))
        if true.least_bytes > self._budget:
            least = partial(true.schedule_within, true.least_bytes)
            self._incumbent.take(SequencePlan(true, 0, true.least_bytes, least))
            return
        for early in (True, False):
            if self._replay(true, early) == true.time:
                return

    def _replay(self, sequence: OffloadSequence, early: bool) -> int:
        """Offer the schedule of a sequence, and return its time.

        The sequence with its measured waits becomes the current plan if it is the fastest.
        """
        schedule = sequence.schedule_within(self._budget, early)
        trace = simulate(self._graph, schedule, link=self._incumbent.problem.link)
        self._incumbent.take(SequencePlan(sequence, trace.time, trace.peak_bytes, lambda: schedule))
        if self._current is None or trace.time <= self._current.time:
            self._current = _ReplayedPlan(sequence.waiting_as(schedule, trace), trace.time)
        return trace.time

    def _improve(self) -> None:
        """Make moves until gain, gap or limits end the search."""
        if self._current is None:
            return
        self._incumbent.observe.phase("searching neighbourhoods")
        fruitless = 0
        while fruitless < _PATIENCE and not self._is_done:
            before = self._current.time
            for _ in range(_MOVES):
                if not self._is_done:
                    self._move(self._current.sequence)
            fruitless = 0 if self._current.time < before else fruitless + 1

    def _move(self, sequence: OffloadSequence) -> None:
        """Change movable tensors and waits in a part of the graph.

        Then drop reruns, and fit the plan again.
        """
        self.moves += 1
        rng, producer = self._rng, self._graph.arrays.producer
        count = len(self._graph.ops)
        centre, width = rng.integers(count), rng.choice(_REGIONS) * count
        inside = np.flatnonzero(np.abs(producer - centre) <= width / 2)
        may_move = sequence.may_move.copy()
        kind = _MAY_MOVE[rng.integers(len(_MAY_MOVE))]
        may_move[inside] = rng.random(len(inside)) < rng.random() if kind is None else kind
        may_move &= ~self._graph.arrays.is_held
        is_near = np.abs(np.arange(count) - centre) <= width / 2
        factor = rng.choice(_WAITS) if rng.random() < _KEEP_WAITS else 0.0
        waits = np.where(is_near, np.rint(factor * sequence.waits), sequence.waits if factor else 0.0)
        other = replace(ruined(sequence, rng), may_move=may_move, waits=waits)
        other = self._with_waits_where_memory_lacks(other, int(rng.choice(_ROUNDS)))
        fitted = refit(other, self._budget, drawn_prices(rng), self.limits)
        if fitted is not None:
            self._take(fitted)

    def _with_waits_where_memory_lacks(self, sequence: OffloadSequence, rounds: int) -> OffloadSequence:
        """Add waits around the place where memory lacks most.

        Each wait lasts as long as the missing bytes take to leave.
        """
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
        return self.limits.is_over or self.moves >= self._most_moves or self._incumbent.gap <= self._gap
