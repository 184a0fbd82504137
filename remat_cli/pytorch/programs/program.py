"""A schedule written as two graphs for torch: forward and backward.

The graphs run the schedule step by step.

Nodes of the joint graph are copied in the order of the schedule, a recomputed node once more for each run. A value dies
with its last reader by the boxed convention of torch's generated code, so frees need no nodes. Views are derived again
from the current instance of their base: a kept view would keep the memory of an instance that the schedule has freed.

Offloading copies a tensor's whole storage to the host; the tensor comes back as a new instance. A host copy is a value
like others: the forward pass passes on those that the backward pass prefetches. A wait keeps the tensor alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait
from remat_cli.errors import InvalidSchedule, UsageError
from remat_cli.pytorch.capture import recurrent
from remat_cli.pytorch.capture.joint import BOUNDARY, Joint, JointOp
from remat_cli.pytorch.capture.op_properties import in_place_of, properties_of
from remat_cli.pytorch.capture.ops import tensors_of
from remat_cli.pytorch.capture.sizes import meta_with
from remat_cli.pytorch.capture.update_runs import StateMoves, UpdateRun
from remat_cli.pytorch.memory import transfers
from remat_cli.pytorch.unstable.dispatch import without_modes
from remat_cli.pytorch.unstable.joint_graphs import save_without_version_check

# Is told after each run of an op: its name, and its results.
Watch = Callable[[str, tuple[Any, ...]], None]


@dataclass(frozen=True, eq=False)
class Halves:
    """The two graphs that carry out a schedule.

    The forward graph takes primals and sizes, and returns its outputs and the saved values. The backward graph takes
    sizes, the saved values, and tangents.

    Attributes:
        forward: forward pass.
        backward: backward pass.
        copied: values saved as copies on the host; they come first.
        saved: values saved on the device.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    copied: tuple[fx.Node, ...]
    saved: tuple[fx.Node, ...]


def divided(joint: Joint, schedule: Schedule, watch: Watch | None = None) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the two graphs of a schedule at the captured sizes.

    Arguments and errors are those of `halves`.
    """
    passes = halves(joint, schedule, watch)
    return passes.forward, passes.backward


def halves(joint: Joint, schedule: Schedule, watch: Watch | None = None, *, fused: bool = False) -> Halves:
    """Return the forward and the backward graph of a schedule.

    Args:
        joint: the planned joint graph.
        schedule: a schedule verified on its graph.
        watch: is told each run of an op, in order, if given.
        fused: a compiler will run the graphs, and lays out memory by itself.

    Raises:
        UsageError: the schedule offloads, which this kind of device cannot do.
        InvalidSchedule: the schedule runs an op that is not in the joint graph, or before the op's inputs exist.
    """
    steps = _carried_out(joint, schedule.steps)
    boundary = steps.index(Compute(BOUNDARY))
    forward_steps, backward_steps = steps[:boundary], steps[boundary + 1 :]
    _check_transfers(joint, steps)
    watcher = None if watch is None else _as_function(watch)
    moved = frozenset(step.tensor for step in steps if isinstance(step, Offload))
    forward, backward = PassWriter(joint, watcher, moved, fused), PassWriter(joint, watcher, moved, fused)
    for node in (*joint.primals, *joint.sizes):
        forward.input(node)
    forward.run(forward_steps)
    outputs = [forward.read(value) for value in joint.forward_outputs]
    copied, saved = _saved(joint, backward_steps)
    for size in joint.sizes:
        backward.input(size)
    for value in copied:
        backward.host_input(value)
    for value in (*saved, *joint.tangents):
        backward.input(value)
    backward.run(backward_steps)
    # An update returns None in the place of its gradient.
    gradients = [
        backward.updated[place] if place in backward.updated else backward.read(value)
        for place, value in enumerate(joint.backward_outputs)
    ]
    handed_over = [*(forward.hosts[value] for value in copied), *(forward.kept(value) for value in saved)]
    written = forward.module([*outputs, *handed_over]), backward.module(gradients)
    return Halves(*written, tuple(copied), tuple(saved))


def _as_function(watch: Watch) -> Watch:
    """Return `watch` as a named function for generated code."""

    def watcher(op: str, results: tuple[Any, ...]) -> None:
        watch(op, results)

    return watcher


def _carried_out(joint: Joint, steps: Sequence[Step]) -> list[Step]:
    """Return the steps with an effect here.

    They are computes, copies that are read later, and one wait for each copy.

    An offload counts if a prefetch follows, a prefetch counts if a wait follows. Nothing else may be copied: the memory
    of an instance is released when no node names it, and only a wait names the copied tensor.
    """
    useful: list[Step] = []
    # tensors with such a step before their next copy, seen from the end
    waited_for, prefetched = set[str](), set[str]()
    for step in reversed(steps):
        if _state_of(joint, step) is not None:
            useful.append(step)
            continue
        if isinstance(step, Offload | Prefetch | Wait) and step.tensor not in joint.values_in:
            continue  # an input, which stays on the device, or a token
        match step:
            case Free():
                continue
            case Wait(tensor=name):
                waited_for.add(name)
            case Prefetch(tensor=name) if name in waited_for:
                waited_for.remove(name)
                prefetched.add(name)
            case Offload(tensor=name) if name in prefetched:
                waited_for.discard(name)
                prefetched.remove(name)
            case Prefetch() | Offload():
                continue
        useful.append(step)
    return list(_with_first_waits(joint, reversed(useful)))


def _state_of(joint: Joint, step: Step) -> StateMoves | None:
    """Return the moves of the optimizer's state that a step is about; None for any other step."""
    if joint.updates is None or isinstance(step, Compute | Inplace):
        return None
    return joint.updates.states.get(step.tensor)


