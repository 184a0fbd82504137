"""Ops without a kernel, which a runtime replaces by other nodes.

These nodes define the op. onnxruntime expands such an op when it creates a session. The new nodes come last in its
list, so that the order of the file is lost. So ops are expanded here instead, and planned as single nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from remat_cli.formats.onnx.errors import onnx_faults
from remat_cli.formats.onnx.structure import Node, captured_names
from remat_cli.formats.onnx.values import TensorType, Values, type_proto
from remat_cli.formats.onnx.walk import all_graphs
from remat_cli.formats.reader import Aliasing

if TYPE_CHECKING:
    import onnx
    from onnx.defs import OpSchema

# Ops of ONNX's own operator set, by runtime. Ops that draw random numbers or have bodies stay as they are.
WITHOUT_KERNEL: Mapping[Aliasing, frozenset[str]] = {
    Aliasing.ORT_CPU: frozenset(
        (
            "CastLike",
            "CenterCropPad",
            "GroupNormalization",
            "HardSwish",
            "Mish",
            "NegativeLogLikelihoodLoss",
            "SoftmaxCrossEntropyLoss",
            "Swish",
        )
    )
}

# From this version of ONNX's operator set on, the ops within these definitions have only gained element types, or
# attributes without effect by default.
_SETTLED = 13


class NodeNames:
    """The names of a model's values and nodes, to find unused names."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, graph: onnx.GraphProto) -> None:
        """Add the names in a graph and its bodies."""
        self._taken.update(_names_in(graph))

    def fresh(self, wanted: str) -> str:
        """Return `wanted`, or a similar free name.

        The name counts as taken from then on.
        """
        name = wanted
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _names_in(graph: onnx.GraphProto) -> Iterator[str]:
    for one in all_graphs(graph):
        yield from (value.name for value in (*one.input, *one.output, *one.initializer))
        yield from (sparse.values.name for sparse in one.sparse_initializer)
        for node in one.node:
            yield from (node.name, *node.input, *node.output)


def expanded(node: Node, schema: OpSchema, values: Values, opset: int, names: NodeNames) -> tuple[Node, ...]:
    """Return the nodes that define a node's op, or the node itself.

    Args:
        node: a node of ONNX's own operator set.
        schema: schema of its op.
        values: its inputs.
        opset: version of ONNX's own operator set.
        names: names of the model, to which the new nodes and values are added.
    """
    body = _definition(node, schema, values, opset)
    if body is None:
        return (node,)
    proto = node.proto
    actual = dict.fromkeys((*body.input, *body.output), "")
    actual |= dict(zip(body.input, proto.input, strict=False)) | dict(zip(body.output, proto.output, strict=False))
    defaults = (schema.attributes[name].default_value for name in body.attribute if name in schema.attributes)
    attributes = {attribute.name: attribute for attribute in (*defaults, *body.attribute_proto, *proto.attribute)}
    nodes = []
    for index, inner in enumerate(body.node):
        for name in inner.output:
            if name and name not in actual:
                actual[name] = names.fresh(f"{node.name}/{name}")
        own = f"{node.name}/{inner.name or f'{inner.op_type}_{index}'}"
        nodes.append(_instance(inner, names.fresh(own), actual, attributes))
    return tuple(nodes)


def _definition(node: Node, schema: OpSchema, values: Values, opset: int) -> onnx.FunctionProto | None:
    """Return the function that defines a node's op for its types, or None."""
    import onnx

    known: Any = schema  # its type stubs omit functions
    kinds = [values[name].type if name else None for name in node.proto.input]
    protos = [type_proto(kind) if isinstance(kind, TensorType) else onnx.TypeProto() for kind in kinds]
    # onnx returns a function only for the version that it was written for, or if it considers it still valid.
    for version in (opset, schema.since_version):
        function = onnx.FunctionProto()
        with onnx_faults(f"op {node.name!r} ({node.proto.op_type}) cannot be expanded", hint="check its inputs"):
            if known.has_context_dependent_function:
                call = (node.proto.SerializeToString(), [proto.SerializeToString() for proto in protos])
                function.ParseFromString(known.get_context_dependent_function_with_opset_version(version, *call))
            elif known.has_function and version in known.function_opset_versions:
                function.ParseFromString(known.get_function_with_opset_version(version))
        if function.node and _means_the_same(function, version, opset):
            return function
    return None


def _means_the_same(function: onnx.FunctionProto, one: int, other: int) -> bool:
    """Whether a function's ops mean the same in two operator set versions."""
    from onnx import defs

    if min(one, other) >= _SETTLED:
        return True

    def since(op_type: str, version: int) -> int:
        return defs.get_schema(op_type, version, "").since_version

    return all(since(node.op_type, one) == since(node.op_type, other) for node in function.node)


def _instance(
    inner: onnx.NodeProto, name: str, actual: Mapping[str, str], attributes: Mapping[str, onnx.AttributeProto]
) -> Node:
    """Return a node of a function's body with the call's names and attributes."""
    proto = type(inner)()
    proto.CopyFrom(inner)
    proto.name = name
    proto.domain = "" if inner.domain == "ai.onnx" else inner.domain
    for ours, theirs in ((proto.input, inner.input), (proto.output, inner.output)):
        del ours[:]
        ours.extend(_without_absent_tail([actual[one] if one else "" for one in theirs]))
    del proto.attribute[:]
    for attribute in inner.attribute:
        given = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if given is not None and given.type:
            proto.attribute.add().CopyFrom(given)
            proto.attribute[-1].name = attribute.name
    return Node(name, proto, captured_names(proto))


def _without_absent_tail(names: Sequence[str]) -> Sequence[str]:
    present = [position for position, name in enumerate(names) if name]
    return names[: present[-1] + 1] if present else ()
