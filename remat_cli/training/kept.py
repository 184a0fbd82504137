"""How much a plain training step keeps of its forward pass for its backward."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.graph import BOUNDARY_TYPE, Graph, Phase
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


def kept_for_backward(training: Graph) -> KeptForBackward:
    """Return what the backward ops of a training graph read of what its forward ops made.

    Parameters and graph inputs do not count, as they are there anyway, nor does what only the loss reads, or whoever
    stands between the two passes.
    """
    made = {name for op in training.ops if op.phase is Phase.FORWARD for name in op.outputs}
    backward = (op for op in training.ops if op.phase is Phase.BACKWARD and op.type not in _BETWEEN_PASSES)
    read = (name for op in backward for name in op.inputs)
    storages = dict.fromkeys(training.tensors[name].view_of or name for name in read)
    kept = [training.tensors[name] for name in storages if name in made]
    return KeptForBackward(
        float_bytes=sum(tensor.bytes for tensor in kept if is_differentiable(tensor.dtype)),
        integer_bytes=sum(tensor.bytes for tensor in kept if not is_differentiable(tensor.dtype)),
        tensors=tuple(tensor.name for tensor in kept),
    )
