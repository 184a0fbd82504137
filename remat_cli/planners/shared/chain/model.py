"""The chain of layers of `rotor` and `pofo`, and the operations on a layer.

Source: Beaumont et al., the model of rotor and of POFO. Layers are numbered 1 to N; layer N is the loss; a_0 is the
chain's input. There are four operations. Memory during an operation is the stored tensors, plus the outputs of the
operation, plus its overhead:

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
    """The operations on a layer."""

    FORWARD_ALL = "F_all"
    FORWARD_CHECK = "F_ck"
    FORWARD_NONE = "F_none"
    BACKWARD = "B"


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One operation on one layer of a chain.

    Attributes:
        kind: the operation.
        layer: 1 to N.
    """

    kind: Operation
    layer: int

    def __str__(self) -> str:
        return f"{self.kind}({self.layer})"
