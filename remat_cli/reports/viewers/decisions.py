"""The decisions of a plan on each forward op, for viewers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from remat_cli.core.graph import Phase
from remat_cli.reports.timeline import Lifetime, Run

# Ops of a part of a region, as `pytorch/capture/split.py` names them.
_PART = re.compile(r".*_part\d+(_\d+)?")


class Decision(StrEnum):
    """A decision on the outputs of an op."""

    KEEP = "keep"  # kept for the backward pass; for inference, outputs of an op that runs once
    FREE = "free"  # freed at its last use in the forward pass: the backward pass does not read it
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"
    SPLIT = "split"  # the op works on some of the rows, one part of several


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions on an op.

    Attributes:
        op: name of the op.
        outputs: names of its outputs.
        bytes: bytes of its outputs.
        decisions: the decisions; an offloaded or split op may be recomputed, too.
        recomputed_at: steps that rerun it.
    """

    op: str
    outputs: tuple[str, ...]
    bytes: int
    decisions: tuple[Decision, ...]
    recomputed_at: tuple[int, ...]

    @property
    def main(self) -> Decision:
        """The first decision."""
        return self.decisions[0]

    def __str__(self) -> str:
        return " and ".join(self.decisions)


def decided(run: Run) -> Iterator[Decided]:
    """Yield a run's decisions on each forward op, in order."""
    again: dict[str, list[int]] = {}
    recomputing = frozenset(run.recomputing)
    for index, name in run.computes:
        if index in recomputing:
            again.setdefault(name, []).append(index)
    lifetimes = run.lifetimes
    for op in run.graph.ops:
        if op.phase is Phase.FORWARD:
            stays = [stay for name in op.outputs for stay in lifetimes[name]]
            steps = tuple(again.get(op.name, ()))
            size = sum(run.graph.tensors[name].bytes for name in op.outputs)
            split = (Decision.SPLIT,) if op.signature and _PART.fullmatch(op.name) else ()
            yield Decided(op.name, op.outputs, size, (*split, *_decisions(run, stays, bool(steps))), steps)


def _decisions(run: Run, stays: list[Lifetime], again: bool) -> Iterator[Decision]:
    if any(stay.fetched for stay in stays):
        yield Decision.OFFLOAD
        if again:
            yield Decision.RECOMPUTE
    elif again:
        yield Decision.RECOMPUTE
    else:
        turn = run.first_backward
        kept = turn is None or any(stay.start < turn < stay.end for stay in stays)
        yield Decision.KEEP if kept else Decision.FREE
