"""One captured graph for calls of many sizes, run by few plans.

A plan that was made for some sizes is carried over to others of the same ops where the judge finds that it fits there.
Else, or where it would take more time than is needed, one is made for these sizes, with some room for larger ones. The
first is made for the largest sizes that calls have had: before torch captures sizes as symbols, it has seen others.

torch is given two graphs that stand for all of these plans: what may be handed over to the backward pass has a *slot*
each, and a plan that does not hand it over leaves the slot empty. The first slot is a *ticket*: an empty tensor whose
shape tells which entry ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

import torch
from torch import fx, nn

from remat_cli.core.graph import Graph, Op, Phase
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.errors import DoesNotFit
from remat_cli.formats.torch.internals import (
    Captured,
    boxed,
    outputs_of,
    primals_of,
    run_by,
    save_without_version_check,
    tangents_of,
)
from remat_cli.formats.torch.joint import Joint
from remat_cli.formats.torch.ops import tensors_of
from remat_cli.formats.torch.sizes import SizedJoint, Sizes, Values
from remat_cli.runtime.torch.choice import ScheduleSource
from remat_cli.runtime.torch.program import halves
from remat_cli.runtime.torch.record import PlannedGraph, PlanRecord
from remat_cli.runtime.torch.waiting import DIVIDING

# A plan within bytes is made for sizes this much larger than those that ask for it.
_ROOM = 1.25
# A plan that takes more than this share of time is not carried over to where the plain run has less than this share of
# the memory: there a new one takes less time.
_WORTH, _SMALLER = 0.02, 0.5
# Larger sizes stay multiples of the powers of two that those are multiples of, up to this.
_LARGEST_STEP = 64


@dataclass(frozen=True, eq=False)
class _Program:
    """A plan as it runs.

    Attributes:
        planned: the plan at the sizes that it was made for.
        sized: the graph at these sizes.
        schedule: what is carried out.
        overhead: of the plan.
        forward: runs the forward pass; takes primals and sizes.
        backward: runs the backward pass; takes sizes, what was handed over, and the gradients that come in.
        slots: where what is handed over stands among the slots, in its order.
    """

    planned: PlannedGraph
    sized: SizedJoint
    schedule: Schedule
    overhead: float
    forward: Callable[[list[Any]], Any]
    backward: Callable[[list[Any]], Any]
    slots: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Entry:
    """What runs at certain sizes.

    Attributes:
        program: the plan.
        planned: the same, as the judge finds it at these sizes.
        numbers: the values of the size nodes.
    """

    program: _Program
    planned: PlannedGraph
    numbers: list[int | float]


class SizedStep:
    """A captured graph that is called with many sizes."""

    def __init__(
        self,
        sizes: Sizes,
        given: Captured,
        source: ScheduleSource,
        record: PlanRecord,
        modules: Sequence[nn.Module],
    ) -> None:
        self._sizes = sizes
        self._given = given
        self._source = source
        self._record = record
        self._modules = modules
        self._programs: list[_Program] = []
        self._entries: list[_Entry] = []
        self._numbers: dict[Values, int] = {}  # of the entries
        self._largest = self._largest_so_far()
        self._first = sizes.at(self._largest)
        self._slots = _all_slots(self._first.joint)
        self._places = {name: place for place, name in enumerate(self._slots)}

    def interface(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the two graphs that stand for all plans; plan for the sizes with which the step was captured.

        Raises:
            DoesNotFit: no plan fits there.
        """
        self._number(self._sizes.first)
        forward, backward = _forward_interface(self._given, self._slots), _backward_interface(self._given, self._slots)
        run_by(forward, self.run_forward)
        run_by(backward, self.run_backward)
        return forward, backward

    def run_forward(self, args: list[Any]) -> tuple[Any, ...]:
        """Run the forward pass on the primals; return its outputs, the ticket and the slots.

        Raises:
            DoesNotFit: no plan fits at these sizes.
        """
        number = self._number(self._sizes.values(args))
        entry = self._entries[number]
        given = [*args, *entry.numbers]
        args.clear()
        with self._record.runs(entry.planned):
            made = entry.program.forward(given)
        outputs = self._given.forward_outputs
        slots = [torch.empty(0)] * len(self._slots)
        for place, value in zip(entry.program.slots, made[outputs:], strict=True):
            slots[place] = value
        return *made[:outputs], torch.empty(0, number), *slots

    def run_backward(self, args: list[Any]) -> Any:
        """Run the backward pass on the ticket, the slots and the gradients that come in; return the gradients."""
        entry = self._entries[args[0].shape[1]]
        tangents = 1 + len(self._slots)
        given = [*entry.numbers, *(args[1 + place] for place in entry.program.slots), *args[tangents:]]
        args.clear()
        self._record.runs_back()
        return entry.program.backward(given)

    def _number(self, values: Values) -> int:
        """Return the number of the entry for these sizes."""
        if values not in self._numbers:
            carried = self._carried(values)
            if carried is None:
                with self._source.waiting.phase(DIVIDING):
                    carried = self._made(values)
            program, planned = carried
            planned.inputs = self._sizes.input_shapes(values)
            self._numbers[values] = len(self._entries)
            self._entries.append(_Entry(program, planned, self._sizes.numbers(values)))
        return self._numbers[values]

    def _carried(self, values: Values) -> tuple[_Program, PlannedGraph] | None:
        """Return the plan of least overhead that fits at these sizes; None where a new one is called for."""
        graphs: dict[Graph, Graph] = {}
        for program in sorted(self._programs, key=lambda program: program.overhead):
            planned = self._at(program, values, graphs)
            if planned is None:
                continue
            smaller = planned.plain_peak_bytes < _SMALLER * program.planned.plain_peak_bytes
            if program.overhead > _WORTH and smaller:
                return None
            if planned not in program.planned.carried:
                program.planned.carried.append(planned)
            return program, planned
        return None

    def _at(self, program: _Program, values: Values, graphs: dict[Graph, Graph]) -> PlannedGraph | None:
        """Return what the judge makes of a plan at other sizes; None where it is above the budget.

        Args:
            program: the plan.
            values: the sizes.
            graphs: at these sizes, by those that were planned; what is missing is added.
        """
        given = program.planned.graph
        if given not in graphs:
            graphs[given] = resized(given, self._sizes.bytes_at(program.sized, values))
        return self._source.carried(program.planned, graphs[given], program.schedule)

    def _made(self, values: Values) -> tuple[_Program, PlannedGraph]:
        """Make a plan that fits at these sizes, for larger ones if it can be."""
        if not self._programs and self._largest != values:
            with suppress(DoesNotFit):  # then these sizes alone have to fit
                if self._made_for(self._largest, values) and (found := self._carried(values)) is not None:
                    return found
        asked = self._roomier(values) if self._source.has_room else values
        if asked != values:
            with suppress(DoesNotFit):  # then less room is left
                if (found := self._made_for(asked, values)) is not None:
                    return found
        found = self._made_for(values, values)
        assert found is not None
        return found

    def _made_for(self, asked: Values, values: Values) -> tuple[_Program, PlannedGraph] | None:
        """Make a plan for some sizes, and return it as it is at others; None where it does not fit there.

        Raises:
            DoesNotFit: there is none.
        """
        sized = self._first if asked == self._largest else self._sizes.at(asked)
        planned = self._source.planned(sized.joint, sized.captured, self._modules)
        planned = replace(planned, inputs=self._sizes.input_shapes(asked))
        program = self._written(planned, sized, planned.schedule, planned.overhead)
        at_values = planned if asked == values else self._at(program, values, {})
        if at_values is None:
            return None
        own = self._record.add(planned)
        if at_values is planned:
            at_values = own
        else:
            own.carried.append(at_values)
        program = replace(program, planned=own)
        plain = plain_run(planned.graph)
        if not self._programs and planned.overhead:  # the plain run is a plan, too, for smaller sizes
            self._programs.append(self._written(own, sized, plain, 0.0))
        self._programs.append(program)
        return program, at_values

    def _written(self, planned: PlannedGraph, sized: SizedJoint, schedule: Schedule, overhead: float) -> _Program:
        made = halves(sized.joint, schedule)
        slots = tuple(self._places[node.name] for node in made.saved)
        return _Program(planned, sized, schedule, overhead, boxed(made.forward), boxed(made.backward), slots)

    def _largest_so_far(self) -> Values:
        """Return the largest sizes that calls have had; larger ones yet, where a plan is made for such."""
        first, found = self._sizes.first, self._sizes.first
        for planned in self._record.graphs:
            known = self._sizes.values_of(planned.inputs)
            if known is not None:
                found = tuple(map(max, found, known))
        found = found if self._sizes.allows(found) else first
        return self._roomier(found) if self._source.has_room else found

    def _roomier(self, values: Values) -> Values:
        """Return larger sizes, where torch would run the graph at them; else these."""
        larger = tuple(_larger(value) if isinstance(value, int) else value for value in values)
        return larger if self._sizes.allows(larger) else values


