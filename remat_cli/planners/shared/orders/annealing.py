"""Simulated annealing over orders: one op at a time goes to a place drawn by what each of its places costs."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import numpy as np

from remat_cli.planners.shared.orders.moves import Layout, Places
from remat_cli.planners.shared.stages import Ints

# The last temperature as a share of the first.
_COLDEST = 0.01
# Moves between two looks at the clock.
_LOOK = 64
# Ops from which the scale of the costs is taken.
_SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Cooling:
    """How a run of annealing goes.

    Attributes:
        heat: first temperature, in units of how much the cost of an op's places differs at the start.
        moves: how many may be tried.
        seconds: on the clock; where they are too few for the moves, cooling is the faster.
        seed: of the random choices.
    """

    heat: float
    moves: int
    seconds: float
    seed: tuple[int, ...]


class Annealed(NamedTuple):
    """The order of the least excess that came up, and how many moves were tried."""

    order: Ints
    moves: int


def anneal(layout: Layout, cooling: Cooling) -> Annealed:
    """Search for an order of little excess, until one has none or the run has cooled down.

    An op is moved as in Gibbs sampling: one of all its places is drawn with weights exp(-cost / temperature), and no
    move is ever rejected. Only ops that can pass a stage which lacks memory take part: others would move at random.

    Args:
        layout: the order to begin with.
        cooling: how much is tried.
    """
    layout = layout.copy()
    rng = np.random.default_rng(cooling.seed)
    started = monotonic()
    hottest = cooling.heat * _scale(layout)
    temperature = hottest
    excess = least = layout.total_excess
    best = layout.order.copy()
    moves = 0
    while least > 0 and len(ops := layout.restless()):
        rng.shuffle(ops)
        for op, draw in zip(ops.tolist(), rng.random(len(ops)).tolist(), strict=True):
            if moves % _LOOK == 0 or moves == cooling.moves:
                progress = max(moves / cooling.moves, (monotonic() - started) / max(cooling.seconds, 1e-9))
                if progress >= 1:
                    return Annealed(best, moves)
                temperature = hottest * _COLDEST**progress
            moves += 1
            places = layout.places(op)
            if places is None:
                continue
            place = _draw(places, temperature, draw)
            layout.move(places, place)
            excess += float(places.cost[place] - places.cost[places.now])
            if excess < least:
                least, best = excess, layout.order.copy()
    return Annealed(best, moves)


def _draw(places: Places, temperature: float, draw: float) -> int:
    cost = places.cost
    weights = np.cumsum(np.exp((np.minimum.reduce(cost) - cost) / temperature))
    return int(np.searchsorted(weights, draw * weights[-1], side="right"))


def _scale(layout: Layout) -> float:
    """Return by how much the cost of an op's places differs, on average over some of the ops for which it does."""
    ops = layout.restless()
    sample = (layout.places(op) for op in ops[:: -(-len(ops) // _SAMPLE) or 1].tolist())
    spreads = [spread for places in sample if places is not None and (spread := np.ptp(places.cost)) > 0]
    return float(np.mean(spreads)) if spreads else 1.0
