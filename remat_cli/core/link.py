"""The link between a device's memory and its host's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil

from remat_cli.units import format_rate


class Duplex(StrEnum):
    """Whether the link can send and receive at the same time."""

    HALF = "half"  # one queue: a single transfer at a time, in either direction
    FULL = "full"  # two queues: a transfer at a time in each direction


class Direction(StrEnum):
    """The direction of a transfer."""

    TO_HOST = "to-host"
    TO_DEVICE = "to-device"


@dataclass(frozen=True, slots=True)
class Link:
    """The link from the device to the host.

    Attributes:
        bytes_per_time: rate in bytes per unit of the graph's time; on a full-duplex link, the rate of each direction.
        duplex: whether both directions share the link.

    Raises:
        ValueError: the rate is not above 0.
    """

    bytes_per_time: Fraction
    duplex: Duplex = Duplex.HALF

    def __post_init__(self) -> None:
        if self.bytes_per_time <= 0:
            raise ValueError(f"a link that moves {self.bytes_per_time} bytes per unit of time moves nothing")

    def in_words(self, time_unit: str) -> str:
        """Describe rate and duplex for people.

        `time_unit` is the graph's.
        """
        return f"{format_rate(self.bytes_per_time, time_unit)}, {self.duplex} duplex"

    def transfer_time(self, size: int) -> int:
        """Return the time to transfer `size` bytes, rounded up.

        It is in the graph's time unit.
        """
        return ceil(size / self.bytes_per_time)
