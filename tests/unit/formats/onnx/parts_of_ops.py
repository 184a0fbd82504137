"""Ops of ONNX, run in parts along each axis that their rules allow, beside the whole op."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.case import node as onnx_cases
from onnx.reference import ReferenceEvaluator

from remat_cli.formats.onnx import parts
from remat_cli.formats.onnx.axes import axes_of
from remat_cli.formats.onnx.reader import read_sized
from remat_cli.formats.reader import ReadOptions
from remat_cli.formats.source import Source
from remat_cli.splitting import Axis, Region

# More rows are not cut into parts of one row each.
_MOST_PARTS = 6


@dataclass
class OneOp:
    """A model of one op, with its inputs.

    Attributes:
        name: of the case.
        model: the model, whose operands but the first are initializers, as far as this is possible.
        fed: the inputs.
    """

    name: str
    model: onnx.ModelProto
    fed: Mapping[str, Any]


def cases_of_onnx(type_: str) -> Iterator[OneOp]:
    """Yield the operator tests of the onnx package for an op."""
    for module in iter_modules(onnx_cases.__path__):
        if module.name.replace("_", "") == type_.lower():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import_module(f"{onnx_cases.__name__}.{module.name}")
    for case in onnx_cases._NodeTestCases:
        nodes = case.model.graph.node
        if [node.op_type for node in nodes] == [type_] and len(case.data_sets) == 1:
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            names = [value.name for value in model.graph.input]
            given = dict(zip(names, case.data_sets[0][0], strict=True))
            fed = {name: data for name, data in given.items() if name in nodes[0].input[:1]}
            if all(isinstance(data, np.ndarray) for data in given.values()):
                yield OneOp(case.name, store(model, given, fed), fed)


def store(model: onnx.ModelProto, given: Mapping[str, Any], fed: Mapping[str, Any]) -> onnx.ModelProto:
    """Turn inputs that are not fed into initializers, and leave the types of results open."""
    for value in model.graph.output:
        value.ClearField("type")
    inputs = [value for value in model.graph.input if value.name in fed]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    stored = [numpy_helper.from_array(data, name) for name, data in given.items() if name not in fed]
    model.graph.initializer.extend(stored)
    return model


def runs_on_onnxruntime(case: OneOp) -> bool:
    """Tell whether onnxruntime has the kernel; onnx's reference runs the op otherwise."""
    try:
        run(case.model, case.fed, onnxruntime_has_it=True)
    except Exception:  # of many classes, by the fault: no kernel, no such type, shapes it does not take
        return False
    return True


def run(model: onnx.ModelProto, fed: Mapping[str, Any], *, onnxruntime_has_it: bool) -> list[Any]:
    """Return the results of a model."""
    if not onnxruntime_has_it:
        return list(ReferenceEvaluator(model).run(None, dict(fed)))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(fed)))


def cut_along_each_axis(case: OneOp, folder: Path, *, every_count: bool) -> list[Axis]:
    """Run an op in parts along each axis; return the axes.

    Args:
        case: the op.
        folder: for its file.
        every_count: 2 parts, uneven parts and parts of one row each; otherwise axes take turns with these.

    Raises:
        AssertionError: a result differs.
    """
    path = folder / "op.onnx"
    case.model.graph.node[0].name = "op"
    path.write_bytes(case.model.SerializeToString())
    sized = read_sized(Source(path), ReadOptions(mode="inference"), keep_data=True)
    opset = sized.inference.opsets.version("")
    axes = list(axes_of(sized.model.graph.node[0], sized.graph.values, opset))
    if not axes:
        return []
    has_kernel = runs_on_onnxruntime(case)
    whole = run(case.model, case.fed, onnxruntime_has_it=has_kernel)
    for number, axis in enumerate(axes):
        counts = [2, min(3, axis.rows), axis.rows if axis.rows <= _MOST_PARTS else 2]
        for count in counts if every_count else counts[(len(case.name) + number) % 3 :][:1]:
            label = f"{case.name} along {axis} in {count} parts"
            cut = onnx.ModelProto()
            cut.CopyFrom(sized.model.proto)
            parts.write(cut.graph, sized.graph.values, opset, [(Region(axis.rows, {"op": axis}), count)])
            for one, other in zip(run(cut, case.fed, onnxruntime_has_it=has_kernel), whole, strict=True):
                assert (one.shape, one.dtype) == (other.shape, other.dtype), label
                one, other = one.astype(np.float64), other.astype(np.float64)
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5, err_msg=label)
    return axes
