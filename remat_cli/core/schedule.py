"""Schedules: the steps of a device, and schedules from sequences of computes.

The steps and their effect on memory are those of the schedule format, `remat.schedule/1` (see `formats/README.md`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from remat_cli.core.graph import Graph, Op
from remat_cli.errors import InvalidSchedule


@dataclass(frozen=True, slots=True)
class Compute:
    """Run an op: it needs every input in memory and creates every output."""

    op: str


@dataclass(frozen=True, slots=True)
class Inplace:
    """Run an op in place: the first output takes over an input's storage.

    That input, `Op.inplace`, is gone afterwards.
    """

    op: str


@dataclass(frozen=True, slots=True)
class Free:
    """Drop the device copy of a tensor."""

    tensor: str


@dataclass(frozen=True, slots=True)
class Offload:
    """Start copying a tensor to the host; the device copy stays until it is freed."""

    tensor: str


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Start copying a tensor back to the device, which takes its memory at once."""

    tensor: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Let the compute stream wait for the tensor's last transfer."""

    tensor: str


Step = Compute | Inplace | Free | Offload | Prefetch | Wait
STEP_NAMES: Mapping[type[Step], str] = {
    Compute: "compute",
    Inplace: "inplace",
    Free: "free",
    Offload: "offload",
    Prefetch: "prefetch",
    Wait: "wait",
}


@dataclass(frozen=True)
class Schedule:
    """Steps in issue order.

    Attributes:
        steps: of the compute stream, and the transfers that it issues.
        on_host: residents that are on the host at the start of the step and at its end.
    """

    steps: tuple[Step, ...]
    on_host: tuple[str, ...] = ()

    @property
    def computes(self) -> tuple[str, ...]:
        """Names of the ops that run, in order, in place or not."""
        return tuple(step.op for step in self.steps if isinstance(step, Compute | Inplace))

    @property
    def has_transfers(self) -> bool:
        """Whether the schedule moves tensors to the host."""
        return any(isinstance(step, Offload | Prefetch) for step in self.steps)


def input_order(graph: Graph) -> tuple[str, ...]:
    """Return the computes of the plain run: every op once, in input order."""
    return tuple(op.name for op in graph.ops)


@lru_cache(maxsize=4)
def plain_run(graph: Graph) -> Schedule:
    """Return the plain run: every op once, each tensor freed early.

    The ops run in the input order, and each tensor is freed at its last use. Only tensors marked `Tensor.lasts` stay to
    the end.
    """
    schedule = with_frees(graph, input_order(graph))
    if not graph.lasting:
        return schedule
    lasting = graph.lasting
    return Schedule(tuple(step for step in schedule.steps if type(step) is not Free or step.tensor not in lasting))


def renamed(schedule: Schedule, graph: Graph, other: Graph) -> Schedule | None:
    """Return a schedule of a graph in the names of an equal graph.

    Args:
        schedule: the schedule.
        graph: its graph.
        other: a graph with the same ops and sizes in the same order.

    Returns:
        The schedule; None if the graphs differ.
    """
    ops: dict[str, str] = {}
    tensors: dict[str, str] = {}
    if len(graph.ops) != len(other.ops):
        return None
    for one, another in zip(graph.ops, other.ops, strict=True):
        counts = [(op.type, len(op.inputs), len(op.outputs)) for op in (one, another)]
        if counts[0] != counts[1]:
            return None
        ops[one.name] = another.name
        for name, its in zip((*one.inputs, *one.outputs), (*another.inputs, *another.outputs), strict=True):
            if tensors.setdefault(name, its) != its or graph.tensors[name].bytes != other.tensors[its].bytes:
                return None
    steps = (
        type(step)(ops[step.op]) if isinstance(step, Compute | Inplace) else type(step)(tensors[step.tensor])
        for step in schedule.steps
    )
    return Schedule(tuple(steps), tuple(tensors[name] for name in schedule.on_host))


def inputs_at_start(graph: Graph, schedule: Schedule) -> tuple[str, ...]:
    """Return the graph inputs in device memory before the first step: all but residents on the host."""
    if not schedule.on_host:
        return graph.inputs
    return tuple(name for name in graph.inputs if name not in schedule.on_host)


def changes(graph: Graph, step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tensors that a step adds to device memory, and those that it removes."""
    match step:
        case Compute(op=name):
            return graph.op[name].outputs, ()
        case Inplace(op=name):
            op = graph.op[name]
            return op.outputs, () if op.inplace is None else (op.inplace,)
        case Prefetch(tensor=name):
            return (name,), ()
        case Free(tensor=name):
            return (), (name,)
        case _:
            return (), ()


def live_at(graph: Graph, schedule: Schedule, index: int) -> tuple[str, ...]:
    """Return the tensors in memory while step `index` runs.

    The schedule is valid; graph inputs are left out, residents too.
    """
    live: dict[str, None] = {}  # keeps the order
    for step in schedule.steps[: index + 1]:
        if type(step) is Free:  # half of all steps
            live.pop(step.tensor, None)  # a resident may be freed, too
            continue
        arriving, leaving = changes(graph, step)
        for name in leaving:
            del live[name]
        live.update(dict.fromkeys(arriving))
    return tuple(name for name in live if name in graph.producer)


def with_frees(graph: Graph, computes: Iterable[str]) -> Schedule:
    """Return the schedule of a sequence of computes with the earliest frees.

    Each instance of a tensor (from a run of its producer to the next one) is freed right after the last step that reads
    it; an instance that no step reads, right after its producer; graph outputs never after their last instance; graph
    inputs never. An op that can work in place does so where that saves memory: its input's instance ends with it.

    Raises:
        InvalidSchedule: an op is not in the graph. (The simulator checks that inputs are in memory.)
    """
    known = graph.op
    ops = [known.get(name) or _known(graph, name, position) for position, name in enumerate(computes)]
    steps: list[Step] = []
    for op, ending in zip(ops, _ending(graph, ops), strict=True):
        taken = None if op.inplace is None else _taken_over(graph, op, ending)
        steps.append(Compute(op.name) if taken is None else Inplace(op.name))
        for name in ending:
            if name != taken:
                steps.append(Free(name))
    return Schedule(tuple(steps))


def _known(graph: Graph, name: str, position: int) -> Op:
    op = graph.op.get(name)
    if op is None:
        raise InvalidSchedule(f"step {position}: op {name!r} is not in graph {graph.name!r}", step=position)
    return op


def _ending(graph: Graph, ops: Sequence[Op]) -> list[list[str]]:
    """For each run of an op, return the tensors that it is the last to use."""
    ending: list[list[str]] = []
    # Walking backwards: a tensor in `needed` is read before it is recomputed, or stays alive to the end.
    needed = {*graph.inputs, *graph.outputs}
    for op in reversed(ops):
        unread = [name for name in op.outputs if name not in needed]
        needed.difference_update(op.outputs)
        last_read = [name for name in op.inputs if name not in needed]
        needed.update(last_read)
        ending.append(last_read + unread)
    return ending[::-1]


def _taken_over(graph: Graph, op: Op, ending: Sequence[str]) -> str | None:
    """Return the input whose storage the first output takes over.

    None: the op cannot work in place, or that saves nothing.
    """
    if op.inplace is None or op.inplace not in ending:
        return None
    shared = min(graph.tensors[op.inplace].bytes, graph.tensors[op.outputs[0]].bytes)
    return op.inplace if shared > 0 else None
