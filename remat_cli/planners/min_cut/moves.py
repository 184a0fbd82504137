"""Neighbourhoods of a plan: which reruns are dropped, and at which prices the sequence is made to fit again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat_cli.planners.min_cut.fitting import Prices, count_layout, fit, without_needless
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence

# Runs that CP-SAT decides in a fraction of a second; and how likely a move has it do so.
_WINDOW = 3_000
_EXACT = 0.25
# Prices for first plans, from those that suit ample budgets to those for tight ones. Noise breaks the ties of equal
# layers, which take minimum cuts much longer.
STARTS = (
    Prices(tilt=0.1, noise=0.02),
    Prices(tilt=0.1, noise=0.02, window=_WINDOW),
    Prices(tilt=0.5, noise=0.05, margin=0.02),
    Prices(tilt=0.5, noise=0.3),
    *(Prices(tilt=0.5, noise=0.3, seed=1, margin=margin) for margin in (0.05, 0.1, 0.2)),
    *(Prices(tilt=0.5, noise=0.02, margin=margin) for margin in (0.1, 0.3)),
)
# What a move draws its prices from: those of the first plans, and larger ones, so that two moves seldom cut alike.
_TILTS = (0.0, 0.1, 0.5)
_NOISES = (0.0, 0.1, 0.3, 1.0)
_MARGINS = (0.0, 0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
# Shares of the graph's ops among which reruns are dropped, and of all reruns that are dropped here and there.
_REGIONS = (1 / 64, 1 / 16, 1 / 4)
_SCATTERED = (0.1, 0.3)
# How likely a move drops all reruns, or scattered ones.
_DROP_ALL, _DROP_SCATTERED = 0.1, 0.2
# Cuts after which making a sequence fit again is given up.
_MOST_CUTS = 60


def move(sequence: RematSequence, budget_bytes: int, rng: np.random.Generator, limits: Limits) -> RematSequence | None:
    """Return another plan that fits, or None where none was found.

    Args:
        sequence: a plan that fits.
        budget_bytes: device memory.
        rng: of the random choices.
        limits: where it ends; what is used is counted.
    """
    prices = Prices(
        tilt=float(rng.choice(_TILTS)),
        noise=float(rng.choice(_NOISES)),
        seed=int(rng.integers(2**31)),
        margin=float(rng.choice(_MARGINS)),
        window=_WINDOW if rng.random() < _EXACT else 0,
    )
    ruined = _ruined(sequence, rng)
    count_layout(sequence, limits)
    fitted = fit(ruined, budget_bytes, prices, limits, _MOST_CUTS)
    return without_needless(fitted, budget_bytes, limits) if fitted.peak <= budget_bytes else None


def _ruined(sequence: RematSequence, rng: np.random.Generator) -> RematSequence:
    """Return the sequence without some of its reruns: of neighbouring ops, the costly ones first, or here and there."""
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
