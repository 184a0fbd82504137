"""Ops that may take less memory than counted.

Their branch, or their number of iterations, depends on data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of
from remat_cli.formats.onnx.sized_graph import SizedGraph, SizedNode
from remat_cli.formats.onnx.values import TensorType, Values

if TYPE_CHECKING:
    import onnx

# The size of their results depends on data, and is counted as the largest.
_SIZED_BY_DATA = ("Compress", "NonMaxSuppression", "NonZero", "Unique")


def upper_bounds(sized: SizedGraph) -> tuple[str, ...]:
    """Return the ops that are counted with their largest memory.

    Returns:
        Their names; none if the state of a loop grows, as the graph may then take more than counted.
    """
    if any(_grows(node, one.values) for one in with_bodies(sized) for node in one.nodes):
        return ()
    return tuple(node.node.name for node in sized.nodes if _is_bound(node, sized.values))


def with_bodies(sized: SizedGraph) -> Iterator[SizedGraph]:
    """Yield a graph and its bodies, at any depth."""
    yield sized
    for node in sized.nodes:
        for body in node.bodies:
            yield from with_bodies(body)


def _grows(node: SizedNode, values: Values) -> bool:
    """Whether an op is a loop with a tensor whose shape changes."""
    proto = node.node.proto
    if not _is_own(proto, "Loop"):
        return False
    (body,) = node.bodies
    states = zip(proto.input[2:], body.outputs[1:], strict=False)
    pairs = [(values[before].type, body.values[after].type) for before, after in states if before]
    return any(isinstance(one, TensorType) and one.shape != other.shape for one, other in pairs)


def _is_bound(node: SizedNode, values: Values) -> bool:
    """Whether an op, or one in its bodies, may take less than counted."""
    proto = node.node.proto
    drops_words = _is_own(proto, "StringNormalizer") and attribute_of(proto, "stopwords") is not None
    if drops_words or _is_own(proto, *_SIZED_BY_DATA) or (_is_own(proto, "If") and len(node.bodies) > 1):
        return True
    if _is_own(proto, "Loop") and not _runs_to_its_end(node, values):
        return True
    return any(_is_bound(inner, body.values) for body in node.bodies for inner in body.nodes)


def _runs_to_its_end(node: SizedNode, values: Values) -> bool:
    """Whether a loop has a known length that no condition shortens."""
    trips, condition = (*node.node.proto.input[:2], "", "")[:2]
    (body,) = node.bodies
    if not trips or values[trips].data is None or not _is_true(condition, values):
        return False
    again = body.outputs[0]
    makers = {name: inner.node.proto for inner in body.nodes for name in inner.node.outputs}
    while again in makers and _is_own(makers[again], "Identity"):
        again = makers[again].input[0]
    return again == body.inputs[1] or _is_true(again, body.values)


def _is_true(name: str, values: Values) -> bool:
    data = values[name].data if name else None
    return not name or (data is not None and bool(data.all()))


def _is_own(node: onnx.NodeProto, *op_types: str) -> bool:
    return node.domain == "" and node.op_type in op_types
