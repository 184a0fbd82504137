"""Which ops share storage with an input, which can overwrite one, and which need scratch memory, by runtime.

- `torch`: what PyTorch's eager mode makes a view of. Reshape counts as a view always, though PyTorch copies where the
  input's strides leave it no choice (after a transpose): the copy and its base are then seldom needed both.
- `ort-cpu`: what onnxruntime's CPU provider was measured to do, version 1.31.
- `none`: every op writes storage of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_cli.readers.onnx.randomness import is_inference_dropout
from remat_cli.readers.onnx.values import TensorType, Values
from remat_cli.readers.reading import Aliasing

if TYPE_CHECKING:
    import onnx

_RESHAPES = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_STRIDED = frozenset({"Transpose", "Expand", "Split"})
_IN_PLACE_ORT = frozenset(
    {"Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "Tanh", "Clip", "Softplus", "Softmax", "LogSoftmax"}
)
# Buffers of the output's size that a kernel allocates for itself.
_SCRATCH_ORT = {"Where": 2, "HardSwish": 1}


def viewed_inputs(node: onnx.NodeProto, values: Values, opset: int, profile: Aliasing) -> dict[str, str]:
    """Return the outputs of a node that are views, each with the input whose storage it shares.

    Args:
        node: the node.
        values: what is known of its inputs and outputs.
        opset: version of ONNX's own operator set.
        profile: the runtime.
    """
    outputs = [name for name in node.output if name]
    if profile is Aliasing.NONE or node.domain != "" or not outputs or not node.input or not node.input[0]:
        return {}
    if node.op_type == "Dropout":
        # Its second output, the mask, is storage of its own.
        shares = profile is Aliasing.TORCH and is_inference_dropout(node, values, opset)
        return {node.output[0]: node.input[0]} if shares and node.output[0] else {}
    shares = node.op_type in _RESHAPES or _keeps_type(node, outputs[0], values)
    if profile is Aliasing.TORCH:
        shares |= node.op_type in _STRIDED or _is_strided_by_constants(node, values, opset)
    return dict.fromkeys(outputs, node.input[0]) if shares else {}


def _keeps_type(node: onnx.NodeProto, output: str, values: Values) -> bool:
    casts = node.op_type in ("Cast", "CastLike")
    return casts and values[node.input[0]].type.element == values[output].type.element


def _is_strided_by_constants(node: onnx.NodeProto, values: Values, opset: int) -> bool:
    """Whether a Slice goes forwards, or a Gather takes one index: PyTorch can then point into the input."""
    if node.op_type == "Gather":
        index = values[node.input[1]]
        return index.type.shape == () and not index.is_activation
    if node.op_type != "Slice":
        return False
    if opset < 10 or len(node.input) < 5 or not node.input[4]:
        return True
    steps = values[node.input[4]].data
    return steps is not None and bool((steps > 0).all())


def scratch_bytes(node: onnx.NodeProto, values: Values, profile: Aliasing) -> int:
    """Return the memory that a node's kernel takes beside its inputs and outputs."""
    outputs = [name for name in node.output if name]
    if profile is not Aliasing.ORT_CPU or node.domain != "" or not outputs:
        return 0
    result = values[outputs[0]].type
    if node.op_type == "Dropout" and isinstance(result, TensorType) and len(outputs) == 1:
        # The mask, one byte an element, is made whether it is wanted or not.
        return result.elements
    return _SCRATCH_ORT.get(node.op_type, 0) * result.bytes


def overwritten_input(node: onnx.NodeProto, values: Values, profile: Aliasing) -> str | None:
    """Return the input that a node's first output can take the place of, or None."""
    if profile is not Aliasing.ORT_CPU or node.domain != "" or node.op_type not in _IN_PLACE_ORT:
        return None
    return node.input[0] if node.input and node.output else None
