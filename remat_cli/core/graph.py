"""The computation graph: frozen tensors and ops, checked once when the graph is built.

Views are resolved here (see `build_graph`), so that planners and judge need no aliasing: an op that reads a
view reads its base too, and a view is a tensor of 0 bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain, filterfalse
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from remat_cli.errors import GraphError
from remat_cli.units import format_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Sums of sizes and times must fit 64-bit integers with room to spare.
LARGEST_TOTAL = 2**60
# Sums of work figures must fit a floating-point number with room to spare.
LARGEST_WORK = 2**100
_WORK = ("grad_time", "flops", "moved_bytes", "grad_flops")


class Kind(StrEnum):
    """The content of a graph: forward pass, training step or inference."""

    FORWARD = "forward"  # a forward pass whose training graph is to be derived
    TRAINING = "training"  # has all forward and backward ops
    INFERENCE = "inference"  # planned without a backward pass


class Phase(StrEnum):
    """The pass of a training step that an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"  # the optimizer's step


class Residency(StrEnum):
    """The role of a resident: a tensor that exists before the step and after it."""

    PARAMETER = "parameter"
    STATE = "state"  # of the optimizer


# The type of the op that stands for the caller, between the passes of a captured training step. It reads the outputs of
# the forward pass, and produces the gradients that the backward pass starts from.
BOUNDARY_TYPE = "Boundary"

