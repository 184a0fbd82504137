"""The fluid model of POFO: costs of blocks while activations move.

Source: Beaumont et al., Efficient Combination of Rematerialization and Offloading for Training DNNs, NeurIPS 2021,
supplement, appendix B, with its errata corrected. Data travels in drops: memory drains at the link's rate while
activations are offloaded, before the loss, and fills at the same rate while they are prefetched, after it.

Two costs are built up block by block:

- OC(i, A, DF, DB), from the start of F(i) to the end of B(i): A bytes stay on the device throughout, DF bytes have yet
  to be offloaded when F(i) starts, DB bytes of earlier inputs must be back when B(i) ends. The input I of the block is
  on the device, and counted in none of the three.
- C(i, j, A, D), of the backward of layers i to j from their input, which is in A: D bytes must be back when it ends.

Each recurrence is written once, for numbers and for arrays: with a Fraction as rate all numbers are exact, with a float
they are arrays of floats, which broadcast.

A part of an activation may *pass*: no backward op reads it, so that it need not be kept where F_all comes first (see
`rotor.needs`). So I is less for F_all than for F_ck, and A of C leaves out the part of the input that passes; except
for layers that are *reopened*, whose input was in memory before. In the paper's chains nothing passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.rotor.needs import RotorNeeds
from remat_cli.planners.shared.chain.measures import Gauge, array_of

# Bytes or time: an int or a Fraction, or a float array.
Amount: TypeAlias = Any
# Whether there is enough memory: a bool, or a bool array.
Fits: TypeAlias = Any
# The cost of layers that remain, given bytes that stay on the device and bytes that must be back.
Rest: TypeAlias = Callable[[Amount, Amount], Amount]


class Item(NamedTuple):
    """The input of a block, which is kept or offloaded as a whole.

    Attributes:
        layer: the layer before the block.
        saved: whether the input is abar of that layer; otherwise it is a alone.
    """

    layer: int
    saved: bool


class FluidState(NamedTuple):
    """Bytes at the start of a block, without its input.

    Attributes:
        kept: A.
        leaving: DF.
        returning: DB.
    """

    kept: Amount
    leaving: Amount
    returning: Amount


class BlockCost(NamedTuple):
    """The costs of the first block of a chain.

    Attributes:
        fits: whether there is enough memory; if not, the times mean nothing.
        forward: time of its forward ops, including idle time.
        backward: time of its backward, including recomputation and idle time.
        item: I, bytes of its input.
        counted: bytes of its input that the next block's input counts, too.
        stays: bytes that stay if the input is offloaded, because the next block's input shares them without counting
            them.
    """

    fits: Fits
    forward: Amount
    backward: Amount
    item: Amount
    counted: Amount = 0
    stays: Amount = 0


@dataclass(frozen=True, eq=False)
class FluidNeeds:
    """The times and bytes of a chain that the recurrences read.

    Attributes:
        layers: times and bytes of N layers.
        activation: [N + 1] kept bytes of a_0 to a_N.
        carried: [N + 1] bytes of each layer's input that are part of its activation, too.
        none_need: [N + 1, N + 1] bytes of F_none(k), or F_ck(k) where s is k, in a block that opens at s, beyond the
            block's input. The running maximum is `layers.check_need`.
    """

    layers: RotorNeeds
    activation: NDArray[np.int64]
    carried: NDArray[np.int64]
    none_need: NDArray[np.int64]

    def __len__(self) -> int:
        """Return N, the number of layers."""
        return len(self.layers)

    @classmethod
    def measured(cls, gauge: Gauge) -> FluidNeeds:
        """Measure the layers of a training graph."""
        layers = RotorNeeds.measured(gauge)
        activations = [layer.activation for layer in gauge.layers]
        activation = array_of(map(gauge.bytes, activations))
        carried = np.roll(gauge.carried(activations), 1, axis=0)  # bytes of the input of s in the activation of k
        new_input = np.roll(activation - carried, 1, axis=1)  # bytes of the input of k beyond that of s
        peaks = array_of(run.peak for run in gauge.no_grad_runs)
        none_need = np.minimum(new_input + peaks, layers.check_need)
        return cls(layers, activation - layers.passing, carried.diagonal(), none_need)


class FluidCosts:
    """The costs of one chain on one device.

    Attributes:
        needs: needs of a chain of N layers.
        memory: M, bytes.
        rate: beta, bytes per unit of time; a Fraction for exact numbers, a float for arrays.
    """

    def __init__(self, needs: FluidNeeds, memory: int, rate: Fraction | float) -> None:
        self.needs = needs
        self.memory = memory
        self.rate = rate
        layers = needs.layers
        self._type = np.dtype(object if isinstance(rate, Fraction) else np.float64)
        self._gradient = self._array(layers.gradient)
        self._all_need = self._array(layers.all_need)
        self._closing_need = self._array(layers.closing_need)
        self._backward_need = self._array(layers.backward_need)
        self._all_time = self._array(layers.forward_time)
        self._closing_time = self._array(layers.closing_time)
        self._backward_time = self._array(layers.backward_time)
        self._no_grad_end = np.cumsum(self._array(layers.no_grad_time))
        self._saved = self._array(layers.saved)
        self._kept = self._array(layers.kept)
        self._activation = self._array(needs.activation)
        self._carried = self._array(needs.carried)
        self._passing = self._array(layers.passing)
        self._tabulate_no_grad()

    def _array(self, values: NDArray[np.int64]) -> NDArray[Any]:
        return values.astype(self._type)

    def _tabulate_no_grad(self) -> None:
        """Tabulate the memory of F_ck(i) to F_none(j), at [i, j].

        The tables have the memory needed, and the part that transfers can free.
        """
        need = self._array(self.needs.none_need)
        travelled = self.rate * self._no_grad_end
        self._none_need = np.zeros_like(need)  # largest need of these ops
        # the same, minus the bytes that have left since the first op began
        self._none_need_leaving = np.zeros_like(need)
        self._none_need_returning = np.zeros_like(need)  # the same, minus the bytes still to return when each op ends
        for first in range(1, len(need)):
            row = need[first, first:]
            before, after = travelled[first - 1 : -1] - travelled[first - 1], travelled[first:]
            self._none_need[first, first:] = np.maximum.accumulate(row)
            self._none_need_leaving[first, first:] = np.maximum.accumulate(row - before)
            self._none_need_returning[first, first:] = np.maximum.accumulate(row + after) - after

    def _idle(self, need: Amount, stored: Amount) -> Amount:
        """Return the time in which the link frees the missing memory.

        See the supplement's Lemma 1.
        """
        return np.maximum(need + stored - self.memory, 0) / self.rate

    def _moved(self, pending: Amount, time: Amount) -> Amount:
        """Return the bytes of `pending` left after the link's work for `time`."""
        return np.maximum(pending - self.rate * time, 0)

    def _no_grad_time(self, first: int, last: Amount) -> Amount:
        return self._no_grad_end[last] - self._no_grad_end[first - 1]

    def item_bytes(self, item: Item, *, checked: bool) -> Amount:
        """Return I of a block that opens with F_ck (`checked`) or F_all."""
        kept = (self._saved if item.saved else self._activation)[item.layer]
        return kept + checked * self._passing[item.layer]

    def all_block(self, item: Item, state: FluidState) -> BlockCost:
        """Return the cost of F_all and B of the layer after `item`.

        See appendix B.1, case 1.
        """
        layer, size = item.layer + 1, self.item_bytes(item, checked=False)
        stored = state.kept + size
        forward_need, backward_need = self._all_need[layer], self._backward_need[layer]
        return BlockCost(
            stored + max(forward_need, backward_need) <= self.memory,
            self._all_time[layer] + self._idle(forward_need, stored + state.leaving),
            self._backward_time[layer] + self._idle(backward_need, stored + state.returning),
            size,
            stays=np.minimum(self._kept_in_common(layer, layer), size),
        )

    def check_block(self, item: Item, last: int, state: FluidState, *, offloaded: bool, backward: Amount) -> BlockCost:
        """Return the cost of F_ck after `item` and F_none up to `last`.

        See appendix B.1, case 2.

        Args:
            item: the block's input.
            last: the last layer of the block; its output is the next block's input.
            state: state at the start of the block.
            offloaded: whether the input leaves once F_ck has read it.
            backward: C(first, last, A + I, DB), reopened.
        """
        first, size = item.layer + 1, self.item_bytes(item, checked=True)
        stored = state.kept + size
        # The part of the input that later layers of the block pass on stays until these have run.
        held = state.kept + self._carried[first] if offloaded else stored
        need, first_need = self._none_need[first, last], self._none_need[first, first]
        idle = self._idle(self._none_need_leaving[first, last], stored + state.leaving)
        return BlockCost(
            (held + need <= self.memory) & (stored + first_need <= self.memory),
            self._no_grad_time(first, last) + idle,
            backward,
            size,
            # The part of abar that a later checkpoint shares may belong to an earlier item, and so be on the host.
            counted=0 if item.saved else self._kept_in_common(first, last),
        )

    def _kept_in_common(self, first: int, last: int) -> Amount:
        """Return the kept bytes common to the input of `first` and a of `last`."""
        return self._activation[last] - self._kept[first, last]

    def after(self, cost: BlockCost, state: FluidState, *, offloaded: bool) -> FluidState:
        """Return the state at the start of the next block (table 2).

        The input may leave during the block's forward, but must be back before its backward begins.

        Args:
            cost: cost of the block.
            state: state at the start of the block.
            offloaded: whether the block's input leaves.
        """
        leaving, returning = state.leaving, self._moved(state.returning, cost.backward)
        if offloaded:
            item = cost.item - cost.stays
            return FluidState(state.kept + cost.stays, self._moved(leaving + item, cost.forward), returning + item)
        return FluidState(state.kept + cost.item - cost.counted, self._moved(leaving, cost.forward), returning)

    def loss(self, item: Item, state: FluidState) -> tuple[Fits, Amount]:
        """Return whether the last layer fits, and its OC.

        All pending bytes must leave, and then come back.
        """
        cost = self.all_block(item, state)
        end = self.after(cost, state, offloaded=False)
        return cost.fits, cost.forward + cost.backward + (end.leaving + end.returning) / self.rate

    def kept_for_check(self, first: int, kept: Amount, *, reopened: bool) -> Amount:
        """Return the bytes kept on the device while layers run that begin with F_ck.

        This is A of the paper. F_ck keeps the whole input of its first layer.

        Args:
            first: number of the first of these layers.
            kept: bytes kept before.
            reopened: whether the input's passing tensors are counted in `kept` already.
        """
        return kept + (not reopened) * self._passing[first - 1]

    def recompute_layer(self, layer: int, kept: Amount, pending: Amount) -> tuple[Fits, Amount]:
        """Return whether F_all and B of one layer fit, and their C.

        See appendix B.3, single layer.

        Args:
            layer: i.
            kept: A.
            pending: D.
        """
        closing_need = self._gradient[layer] + self._closing_need[layer]
        backward_need, backward_time = self._backward_need[layer], self._backward_time[layer]
        need = np.maximum(closing_need - self.rate * backward_time, backward_need)
        time = self._closing_time[layer] + backward_time + self._idle(need, kept + pending)
        return kept + max(closing_need, backward_need) <= self.memory, time

    def recompute_all(self, first: int, last: int, kept: Amount, pending: Amount, rest: Rest) -> tuple[Fits, Amount]:
        """Return whether layers fit that begin with F_all, and their C.

        The order is F_all(first), the layers up to `last`, B(first); see appendix B.3, case 1. Transfers are counted
        from the end: fewer bytes have to be back at earlier times.

        Args:
            first: i.
            last: j.
            kept: A.
            pending: D.
            rest: C(i + 1, j, ., .).
        """
        all_need = self._gradient[last] + self._all_need[first]
        backward_need = self._backward_need[first]
        backward = self._backward_time[first] + self._idle(backward_need, kept + pending)
        pending = self._moved(pending, backward)
        middle = rest(kept + self._saved[first], pending)
        pending = self._moved(pending, middle)
        forward = self._all_time[first] + self._idle(all_need, kept + pending)
        return kept + max(all_need, backward_need) <= self.memory, forward + middle + backward

    def recompute_check(
        self, first: int, cut: Amount, last: int, kept: Amount, pending: Amount, *, again: Rest, rest: Rest
    ) -> tuple[Fits, Amount]:
        """Return whether layers fit with a checkpoint at a_cut, and their C.

        The order is F_ck(first), F_none up to the cut, the rest, and the first part again; see appendix B.3, case 2.
        Transfers are counted from the end here, too.

        Args:
            first: i.
            cut: i' from i to j - 1; may be an array of layers.
            last: j.
            kept: A, see `kept_for_check`.
            pending: D.
            again: C(i, i', ., .), reopened, which runs last.
            rest: C(i' + 1, j, ., .).
        """
        need = self._gradient[last] + self._none_need[first, cut]
        need_returning = self._gradient[last] + self._none_need_returning[first, cut]
        end = again(kept, pending)
        pending = self._moved(pending, end)
        middle = rest(kept + self._kept[first, cut], pending)
        pending = self._moved(pending, middle)
        forward = self._no_grad_time(first, cut) + self._idle(need_returning, kept + pending)
        return kept + need <= self.memory, forward + middle + end
