"""Which ops are deterministic: only those may be recomputed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute

if TYPE_CHECKING:
    import onnx

    from remat_cli.formats.onnx.values import Values

_RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial"})
_RANDOM |= {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def _is_random(node: onnx.NodeProto) -> bool:
    """Whether the op draws random numbers, or may (a dropout)."""
    return node.op_type in _RANDOM


def repeats_itself(node: onnx.NodeProto, values: Values, opset: int) -> bool:
    """Whether a second run of this node, which has no bodies, gives the result of the first.

    True for all ops but random ones, and for those with a seed and for dropout outside training. An op that onnx does
    not know is taken to repeat itself, as most do.
    """
    if not _is_random(node) or attribute_of(node, "seed") is not None:
        return True
    return is_inference_dropout(node, values, opset)


def is_inference_dropout(node: onnx.NodeProto, values: Values, opset: int) -> bool:
    """Whether the node is a dropout that passes its input through.

    Up to operator set 6 an attribute says so, from 7 to 11 it always does, from 12 on an input says so. One that drops
    a share of 0 does so, too.
    """
    if node.op_type != "Dropout" or node.domain != "":
        return False
    if opset < 7:
        return integer_attribute(node, "is_test", 0) != 0
    training = node.input[2] if len(node.input) > 2 else ""
    return not training or _is_zero(values, training) or _is_zero(values, node.input[1])


def _is_zero(values: Values, name: str) -> bool:
    data = values[name].data if name else None
    return data is not None and not data.any()
