"""Making a sequence fit a budget by priced cuts: memory is brought down moment by moment, the worst first."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.min_cut.exact_choice import Window
from remat_cli.planners.min_cut.priced_cut import CutPoint
from remat_cli.planners.shared.cp_sat import SolverLimits
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.sequence import GraphReads, RematSequence
from remat_cli.planners.shared.stages import Bools

# A sequence that takes so many times the time of the plain run is given up.
_MOST_TIMES = 3
# Runs whose laying out takes as long as that of an empty sequence.
_LEAST_WORK = 500
# The solver's counted work for one window, how many runs are laid out in the time of one unit of it, and seconds that
# no window takes.
_WINDOW_WORK = 0.5
_RUNS_A_UNIT = 400_000
_LONGEST = 1e6


@dataclass(frozen=True, slots=True)
class Prices:
    """How the prices of bytes differ, so that equal parts of a graph do not all choose alike.

    Attributes:
        tilt: a tensor made at the start costs so much more, as a share, and one made at the end so much less. What is
            made early is needed late in a training step: there is most room to make it again.
        noise: the share up to which prices are raised at random.
        seed: of the noise.
        margin: the share of the budget that is left free of what is kept, for what is made again.
        window: how many runs, drawn by the seed, are decided exactly at the first cut_point.
    """

    tilt: float = 0.1
    noise: float = 0.0
    seed: int = 0
    margin: float = 0.0
    window: int = 0

    def weights(self, reads: GraphReads) -> NDArray[np.float64]:
        """[T] factor on the price of each tensor."""
        producer = np.maximum(reads.graph.arrays.producer, 0)
        weights: NDArray[np.float64] = 1 + self.tilt * (1 - 2 * producer / len(reads.graph.ops))
        if self.noise:
            weights *= 1 + self.noise * np.random.default_rng(self.seed).random(len(weights))
        return weights


@dataclass
class Work:
    """What a search may still use: runs of ops that are laid out, which is what takes its time, and the clock.

    Attributes:
        deadline: `time.monotonic()` at which it ends.
        left: runs that may still be laid out.
    """

    deadline: float = inf
    left: float = inf

    @property
    def is_over(self) -> bool:
        """Whether a limit is reached."""
        return self.left <= 0 or monotonic() >= self.deadline

    def count(self, sequence: RematSequence) -> None:
        """Count the runs of a sequence, and what laying out even the shortest one takes."""
        self.left -= len(sequence) + _LEAST_WORK


def fit(sequence: RematSequence, budget_bytes: int, prices: Prices, work: Work, most_cuts: int) -> RematSequence:
    """Return the sequence with what it takes to run again so that it fits; of the least peak found where it does not.

    Args:
        sequence: whose reruns stay unless they become useless.
        budget_bytes: device memory.
        prices: that decide what is kept.
        work: limits; what is used is counted.
        most_cuts: after so many it is given up.
    """
    weights = prices.weights(sequence.reads)
    most_time = _MOST_TIMES * sequence.reads.graph.total_time
    free = int(prices.margin * (budget_bytes - sequence.reads.graph.fixed_bytes))
    closest = sequence
    for number in range(min(most_cuts, len(sequence))):
        if sequence.peak <= budget_bytes or sequence.time > most_time or work.is_over:
            break
        cut_point = CutPoint(sequence, int(sequence.memory.argmax()))
        room = budget_bytes - cut_point.own_bytes
        again = _choice(cut_point, room - free, weights, prices if number == 0 else None, work)
        if again is None and free:
            again = _choice(cut_point, room, weights, None, work)
        if again is None:
            break
        before, sequence = sequence, sequence.with_reruns(cut_point.at, again).without_useless_reruns()
        work.count(sequence)
        if np.array_equal(sequence.ops, before.ops):
            break
        closest = min(closest, sequence, key=lambda each: each.peak)
    return closest


def _choice(
    cut_point: CutPoint, room: int, weights: NDArray[np.float64], prices: Prices | None, work: Work
) -> Bools | None:
    """Return which runs to carry out again, exactly in a window if the prices ask for one; None where nothing fits."""
    choice = cut_point.cheapest(room, weights)
    if choice is None or prices is None or not prices.window:
        return None if choice is None else choice.again
    most = max(0, cut_point.at - prices.window)
    start = int(np.random.default_rng(prices.seed).integers(most + 1))
    is_free = np.zeros(cut_point.at, dtype=np.bool_)
    is_free[start : start + prices.window] = True
    limits = SolverLimits(time_limit=min(max(0.0, work.deadline - monotonic()), _LONGEST), work_limit=_WINDOW_WORK)
    outcome = Window(cut_point, choice.again, is_free).solve(room, limits, weights)
    work.left -= _RUNS_A_UNIT * outcome.work
    return choice.again if outcome.values is None else outcome.values[: cut_point.at].astype(np.bool_)


def without_needless(sequence: RematSequence, budget_bytes: int, work: Work) -> RematSequence:
    """Return a sequence that fits without the reruns that the budget has room to do without."""
    work.count(sequence)
    ops = without_needless_reruns(sequence.reads.graph, sequence.ops.tolist(), budget_bytes)
    return RematSequence(sequence.reads, np.array(ops, dtype=np.int64))
