"""Several plans behind two graphs that torch captures once.

What may be handed over to the backward pass has a *slot* each, and a plan that does not hand it over leaves the slot
empty. The first slot is a *ticket*: an empty tensor whose shape tells what ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from remat_cli.core.graph import Phase
from remat_cli.core.schedule import Schedule
from remat_cli.formats.torch.internals import (
    Captured,
    boxed,
    boxed_backward,
    outputs_of,
    primals_of,
    run_by,
    save_without_version_check,
    tangents_of,
)
from remat_cli.formats.torch.joint import Joint
from remat_cli.formats.torch.ops import tensors_of
from remat_cli.runtime.torch.program import halves


@dataclass(frozen=True, eq=False)
class Written:
    """A schedule as it runs.

    Attributes:
        forward: runs the forward pass; takes primals and sizes.
        backward: runs the backward pass; takes sizes, what was handed over, and the gradients that come in.
        slots: where what is handed over stands among the slots, in its order.
    """

    forward: Callable[[list[Any]], Any]
    backward: Callable[[list[Any]], Any]
    slots: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Entry:
    """What runs at certain sizes.

    Attributes:
        written: the schedule.
        numbers: the values of the size nodes.
    """

    written: Written
    numbers: Sequence[int | float]


class Slots:
    """The slots of a captured graph, and what fills them.

    Attributes:
        entries: what can run, by the number on the ticket.
    """

    def __init__(self, given: Captured, joint: Joint) -> None:
        """Make the slots.

        Args:
            given: the graph as torch handed it over.
            joint: the same at any sizes, resolved.
        """
        self.entries: list[Entry] = []
        self._given = replace(given, primals=())  # what the first call has brought would stay in memory
        self._checked = _all_slots(joint)
        self._places = {name: place for place, name in enumerate(self._checked)}

    def written(self, joint: Joint, schedule: Schedule) -> Written:
        """Return a schedule as it runs.

        Args:
            joint: the graph at the sizes that the schedule was verified for.
            schedule: what is carried out.
        """
        made = halves(joint, schedule)
        slots = tuple(self._places[node.name] for node in made.saved)
        return Written(boxed(made.forward), boxed_backward(made.backward), slots)

    def add(self, entry: Entry) -> int:
        """Add what can run; return its number."""
        self.entries.append(entry)
        return len(self.entries) - 1

    def forward(self, number: int, args: list[Any]) -> tuple[Any, ...]:
        """Run the forward pass of an entry on the primals; return its outputs, the ticket and the slots."""
        entry = self.entries[number]
        given = [*args, *entry.numbers]
        args.clear()
        made = entry.written.forward(given)
        outputs = self._given.forward_outputs
        slots = [torch.empty(0)] * len(self._checked)
        for place, value in zip(entry.written.slots, made[outputs:], strict=True):
            slots[place] = value
        return *made[:outputs], torch.empty(0, number), *slots

    def backward(self, args: list[Any]) -> Any:
        """Run the backward pass on the ticket, the slots and the gradients that come in; return the gradients."""
        entry = self.entries[args[0].shape[1]]
        tangents = 1 + len(self._checked)
        given = [*entry.numbers, *(args[1 + place] for place in entry.written.slots), *args[tangents:]]
        args.clear()
        return entry.written.backward(given)

    def interface(
        self, run_forward: Callable[[list[Any]], Any], run_backward: Callable[[list[Any]], Any]
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the two graphs as torch is to see them, run by functions."""
        forward, backward = self._forward_interface(), self._backward_interface()
        run_by(forward, run_forward)
        run_by(backward, run_backward)
        return forward, backward

    def _forward_interface(self) -> fx.GraphModule:
        """Return the forward pass: primals, to outputs, ticket and slots."""
        given, graph = self._given, fx.Graph()
        for primal in primals_of(given.module.graph):
            _input(graph, primal)
        outputs = [_output(graph, value) for value in outputs_of(given.module.graph)[: given.forward_outputs]]
        for checked in (True, *self._checked.values()):
            slot = graph.call_function(_stand_in)
            slot.meta = {"val": _empty(given)}
            if not checked:
                save_without_version_check(slot)
            outputs.append(slot)
        graph.output(tuple(outputs))
        return fx.GraphModule(given.module, graph)

    def _backward_interface(self) -> fx.GraphModule:
        """Return the backward pass: ticket, slots and tangents, to gradients."""
        given, graph = self._given, fx.Graph()
        for name in ("ticket", *(f"slot_{name}" for name in self._checked)):
            graph.placeholder(name).meta = {"val": _empty(given)}
        for tangent in tangents_of(given.module.graph):
            _input(graph, tangent)
        graph.output(tuple(_output(graph, value) for value in outputs_of(given.module.graph)[given.forward_outputs :]))
        return fx.GraphModule(given.module, graph)


def _all_slots(joint: Joint) -> Mapping[str, bool]:
    """Return the names of what a plan may hand over, and whether torch is to check that it does not change.

    What torch is not to check comes last.
    """
    forward = (value for op in joint.ops if op.phase is Phase.FORWARD for value in op.values)
    inputs = (node for node in joint.inputs if node.op == "placeholder")
    slots = {node.name: joint.storage(node) not in joint.changed for node in (*inputs, *forward)}
    return dict(sorted(slots.items(), key=lambda slot: not slot[1]))


def _stand_in() -> None:
    """Stand for a value in a graph that torch looks at and does not run."""


def _input(graph: fx.Graph, node: fx.Node) -> None:
    graph.placeholder(node.name).meta = dict(node.meta)


def _output(graph: fx.Graph, value: Any) -> Any:
    if not isinstance(value, fx.Node):
        return value
    output = graph.call_function(_stand_in)
    output.meta = dict(value.meta)
    return output


def _empty(given: Captured) -> torch.Tensor:
    tensors = (tensor for node in given.module.graph.nodes for tensor in tensors_of(node.meta.get("val")))
    with next(tensors).fake_mode:  # type: ignore[attr-defined]
        return torch.empty(0)
