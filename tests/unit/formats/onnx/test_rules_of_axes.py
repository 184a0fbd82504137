"""Each rule of axes is held against the op itself: ONNX's own operator tests, and operands with all sizes equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from remat_cli.formats.onnx.axes import _RULES
from tests.unit.formats.onnx.models import Model, node
from tests.unit.formats.onnx.parts_of_ops import OneOp, cases_of_onnx, cut_along_each_axis, store

X = (4, 4, 4)
IMAGES = (4, 4, 4, 4)
FIRST = "first"  # an operand that is the first operand, too
# A shape is that of random numbers; a list are stored whole numbers; None is an absent operand.
Operand = tuple[int, ...] | list[int] | np.ndarray[Any, Any] | str | None
AXES = {"axis": [-3, -1, 0, 1, 2]}
INDICES = np.array([[3, 1, 0, 2], [0, 0, 1, 2], [2, 3, 1, 0], [1, 1, 3, 3]])


def floats(*numbers: float) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.float32)


NO_AXES: list[int] = []
REDUCED: list[list[Operand]] = [[X], [X, [1]], [X, [-1]], [X, [0, 2]], [X, NO_AXES]]
REDUCTIONS = {"keepdims": [0, 1], "noop_with_empty_axes": [0, 1]}
POOLED = {"kernel_shape": [[2, 2]], "strides": [[1, 1], [2, 2]], "pads": [[0, 0, 0, 0], [1, 1, 1, 1]]}
SKIPS: list[list[Operand]] = [[X, skip, (4,)] for skip in (X, (1, 4, 4), (4, 4), FIRST)]

# By op: all operands, each with all combinations of attributes.
SQUARE: dict[str, tuple[Sequence[Sequence[Operand]], Mapping[str, Sequence[Any]]]] = {
    "Add": ([[X, other] for other in (X, (4,), (4, 1), (1, 4, 1), (1, 4), (), IMAGES, FIRST)], {}),
    "ArgMax": ([[X]], {**AXES, "keepdims": [0, 1], "select_last_index": [0, 1]}),
    "ArgMin": ([[X]], {**AXES, "keepdims": [0, 1]}),
    "AveragePool": ([[IMAGES]], {**POOLED, "count_include_pad": [0, 1]}),
    "BatchNormalization": ([[X, (4,), (4,), (4,), (4,)]], {}),
    "Cast": ([[X]], {"to": [TensorProto.INT32, TensorProto.DOUBLE]}),
    "Clip": ([[X, (), ()]], {}),
    "Concat": ([[X, X], [X, FIRST, X]], AXES),
    "Conv": (
        [[IMAGES, IMAGES], [IMAGES, FIRST], [IMAGES, IMAGES, (4,)]],
        {"pads": [[0, 0, 0, 0], [1, 1, 1, 1], [2, 1, 2, 1]]},
    ),
    "ConvTranspose": ([[IMAGES, IMAGES], [IMAGES, FIRST]], {"strides": [[1, 1], [2, 2]]}),
    "DepthToSpace": ([[IMAGES]], {"blocksize": [2], "mode": ["DCR", "CRD"]}),
    "DequantizeLinear": ([[np.ones(X, np.int8), scale] for scale in ((4,), (), (1,))], AXES),
    "Expand": ([[(4, 1, 4), [4, 4, 4]], [(4,), [4, 4, 4]], [X, [4, 1, 1]], [(4, 1), [4, 4, 4, 4]]], {}),
    "Flatten": ([[X]], {"axis": [-3, -1, 0, 1, 2, 3]}),
    "Gather": ([[X, INDICES], [X, [1, 3]], [INDICES, FIRST]], {"axis": [-2, -1, 0, 1]}),
    "Gemm": (
        [[(4, 4), (4, 4), added] for added in (None, (4, 4), (4,), (1, 4), (4, 1), (), FIRST)] + [[(4, 4), FIRST]],
        {"transA": [0, 1], "transB": [0, 1]},
    ),
    "GlobalLpPool": ([[IMAGES]], {}),
    "GroupNormalization": ([[IMAGES, (4,), (4,)]], {"num_groups": [1, 2, 4]}),
    "Hardmax": ([[X]], AXES),
    "InstanceNormalization": ([[IMAGES, (4,), (4,)]], {}),
    "LRN": ([[IMAGES]], {"size": [3]}),
    "LayerNormalization": ([[X, scale, bias] for scale in ((4,), (1, 4, 4)) for bias in ((4,), None)], {"axis": [-1]}),
    "LpNormalization": ([[X]], AXES),
    "LpPool": ([[IMAGES]], POOLED),
    "MatMul": (
        [[X, X], [(4, 4), X], [(1, 4, 4), X], [IMAGES, (4, 1, 4, 4)], [X, FIRST], [X, (4,)], [(4,), X], [X, (4, 4)]],
        {},
    ),
    "Max": ([[X, (4,), FIRST, (4, 1)]], {}),
    "MaxPool": ([[IMAGES]], POOLED),
    "Not": ([[np.arange(64).reshape(X) % 3 == 0]], {}),
    "PRelu": ([[X, slope] for slope in (X, (4,), (4, 1), (4, 1, 1), FIRST)], {}),
    "Pad": (
        [[X, pads] for pads in ([0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 2], [0, -1, 0, 0, 1, 0])],
        {"mode": ["constant", "reflect", "edge", "wrap"]},
    ),
    "QuantizeLinear": ([[X, scale] for scale in ((4,), (), (1,))], AXES),
    "RMSNormalization": ([[X, scale] for scale in ((4,), (1, 1, 4), (1, 4, 4), X)], {"axis": [-1]}),
    "ReduceMax": (REDUCED, REDUCTIONS),
    "ReduceSum": (REDUCED, REDUCTIONS),
    "Reshape": (
        [[X, shape] for shape in ([16, 4], [4, 16], [64], [2, 8, 4], [4, 2, 8], [0, -1], [4, 4, 4, 1], [1, 4, 4, 4])],
        {},
    ),
    "Resize": (
        [
            [IMAGES, None, floats(1, 1, 1.2, 1.2)],
            [IMAGES, None, floats(1, 1, 1.2, 2)],
            [IMAGES, None, floats(1, 1.2, 2, 1)],
            [IMAGES, None, floats(1.2, 1, 2, 1)],
            [IMAGES, None, None, [4, 4, 8, 4]],
        ],
        {
            "mode": ["nearest", "linear"],
            "coordinate_transformation_mode": ["half_pixel", "asymmetric", "align_corners"],
        },
    ),
    "SimplifiedLayerNormalization": ([[X, (4,)]], {"axis": [-1]}),
    "Slice": (
        [
            [X, [1], [3], [-3]],
            [X, [1], [3], [-1]],
            [X, [1], [4], [1], [2]],
            [X, [0, 1], [4, 3]],
            [X, [3], [-9], [1], [-1]],
        ],
        {},
    ),
    "Softmax": ([[X]], AXES),
    "SpaceToDepth": ([[IMAGES]], {"blocksize": [2]}),
    "Split": ([[X, [1, 3]]], AXES),
    "Squeeze": ([[(4, 1, 4)], [(4, 1, 4), [1]], [(4, 1, 4), [-2]], [(1, 4, 1, 4)]], {}),
    "TopK": ([[X, [2]]], {**AXES, "largest": [0, 1]}),
    "Transpose": ([[X]], {"perm": [*map(list, permutations(range(3))), None]}),
    "Unsqueeze": ([[X, axes] for axes in ([0], [-1], [1, 3], [-2, 0])], {}),
    "Where": ([[np.arange(64).reshape(X) % 3 == 0, (4, 4), (4, 1, 1)]], {}),
    "com.microsoft.BiasGelu": ([[X, (4,)]], {}),
    "com.microsoft.FastGelu": ([[X], [X, (4,)]], {}),
    "com.microsoft.FusedConv": (
        [[IMAGES, IMAGES, (4,)], [IMAGES, (4, 4, 1, 1), (4,), IMAGES], [IMAGES, FIRST, (4,)]],
        {"activation": ["Relu"]},
    ),
    "com.microsoft.FusedGemm": (
        [[(4, 4), (4, 4), (4,)], [(4, 4), FIRST, (4,)]],
        {"transA": [0, 1], "transB": [0, 1], "activation": ["Relu"]},
    ),
    "com.microsoft.FusedMatMul": ([[X, X], [X, FIRST]], {"transA": [0, 1], "alpha": [0.5]}),
    "com.microsoft.Gelu": ([[X]], {}),
    "com.microsoft.QuickGelu": ([[X]], {"alpha": [1.7]}),
    "com.microsoft.SkipLayerNormalization": (SKIPS, {}),
    "com.microsoft.SkipSimplifiedLayerNormalization": (SKIPS, {}),
}
RESULTS = {"Split": 2, "TopK": 2}


def square_cases(type_: str) -> Iterator[OneOp]:
    """Yield models of an op whose operands have all sizes equal."""
    operands, choices = SQUARE.get(type_, ((), {}))
    domain, _, op_type = type_.rpartition(".")
    for given in operands:
        for chosen in product(*choices.values()):
            attributes = {name: each for name, each in zip(choices, chosen, strict=True) if each is not None}
            random = np.random.default_rng(0)
            names, data = [], {}
            for place, each in enumerate(given):
                name = "in0" if isinstance(each, str) else f"in{place}"
                names.append("" if each is None else name)
                if isinstance(each, tuple):
                    data[name] = random.uniform(0.1, 1, each).astype(np.float32)
                elif isinstance(each, list | np.ndarray):
                    data[name] = np.asarray(each, None if isinstance(each, np.ndarray) else np.int64)
            inputs = [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
                for name, each in data.items()
            ]
            outputs = [f"out{place}" for place in range(RESULTS.get(type_, 1))]
            proto = node(op_type, names, outputs, domain=domain, **attributes)
            opset = 23 if type_ == "RMSNormalization" else 21
            model = Model([proto], inputs, outputs, opset=opset, other_opsets={domain: 1} if domain else {}).proto()
            fed = {"in0": data["in0"]}
            yield OneOp(f"{type_} of {given} with {attributes}", store(model, data, fed), fed)


@pytest.mark.parametrize("type_", _RULES)
def test_an_op_gives_in_parts_what_it_gives_as_a_whole(type_: str, tmp_path: Path) -> None:
    axes = [axis for case in cases_of_onnx(type_) for axis in cut_along_each_axis(case, tmp_path, every_count=False)]
    axes += [axis for case in square_cases(type_) for axis in cut_along_each_axis(case, tmp_path, every_count=True)]
    assert axes, "no operator test of ONNX can be cut: give the rule a square case"
