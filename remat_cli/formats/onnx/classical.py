"""Shapes of the ops of `ai.onnx.ml` (scalers, trees, linear models) for which onnx infers a type without a shape.

The shapes are those that onnxruntime 1.31 gives. Where they depend on more than attributes and the first input, there
is no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute, integers_attribute
from remat_cli.formats.onnx.values import TensorType, ValueType, checked

if TYPE_CHECKING:
    import onnx

DOMAIN = "ai.onnx.ml"

_Shape = tuple[int, ...]
_Rule = Callable[["onnx.NodeProto", _Shape], Sequence[_Shape]]


def sized_results(
    node: onnx.NodeProto, name: str, types: Mapping[str, ValueType | None], first: ValueType
) -> Mapping[str, ValueType | None]:
    """Return the types of a node's outputs with the shapes that onnx leaves out, as far as there is a rule.

    Args:
        node: from the domain `ai.onnx.ml`.
        name: of the node, for messages.
        types: of its outputs, as onnx infers them.
        first: the type of its first input.

    Raises:
        GraphError: an attribute gives a size that no tensor can have.
    """
    rule = _RULES.get(node.op_type)
    if rule is None or not first.shape:
        return types
    shapes = dict(zip(node.output, rule(node, first.shape), strict=False))
    return {
        output: checked(replace(kind, shape=shapes[output]), f"{output!r}, which op {name!r} produces,")
        if isinstance(kind, TensorType) and not kind.is_sized and output in shapes
        else kind
        for output, kind in types.items()
    }


def _like_input(_: onnx.NodeProto, shape: _Shape) -> Sequence[_Shape]:
    return [shape]


def _rows(shape: _Shape) -> int:
    """The number of samples: a list of features is one."""
    return shape[0] if len(shape) > 1 else 1


def _concatenated(node: onnx.NodeProto, shape: _Shape) -> Sequence[_Shape]:
    """All features of a sample beside each other; without their numbers, those of the inputs are not known here."""
    widths = integers_attribute(node, "inputdimensions")
    return [(_rows(shape), sum(widths))] if widths else []


def _regressed(targets: str) -> _Rule:
    """As many values a sample as the attribute of that name says."""
    return lambda node, shape: [(_rows(shape), integer_attribute(node, targets, 1))]


def _classified(node: onnx.NodeProto, shape: _Shape) -> Sequence[_Shape]:
    """A label a sample, and a score for each class."""
    numbers, texts = integers_attribute(node, "classlabels_int64s"), attribute_of(node, "classlabels_strings")
    classes = len(numbers) or (0 if texts is None else len(texts.strings))
    return [(_rows(shape),), (_rows(shape), classes)] if classes else []


_RULES: Mapping[str, _Rule] = {
    "FeatureVectorizer": _concatenated,
    "Imputer": _like_input,
    "LinearRegressor": _regressed("targets"),
    "Normalizer": _like_input,
    "SVMRegressor": lambda _, shape: [(_rows(shape), 1)],
    "Scaler": _like_input,
    "TreeEnsembleClassifier": _classified,
    "TreeEnsembleRegressor": _regressed("n_targets"),
}
