"""Determinism of ops: only deterministic ops may be recomputed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute

if TYPE_CHECKING:
    import onnx

    from remat_cli.formats.onnx.values import Values

_RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial"})
_RANDOM |= {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def _is_random(node: onnx.NodeProto) -> bool:
    """Whether the op draws random numbers, or may draw some (a dropout)."""
    return node.op_type in _RANDOM


def repeats_itself(node: onnx.NodeProto, values: Values, opset: int) -> bool:
    """Whether a second run of this node repeats the first result.

    The node has no bodies. True for all ops except random ones, for random ones with a seed, and for dropout outside of
    training. An unknown op counts as deterministic, as most are.
    """
    if not _is_random(node) or attribute_of(node, "seed") is not None:
        return True
    return is_inference_dropout(node, values, opset)


def is_inference_dropout(node: onnx.NodeProto, values: Values, opset: int) -> bool:
    """Whether the node is a dropout that passes its input through.

    Up to operator set 6 an attribute decides, from 7 to 11 every dropout does, from 12 on an input decides. A dropout
    of a share of 0 does, too.
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
