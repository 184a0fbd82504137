"""The link between a device's memory and its host's: how fast it is, and whether both directions share it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil

from remat_cli.units import format_rate


class Duplex(StrEnum):
    """Whether transfers to the host and back go at the same time."""

    HALF = "half"  # one queue: a transfer at a time, whichever way
    FULL = "full"  # a queue each way: one transfer at a time in each direction


class Direction(StrEnum):
    """Which way a transfer goes."""

    TO_HOST = "to-host"
    TO_DEVICE = "to-device"


@dataclass(frozen=True, slots=True)
class Link:
    """A link to the host.

    Attributes:
        bytes_per_time: its rate, in bytes per unit of the graph's time; of a full-duplex link that of each direction.
        duplex: whether both directions share it.

    Raises:
        ValueError: the rate is not above 0.
    """

    bytes_per_time: Fraction
    duplex: Duplex = Duplex.HALF

    def __post_init__(self) -> None:
        if self.bytes_per_time <= 0:
            raise ValueError(f"a link that moves {self.bytes_per_time} bytes per unit of time moves nothing")

    def in_words(self, time_unit: str) -> str:
        """Return its rate and kind, for people, in a graph that counts time in `time_unit`."""
        return f"{format_rate(self.bytes_per_time, time_unit)}, {self.duplex} duplex"

    def transfer_time(self, size: int) -> int:
        """Return how long the link is busy with `size` bytes, in the graph's time unit, rounded up."""
        return ceil(size / self.bytes_per_time)
