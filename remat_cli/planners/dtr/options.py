"""Options of `dtr`."""

from __future__ import annotations

from enum import StrEnum


class Heuristic(StrEnum):
    """The score that decides on evictions, least first.

    It combines cost c, size m and time s since the last use.
    """

    LOCAL = "local"  # c / (m s)
    MSPS = "msps"  # (c + cost of the evicted tensors that it is computed from) / m
    EQ = "eq"  # (c + cost of the evicted neighbourhood, estimated by classes of evicted tensors) / (m s)
    H_DTR = "h_dtr"  # the same, with the exact neighbourhood
    SIZE = "size"  # 1 / m
    LRU = "lru"  # 1 / s
    ALL = "all"  # each in turn

    @property
    def single(self) -> tuple[Heuristic, ...]:
        """The single heuristics to try, quick and promising first."""
        return tuple(each for each in Heuristic if each is not Heuristic.ALL) if self is Heuristic.ALL else (self,)