TIME_UNITS = ("ns", "flop", "unit")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value in device memory.

    Attributes:
        name: unique within the graph.
        bytes: size of its storage; 0 for a view.
        shape: dimensions, for people; None where not known.
        dtype: element type, for people; None where not known.
        view_of: the tensor whose storage this one shares, itself no view once the graph is built.
        held: code outside of the graph holds it once it exists: it cannot leave the device, and its op runs once.
        lasts: the plain run keeps it to the end although no op reads it, as onnxruntime does. Plans may free it.
        resident: the role of a tensor that exists before the step and after it, and may wait on the host; None for any
            other. No op produces a resident. The file format lists residents beside the tensors.
    """

    name: str
    bytes: int
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    view_of: str | None = None
    held: bool = False
    lasts: bool = False
    resident: Residency | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One operation; it needs all inputs and creates all outputs together.

    Attributes:
        name: unique within the graph.
        type: kind of operation, by its ONNX name where it has one.
        inputs: names of the tensors it reads, each once.
        outputs: names of the tensors it produces.
        time: of one run, in the graph's time unit.
        workspace_bytes: extra memory while it runs.
        inplace: the input whose storage the first output can take over if nothing needs that input afterwards.
        phase: forward, backward or update.
        grad_of: on a backward op, the forward op that it differentiates.
        recomputable: false for an op that must run exactly once.
        saves: for a forward graph, the inputs and outputs that the backward op reads; None means all of them.
        grad_inputs: for a forward graph, the inputs that receive a gradient; None means those that some op produces.
        grad_time: for a forward graph, time of the backward op; None means twice `time`.
        flops: floating-point operations (a multiply-add counts 2), from which a cost model derives `time`.
        moved_bytes: bytes read and written, from which a cost model derives `time`.
        grad_flops: `flops` of the backward op. Known only to graphs read from operators; not part of the file format,
            which carries the result as `grad_time`.
        module: path of its module in the model, for people.
        source: file and line of its code, for people.
        signature: hash of its computation, by which a runtime recognises the op; None where unknown.
        writes: the residents among its inputs that it overwrites in place. Only updates write.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    time: int
    workspace_bytes: int = 0
    inplace: str | None = None
    phase: Phase = Phase.FORWARD
    grad_of: str | None = None
    recomputable: bool = True
    saves: tuple[str, ...] | None = None
    grad_inputs: tuple[str, ...] | None = None
    grad_time: int | None = None
    flops: int | None = None
    moved_bytes: int | None = None
    grad_flops: int | None = None
    module: str | None = None
    source: str | None = None
    signature: str | None = None
    writes: tuple[str, ...] = ()

    def edited(self, **changes: Any) -> Op:
        """Return the op with other values of these attributes.

        The same as `dataclasses.replace`, in two thirds of its time.
        """
        values = list(_OP_VALUES(self))
        for name, value in changes.items():
            values[_OP_POSITIONS[name]] = value
        return Op(*values)


_WORK_OF, _NO_WORK = attrgetter(*_WORK), (None,) * len(_WORK)
_OP_VALUES = attrgetter(*(item.name for item in fields(Op)))
_OP_POSITIONS = {item.name: position for position, item in enumerate(fields(Op))}


@dataclass(frozen=True, eq=False)
class Draft:
    """A graph that is still being edited; `checked` turns it into a `Graph`.

    Attributes:
        name: for people.
        kind: forward pass, training step or inference.
        time_unit: what `Op.time` counts: "ns", "flop" or "unit".
        resident_bytes: memory in use from start to end under every plan.
        tensors: by name.
        ops: in a valid execution order, the *input order*.
        outputs: names of the tensors that must be in memory at the end.
    """

    name: str
    kind: Kind
    time_unit: str
    resident_bytes: int
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]

    def edited(self, **changes: Any) -> Draft:
        """Return the draft with other values of these attributes."""
        return Draft(**{item.name: getattr(self, item.name) for item in fields(Draft)} | changes)

    def checked(self) -> Graph:
        """Check the draft, and return it as a graph.

        Raises:
            GraphError: as `Graph`.
        """
        return Graph(**{item.name: getattr(self, item.name) for item in fields(Draft)})

    @cached_property
    def producer(self) -> Mapping[str, Op]:
        """The op that produces each tensor; graph inputs have none."""
        return {name: op for op in self.ops for name in op.outputs}

    @cached_property
    def freeable_bytes(self) -> Mapping[str, int]:
        """Bytes of each tensor that a plan can free.

        Graph inputs have 0 here; `fixed_bytes` counts them.
        """
        return {name: tensor.bytes if name in self.producer else 0 for name, tensor in self.tensors.items()}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Op, ...]]:
        """The ops that read each tensor, in input order."""
        readers: dict[str, list[Op]] = {name: [] for name in self.tensors}
        for op in self.ops:
            for name in op.inputs:
                readers[name].append(op)
        return {name: tuple(ops) for name, ops in readers.items()}

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensors that no op produces: resident from start to end."""
        return tuple(name for name in self.tensors if name not in self.producer)

    @cached_property
    def residents(self) -> tuple[str, ...]:
        """Parameters and optimizer state: graph inputs that may wait on the host."""
        return tuple(name for name, tensor in self.tensors.items() if tensor.resident is not None)

    @cached_property
    def op(self) -> Mapping[str, Op]:
        """Ops by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def fixed_bytes(self) -> int:
        """Bytes of a plan that moves no resident: `resident_bytes` and the graph inputs.

        Other plans can free their residents.
        """
        return self.resident_bytes + sum(self.tensors[name].bytes for name in self.inputs)

    @cached_property
    def lasting(self) -> frozenset[str]:
        """Tensors that no op reads, and that the plain run keeps to the end."""
        return frozenset(name for name, tensor in self.tensors.items() if tensor.lasts and not self.consumers[name])

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """Outputs of the step that a backward op produces, and those that an update reads."""
        read = (name for op in self.ops if op.phase is Phase.UPDATE for name in op.inputs)
        produced = (name for name in dict.fromkeys((*self.outputs, *read)) if name in self.producer)
        return tuple(name for name in produced if self.producer[name].phase is Phase.BACKWARD)

    @cached_property
    def total_time(self) -> int:
        """Time of running every op once: the least of any plan."""
        return sum(op.time for op in self.ops)


@dataclass(frozen=True, eq=False)
class Graph(Draft):
    """A valid computation graph.

    Raises:
        GraphError: a name is unknown or used twice, a number is negative, the order cannot be executed, there is a
            cycle.
    """

    def __post_init__(self) -> None:
        _check(self)

    def checked(self) -> Graph:
        """Return the graph itself, which is valid."""
        return self

    @cached_property
    def arrays(self) -> GraphArrays:
        """The graph as integer-indexed arrays, for hot loops."""
        return GraphArrays.of(self)


@dataclass(frozen=True, eq=False)
class GraphArrays:
    """A graph as numpy arrays, numbered in the graph's order.

    Attributes:
        tensor_names: [T] names.
        op_index: number of each op by name.
        tensor_index: number of each tensor by name.
        tensor_bytes: [T] int64.
        op_time: [N] int64.
        workspace_bytes: [N] int64.
        producer: [T] number of the producing op, -1 for a graph input.
        inputs: for each op, the numbers of its inputs.
        outputs: for each op, the numbers of its outputs.
        recomputable: [N] bool, the op may run again.
        is_held: [T] bool, the tensor cannot leave the device.
        inplace: for each op, the number of the input whose storage its first output can take over, or -1.
        inplace_bytes: [N] int64, bytes saved by working in place; 0 if that input is a graph input.
        is_output: [T] bool, the tensor must be in memory at the end.
    """

    tensor_names: tuple[str, ...]
    op_index: Mapping[str, int]
    tensor_index: Mapping[str, int]
    tensor_bytes: NDArray[np.int64]
    op_time: NDArray[np.int64]
    workspace_bytes: NDArray[np.int64]
    producer: NDArray[np.int64]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    recomputable: NDArray[np.bool_]
    is_held: NDArray[np.bool_]
    inplace: tuple[int, ...]
    inplace_bytes: NDArray[np.int64]
    is_output: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: Graph) -> GraphArrays:
        """Build the arrays of `graph`."""
        import numpy as np

        names = tuple(graph.tensors)
        index = {name: number for number, name in enumerate(names)}
        producer = np.full(len(names), -1, dtype=np.int64)
        numbers_of = index.__getitem__
        inputs = tuple(tuple(map(numbers_of, op.inputs)) for op in graph.ops)
        outputs = tuple(tuple(map(numbers_of, op.outputs)) for op in graph.ops)
        produced = np.fromiter(chain.from_iterable(outputs), dtype=np.int64)
        producer[produced] = np.repeat(np.arange(len(outputs)), np.fromiter(map(len, outputs), dtype=np.int64))
        inplace_bytes = np.zeros(len(graph.ops), dtype=np.int64)
        for number, op in enumerate(graph.ops):
            if op.inplace is not None:
                inplace_bytes[number] = min(graph.freeable_bytes[op.inplace], graph.tensors[op.outputs[0]].bytes)
        is_output = np.zeros(len(names), dtype=np.bool_)
        is_output[[index[name] for name in graph.outputs]] = True
        return cls(
            tensor_names=names,
            op_index={op.name: number for number, op in enumerate(graph.ops)},
            tensor_index=index,
            tensor_bytes=np.fromiter((t.bytes for t in graph.tensors.values()), dtype=np.int64, count=len(names)),
            op_time=np.fromiter((op.time for op in graph.ops), dtype=np.int64, count=len(graph.ops)),
            workspace_bytes=np.fromiter((op.workspace_bytes for op in graph.ops), dtype=np.int64, count=len(graph.ops)),
            producer=producer,
            inputs=inputs,
            outputs=outputs,
            recomputable=np.fromiter((op.recomputable for op in graph.ops), dtype=np.bool_, count=len(graph.ops)),
            is_held=np.fromiter((t.held for t in graph.tensors.values()), dtype=np.bool_, count=len(names)),
            inplace=tuple(-1 if op.inplace is None else index[op.inplace] for op in graph.ops),
            inplace_bytes=inplace_bytes,
            is_output=is_output,
        )


def build_graph(
    *,
    name: str,
    kind: Kind,
    time_unit: str,
    resident_bytes: int,
    tensors: Iterable[Tensor],
    ops: Iterable[Op],
    outputs: Sequence[str] | None = None,
) -> Graph:
    """Build and check a graph from the parts in a file.

    See `draft_graph` for the parts.

    Raises:
        GraphError: as `Graph`, and as `draft_graph`.
    """
    return draft_graph(
        name=name,
        kind=kind,
        time_unit=time_unit,
        resident_bytes=resident_bytes,
        tensors=tensors,
        ops=ops,
        outputs=outputs,
    ).checked()


def draft_graph(
    *,
    name: str,
    kind: Kind,
    time_unit: str,
    resident_bytes: int,
    tensors: Iterable[Tensor],
    ops: Iterable[Op],
    outputs: Sequence[str] | None = None,
) -> Draft:
    """Build a draft: resolve views, and fill in default outputs.

    Args:
        name: as in `Graph`.
        kind: as in `Graph`.
        time_unit: as in `Graph`.
        resident_bytes: as in `Graph`.
        tensors: in any order; a view names any tensor that it shares storage with.
        ops: in execution order.
        outputs: None means the tensors that no op consumes.

    Raises:
        GraphError: a tensor is defined twice, or a view has no base, has bytes, or is part of a circle of views.
    """
    by_name: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in by_name:
            raise GraphError(f"tensor {tensor.name!r} is defined twice", hint="give each tensor a name of its own")
        by_name[tensor.name] = tensor
    op_list = tuple(ops)
    views = _bases(by_name)
    if views:
        if kind is Kind.FORWARD:
            # Fix the default, "inputs that some op produces", before the bases of views become inputs.
            produced = {name for op in op_list for name in op.outputs}
            op_list = tuple(_with_explicit_grad_inputs(op, produced) for op in op_list)
        by_name.update((name, _with_base(by_name[name], base)) for name, base in views.items())
        op_list = tuple(_with_bases_read(op, views) for op in op_list)
    if outputs is None:
        consumed = {name for op in op_list for name in op.inputs}
        outputs = tuple(name for op in op_list for name in op.outputs if name not in consumed)
    outputs = _with_bases(outputs, views)
    return Draft(
        name=name,
        kind=kind,
        time_unit=time_unit,
        resident_bytes=resident_bytes,
        tensors=by_name,
        ops=op_list,
        outputs=tuple(outputs),
    )


def _with_explicit_grad_inputs(op: Op, produced: set[str]) -> Op:
    if op.grad_inputs is not None:
        return op
    return replace(op, grad_inputs=tuple(name for name in op.inputs if name in produced))


def _with_base(tensor: Tensor, base: str) -> Tensor:
    return tensor if tensor.view_of == base else replace(tensor, view_of=base)


def _with_bases(names: Sequence[str], base: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names, followed by the bases of their views.

    Every given name stays, so that the checks see it. A second call changes nothing: a graph that is written and read
    again stays the same.
    """
    bases = dict.fromkeys(base[name] for name in names if name in base)
    if not bases:
        return tuple(names)
    said = set(names)
    return (*names, *(name for name in bases if name not in said))


