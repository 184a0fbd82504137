"""One rank of FSDP2 in eager mode: parameters are gathered block by block, and gradients scattered.

What is in memory, and until when, follows torch's own `fully_shard` with its defaults: each numbered block is sharded
by itself, all other parameters as the root's, which stay gathered until the backward pass is through with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from remat_cli.core.graph import Phase
from remat_cli.errors import GraphError
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.modules import PARAMETERS
from remat_cli.pytorch.unstable.tensors import storage_key
from remat_cli.settings import Setting
from remat_cli.training.shards import numbered_part

_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass(eq=False)
class _Group:
    """Parameters that are gathered together.

    Attributes:
        module: its forward pass needs them.
        path: path of the module; empty for the root, whose parameters stay gathered from forward to backward pass.
        shards: this rank's part of each.
        shapes: shape of each as a whole.
        places: modules and names that each has.
        buffer: what the ranks have sent, before it is copied out; None before and after.
        wholes: the gathered parameters; none while they are sharded.
    """

    module: nn.Module
    path: str
    shards: list[nn.Parameter] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)
    places: list[list[tuple[nn.Module, str]]] = field(default_factory=list)
    buffer: torch.Tensor | None = None
    wholes: tuple[torch.Tensor, ...] = ()

    @property
    def is_root(self) -> bool:
        """Whether these are the parameters of no block."""
        return not self.path

    def show(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have the modules use these tensors as their parameters."""
        for tensor, places in zip(tensors, self.places, strict=True):
            for owner, name in places:
                owner.__dict__[PARAMETERS][name] = tensor


@dataclass(frozen=True, slots=True)
class SavedPart:
    """Stands for a gathered parameter that autograd saved: it is gathered again for the backward pass."""

    group: _Group
    index: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Recording:
    """The record of the step while it runs.

    Attributes:
        phase: returns the pass that runs.
        paused: ops in it are none of the step's.
        named: ops in it are of this type.
    """

    phase: Callable[[], Phase]
    paused: Callable[[], AbstractContextManager[None]]
    named: Callable[[str], AbstractContextManager[None]]


