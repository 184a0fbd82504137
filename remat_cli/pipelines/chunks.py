"""Chunks of a training graph: one graph for each stretch of a model that a rank runs.

A chunk's graph has the chunk's forward ops, an op that stands for the turn between its passes, and its backward ops.
Tensors from other chunks are its inputs: torch's pipelining holds a receive buffer for each microbatch, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from remat_cli.core.graph import BOUNDARY_TYPE, Draft, Graph, Op, Phase, Tensor
from remat_cli.errors import UsageError

_TURN = "turn"
_SENT = "sent"


class JobKind(StrEnum):
    """A pass of a chunk for one microbatch; the value is its letter in torch's pipelining."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUTS = "I"  # the backward pass as far as gradients are sent that depend on it
    WEIGHTS = "W"  # the rest of the backward pass

    @property
    def sends_gradients(self) -> bool:
        """Whether earlier chunks wait for this pass."""
        return self in (JobKind.BACKWARD, JobKind.INPUTS)

    @property
    def is_last(self) -> bool:
        """Whether this pass frees all that its microbatch keeps."""
        return self in (JobKind.BACKWARD, JobKind.WEIGHTS)


@dataclass(frozen=True)
class Residents:
    """Memory of a step that stays between its microbatches.

    Attributes:
        parameters: bytes of each trained parameter by name; empty if the file does not tell them apart.
        read_by: parameters that each forward op reads, by the op's name.
        inputs: graph inputs that are parameters; all others hold data, once for each microbatch.
    """

    parameters: Mapping[str, int]
    read_by: Mapping[str, Sequence[str]]
    inputs: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Chunk:
    """A stretch of a training graph.

    Attributes:
        index: position in the order of the forward pass.
        graph: forward ops, the turn, and backward ops. It has no resident bytes; arriving tensors are inputs.
        turn: name of the op between the passes; it reads all that later chunks and the caller get.
        sent: name of the op between gradients of inputs and the rest; it reads the gradients that are sent. None if the
            backward pass is one job.
        first: name of the first forward op.
        resident_bytes: resident bytes on this chunk's rank, with parameters and a gradient of each.
        received_bytes: receive buffers and data of one microbatch.
        forward_from: bytes that the forward pass receives, by chunk.
        backward_from: bytes that the backward pass receives, by chunk.
    """

    index: int
    graph: Graph
    turn: str
    sent: str | None
    first: str
    resident_bytes: int
    received_bytes: int
    forward_from: Mapping[int, int]
    backward_from: Mapping[int, int]

    @property
    def kinds(self) -> tuple[JobKind, ...]:
        """The passes of each microbatch, in their order."""
        backward = (JobKind.BACKWARD,) if self.sent is None else (JobKind.INPUTS, JobKind.WEIGHTS)
        return (JobKind.FORWARD, *backward)

    def fixed_bytes(self, microbatches: int) -> int:
        """Return the bytes that this chunk takes on its rank from start to end."""
        return self.resident_bytes + microbatches * self.received_bytes


@dataclass(frozen=True)
class StageCuts:
    """Where a graph is cut.

    Attributes:
        first_ops: name of the first forward op of each chunk but the first one, in the order of the forward pass.
        split_backward: whether backward ops without part in the gradients that are sent may run later, as a job of
            their own.
    """

    first_ops: tuple[str, ...]
    split_backward: bool = False


def forward_ops(graph: Draft) -> tuple[Op, ...]:
    """Return the ops of the forward pass, in input order."""
    return tuple(op for op in graph.ops if op.phase is Phase.FORWARD)


def cut_graph(graph: Graph, cuts: StageCuts, residents: Residents) -> tuple[Chunk, ...]:
    """Cut a training graph into chunks.

    A backward op belongs to the chunk of the op that it differentiates; one that adds gradients up, to the earliest
    chunk among those of its addends.

    Args:
        graph: the training graph of one microbatch.
        cuts: where its forward pass is cut.
        residents: parameters, which take part in the chunks that read them.

    Raises:
        UsageError: the graph has no backward pass, a cut is unknown or out of order, or a cut crosses the backward
            pass, which would read a later chunk's forward pass.
    """
    chunk_of = chunk_numbers(graph, cuts)
    _check_flow(graph, chunk_of)
    return tuple(_chunk(graph, index, chunk_of, residents, cuts) for index in range(len(cuts.first_ops) + 1))


