"""A training graph as a chain of layers, which `rotor` and `pofo` plan; here without numpy, as options are read."""

from __future__ import annotations

from enum import StrEnum


class Cuts(StrEnum):
    """Where a training graph may be cut into the layers of a chain."""

    SINGLE = "single"  # where a single tensor is handed on, as the papers have it
    SEVERAL = "several"  # also where several are, if the backward reads most of them anyway
    EVERY = "every"  # after every op that hands on anything new
