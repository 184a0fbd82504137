"""Conversion of a sized ONNX graph to a `Graph` and its operators.

- Initializers, Constant nodes and folded values are resident bytes, not tensors. If one of them is an output of the
  graph, it is in memory anyway, and is left out of the graph's outputs.
- A view of a resident value is a tensor of 0 bytes without a base.
- An op that reads only stored values, and was not folded (the transpose or cast of a weight), stays an op: a runtime
  executes it each time, unless the exporter folds constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remat_cli.core.graph import Graph, Kind, Op, Tensor, build_graph
from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.core.schedule import input_order, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.formats.onnx.aliasing import overwritten_input, viewed_inputs
from remat_cli.formats.onnx.attributes import plain_attributes
from remat_cli.formats.onnx.contrib import full_type
from remat_cli.formats.onnx.dropped_casts import dropped_casts
from remat_cli.formats.onnx.inference import OperatorSets
from remat_cli.formats.onnx.randomness import is_inference_dropout
from remat_cli.formats.onnx.scopes import module_of, source_of
from remat_cli.formats.onnx.sized_graph import SizedGraph, SizedNode
from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import Origin, Value
from remat_cli.formats.onnx.workspace import scratch_bytes
from remat_cli.formats.reader import Aliasing


@dataclass(frozen=True)
class Conversion:
    """The conversion of a sized graph to a `Graph`.

    Attributes:
        opsets: the operator sets of the file.
        profile: rules for views and ops in place.
        counts_workspace: whether the workspace of onnxruntime's kernels is counted.
    """

    opsets: OperatorSets
    profile: Aliasing
    counts_workspace: bool

    def graph(self, sized: SizedGraph, name: str) -> Graph:
        """Return the forward graph, without times yet.

        Raises:
            GraphError: every node was folded, or the sizes add up to more than 2^60 bytes.
        """
        storage = self._storage(sized)
        read = {name for node in sized.nodes for name in node.node.reads} | {*sized.outputs}
        keeps_unread = self.profile is Aliasing.ORT_CPU
        tensors = [_tensor(name, sized.values[name], storage) for name in _given(sized)]
        for node in sized.nodes:
            tensors.extend(
                _tensor(output, sized.values[output], storage, lasts=keeps_unread and output not in read)
                for output in node.node.outputs
            )
        return build_graph(
            name=name,
            kind=Kind.FORWARD,
            time_unit="flop",
            resident_bytes=_resident_bytes(sized),
            tensors=tensors,
            ops=[self._op(node, sized, storage) for node in sized.nodes],
            outputs=tuple(dict.fromkeys(name for name in sized.outputs if sized.values[name].is_activation)),
        )

    def operators(self, sized: SizedGraph) -> dict[str, Operator]:
        """Return the operators of the graph's ops by name.

        Values that bodies read from outside follow the inputs.
        """
        return {node.node.name: self._operator(node.node, sized.values) for node in sized.nodes}

    def _storage(self, sized: SizedGraph) -> dict[str, str | None]:
        """Return the base of each view; None for a resident base."""
        storage: dict[str, str | None] = {}
        dropped: Mapping[str, str] = {}
        if self.profile is Aliasing.ORT_CPU:
            dropped = dropped_casts((one.node for one in sized.nodes), sized.values, sized.outputs)
        for node in sized.nodes:
            views = viewed_inputs(node.node.proto, sized.values, self.opsets.version(""), self.profile, sized.outputs)
            views |= {name: dropped[name] for name in node.node.outputs if name in dropped}
            for view, source in views.items():
                base = source if sized.values[source].is_activation else None
                storage[view] = storage.get(source, base)
        return storage

    def _op(self, sized_node: SizedNode, sized: SizedGraph, storage: Mapping[str, str | None]) -> Op:
        node = sized_node.node
        return Op(
            name=node.name,
            type=full_type(node.proto),
            inputs=tuple(name for name in node.reads if sized.values[name].is_activation),
            outputs=node.outputs,
            time=0,
            workspace_bytes=self._workspace_bytes(sized_node, sized.values),
            inplace=self._inplace(node, sized, storage),
            recomputable=sized_node.recomputable,
            module=module_of(node.proto),
            source=source_of(node.proto),
        )

    def _inplace(self, node: Node, sized: SizedGraph, storage: Mapping[str, str | None]) -> str | None:
        """Return the tensor whose storage the first output takes over.

        It is the output of an op, of the same size.
        """
        name = overwritten_input(node.proto, sized.values, self.profile, sized.outputs)
        if not name or not node.proto.output[0]:
            return None
        base = storage.get(name, name)
        if base is None or sized.values[base].origin is not Origin.PRODUCED:
            return None
        return base if sized.values[base].type.bytes == sized.values[node.proto.output[0]].type.bytes else None

    def _workspace_bytes(self, node: SizedNode, values: Mapping[str, Value]) -> int:
        """Return the memory of an op besides its inputs and outputs.

        With bodies, it is that of the worse branch or of one iteration. A branch writes its results to the op's
        outputs; an iteration of a loop holds the last state and the next one.
        """
        if not node.bodies:
            return scratch_bytes(node.node.proto, values, self.opsets.version("")) if self.counts_workspace else 0
        peaks = [self._body_peak_bytes(body, node.node.name) for body in node.bodies]
        if node.node.proto.op_type == "Loop" and self.profile is Aliasing.ORT_CPU:
            return self._loop_bytes(node, values, peaks[0])
        counted = sum(values[name].type.bytes for name in node.node.outputs) if node.node.proto.op_type == "If" else 0
        return max(0, max(peaks) - counted)

    def _loop_bytes(self, node: SizedNode, values: Mapping[str, Value], body_peak: int) -> int:
        """Return the workspace of onnxruntime's Loop: last and next state, and the collected parts."""
        states = len(node.node.proto.input) - 2
        produced, collected = (
            sum(values[name].type.bytes for name in names if name)
            for names in (node.node.proto.output[:states], node.node.proto.output[states:])
        )
        (body,) = node.bodies
        pieces = sum(body.values[name].type.bytes for name in body.outputs[1 + states :])
        return collected + produced + _growth_bytes(node, values) + max(0, body_peak - pieces)

    def _body_peak_bytes(self, body: SizedGraph, name: str) -> int:
        if not body.nodes:
            return 0
        graph = self.graph(body, name)
        return simulate(graph, with_frees(graph, input_order(graph))).peak_bytes - graph.fixed_bytes

    def _operator(self, node: Node, values: Mapping[str, Value]) -> Operator:
        proto, version = node.proto, self.opsets.version("")
        return Operator(
            # a dropout that drops nothing draws no mask
            type="Identity" if is_inference_dropout(proto, values, version) else full_type(proto),
            inputs=tuple(operand(name, values[name]) if name else None for name in (*proto.input, *node.captured)),
            outputs=tuple(operand(name, values[name]) if name else None for name in proto.output),
            attributes=plain_attributes(proto),
            opset=self.opsets.version(proto.domain),
        )


