"""Several plans behind two graphs that torch captures once.

Plans save different tensors for the backward pass. torch's runtime keeps any number of them, except of two kinds:
unchecked tensors, whose memory changes in the step, and objects, such as the mesh of a DTensor. Their numbers are
fixed, so empty tensors and one of the objects stand for missing ones. The first saved tensor is a *ticket*: an empty
tensor whose shape has the number of the plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from remat_cli.core.graph import Phase
from remat_cli.core.schedule import Schedule
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.joint_capture import (
    Captured,
    boxed_backward,
    outputs_of,
    primals_of,
    run_by,
    tangents_of,
)
from remat_cli.pytorch.capture.ops import tensors_of
from remat_cli.pytorch.programs.program import halves
from remat_cli.pytorch.unstable.fakes import is_object
from remat_cli.pytorch.unstable.joint_graphs import boxed, save_without_version_check
from remat_cli.pytorch.unstable.tensors import version_of

# The number of backward passes that have to find inputs unchanged before calls run without copies of them.
_WATCHED_PASSES = 2


@dataclass(frozen=True, eq=False)
class PassFunctions:
    """A schedule as two functions that run its passes.

    Attributes:
        forward: runs the forward pass; takes primals and sizes.
        backward: runs the backward pass; takes sizes, saved values, and incoming gradients.
        unchecked: number of saved tensors that change in the step; they come after all others.
        objects: number of saved objects; they come last.
        read_again: places of primals that the backward pass reads only because of recomputed ops.
    """

    forward: Callable[[list[Any]], Any]
    backward: Callable[[list[Any]], Any]
    unchecked: int
    objects: int
    read_again: frozenset[int]

    @classmethod
    def of(
        cls,
        joint: Joint,
        saved: Sequence[fx.Node],
        forward: Callable[[list[Any]], Any],
        backward: Callable[[list[Any]], Any],
    ) -> PassFunctions:
        """Return the functions of a plan that saves these values of a joint graph."""
        return cls(
            forward, backward, _unchecked(joint, saved), len(_places_of_objects(saved)), _read_again(joint, saved)
        )


@dataclass(frozen=True, eq=False)
class Entry:
    """A schedule for certain sizes.

    Attributes:
        pass_functions: the schedule.
        numbers: the values of the size nodes.
    """

    pass_functions: PassFunctions
    numbers: Sequence[int | float] = ()


def pass_functions(joint: Joint, schedule: Schedule) -> PassFunctions:
    """Return a schedule as two functions that run its passes.

    Args:
        joint: the graph at the sizes that the schedule was verified for.
        schedule: the schedule.
    """
    passes = halves(joint, schedule)
    return PassFunctions.of(joint, passes.saved, boxed(passes.forward), boxed_backward(passes.backward))


def _unchecked(joint: Joint, values: Sequence[fx.Node]) -> int:
    """Return how many values are in memory that the step changes."""
    return sum(bool(tensors_of(node.meta.get("val"))) and joint.storage(node) in joint.changed for node in values)


def _read_again(joint: Joint, saved: Sequence[fx.Node]) -> frozenset[int]:
    """Return the places of saved primals that the plain backward pass does not read, and the step does not change."""
    storages = {joint.storage(node) for node in saved if tensors_of(node.meta.get("val"))}
    for op in joint.ops:
        if op.phase is Phase.BACKWARD:
            storages.difference_update(op.reads)
    storages -= joint.changed
    return frozenset(
        place
        for place, primal in enumerate(joint.primals)
        if isinstance(primal.meta.get("val"), torch.Tensor) and joint.storage(primal) in storages
    )


def _places_of_objects(values: Sequence[fx.Node]) -> list[int]:
    """Return the places of values that are objects."""
    return [place for place, node in enumerate(values) if is_object(node.meta.get("val"))]


class InputCopies:
    """Copies of the caller's inputs for plans that read them again in the backward pass, where eager does not.

    The caller may change such an input between the passes; only a backward pass shows whether it does. So the first
    calls run on copies, beside the budget. Once backward passes have found the inputs unchanged, calls run on the
    inputs themselves; where one was changed, all calls run on copies, which count.
    """

    def __init__(self, given: Captured, leave_out: Callable[[int], None] | None) -> None:
        """Copy arguments of the captured function that are neither parameters nor buffers.

        Args:
            given: the graph from torch.
            leave_out: told the bytes of copies that do not count; None if nobody can change the inputs.
        """
        self._places = frozenset() if leave_out is None else given.arguments
        self._leave_out = leave_out
        self._left = _WATCHED_PASSES
        self._given: list[tuple[weakref.ref[torch.Tensor], int]] = []

    def put_into(self, args: list[Any], read_again: frozenset[int]) -> None:
        """Put copies in place of inputs that are read again."""
        if not self._left:
            return
        for place in sorted(self._places & read_again):
            value = args[place]
            if type(value) is not torch.Tensor or value.is_inference():
                continue
            copy = value.clone()
            if copy.stride() != value.stride():  # the plan is for these strides
                continue
            self._given.append((weakref.ref(value), version_of(value)))
            args[place] = copy
            if self._leave_out is not None and self._left > 0:
                self._leave_out(copy.nbytes)

    def note_backward(self) -> None:
        """Note whether the inputs are unchanged as a backward pass begins."""
        if not self._given:
            return
        if any((value := given()) is not None and version_of(value) != before for given, before in self._given):
            self._left = -1
        self._left -= self._left > 0
        self._given.clear()


class Slots:
    """The plans behind a captured graph, with fixed places for tensors.

    Attributes:
        entries: schedules by the number on the ticket.
    """

    def __init__(self, given: Captured, joint: Joint, leave_out: Callable[[int], None] | None = None) -> None:
        """Reserve places for all tensors that change in the step, and for all objects.

        Args:
            given: the graph from torch.
            joint: the resolved graph at any sizes.
            leave_out: as `InputCopies` takes it.
        """
        self._copies = InputCopies(given, leave_out)
        self.entries: list[Entry] = []
        self._given = replace(given, primals=())  # the first call's primals would stay in memory
        self._tangents = len(tangents_of(given.module.graph))
        forward = (value for op in joint.ops if op.phase is Phase.FORWARD for value in op.values)
        self._unchecked = _unchecked(joint, [*joint.inputs, *forward])
        self._objects = _places_of_objects(primals_of(given.module.graph))  # places among the primals

    def add(self, entry: Entry) -> int:
        """Add an entry; return its number."""
        self.entries.append(entry)
        return len(self.entries) - 1

    def forward(self, number: int, args: list[Any]) -> tuple[Any, ...]:
        """Run the forward pass of an entry on the primals.

        Return the outputs, the ticket and the saved values.
        """
        entry = self.entries[number]
        functions = entry.pass_functions
        objects = [args[place] for place in self._objects[functions.objects :]]
        given = [*args, *entry.numbers]
        args.clear()
        self._copies.put_into(given, functions.read_again)
        results = functions.forward(given)
        outputs, last = self._given.forward_outputs, len(results) - functions.unchecked - functions.objects
        missing = [torch.empty(0)] * (self._unchecked - functions.unchecked)
        return *results[:outputs], torch.empty(0, number), *results[outputs:last], *missing, *results[last:], *objects

    def backward(self, args: list[Any]) -> Any:
        """Run the backward pass; return the gradients.

        The arguments are the ticket, the saved values and incoming gradients.
        """
        self._copies.note_backward()
        entry = self.entries[args[0].shape[1]]
        functions = entry.pass_functions
        tangents = len(args) - self._tangents
        objects = tangents - len(self._objects)
        saved = [
            *args[1 : objects - self._unchecked],
            *args[objects - functions.unchecked : objects + functions.objects],
        ]
        given = [*entry.numbers, *saved, *args[tangents:]]
        del saved
        args.clear()
        return functions.backward(given)

    def interface(
        self, run_forward: Callable[[list[Any]], Any], run_backward: Callable[[list[Any]], Any]
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the two graphs that torch sees, run by functions."""
        forward, backward = self._forward_interface(), self._backward_interface()
        run_by(forward, run_forward)
        run_by(backward, run_backward)
        return forward, backward

    def _forward_interface(self) -> fx.GraphModule:
        """Return the forward graph: primals in, results out.

        The results are the outputs, the ticket, tensors that change in the step, and objects.
        """
        given, graph = self._given, fx.Graph()
        primals = primals_of(given.module.graph)
        for primal in primals:
            _input(graph, primal)
        outputs = [_output(graph, value) for value in outputs_of(given.module.graph)[: given.forward_outputs]]
        for place in range(1 + self._unchecked):
            slot = graph.call_function(_stand_in)
            slot.meta = {"val": _empty(given)}
            if place:
                save_without_version_check(slot)
            outputs.append(slot)
        outputs += [_output(graph, primals[place]) for place in self._objects]
        graph.output(tuple(outputs))
        return fx.GraphModule(given.module, graph)

    def _backward_interface(self) -> fx.GraphModule:
        """Return the backward graph: ticket and tangents in, gradients out.

        Tensors that change in the step and objects are inputs, too.
        """
        given, graph = self._given, fx.Graph()
        for name in ("ticket", *(f"changed_{place}" for place in range(self._unchecked))):
            graph.placeholder(name).meta = {"val": _empty(given)}
        primals = primals_of(given.module.graph)
        for place in self._objects:
            _input(graph, primals[place])
        for tangent in tangents_of(given.module.graph):
            _input(graph, tangent)
        graph.output(tuple(_output(graph, value) for value in outputs_of(given.module.graph)[given.forward_outputs :]))
        return fx.GraphModule(given.module, graph)


def _stand_in() -> None:
    """Stand for a value in a graph that torch reads but does not run."""


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
