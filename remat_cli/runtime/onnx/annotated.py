"""The user's own model with what a plan does about each node in its metadata, for viewers such as Netron."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from remat_cli.errors import UsageError
from remat_cli.formats.functions import names_function
from remat_cli.formats.onnx.errors import onnx_faults
from remat_cli.formats.source import Source
from remat_cli.runtime.onnx.apply import model_bytes
from remat_cli.runtime.onnx.external_data import rebase

_PREFIX = "remat."


def check_can_annotate(path: Path) -> None:
    """Check that `path` is a model whose nodes can be annotated.

    Raises:
        UsageError: it is no ONNX model.
    """
    if names_function(path) or Source(path).is_json:
        raise UsageError(
            f"{path} is no ONNX model: there are no nodes to annotate",
            hint="write another form: --as html, trace, snapshot or nodes",
        )


def annotated_model(path: Path, target: Path | None, facts: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return the model at `path` with facts in the `metadata_props` of its nodes, and nothing else changed.

    Args:
        path: the model.
        target: where it will stand; references to weights in other files are made right for that. None is anywhere.
        facts: what to say of a node, by the name of any value that it makes.

    Raises:
        GraphError: the file is no ONNX model, or cannot be written.
        UsageError: the model could not refer to its weights from there.
    """
    import onnx

    with onnx_faults(f"{path} is not an ONNX model", "is it damaged, cut short, or of another format?"):
        model = onnx.load_model_from_string(Source(path).content, format="protobuf")
    for node in model.graph.node:
        said = next((facts[name] for name in node.output if name in facts), {})
        for index in reversed(range(len(node.metadata_props))):
            if node.metadata_props[index].key.startswith(_PREFIX):
                del node.metadata_props[index]
        for key, value in sorted(said.items()):
            node.metadata_props.add(key=f"{_PREFIX}{key}", value=value)
    if target is not None:
        rebase(model, path, target)
    return model_bytes(model)