def _larger(size: int) -> int:
    step = min(size & -size, _LARGEST_STEP)  # the largest power of two that it is a multiple of
    return ceil(size * _ROOM / step) * step if step else size


def _all_slots(joint: Joint) -> dict[str, bool]:
    """Return the names of what a plan may hand over, and whether torch is to check that it does not change.

    What torch is not to check comes last.
    """
    forward = (value for op in joint.ops if op.phase is Phase.FORWARD for value in op.values)
    inputs = (node for node in joint.inputs if node.op == "placeholder")
    slots = {node.name: joint.storage(node) not in joint.changed for node in (*inputs, *forward)}
    return dict(sorted(slots.items(), key=lambda slot: not slot[1]))


def resized(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return a graph with tensors of other sizes.

    The workspace of a kernel grows with the largest growth among the op's tensors, and never shrinks.

    Args:
        graph: at the sizes that it was planned for.
        sizes: bytes of its tensors; tokens, which have none, are not in it.
    """
    tensors = dict(graph.tensors)
    for name, size in sizes.items():
        if tensors[name].bytes != size:
            tensors[name] = replace(tensors[name], bytes=size, shape=None)
    grown = {
        name: Fraction(tensor.bytes, graph.tensors[name].bytes)
        for name, tensor in tensors.items()
        if tensor.bytes > graph.tensors[name].bytes > 0
    }
    ops = tuple(_with_workspace(op, grown) if op.workspace_bytes else op for op in graph.ops)
    return replace(graph, tensors=tensors, ops=ops)


def _with_workspace(op: Op, grown: Mapping[str, Fraction]) -> Op:
    growth = max((grown.get(name, Fraction(1)) for name in (*op.inputs, *op.outputs)), default=Fraction(1))
    return replace(op, workspace_bytes=ceil(op.workspace_bytes * growth))


def _stand_in() -> None:
    """Stand for a value in a graph that torch looks at and does not run."""


def _forward_interface(given: Captured, slots: Mapping[str, bool]) -> fx.GraphModule:
    """Return the forward pass as torch is to see it: primals, to outputs, ticket and slots.

    Args:
        given: the graph as torch handed it over.
        slots: for each, whether torch is to check that what is in it does not change.
    """
    graph = fx.Graph()
    for primal in primals_of(given.module.graph):
        _input(graph, primal)
    outputs = [_output(graph, value) for value in outputs_of(given.module.graph)[: given.forward_outputs]]
    for checked in (True, *slots.values()):
        slot = graph.call_function(_stand_in)
        slot.meta = {"val": _empty(given)}
        if not checked:
            save_without_version_check(slot)
        outputs.append(slot)
    graph.output(tuple(outputs))
    return fx.GraphModule(given.module, graph)


def _backward_interface(given: Captured, slots: Mapping[str, bool]) -> fx.GraphModule:
    """Return the backward pass as torch is to see it: ticket, slots and tangents, to gradients."""
    graph = fx.Graph()
    for name in ("ticket", *(f"slot_{name}" for name in slots)):
        graph.placeholder(name).meta = {"val": _empty(given)}
    for tangent in tangents_of(given.module.graph):
        _input(graph, tangent)
    graph.output(tuple(_output(graph, value) for value in outputs_of(given.module.graph)[given.forward_outputs :]))
    return fx.GraphModule(given.module, graph)


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
