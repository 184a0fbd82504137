"""Sequences fitted to a budget by priced cuts, and the search's moves.

The worst moment is cut first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.min_cut.priced_cut import CutPoint
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools, GraphReads
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.sequence import AnySequence, RematSequence

# The time at which a sequence is given up, as a multiple of the plain run's.
_MOST_TIMES = 3
# The number of runs that take as long to lay out as the fixed part of a layout.
_LEAST_WORK = 500
# The solver's counted work for a window, and the number of runs laid out in the time of one unit.
_WINDOW_WORK = 0.5
RUNS_A_UNIT = 400_000
# The number of runs that CP-SAT decides in a fraction of a second; and the probability that a move uses CP-SAT.
_WINDOW = 3_000
_EXACT = 0.25
# The values from which a move draws its prices: those of the first plans, and larger ones, so that moves differ.
_TILTS = (0.0, 0.1, 0.5)
_NOISES = (0.0, 0.1, 0.3, 1.0)
_MARGINS = (0.0, 0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
# Shares of the graph's ops in a region whose reruns are dropped, and of all reruns that are dropped at random.
_REGIONS = (1 / 64, 1 / 16, 1 / 4)
_SCATTERED = (0.1, 0.3)
# The probabilities of dropping all reruns, and of dropping scattered reruns.
_DROP_ALL, _DROP_SCATTERED = 0.1, 0.2
# The number of cuts after which refitting a sequence is given up.
_MOST_CUTS = 60


@dataclass(frozen=True, slots=True)
class BytePrices:
    """The differences between prices of bytes.

    With different prices, equal parts of a graph make different choices.

    Attributes:
        tilt: the share by which a tensor produced at the start costs more, and one produced at the end less. In a
            training step, early tensors are needed late, when there is most room to recompute them.
        noise: the share up to which prices are raised at random.
        seed: seed of the noise.
        margin: the share of the budget that kept tensors leave free for recomputed ones.
        window: number of runs, drawn by the seed, to decide exactly at the first moment.
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


def count_layout(sequence: RematSequence, limits: Limits) -> None:
    """Count the work of laying out a sequence."""
    limits.spend(len(sequence) + _LEAST_WORK)


def fit(sequence: AnySequence, budget_bytes: int, prices: BytePrices, limits: Limits, most_cuts: int) -> AnySequence:
    """Add reruns to a sequence until it fits.

    If it does not fit, return the sequence of least peak found.

    Args:
        sequence: the sequence; its reruns stay unless they become useless.
        budget_bytes: device memory.
        prices: prices that decide which tensors are kept.
        limits: limits of the search; work is counted in runs laid out.
        most_cuts: number of cuts after which to give up.
    """
    weights = prices.weights(sequence.reads)
    most_time = _MOST_TIMES * sequence.reads.graph.total_time
    free = int(prices.margin * (budget_bytes - sequence.reads.graph.fixed_bytes))
    closest = sequence
    for number in range(min(most_cuts, len(sequence))):
        if sequence.peak <= budget_bytes or sequence.time > most_time or limits.is_over:
            break
        cut_point = CutPoint(sequence, int(sequence.memory.argmax()))
        room = budget_bytes - cut_point.own_bytes
        again = _choice(cut_point, room - free, weights, prices if number == 0 else None, limits)
        if again is None and free:
            again = _choice(cut_point, room, weights, None, limits)
        # Laying out the result takes seconds in graphs of 100,000 ops.
        if again is None or limits.is_over:
            break
        before, sequence = sequence, sequence.with_reruns(cut_point.at, again).without_useless_reruns()
        count_layout(sequence, limits)
        if np.array_equal(sequence.ops, before.ops):
            break
        closest = min(closest, sequence, key=lambda each: each.peak)
    return closest


