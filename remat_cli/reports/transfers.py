"""A run's transfers: the link's use over time, and tensors on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from remat_cli.core.link import Direction, Duplex
from remat_cli.core.simulate import Transfer
from remat_cli.reports.timeline import Lifetime, Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LINK = "link"
DIRECTION_LABELS = {Direction.TO_HOST: "to host", Direction.TO_DEVICE: "back"}


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor that moves to the host.

    Attributes:
        name: name of the tensor.
        bytes: its size.
        copies: number of copies in both directions.
        away: spans of steps in which it is only on the host, from its free to the start of its copy back.
    """

    name: str
    bytes: int
    copies: int
    away: tuple[Lifetime, ...]


def moved_tensors(run: Run) -> list[Moved]:
    """Return the tensors that a run copies, largest first."""
    copies: dict[str, int] = {}
    for transfer in run.trace.transfers:
        copies[transfer.tensor] = copies.get(transfer.tensor, 0) + 1
    stays = run.stays_of(copies)
    moved = [
        Moved(name, run.graph.tensors[name].bytes, count, _away(stays.get(name, ()), _ends_of(run, name)))
        for name, count in copies.items()
    ]
    return sorted(moved, key=lambda tensor: (-tensor.bytes, tensor.name))


def _ends_of(run: Run, name: str) -> tuple[Lifetime, ...]:
    """Return the start and the end of the step for a resident that is on the host then."""
    steps = len(run.schedule.steps)
    return (Lifetime(0, 0), Lifetime(steps, steps)) if name in run.schedule.on_host else ()


def _away(stays: Sequence[Lifetime], ends: Sequence[Lifetime]) -> tuple[Lifetime, ...]:
    spans = [*ends[:1], *stays, *ends[1:]]
    return tuple(Lifetime(gone.end, back.start) for gone, back in pairwise(spans) if back.fetched or back in ends[1:])


def queues(run: Run) -> Mapping[str, Sequence[Transfer]]:
    """Return the transfers of each queue of the link, by the queue's name.

    The mapping is empty without transfers.
    """
    transfers, link = run.trace.transfers, run.trace.link
    if not transfers or link is None:
        return {}
    if link.duplex is Duplex.HALF:
        return {LINK: transfers}
    return {
        label: [each for each in transfers if each.direction is direction]
        for direction, label in DIRECTION_LABELS.items()
    }


def busy_shares(transfers: Sequence[Transfer], total: int, slots: int) -> NDArray[np.float64]:
    """Return [slots] the share of each slot in which a queue is busy.

    Args:
        transfers: transfers of one queue, which follow each other.
        total: total time of all slots.
        slots: number of slots.
    """
    import numpy as np

    edges = np.linspace(0, total, slots + 1)
    times = np.array([time for each in transfers for time in (each.start, each.end)], dtype=np.float64)
    if not times.size:
        return np.zeros(slots)
    # Busy time of the queue up to each of these times: it grows during a transfer, and not between two.
    busy = np.cumsum(np.diff(times, prepend=times[0]) * (np.arange(times.size) % 2))
    return np.diff(np.interp(edges, times, busy)) * slots / max(total, 1)
