"""A model optimised by onnxruntime, as a file to plan.

The optimiser would merge the repeats of a plan, so it must run before planning. By default the result runs on all
processors; with layouts for this processor it runs on similar ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.onnx.contrib import FUSED_BY, full_type, is_contributed
from remat_cli.formats.onnx.errors import one_line
from remat_cli.formats.onnx.external_data import absent_files
from remat_cli.formats.onnx.load import load_model
from remat_cli.formats.onnx.walk import all_nodes
from remat_cli.formats.source import Source
from remat_cli.runtime.onnx.session import import_onnxruntime

if TYPE_CHECKING:
    import onnx

_FATAL = 4


@dataclass(frozen=True)
class Fused:
    """An optimised model, with counts of its nodes.

    Attributes:
        proto: the optimised model; its references to weights are relative to the original model's folder.
        version: version of onnxruntime.
        nodes_before: number of nodes of the original model.
        fused: number of nodes by type, of onnxruntime's own ops.
    """

    proto: onnx.ModelProto
    version: str
    nodes_before: int
    fused: dict[str, int]


def fuse(path: Path, *, for_this_machine: bool = False) -> Fused:
    """Return the model at `path`, optimised by onnxruntime.

    Args:
        path: the model; its weights must exist, as the optimiser computes with them.
        for_this_machine: use tensor layouts for this processor, too.

    Raises:
        UsageError: onnxruntime is not installed, or weights are missing.
        GraphError: the model cannot be read, or onnxruntime refuses it.
    """
    runtime = import_onnxruntime()
    if Source(path).is_json:
        raise UsageError(f"{path} is no ONNX model: there are no kernels to fuse", hint="name the ONNX model")
    model = load_model(Source(path)).proto
    if absent := absent_files(model, path):
        raise UsageError(
            f"weights that the model refers to are not there: {', '.join(absent)}",
            hint="put them beside the model: the optimiser computes with them",
        )
    levels = runtime.GraphOptimizationLevel
    level = levels.ORT_ENABLE_ALL if for_this_machine else levels.ORT_ENABLE_EXTENDED
    with TemporaryDirectory(prefix="remat-") as folder:
        first, second = (Path(folder) / name for name in ("first.onnx", "second.onnx"))
        weights = str(path.resolve().parent)
        _optimise(runtime, path, path, first, level, weights)
        # The optimiser inserts casts for ops without a kernel of float16 at the end: only now can those of weights be
        # computed.
        _optimise(runtime, path, first, second, level, weights)
        proto = _tidied(load_model(Source(second), keep_data=True).proto)
    if not any(entry.key == FUSED_BY for entry in proto.metadata_props):
        proto.metadata_props.add(key=FUSED_BY, value=f"onnxruntime {runtime.__version__}")
    return Fused(
        proto=proto,
        version=runtime.__version__,
        nodes_before=len(model.graph.node),
        fused=dict(Counter(full_type(node) for node in proto.graph.node if is_contributed(node))),
    )


def _optimise(runtime: Any, path: Path, source: Path, target: Path, level: Any, weights: str) -> None:
    """Optimise a model from one file into another.

    Messages name `path`.
    """
    options = runtime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, _FATAL
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", weights)
    try:
        runtime.InferenceSession(source.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the message of any exception in onnxruntime goes to the user
        raise GraphError(
            f"{path} does not run in onnxruntime: {one_line(error)}",
            hint="does this version of onnxruntime have a kernel for each of its ops?",
        ) from None


def _tidied(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without unused operator sets.

    onnxruntime imports all sets that it knows.
    """
    used = {node.domain for node in all_nodes(proto.graph.node)} | {""}
    imported = [(one.domain, one.version) for one in proto.opset_import if one.domain in used]
    del proto.opset_import[:]
    for domain, version in imported:
        proto.opset_import.add(domain=domain, version=version)
    return proto
