"""Decisions of POFO: blocks, offloaded inputs, recomputations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from remat_cli.planners.pofo.model import Amount, FluidCosts, FluidState, Item, Rest
from remat_cli.planners.shared.chain.model import ChainStep, Operation


@dataclass(frozen=True, slots=True)
class KeepFirst:
    """Layers that begin with F_all(layer), and end with B(layer).

    Attributes:
        layer: the first layer.
        rest: recomputation of the layers after it; None without such layers.
    """

    layer: int
    rest: Recomputation | None

    @property
    def first(self) -> int:
        """The first layer."""
        return self.layer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Layers in two parts with a checkpoint in between.

    F_ck and F_none lead to the second part, which is computed first; then the first part is recomputed.

    Attributes:
        again: the first part, from the input.
        rest: the second part, from the checkpoint.
    """

    again: Recomputation
    rest: Recomputation

    @property
    def first(self) -> int:
        """The first layer."""
        return self.again.first


Recomputation: TypeAlias = KeepFirst | Checkpoint


@dataclass(frozen=True, slots=True)
class Block:
    """Layers opened together in the forward phase.

    Attributes:
        first: the first layer, whose input is the block's input.
        last: the last layer.
        offloaded: whether the input goes to the host until the block's backward.
        recomputation: recomputation for the block's backward; None for F_all and B of its single layer.
    """

    first: int
    last: int
    offloaded: bool
    recomputation: Recomputation | None


@dataclass(frozen=True, slots=True)
class Structure:
    """A persistent schedule of a chain.

    Attributes:
        blocks: blocks of all layers but the loss, in order.
        loss: the layer after these blocks.
    """

    blocks: tuple[Block, ...]
    loss: int

    def items(self) -> tuple[Item, ...]:
        """Return the inputs of the blocks and of the loss."""
        saved = [False, *(block.recomputation is None for block in self.blocks)]
        firsts = [*(block.first for block in self.blocks), self.loss]
        return tuple(Item(first - 1, is_saved) for first, is_saved in zip(firsts, saved, strict=True))

    def offloaded(self) -> tuple[Item, ...]:
        """Return the items that go to the host, in the order of production."""
        return tuple(item for block, item in zip(self.blocks, self.items(), strict=False) if block.offloaded)

    def steps(self) -> list[ChainStep]:
        """Return the operations of the chain in order, without transfers."""
        forward: list[ChainStep] = []
        for block in self.blocks:
            forward += opening(block.first, block.last, keep=block.recomputation is None)
        forward += opening(self.loss, self.loss, keep=True)
        backward = [ChainStep(Operation.BACKWARD, self.loss)]
        for block in reversed(self.blocks):
            if block.recomputation is None:
                backward.append(ChainStep(Operation.BACKWARD, block.first))
            else:
                backward += recomputed(block.recomputation)
        return forward + backward


def opening(first: int, last: int, *, keep: bool) -> Sequence[ChainStep]:
    """Return F_all(first) to keep it; otherwise F_ck and F_none to `last`."""
    if keep:
        return [ChainStep(Operation.FORWARD_ALL, first)]
    none = (ChainStep(Operation.FORWARD_NONE, layer) for layer in range(first + 1, last + 1))
    return [ChainStep(Operation.FORWARD_CHECK, first), *none]


def recomputed(part: Recomputation) -> Iterator[ChainStep]:
    """Yield the operations of a recomputation in order."""
    match part:
        case KeepFirst(layer, rest):
            yield ChainStep(Operation.FORWARD_ALL, layer)
            if rest is not None:
                yield from recomputed(rest)
            yield ChainStep(Operation.BACKWARD, layer)
        case Checkpoint(again, rest):
            yield from opening(part.first, rest.first - 1, keep=False)
            yield from recomputed(rest)
            yield from recomputed(again)


def recomputation_time(
    model: FluidCosts, part: Recomputation, last: int, kept: Amount, pending: Amount, *, reopened: bool
) -> Amount:
    """Return C of a recomputation up to `last`; infinite if it does not fit.

    Args:
        model: the model, with a Fraction as rate for an exact result.
        part: the recomputation.
        last: its last layer.
        kept: A: bytes on the device throughout, including the input.
        pending: D: bytes that must be back at the end.
        reopened: whether A includes the part of the input that passes, see `pofo.model`.
    """
    first = part.first

    def cost_of(inner: Recomputation, end: int, *, reopened: bool) -> Rest:
        return lambda kept, pending: recomputation_time(model, inner, end, kept, pending, reopened=reopened)

    if isinstance(part, Checkpoint):
        cut = part.rest.first - 1
        kept = model.kept_for_check(first, kept, reopened=reopened)
        again, rest = cost_of(part.again, cut, reopened=True), cost_of(part.rest, last, reopened=False)
        fits, time = model.recompute_check(first, cut, last, kept, pending, again=again, rest=rest)
    elif part.rest is None:
        fits, time = model.recompute_layer(first, kept, pending)
    else:
        fits, time = model.recompute_all(first, last, kept, pending, cost_of(part.rest, last, reopened=False))
    return time if fits else inf


def fluid_time(model: FluidCosts, structure: Structure) -> Amount:
    """Return a structure's time in the model; infinite if it does not fit.

    Args:
        model: the model, with a Fraction as rate for an exact result.
        structure: a structure of the model's chain.
    """
    state, total = FluidState(0, 0, 0), 0
    *items, last = structure.items()
    for block, item in zip(structure.blocks, items, strict=True):
        if block.recomputation is None:
            cost = model.all_block(item, state)
        else:
            kept = state.kept + model.item_bytes(item, checked=True)
            backward = recomputation_time(model, block.recomputation, block.last, kept, state.returning, reopened=True)
            cost = model.check_block(item, block.last, state, offloaded=block.offloaded, backward=backward)
        if not cost.fits or cost.backward == inf:
            return inf
        total += cost.forward + cost.backward
        state = model.after(cost, state, offloaded=block.offloaded)
    fits, time = model.loss(last, state)
    return total + time if fits else inf
