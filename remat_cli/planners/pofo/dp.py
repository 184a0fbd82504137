"""The dynamic program of POFO over a grid of memory states.

It finds the structure of least fluid time. Source: as `pofo.model`. Sizes are exact; states are rounded to the grid.
With states rounded up, the table underestimates neither the time nor the memory of any structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from remat_cli.errors import UsageError
from remat_cli.planners.pofo.model import BlockCost, FluidCosts, FluidNeeds, FluidState, Item, Rest
from remat_cli.planners.pofo.options import StateRounding
from remat_cli.planners.pofo.structure import Block, Checkpoint, KeepFirst, Recomputation, Structure
from remat_cli.units import format_bytes

Floats = NDArray[np.float64]
Slots = NDArray[np.intp]
Layers: TypeAlias = int | Slots
# The fraction of a slot that is rounded down. Moved bytes are floats: their errors must not cost a slot.
_ROUNDED_DOWN = {StateRounding.UP: 1e-9, StateRounding.NEAREST: 0.5}
# The largest size of a table.
_MOST_BYTES = 2 * 10**9


class GridState(NamedTuple):
    """A memory state in slots of the grid, like `FluidState` in bytes.

    The arrays broadcast.
    """

    kept: Slots
    leaving: Slots
    returning: Slots


class _MethodCosts(NamedTuple):
    """The cost of one method to recompute layers, by state.

    Attributes:
        time: C of each state.
        parts: for each part of the layers: the states (kept, pending) in which it is recomputed.
    """

    time: Floats
    parts: Sequence[tuple[Slots, Slots]]


class _Opening(NamedTuple):
    """One choice for the first block of a chain, for some states.

    Attributes:
        last: last layer of the block.
        is_kept: F_all; false: F_ck.
        offloaded: whether the block's input goes to the host.
        time: OC from the block on, by state.
        after: the states in which the next block opens.
    """

    last: int
    is_kept: bool
    offloaded: bool
    time: Floats
    after: GridState


class PofoTable:
    """OC and C of one chain, for every state on the grid.

    Attributes:
        slots: number of slots of the memory; they may cover a little less than the memory.
    """

    def __init__(
        self, needs: FluidNeeds, memory: int, rate: float, slots: int, rounding: StateRounding = StateRounding.UP
    ) -> None:
        """Fill the table.

        Args:
            needs: needs of a chain of N layers.
            memory: M, bytes; at least 0.
            rate: beta, bytes per unit of time.
            slots: largest number of slots; a slot is a whole number of bytes.
            rounding: rounding of states, up or nearest.

        Raises:
            UsageError: the table would not fit in memory.
        """
        self._model = FluidCosts(needs, memory, rate)
        self._layers = len(needs)
        self._rounded_down = _ROUNDED_DOWN[rounding]
        self._slot_bytes = max(1, -(-memory // slots))
        self.slots = memory // self._slot_bytes
        # The slot beyond the grid stands for everything too large: its entries stay infinite.
        self._beyond = self.slots + 1
        size = self._beyond + 1
        _check_size(self._layers, size)
        # C(i, j, ., .), by whether the layers are reopened.
        self._recompute = [np.full((self._layers + 1, self._layers, size, size), inf) for _ in range(2)]
        self._open = np.full((2, self._layers + 1, size, size, size), inf)
        self._fill_recompute()
        self._fill_open()

    def time(self, reserved: int = 0) -> float:
        """Return the least time of a structure; infinite if none fits.

        `reserved` slots stay free.
        """
        return float(self._open[0, 1, reserved, 0, 0])

    def structure(self, reserved: int = 0) -> Structure:
        """Return a structure with the time of `time`, which must be finite."""
        blocks = []
        item = Item(0, saved=False)
        state = GridState(*(np.array([[[slot]]]) for slot in (reserved, 0, 0)))
        while item.layer + 1 < self._layers:
            best = min(self._openings(item, state), key=lambda opening: opening.time.item())
            first = item.layer + 1
            recomputation = None
            if not best.is_kept:
                kept = self._slots(self._bytes(state.kept) + self._model.item_bytes(item, checked=True))
                recomputation = self._recomputation(first, best.last, kept, state.returning, reopened=True)
            blocks.append(Block(first, best.last, best.offloaded, recomputation))
            item, state = Item(best.last, saved=best.is_kept), best.after
        return Structure(tuple(blocks), self._layers)

    def _bytes(self, slots: Slots) -> Floats:
        return np.asarray(slots * float(self._slot_bytes))

    def _slots(self, amount: Floats) -> Slots:
        slots = np.ceil(amount / self._slot_bytes - self._rounded_down)
        return np.asarray(np.clip(slots, 0, self._beyond), dtype=np.intp)

    def _fill_open(self) -> None:
        grid = GridState(*np.ogrid[: self._beyond, : self._beyond, : self._beyond])
        on_grid = (slice(self._beyond),) * 3
        for layer in range(self._layers, 0, -1):
            for saved in (False, True) if layer > 1 else (False,):
                item = Item(layer - 1, saved)
                best = np.full((self._beyond,) * 3, inf)
                if layer == self._layers:
                    fits, time = self._model.loss(item, FluidState(*map(self._bytes, grid)))
                    best = np.where(fits, time, inf)
                else:
                    for opening in self._openings(item, grid):
                        np.minimum(best, opening.time, out=best)
                self._open[int(saved), layer][on_grid] = best

    def _openings(self, item: Item, grid: GridState) -> Iterator[_Opening]:
        """Yield every choice for the block after `item` that fits some state."""
        model, first = self._model, item.layer + 1
        state = FluidState(*map(self._bytes, grid))
        # The chain's own input is not offloaded: it stays in memory from start to end.
        choices = (False, True) if item.layer > 0 else (False,)
        stored = self._slots(state.kept + model.item_bytes(item, checked=True))
        for last in range(first, self._layers):
            recompute = self._recompute[True][first, last][stored, grid.returning]
            for offloaded in choices:
                cost = model.check_block(item, last, state, offloaded=offloaded, backward=recompute)
                yield from self._opening(last, cost, state, is_kept=False, offloaded=offloaded)
        cost = model.all_block(item, state)
        for offloaded in choices:
            yield from self._opening(first, cost, state, is_kept=True, offloaded=offloaded)

    def _opening(
        self, last: int, cost: BlockCost, state: FluidState, *, is_kept: bool, offloaded: bool
    ) -> Iterator[_Opening]:
        """Yield a choice for a block with its time, if it fits some state."""
        if not np.any(cost.fits & np.isfinite(cost.backward)):
            return
        after = GridState(*map(self._slots, self._model.after(cost, state, offloaded=offloaded)))
        size = self._beyond + 1
        place = (after.kept * size + after.leaving) * size + after.returning
        time = self._open[int(is_kept), last + 1].ravel().take(place)
        time += np.where(cost.fits, cost.forward, inf)
        time += cost.backward
        yield _Opening(last, is_kept, offloaded, time, after)

    def _fill_recompute(self) -> None:
        grid = np.arange(self._beyond)
        kept, pending = grid[:, None], grid[None, :]
        for first in range(self._layers - 1, 0, -1):
            for last in range(first, self._layers):
                keep = self._keep_first(first, last, kept, pending).time
                for reopened in (False, True):
                    check = self._checkpoints(first, last, kept, pending, reopened=reopened).time
                    best = np.minimum(keep, check.min(axis=0, initial=inf))
                    self._recompute[reopened][first, last, :-1, :-1] = best

    def _keep_first(self, first: int, last: int, kept: Slots, pending: Slots) -> _MethodCosts:
        """Return C if F_all(first) comes first.

        The remaining part is the layers after `first`, if any.
        """
        amounts = self._bytes(kept), self._bytes(pending)
        parts: list[tuple[Slots, Slots]] = []
        if first == last:
            fits, time = self._model.recompute_layer(first, *amounts)
        else:
            rest = self._looked_up(first + 1, last, parts, reopened=False)
            fits, time = self._model.recompute_all(first, last, *amounts, rest)
        return _MethodCosts(np.where(fits, time, inf), parts)

    def _checkpoints(self, first: int, last: int, kept: Slots, pending: Slots, *, reopened: bool) -> _MethodCosts:
        """Return [last - first, ...] C by checkpoint, from a_first to a_(last - 1).

        The parts are `again` and `rest`.
        """
        cut = np.arange(first, last)[:, None, None]
        amounts = self._model.kept_for_check(first, self._bytes(kept), reopened=reopened), self._bytes(pending)
        parts: list[tuple[Slots, Slots]] = []
        again = self._looked_up(first, cut, parts, reopened=True)
        rest = self._looked_up(cut + 1, last, parts, reopened=False)
        fits, time = self._model.recompute_check(first, cut, last, *amounts, again=again, rest=rest)
        return _MethodCosts(np.where(fits, time, inf), parts)

    def _looked_up(self, first: Layers, last: Layers, parts: list[tuple[Slots, Slots]], *, reopened: bool) -> Rest:
        """Return C(first, last, ., .) from the table.

        The states that are looked up are added to `parts`.
        """

        def look_up(kept: Floats, pending: Floats) -> Floats:
            slots = self._slots(kept), self._slots(pending)
            parts.append(slots)
            return np.asarray(self._recompute[reopened][first, last, *slots])

        return look_up

    def _recomputation(self, first: int, last: int, kept: Slots, pending: Slots, *, reopened: bool) -> Recomputation:
        """Return the recomputation behind C at a single state, [1, 1, 1]."""
        if first == last:
            return KeepFirst(first, None)
        keep = self._keep_first(first, last, kept, pending)
        check = self._checkpoints(first, last, kept, pending, reopened=reopened)
        if keep.time.item() <= check.time.min():
            return KeepFirst(first, self._recomputation(first + 1, last, *keep.parts[0], reopened=False))
        best = int(check.time.argmin())
        cut = first + best
        (again_kept, again_pending), (rest_kept, rest_pending) = check.parts
        again = self._recomputation(first, cut, again_kept, again_pending, reopened=True)
        rest = self._recomputation(cut + 1, last, rest_kept[[best]], rest_pending[[best]], reopened=False)
        return Checkpoint(again, rest)


def _check_size(layers: int, states: int) -> None:
    """Refuse a table that would be too large."""
    table_bytes = 8 * 2 * (layers + 1) * (states**3 + layers * states**2)
    if table_bytes > _MOST_BYTES:
        raise UsageError(
            f"pofo's table of {layers} layers and {states} slots takes {format_bytes(table_bytes)}, more than "
            f"{format_bytes(_MOST_BYTES)}",
            hint="give fewer segments or memory_slots",
        )
