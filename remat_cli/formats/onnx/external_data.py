"""References to weights in other files.

They are kept, or adapted to another folder. The files are never opened.

A reference is relative to the model's folder, and must stay inside: onnx and onnxruntime refuse others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from remat_cli.errors import UsageError
from remat_cli.formats.onnx.walk import all_graphs, all_nodes

if TYPE_CHECKING:
    import onnx


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield tensors with data in another file, at any depth of a model."""
    for graph in all_graphs(model.graph):
        for sparse in graph.sparse_initializer:
            yield from (one for one in (sparse.values, sparse.indices) if _is_elsewhere(one))
        yield from filter(_is_elsewhere, graph.initializer)
    bodies = (model.graph.node, *(function.node for function in model.functions))
    for node in (node for body in bodies for node in all_nodes(body)):
        yield from (attribute.t for attribute in node.attribute if _is_elsewhere(attribute.t))


def _is_elsewhere(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == tensor.EXTERNAL)


def location_of(tensor: onnx.TensorProto) -> str:
    """Return the path of a tensor's data file in the model."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def external_files(model: onnx.ModelProto, source: Path) -> dict[str, Path]:
    """Return the files that a model at `source` refers to, by reference."""
    folder = Path(os.path.realpath(source.parent))
    return {location: folder / location for location in sorted(set(map(location_of, external_tensors(model))))}


def absent_files(model: onnx.ModelProto, source: Path) -> list[str]:
    """Return the model's references to missing files."""
    return [location for location, path in external_files(model, source).items() if not path.exists()]


def rebase(model: onnx.ModelProto, source: Path, target: Path) -> None:
    """Adapt a model's references to a file at `target`.

    The model was read from `source`.

    Nothing changes if both are in the same folder. References to missing files stay: these files must lie relative to
    either.

    Raises:
        UsageError: the weights are outside of the folder of `target`.
    """
    home, folder = (Path(os.path.realpath(path.parent)) for path in (source, target))
    below = os.path.relpath(home, folder)
    for tensor in external_tensors(model):
        location = location_of(tensor)
        if home == folder or not (home / location).exists():
            continue
        if _leads_out(below) or _leads_out(location):
            name = target.name if target.name != source.name else f"new_{target.name}"
            raise UsageError(
                f"the weights are in {str(home / location)!r}, which a model in {str(folder)!r} cannot refer to",
                hint=f"write the model beside its weights: -o {home / name}",
            )
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(PurePosixPath(Path(below).as_posix()) / location)
        weights, wanted = home / location, folder / location_of(tensor)
        if not os.path.samefile(weights, wanted):
            raise UsageError(
                f"{str(wanted)!r} is not the file {str(weights)!r} that holds the weights",
                hint="write the model beside its weights",
            )


def _leads_out(path: str) -> bool:
    return os.path.isabs(path) or ".." in Path(path).parts
