"""If, Loop and Scan: opaque ops, sized by their bodies.

A loop's body is sized for its first iteration. If a state changes its shape between iterations, or the number of
iterations is unknown, the result's shape is unknown, too, and must be given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remat_cli.errors import GraphError
from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute, integers_attribute
from remat_cli.formats.onnx.dtypes import BOOL, INT64
from remat_cli.formats.onnx.inference import CHECK_SIZES
from remat_cli.formats.onnx.sized_graph import SizedGraph
from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import Misfit, SequenceType, TensorType, Values, ValueType

if TYPE_CHECKING:
    import onnx

    from remat_cli.formats.onnx.values import Array

CONTROL_FLOW = ("If", "Loop", "Scan")


SizeBody = Callable[["onnx.GraphProto", Sequence[ValueType]], SizedGraph]


@dataclass(frozen=True)
class ControlFlow:
    """The results of a control-flow node.

    Attributes:
        types: type of each output by position; None if unknown.
        bodies: its bodies that can run, sized.
        left_out: its branches that cannot run.
        misfits: reasons why some of these do not suit the sizes, by attribute.
    """

    types: tuple[ValueType | None, ...]
    bodies: tuple[SizedGraph, ...]
    left_out: tuple[onnx.GraphProto, ...] = ()
    misfits: Mapping[str, str] = field(default_factory=dict)


NO_BODIES = ControlFlow((), ())


def control_flow(node: Node, values: Values, opset: int, size_body: SizeBody) -> ControlFlow:
    """Size the bodies of an If, Loop or Scan, and then its outputs.

    Args:
        node: the node.
        values: the values visible to the node.
        opset: version of ONNX's own operator set.
        size_body: function that sizes a body, given the types of its inputs.

    Raises:
        GraphError: a body is missing, or its number of inputs or outputs is wrong.
    """
    match node.proto.op_type:
        case "If":
            return _if(node, values, size_body)
        case "Loop":
            return _loop(node, values, size_body)
        case _:
            return _scan(node, values, opset, size_body)


def _body(node: Node, name: str) -> onnx.GraphProto:
    attribute = attribute_of(node.proto, name)
    if attribute is None or not attribute.HasField("g"):
        raise GraphError(
            f"op {node.name!r} ({node.proto.op_type}) has no {name}", hint="the file is damaged; export it again"
        )
    return attribute.g


def _outputs(node: Node, body: SizedGraph, expected: int) -> tuple[ValueType, ...]:
    if len(body.outputs) != expected:
        raise GraphError(
            f"a body of op {node.name!r} ({node.proto.op_type}) has {len(body.outputs)} outputs "
            f"where its node needs {expected}",
            hint="the file is damaged; export it again",
        )
    return tuple(body.values[name].type for name in body.outputs)


def _first_data(node: Node, values: Values) -> Array | None:
    """Return the elements of the first input, if known."""
    inputs = node.proto.input
    data = values[inputs[0]].data if inputs and inputs[0] else None
    return data if data is not None and data.size else None


def _if(node: Node, values: Values, size_body: SizeBody) -> ControlFlow:
    branches = ["then_branch", "else_branch"]
    condition = _first_data(node, values)
    if condition is not None:
        taken, other = branches if condition.any() else branches[::-1]
        body = size_body(_body(node, taken), ())
        return ControlFlow(_outputs(node, body, len(node.proto.output)), (body,), (_body(node, other),))
    bodies: list[SizedGraph] = []
    misfits: dict[str, str] = {}
    for branch in branches:
        try:
            bodies.append(size_body(_body(node, branch), ()))
        except Misfit as error:
            misfits[branch] = error.message
    if not bodies:
        reasons = "; ".join(f"{branch}: {reason}" for branch, reason in misfits.items())
        raise Misfit(f"no branch of op {node.name!r} fits these sizes: {reasons}", hint=CHECK_SIZES)
    results = [_outputs(node, body, len(node.proto.output)) for body in bodies]
    types = tuple(_larger(each) for each in zip(*results, strict=True))
    return ControlFlow(types, tuple(bodies), tuple(_body(node, branch) for branch in misfits), misfits)


def _larger(types: Sequence[ValueType]) -> ValueType | None:
    """Return the type with most memory, as the branch to run is unknown."""
    open_type = next((one for one in types if not one.is_sized), None)
    if open_type is not None:
        return open_type
    return max(types, key=lambda one: one.bytes)


def _loop(node: Node, values: Values, size_body: SizeBody) -> ControlFlow:
    states = [values[name].type for name in node.proto.input[2:] if name]
    body = size_body(_body(node, "body"), (TensorType(INT64, ()), TensorType(BOOL, ()), *states))
    scans = len(node.proto.output) - len(states)
    _, *results = _outputs(node, body, 1 + len(states) + scans)
    limit = _first_data(node, values)
    trips = None if limit is None else max(0, int(limit.max()))
    types = [_state_after(before, after, trips) for before, after in zip(states, results, strict=False)]
    types += [_stacked(one, 0, trips) for one in results[len(states) :]]
    return ControlFlow(tuple(types), (body,))


def _state_after(before: ValueType, after: ValueType, trips: int | None) -> ValueType | None:
    """Return a state's type after the loop, given its types before and after the first iteration."""
    if isinstance(before, SequenceType) and isinstance(after, SequenceType):
        return _sequence_after(before, after, trips)
    return before if before.shape == after.shape else TensorType(after.element, None)


