"""Sequences made to fit a budget by priced cuts, the worst moment first; and the moves of a search."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.min_cut.priced_cut import CutPoint
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools, GraphReads
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.sequence import AnySequence, RematSequence

# A sequence is given up where its time is this multiple of the plain run's.
_MOST_TIMES = 3
# Runs whose laying out takes as long as that of an empty sequence.
_LEAST_WORK = 500
# The solver's counted work for one window, and how many runs are laid out in the time of one unit of it.
_WINDOW_WORK = 0.5
_RUNS_A_UNIT = 400_000
# Runs that CP-SAT decides in a fraction of a second; and how likely a move has it do so.
_WINDOW = 3_000
_EXACT = 0.25
# The values from which a move draws its prices: those of the first plans, and larger ones, so that moves differ.
_TILTS = (0.0, 0.1, 0.5)
_NOISES = (0.0, 0.1, 0.3, 1.0)
_MARGINS = (0.0, 0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
# Shares of the graph's ops in a region whose reruns are dropped, and of all reruns that are dropped at random.
_REGIONS = (1 / 64, 1 / 16, 1 / 4)
_SCATTERED = (0.1, 0.3)
# How likely a move drops all reruns, or scattered ones.
_DROP_ALL, _DROP_SCATTERED = 0.1, 0.2
# Cuts after which making a sequence fit again is given up.
_MOST_CUTS = 60


@dataclass(frozen=True, slots=True)
class BytePrices:
    """How the prices of bytes differ, so that equal parts of a graph do not all make the same choice.

    Attributes:
        tilt: the share by which a tensor made at the start costs more, and one made at the end less. In a training
            step, early tensors are needed late, when there is most room to recompute them.
        noise: the share up to which prices are raised at random.
        seed: of the noise.
        margin: the share of the budget that kept tensors leave free for recomputed ones.
        window: how many runs, drawn by the seed, are decided exactly at the first moment.
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
    """Count the work of laying a sequence out: its runs, and what even the shortest one takes."""
    limits.spend(len(sequence) + _LEAST_WORK)


def fit(sequence: AnySequence, budget_bytes: int, prices: BytePrices, limits: Limits, most_cuts: int) -> AnySequence:
    """Return the sequence with the reruns that make it fit; if it does not fit, the one of the least peak found.

    Args:
        sequence: its reruns stay unless they become useless.
        budget_bytes: device memory.
        prices: they decide what is kept.
        limits: where it ends; work is counted in runs that are laid out.
        most_cuts: the attempt is given up after this many.
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
        # Laying the result out takes seconds in graphs of 100,000 ops.
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
    """Return which runs to repeat, exactly in a window if the prices ask for one; None if nothing fits."""
    choice = cut_point.cheapest(room, weights, limits)
    if choice is None or prices is None or not prices.window:
        return None if choice is None else choice.again
    most = max(0, cut_point.at - prices.window)
    start = int(np.random.default_rng(prices.seed).integers(most + 1))
    is_free = np.zeros(cut_point.at, dtype=np.bool_)
    is_free[start : start + prices.window] = True
    from remat_cli.planners.min_cut.exact_choice import ChoiceWindow  # loads a solver, which many graphs do without

    outcome = ChoiceWindow(cut_point, choice.again, is_free).solve(room, replace(limits, work=_WINDOW_WORK), weights)
    limits.spend(_RUNS_A_UNIT * outcome.work)
    return choice.again if outcome.values is None else outcome.values[: cut_point.at].astype(np.bool_)


def without_needless(sequence: AnySequence, budget_bytes: int, limits: Limits) -> AnySequence:
    """Return a sequence that fits without its needless reruns."""
    count_layout(sequence, limits)
    return without_needless_reruns(sequence, budget_bytes, limits)


# Prices for first plans, from those that suit ample budgets to those for tight ones. Noise breaks the ties of equal
# layers, which take minimum cuts much longer.
STARTS = (
    BytePrices(tilt=0.1, noise=0.02),
    BytePrices(tilt=0.1, noise=0.02, window=_WINDOW),
    BytePrices(tilt=0.5, noise=0.05, margin=0.02),
    BytePrices(tilt=0.5, noise=0.3),
    *(BytePrices(tilt=0.5, noise=0.3, seed=1, margin=margin) for margin in (0.05, 0.1, 0.2)),
    *(BytePrices(tilt=0.5, noise=0.02, margin=margin) for margin in (0.1, 0.3)),
)


def move(sequence: AnySequence, budget_bytes: int, rng: np.random.Generator, limits: Limits) -> AnySequence | None:
    """Return another plan that fits, or None where none was found.

    Args:
        sequence: a plan that fits.
        budget_bytes: device memory.
        rng: of the random choices.
        limits: where it ends; what is used is counted.
    """
    prices = drawn_prices(rng)
    return refit(ruined(sequence, rng), budget_bytes, prices, limits)


def drawn_prices(rng: np.random.Generator) -> BytePrices:
    """Return random prices, those of the first plans or larger ones."""
    return BytePrices(
        tilt=float(rng.choice(_TILTS)),
        noise=float(rng.choice(_NOISES)),
        seed=int(rng.integers(2**31)),
        margin=float(rng.choice(_MARGINS)),
        window=_WINDOW if rng.random() < _EXACT else 0,
    )


def refit(sequence: AnySequence, budget_bytes: int, prices: BytePrices, limits: Limits) -> AnySequence | None:
    """Return a changed sequence made to fit again; None if that fails; arguments as of `fit`."""
    count_layout(sequence, limits)
    fitted = fit(sequence, budget_bytes, prices, limits, _MOST_CUTS)
    return without_needless(fitted, budget_bytes, limits) if fitted.peak <= budget_bytes else None


def ruined(sequence: AnySequence, rng: np.random.Generator) -> AnySequence:
    """Return the sequence without some of its reruns: those of a region, costly ones preferred, or random ones."""
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
