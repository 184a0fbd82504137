"""A schedule applied to its model.

A schedule of another model is refused; the rewritten model is checked and described.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from remat_cli import __version__
from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Offload, Prefetch, Schedule, Wait
from remat_cli.errors import UsageError
from remat_cli.formats.model_config import names_step
from remat_cli.formats.onnx.errors import one_line, onnx_faults
from remat_cli.formats.onnx.load import FOLD_LIMIT, load_model
from remat_cli.formats.onnx.reader import SizedModel, read_sized
from remat_cli.formats.onnx.walk import all_graphs
from remat_cli.formats.reader import Aliasing, Workspace
from remat_cli.formats.source import Source
from remat_cli.runtime.onnx.node_order import without_dead_ops
from remat_cli.runtime.onnx.rewrite import Rewritten, rewrite
from remat_cli.settings import Setting

if TYPE_CHECKING:
    import onnx

_METADATA = "remat."


def check_can_apply(path: Path, options: GraphOptions, schedule: Schedule) -> None:
    """Check that onnxruntime can run `schedule` on the model at `path`.

    Args:
        path: the model.
        options: options of reading the model, with the mode.
        schedule: the schedule to execute.

    Raises:
        UsageError: onnxruntime cannot run it; the message has the reason and a remedy.
    """
    if names_step(path):
        raise UsageError(
            f"{path} is no ONNX model",
            hint="a PyTorch step needs no rewriting: remat_cli.torch.planned(model, schedule)",
        )
    if Source(path).is_json:
        raise UsageError(f"{path} is no ONNX model: there is nothing to run", hint="name the model that was planned")
    if options.mode != "inference":
        raise UsageError(
            "this is for training, and the backward pass is not in the model file",
            hint=(
                "plan or run it with ",
                Setting("mode", "inference"),
                "; a training schedule is for the framework that trains the model",
            ),
        )
    if options.aliasing not in (None, Aliasing.ORT_CPU):
        raise UsageError(
            f"the schedule counts on memory being shared as by {options.aliasing}, and onnxruntime does "
            "not share it in that way",
            hint=("plan without ", Setting("aliasing"), ": for inference the default is what onnxruntime does"),
        )
    if options.workspace is Workspace.NONE:
        raise UsageError(
            "the schedule counts no workspace of kernels, and onnxruntime's kernels take some",
            hint=("plan without ", Setting("workspace"), ": for inference the default is what onnxruntime takes"),
        )
    moved = next((step for step in schedule.steps if isinstance(step, Offload | Prefetch | Wait)), None)
    if moved is not None:
        raise UsageError(
            f"the schedule moves {moved.tensor!r} to or from the host, which onnxruntime cannot",
            hint=(
                "use a planner that only recomputes ('remat planners' lists them), or plan without ",
                Setting("link_bandwidth"),
            ),
        )


def read_for(path: Path, options: GraphOptions, *, keep_data: bool) -> SizedModel:
    """Read the model at `path` as for planning.

    `keep_data` keeps the data for rewriting.
    """
    return read_sized(Source(path), replace(options, mode="inference", aliasing=Aliasing.ORT_CPU), keep_data=keep_data)


def each_in_parts(path: Path, options: GraphOptions) -> dict[str, Callable[[], onnx.ModelProto]]:
    """Return, for each region in parts, a function that returns the model with this region alone in parts.

    Args:
        path: the model.
        options: options of reading the planned graph.
    """

    def alone(name: str, cut: object) -> onnx.ModelProto:
        return read_for(path, replace(options, parts={name: str(cut)}), keep_data=True).model.proto

    return {name: partial(alone, name, cut) for name, cut in options.parts.items()}


def apply_schedule(
    path: Path, options: GraphOptions, graph: Graph, schedule: Schedule, facts: Mapping[str, object]
) -> Rewritten:
    """Return the model at `path`, rewritten to run `schedule`.

    The schedule has been replayed on `graph`.

    Args:
        path: the model.
        options: options of reading the planned graph.
        graph: the planned graph.
        schedule: the schedule; only its computes matter, as onnxruntime frees all values as early as
            possible. Computes of dead ops are left out.
        facts: facts for the model's metadata, which has the version of remat, too; None is left out.

    Raises:
        GraphError: an op needs an estimated size of a value that does not exist yet.
    """
    live = without_dead_ops(graph).op
    computes = [name for name in schedule.computes if name in live]
    rewritten = rewrite(read_for(path, options, keep_data=True), graph, computes)
    entries = {**{key: value for key, value in facts.items() if value is not None}, "version": __version__}
    metadata = rewritten.proto.metadata_props
    for index in reversed(range(len(metadata))):
        if metadata[index].key.startswith(_METADATA):
            del metadata[index]
    for key, value in sorted(entries.items()):
        metadata.add(key=f"{_METADATA}{key}", value=str(value))
    return rewritten


def model_bytes(model: onnx.ModelProto) -> bytes:
    """Return the file of a model.

    The same model always gives the same bytes.

    Raises:
        GraphError: the model is too large for a file.
    """
    with onnx_faults("the rewritten model cannot be written", "save the model with external data, and plan that file"):
        content: bytes = model.SerializeToString(deterministic=True)
    return content


def checked(model: onnx.ModelProto, path: Path) -> tuple[str, ...]:
    """Check a rewritten model with onnx's checker.

    Return the checker's complaint about the original model, if any.

    Args:
        model: the rewritten model.
        path: the original model.

    Raises:
        RuntimeError: the checker's complaint is not the one about the original model: a fault in remat.
    """
    complaint = _complaint(model)
    if complaint is None:
        return ()
    before = _complaint(load_model(Source(path)).proto)
    if before is None:
        raise RuntimeError(f"the rewritten model does not pass onnx's checker: {complaint}")
    return (f"the model does not pass onnx's checker, before or after: {before}",)


def _complaint(model: onnx.ModelProto) -> str | None:
    """Return the complaint of onnx's checker, or None.

    Weights are not checked.
    """
    import onnx

    try:
        onnx.checker.check_model(_without_weights(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        return one_line(error)
    return None


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with inputs in place of weights.

    The checker would open the weights' files.
    """
    import onnx
    from onnx import helper

    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    copy.graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(copy.graph, field).extend(getattr(model.graph, field))
    copy.graph.initializer.extend(tensor for tensor in model.graph.initializer if not _is_weight(tensor))
    weights = {tensor.name: tensor for tensor in model.graph.initializer if _is_weight(tensor)}
    for body in islice(all_graphs(copy.graph), 1, None):
        for index in reversed(range(len(body.initializer))):
            if _is_weight(body.initializer[index]):
                weights.setdefault(body.initializer[index].name, body.initializer[index])
                del body.initializer[index]
    given = {value.name for value in copy.graph.input}
    copy.graph.input.extend(
        helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        for name, tensor in weights.items()
        if name not in given
    )
    return copy


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == tensor.EXTERNAL or prod(tensor.dims) > FOLD_LIMIT