def _growth_bytes(node: SizedNode, values: Mapping[str, Value]) -> int:
    """Return the memory of a loop's last iteration beyond its first.

    The state is larger by then. The next state is that of the end, and the last one is smaller by the growth of an
    iteration.
    """
    proto, (body,) = node.node.proto, node.bodies
    beyond = 0
    for before, after, end in zip(proto.input[2:], body.outputs[1:], proto.output, strict=False):
        if not before or not end:
            continue
        first, second = values[before].type, body.values[after].type
        if first.shape != second.shape:
            beyond += values[end].type.bytes - second.bytes - max(0, second.bytes - first.bytes)
    return max(0, beyond)


def operand(name: str, value: Value) -> Operand:
    """Return a value as an operand."""
    stored = Role.PARAMETER if value.trainable else Role.CONSTANT
    role = Role.ACTIVATION if value.is_activation else stored
    return Operand(name, role, value.type.shape, value.type.element.name, value.type.bytes)


def parameters(sized: SizedGraph) -> tuple[Operand, ...]:
    """Return the trainable weights of a graph and its bodies, each once.

    Constant nodes can be among them.
    """
    own = [operand(name, sized.values[name]) for name in sized.stored if sized.values[name].trainable]
    own += [operand(name, one) for name, one in sized.values.maps[0].items() if _is_constant_weight(one)]
    return (*own, *(weight for node in sized.nodes for body in node.bodies for weight in parameters(body)))


def _is_constant_weight(value: Value) -> bool:
    return value.trainable and value.origin is Origin.FOLDED


def _given(sized: SizedGraph) -> Iterable[str]:
    """Return the tensors that no op of the graph produces.

    These are its inputs, and for a body the values that it reads from outside.
    """
    produced = {name for node in sized.nodes for name in node.node.outputs}
    read = (name for node in sized.nodes for name in node.node.reads)
    names = dict.fromkeys((*sized.inputs, *read, *sized.outputs))
    return (name for name in names if name not in produced and sized.values[name].is_activation)


def _tensor(name: str, value: Value, storage: Mapping[str, str | None], *, lasts: bool = False) -> Tensor:
    is_view = name in storage
    return Tensor(
        name=name,
        bytes=0 if is_view else value.type.bytes,
        shape=value.type.shape,
        dtype=value.type.element.name,
        view_of=storage[name] if is_view else None,
        lasts=lasts and not is_view,
    )


def _resident_bytes(sized: SizedGraph) -> int:
    """Return the size of stored values and of folded ones still read."""
    own = sized.values.maps[0]
    read = dict.fromkeys((*(name for node in sized.nodes for name in node.node.reads), *sized.outputs))
    folded = sum(own[name].type.bytes for name in read if name in own and own[name].origin is Origin.FOLDED)
    bodies = sum(_resident_bytes(body) for node in sized.nodes for body in node.bodies)
    return sized.stored_bytes + folded + bodies + sum(node.unread_bytes for node in sized.nodes)
