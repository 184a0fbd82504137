"""Models loaded without weights.

The file is checked before it is opened, and large data is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from remat_cli.errors import GraphError
from remat_cli.formats.onnx.errors import onnx_faults
from remat_cli.formats.onnx.functions import inlined
from remat_cli.formats.onnx.walk import all_graphs, all_nodes
from remat_cli.formats.source import Source

if TYPE_CHECKING:
    import onnx

# The most elements of a value that is kept and computed with; larger values are never shape arithmetic.
FOLD_LIMIT = 4096
_PAYLOADS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_DAMAGED = "the file is damaged or no ONNX model; export it again"

_LOOKS_LIKE = (
    (b"version https://git-lfs", "a git-lfs pointer", "fetch the file itself: git lfs pull"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint", "export the model: torch.onnx.export"),
    (b"\x80", "a Python pickle, perhaps a PyTorch checkpoint", "export the model: torch.onnx.export"),
    (b"{", "JSON", "give it a name that ends in .json"),
    (b"<", "HTML or XML", "was it downloaded in full?"),
)


@dataclass(frozen=True)
class Model:
    """A model with inlined local functions.

    Attributes:
        proto: the whole model; nodes in the order of the file.
        opsets: version of each imported operator set by domain; ONNX's own domain is "".
        notes: remarks for the user.
    """

    proto: onnx.ModelProto
    opsets: dict[str, int]
    notes: tuple[str, ...]

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph."""
        return self.proto.graph


def load_model(source: Source, *, keep_data: bool = False) -> Model:
    """Load a model without its weights.

    Files of external data are never opened.

    Args:
        source: the file.
        keep_data: whether to keep large data in the file itself, which is useful only for writing the model again.

    Raises:
        GraphError: the path is not a regular file, or not an ONNX model.
    """
    proto = parsed(source)
    _check_model(proto, source.path)
    _check_text(proto, source.path)
    if not keep_data:
        _strip_payloads(proto)
    _unify_domains(proto)
    opsets = {opset.domain: opset.version for opset in proto.opset_import}
    return Model(inlined(proto), opsets, _opset_notes(opsets))


def without_weights(source: Source) -> bytes:
    """Return a model file without large data that reads the same.

    Raises:
        GraphError: the path is not a regular file, or not an ONNX model.
    """
    proto = parsed(source)
    _strip_payloads(proto)
    content: bytes = proto.SerializeToString()
    return content


def parsed(source: Source) -> onnx.ModelProto:
    """Parse a model without its external data.

    Raises:
        GraphError: the path is not a regular file, or not an ONNX model.
    """
    import onnx

    for start, kind, remedy in _LOOKS_LIKE:
        if source.content[:64].lstrip().startswith(start):
            raise GraphError(f"{source.path} is not an ONNX model: it looks like {kind}", hint=remedy)
    with onnx_faults(f"{source.path} is not an ONNX model", "is it damaged, cut short, or of another format?"):
        model = onnx.load_model_from_string(source.content, format="protobuf")
    source.forget()
    return model


def _check_model(proto: onnx.ModelProto, path: Path) -> None:
    """Check a parsed model for its required parts.

    The parser accepts any bytes that happen to be a protobuf message.
    """
    if proto.ir_version <= 0:
        raise GraphError(f"{path} is not an ONNX model: its ir_version is {proto.ir_version}", hint=_DAMAGED)
    if not proto.HasField("graph"):
        raise GraphError(f"{path} has no graph", hint=_DAMAGED)
    if not proto.opset_import:
        raise GraphError(f"{path} does not say which operator sets it uses (no opset_import)", hint=_DAMAGED)
    for opset in proto.opset_import:
        if opset.version < 1:
            raise GraphError(
                f"{path} imports version {opset.version} of operator set {opset.domain or 'ai.onnx'!r}", hint=_DAMAGED
            )
    if not proto.graph.node:
        raise GraphError(f"{path} has a graph without nodes", hint="there is nothing to plan; is this the right file?")


def _opset_notes(opsets: dict[str, int]) -> tuple[str, ...]:
    from onnx.defs import onnx_opset_version

    newest = onnx_opset_version()
    if opsets.get("", 0) <= newest:
        return ()
    return (
        f"the file uses operator set {opsets['']}; the installed onnx knows 1 to {newest} and reads it as {newest} "
        "(a newer onnx package may know more)",
    )


def _check_text(model: onnx.ModelProto, path: Path) -> None:
    """Check that names are text.

    protobuf returns bytes if a string is not valid UTF-8.
    """
    for text in _names(model):
        if not isinstance(text, str):
            raise GraphError(f"{path} holds a name that is not UTF-8 text: {text!r}", hint=_DAMAGED)


def _names(model: onnx.ModelProto) -> Iterator[object]:
    for function in model.functions:
        yield from (function.name, function.domain, function.overload, *function.input, *function.output)
    for node in _nodes_of(model):
        yield from (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    for graph in all_graphs(model.graph):
        yield from (tensor.name for tensor in graph.initializer)
        yield from (sparse.values.name for sparse in graph.sparse_initializer)
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _unify_domains(model: onnx.ModelProto) -> None:
    """Rename the domain "ai.onnx" to "", which means the same."""
    imports = (model.opset_import, *(function.opset_import for function in model.functions))
    for opset in (opset for sets in imports for opset in sets if opset.domain == "ai.onnx"):
        opset.domain = ""
    for node in _nodes_of(model):
        if node.domain == "ai.onnx":
            node.domain = ""


def _nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from all_nodes(model.graph.node)
    for function in model.functions:
        yield from all_nodes(function.node)


def _strip_payloads(model: onnx.ModelProto) -> None:
    """Drop the data of large tensors.

    Only their types are needed, and the model stays small.
    """
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            _strip(tensor)
    for node in _nodes_of(model):
        for attribute in node.attribute:
            _strip(attribute.t)


def _strip(tensor: onnx.TensorProto) -> None:
    if prod(tensor.dims) > FOLD_LIMIT:
        for field in _PAYLOADS:
            tensor.ClearField(field)
