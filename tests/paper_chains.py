"""Chains of layers as the papers of rotor and POFO have them; of a training graph the planners know more than that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.pofo.model import FluidNeeds
from remat_cli.planners.rotor.needs import RotorNeeds


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


def rotor_needs(chain: Chain) -> RotorNeeds:
    """Return the needs of a chain; all of each activation is kept."""
    count = len(chain) + 1
    check = np.zeros((count, count), dtype=np.int64)
    kept = np.zeros((count, count), dtype=np.int64)
    for first in range(1, count):
        kept[first, first:] = chain.activation[first:]
        check[first, first:] = np.maximum.accumulate(chain.none_need(first))
    return RotorNeeds(
        forward_time=chain.forward_time,
        closing_time=chain.block_end_time,
        no_grad_time=chain.no_grad_time,
        backward_time=chain.backward_time,
        gradient=chain.gradient,
        all_need=chain.all_need,
        closing_need=chain.block_end_need,
        backward_need=chain.backward_need,
        check_need=check,
        saved=chain.saved,
        kept=kept,
        passing=np.zeros(count, dtype=np.int64),
    )


def fluid_needs(chain: Chain) -> FluidNeeds:
    """Return the needs of a chain as the paper has it."""
    layers = rotor_needs(chain)
    none_need = np.zeros_like(layers.kept)
    for first in range(1, len(none_need)):
        none_need[first, first:] = chain.none_need(first)
    return FluidNeeds(layers, chain.activation, chain.activation - layers.kept.diagonal(), none_need)
