"""A training step as eager PyTorch runs it, on tensors without data: each op, and the lifetime of each storage.

Eager keeps more for the backward pass than a captured graph: masks in wide element types, tensors that a local variable
still names, copies that a compiler removes. So the peak of a step with torch's own checkpoints is read from the step
itself. Ops are seen below autograd; memory is followed by the lifetimes of storages.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from remat_cli.core.allocator import rounded
from remat_cli.core.graph import Kind, Op, Phase, Tensor, build_graph
from remat_cli.core.operators import AttributeValue, Operand, Operator, Role
from remat_cli.core.schedule import Compute, Free, Schedule
from remat_cli.core.schedule import Step as ScheduleStep
from remat_cli.errors import GraphError
from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.pytorch.capture.cuda_kernels import CudaKernels
from remat_cli.pytorch.capture.eager_shards import Recording, SavedPart, ShardedStep
from remat_cli.pytorch.capture.live_storages import LiveStorages
from remat_cli.pytorch.capture.ops import draws_with, named_arguments, tensors_of
from remat_cli.pytorch.capture.optimizer import optimizer_name
from remat_cli.pytorch.capture.places import current_place
from remat_cli.pytorch.capture.reader import built_step, explaining_failure, modules_of, resident_bytes
from remat_cli.pytorch.capture.recurrent import reserve_bytes
from remat_cli.pytorch.capture.step import Step, losses_in
from remat_cli.pytorch.capture.weightless import with_fake_tensors
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import TorchDispatchMode
from remat_cli.pytorch.unstable.masks import packing_looked_for
from remat_cli.pytorch.unstable.ops import schema_of
from remat_cli.pytorch.unstable.tensors import storage_key, version_of

# Losses whose kernels on the CPU return the mean or the sum in the storage of all terms.
_LOSSES_IN_MEMORY_OF_TERMS = (
    torch.ops.aten.mse_loss.default,
    torch.ops.aten.smooth_l1_loss.default,
    torch.ops.aten.soft_margin_loss.default,
    torch.ops.aten.binary_cross_entropy.default,
)
# Calls whose results a checkpoint saves: turns within the module's forward pass by function, as `EagerOp.overload`.
Saved = Mapping[str, Collection[int]]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Shape, strides and element type of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call that can be repeated alone: it needs neither data nor indices.

    Attributes:
        function: function of torch.
        args: positional arguments; each tensor's layout in its place.
        kwargs: keyword arguments, as `args`.
        kind: the same for calls with the same workspace.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    kind: str


@dataclass(frozen=True, slots=True)
class EagerOp:
    """An op that ran.

    Attributes:
        name: unique within the step.
        operator: operands and results; tensors have the names of their storages.
        reads: storages, each once.
        makes: storages of the results, each once; none if the op wrote into its operands.
        writes: storages that it was given and wrote into.
        phase: forward or backward.
        again: the module whose checkpoint ran it a second time; None for an op of the step itself.
        overload: function of torch, such as "aten.mm.default".
        turn: how many calls of that function came before in the step.
        is_random: the op draws random numbers.
        source: file and line of the user's code that called it; None for an op of the backward pass.
    """

    name: str
    operator: Operator
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    writes: tuple[str, ...]
    phase: Phase
    again: str | None
    overload: str
    turn: int
    is_random: bool
    source: str | None


@dataclass(slots=True)
class Kept:
    """A tensor that autograd kept for the backward pass. Positions count the ops of the step.

    Attributes:
        storage: the memory that it is in.
        modules: paths of the modules whose calls were running, outermost first.
        at: number of ops that had run when autograd kept it.
        asked: number of ops that had run when the backward pass first asked for it; None if it never did.
        until: last op before it was freed; while that is not seen, larger than any.
    """

    storage: str
    modules: tuple[str, ...]
    at: int
    asked: int | None = None
    until: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of a module in the forward pass.

    Attributes:
        path: path of the module.
        kind: name of its class.
        ops: the ops that ran in it: the first, and the one after the last.
        given: storages of its inputs, each once.
        turns: how many calls of each function of torch came before in the step.
    """

    path: str
    kind: str
    ops: tuple[int, int]
    given: tuple[str, ...]
    turns: Mapping[str, int]