def chunk_numbers(graph: Draft, cuts: StageCuts) -> dict[str, int]:
    """Return the chunk of each op, by the op's name.

    Raises:
        UsageError: see `cut_graph`.
    """
    forward = forward_ops(graph)
    if len(forward) == len(graph.ops):
        raise UsageError(
            f"{graph.name}: a pipeline needs a graph with a backward pass, and this one has none",
            hint="plan a training step: an ONNX model in training mode, or a PyTorch step",
        )
    starts = _starts(graph, cuts, {op.name: position for position, op in enumerate(forward)})
    chunk_of: dict[str, int] = {}
    index = 0
    for position, op in enumerate(forward):
        index += index < len(starts) and position == starts[index]
        chunk_of[op.name] = index
    _add_backward_ops(graph, chunk_of, len(starts))
    return chunk_of


def _starts(graph: Draft, cuts: StageCuts, positions: Mapping[str, int]) -> list[int]:
    """Return the position of the first op of each chunk but the first."""
    for name in cuts.first_ops:
        if name not in positions:
            raise UsageError(
                f"{graph.name}: there is no forward op {name!r} to cut before",
                hint="name forward ops, as inspect lists",
            )
    starts = [positions[name] for name in cuts.first_ops]
    if any(after <= before for before, after in zip([0, *starts], starts, strict=False)):
        raise UsageError(
            f"{graph.name}: the cuts {', '.join(cuts.first_ops)} are not in the order of the forward pass",
            hint="name the first op of each stage but the first one, each once",
        )
    return starts


def _add_backward_ops(graph: Draft, chunk_of: dict[str, int], last: int) -> None:
    """Add the chunk of each backward op."""
    forward = set(chunk_of)
    touching: dict[str, int] = {}  # the last chunk whose forward pass makes or reads each tensor
    for op in forward_ops(graph):
        for name in (*op.inputs, *op.outputs):
            touching[name] = max(touching.get(name, 0), chunk_of[op.name])
    producer = graph.producer
    for op in graph.ops:
        if op.phase is Phase.FORWARD:
            continue
        before = [chunk_of[producer[name].name] for name in op.inputs if _is_gradient(producer.get(name))]
        if op.grad_of in forward:
            own = chunk_of[op.grad_of]
        elif before:
            own = min(before)
        else:
            own = max((touching[name] for name in op.inputs if name in touching), default=last)
        chunk_of[op.name] = min(own, *before) if before else own


def _is_gradient(op: Op | None) -> bool:
    return op is not None and op.phase is Phase.BACKWARD


def _check_flow(graph: Draft, chunk_of: Mapping[str, int]) -> None:
    """Check that a backward op reads nothing that only a later forward pass makes."""
    for op in graph.ops:
        for name in op.inputs:
            maker = graph.producer.get(name)
            if maker is not None and maker.phase is Phase.FORWARD and chunk_of[maker.name] > chunk_of[op.name]:
                raise UsageError(
                    f"{graph.name}: a cut crosses the backward pass: {op.name!r} of stage {chunk_of[op.name]} reads "
                    f"{name!r} of the forward pass of stage {chunk_of[maker.name]}",
                    hint="cut elsewhere, or let --cuts auto choose",
                )


