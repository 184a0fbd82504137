"""A schedule written as the two graphs that torch runs: forward and backward pass, step by step.

Nodes of the joint graph are copied in the order of the schedule, what runs again copied again. A value dies with its
last reader, as the boxed convention of torch's generated code has it, so frees need no nodes of their own. Views are
derived anew from the instance of their memory that is there: one that was kept would keep the memory of an instance
that the schedule has freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx
from torch.fx.node import map_arg

from remat_cli.errors import InvalidSchedule, UsageError
from remat_cli.formats.torch.internals import save_without_version_check
from remat_cli.formats.torch.joint import BOUNDARY, Joint, JointOp
from remat_cli.schedule import Compute, Free, Inplace, Schedule, Step

# Is told after each run of an op: its name, and what it made.
Watch = Callable[[str, tuple[Any, ...]], None]


def divided(joint: Joint, schedule: Schedule, watch: Watch | None = None) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward and the backward graph that carry out a schedule.

    The forward graph returns its own outputs and, behind them, what the backward graph takes before the tangents.

    Args:
        joint: what was planned.
        schedule: verified on its graph.
        watch: is told what runs, in order; None where nobody looks on.

    Raises:
        UsageError: the schedule moves tensors to the host.
        InvalidSchedule: it runs an op that is not in the joint graph, or before what it reads.
    """
    for number, step in enumerate(schedule.steps):
        _check_step(number, step)
    computes = schedule.computes
    boundary = computes.index(BOUNDARY)
    ops = {op.name: op for op in joint.ops}
    told = None if watch is None else _as_function(watch)
    forward, backward = _Half(joint, told), _Half(joint, told)
    for primal in joint.primals:
        forward.input(primal)
    forward.run(ops[name] for name in computes[:boundary])
    outputs = [forward.read(value) for value in joint.forward_outputs]
    backward_ops = [ops[name] for name in computes[boundary + 1 :]]
    saved = _saved(joint, backward_ops)
    for value in saved:
        backward.input(value)
    for tangent in joint.tangents:
        backward.input(tangent)
    backward.run(backward_ops)
    gradients = [backward.read(value) for value in joint.backward_outputs]
    return forward.module([*outputs, *(forward.kept(value) for value in saved)]), backward.module(gradients)


def _as_function(watch: Watch) -> Watch:
    """Return `watch` as a function with a name, by which generated code can call it."""

    def told(op: str, made: tuple[Any, ...]) -> None:
        watch(op, made)

    return told


def _check_step(number: int, step: Step) -> None:
    if not isinstance(step, Compute | Inplace | Free):
        raise UsageError(
            f"step {number} moves tensor {step.tensor!r} between device and host, which is not carried out yet",
            hint="plan without transfers: leave out the planners and options that offload",
        )


def _saved(joint: Joint, backward: Sequence[JointOp]) -> list[fx.Node]:
    """Return the values that the backward pass takes from the forward pass: those that it reads before it makes them.

    Those whose memory changes in the forward pass, where only what does not look at them reads them again, come last:
    torch does not check that they are what they were.
    """
    known = set(joint.tangents)
    needed: dict[fx.Node, None] = {}

    def note(nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            for root in _roots(joint, node):
                if root not in known:
                    needed[root] = None

    for op in backward:
        assert op.node is not None
        note(op.node.all_input_nodes)
        known.update(op.values)
    note(value for value in joint.backward_outputs if isinstance(value, fx.Node))
    return sorted(needed, key=lambda node: joint.storage(node) in joint.changed)


def _roots(joint: Joint, node: fx.Node) -> list[fx.Node]:
    """Return the values that a node's value is derived from: inputs, and what ops have made."""
    if isinstance(node.meta.get("val"), int | float) or node.op == "get_attr":
        return []
    if node.op == "placeholder" or node in joint.op_of:
        return [node]
    return [root for source in node.all_input_nodes for root in _roots(joint, source)]


@dataclass
class _Half:
    """One of the two graphs, while it is written.

    Attributes:
        joint: what is copied from.
        watch: see `divided`.
        graph: what is written.
        values: for each value of the joint graph that is there, its copy.
        views: the same for views; they go when the instance goes that they are derived from.
    """

    joint: Joint
    watch: Watch | None
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[fx.Node, fx.Node] = field(default_factory=dict)
    views: dict[fx.Node, tuple[tuple[fx.Node, ...], fx.Node]] = field(default_factory=dict)

    def input(self, node: fx.Node) -> None:
        """Add a value that comes in."""
        copy = self.graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        self.values[node] = copy

    def run(self, ops: Iterable[JointOp]) -> None:
        """Add ops in this order."""
        for op in ops:
            if op.node is None:
                raise InvalidSchedule(f"the schedule runs {op.name!r} twice", hint="it stands for the caller")
            run = self.copy(op.node)
            for value in op.values:
                self.values[value] = run if value is op.node else self.item(value, run)
            if self.watch is not None:
                made = tuple(self.values[value] for value in op.values)
                self.graph.call_function(self.watch, (op.name, made))

    def copy(self, node: fx.Node) -> fx.Node:
        """Add a run of a node, on what is there."""
        arguments = {source: self.read(source) for source in node.all_input_nodes}
        return self.graph.node_copy(node, arguments.__getitem__)

    def item(self, node: fx.Node, run: fx.Node) -> fx.Node:
        return self.graph.node_copy(node, lambda _: run)

    def read(self, node: Any) -> Any:
        """Return what stands for a value here: its copy, a view derived from what is there, or a number."""
        if not isinstance(node, fx.Node):
            return node
        value = node.meta.get("val")
        if isinstance(value, int | float):
            return value
        if node in self.values:
            return self.values[node]
        if node.op == "get_attr":
            self.values[node] = self.graph.node_copy(node)
            return self.values[node]
        if node.op == "placeholder" or node in self.joint.op_of:
            raise InvalidSchedule(f"the schedule reads {node.name!r} where it is not there", hint="plan again")
        return self.view(node)

    def view(self, node: fx.Node) -> fx.Node:
        """Return a view of the instance that is there; one of the same instance is not made twice."""
        instances = tuple(self.values[root] for root in _roots(self.joint, node) if root in self.values)
        if node not in self.views or self.views[node][0] != instances:
            self.views[node] = (instances, self.copy(node))
        return self.views[node][1]

    def kept(self, node: fx.Node) -> fx.Node:
        """Return what is kept of a value for the backward pass."""
        copy: fx.Node = self.read(node)
        if self.joint.storage(node) in self.joint.changed:
            save_without_version_check(copy)
        return copy

    def module(self, outputs: Sequence[Any]) -> fx.GraphModule:
        """Return what was written as a module with these outputs."""
        self.graph.output(map_arg(tuple(outputs), lambda node: node))
        return fx.GraphModule(self.joint.module, self.graph)
