"""Rehearsals of a step, until it is known which regions can be captured, and what may leave for the host."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointError

from remat_cli.core.graph import BOUNDARY_TYPE, Phase
from remat_cli.errors import GraphError, UsageError
from remat_cli.pytorch.capture.capture_errors import drawing_again
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.model_state import ModelState
from remat_cli.pytorch.capture.step import losses_in
from remat_cli.pytorch.memory.live import bytes_in
from remat_cli.pytorch.memory.shards import gathered_parameters, gradients_kept, parameters_at_rest
from remat_cli.pytorch.plan.record import notify
from remat_cli.pytorch.plan.region_kinds import CallGroup, Captures
from remat_cli.pytorch.plan.region_request import RegionRequest
from remat_cli.pytorch.plan.rehearsal import Rehearsal, RunsOnce
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.modules import own_call


@dataclass(frozen=True, eq=False)
class RehearsedStep:
    """The findings of a rehearsal.

    Attributes:
        rehearsal: the rehearsal.
        always: bytes that are in memory at all times.
        groups: groups of equal calls.
    """

    rehearsal: Rehearsal
    always: int
    groups: Sequence[CallGroup]


class Rehearsing:
    """Rehearses steps of a model.

    Attributes:
        current: the rehearsal under way.
        left: reasons why regions run in eager mode, by path.
    """

    def __init__(self, request: RegionRequest, left: dict[str, str]) -> None:
        self._request = request
        self.current: Rehearsal | None = None
        self.left = left
        self._staying: set[tuple[str, int]] = set()  # inputs that the caller holds: names of calls, and places

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], captures: Captures) -> RehearsedStep:
        """Rehearse a step, and group the calls of its regions.

        This is repeated until no further region has to run in eager mode.

        Args:
            args: the model's arguments.
            kwargs: its keyword arguments.
            captures: groups the calls by their capture.

        Raises:
            RematError: no region can be captured, or none is trained.
        """
        refused: dict[int, GraphError] = {}
        while True:
            try:
                rehearsal, always = self._rehearse(args, kwargs)
            except RunsOnce as error:
                if self._request.ranks.groups:
                    raise
                self._leave({error.path: error.message})
                continue
            if not rehearsal.calls and rehearsal.untrained and not refused:  # they are frozen, for now
                return RehearsedStep(rehearsal, always, [])
            if not rehearsal.calls:
                raise next(iter(refused.values()), None) or UsageError(
                    "regions: none of them was called in the first training step",
                    hint="name parts of the model that its forward pass calls, and that are trained",
                )
            if not self._settled(rehearsal.lasting):
                continue
            groups, refused = captures.groups(rehearsal.calls)
            left = {rehearsal.calls[place].path: refusal.message for place, refusal in refused.items()}
            left = {path: why for others in self._request.ranks.all(left) for path, why in others.items()}
            if not left and self._settled(_outputs_kept(rehearsal, groups)):
                return RehearsedStep(rehearsal, always, groups)
            self._leave(left)

    def _settled(self, staying: Set[tuple[str, int]]) -> bool:
        """Note inputs that cannot leave for the host on any rank.

        Return whether all were known.
        """
        if not self._request.asked.request.offload:
            return True
        everywhere = set[tuple[str, int]]().union(*self._request.ranks.all(set(staying)))
        is_known = everywhere <= self._staying
        self._staying |= everywhere
        return is_known

    def _leave(self, reasons: Mapping[str, str]) -> None:
        """Leave regions to eager mode from now on, and warn."""
        for path, why in reasons.items():
            if path not in self.left:
                self.left[path] = why
                notify(logging.WARNING, f"{path} is left to eager: {why}")

    def _rehearse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Rehearsal, int]:
        """Run the step once with each region in a checkpoint.

        The run leaves no trace.
        """
        module = self._request.module
        rehearsal = Rehearsal(moves=self._request.asked.request.offload, staying=self._staying)
        parameters = parameters_at_rest(module)
        tensors = [*parameters, *module.buffers(), *pytree.tree_leaves((args, kwargs))]
        there = bytes_in(tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
        always = there + self._request.state_bytes() + self._request.source.standing([module])
        before = ModelState([module])
        self.current = rehearsal
        rehearsal.follow(gathered_parameters(module))
        try:
            with drawing_again(), gradients_kept(module) if self._request.ranks.groups else nullcontext(), rehearsal:
                returned = own_call(module)(*args, **kwargs)
                leaves = pytree.tree_leaves(_plain(returned))
                ends = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
                ends = losses_in(returned, ends)
                rehearsal.begin_backward(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
                if not ends:
                    raise UsageError(
                        "regions: nothing that the model returns needs a gradient",
                        hint="call it as in training, and return the loss, or what it is computed from",
                    )
                begins = [torch.ones_like(end) for end in ends]
                if self._request.ranks.groups:
                    torch.autograd.backward(ends, begins)
                else:
                    inputs = [part for part in module.parameters() if part.requires_grad]
                    # Gradients are held as in a step, and no hook on them runs.
                    with rehearsal.updates.following(inputs, rehearsal.gradient_arrived):
                        gradients = torch.autograd.grad(ends, inputs, begins, allow_unused=True)
                    rehearsal.end_backward()
                    del gradients
                del ends, leaves, returned
        except CheckpointError as error:
            raise rehearsal.runs_once(error) from None
        finally:
            self.current = None
            before.restore()
            torch.clear_autocast_cache()  # the cache holds casts of the rehearsal
        return rehearsal, always


def _outputs_kept(rehearsal: Rehearsal, groups: Iterable[CallGroup]) -> set[tuple[str, int]]:
    """Return inputs of calls that are outputs of earlier calls.

    Only inputs count whose producing call reads them in its backward pass.
    """
    reading: set[int] = set()
    for group in groups if any(rehearsal.makers) else ():
        joint = group.sizes.at(group.values).joint
        returned = {storage.name for storage in joint.returned}
        ops = [op for op in graph_of(joint, "region").ops if op.phase is Phase.BACKWARD and op.type != BOUNDARY_TYPE]
        if any(not returned.isdisjoint(op.inputs) for op in ops):
            reading.update(group.calls)
    named = zip(rehearsal.calls, rehearsal.makers, strict=True)
    return {(call.name, at) for call, makers in named for at, maker in makers.items() if maker in reading}


def _plain(returned: Any) -> Any:
    return dict(returned) if isinstance(returned, Mapping) else returned
