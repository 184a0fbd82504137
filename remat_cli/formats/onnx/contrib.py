"""Ops of onnxruntime's optimisers, which onnx does not define.

Some are an op of ONNX's own set with an added activation, or with another layout of the same elements: their results
are sized like that op's. `contrib_results` has rules for others. Sizes without a rule stay unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from remat_cli.formats.onnx.attributes import integer_attribute
from remat_cli.formats.onnx.structure import Node

if TYPE_CHECKING:
    import onnx

# The metadata key of a model written by `remat fuse`.
FUSED_BY = "remat_fused_by"

_Form = Callable[["onnx.NodeProto"], "onnx.NodeProto"]
_ACTIVATION = ("activation", "activation_params", "activation_alpha", "activation_beta", "activation_gamma")


def full_type(node: onnx.NodeProto) -> str:
    """Return the name of a node's op, prefixed by a foreign domain."""
    return ".".join(filter(None, (node.domain, node.op_type)))


def is_contributed(node: onnx.NodeProto) -> bool:
    """Whether a node's op is one of onnxruntime's own."""
    return node.domain.split(".")[:2] == ["com", "microsoft"]


def is_fused(model: onnx.ModelProto) -> bool:
    """Whether onnxruntime's optimiser has worked on a model.

    The model says so, or has ops that only the optimiser creates.
    """
    said = any(entry.key == FUSED_BY for entry in model.metadata_props)
    return said or any(map(is_contributed, model.graph.node))


def standard_form(node: Node) -> Node | None:
    """Return a standard node with the type of this node's first result.

    The node is of ONNX's own set; None if there is none.
    """
    form = _FORMS.get(full_type(node.proto))
    return None if form is None or not node.outputs else Node(node.name, form(node.proto), node.captured)


def _as(op_type: str, *positions: int, without: tuple[str, ...] = ()) -> _Form:
    """Return the form of an op close to `op_type`.

    It differs by the attributes in `without`, and reads the inputs at `positions`.
    """

    def form(node: onnx.NodeProto) -> onnx.NodeProto:
        standard = _node(op_type, [node.input[at] for at in positions if at < len(node.input)], node)
        standard.attribute.extend(one for one in node.attribute if one.name not in without)
        return standard

    return form


def _like_first_input(node: onnx.NodeProto) -> onnx.NodeProto:
    return _node("Identity", node.input[:1], node)


def _node(op_type: str, inputs: Sequence[str], like: onnx.NodeProto, **attributes: Any) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node(op_type, inputs, like.output[:1], **attributes)


def _reordered_input(node: onnx.NodeProto) -> onnx.NodeProto:
    """The form of a reordering to blocks of channels.

    The optimiser reorders only if the channels fill their blocks.
    """
    if integer_attribute(node, "channels_last", 0):
        return _node("Transpose", node.input[:1], node, perm=[0, 3, 1, 2])
    return _like_first_input(node)


_FORMS: Mapping[str, _Form] = {
    "com.microsoft.FusedConv": _as("Conv", 0, 1, 2, without=_ACTIVATION),
    "com.microsoft.FusedGemm": _as("Gemm", 0, 1, 2, without=_ACTIVATION),
    "com.microsoft.nchwc.Conv": _as("Conv", 0, 1, 2, without=_ACTIVATION),
    "com.microsoft.nchwc.MaxPool": _as("MaxPool", 0),
    "com.microsoft.nchwc.AveragePool": _as("AveragePool", 0),
    "com.microsoft.nchwc.GlobalMaxPool": _as("GlobalMaxPool", 0),
    "com.microsoft.nchwc.GlobalAveragePool": _as("GlobalAveragePool", 0),
    "com.microsoft.nchwc.ReorderInput": _reordered_input,
}
