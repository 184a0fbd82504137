"""Pieces: what torch captures at once, as it is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.joint_capture import Captured
from remat_cli.pytorch.capture.ops import tensors_of
from remat_cli.pytorch.capture.split import split
from remat_cli.splitting import Split


@dataclass(frozen=True, eq=False)
class Piece:
    """A captured step, or a captured block.

    Attributes:
        joint: the joint graph, resolved.
        captured: the same graph as given by torch.
        modules: modules with their parameters in memory, used or not.
    """

    joint: Joint
    captured: Captured
    modules: Sequence[nn.Module] = ()
    _in_parts: dict[tuple[tuple[str, Split], ...], Piece] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, captured: Captured, modules: Sequence[nn.Module] = ()) -> Piece:
        """Resolve torch's capture; its graph is changed.

        Raises:
            GraphError: see `Joint.of`.
        """
        return cls(Joint.of(captured), captured, modules)

    @property
    def input_names(self) -> frozenset[str]:
        """The names of the tensors that a call is given."""
        places, joint = self.captured.arguments, self.joint
        given = (node for place, node in enumerate(joint.primals) if place in places)
        return frozenset(joint.storage(node).name for node in given if tensors_of(node.meta.get("val")))

    def releasing(self, outputs: frozenset[int]) -> Piece:
        """Return the piece with these forward outputs freed before the backward pass."""
        return replace(self, joint=self.joint.releasing(outputs))

    def in_parts(self, cuts: Mapping[str, Split]) -> Piece:
        """Return the piece with regions in parts, written once for each set of cuts.

        Raises:
            UsageError: one cannot be split.
        """
        if not cuts:  # resolving the graph changes it, and is done once
            return self
        key = tuple(cuts.items())
        if key not in self._in_parts:
            written = Piece.of(split(self.captured, cuts), self.modules)
            self._in_parts[key] = written.releasing(self.joint.released)
        return self._in_parts[key]
