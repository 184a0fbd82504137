"""The joint graph of a training step: the memory that each op reads and makes, and the ops that run only once.

Memory is counted in *storages*: tensors that are views of each other share one. A view is no op in this graph: each
reader derives the view again from its storage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeGuard

import torch
from torch import fx

from remat_cli.core.graph import Phase
from remat_cli.errors import GraphError
from remat_cli.pytorch.capture.dropout import apply_masks_apart
from remat_cli.pytorch.capture.duplicates import merge_duplicates
from remat_cli.pytorch.capture.joint_capture import Captured, outputs_of, primals_of, sizes_of, tangents_of
from remat_cli.pytorch.capture.mutation import OLD_VALUE_OF, is_backward, is_copy, keep_old_values, mark_backward
from remat_cli.pytorch.capture.ops import (
    IN_PLACE,
    communicates,
    draws,
    has_effects,
    is_item,
    is_view,
    tensors_of,
    waits,
)
from remat_cli.pytorch.capture.places import readable, root_of, source_of
from remat_cli.pytorch.capture.update_runs import UpdateRuns
from remat_cli.pytorch.unstable.fakes import is_object
from remat_cli.pytorch.unstable.joint_graphs import mutated_input, output_descriptions
from remat_cli.pytorch.unstable.tensors import storage_key

BOUNDARY = "boundary"


@dataclass(frozen=True, slots=True)
class Storage:
    """A piece of memory.

    Attributes:
        name: name of its first value.
        bytes: size; 0 on another device than the plan's.
        shape: shape of its first value.
        dtype: element type of the first value in it.
    """

    name: str
    bytes: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class JointOp:
    """An op that runs; one of them, the boundary between forward and backward pass, stands for torch and the caller.

    Attributes:
        name: name of its node.
        node: node of the joint graph; None for the boundary.
        phase: forward or backward.
        reads: storages, each once.
        makes: storages, each once.
        values: nodes that hold its results.
        needs: tokens of ops that must have run before; they have no memory.
        gives: tokens that later ops wait for.
        recomputable: the op may run more than once.
        inplace: the storage that its result may be written into; None: it has one of its own.
    """

    name: str
    node: fx.Node | None
    phase: Phase
    reads: tuple[Storage, ...]
    makes: tuple[Storage, ...]
    values: tuple[fx.Node, ...]
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    recomputable: bool = True
    inplace: Storage | None = None


@dataclass(frozen=True, eq=False)
class Joint:
    """A training step that torch has captured.

    Attributes:
        module: the joint graph, changed so that nothing is computed twice, and old values of mutated inputs are read
            from copies.
        primals: inputs from before the step: parameters, buffers, and arguments of the model.
        sizes: inputs that are numbers computed of the primals' sizes, where these differ between calls.
        inputs: tensors among the primals, and constants.
        tangents: gradients of the forward outputs, which come in from outside.
        names: names of the inputs in the user's terms, each once.
        ops: ops in the order of their runs: forward pass, boundary, backward pass.
        forward_outputs: results of the forward pass; None or a number where a result is no tensor.
        backward_outputs: the gradients of the primals in their order; None where there is none.
        new_values: positions of forward outputs that hold new values of inputs, which torch copies there.
        released: positions of forward outputs that the caller lets go of before the backward pass.
        root: the name of the whole model in paths of modules.
        storages: all memory of the step, by the key that values in it have in common.
        updates: what updates parameters in the backward pass; None where the optimizer's own step does.
    """

    module: fx.GraphModule
    primals: tuple[fx.Node, ...]
    sizes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    names: Mapping[fx.Node, str]
    ops: tuple[JointOp, ...]
    forward_outputs: tuple[Any, ...]
    backward_outputs: tuple[Any, ...]
    new_values: frozenset[int]
    root: str
    storages: Mapping[int, Storage]
    released: frozenset[int] = frozenset()
    updates: UpdateRuns | None = None

    @classmethod
    def of(cls, captured: Captured) -> Joint:
        """Resolve torch's capture; its graph is changed.

        Raises:
            GraphError: something in it has no size before it runs, or is of a kind that no plan is made for.
        """
        return _Reader(captured).joint()

    @classmethod
    def with_losses_alone(cls, captured: Captured) -> Joint:
        """Read a joint graph whose caller lets go of the outputs that get no gradient before the backward pass.

        Raises:
            GraphError: see `of`.
        """
        return cls.of(captured).releasing(captured.released.possible)

    def releasing(self, outputs: frozenset[int]) -> Joint:
        """Return the same step, where the caller lets go of these forward outputs before the backward pass."""
        released = replace(self, released=outputs)
        held = frozenset(released.returned)
        ops = tuple(replace(op, recomputable=_may_run_again(op, held)) for op in self.ops)
        return replace(released, ops=ops)

    def updating(self, updates: UpdateRuns | None) -> Joint:
        """Return the same step, whose backward pass updates parameters."""
        return replace(self, updates=updates)

    def storage(self, value: fx.Node | torch.Tensor) -> Storage:
        """Return the memory that a value is in."""
        return self.storages[storage_key(value.meta["val"] if isinstance(value, fx.Node) else value)]

    @cached_property
    def device(self) -> str:
        """The kind of device whose memory the plan is for."""
        return _main_device(self.inputs)

    @cached_property
    def op(self) -> Mapping[str, JointOp]:
        """The ops by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def op_of(self) -> Mapping[fx.Node, JointOp]:
        """The op of each stored value, without views and inputs."""
        return {value: op for op in self.ops for value in op.values}

    @cached_property
    def changed(self) -> frozenset[Storage]:
        """Inputs that the step writes into."""
        copies = (op.node.args[0] for op in self.ops if op.node is not None and is_copy(op.node))
        return frozenset(self.storage(primal) for primal in copies if isinstance(primal, fx.Node))

    @cached_property
    def values_in(self) -> Mapping[str, tuple[fx.Node, ...]]:
        """The stored values in each piece of memory, by name.

        Most pieces have one value.
        """
        by_storage: dict[str, tuple[fx.Node, ...]] = {}
        for value in self.op_of:
            name = self.storage(value).name
            by_storage[name] = (*by_storage.get(name, ()), value)
        return by_storage

    @cached_property
    def returned(self) -> tuple[Storage, ...]:
        """Outputs of the forward pass, which the caller holds until the end."""
        gone = self.new_values | self.released
        return self._new(value for slot, value in enumerate(self.forward_outputs) if slot not in gone)

    @cached_property
    def held_outputs(self) -> tuple[Storage, ...]:
        """The memory at the end: the caller's results, and gradients."""
        return tuple(dict.fromkeys((*self.returned, *self._new(self.backward_outputs))))

    def _new(self, values: Iterable[Any]) -> tuple[Storage, ...]:
        """Return the storages of values, without those of inputs."""
        resident = {self.storage(node) for node in self.inputs}
        storages = dict.fromkeys(self.storage(value) for value in values if _is_tensor(value))
        return tuple(storage for storage in storages if storage not in resident)


