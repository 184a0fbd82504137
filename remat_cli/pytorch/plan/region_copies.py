"""Copies of blocks' tensors to the host and back, in the order of a step.

A block's input goes out as its forward pass begins, and leaves the device at the end of that pass. Saved tensors go out
at the end of their block's forward pass, and leave at the end of the next block's. Both come back when the backward
pass of another block begins, that of the next block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait
from remat_cli.pytorch.plan.rehearsal import Moment


@dataclass(frozen=True)
class PassOrder:
    """The passes of a step's calls.

    Attributes:
        forward: calls in the order of their forward passes.
        backward: calls in the order of their backward passes.
        fetched_at: for each call with a backward pass, the call at whose backward pass its tensors are fetched.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    fetched_at: Mapping[int, int]

    @classmethod
    def of(cls, moments: Iterable[Moment]) -> PassOrder:
        """Return the order of a step's passes."""
        running = [(moment.running, moment.holding) for moment in moments if moment.running is not None]
        forward = dict.fromkeys(call for (call, which), _ in running if which == "forward")
        backward = dict.fromkeys(call for (call, which), _ in running if which == "backward")
        fetched_at: dict[int, int] = {}
        for (call, which), holding in running:
            if which == "backward":
                for each in (call, max(holding, default=call)):
                    if each in backward:
                        fetched_at.setdefault(each, call)
        return cls(tuple(forward), tuple(backward), fetched_at)

    def before(self, call: int) -> int | None:
        """Return the call whose forward pass comes just before another's."""
        at = self.forward.index(call)
        return self.forward[at - 1] if at else None

    def between(self, call: int) -> tuple[int, ...]:
        """Return the calls whose backward passes run while a call's tensors come back."""
        return self.backward[self.backward.index(self.fetched_at[call]) : self.backward.index(call)]


def with_copies(
    schedule: Schedule, order: PassOrder, paths: Mapping[int, str], inputs: Set[int], saved: Set[int]
) -> Schedule:
    """Return a schedule with copies, issued as when the step runs.

    Args:
        schedule: the step without copies.
        order: order of its passes.
        paths: paths of the calls.
        inputs: calls whose inputs are on the host between their passes.
        saved: calls whose saved tensors are.
    """

    def moved(call: int) -> list[str]:
        tensors = [input_of(paths[call])] if call in inputs else []
        return tensors + ([saved_by(paths[call])] if call in saved else [])

    before: dict[str, list[Step]] = {}
    after: dict[str, list[Step]] = {}
    for call in order.forward:
        end = after.setdefault(f"forward of {paths[call]}", [])
        if call in inputs:
            name = input_of(paths[call])
            after[f"input of {paths[call]}"] = [Offload(name)]
            end += [Wait(name), Free(name)]
        if (former := order.before(call)) is not None and former in saved:
            end += [Wait(saved_by(paths[former])), Free(saved_by(paths[former]))]
        if call in saved:
            end.append(Offload(saved_by(paths[call])))
    for call in order.backward:
        coming = [each for each in order.fetched_at if order.fetched_at[each] == call]
        fetches = [Prefetch(name) for each in coming for name in moved(each)]
        before[f"backward of {paths[call]}"] = [*fetches, *map(Wait, moved(call))]
    steps: list[Step] = []
    for step in schedule.steps:
        op = step.op if isinstance(step, Compute | Inplace) else ""
        steps += [*before.get(op, ()), step, *after.get(op, ())]
    return Schedule(tuple(steps))


def input_of(path: str) -> str:
    """Return the name of the tensor of a call's own inputs."""
    return f"given to {path}"


def saved_by(path: str) -> str:
    """Return the name of the tensor of all that a call keeps between its passes."""
    return f"kept by {path}"


def waits(
    order: PassOrder, passes: Mapping[tuple[int, str], Any], inputs: Mapping[int, Any], saved: Mapping[int, Any]
) -> list[Any]:
    """Return lower bounds on the waits of a step's passes, as expressions.

    A wait is at least the copies of a stretch beyond the passes that run meanwhile, and at least 0; it is the larger of
    the two, as all copies of a stretch are waited for at its end.

    Args:
        order: order of the passes.
        passes: time of each pass.
        inputs: time of the copy of each call's input, 0 if it stays.
        saved: time of the copy of each call's saved tensors, 0 if they stay.
    """
    bounds: list[Any] = []
    for call in order.forward:
        former = order.before(call)
        copies = inputs.get(call, 0) + (0 if former is None else saved.get(former, 0))
        bounds.append(copies - passes[call, "forward"])
    for call in order.backward:
        meanwhile = sum(passes[other, "backward"] for other in order.between(call))
        bounds.append(inputs.get(call, 0) + saved.get(call, 0) - meanwhile)
    return bounds