@dataclass(frozen=True)
class EagerStep:
    """The record of a step in eager mode.

    Attributes:
        ops: ops, in the order of their runs.
        bytes: size of each storage, by name.
        inputs: storages from before the step.
        until: for each storage that an op made, the last op that ran while it was there. What is there at the end has
            the number of ops.
        outputs: storages of returned values and gradients.
        results: storages of returned values that the step made and that get no gradient of their own; empty if they
            were let go.
        kept: storages that autograd kept.
        calls: calls of modules in sight, in order.
        resident_bytes: parameters that no op reads, and the state of the optimizer.
        optimizer: name of the optimizer; None where there is none.
        counts_state: its state is among the resident bytes.
        parameters: parameters with a gradient.
        calls_alone: calls on the CPU that can be repeated alone, by the op's name.
        workspace_bytes: known workspace of CUDA's kernels, by the op's name.
        kernels: notes on the kernels, if they are another device's than the CPU's.
        notes: notes on the ranks, if there are several.
    """

    ops: tuple[EagerOp, ...]
    bytes: Mapping[str, int]
    inputs: tuple[str, ...]
    until: Mapping[str, int]
    outputs: tuple[str, ...]
    results: tuple[str, ...]
    kept: tuple[Kept, ...]
    calls: tuple[ModuleCall, ...]
    resident_bytes: int
    optimizer: str | None
    counts_state: bool
    parameters: tuple[Operand, ...]
    calls_alone: Mapping[str, KernelCall]
    workspace_bytes: Mapping[str, int]
    kernels: tuple[str, ...]
    notes: tuple[str, ...]

    def reading(self, name: str) -> Reading:
        """Return the step as a graph with rerun ops as ops of their own."""
        graph = build_graph(
            name=name,
            kind=Kind.TRAINING,
            time_unit="unit",
            resident_bytes=self.resident_bytes,
            tensors=[Tensor(storage, size) for storage, size in self.bytes.items()],
            ops=[
                Op(
                    name=op.name,
                    type=op.operator.type,
                    inputs=op.reads,
                    outputs=op.makes,
                    time=0,
                    phase=op.phase,
                    module=op.again,
                )
                for op in self.ops
            ],
            outputs=self.outputs,
        )
        operators = {op.name: op.operator for op in self.ops}
        return Reading(
            graph=graph,
            operators=operators,
            parameters=self.parameters,
            optimizer=self.optimizer,
            counts_state=self.counts_state,
        )

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """The module of each op: that whose call runs, or which kept what the backward pass asks for."""
        modules: dict[str, str] = {}
        for call in sorted(self.calls, key=lambda call: call.path.count(".") + bool(call.path)):
            modules.update((op.name, call.path) for op in self.ops[slice(*call.ops)])
        asking = {kept.asked: kept.modules[-1] for kept in self.kept if kept.asked is not None and kept.modules}
        latest = ""
        for at, op in enumerate(self.ops):
            latest = asking.get(at, latest)
            if op.phase is Phase.BACKWARD:
                modules[op.name] = latest
        return {name: path for name, path in modules.items() if path}

    @property
    def schedule(self) -> Schedule:
        """Every op once, and each storage freed where eager let it go."""
        freed: dict[int, list[str]] = {}
        for storage, last in self.until.items():
            if last < len(self.ops):
                freed.setdefault(last, []).append(storage)
        steps: list[ScheduleStep] = []
        for position, op in enumerate(self.ops):
            steps.append(Compute(op.name))
            steps.extend(Free(storage) for storage in freed.get(position, ()))
        return Schedule(tuple(steps))


