"""Shapes of `ai.onnx.ml` ops (scalers, trees, linear models).

For these ops onnx infers a type without a shape. The shapes are those of onnxruntime 1.31. There is no rule if they
depend on more than attributes and the shapes of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute, integers_attribute
from remat_cli.formats.onnx.values import TensorType, ValueType, checked

if TYPE_CHECKING:
    import onnx

DOMAIN = "ai.onnx.ml"

_Shape = tuple[int, ...]
_Rule = Callable[["onnx.NodeProto", Sequence[_Shape]], Sequence[_Shape]]  # by the inputs' shapes, () if unknown


def sized_results(
    node: onnx.NodeProto, name: str, types: Mapping[str, ValueType | None], inputs: Sequence[ValueType]
) -> Mapping[str, ValueType | None]:
    """Add known shapes to the types of a node's outputs.

    Args:
        node: a node from the domain `ai.onnx.ml`.
        name: name of the node, for messages.
        types: types of its outputs, as inferred by onnx.
        inputs: types of its inputs.

    Raises:
        GraphError: an attribute gives a size that no tensor can have.
    """
    rule = _RULES.get(node.op_type)
    if rule is None or not inputs[0].shape:
        return types
    shapes = dict(zip(node.output, rule(node, [each.shape or () for each in inputs]), strict=False))
    return {
        output: checked(replace(kind, shape=shapes[output]), f"{output!r}, which op {name!r} produces,")
        if isinstance(kind, TensorType) and not kind.is_sized and output in shapes
        else kind
        for output, kind in types.items()
    }


def _like_input(_: onnx.NodeProto, shapes: Sequence[_Shape]) -> Sequence[_Shape]:
    return [shapes[0]]


def _rows(shape: _Shape) -> int:
    """The number of samples; a list of features is one sample."""
    return shape[0] if len(shape) > 1 else 1


def _concatenated(node: onnx.NodeProto, shapes: Sequence[_Shape]) -> Sequence[_Shape]:
    """The features of all inputs side by side.

    Without their numbers, the result is unknown here.
    """
    widths = integers_attribute(node, "inputdimensions")
    return [(_rows(shapes[0]), sum(widths))] if widths else []


def _regressed(targets: str) -> _Rule:
    """Return a rule for as many values per sample as the attribute says."""
    return lambda node, shapes: [(_rows(shapes[0]), integer_attribute(node, targets, 1))]


def _classified(node: onnx.NodeProto, shapes: Sequence[_Shape]) -> Sequence[_Shape]:
    """A label per sample, and a score for each class."""
    classes, rows = _classes(node, "classlabels_int64s"), _rows(shapes[0])
    return [(rows,), (rows, classes)] if classes else []


def _supported(node: onnx.NodeProto, shapes: Sequence[_Shape]) -> Sequence[_Shape]:
    """A label per sample, and a score for each class, or for each pair of classes."""
    classes, rows = _classes(node, "classlabels_ints"), _rows(shapes[0])
    is_by_pairs = bool(integers_attribute(node, "vectors_per_class")) and attribute_of(node, "prob_a") is None
    scores = classes * (classes - 1) // 2 if is_by_pairs and classes > 2 else classes
    return [(rows,), (rows, scores)] if classes else []


def _classes(node: onnx.NodeProto, numbered: str) -> int:
    """The number of classes, whose labels are numbers or texts; 0 without labels."""
    texts = attribute_of(node, "classlabels_strings")
    return len(integers_attribute(node, numbered)) or (0 if texts is None else len(texts.strings))


def _extracted(_: onnx.NodeProto, shapes: Sequence[_Shape]) -> Sequence[_Shape]:
    """The chosen columns of the first input; a list is one row."""
    table, columns = shapes
    return [(*(table[:-1] or (1,)), prod(columns))] if columns else []


_RULES: Mapping[str, _Rule] = {
    "ArrayFeatureExtractor": _extracted,
    "FeatureVectorizer": _concatenated,
    "Imputer": _like_input,
    "LinearRegressor": _regressed("targets"),
    "Normalizer": _like_input,
    "SVMClassifier": _supported,
    "SVMRegressor": lambda _, shapes: [(_rows(shapes[0]), 1)],
    "Scaler": _like_input,
    "TreeEnsembleClassifier": _classified,
    "TreeEnsembleRegressor": _regressed("n_targets"),
}
