"""Views and ops in place, by runtime.

A view shares storage with an input; an op in place can overwrite an input.

- `torch`: the views of PyTorch's eager mode. Reshape always counts as a view, although PyTorch must copy for some
  strides of the input (after a transpose): the copy and its base are then seldom both needed.
- `ort-cpu`: the measured behaviour of onnxruntime's CPU provider, version 1.31, without optimisations. It writes every
  output of the graph to storage of its own, even the result of a Reshape or of a Relu.
- `none`: every op writes its own storage.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.randomness import is_inference_dropout
from remat_cli.formats.onnx.values import Values
from remat_cli.formats.reader import Aliasing

if TYPE_CHECKING:
    import onnx

_RESHAPES = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_STRIDED = frozenset({"Transpose", "Expand", "Split", "SplitToSequence", "SequenceAt"})
# fmt: off
_IN_PLACE_ORT = frozenset((
    "BitCast", "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "ScatterElements", "Selu",
    "Shrink", "Sigmoid", "Softmax", "Softplus", "Softsign", "Tanh", "TensorScatter", "ThresholdedRelu", "Trilu",
))
# fmt: on
# The addend of a fused convolution; the position of the input that its result can replace.
_ADDEND = 3
_ADDS_IN_PLACE_ORT = frozenset({("com.microsoft", "FusedConv"), ("com.microsoft.nchwc", "Conv")})


def viewed_inputs(
    node: onnx.NodeProto, values: Values, opset: int, profile: Aliasing, results: Collection[str]
) -> dict[str, str]:
    """Map each output of a node that is a view to its base input.

    Args:
        node: the node.
        values: its inputs and outputs.
        opset: version of ONNX's own operator set.
        profile: the runtime.
        results: the outputs of the node's graph.
    """
    outputs = [name for name in node.output if name]
    if profile is Aliasing.NONE or node.domain != "" or not outputs or not node.input or not node.input[0]:
        return {}
    if profile is Aliasing.ORT_CPU:
        return {} if node.op_type not in _RESHAPES or outputs[0] in results else {outputs[0]: node.input[0]}
    if node.op_type == "Dropout":
        # The second output, the mask, has storage of its own.
        shares = is_inference_dropout(node, values, opset)
        return {node.output[0]: node.input[0]} if shares and node.output[0] else {}
    shares = node.op_type in _RESHAPES | _STRIDED or _keeps_type(node, values)
    shares |= _is_strided_by_constants(node, values, opset)
    return dict.fromkeys(outputs, node.input[0]) if shares else {}


def _keeps_type(node: onnx.NodeProto, values: Values) -> bool:
    if node.op_type not in ("Cast", "CastLike"):
        return False
    return values[node.input[0]].type.element == values[node.output[0]].type.element


def _is_strided_by_constants(node: onnx.NodeProto, values: Values, opset: int) -> bool:
    """Whether PyTorch can point into the input of a Slice or Gather.

    It can if the Slice goes forwards, or the Gather takes one index.
    """
    if node.op_type == "Gather":
        index = values[node.input[1]]
        return index.type.shape == () and not index.is_activation
    if node.op_type != "Slice":
        return False
    if opset < 10 or len(node.input) < 5 or not node.input[4]:
        return True
    steps = values[node.input[4]].data
    return steps is not None and bool((steps > 0).all())


def overwritten_input(node: onnx.NodeProto, values: Values, profile: Aliasing, results: Collection[str]) -> str | None:
    """Return the input that a node's first output can overwrite, or None.

    Arguments are as for `viewed_inputs`.
    """
    if profile is not Aliasing.ORT_CPU or not node.input or not node.output or node.output[0] in results:
        return None
    if (node.domain, node.op_type) in _ADDS_IN_PLACE_ORT:
        return node.input[_ADDEND] if len(node.input) > _ADDEND else None
    in_place = node.domain == "" and (node.op_type in _IN_PLACE_ORT or _keeps_type(node, values))
    return node.input[0] if in_place else None
