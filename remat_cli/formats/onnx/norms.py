"""Detection of batch norms that the exporter folded into convolutions.

Such a model runs faster. But training saves the input of each batch norm, which the file does not show.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.load import Model

if TYPE_CHECKING:
    import onnx

_FOLDED_INTO = frozenset({"Conv", "ConvTranspose", "Gemm"})
_ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "PRelu", "Clip", "HardSwish", "HardSigmoid", "Sigmoid", "Elu", "Mish"})
# Notes of PyTorch's exporter on a node: among others, the rules that changed the node.
_RULES, _NOTES_OF_TORCH = "pkg.onnxscript.rewriter.rule_name", "pkg.torch.onnx."
_REMEDY = (
    "training keeps more than this graph shows; export the model in training mode with optimize=False, or with the "
    "legacy exporter and training=TrainingMode.TRAINING"
)


def folded_norms(model: Model) -> list[onnx.NodeProto]:
    """Return the nodes into which the exporter folded a norm."""
    return [node for node in _products(model) if _holds_norm(node)]


def _products(model: Model) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type in _FOLDED_INTO]


def missing_norms(model: Model) -> tuple[str, ...]:
    """Return the note on missing norms, for training.

    The tuple is empty if all norms seem to be present.
    """
    products, folded = _products(model), folded_norms(model)
    if folded:
        return (
            f"the exporter folded a batch norm into {len(folded)} of {len(products)} convolutions and linear layers: "
            f"{_REMEDY}; if the file is only run, plan it with --mode inference",
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
    """Tell whether a batch norm was folded into the node.

    PyTorch's exporters leave traces. The newer exporter notes its rule, and names the new bias after the weight. The
    legacy exporter names computed values after the node's type and a number, and a computed bias comes only from a
    norm.
    """
    rules = next((entry.value for entry in node.metadata_props if entry.key == _RULES), "")
    weight, bias = (*node.input, "", "", "")[1:3]
    return "FuseBatchNorm" in rules or bias == f"{weight}_bias" or bias.startswith(f"onnx::{node.op_type}_")


def _without_bias_and_norm(model: Model, convolutions: Iterable[onnx.NodeProto]) -> int:
    """Count convolutions without bias that only activations read.

    A folded norm of a fresh model adds zeros, and so no bias.
    """
    readers: dict[str, set[str]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    bare = [node for node in convolutions if len([name for name in node.input if name]) == 2]
    return sum(readers.get(node.output[0], {""}) <= _ACTIVATIONS for node in bare)


def _would_be_noted(node: onnx.NodeProto) -> bool:
    """Tell whether the node's exporter would have left a trace."""
    return node.name.startswith("/") or any(entry.key.startswith(_NOTES_OF_TORCH) for entry in node.metadata_props)


def _has_norms(model: Model) -> bool:
    """Tell whether the model normalizes.

    An op does, or nodes compute a mean and divide by a root.
    """
    types = {node.op_type for node in model.graph.node}
    return any("Normalization" in type_ for type_ in types) or {"ReduceMean", "Sqrt"} <= types
