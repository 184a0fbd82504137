"""The chain of layers that `rotor` and `pofo` plan, as in their papers, and the operations on a layer.

Source: Beaumont et al., the model of rotor and of POFO. Layers are numbered 1 to N; layer N is the loss; a_0 is
the chain's input. There are four operations, and memory during each is all that is stored, plus what the operation
makes, plus its overhead:

    F_all(l)    reads a_(l-1), keeps it, and makes abar_l: all that B(l) needs of layer l, and a_l
    F_ck(l)     reads a_(l-1), keeps it, and makes a_l
    F_none(l)   reads a_(l-1), makes a_l, and discards a_(l-1)
    B(l)        reads delta_l, abar_l and a_(l-1), makes delta_(l-1), and frees delta_l, abar_l and a plain a_(l-1)

Training graphs need more detail: see `rotor.needs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Operation(StrEnum):
    """What can be done with a layer."""

    FORWARD_ALL = "F_all"
    FORWARD_CHECK = "F_ck"
    FORWARD_NONE = "F_none"
    BACKWARD = "B"


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One operation on one layer of a chain.

    Attributes:
        kind: what is done.
        layer: 1 to N.
    """

    kind: Operation
    layer: int

    def __str__(self) -> str:
        return f"{self.kind}({self.layer})"