def _sequence_after(before: SequenceType, after: SequenceType, trips: int | None) -> SequenceType:
    item = after.item if before.length == 0 or before.item == after.item else None
    if before == after:
        return before
    if trips is None or before.total_bytes is None or after.total_bytes is None:
        return SequenceType(after.element, None, item=item)
    known = before.length is not None and after.length is not None
    length = (before.length or 0) + trips * ((after.length or 0) - (before.length or 0)) if known else None
    growth = after.total_bytes - before.total_bytes
    return SequenceType(after.element, max(0, before.total_bytes + trips * growth), item=item, length=length)


def _stacked(one: ValueType, axis: int, count: int | None) -> ValueType | None:
    """Return the type of `count` tensors stacked along a new axis."""
    if one.shape is None or count is None:
        return TensorType(one.element, None)
    axis %= len(one.shape) + 1
    return TensorType(one.element, (*one.shape[:axis], count, *one.shape[axis:]))


def _scan(node: Node, values: Values, opset: int, size_body: SizeBody) -> ControlFlow:
    proto = node.proto
    if opset < 9:
        # Scan 8 has a batch axis and an optional first input; no current exporter writes it.
        return ControlFlow((None,) * len(proto.output), ())
    scanned = integer_attribute(proto, "num_scan_inputs", 0)
    split = len(proto.input) - scanned
    states = [values[name].type for name in proto.input[:split]]
    slices, length = _slices([values[name].type for name in proto.input[split:]], proto)
    body = size_body(_body(node, "body"), (*states, *slices))
    results = _outputs(node, body, len(proto.output))
    types = [_state_after(before, after, length) for before, after in zip(states, results, strict=False)]
    axes = integers_attribute(proto, "scan_output_axes") or (0,) * (len(results) - split)
    types += [_stacked(one, axis, length) for one, axis in zip(results[split:], axes, strict=False)]
    return ControlFlow(tuple(types), (body,))


def _slices(scanned: Sequence[ValueType], proto: onnx.NodeProto) -> tuple[list[ValueType], int | None]:
    """Return the slice type of each scanned input, and the number of slices."""
    axes = integers_attribute(proto, "scan_input_axes") or (0,) * len(scanned)
    slices: list[ValueType] = []
    length = None
    for one, axis in zip(scanned, axes, strict=False):
        if not one.shape:
            slices.append(TensorType(one.element, None))
            continue
        place = axis % len(one.shape)
        length = one.shape[place]
        slices.append(TensorType(one.element, one.shape[:place] + one.shape[place + 1 :]))
    return slices, length


def body_inputs(graph: onnx.GraphProto, types: Sequence[ValueType], where: str) -> Mapping[str, ValueType]:
    """Return the types of a body's inputs by name.

    Raises:
        GraphError: the body's number of inputs differs from the node's.
    """
    names = [value.name for value in graph.input]
    if len(names) != len(types):
        raise GraphError(
            f"the body of op {where!r} has {len(names)} inputs, but is given {len(types)}",
            hint="the file is damaged; export it again",
        )
    return dict(zip(names, types, strict=True))
