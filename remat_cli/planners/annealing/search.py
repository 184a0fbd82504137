"""The rounds of annealing, from hot with cheap memory to cold with dear memory.

The objective is time, plus the bytes above the room at each run, at a price. While memory is cheap and moves are free,
orders form that need little memory; as the price rises, cheap tensors are recomputed. Under a loose budget, the room
instead shrinks to the budget from the peak of the first order. The reason: a run added far above the room pays for all
the bytes above the room once more, so hardly any run is added there.

Source: Kirkpatrick, Gelatt, Vecchi, Optimization by Simulated Annealing, Science 1983; Geman, Geman, Stochastic
Relaxation, IEEE Transactions on Pattern Analysis and Machine Intelligence 1984 (source of the way to draw places).
"""

from __future__ import annotations

from itertools import cycle
from math import inf
from time import monotonic
from typing import NamedTuple

import numpy as np

from remat_cli.planners.annealing.sweeps import MOVES, Sweeps, Weather
from remat_cli.planners.min_cut.fitting import BytePrices, fit
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.orders.greedy import greedy_order
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.sequence import RematSequence


class Climate(NamedTuple):
    """The temperatures, prices and length of a round.

    The unit of temperature is the mean time of an op. The unit of price is that time, for a tensor of mean size above
    the room during one run.

    Attributes:
        hot: first temperature.
        cold: last temperature.
        cheap: first price.
        dear: last price.
        shrinks: whether the room shrinks from the peak of the first sequence while the price rises; otherwise the room
            is that of the budget from the start, and the price rises in the second half.
        moves: number of moves tried for each op.
        share: largest share of the remaining seconds.
    """

    hot: float
    cold: float
    cheap: float
    dear: float
    moves: float
    share: float
    shrinks: bool = False


_SHRINKING = Climate(hot=1.0, cold=0.05, cheap=0.3, dear=5.0, moves=600, share=0.8, shrinks=True)
_RISING = Climate(hot=1.0, cold=0.1, cheap=0.1, dear=10.0, moves=600, share=0.5)
_AGAIN = Climate(hot=0.5, cold=0.1, cheap=0.3, dear=5.0, moves=200, share=0.3)
# The room shrinks only if the first sequence takes at most this many times the budget, in graphs of at most this many
# ops: there it finds better orders. Tighter budgets need the effect of prices early (at 1.49 times, random layers of
# 500 ops were left without a plan). Larger graphs leave too little time.
_LOOSE, _MOST_FOR_SHRINKING = 1.45, 1_500
# The smaller the room, the more slowly it shrinks. It reaches that of the budget at this progress.
_SHRUNK, _SLOWING = 0.9, 3
# Small graphs need fewer moves: for each op, this number times the number of ops.
_MOVES_OF_SMALL = 4.0
# Without a work limit a round has this many times as many moves: the clock ends it.
_UNCOUNTED = 10.0
# Between sweeps, the price falls by this factor if the sequence fits, and rises again if not.
_EASE = 1.02
# After a round, a sequence that does not fit is mended in sweeps at this temperature. The price begins at this one, and
# grows by this factor from sweep to sweep. After every few sweeps, `fit` cuts the sequence at its worst moment.
_MENDING_HEAT, _MENDING_PRICE, _MENDING_GROWTH = 0.4, 5.0, 1.03
_SWEEPS_OF_MENDING, _SWEEPS_A_CUT = 150, 30
_NOISE_OF_CUTS = 0.3
# Start from the known plan if it is this near to the bound, as a share of the plain run's time.
_NEAR = 0.1
# End the search after this many rounds in a row without a gain: with a plan, and without one.
_PATIENCE, _PATIENCE_WITHOUT = 3, 6
# The same limit for searches that start again whenever a start no longer gains.
_PATIENCE_AFRESH = 6