def _update_of(joint: Joint, name: str) -> UpdateRun | None:
    """Return the update that an op stands for; None for an op of the captured graph."""
    return None if joint.updates is None else joint.updates.ops.get(name)


def _with_first_waits(joint: Joint, steps: Iterable[Step]) -> Iterator[Step]:
    in_transit: set[str] = set()
    for step in steps:
        if _state_of(joint, step) is not None:
            yield step
            continue
        if isinstance(step, Offload | Prefetch):
            in_transit.add(step.tensor)
        elif isinstance(step, Wait):
            if step.tensor not in in_transit:
                continue
            in_transit.remove(step.tensor)
        yield step


def _check_transfers(joint: Joint, steps: Sequence[Step]) -> None:
    if joint.device not in transfers.COPIES and any(isinstance(step, Offload) for step in steps):
        raise UsageError(
            f"the schedule offloads, which cannot be done from device {joint.device!r}",
            hint="plan without transfers: leave out the planners and options that offload",
        )


def _saved(joint: Joint, backward: Sequence[Step]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the values that the forward pass saves for the backward.

    The first list has values saved as host copies, the second values on the device.

    The backward pass takes values that it reads before it recomputes them. Values whose memory changes in the forward
    pass come after others: torch does not check that they are unchanged, and only ops that do not depend on their
    content read them again. Values that are no tensors come last.
    """
    known, copied = set(joint.tangents), set[fx.Node]()
    needed, needed_copies = dict[fx.Node, None](), dict[fx.Node, None]()

    def note(nodes: Iterable[fx.Node]) -> None:
        needed.update((root, None) for node in nodes for root in roots_of(joint, node) if root not in known)

    def note_copies(nodes: Iterable[fx.Node]) -> None:
        needed_copies.update((node, None) for node in nodes if node not in copied)

    for step in (step for step in backward if _state_of(joint, step) is None):
        match step:
            case Compute(op=name) if (update := _update_of(joint, name)) is not None:
                note((joint.backward_outputs[update.gradient],))
            case Compute(op=name) | Inplace(op=name):
                op = joint.op[name]
                note(() if op.node is None else op.node.all_input_nodes)
                known.update(op.values)
            case Offload(tensor=name):
                note(joint.values_in[name])
                copied.update(joint.values_in[name])
            case Prefetch(tensor=name):
                note_copies(joint.values_in[name])
                known.update(joint.values_in[name])
            case Wait(tensor=name):
                note_copies(joint.values_in[name][:1])
                note(joint.values_in[name][:1])
    note(value for value in joint.backward_outputs if isinstance(value, fx.Node))

    def place(node: fx.Node) -> tuple[bool, bool]:
        is_tensor = bool(tensors_of(node.meta.get("val")))
        return not is_tensor, is_tensor and joint.storage(node) in joint.changed

    return list(needed_copies), sorted(needed, key=place)


def roots_of(joint: Joint, node: fx.Node) -> list[fx.Node]:
    """Return the values that a node's value is derived from.

    They are inputs, and results of ops.
    """
    if isinstance(node.meta.get("val"), int | float) or node.op == "get_attr":
        return []
    if node.op == "placeholder" or node in joint.op_of:
        return [node]
    return [root for source in node.all_input_nodes for root in roots_of(joint, source)]


@dataclass
class PassWriter:
    """One of the two graphs while it is written.

    Attributes:
        joint: the joint graph, whose nodes are copied.
        watch: see `divided`.
        moved: names of the storages that go to the host.
        fused: see `halves`.
        graph: the new graph.
        values: copies of the joint graph's existing values.
        hosts: host copies of offloaded values.
        views: copies of views, with the instances that they are derived from.
        updated: updates that have run, by the positions of their gradients.
    """

    joint: Joint
    watch: Watch | None
    moved: frozenset[str]
    fused: bool
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[fx.Node, fx.Node] = field(default_factory=dict)
    hosts: dict[fx.Node, fx.Node] = field(default_factory=dict)
    views: dict[fx.Node, tuple[tuple[fx.Node, ...], fx.Node]] = field(default_factory=dict)
    updated: dict[int, fx.Node] = field(default_factory=dict)

    def input(self, node: fx.Node) -> None:
        """Add an input for a value."""
        copy = self.graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        self.values[node] = copy

    def host_input(self, node: fx.Node) -> None:
        """Add an input for the host copy of a value."""
        copy = self.graph.placeholder(f"{node.name}_on_host")
        copy.meta = meta_with(_on_host, node)
        self.hosts[node] = copy

    def run(self, steps: Iterable[Step]) -> None:
        """Add steps in this order."""
        for step in steps:
            if (moves := _state_of(self.joint, step)) is not None:
                self.graph.call_function(_move(moves, step))
                continue
            match step:
                case Compute(op=name) if (update := _update_of(self.joint, name)) is not None:
                    gradient = self.read(self.joint.backward_outputs[update.gradient])
                    self.updated[update.gradient] = self.graph.call_function(_named(update.run), (gradient,))
                case Compute(op=name):
                    self.compute(self.joint.op[name])
                case Inplace(op=name):
                    self.compute(self.joint.op[name], in_place=True)
                case Offload(tensor=name):
                    self.offload(*self.joint.values_in[name])
                case Prefetch(tensor=name):
                    self.prefetch(*self.joint.values_in[name])
                case Wait(tensor=name):
                    first = self.joint.values_in[name][0]
                    self.graph.call_function(transfers.wait, (self.hosts[first], self.values[first]))

    def compute(self, op: JointOp, *, in_place: bool = False) -> None:
        """Add a run of an op, in the memory of its first operand or in its own.

        What was handed over stays as it is, since the backward pass may run again.
        """
        if op.node is None:
            raise InvalidSchedule(f"the schedule runs {op.name!r} twice", hint="it stands for the caller")
        run = self.copy(op.node)
        if run.target in recurrent.WITH_FLAT_RESERVE and any(storage.name in self.moved for storage in op.makes):
            run.target = recurrent.WITH_FLAT_RESERVE[run.target]
        if not self.fused:
            run.target = properties_of(run.target).runs_as or run.target
        if in_place and run.all_input_nodes[0].op != "placeholder":
            run.target = in_place_of(run.target)
        for value in op.values:
            self.values[value] = run if value is op.node else self.item(value, run)
        if self.watch is not None:
            values = tuple(self.values[value] for value in op.values)
            self.graph.call_function(self.watch, (op.name, values))

    def offload(self, first: fx.Node, *others: fx.Node) -> None:
        """Add a copy to the host of these values' memory."""
        self.hosts[first] = self.graph.call_function(transfers.offload, (self.values[first],))
        for value in others:
            self.hosts[value] = self.graph.call_function(
                transfers.in_memory_of, (self.hosts[first], self.values[value])
            )
        for value in (first, *others):
            self.hosts[value].meta |= meta_with(_on_host, value)

    def prefetch(self, first: fx.Node, *others: fx.Node) -> None:
        """Add a copy back from the host of these values' memory."""
        device = first.meta["val"].device
        self.values[first] = self.graph.call_function(transfers.prefetch, (self.hosts[first], device))
        for value in others:
            self.values[value] = self.graph.call_function(
                transfers.in_memory_of, (self.values[first], self.hosts[value])
            )
        for value in (first, *others):
            self.values[value].meta = dict(value.meta)

    def copy(self, node: fx.Node) -> fx.Node:
        """Add a run of a node on the existing values."""
        arguments = {source: self.read(source) for source in node.all_input_nodes}
        return self.graph.node_copy(node, arguments.__getitem__)

    def item(self, node: fx.Node, run: fx.Node) -> fx.Node:
        """Add one of the results of a run."""
        return self.graph.node_copy(node, lambda _: run)

    def read(self, node: Any) -> Any:
        """Return a value's stand-in: a copy, a derived view, or a number."""
        if not isinstance(node, fx.Node):
            return node
        if node in self.values:
            return self.values[node]
        value = node.meta.get("val")
        if isinstance(value, int | float):
            return value
        if node.op == "get_attr":
            self.values[node] = self.graph.node_copy(node)
            return self.values[node]
        if node.op == "placeholder" or node in self.joint.op_of:
            raise InvalidSchedule(f"the schedule reads {node.name!r} where it is not there", hint="plan again")
        return self.view(node)

    def view(self, node: fx.Node) -> fx.Node:
        """Return a view of the current instance.

        A view of the same instance is not added twice.
        """
        instances = tuple(self.values[root] for root in roots_of(self.joint, node) if root in self.values)
        if node not in self.views or self.views[node][0] != instances:
            self.views[node] = (instances, self.copy(node))
        return self.views[node][1]

    def kept(self, node: fx.Node) -> fx.Node:
        """Return the value to save for the backward pass."""
        copy: fx.Node = self.read(node)
        if tensors_of(node.meta.get("val")) and self.joint.storage(node) in self.joint.changed:
            save_without_version_check(copy)
        return copy

    def module(self, outputs: Sequence[Any]) -> fx.GraphModule:
        """Return the written graph as a module with these outputs."""
        self.graph.output(map_arg(tuple(outputs), lambda node: node))
        return fx.GraphModule(self.joint.module, self.graph)


def _named(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function with a name, for generated code."""

    def update(*args: Any) -> None:
        function(*args)

    return update


def _move(moves: StateMoves, step: Step) -> Callable[..., None]:
    match step:
        case Prefetch():
            return _named(moves.prefetch)
        case Wait():
            return _named(moves.wait)
        case Offload():
            return _named(moves.offload)
        case _:
            return _named(moves.free)


def _on_host(value: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor for the host copy of a fake tensor."""
    with without_modes():  # the tensor's own mode, which may not be that of a capture under way
        return value.new_empty_strided(value.shape, value.stride(), device="cpu")