# Under this name a module has what `rewritten` has found, as a graph is rewritten in place, and only once.
_OLD_VALUES = "remat_old_values"


def rewritten(captured: Captured) -> Captured:
    """Return a graph without duplicates, with ops that can run at any time.

    Random ops are the exception.

    Raises:
        GraphError: the graph changes a value that is no input, or has a sparse tensor.
    """
    if captured.old_values is not None:
        return captured
    known = captured.module.meta.get(_OLD_VALUES)
    if known is not None:  # another joint graph was read of this capture
        return replace(captured, old_values=known)
    graph = captured.module.graph
    for rewrite in (_check_dense, mark_backward, merge_duplicates, apply_masks_apart, keep_old_values):
        rewrite(graph)
    old_values = {node.meta[OLD_VALUE_OF]: node.name for node in graph.nodes if OLD_VALUE_OF in node.meta}
    captured.module.meta[_OLD_VALUES] = old_values
    return replace(captured, old_values=old_values)


def _check_dense(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if any(value.layout is not torch.strided for value in tensors_of(node.meta.get("val"))):
            at = f" at {place}" if (place := source_of(node)) else ""
            raise GraphError(
                f"op {node.name!r}{at} makes a sparse tensor, whose memory depends on data",
                hint="use dense tensors, as nn.Embedding(sparse=False); or plan the parts of the model behind it, "
                "planned(..., regions=...)",
            )


class _Reader:
    """Resolves a captured graph, step by step."""

    def __init__(self, captured: Captured) -> None:
        self.module = captured.module
        self.graph = captured.module.graph
        for node in self.graph.nodes:
            _check_value(self.module, node)
            if waits(node):
                node.meta["val"] = node.args[0].meta["val"]  # where torch shows other memory
        old_values = rewritten(captured).old_values or {}
        named = {node.name: node for node in self.graph.nodes}
        self.copies = {named[primal]: named[copy] for primal, copy in old_values.items()}
        outputs, described = outputs_of(self.graph), output_descriptions(self.graph)
        self.forward_outputs = tuple(outputs[: captured.forward_outputs])
        self.backward_outputs = tuple(outputs[captured.forward_outputs :])
        self.new_values = frozenset(
            slot for slot, what in enumerate(described[: captured.forward_outputs]) if mutated_input(what) is not None
        )
        self.tangents = tuple(tangents_of(self.graph))
        self.primals = tuple(primals_of(self.graph))
        constants = (node for node in self.graph.find_nodes(op="get_attr") if tensors_of(node.meta.get("val")))
        # Numbers among the primals have no memory.
        self.inputs = (*(node for node in self.primals if tensors_of(node.meta.get("val"))), *constants)
        self.sizes = tuple(sizes_of(self.graph))
        self.sources = tuple(primal.source for primal in captured.primals)
        self.root = root_of(self.sources)
        self.names = self.input_names()
        self.storages = self.all_storages()
        held = (value for slot, value in enumerate(self.forward_outputs) if slot not in self.new_values)
        self.returned = {self.storage(value) for value in held if _is_tensor(value)}

    def joint(self) -> Joint:
        return Joint(
            module=self.module,
            primals=self.primals,
            sizes=self.sizes,
            inputs=self.inputs,
            tangents=self.tangents,
            names=self.names,
            ops=tuple(self.ops()),
            forward_outputs=self.forward_outputs,
            backward_outputs=self.backward_outputs,
            new_values=self.new_values,
            root=self.root,
            storages=self.storages,
        )

    def input_names(self) -> dict[fx.Node, str]:
        """Name inputs by the user's names, or by torch's.

        torch's names replace unknown and ambiguous ones.
        """
        taken = {node.name for node in self.graph.nodes}
        names: dict[fx.Node, str] = {}
        sources = dict(zip(self.primals, self.sources, strict=False))
        for node in self.inputs:
            name = readable(sources.get(node, ""), self.root)
            names[node] = node.name if not name or name in taken else name
            taken.add(names[node])
        return names

    def all_storages(self) -> dict[int, Storage]:
        """Return all memory of the graph's values.

        Each piece is named after its first value.
        """
        device = _main_device(self.inputs)
        storages: dict[int, Storage] = {}
        for node in self.graph.nodes:
            for place, value in enumerate(tensors_of(node.meta.get("val"))):
                key = storage_key(value)
                if key not in storages:
                    size = value.untyped_storage().nbytes() if value.device.type == device else 0
                    dtype = str(value.dtype).removeprefix("torch.")
                    storages[key] = Storage(self.value_name(node, place), int(size), tuple(value.shape), dtype)
        return storages

    def value_name(self, node: fx.Node, place: int) -> str:
        """Return the name of the n-th tensor that a node makes: the node's, with the place where there are several."""
        if isinstance(node.meta["val"], torch.Tensor):
            return self.names.get(node, node.name)
        return f"{node.name}:{place}"

    def storage(self, node: fx.Node) -> Storage:
        return self.storages[storage_key(node.meta["val"])]

    def ops(self) -> Iterator[JointOp]:
        """Yield the ops in running order.

        Writes into inputs come last in the forward pass.
        """
        runs = [node for node in self.graph.nodes if node.op == "call_function" and not is_item(node)]
        runs = [node for node in runs if not is_view(node)]
        forward = sorted((node for node in runs if not is_backward(node)), key=is_copy)
        random = ""  # the token of the last op that drew random numbers: they are drawn in this order
        collective = ""  # the same of the last one that communicated, which ranks have to do in one order
        effects: list[str] = []
        for node in (*forward, None, *(node for node in runs if is_backward(node))):
            if node is None:
                yield self.boundary((*effects, random) if random else tuple(effects))
                continue
            op = self.op(node, collective if communicates(node) else random)
            yield op
            if draws(node):
                (random,) = op.gives
            elif communicates(node):
                (collective,) = op.gives
                effects += op.gives
            elif has_effects(node):
                effects += op.gives

    def op(self, node: fx.Node, before: str) -> JointOp:
        """Resolve a node that runs.

        Args:
            node: the node to run.
            before: the token of the last op that drew random numbers, or communicated; empty where there is none.
        """
        reads = dict.fromkeys(self.storage(source) for source in _tensor_sources(node))
        makes = dict.fromkeys(self.storages[storage_key(value)] for value in tensors_of(node.meta.get("val")))
        needs: tuple[str, ...] = ()
        gives: tuple[str, ...] = ()
        if is_copy(node):
            primal = node.args[0]
            assert isinstance(primal, fx.Node)
            del reads[self.storage(primal)]
            needs = (f"{self.copies[primal].name}.done",) if primal in self.copies else ()
            makes = {}
        elif shared := makes.keys() & reads.keys():
            raise _half_view(node, next(iter(shared)))
        if draws(node):
            needs, gives = (before,) if before else (), (f"{node.name}.random",)
        elif communicates(node):
            needs, gives = (before,) if before else (), (f"{node.name}.done",)
        elif has_effects(node) or node in self.copies.values():
            gives = (f"{node.name}.done",)
        op = JointOp(
            name=node.name,
            node=node,
            phase=Phase.BACKWARD if is_backward(node) else Phase.FORWARD,
            reads=tuple(reads),
            makes=tuple(makes),
            values=_values(node),
            needs=needs,
            gives=gives,
            inplace=self.storage(node.all_input_nodes[0]) if IN_PLACE in node.meta else None,
        )
        return replace(op, recomputable=_may_run_again(op, self.returned))

    def boundary(self, needs: tuple[str, ...]) -> JointOp:
        outputs = filter(_is_tensor, self.forward_outputs)
        tangents = tuple(filter(_is_tensor, self.tangents))
        return JointOp(
            name=BOUNDARY,
            node=None,
            phase=Phase.BACKWARD,
            reads=tuple(dict.fromkeys(map(self.storage, outputs))),
            makes=tuple(dict.fromkeys(map(self.storage, tangents))),
            values=tangents,
            needs=needs,
            recomputable=False,
        )


def _may_run_again(op: JointOp, returned: Collection[Storage]) -> bool:
    """Tell whether an op may run more than once: the caller would hold the first result of one that was returned."""
    return op.node is not None and not op.gives and not any(storage in returned for storage in op.makes)


def _tensor_sources(node: fx.Node) -> Iterator[fx.Node]:
    return filter(_is_tensor, node.all_input_nodes)


def _is_tensor(value: Any) -> TypeGuard[fx.Node]:
    """Tell whether an output, or an operand, is a node that makes a tensor."""
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _values(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the nodes that hold the results of a node: itself, or those that pick one of several."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return (node,)
    items = (user for user in node.users if is_item(user))
    return tuple(item for item in items if isinstance(item.meta.get("val"), torch.Tensor))


def _main_device(inputs: Sequence[fx.Node]) -> str:
    """Return the kind of device that holds most bytes of the inputs: the plan is for its memory."""
    sizes: dict[str, int] = {}
    for node in inputs:
        value = node.meta["val"]
        sizes[value.device.type] = sizes.get(value.device.type, 0) + value.untyped_storage().nbytes()
    return max(sizes, key=sizes.__getitem__, default="cpu")


def _check_value(module: fx.GraphModule, node: fx.Node) -> None:
    """Check that the kind and size of a node's result are known.

    Raises:
        GraphError: it is not.
    """
    if node.op == "get_attr" and "val" not in node.meta:
        constant = getattr(module, str(node.target), None)
        node.meta["val"] = constant if isinstance(constant, torch.Tensor) else None
    value = node.meta.get("val")
    items = value if isinstance(value, tuple | list) else (value,)
    for item in items if node.op != "output" else ():
        at = f" at {place}" if (place := source_of(node)) else ""
        if isinstance(item, torch.Tensor):
            known = all(isinstance(size, int) for size in item.shape)
        else:
            known = item is None or isinstance(item, int | float | str) or is_object(item)
        if not known:
            raise GraphError(
                f"op {node.name!r}{at} makes something whose size depends on data",
                hint="a plan needs sizes that are known before: use a mask or torch.where, or do this outside the step",
            )


def _half_view(node: fx.Node, shared: Storage) -> GraphError:
    at = f" at {place}" if (place := source_of(node)) else ""
    return GraphError(
        f"op {node.name!r}{at} returns new tensors together with a view of {shared.name!r}, which no plan can follow",
        hint="please report it, with the op",
    )