def _with_bases_read(op: Op, base: Mapping[str, str]) -> Op:
    """Add the bases of views to the op's inputs and saved tensors."""
    if _has_bases_read(op, base):
        return op
    read = _with_bases(op.inputs, base)
    # An op that produces a view reads the view's base, unless it produces the base itself.
    pointed_to = dict.fromkeys(base[name] for name in op.outputs if name in base)
    inputs = (*read, *(name for name in pointed_to if name not in read and name not in op.outputs))
    saves = None if op.saves is None else _with_bases(op.saves, base)
    return op.edited(inputs=inputs, saves=saves)


def _has_bases_read(op: Op, base: Mapping[str, str]) -> bool:
    """Tell whether the op names the base of each view already.

    Most ops of a file that remat wrote do.
    """
    owner = base.get
    return (
        set(map(owner, op.inputs, op.inputs)).issubset(op.inputs)
        and set(map(owner, op.outputs, op.outputs)).issubset((*op.inputs, *op.outputs))
        and (op.saves is None or set(map(owner, op.saves, op.saves)).issubset(op.saves))
    )


def _bases(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Map each view to the tensor that owns its storage.

    Views of views are followed down to their base.
    """
    bases: dict[str, str] = {}
    for name, tensor in tensors.items():
        if tensor.view_of is None or name in bases:
            continue
        owner = tensors.get(tensor.view_of)
        if owner is not None and owner.view_of is None and tensor.bytes == 0:  # nearly all views
            bases[name] = owner.name
        else:
            chain = _chain_of_views(name, tensors, bases)
            root = bases.get(chain[-1], chain[-1])
            bases.update((view, root) for view in chain if tensors[view].view_of is not None)
    return bases


def _chain_of_views(name: str, tensors: Mapping[str, Tensor], bases: Mapping[str, str]) -> list[str]:
    """Follow a view to its base, or to a view with a known base.

    The result starts with the view itself.
    """
    chain = {name: None}  # keeps the order
    last = name
    while last not in bases and (base := tensors[last].view_of) is not None:
        if tensors[last].bytes != 0:
            raise GraphError(
                f"tensor {last!r} is a view (view_of {base!r}) but has {tensors[last].bytes} bytes",
                hint="give a view 0 bytes: its storage is counted with its base; or take view_of away",
            )
        if base not in tensors:
            raise GraphError(
                f"tensor {last!r} is a view of {base!r}, which is not defined",
                hint="define that tensor, or take view_of away",
            )
        if base in chain:
            names = list(chain)
            circle = " -> ".join([*names[names.index(base) :], base])
            raise GraphError(
                f"views refer to each other in a circle: {circle}", hint="one of them must own its storage"
            )
        chain[base] = None
        last = base
    return list(chain)


def _check(graph: Graph) -> None:
    if not graph.ops:
        raise GraphError(f"graph {graph.name!r} has no ops", hint="there is nothing to plan; is this the right file?")
    if graph.time_unit not in TIME_UNITS:
        raise GraphError(f"unknown time unit {graph.time_unit!r}", hint=f"use one of {', '.join(TIME_UNITS)}")
    _check_numbers(graph)
    _check_texts(graph)
    _check_ops(graph)
    _check_outputs(graph)
    if graph.residents or any(op.writes for op in graph.ops):
        _check_residents(graph)


def _check_residents(graph: Graph) -> None:
    """Check the residents, and that nothing reads one after its update."""
    for name in graph.residents:
        if name in graph.producer or graph.tensors[name].view_of is not None:
            raise GraphError(
                f"resident {name!r} is a view, or an op produces it",
                hint="a resident owns its storage, and is there before the step; name another among the residents",
            )
    written_by: dict[str, str] = {}
    for op in graph.ops:
        for name in op.inputs if written_by else ():
            if name in written_by:
                raise GraphError(
                    f"op {op.name!r} reads {name!r} after {written_by[name]!r} has written it",
                    hint="list the update after every op that reads the old value; one op may write a resident",
                )
        if op.writes:
            _check_writes(graph, op)
            written_by.update(dict.fromkeys(op.writes, op.name))


def _check_writes(graph: Graph, op: Op) -> None:
    if op.phase is not Phase.UPDATE or op.recomputable or graph.kind is not Kind.TRAINING:
        raise GraphError(
            f"op {op.name!r} writes residents, but is no update that runs once in a training graph",
            hint='give the op phase "update" and recomputable false, or take writes away',
        )
    for name in op.writes:
        if name not in op.inputs or graph.tensors[name].resident is None:
            raise GraphError(
                f"op {op.name!r} writes {name!r}, which is no resident among its inputs",
                hint="name it among the op's inputs and the graph's residents, or take it from writes",
            )


def _check_numbers(graph: Graph) -> None:
    total_bytes = _whole(graph.resident_bytes, "resident_bytes")
    total_time = 0
    for tensor in graph.tensors.values():
        total_bytes += _whole(tensor.bytes, "the size of tensor {!r}", tensor.name)
    for op in graph.ops:
        total_bytes += _whole(op.workspace_bytes, "the workspace of op {!r}", op.name)
        total_time += _whole(op.time, "the time of op {!r}", op.name)
        if _WORK_OF(op) != _NO_WORK:
            check_work(op)
    for what, total in (("sizes", total_bytes), ("times", total_time)):
        if total > LARGEST_TOTAL:
            raise GraphError(
                f"the {what} of graph {graph.name!r} add up to {format_count(total)}, more than 2^60",
                hint="check its dimensions; a wrong size or shape that was given makes sizes like this",
            )


def _whole(value: object, what: str, name: str = "") -> int:
    if type(value) is not int or value < 0:
        raise GraphError(f"{what.format(name)} is {value!r}", hint="use a whole number, 0 or more")
    return value


def check_work(op: Op) -> None:
    """Raise a GraphError if an op's work is negative or huge."""
    for what in _WORK:
        value = getattr(op, what)
        if value is not None and _whole(value, f"{what} of op {{!r}}", op.name) > LARGEST_WORK:
            raise GraphError(
                f"{what} of op {op.name!r} is {format_count(value)}, more than 2^100", hint="check its dimensions"
            )


def _check_texts(graph: Graph) -> None:
    tensors, ops = graph.tensors.values(), graph.ops
    names = chain((graph.name,), map(attrgetter("name"), tensors), map(attrgetter("name"), ops))
    kinds = chain(filter(None, map(attrgetter("dtype"), tensors)), map(attrgetter("type"), ops))
    for text in filterfalse(str.isascii, chain(names, kinds)):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise GraphError(f"the name {text!r} cannot be written as UTF-8", hint="rename it") from None


def _check_ops(graph: Graph) -> None:
    """Check the references of each op, and the order of the ops."""
    # `_check_in_order` names the fault, but takes twice as long: seconds for a million ops.
    if not _is_in_order(graph):
        _check_in_order(graph)
    for op in graph.ops:
        if op.inplace is not None or op.saves or op.grad_inputs:
            _check_roles(op)
    for op in graph.ops:
        if op.grad_of is not None and op.grad_of not in graph.op:
            _check_known((op.grad_of,), graph.op, f"op {op.name!r} has grad_of")


def _is_in_order(graph: Graph) -> bool:
    """Tell whether the ops can run in this order.

    Each op needs a name of its own, reads tensors that exist, each once, and produces tensors that do not.
    """
    there = set(graph.inputs)
    count = len(there)
    for op in graph.ops:
        inputs = op.inputs
        if not there.issuperset(inputs) or len(set(inputs)) != len(inputs):
            return False
        there.update(op.outputs)
        count += len(op.outputs)
    # These numbers differ if a tensor is produced twice or is unknown.
    return count == len(there) == len(graph.tensors) and len(graph.op) == len(graph.ops)


def _check_in_order(graph: Graph) -> None:
    """Raise the error for the first op that `_is_in_order` refuses."""
    tensors = graph.tensors
    op_names: set[str] = set()
    produced_by: dict[str, str] = {}
    there = set(graph.inputs)
    for op in graph.ops:
        if op.name in op_names:
            raise GraphError(f"op {op.name!r} is defined twice", hint="give each op a name of its own")
        op_names.add(op.name)
        read = set(op.inputs)
        if own := read.intersection(op.outputs):
            raise GraphError(
                f"op {op.name!r} reads {min(own)!r}, which it produces itself",
                hint="take it, and views of it, from the op's inputs",
            )
        if len(read) != len(op.inputs):
            raise GraphError(f"op {op.name!r} names one tensor twice among its inputs", hint="name each tensor once")
        if not there.issuperset(read):
            _check_known(op.inputs, tensors, f"op {op.name!r} reads")
            raise _order_error(graph, op, next(name for name in op.inputs if name not in there))
        if not all(map(tensors.__contains__, op.outputs)):
            _check_known(op.outputs, tensors, f"op {op.name!r} produces")
        for name in op.outputs:
            if name in produced_by:
                raise GraphError(
                    f"tensor {name!r} is produced twice, by {produced_by[name]!r} and by {op.name!r}",
                    hint="each tensor has one producer; give the second result a name of its own",
                )
            produced_by[name] = op.name
        there.update(op.outputs)
        if op.inplace is not None or op.saves or op.grad_inputs:
            _check_roles(op)


def _check_outputs(graph: Graph) -> None:
    _check_known(graph.outputs, graph.tensors, "the outputs name")
    if len(set(graph.outputs)) != len(graph.outputs):
        twice = next(name for name, count in Counter(graph.outputs).items() if count > 1)
        raise GraphError(f"the outputs name {twice!r} twice", hint="name each output once")
    for name in (tensor.name for tensor in graph.tensors.values() if tensor.held):
        if name not in graph.outputs or (name in graph.producer and graph.producer[name].recomputable):
            raise GraphError(
                f"tensor {name!r} is held, but it is no output, or the op that makes it may run again",
                hint="name it among the outputs, and give that op recomputable: false; or take held away",
            )


def _check_known(names: Iterable[str], known: Mapping[str, object] | set[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise GraphError(f"{where} {name!r}, which is not in the graph", hint=_did_you_mean(name, known))


def _check_roles(op: Op) -> None:
    """Check the tensors named by `inplace`, `saves` and `grad_inputs`."""
    if op.inplace is not None and (op.inplace not in op.inputs or not op.outputs):
        raise GraphError(
            f"op {op.name!r} works in place on {op.inplace!r}, which is not one of its inputs"
            if op.outputs
            else f"op {op.name!r} works in place but has no output",
            hint="name one of its inputs, or take inplace away",
        )
    for name in op.saves or ():
        if name not in op.inputs and name not in op.outputs:
            raise GraphError(
                f"op {op.name!r} saves {name!r}, which is neither its input nor its output",
                hint="an op's backward reads some of that op's inputs and outputs",
            )
    for name in op.grad_inputs or ():
        if name not in op.inputs:
            raise GraphError(
                f"op {op.name!r} has {name!r} in grad_inputs, which is not one of its inputs",
                hint="name only inputs that receive a gradient",
            )


def _order_error(graph: Graph, op: Op, name: str) -> GraphError:
    cycle = find_cycle({other.name: [graph.producer[n].name for n in other.inputs if n in graph.producer]
                        for other in graph.ops})  # fmt: skip
    if cycle:
        return GraphError(
            f"the graph has a cycle: {describe_cycle(cycle)}",
            hint="a computation graph must be acyclic; unroll the loop, or remove one of these dependencies",
        )
    return GraphError(
        f"op {op.name!r} reads {name!r} before {graph.producer[name].name!r} has produced it",
        hint=f"list the ops in an order that can be executed: {graph.producer[name].name!r} before {op.name!r}",
    )


def find_cycle(predecessors: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the nodes of a cycle, in the direction of the data.

    The list is empty for a graph without cycles.
    """
    import networkx as nx  # needed for an error message only

    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_edges_from((source, node) for node, sources in predecessors.items() for source in sources)
    try:
        return [edge[0] for edge in nx.find_cycle(digraph)]
    except nx.NetworkXNoCycle:
        return []


def describe_cycle(cycle: Sequence[str], shown: int = 8) -> str:
    """Write a cycle as "a -> b -> c -> a".

    A long cycle is shown without its middle.
    """
    closed = [*cycle, cycle[0]]
    if len(closed) > shown + 1:
        closed = [*closed[: shown - 1], f"... ({len(cycle) - shown + 1} more)", closed[-1]]
    return " -> ".join(closed)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    # Matching against all names of a large graph would take longer than reading it.
    close = get_close_matches(name, list(known)[:5000], n=1)
    return f"did you mean {close[0]!r}?" if close else "define it, or correct the name"
