"""What decides in one sweep which moves are made: the room, the price of bytes above it, and the temperature.

How likely a move is stands in a table, so that it is the same for numpy and for compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.shared.sequence import RematSequence

# The shares exp(-x) of Boltzmann's distribution, for x in steps of 1 / 64 up to 40, from where on they are 0.
STEPS, LAST_STEP = 64.0, 2560
SHARES = np.append(np.exp(-np.arange(LAST_STEP) / STEPS), 0.0)
# The most that a move may lose, in temperatures: larger losses are hardly ever accepted.
_LOSS = 3.0


class Weather(NamedTuple):
    """The conditions of one sweep.

    Attributes:
        room: bytes for what ops make.
        price: of a byte above the room at one run, in time.
        temperature: in the graph's time unit.
    """

    room: int
    price: float
    temperature: float

    @property
    def loss(self) -> float:
        """The most that a move may lose."""
        return _LOSS * self.temperature

    def accepts(self, cost: float, draw: float) -> bool:
        """Tell whether a move is made: always where it gains, and the less likely the more it costs."""
        return cost <= 0 or draw < SHARES[int(min(cost / self.temperature * STEPS, LAST_STEP))]

    def shares(self, lacking: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how likely places are, by the bytes above the room at each, more than at the best of them."""
        costs = lacking * (self.price / self.temperature)
        return SHARES[np.minimum(costs * STEPS, LAST_STEP).astype(np.int64)]


class Sweeps(Protocol):
    """A way to sweep over sequences of one graph.

    Attributes:
        speed: how many moves are tried in the time in which numpy tries one, or fewer.
    """

    speed: float

    def sweep(
        self, sequence: RematSequence, weather: Weather, rng: np.random.Generator, is_over: Callable[[], bool]
    ) -> tuple[RematSequence, int]:
        """Return the sequence after one try of every move that may matter, and how many there were.

        Args:
            sequence: every op of which finds its inputs.
            weather: decides which moves are made.
            rng: of the random choices.
            is_over: ends the sweep.
        """
