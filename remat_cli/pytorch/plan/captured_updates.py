"""Updates of the parameters of a captured graph, as ops of the graph that is planned, and what runs them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from remat_cli.core.graph import Graph
from remat_cli.pytorch.capture.convert import trained_parameters
from remat_cli.pytorch.capture.joint_capture import Captured, Primal
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.update_runs import StateMoves, UpdateRun, UpdateRuns
from remat_cli.pytorch.update.updates import Updates
from remat_cli.training import Update, with_update


@dataclass(frozen=True, eq=False)
class CapturedUpdates:
    """Updates of the parameters of a captured graph.

    Attributes:
        updates: updates as ops, by the storage of their parameter.
        parameters: the parameters, by storage.
        gradients: positions of their gradients among the backward outputs, by storage.
        by: runs the updates.
    """

    updates: Mapping[str, Update]
    parameters: Mapping[str, torch.Tensor]
    gradients: Mapping[str, int]
    by: Updates

    @property
    def state_bytes(self) -> int:
        """Bytes of state that is a tensor of the graph."""
        return sum(update.state_bytes for update in self.updates.values())

    def with_updates(self, graph: Graph) -> Graph:
        """Return a graph that ends with the updates; parameters stay on the device."""
        whole = with_update(graph, list(self.updates.values()))
        return replace(whole, outputs=(*whole.outputs, *self.updates))

    def parameters_of(self, states: Iterable[str]) -> frozenset[torch.Tensor]:
        """Return the parameters whose state is in these tensors."""
        return frozenset(self.parameters[state.removesuffix(_STATE)] for state in states)

    @property
    def runs(self) -> UpdateRuns:
        """The functions that run the updates."""
        ops: dict[str, UpdateRun] = {}
        states: dict[str, StateMoves] = {}
        for name, parameter in self.parameters.items():
            state = self.by.state
            ops[f"{name}{_UPDATE}"] = UpdateRun(self.gradients[name], partial(self.by.update, parameter))
            moves = (state.prefetch, state.arrive, state.offload, state.release)
            states[f"{name}{_STATE}"] = StateMoves(*(partial(move, parameter) for move in moves))
        return UpdateRuns(ops, states)


# What `with_update` adds to the name of a parameter.
_UPDATE, _STATE = ".update", ".state"


class CapturedParameters:
    """Parameters among the inputs of captured graphs, which do not keep them."""

    def __init__(self) -> None:
        self._known: dict[str, weakref.ref[torch.Tensor]] = {}  # by the source of the input

    def note(self, captured: Captured) -> None:
        """Note the parameters of a capture whose inputs are known."""
        for primal in captured.primals:
            if primal.source and isinstance(primal.value, torch.nn.Parameter):
                self._known[primal.source] = weakref.ref(primal.value)

    def _value(self, primal: Primal) -> torch.Tensor | None:
        known = self._known.get(primal.source)
        return primal.value if known is None else known()

    def updates_of(self, piece: Piece, updates: Updates) -> CapturedUpdates:
        """Return the updates of a captured graph's parameters."""
        joint = piece.joint
        primals = [replace(primal, value=self._value(primal)) for primal in piece.captured.primals]
        trained = trained_parameters(joint, replace(piece.captured, primals=tuple(primals)))
        ops: dict[str, Update] = {}
        parameters: dict[str, torch.Tensor] = {}
        gradients: dict[str, int] = {}
        values = zip(joint.primals, primals, joint.backward_outputs, strict=False)
        for place, (node, primal, gradient) in enumerate(values):
            if primal.value is None or gradient is None or (cost := updates.costs.get(primal.value)) is None:
                continue
            name = joint.storage(node).name
            if name not in trained or name in ops:
                continue
            ops[name] = Update(name, trained[name][1], cost.movable_bytes, cost.temporary_bytes)
            parameters[name], gradients[name] = primal.value, place
        return CapturedUpdates(ops, parameters, gradients, updates)
