"""Whether batch norms of the model are missing from its file because the exporter folded them into convolutions.

Running the model is then cheaper. Training keeps the input of each batch norm, which such a file does not show.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.load import Model

if TYPE_CHECKING:
    import onnx

_FOLDED_INTO = frozenset({"Conv", "ConvTranspose", "Gemm"})
_ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "PRelu", "Clip", "HardSwish", "HardSigmoid", "Sigmoid", "Elu", "Mish"})
# What PyTorch's exporter notes of a node: the rules by which it was changed, among much else.
_RULES, _NOTES_OF_TORCH = "pkg.onnxscript.rewriter.rule_name", "pkg.torch.onnx."
_REMEDY = (
    "training keeps more than this graph shows; export the model in training mode with optimize=False, or with the "
    "legacy exporter and training=TrainingMode.TRAINING"
)


def missing_norms(model: Model) -> tuple[str, ...]:
    """Return the note for who trains the model; nothing where all of its norms seem to be there."""
    products = [node for node in model.graph.node if node.op_type in _FOLDED_INTO]
    folded = [node for node in products if _holds_norm(node)]
    if folded:
        return (
            f"the exporter folded a batch norm into {len(folded)} of {len(products)} convolutions and linear layers: "
            f"{_REMEDY}",
        )
    convolutions = [node for node in products if node.op_type != "Gemm"]
    if not convolutions or any(_would_be_noted(node) for node in convolutions):
        return ()
    if not _has_norms(model):
        return (
            "there is no norm beside the convolutions: if the model has batch norms, they were folded away, and "
            f"{_REMEDY}",
        )
    bare = _without_bias_and_norm(model, convolutions)
    if not bare or not any(node.op_type == "BatchNormalization" for node in model.graph.node):
        return ()
    return (
        f"{bare} of {len(convolutions)} convolutions have no bias, and no batch norm before their activation as others "
        f"have: if one was folded into them, {_REMEDY}",
    )


def _holds_norm(node: onnx.NodeProto) -> bool:
    """Tell whether a batch norm was folded into the node, as PyTorch's exporters show in notes and names.

    The newer one notes its rule; it names the bias that it made after the weight. The legacy one names what it computed
    after the node's type and a number: a bias is computed of nothing but a norm.
    """
    rules = next((entry.value for entry in node.metadata_props if entry.key == _RULES), "")
    weight, bias = (*node.input, "", "", "")[1:3]
    return "FuseBatchNorm" in rules or bias == f"{weight}_bias" or bias.startswith(f"onnx::{node.op_type}_")


def _without_bias_and_norm(model: Model, convolutions: Iterable[onnx.NodeProto]) -> int:
    """Return how many convolutions without a bias only activations read: a folded norm of a fresh model adds zeros."""
    readers: dict[str, set[str]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    bare = [node for node in convolutions if len([name for name in node.input if name]) == 2]
    return sum(readers.get(node.output[0], {""}) <= _ACTIVATIONS for node in bare)


def _would_be_noted(node: onnx.NodeProto) -> bool:
    """Tell whether the node comes from an exporter that would have left a trace."""
    return node.name.startswith("/") or any(entry.key.startswith(_NOTES_OF_TORCH) for entry in node.metadata_props)


def _has_norms(model: Model) -> bool:
    """Tell whether some op normalizes, or nodes spell that out: a mean, and a root by which is divided."""
    types = {node.op_type for node in model.graph.node}
    return any("Normalization" in type_ for type_ in types) or {"ReduceMean", "Sqrt"} <= types
