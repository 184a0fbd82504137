"""The conditions of a sweep: room, price of memory, temperature.

They decide whether a move is accepted. Probabilities come from a table, so that numpy and compiled code agree.
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
# The largest loss of a move, in temperatures: larger losses are hardly ever accepted.
_LOSS = 3.0


class Weather(NamedTuple):
    """The conditions of one sweep.

    Attributes:
        room: bytes for outputs of ops.
        price: price of a byte above the room during one run, in time.
        temperature: in the graph's time unit.
    """

    room: int
    price: float
    temperature: float

    @property
    def loss(self) -> float:
        """The largest loss of a move."""
        return _LOSS * self.temperature

    def accepts(self, cost: float, draw: float) -> bool:
        """Accept every gain, and losses with falling probability."""
        return cost <= 0 or draw < SHARES[int(min(cost / self.temperature * STEPS, LAST_STEP))]

    def shares(self, lacking: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the relative probability of each place.

        `lacking` has the bytes above the room at each place, minus those at the best place.
        """
        costs = lacking * (self.price / self.temperature)
        return SHARES[np.minimum(costs * STEPS, LAST_STEP).astype(np.int64)]


class Sweeps(Protocol):
    """An implementation of sweeps over the sequences of one graph.

    Attributes:
        speed: moves tried in the time of one move in numpy, or fewer.
    """

    speed: float

    def sweep(
        self, sequence: RematSequence, weather: Weather, rng: np.random.Generator, is_over: Callable[[], bool]
    ) -> tuple[RematSequence, int]:
        """Try every useful move once; return the sequence and the number of moves.

        Args:
            sequence: a sequence in which every op finds its inputs.
            weather: conditions that decide on the moves.
            rng: source of the random choices.
            is_over: tells when to end the sweep.
        """