class AnnealingSearch:
    """An annealing search for one problem.

    Attributes:
        incumbent: receives every plan found.
        limits: limits of the search; work is counted in tried moves.
        rounds: number of rounds so far.
        note: why the search was left out, or slow; otherwise empty.
    """

    def __init__(self, incumbent: Incumbent, limits: Limits, gap: float = 0.0) -> None:
        """Prepare a search.

        Args:
            incumbent: keeps the plans found; the search may start from its best plan.
            limits: limits of the search.
            gap: distance to the bound at which the search ends, as a share of the plain run's time.
        """
        graph = incumbent.problem.graph
        self.incumbent, self.limits = incumbent, limits
        self.rounds = 0
        self.note = ""
        self._gap = gap
        self._budget = incumbent.problem.budget.device_bytes
        self._rng = np.random.default_rng(limits.seed)
        self._sweeps = Sweeps(graph)
        self._best_of_round: RematSequence | None = None
        sizes = graph.arrays.tensor_bytes[graph.arrays.producer >= 0]
        self._mean_time = max(graph.total_time, 1) / len(graph.ops)
        self._mean_bytes = max(float(sizes.mean()) if len(sizes) else 0.0, 1.0)

    def run(self) -> None:
        """Search until gain, gap or limits end the search.

        Without compiled moves there is no search.
        """
        graph = self.incumbent.problem.graph
        orders = [RematSequence.plain(graph), RematSequence.of(graph, greedy_order(graph))]
        order = min(orders, key=lambda each: each.peak)
        best = self.incumbent.best_sequence
        start = order if best is None else min(order, best, key=lambda each: each.peak)
        self._take(order)
        if not MOVES.is_ready:
            self.incumbent.observe.phase("compiling annealing's moves, once")
        is_compiled = MOVES.wait(self.limits.seconds, lambda: self.limits.is_over)
        self.note = MOVES.note()
        if not is_compiled:
            return
        self.incumbent.observe.phase("annealing")
        is_loose = order.peak <= _LOOSE * self._budget and len(graph.ops) <= _MOST_FOR_SHRINKING
        if is_loose:
            self._begin_afresh(order, start)
        else:
            self._go_on(start)

    def _begin_afresh(self, order: RematSequence, start: RematSequence) -> None:
        """Start again whenever a start stops gaining.

        The first rounds decide how good a plan becomes.
        """
        beginnings = cycle([(order, _SHRINKING), (start, _RISING)])
        current: RematSequence | None = None
        fruitless = 0
        while fruitless < _PATIENCE_AFRESH and not self._is_done:
            before, from_time = self.incumbent.best, inf if current is None else current.time
            new = self._round(*(next(beginnings) if current is None else (current, _AGAIN)))
            current = new if new is not None and new.time < from_time else None
            fruitless = 0 if self.incumbent.best is not before else fruitless + 1

    def _go_on(self, start: RematSequence) -> None:
        """Continue from the best plan, or from `start` without a plan."""
        fruitless = 0
        while fruitless < (_PATIENCE if self.incumbent.best else _PATIENCE_WITHOUT) and not self._is_done:
            before, best = self.incumbent.best, self.incumbent.best_sequence
            if best is None or (not self.rounds and self.incumbent.gap > _NEAR):
                self._round(start, _RISING)
            else:
                self._round(best, _AGAIN)
            fruitless = 0 if self.incumbent.best is not before else fruitless + 1

    def _round(self, sequence: RematSequence, climate: Climate) -> RematSequence | None:
        """Cool down from a sequence, and mend the result.

        Returns the round's fastest sequence that fits, or None.
        """
        self.rounds += 1
        self._best_of_round = None
        count = len(self.incumbent.problem.graph.ops)
        planned = count * min(climate.moves, _MOVES_OF_SMALL * count)
        tried, began, seconds = 0, monotonic(), max(climate.share * self.limits.seconds, 1e-9)
        is_counted = self.limits.work < inf
        planned = min(planned, max(climate.share * self.limits.work, 1)) if is_counted else planned * _UNCOUNTED
        ease, most = 1.0, sequence.peak if climate.shrinks else self._budget
        while (progress := max(tried / planned, (monotonic() - began) / seconds)) < 1 and not self._is_done:
            dearness = progress if climate.shrinks else max(0.0, 2 * progress - 1)
            price = climate.cheap * (climate.dear / climate.cheap) ** dearness
            temperature = climate.hot * (climate.cold / climate.hot) ** progress
            left = max(0.0, 1 - progress / _SHRUNK) ** _SLOWING
            budget = self._budget + int(left * max(0, most - self._budget))
            ease = ease / _EASE if sequence.peak <= budget else min(1.0, ease * _EASE)
            sequence, moves = self._sweep(sequence, price * ease, temperature, budget)
            tried += moves
        self._improve(self._mended(sequence, planned))
        return self._best_of_round

    def _mended(self, sequence: RematSequence, most: float) -> RematSequence:
        """Change a sequence until it fits, within `most` moves."""
        price = _MENDING_PRICE
        for number in range(_SWEEPS_OF_MENDING):
            if sequence.peak <= self._budget or most <= 0 or self._is_done:
                break
            if number % _SWEEPS_A_CUT == 0:
                prices = BytePrices(tilt=0.0, noise=_NOISE_OF_CUTS, seed=int(self._rng.integers(2**31)))
                sequence = fit(sequence, self._budget, prices, self.limits.part(), most_cuts=1)
            sequence, tried = self._sweep(sequence, price, _MENDING_HEAT, self._budget)
            most -= tried
            price *= _MENDING_GROWTH
        return sequence

    def _improve(self, sequence: RematSequence) -> None:
        """Drop needless reruns from a sequence, and offer the result."""
        if sequence.peak > self._budget:
            self.incumbent.offer(sequence)
        else:
            self._take(without_needless_reruns(sequence, self._budget, self.limits.part()))

    def _sweep(
        self, sequence: RematSequence, price: float, temperature: float, budget: int
    ) -> tuple[RematSequence, int]:
        """Sweep once; return the new sequence and the work spent."""
        weather = Weather(
            room=budget - sequence.graph.fixed_bytes,
            price=price * self._mean_time / self._mean_bytes,
            temperature=temperature * self._mean_time,
        )
        new, moves = self._sweeps.sweep(sequence, weather, self._rng, lambda: self.limits.is_over)
        tried = moves + len(sequence)
        self.limits.spend(tried)
        self._take(new)
        return new, tried

    def _take(self, sequence: RematSequence) -> None:
        if sequence.peak > self._budget:
            return
        if self._best_of_round is None or sequence.time < self._best_of_round.time:
            self._best_of_round = sequence
        best = self.incumbent.best
        if best is None or sequence.time < best.time:
            self.incumbent.offer(sequence)

    @property
    def _is_done(self) -> bool:
        return self.limits.is_over or self.incumbent.nothing_fits or self.incumbent.gap <= self._gap
