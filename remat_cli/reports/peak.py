"""The tensors at the plain run's peak, and their fate in a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from remat_cli.reports.timeline import Lifetime, Run
from remat_cli.splitting import original


class Fate(StrEnum):
    """The fate in a plan of a tensor at the plain run's peak."""

    KEPT = "kept"
    FREED_EARLIER = "freed earlier"
    PRODUCED_LATER = "made later"
    RECOMPUTED = "recomputed"
    OFFLOADED = "offloaded"
    DIVIDED = "in parts"


@dataclass(frozen=True, slots=True)
class PeakTensor:
    """A tensor at the plain run's peak.

    Attributes:
        name: name of the tensor.
        bytes: its size.
        producer: the op that produces it.
        fate: its fate in the plan.
        recomputations: number of times that the plan recomputes it.
        dropped_at: the step that first removes it from memory; None if it never comes back.
    """

    name: str
    bytes: int
    producer: str
    fate: Fate = Fate.KEPT
    recomputations: int = 0
    dropped_at: int | None = None

    def __str__(self) -> str:
        times = "" if self.recomputations < 2 else f" {self.recomputations}×"
        if self.fate is Fate.OFFLOADED and self.recomputations:
            return f"offloaded and recomputed{times}"
        return f"{self.fate}{times}"


def tensors_at_peak(plain: Run, plan: Run | None = None) -> list[PeakTensor]:
    """Return the tensors in memory at the peak of `plain`.

    Graph inputs and views are left out. The largest come first and, of equal ones, those that the plan changes.

    Args:
        plain: the plain run.
        plan: another run of the graph, or of the same with regions in parts, where a tensor may be in parts alone;
            without one, every tensor counts as kept.
    """
    graph = plain.graph
    tensors = [
        PeakTensor(name, graph.tensors[name].bytes, graph.producer[name].name)
        for name in plain.live_at(plain.trace.peak_step)
        if graph.tensors[name].bytes > 0
    ]
    if plan is not None:
        peak_steps = [index for index, op in plan.computes if op == plain.peak_op or original(op) == plain.peak_op]
        stays = plan.stays_of({tensor.name for tensor in tensors} & plan.graph.producer.keys())
        tensors = [_in_plan(tensor, stays.get(tensor.name, ()), peak_steps) for tensor in tensors]
    return sorted(tensors, key=lambda tensor: (-tensor.bytes, tensor.fate is Fate.KEPT, tensor.name))


def _in_plan(tensor: PeakTensor, stays: Sequence[Lifetime], peak_steps: Sequence[int]) -> PeakTensor:
    return replace(
        tensor,
        fate=_fate(stays, peak_steps),
        recomputations=sum(1 for stay in stays[1:] if not stay.fetched),
        dropped_at=stays[0].end if len(stays) > 1 else None,
    )


def _fate(stays: Sequence[Lifetime], peak_steps: Sequence[int]) -> Fate:
    if not stays:
        return Fate.DIVIDED
    if any(stay.fetched for stay in stays):
        return Fate.OFFLOADED
    if len(stays) > 1:
        return Fate.RECOMPUTED
    (stay,) = stays
    if not peak_steps or any(stay.start <= step < stay.end for step in peak_steps):
        return Fate.KEPT
    return Fate.FREED_EARLIER if stay.end <= peak_steps[0] else Fate.PRODUCED_LATER


def count_fates(tensors: Sequence[PeakTensor]) -> str:
    """Count the fates in a fixed order: "3 kept, 1 recomputed"."""
    counts = Counter(tensor.fate for tensor in tensors)
    return ", ".join(f"{counts[fate]:,} {fate}" for fate in Fate if counts[fate])
