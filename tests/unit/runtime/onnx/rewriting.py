"""Models rewritten for the tests, and run in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from remat_cli import session_options
from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import with_frees
from remat_cli.prepare import prepare
from remat_cli.runtime.onnx.apply import apply_schedule, checked
from remat_cli.runtime.onnx.rewrite import Rewritten
from tests.unit.formats.onnx.models import Model

Array = np.ndarray[Any, Any]
KERNEL_TIME = "_kernel_time"


def planned(path: Path, **options: Any) -> Graph:
    """Return the graph that is planned for inference."""
    return prepare(path, GraphOptions(mode="inference", **options)).graph


def rewritten(path: Path, computes: Sequence[str], *, passes: bool = True, **options: Any) -> Rewritten:
    """Return the model in a file, rewritten to run these ops in this order; it passes the checker if it did before."""
    given = GraphOptions(mode="inference", **options)
    graph = prepare(path, given).graph
    result = apply_schedule(path, given, graph, with_frees(graph, computes), {"planner": "by hand"})
    assert len(checked(result.proto, path)) == (0 if passes else 1)
    return result


def rewritten_model(folder: Path, model: Model, computes: Sequence[str], **options: Any) -> Rewritten:
    """Write the model to a file, and return it rewritten; options as for `rewritten`."""
    return rewritten(model.save(folder), computes, **options)


def run(model: onnx.ModelProto, feeds: Mapping[str, Array], folder: Path) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the outputs of a model as onnxruntime computes them, and the names of its nodes in the order they ran."""
    options = session_options()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results = session.run(None, dict(feeds))
    profile = Path(session.end_profiling())
    events = json.loads(profile.read_text())
    profile.unlink()
    names = [event["name"] for event in events if event.get("cat") == "Node"]
    order = tuple(name.removesuffix(KERNEL_TIME) for name in names if name.endswith(KERNEL_TIME))
    return dict(zip([output.name for output in session.get_outputs()], results, strict=True)), order


def drawn(model: onnx.ModelProto) -> dict[str, Array]:
    """Return random float32 inputs for a model whose inputs have fixed sizes."""
    source = np.random.default_rng(0)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inputs}
    return {name: source.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def assert_same_bits(before: Mapping[str, Array], after: Mapping[str, Array]) -> None:
    """Hold the outputs of two models against each other, bit by bit."""
    assert list(before) == list(after)
    for name, array in before.items():
        assert array.dtype == after[name].dtype
        assert array.tobytes() == after[name].tobytes(), name


def assert_follows(result: Rewritten, original: onnx.ModelProto, folder: Path) -> None:
    """Run a rewritten model and its original: the same bits, in the order of the file."""
    feeds = drawn(result.proto)
    outputs, order = run(result.proto, feeds, folder)
    assert_same_bits(run(original, feeds, folder)[0], outputs)
    assert order == result.order


def stored(name: str, *dims: int) -> onnx.TensorProto:
    """Return a float32 initializer of random numbers."""
    return onnx.numpy_helper.from_array(np.random.default_rng(0).random(dims, dtype=np.float32), name)