def _chunk(graph: Graph, index: int, chunk_of: Mapping[str, int], residents: Residents, cuts: StageCuts) -> Chunk:
    """Return one chunk, with its graph."""
    producer = {name: chunk_of[op.name] for op in graph.ops for name in op.outputs}
    own = [op for op in graph.ops if chunk_of[op.name] == index]
    forward_from: dict[int, int] = {}
    backward_from: dict[int, int] = {}
    arrivals: dict[str, None] = {}
    for op in own:
        for name in op.inputs:
            origin = producer.get(name, index)
            if origin == index or name in arrivals:
                continue
            arrivals[name] = None
            received = backward_from if origin > index else forward_from
            received[origin] = received.get(origin, 0) + graph.tensors[name].bytes
    inputs = [name for name in graph.inputs if any(name in op.inputs for op in own)]
    sent = [
        name for op in own for name in op.outputs if any(chunk_of[to.name] != index for to in graph.consumers[name])
    ]
    sent_forward = [name for name in sent if graph.producer[name].phase is Phase.FORWARD]
    sent_back = [name for name in sent if graph.producer[name].phase is Phase.BACKWARD]
    results = [name for name in dict.fromkeys(graph.outputs) if producer.get(name) == index]
    handed = [name for name in results if graph.producer[name].phase is Phase.FORWARD]
    taken = {op.name for op in graph.ops} | set(graph.tensors)
    turn, sent_op = _unused(_TURN, taken), _unused(_SENT, taken) if cuts.split_backward else None
    forward = [op for op in own if op.phase is Phase.FORWARD]
    read = tuple(dict.fromkeys([*sent_forward, *handed])) or forward[-1].outputs
    makes = {name for op in own if op.phase is Phase.BACKWARD for name in op.outputs}
    backward = [
        op if makes.intersection(op.inputs) else op.edited(inputs=(*op.inputs, turn))
        for op in own
        if op.phase is Phase.BACKWARD
    ]
    turning = Op(turn, BOUNDARY_TYPE, read, (turn,), 0, phase=Phase.BACKWARD, recomputable=False)
    names = {op.name for op in own}
    # An op that adds gradients up may be said to be of an op in another chunk.
    backward = [op if op.grad_of in names else op.edited(grad_of=None) for op in backward]
    if sent_op is not None:
        backward = _with_sending(backward, sent_op, tuple(sent_back) or (turn,))
    ops = (*forward, turning, *backward)
    used = dict.fromkeys([*inputs, *arrivals, *(name for op in own for name in (*op.inputs, *op.outputs))])
    marks = (turn,) if sent_op is None else (turn, sent_op)
    tensors = {name: Tensor(name, 0) if name in marks else graph.tensors[name] for name in (*used, *marks)}
    outputs = tuple(dict.fromkeys([*handed, *(sent_back if sent_op is None else ()), *marks]))
    tensors = {name: _in_chunk(tensor, tensors, outputs) for name, tensor in tensors.items()}
    parameters = {name for op in own for name in residents.read_by.get(op.name, ())}
    weights = sum(graph.tensors[name].bytes for name in inputs if name in residents.inputs)
    gradients = sum(graph.tensors[name].bytes for name in results if name not in handed)
    return Chunk(
        index=index,
        graph=Graph(
            name=f"{graph.name} stage {index}",
            kind=graph.kind,
            time_unit=graph.time_unit,
            resident_bytes=0,
            tensors=tensors,
            ops=ops,
            outputs=outputs,
        ),
        turn=turn,
        sent=sent_op,
        first=forward[0].name,
        resident_bytes=_share(graph.resident_bytes, parameters, residents) + weights + gradients,
        received_bytes=sum(graph.tensors[name].bytes for name in (*inputs, *arrivals)) - weights,
        forward_from=forward_from,
        backward_from=backward_from,
    )


def _with_sending(backward: Sequence[Op], sent_op: str, read: tuple[str, ...]) -> list[Op]:
    """Return backward ops on which sent gradients depend, the op that stands for sending, and the others."""
    sending = Op(sent_op, BOUNDARY_TYPE, read, (sent_op,), 0, phase=Phase.BACKWARD, recomputable=False)
    needed, before = set(read), set()
    for op in reversed(backward):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            before.add(op.name)
    inputs = [op for op in backward if op.name in before]
    return [*inputs, sending, *(op for op in backward if op.name not in before)]


def _in_chunk(tensor: Tensor, known: Mapping[str, Tensor], outputs: Sequence[str]) -> Tensor:
    """Return a tensor as a chunk's graph has it.

    A view whose base is elsewhere is a tensor of its own, of 0 bytes. A gradient of a parameter is added to that of
    other microbatches, and not held.
    """
    return replace(
        tensor,
        view_of=tensor.view_of if tensor.view_of in known else None,
        held=tensor.held and tensor.name in outputs,
    )


def _share(resident_bytes: int, parameters: set[str], residents: Residents) -> int:
    """Return a chunk's part of the resident bytes, rounded up: by the parameters that it reads.

    Where parameters are not told apart, it is all of them.
    """
    total = sum(residents.parameters.values())
    if not total:
        return resident_bytes
    return -(-resident_bytes * sum(residents.parameters[name] for name in parameters) // total)


def _unused(name: str, names: set[str]) -> str:
    """Return a name that is not in use."""
    while name in names:
        name += "'"
    return name
