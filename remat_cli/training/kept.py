"""How much a plain training step keeps of its forward pass for its backward."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Phase, Tensor
from remat_cli.training.annotate import is_differentiable
from remat_cli.training.derive import LOSS_TYPE

# What seeds the gradients reads the outputs, which are no activations.
_BETWEEN_PASSES = (LOSS_TYPE, BOUNDARY_TYPE)


@dataclass(frozen=True, slots=True)
class KeptForBackward:
    """Activations that are kept from the forward pass for the backward, each storage counted once.

    Attributes:
        float_bytes: bytes of floats (and of what has no element type).
        integer_bytes: bytes of indices and masks.
        tensors: names of the tensors that own the storage.
    """

    float_bytes: int
    integer_bytes: int
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeptOfModule:
    """What a part of the model keeps.

    Attributes:
        module: path of the part; empty for what belongs to none.
        bytes: of all that its forward ops keep.
        tensors: how many these are.
        largest: the name of the largest.
        source: file and line of the code that makes the largest; None where that is not known.
    """

    module: str
    bytes: int
    tensors: int
    largest: str
    source: str | None


def kept_for_backward(training: Graph) -> KeptForBackward:
    """Return what the backward ops of a training graph read of what its forward ops made.

    Parameters and graph inputs do not count: they are resident. Nor does what only the loss, or the op between the
    passes, reads.
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
    """Return what each part of the model keeps, the largest first; empty if the graph does not know its parts."""
    parts: dict[str, list[Tensor]] = {}
    for name in kept.tensors:
        parts.setdefault(training.producer[name].module or "", []).append(training.tensors[name])
    if not any(parts):
        return ()
    found = (_of_module(training, module, tensors) for module, tensors in parts.items())
    return tuple(sorted(found, key=lambda part: -part.bytes))


def _of_module(training: Graph, module: str, tensors: list[Tensor]) -> KeptOfModule:
    largest = max(tensors, key=lambda tensor: tensor.bytes)
    size = sum(tensor.bytes for tensor in tensors)
    return KeptOfModule(module, size, len(tensors), largest.name, training.producer[largest.name].source)
