"""The chain of layers that `rotor` and `pofo` plan, as their papers have it, and what is done with a layer.

Source: Beaumont et al., the model of rotor and of POFO. Layers are numbered 1 to N; layer N is the loss; a_0 is
the chain's input. There are four operations, and memory during each is all that is stored, plus what the operation
makes, plus its overhead:

    F_all(l)    reads a_(l-1), keeps it, and makes abar_l: all that B(l) needs of layer l, and a_l
    F_ck(l)     reads a_(l-1), keeps it, and makes a_l
    F_none(l)   reads a_(l-1), makes a_l, and discards a_(l-1)
    B(l)        reads delta_l, abar_l and a_(l-1), makes delta_(l-1), and frees delta_l, abar_l and a plain a_(l-1)

Of a training graph more is known than a `Chain` can say: see `rotor.needs`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


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


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of N layers; every array is [N + 1] int64, indexed by layer, and entries without a meaning are 0.

    Overheads are what an operation needs beyond all that it reads, keeps and makes by the model. They are below 0 where
    it needs less, as an op does that works in place.

    Attributes:
        activation: bytes of a_0 to a_N; a_N is 0.
        saved: bytes of abar_1 to abar_N, each including a_l.
        gradient: bytes of delta_0 to delta_N: what the backward of the layers after l leaves in memory, the gradient of
            a_l before all; delta_N is 0. It may be below 0, where the layers' backward frees what was there all along.
        forward_time: of F_all.
        no_grad_time: of F_ck and F_none.
        backward_time: of B.
        forward_all_overhead: bytes, of F_all, beyond a_(l-1) and abar_l.
        forward_none_overhead: bytes, of F_ck and F_none, beyond a_(l-1) and a_l.
        backward_overhead: bytes, of B, beyond a_(l-1), abar_l, delta_l and delta_(l-1).
        closing_need: bytes beyond its input of an F_all(l) that closes a block to be recomputed: B(l + 1) is done, so
            a_l is needed no more unless by B(l). None where it is as of any F_all; so is that of layer N.
        closing_time: of such an F_all; None where it is as of any.
    """

    activation: NDArray[np.int64]
    saved: NDArray[np.int64]
    gradient: NDArray[np.int64]
    forward_time: NDArray[np.int64]
    no_grad_time: NDArray[np.int64]
    backward_time: NDArray[np.int64]
    forward_all_overhead: NDArray[np.int64]
    forward_none_overhead: NDArray[np.int64]
    backward_overhead: NDArray[np.int64]
    closing_need: NDArray[np.int64] | None = None
    closing_time: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and value.shape != self.activation.shape:
                raise ValueError(f"{each.name} has shape {value.shape}, activation {self.activation.shape}")

    def __len__(self) -> int:
        """Return N, the number of layers."""
        return len(self.activation) - 1

    @property
    def all_need(self) -> NDArray[np.int64]:
        """[N + 1] bytes of F_all beyond its input and the gradient that is held meanwhile: mAll_i(0)."""
        return self.saved + self.forward_all_overhead

    @property
    def block_end_need(self) -> NDArray[np.int64]:
        """[N + 1] bytes beyond its input of the F_all that ends a block; see `closing_need`."""
        return self.all_need if self.closing_need is None else self.closing_need

    @property
    def block_end_time(self) -> NDArray[np.int64]:
        """[N + 1] time of the F_all that ends a block; see `closing_need`."""
        return self.forward_time if self.closing_time is None else self.closing_time

    @property
    def backward_need(self) -> NDArray[np.int64]:
        """[N + 1] bytes of B beyond its input: mB_i, with the gradients that it reads and makes."""
        need = self.saved + self.gradient + self.backward_overhead
        need[1:] += self.gradient[:-1]
        need[0] = 0
        return need

    def none_need(self, first: int) -> NDArray[np.int64]:
        """Return [N + 1 - first] bytes of F_ck(first), F_none(first + 1), F_none(first + 2), ...: mNone_i,k(0).

        They are beyond the input of `first`, which is kept, and the gradient that is held meanwhile.
        """
        need = (self.activation + self.forward_none_overhead)[first:]
        need[1:] += self.activation[first:-1]
        return need