def saving_contexts(saved: Saved) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of one checkpoint in which some results are saved and all others made again.

    Args:
        saved: turns of calls within the module's forward pass, from 0, by the function that is called.
    """
    turns: dict[str, int] = {}

    def policy(context: Any, function: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        del context, args, kwargs
        turn = turns[str(function)] = turns.get(str(function), -1) + 1
        is_saved = turn in saved.get(str(function), ())
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    make_contexts: Any = create_selective_checkpoint_contexts
    saving, taking = make_contexts(policy)
    return saving, taking


def run_eagerly(
    reference: str,
    options: ReadOptions,
    *,
    checkpoints: Sequence[str] = (),
    saved: Mapping[str, Saved] | None = None,
    looked_at: bool = False,
    accumulate: bool = False,
    outputs_held: bool = False,
    kernels: CudaKernels | None = None,
    ranks: int | None = None,
    gathered: torch.dtype | None = None,
) -> EagerStep:
    """Run a training step on tensors without data, as eager PyTorch would.

    The backward pass is that of the loss, where the model returns it by this name; else of all that it returns.

    Args:
        reference: FILE.py:NAME or package.module:NAME.
        options: its dims are the function's keyword arguments.
        checkpoints: paths of modules that are wrapped in `torch.utils.checkpoint`, whole.
        saved: saved storages of each wrapped module's forward pass, by path.
        looked_at: autograd keeps nothing: `until` says how long a storage would be there without it.
        accumulate: gradients are there before the step.
        outputs_held: all that the model returns is held during the backward pass, as training loops do; else the loss
            alone.
        kernels: a GPU's, which the step has in place of the CPU's.
        ranks: number of ranks over which FSDP2 shards the parameters; None: they are whole.
        gathered: element type in which ranks gather parameters; None: as they are.

    Raises:
        UsageError: the function does not exist, or does not take these options.
        GraphError: the function returns no training step, or none of one module for `checkpoints`, or the step reads
            values of tensors, or fails.
    """
    in_force = nullcontext if kernels is None else kernels.in_force
    with in_force():
        step, device, _ = built_step(reference, options)
    step, mode = with_fake_tensors(step, device)
    modules = modules_of(step)
    with mode:
        shards = None if ranks is None else ShardedStep(modules, ranks, gathered)
    recorder = _Recorder(keeps=not looked_at, kernels=kernels, shards=shards)
    for path in checkpoints:
        part = _whole_model(step, reference).get_submodule(path)
        contexts = partial(recorder.contexts, path, (saved or {}).get(path))
        part.forward = partial(checkpoint, part.forward, use_reentrant=False, context_fn=contexts)
    with explaining_failure(reference), in_force(), mode, recorder, recorder.looking(modules):
        with _masks_as_eager_makes_them(step):
            returned = step.model(*step.inputs, **step.keyword_inputs)
        results = [value for value in pytree.tree_leaves(returned) if isinstance(value, torch.Tensor)]
        recorder.phase = Phase.BACKWARD
        ends = losses_in(returned, [value for value in results if value.requires_grad])
        if not ends:
            raise GraphError(
                f"{reference}: nothing in the step needs a gradient",
                hint="its model must have parameters that require gradients, and return what is computed from them",
            )
        if not outputs_held:
            results = []
            del returned
        leaves = _leaves(ends, [value for module in modules for value in module.parameters() if value.requires_grad])
        if accumulate:
            with recorder.paused():
                for leaf in leaves:
                    leaf.grad = torch.zeros_like(leaf)
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    trained = [leaf for leaf in leaves if leaf.grad is not None]
    if shards is not None:
        shards.check_gathered(trained)
    return recorder.finished(step, ends, results, trained)


def _leaves(ends: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors whose gradients the backward pass accumulates.

    Args:
        ends: where the backward pass begins.
        parameters: those in sight. A function with a backward of its own, as a reentrant checkpoint, may reach any.
    """
    nodes = dict.fromkeys(end.grad_fn for end in ends if end.grad_fn is not None)
    ahead, leaves = list(nodes), {id(end): end for end in ends if end.grad_fn is None}
    while ahead:
        node = ahead.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves[id(node.variable)] = node.variable  # type: ignore[attr-defined]
        for following, _ in node.next_functions:
            if following is not None and following not in nodes:
                nodes[following] = None
                ahead.append(following)
    if any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in nodes):
        leaves.update((id(parameter), parameter) for parameter in parameters)
    known = {id(parameter): parameter for parameter in parameters if id(parameter) in leaves}
    return list({**known, **leaves}.values())


