"""How much of an optimizer's state waits on the host, and the peak of updates at `optimizer.step()`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from remat_cli.core.link import Link
from remat_cli.pytorch.update.updates import Updates
from remat_cli.units import format_bytes, format_count


@dataclass(frozen=True, eq=False)
class StateLevel:
    """State on the host between updates.

    Attributes:
        hosted: parameters whose state is there.
        bytes: bytes of the state.
        largest: memory that the largest single update takes, with its state if that comes from the host.
    """

    hosted: frozenset[torch.Tensor]
    bytes: int
    largest: int

    def peak(self, at_end: int) -> int:
        """Return the peak of single updates.

        Args:
            at_end: memory at the end of the backward pass if all state is on the device.
        """
        return at_end - self.bytes + self.largest

    def in_words(self, when: str) -> str:
        """Return where updates run, and what is on the host.

        Args:
            when: when they run.
        """
        if not self.hosted:
            return f"updates {when}"
        count = format_count(len(self.hosted))
        return f"updates {when}, state of {count} parameters ({format_bytes(self.bytes)}) on the host"


def state_levels(updates: Updates, *, moves: bool) -> list[StateLevel]:
    """Return levels with more and more state on the host, from what is there now.

    Args:
        updates: the updates.
        moves: whether more state may leave.
    """
    return list(_levels(updates, moves=moves))


def candidates(
    levels: Sequence[StateLevel],
    budget: int,
    update_peak: Callable[[StateLevel], int],
    plain_peak: Callable[[StateLevel], int],
) -> Iterator[StateLevel]:
    """Yield amounts of state on the host, each once: the least for the update, for no recomputation, and all.

    Args:
        levels: all amounts, the least first.
        budget: budget in bytes.
        update_peak: returns the peak of updates.
        plain_peak: returns the peak of both passes without recomputation.
    """
    fitting = [level for level in levels if update_peak(level) <= budget]
    if not fitting:
        return
    yield fitting[0]
    # A level that moves more has a lower peak.
    at = bisect_left(fitting, True, key=lambda level: plain_peak(level) <= budget)
    yield from dict.fromkeys(level for level in (*fitting[at : at + 1], fitting[-1]) if level is not fitting[0])


def moving_time(level: StateLevel, link: Link | None) -> int:
    """Return the time of moving state to the device and back in each step."""
    return 0 if link is None else 2 * link.transfer_time(level.bytes)


def _levels(updates: Updates, *, moves: bool) -> Iterator[StateLevel]:
    costs = updates.costs
    hosted = {parameter for parameter in updates.hosted if parameter in costs}
    moved = sum(costs[parameter].movable_bytes for parameter in hosted)
    staying = sorted((each for each in costs if each not in hosted), key=lambda each: costs[each].temporary_bytes)
    fetched = max((costs[each].movable_bytes + costs[each].temporary_bytes for each in hosted), default=0)
    yield StateLevel(frozenset(hosted), moved, max(fetched, _temporaries(updates, staying)))
    if not moves:
        return
    # The largest last: what a fetched state takes beside the others grows with the level.
    order = sorted((each for each in staying if costs[each].movable_bytes), key=lambda each: costs[each].movable_bytes)
    most_staying = _temporaries(updates, staying)
    for parameter in order:
        hosted.add(parameter)
        cost = costs[parameter]
        moved += cost.movable_bytes
        fetched = max(fetched, cost.movable_bytes + cost.temporary_bytes)
        yield StateLevel(frozenset(hosted), moved, max(fetched, most_staying))


def _temporaries(updates: Updates, parameters: list[torch.Tensor]) -> int:
    return max((updates.costs[parameter].temporary_bytes for parameter in parameters), default=0)
