"""Activations that a plain training step keeps for its backward."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Phase, Tensor
from remat_cli.training.annotate import is_differentiable
from remat_cli.training.derive import LOSS_TYPE

# The ops that seed the gradients read the outputs, which are no activations.
_BETWEEN_PASSES = (LOSS_TYPE, BOUNDARY_TYPE)


@dataclass(frozen=True, slots=True)
class KeptForBackward:
    """Activations kept for the backward, each storage counted once.

    Attributes:
        float_bytes: bytes of floats (and of tensors without an element type).
        integer_bytes: bytes of indices and masks.
        tensors: names of the tensors that own the storages.
    """

    float_bytes: int
    integer_bytes: int
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeptOfModule:
    """Activations kept for the backward by a part of the model.

    Attributes:
        module: path of the part; empty for tensors outside all parts.
        bytes: sum over the kept tensors of its forward ops.
        tensors: number of these tensors.
        largest: name of the largest tensor.
        source: file and line of the code behind the largest tensor; None if unknown.
    """

    module: str
    bytes: int
    tensors: int
    largest: str
    source: str | None


def kept_for_backward(training: Graph) -> KeptForBackward:
    """Return the forward results that backward ops read.

    Parameters and graph inputs do not count: they are resident. Tensors that only the loss or the op between the passes
    reads do not count, either.
    """
    tensors, producer = training.tensors, training.producer
    reads = (op.inputs for op in training.ops if op.phase is Phase.BACKWARD and op.type not in _BETWEEN_PASSES)
    read = dict.fromkeys(chain.from_iterable(reads))
    storages = dict.fromkeys(tensors[name].view_of or name for name in read)
    kept = [tensors[name] for name in storages if name in producer and producer[name].phase is Phase.FORWARD]
    return KeptForBackward(
        float_bytes=sum(tensor.bytes for tensor in kept if is_differentiable(tensor.dtype)),
        integer_bytes=sum(tensor.bytes for tensor in kept if not is_differentiable(tensor.dtype)),
        tensors=tuple(tensor.name for tensor in kept),
    )


def kept_by_module(training: Graph, kept: KeptForBackward) -> tuple[KeptOfModule, ...]:
    """Return kept activations by part of the model, the largest first.

    The result is empty if the graph has no parts.
    """
    parts: dict[str, list[Tensor]] = {}
    for name in kept.tensors:
        parts.setdefault(training.producer[name].module or "", []).append(training.tensors[name])
    if not any(parts):
        return ()
    modules = (_of_module(training, module, tensors) for module, tensors in parts.items())
    return tuple(sorted(modules, key=lambda part: -part.bytes))


def _of_module(training: Graph, module: str, tensors: list[Tensor]) -> KeptOfModule:
    largest = max(tensors, key=lambda tensor: tensor.bytes)
    size = sum(tensor.bytes for tensor in tensors)
    return KeptOfModule(module, size, len(tensors), largest.name, training.producer[largest.name].source)