def _masks_as_eager_makes_them(step: Step) -> AbstractContextManager[None]:
    """Return a context in which transformers leaves out masks as with data."""
    leaves = pytree.tree_leaves((step.inputs, step.keyword_inputs))
    given = {storage_key(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    return packing_looked_for(lambda position_ids: storage_key(position_ids) in given)


def _whole_model(step: Step, where: str) -> nn.Module:
    """Return the module in whose terms checkpoints are named.

    Raises:
        GraphError: the step has none, or several.
    """
    modules = modules_of(step)
    if len(modules) != 1:
        raise GraphError(
            f"{where}: checkpoints are for one module, and the step has {len(modules) or 'none'} in sight",
            hint="return one torch.nn.Module and its inputs, or a function with one module among its inputs",
        )
    return modules[0]


@dataclass(eq=False)
class _Pack:
    """Stands for a tensor that autograd keeps.

    Unless autograd is to keep nothing, it has the tensor itself; else only if that existed before the step.
    """

    storage: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    tensor: torch.Tensor | None
    version: int
    kept: Kept


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each op below autograd, and the end of each storage."""

    def __init__(self, *, keeps: bool, kernels: CudaKernels | None, shards: ShardedStep | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = Phase.FORWARD
        self._keeps, self._kernels, self._shards = keeps, kernels, shards
        self._kind: str | None = None  # of the ops that run, in place of their own
        self._ops: list[EagerOp] = []
        self._names: dict[int, str] = {}  # of storages that are there, by key
        self._stand_ins: set[int] = set()  # keys of storages in place of those that were packed
        self._storages = LiveStorages(ended=self._ended)
        self._bytes: dict[str, int] = {}
        self._inputs: dict[str, None] = {}
        self._until: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._turns: dict[str, int] = {}  # calls of each function, also of those that make views
        self._again: str | None = None
        self._paused = False
        self._open: list[tuple[str, str, int, tuple[str, ...], Mapping[str, int]]] = []
        self._calls: list[ModuleCall] = []
        self._kept: list[Kept] = []
        self._calls_alone: dict[str, KernelCall] = {}
        self._workspace: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op, and note it unless all that it makes are views."""
        kwargs = dict(kwargs or {})
        returned = func(*args, **kwargs)
        if not self._paused:
            self._note(func, args, kwargs, returned)
            self._turns[str(func)] = self._turns.get(str(func), 0) + 1
        return returned

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> None:
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        results = tensors_of(returned)
        read = {storage_key(tensor) for tensor in given}
        new = {storage_key(tensor): tensor for tensor in results if storage_key(tensor) not in read}
        writes = schema_of(func).is_mutable
        if not new and not writes:
            return
        kind = self._kind or f"aten.{schema_of(func).name.partition('::')[2]}"
        number = self._counts[kind] = self._counts.get(kind, -1) + 1
        name = f"{kind.partition('.')[2]}{f'_{number}' if number else ''}"
        reads = tuple(dict.fromkeys(self._name(tensor) for tensor in given))
        makes = tuple(
            self._born(tensor, f"{name}:{place}" if place else name) for place, tensor in enumerate(new.values())
        )
        if self._kernels is not None:
            self._note_kernel(self._kernels, name, func, args, results)
        elif (size := _bytes_with_data(func, given, results)) is not None:
            self._bytes[makes[-1]] = size
        elif (call := self._call_alone(func, args, kwargs, given)) is not None:
            self._calls_alone[name] = call
        operator = _operator(func, kind[: -1 if writes and kind.endswith("_") else None], args, kwargs, results)
        written = tuple(dict.fromkeys(self._name(tensor) for tensor in _written(func, args, kwargs)))
        overload, is_random = str(func), draws_with(func, named_arguments(func, args, kwargs))
        turn = self._turns.get(overload, 0)
        source = current_place() if self.phase is Phase.FORWARD else None
        op = EagerOp(name, operator, reads, makes, written, self.phase, self._again, overload, turn, is_random, source)
        self._ops.append(op)

    def _note_kernel(
        self, kernels: CudaKernels, name: str, func: Any, args: Sequence[Any], results: Sequence[torch.Tensor]
    ) -> None:
        for place, size in kernels.bytes_of(func, results).items():
            self._bytes[self._name(results[place])] = rounded(size)
        if size := kernels.workspace_of(func, args):
            self._workspace[name] = size

    def _call_alone(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Sequence[torch.Tensor]
    ) -> KernelCall | None:
        """Return a call that needs neither data nor indices; None for others.

        The reserve of a recurrent layer, which has no bytes without data, gets those of a run.
        """
        is_recurrent = func is torch.ops.aten.mkldnn_rnn_layer_backward.default
        if func.namespace != "aten" or not given or any(tensor.device.type != "cpu" for tensor in given):
            return None
        if not is_recurrent and any(not tensor.is_floating_point() and tensor.dtype != torch.bool for tensor in given):
            return None

        def layout(tensor: torch.Tensor) -> TensorLayout:
            if tensor.dtype == torch.uint8:
                return TensorLayout((self._bytes[self._name(tensor)],), (1,), torch.uint8)
            return TensorLayout(tuple(tensor.shape), tensor.stride(), tensor.dtype)

        laid_out = pytree.tree_map_only(torch.Tensor, layout, (args, dict(kwargs)))
        return KernelCall(func, laid_out[0], laid_out[1], kind=f"{func}{laid_out}")

    def _name(self, tensor: torch.Tensor) -> str:
        """Return the name of a tensor's memory.

        Memory first met as an operand existed before.
        """
        name = self._names.get(storage_key(tensor))
        if name is None:
            name = f"input_{len(self._inputs)}"
            self._inputs[name] = None
            self._known(tensor, name)
        return name

    def _born(self, tensor: torch.Tensor, name: str) -> str:
        self._known(tensor, name)
        return name

    def _known(self, tensor: torch.Tensor, name: str) -> None:
        storage = tensor.untyped_storage()
        self._names[storage_key(tensor)] = name
        self._bytes[name] = storage.nbytes() if self._kernels is None else rounded(storage.nbytes())
        self._storages.follow(storage)

    def _ended(self, key: int) -> None:
        name = self._names.pop(key)
        if key not in self._stand_ins:
            self._until[name] = len(self._ops) - 1
        self._stand_ins.discard(key)

    def contexts(
        self, path: str, saved: Saved | None = None
    ) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Return the contexts of a checkpoint for forward pass and rerun.

        Args:
            path: path of the module.
            saved: saved storages of its forward pass; None for none.
        """
        if saved is None:
            return nullcontext(), self._repeating(path, nullcontext())
        saving, taking = saving_contexts(saved)
        return saving, self._repeating(path, taking)

    @contextmanager
    def _repeating(self, path: str, taking: AbstractContextManager[Any]) -> Iterator[None]:
        before, self._again = self._again, path
        try:
            with taking:
                yield
        finally:
            self._again = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run ops that are none of the step's."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    @contextmanager
    def _named(self, kind: str) -> Iterator[None]:
        self._kind = kind
        try:
            yield
        finally:
            self._kind = None

    @contextmanager
    def looking(self, modules: Sequence[nn.Module]) -> Iterator[None]:
        """Record calls of modules and their parts, and tensors that autograd keeps.

        Of several modules, the path begins with their number.
        """
        handles = []
        for number, module in enumerate(modules):
            for path, part in module.named_modules(prefix="" if len(modules) == 1 else str(number)):
                enter = partial(self._enter, path)
                handles.append(part.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
                handles.append(part.register_forward_hook(self._leave, always_call=True))
        recording = Recording(lambda: self.phase, self.paused, self._named)
        running = nullcontext() if self._shards is None else self._shards.running(recording)
        try:
            with running, torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        names = tuple(dict.fromkeys(self._name(tensor) for tensor in given))
        self._open.append((path, type(module).__name__, len(self._ops), names, dict(self._turns)))

    def _leave(self, module: nn.Module, given: Any, returned: Any) -> None:
        del module, given, returned
        path, kind, first, names, turns = self._open.pop()
        self._calls.append(ModuleCall(path, kind, (first, len(self._ops)), names, turns))

    def _pack(self, tensor: torch.Tensor) -> _Pack | SavedPart:
        if self._shards is not None and (part := self._shards.saved(tensor)) is not None:
            return part
        name = self._name(tensor)
        kept = Kept(name, tuple(path for path, *_ in self._open), len(self._ops))
        self._kept.append(kept)
        stays: torch.Tensor | None = None
        if name in self._inputs:
            stays = tensor
        elif self._keeps:  # without its node, which would keep the tensor as the tensor keeps it
            with self.paused():
                stays = tensor.detach()
        pack = _Pack(
            storage=name,
            shape=tuple(tensor.shape),
            stride=tensor.stride(),
            dtype=tensor.dtype,
            device=tensor.device,
            tensor=stays,
            version=version_of(tensor),
            kept=kept,
        )
        weakref.finalize(pack, self._let_go, kept).atexit = False
        return pack

    def _let_go(self, kept: Kept) -> None:
        kept.until = len(self._ops) - 1

    def _unpack(self, pack: _Pack | SavedPart) -> torch.Tensor:
        if isinstance(pack, SavedPart):
            assert self._shards is not None, "it saved this"
            return self._shards.restored(pack)
        if pack.kept.asked is None:
            pack.kept.asked = len(self._ops)
        if pack.tensor is not None:
            if version_of(pack.tensor) != pack.version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation"
                )
            return pack.tensor
        with self.paused():
            stand_in = torch.empty_strided(pack.shape, pack.stride, dtype=pack.dtype, device=pack.device)
        key = storage_key(stand_in)
        self._names[key] = pack.storage
        self._stand_ins.add(key)
        self._storages.follow(stand_in.untyped_storage())
        return stand_in

    def finished(
        self,
        step: Step,
        ends: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        trained: Sequence[torch.Tensor],
    ) -> EagerStep:
        """Return the record of the step.

        Args:
            step: the step that ran.
            ends: results that got a gradient.
            results: results that are held.
            trained: tensors with a gradient of their own.
        """
        end = len(self._ops)
        handles, notes = self._of_kernels()
        gradients = [leaf.grad for leaf in trained if leaf.grad is not None]
        outputs = dict.fromkeys(self._name(tensor) for tensor in (*ends, *results, *gradients))
        losses = {self._name(tensor) for tensor in ends}
        inputs = set(self._inputs)
        until = {name: self._until.get(name, end) for op in self._ops for name in op.makes}
        kept = tuple(replace(item, until=min(item.until, end)) for item in self._kept)
        return EagerStep(
            ops=tuple(self._ops),
            bytes=dict(self._bytes),
            inputs=tuple(self._inputs),
            until=until,
            outputs=tuple(name for name in outputs if name not in inputs),
            results=tuple(
                name for name in dict.fromkeys(map(self._name, results)) if name not in inputs and name not in losses
            ),
            kept=kept,
            calls=tuple(self._calls),
            resident_bytes=_resident_bytes(step, set(self._names)) + handles,
            optimizer=optimizer_name(step.optimizer),
            counts_state=not isinstance(step.optimizer, str),
            parameters=tuple(_operand(tensor) for tensor in trained if isinstance(tensor, nn.Parameter)),
            calls_alone=self._calls_alone,
            workspace_bytes=self._workspace,
            kernels=notes,
            notes=() if self._shards is None else (self._shards.note(),),
        )

    def _of_kernels(self) -> tuple[int, tuple[str, ...]]:
        """Return the workspace of cuBLAS that stays allocated, and notes on the kernels."""
        if self._kernels is None:
            return 0, ()
        names = {phase: Counter(op.overload.split(".")[1] for op in self._ops if op.phase is phase) for phase in Phase}
        handles = sum(map(self._kernels.cublas_bytes, names.values()))
        return handles, (self._kernels.note(sum(names.values(), Counter()), handles),)


def _bytes_with_data(func: Any, given: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> int | None:
    """Return the bytes of the last result's storage where those of a tensor without data are wrong; else None."""
    if func is torch.ops.aten.mkldnn_rnn_layer.default:
        return reserve_bytes(given[0], given[1:5], given[5:])
    if func in _LOSSES_IN_MEMORY_OF_TERMS and not results[-1].dim() and results[-1].device.type == "cpu":
        return max(tensor.numel() for tensor in given) * results[-1].element_size()
    return None


def _resident_bytes(step: Step, known: set[int]) -> int:
    """Return the bytes of unread inputs, parameters and optimizer state."""
    given = pytree.tree_leaves((step.inputs, dict(step.keyword_inputs)))
    inputs = {storage_key(value): value for value in given if isinstance(value, torch.Tensor)}
    unread: int = sum(value.untyped_storage().nbytes() for key, value in inputs.items() if key not in known)
    parts = [value for module in modules_of(step) for value in (*module.parameters(), *module.buffers())]
    return unread + resident_bytes(step, [value for value in parts if storage_key(value) in known])


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an op changes in place."""
    changed = {
        item.name for item in schema_of(func).arguments if item.alias_info is not None and item.alias_info.is_write
    }
    names = [argument.name for argument in schema_of(func).arguments]
    given = [value for name, value in (*zip(names, args, strict=False), *kwargs.items()) if name in changed]
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]


def _operator(
    func: Any, kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], returned: Sequence[Any]
) -> Operator:
    """Return the operator of a call.

    Its operands are in the order of the op's schema.
    """
    names = [argument.name for argument in schema_of(func).arguments]
    operands: list[Operand | None] = []
    attributes: dict[str, AttributeValue] = {}
    declared = {argument.name: str(argument.type) for argument in schema_of(func).arguments}
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        if tensors:
            operands.extend(map(_operand, tensors))
        elif value is None and "Tensor" in declared.get(name, ""):
            operands.append(None)
        elif isinstance(value, bool | int | float | str):
            attributes[name] = int(value) if isinstance(value, bool) else value
        elif isinstance(value, list | tuple) and value and all(isinstance(item, int) for item in value):
            attributes[name] = tuple(int(item) for item in value)
    return Operator(kind, tuple(operands), tuple(map(_operand, returned)), attributes)


def _operand(value: torch.Tensor) -> Operand:
    return Operand(
        name="",
        role=Role.ACTIVATION,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        bytes=min(value.numel() * value.element_size(), value.untyped_storage().nbytes()),
    )