def _choice(
    cut_point: CutPoint, room: int, weights: NDArray[np.float64], prices: BytePrices | None, limits: Limits
) -> Bools | None:
    """Return the runs to repeat; None if nothing fits.

    The choice is exact in a window if the prices ask for one.
    """
    choice = cut_point.cheapest(room, weights, limits)
    if choice is None or prices is None or not prices.window:
        return None if choice is None else choice.again
    most = max(0, cut_point.at - prices.window)
    start = int(np.random.default_rng(prices.seed).integers(most + 1))
    is_free = np.zeros(cut_point.at, dtype=np.bool_)
    is_free[start : start + prices.window] = True
    from remat_cli.planners.min_cut.exact_choice import ChoiceWindow  # loads a solver, which many graphs can do without

    outcome = ChoiceWindow(cut_point, choice.again, is_free).solve(room, replace(limits, work=_WINDOW_WORK), weights)
    limits.spend(RUNS_A_UNIT * outcome.work)
    return choice.again if outcome.values is None else outcome.values[: cut_point.at].astype(np.bool_)


def without_needless(sequence: AnySequence, budget_bytes: int, limits: Limits) -> AnySequence:
    """Remove needless reruns from a sequence that fits."""
    count_layout(sequence, limits)
    return without_needless_reruns(sequence, budget_bytes, limits)


# Prices for first plans, from those for ample budgets to those for tight budgets. Noise breaks the ties of equal
# layers, which slow down minimum cuts.
STARTS = (
    BytePrices(tilt=0.1, noise=0.02),
    BytePrices(tilt=0.1, noise=0.02, window=_WINDOW),
    BytePrices(tilt=0.5, noise=0.05, margin=0.02),
    BytePrices(tilt=0.5, noise=0.3),
    *(BytePrices(tilt=0.5, noise=0.3, seed=1, margin=margin) for margin in (0.05, 0.1, 0.2)),
    *(BytePrices(tilt=0.5, noise=0.02, margin=margin) for margin in (0.1, 0.3)),
)


def move(sequence: AnySequence, budget_bytes: int, rng: np.random.Generator, limits: Limits) -> AnySequence | None:
    """Return another plan that fits, or None.

    Args:
        sequence: a plan that fits.
        budget_bytes: device memory.
        rng: source of the random choices.
        limits: limits of the search, which count the work.
    """
    prices = drawn_prices(rng)
    return refit(ruined(sequence, rng), budget_bytes, prices, limits)


def drawn_prices(rng: np.random.Generator) -> BytePrices:
    """Draw prices like those of first plans, or larger."""
    return BytePrices(
        tilt=float(rng.choice(_TILTS)),
        noise=float(rng.choice(_NOISES)),
        seed=int(rng.integers(2**31)),
        margin=float(rng.choice(_MARGINS)),
        window=_WINDOW if rng.random() < _EXACT else 0,
    )


def refit(sequence: AnySequence, budget_bytes: int, prices: BytePrices, limits: Limits) -> AnySequence | None:
    """Fit a changed sequence again; None if that fails.

    The arguments are those of `fit`.
    """
    count_layout(sequence, limits)
    fitted = fit(sequence, budget_bytes, prices, limits, _MOST_CUTS)
    return without_needless(fitted, budget_bytes, limits) if fitted.peak <= budget_bytes else None


def ruined(sequence: AnySequence, rng: np.random.Generator) -> AnySequence:
    """Drop some reruns: those of a region, random ones, or all.

    Regions with costly reruns are preferred.
    """
    reruns = np.flatnonzero(sequence.is_rerun)
    kind = rng.random()
    if kind < _DROP_ALL or not len(reruns):
        dropped = reruns
    elif kind < _DROP_ALL + _DROP_SCATTERED:
        dropped = reruns[rng.random(len(reruns)) < rng.choice(_SCATTERED)]
    else:
        time = sequence.run_time[reruns] + 1
        centre = sequence.ops[rng.choice(reruns, p=time / time.sum())]
        width = rng.choice(_REGIONS) * len(sequence.reads.graph.ops)
        dropped = reruns[np.abs(sequence.ops[reruns] - centre) <= width / 2]
    stays = np.ones(len(sequence), dtype=np.bool_)
    stays[dropped] = False
    return replace(sequence, ops=sequence.ops[stays])