class ShardedStep:
    """The parameters of a step on one rank.

    Attributes:
        ranks: number of ranks.
        dtype: element type that is gathered; None: that of the parameters.
    """

    def __init__(self, modules: Sequence[nn.Module], ranks: int, dtype: torch.dtype | None) -> None:
        self.ranks, self.dtype = ranks, dtype
        self._groups = [group for module in modules for group in _groups(module, ranks)]
        self._order: list[_Group] = []  # as their forward passes ended
        self._sent: torch.Tensor | None = None  # what is freed after the next copy, so that both overlap
        self._scattered: torch.Tensor | None = None
        self._recording: Recording | None = None

    @contextmanager
    def running(self, recording: Recording) -> Iterator[None]:
        """Gather and scatter while the step runs."""
        self._recording = recording
        handles = []
        for group in self._groups:
            handles.append(group.module.register_forward_pre_hook(self._before(group), prepend=True))
            handles.append(group.module.register_forward_hook(self._after(group)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._sent = self._scattered = None
            for group in self._groups:
                group.buffer, group.wholes = None, ()
                group.show(group.shards)

    def check_gathered(self, trained: Sequence[torch.Tensor]) -> None:
        """Check that all parameters with a gradient were gathered.

        Raises:
            GraphError: a block's parameters were used while its module did not run.
        """
        used = {id(tensor) for tensor in trained}
        for group in self._groups:
            if group not in self._order and any(id(shard) in used for shard in group.shards):
                raise GraphError(
                    f"the parameters of {group.path or 'the model'} are used without a call of their module: "
                    "fully_shard gathers them when it is called",
                    hint=("call the module; or leave ", Setting("ranks", self.ranks), " out"),
                )

    def note(self) -> str:
        """Return the note on what is gathered, and when."""
        blocks = sum(not group.is_root for group in self._groups)
        return (
            f"eager on one of {self.ranks:,} ranks, as fully_shard of {blocks:,} blocks and of the model has it: all "
            "other parameters stay gathered until the backward pass ends; what a collective takes itself is not counted"
        )

    def saved(self, tensor: torch.Tensor) -> SavedPart | None:
        """Return what autograd keeps in place of a gathered parameter; None for other tensors."""
        key = storage_key(tensor)
        for group in self._groups:
            for index, whole in enumerate(group.wholes):
                if storage_key(whole) == key:
                    return SavedPart(group, index, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        return None

    def restored(self, saved: SavedPart) -> torch.Tensor:
        """Return a saved parameter for the backward pass."""
        self._gather_for_backward(saved.group)
        with self.recording.paused():
            return saved.group.wholes[saved.index].as_strided(saved.shape, saved.stride, saved.offset)

    @property
    def recording(self) -> Recording:
        """The record of the step that runs."""
        assert self._recording is not None, "the step runs"
        return self._recording

    def _before(self, group: _Group) -> Callable[..., None]:
        def gather(module: nn.Module, given: Any) -> None:
            del module, given
            if self.recording.phase() is Phase.FORWARD:
                group.show(_Gather.apply(self, group, *group.shards))  # type: ignore[no-untyped-call]
            else:  # a checkpoint runs the block again
                self._gather_for_backward(group)

        return gather

    def _after(self, group: _Group) -> Callable[..., None]:
        def shard(module: nn.Module, given: Any, returned: Any) -> None:
            del module, given
            if self.recording.phase() is not Phase.FORWARD:
                return
            group.show(group.shards)
            if group.is_root:
                self._sent = None
            else:
                group.wholes = ()
            self._order.append(group)
            for value in pytree.tree_leaves(returned):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    value.register_hook(lambda _: self._gather_for_backward(group))  # type: ignore[no-untyped-call]

        return shard

    def gather_for_forward(self, group: _Group) -> tuple[torch.Tensor, ...]:
        """Return the gathered parameters of a group."""
        self._send(group)
        self._sent = None
        wholes = self._copied_out(group)
        self._sent, group.buffer = group.buffer, None
        return wholes

    def _gather_for_backward(self, group: _Group) -> None:
        if not group.wholes:
            self._send(group)
            self._copied_out(group)
            group.buffer = None
        with self.recording.paused():  # a checkpoint may run the block again
            pairs = zip(group.wholes, group.shards, strict=True)
            group.show([whole.detach().requires_grad_(shard.requires_grad) for whole, shard in pairs])
        at = self._order.index(group) if group in self._order else 0
        if at and not self._order[at - 1].wholes:  # the next that the backward pass needs
            self._send(self._order[at - 1])

    def _send(self, group: _Group) -> None:
        if group.buffer is None:
            elements = self.ranks * sum(shard.numel() for shard in group.shards)
            with self.recording.named("fsdp.all_gather"):
                group.buffer = group.shards[0].new_empty(elements, dtype=self.dtype)

    def _copied_out(self, group: _Group) -> tuple[torch.Tensor, ...]:
        wholes = []
        for shard, shape in zip(group.shards, group.shapes, strict=True):
            with self.recording.named("fsdp.copy_out"):
                padded = shard.new_empty(self.ranks * shard.numel(), dtype=self.dtype)
            with self.recording.paused():
                wholes.append(padded[: shape.numel()].view(shape))
        group.wholes = tuple(wholes)
        return group.wholes

    def scatter(self, group: _Group, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return the gradients of a group's shards."""
        group.wholes = ()
        group.show(group.shards)
        self._scattered = None
        pairs = list(zip(group.shards, gradients, strict=True))
        elements = self.ranks * sum(shard.numel() for shard, gradient in pairs if gradient is not None)
        with self.recording.named("fsdp.reduce_scatter"):
            self._scattered = group.shards[0].new_empty(elements)
            return [None if gradient is None else shard.new_empty(shard.shape) for shard, gradient in pairs]


class _Gather(torch.autograd.Function):
    """A group's parameters from all ranks; their gradients are scattered."""

    @staticmethod
    def forward(ctx: Any, step: ShardedStep, group: _Group, *shards: torch.Tensor) -> Any:
        ctx.step, ctx.group = step, group
        ctx.set_materialize_grads(False)
        wholes = step.gather_for_forward(group)
        with step.recording.paused():
            returned = tuple(whole.detach() for whole in wholes)
        pairs = zip(returned, shards, strict=True)
        ctx.mark_non_differentiable(*(whole for whole, shard in pairs if not shard.requires_grad))
        return returned

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        return None, None, *ctx.step.scatter(ctx.group, gradients)


def _groups(module: nn.Module, ranks: int) -> list[_Group]:
    """Return the groups of a module's parameters, each once; the modules have shards in their place."""
    members: dict[int, tuple[nn.Parameter, list[tuple[str, nn.Module, str]]]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner, _, last = name.rpartition(".")
        members.setdefault(id(parameter), (parameter, []))[1].append((name, module.get_submodule(owner), last))
    groups: dict[str, _Group] = {}
    for parameter, places in members.values():
        paths = {numbered_part(name) for name, *_ in places}
        path = paths.pop() if len(paths) == 1 else ""
        if isinstance(module.get_submodule(path), _NEVER_CALLED):
            path = ""
        group = groups.setdefault(path, _Group(module.get_submodule(path), path))
        group.shapes.append(parameter.shape)
        group.shards.append(nn.Parameter(_shard(parameter, ranks), requires_grad=parameter.requires_grad))
        group.places.append([(owner, last) for _, owner, last in places])
    for group in groups.values():
        group.show(group.shards)
    return list(groups.values())


def _shard(parameter: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the part of a parameter that a rank has: of its first dimension, and as large on all ranks."""
    first, *others = parameter.shape or (1,)
    return parameter.new_empty((-(-first // ranks), *others))
