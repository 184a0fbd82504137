"""ONNX's own tests of its operators, each at every operator set that takes it: sizes are those of its expected outputs.

A file is read without running it. One that cannot be sized holds a value whose shape onnx does not know either, in no
operator set.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import checker, defs, shape_inference
from onnx.reference.ops import op_pool_common

from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.onnx import read
from remat_cli.formats.onnx.walk import all_graphs, all_nodes
from remat_cli.formats.reader import Aliasing, ReadOptions
from remat_cli.formats.source import Source
from tests.seeds import seeds

# Windows that start on padding: in its older versions, onnx counts one that none of its runtimes computes.
WRONG_IN_ONNX = ("test_averagepool_2d_ceil_last_window_starts_on_pad", "test_maxpool_2d_ceil_output_size_reduce_by_one")


def test_every_operator_test_is_sized_as_its_expected_outputs(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for case in cases():
        for model in at_every_operator_set(case):
            outcome = outcome_of(model, case.data_sets[0][1], tmp_path / "model.onnx")
            if outcome.startswith("not sized") and leaves_open(case.model):
                outcome = "not known to onnx"
            outcomes[outcome] += 1
            if outcome not in ("sized", "estimated", "no ops", "not known to onnx"):
                wrong.append(f"{case.name}, operator set {version_of(model)}: {outcome}")
    assert wrong == []
    assert outcomes["sized"] > 4 * outcomes["not known to onnx"]


@lru_cache
def cases() -> list[Any]:
    """Return every fourth of onnx's tests, and all in `make thorough`; making them takes some seconds."""
    from onnx.backend.test.case.node import collect_testcases

    with (
        warnings.catch_warnings(action="ignore"),
        np.errstate(all="ignore"),
        mock.patch.object(op_pool_common, "pool", _pooled),  # three of its arrays take as long as all other cases
    ):
        found = collect_testcases(None)
    taken = [case for case in found if case.name not in WRONG_IN_ONNX and not case.name.endswith("_cuda")]
    return [taken[number] for number in seeds(len(taken))]


def _pooled(padded: Any, shape: Any, kernel: Any, strides: Any, out_shape: Any, *_: Any, **__: Any) -> Any:
    """Return an array of the right shape, of which nobody reads the values."""
    return np.zeros((*shape[:2], *out_shape), padded.dtype)


def version_of(model: onnx.ModelProto) -> int:
    return next((one.version for one in model.opset_import if one.domain == ""), 0)


def at_every_operator_set(case: Any) -> Iterator[onnx.ModelProto]:
    """Yield a model as it is, and for each older operator set that defines an op of it in another way and takes it."""
    yield case.model
    newest = version_of(case.model)
    seen = {definitions(case.model, newest)}
    # Bodies of functions that are spelled out hold ops that have tests of their own.
    for version in range(newest - 1, 0, -1) if "_expanded" not in case.name else ():
        meant = definitions(case.model, version)
        if meant is None or meant in seen:
            continue
        seen.add(meant)
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for one in model.opset_import:
            if one.domain == "":
                one.version = version
        if is_taken(model):
            yield model


def definitions(model: onnx.ModelProto, version: int) -> tuple[int, ...] | None:
    """Return the versions of a model's ops in an operator set, or None where it lacks one of them."""
    nodes = all_nodes(model.graph.node)
    try:
        return tuple(defs.get_schema(one.op_type, version, "").since_version for one in nodes if one.domain == "")
    except defs.SchemaError:
        return None


def is_taken(model: onnx.ModelProto) -> bool:
    """Whether onnx takes a model: attributes and types, and the declared shapes of its outputs."""
    try:
        checker.check_model(model)
        shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (checker.ValidationError, shape_inference.InferenceError):
        return False
    return True


def outcome_of(model: onnx.ModelProto, expected: list[Any], path: Path) -> str:
    """Return in words how reading a model went."""
    path.write_bytes(without_declared_shapes(model).SerializeToString())
    try:
        reading = read(Source(path), ReadOptions(aliasing=Aliasing.NONE, mode="inference"))
    except UsageError as error:
        return f"not sized: {error}"
    except GraphError as error:
        return "no ops" if "has no ops" in str(error) else f"refused: {error}"
    for output, array in zip(model.graph.output, expected, strict=False):
        made = reading.graph.tensors.get(output.name)
        is_plain = isinstance(array, np.ndarray) and array.dtype != np.object_ and made is not None and made.shape
        if is_plain and made is not None and made.shape != array.shape:
            return f"{output.name!r} is {made.shape}, and should be {array.shape}"
    return "estimated" if reading.estimated else "sized"


def without_declared_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose outputs declare no shape, as if they were values between other ops."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for output in bare.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return bare


def leaves_open(model: onnx.ModelProto) -> bool:
    """Whether onnx leaves the shape of a value open, or a model has bodies."""
    inferred = shape_inference.infer_shapes(without_declared_shapes(model), data_prop=True).graph
    types = [one.type for one in (*inferred.input, *inferred.value_info, *inferred.output)]
    return len(list(all_graphs(model.graph))) > 1 or not all(map(is_complete, types))


def is_complete(proto: onnx.TypeProto) -> bool:
    shape = proto.tensor_type.shape
    return proto.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in shape.dim)
