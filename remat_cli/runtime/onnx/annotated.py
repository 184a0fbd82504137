"""The user's model with a plan's facts in its nodes' metadata.

Viewers such as Netron show these facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from remat_cli.errors import UsageError
from remat_cli.formats.model_config import names_step
from remat_cli.formats.onnx.errors import onnx_faults
from remat_cli.formats.onnx.external_data import rebase
from remat_cli.formats.source import Source
from remat_cli.runtime.onnx.apply import model_bytes

_PREFIX = "remat."


def check_can_annotate(path: Path) -> None:
    """Check that `path` is a model whose nodes can be annotated.

    Raises:
        UsageError: the file is no ONNX model.
    """
    if names_step(path) or Source(path).is_json:
        raise UsageError(
            f"{path} is no ONNX model: there are no nodes to annotate",
            hint="write another form: --as html, trace, snapshot or nodes",
        )


def annotated_model(path: Path, target: Path | None, facts: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return the model at `path` with facts in its nodes' `metadata_props`.

    Nothing else is changed.

    Args:
        path: the model.
        target: path of the new file, to which references to weights are adapted; None stands for any path.
        facts: facts of a node, by the name of any of its outputs.

    Raises:
        GraphError: the file is no ONNX model, or the new file cannot be written.
        UsageError: the weights cannot be referred to from `target`.
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
