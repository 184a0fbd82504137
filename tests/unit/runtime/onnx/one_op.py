"""Models of one op each, by which what its kernel takes for itself is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.prepare import prepare
from remat_cli.runtime.onnx.apply import apply_schedule
from tests.unit.formats.onnx.models import integers, node

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A node that makes y of h, a tensor that a node before it made, and constants.

    Attributes:
        op: of the node.
        h: shape of h.
        constants: further inputs, in order; a shape stands for random float32 of that shape, None for an absent input.
        first: position of h among the inputs.
        copies: how often h is an input, in a row.
        element: type of h.
        outputs: number of outputs; only the first one is read.
        attributes: of the node; `domain` too.
        opset: version of ONNX's own operator set.
        keep: whether h is read again after the node.
    """

    op: str
    h: Sequence[int] = (2, 4, 256, 256)
    constants: Sequence[Any] = ()
    first: int = 0
    copies: int = 1
    element: int = TensorProto.FLOAT
    outputs: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 21
    keep: bool = False

    def __str__(self) -> str:
        told = [self.op, *(f"{key}={value}" for key, value in self.attributes.items()), "x".join(map(str, self.h))]
        return "-".join([*told, *(["kept"] if self.keep else [])])

    def model(self) -> onnx.ModelProto:
        """x is copied to h; y, and h where it is kept, are read by a Gather of their first element."""
        constants = {f"c{i}": _array(one) for i, one in enumerate(self.constants) if one is not None}
        inputs = [f"c{i}" if one is not None else "" for i, one in enumerate(self.constants)]
        inputs[self.first : self.first] = ["h"] * self.copies
        outputs = ["y", *(f"y{i}" for i in range(1, self.outputs))]
        nodes = [node("Concat", ["x"], ["h"], "copy", axis=0), node(self.op, inputs, outputs, "op", **self.attributes)]
        read = ["y", *(["h"] if self.keep else [])]
        for name in read:
            nodes.append(node("Reshape", [name, "flat"], [f"{name}.flat"], f"{name}.flat"))
            nodes.append(node("Gather", [f"{name}.flat", "zero"], [f"{name}.first"], f"{name}.first"))
        graph = helper.make_graph(
            nodes,
            "one-op",
            [helper.make_tensor_value_info("x", self.element, self.h)],
            [helper.make_empty_tensor_value_info(f"{name}.first") for name in read],
            [integers("flat", -1), integers("zero", 0)],
        )
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
        domains = {"": self.opset, "com.microsoft": 1, "com.microsoft.nchwc": 1}
        imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _array(given: Any) -> Array:
    if isinstance(given, tuple):
        return np.random.default_rng(0).random(given, dtype=np.float32)
    return np.asarray(given)


def ints(*dims: int, dtype: type = np.int64) -> Array:
    return np.random.default_rng(0).integers(0, 2, dims).astype(dtype)


@dataclass(frozen=True)
class Predicted:
    """What is known of a case's model before it runs.

    Attributes:
        graph: as read.
        peak_bytes: of the plain run, beside weights and inputs.
        request: for the measuring process.
    """

    graph: Graph
    peak_bytes: int
    request: Mapping[str, Any]


def predicted(case: Case, folder: Path, name: str, value_shapes: Mapping[str, tuple[int, ...]]) -> Predicted:
    """Write the model of a case, and that of its plain run; `value_shapes` are those of results that nobody knows."""
    path, ran = folder / f"{name}.onnx", folder / f"{name}.rewritten.onnx"
    onnx.save(case.model(), path)
    options = GraphOptions(mode="inference", value_shapes=value_shapes)
    graph = prepare(path, options).graph
    schedule = plain_run(graph)
    onnx.save(apply_schedule(path, options, graph, schedule, {}).proto, ran)
    kind = helper.tensor_dtype_to_np_dtype(case.element).name
    request = {"model": str(ran), "inputs": [("x", kind, case.h)]}
    return Predicted(graph, simulate(graph, schedule).peak_bytes - graph.fixed_bytes, request)
