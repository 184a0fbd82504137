"""A training graph as a chain of layers, for `rotor` and `pofo`.

This module does without numpy, because options are read here.
"""

from __future__ import annotations

from enum import StrEnum


class Cuts(StrEnum):
    """The places at which a training graph may be cut into layers."""

    SINGLE = "single"  # after an op that passes on a single tensor, as in the papers
    SEVERAL = "several"  # also after ops that pass on several, if the backward reads most of them anyway
    EVERY = "every"  # after every op that passes on a new tensor
