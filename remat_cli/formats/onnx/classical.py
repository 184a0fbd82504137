"""Shapes of `ai.onnx.ml` ops (scalers, trees, linear models).

For these ops onnx infers a type without a shape. The shapes are those of onnxruntime 1.31. There is no rule if they
depend on more than attributes and the first input.
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
    """Add known shapes to the types of a node's outputs.

    Args:
        node: a node from the domain `ai.onnx.ml`.
        name: name of the node, for messages.
        types: types of its outputs, as inferred by onnx.
        first: type of its first input.

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
    """The number of samples; a list of features is one sample."""
    return shape[0] if len(shape) > 1 else 1


def _concatenated(node: onnx.NodeProto, shape: _Shape) -> Sequence[_Shape]:
    """The features of all inputs side by side.

    Without their numbers, the result is unknown here.
    """
    widths = integers_attribute(node, "inputdimensions")
    return [(_rows(shape), sum(widths))] if widths else []


def _regressed(targets: str) -> _Rule:
    """Return a rule for as many values per sample as the attribute says."""
    return lambda node, shape: [(_rows(shape), integer_attribute(node, targets, 1))]


def _classified(node: onnx.NodeProto, shape: _Shape) -> Sequence[_Shape]:
    """A label per sample, and a score for each class."""
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
