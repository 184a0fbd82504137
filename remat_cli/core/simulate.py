"""The judge: replays a schedule, checks every rule, and measures memory and time.

It is written the slow, obvious way and shares nothing with the planners.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from remat_cli.core.graph import Graph, Op
from remat_cli.core.link import Direction, Duplex, Link
from remat_cli.core.schedule import STEP_NAMES, Compute, Free, Inplace, Offload, Prefetch, Schedule, Step
from remat_cli.errors import InvalidSchedule
from remat_cli.settings import Setting, Wording


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of a tensor between device and host.

    Attributes:
        tensor: name of the tensor.
        direction: to the host or to the device.
        start: time at which the link begins the copy, in the graph's time unit.
        end: time at which the copy is complete.
        bytes: size of the tensor.
        step: index of the step that issues it.
    """

    tensor: str
    direction: Direction
    start: int
    end: int
    bytes: int
    step: int


@dataclass(frozen=True)
class Trace:
    """The measured memory and time of a valid schedule.

    Attributes:
        memory_bytes: [steps + 1] device memory while each step runs, in bytes; the first entry is the start, with only
            resident bytes and graph inputs that are not on the host.
        times: [steps + 1] end of the compute stream after each step, in the graph's time unit; the first entry is 0.
        idle_time: the part of `time` in which the compute stream waited for the link.
        runs: number of runs of each op.
        transfers: in issue order.
        link: the link of the transfers; None if none was given.
    """

    memory_bytes: tuple[int, ...]
    times: tuple[int, ...]
    idle_time: int
    runs: dict[str, int]
    transfers: tuple[Transfer, ...] = ()
    link: Link | None = None

    @property
    def time(self) -> int:
        """End of the compute stream."""
        return self.times[-1]

    @cached_property
    def peak_bytes(self) -> int:
        """The largest memory of any step."""
        return max(self.memory_bytes)

    @cached_property
    def peak_step(self) -> int:
        """Index of the first step that reaches the peak; -1 for the start."""
        return self.memory_bytes.index(self.peak_bytes) - 1

    @property
    def recomputations(self) -> int:
        """Number of runs beyond the first of each op."""
        return sum(self.runs.values()) - len(self.runs)

    @property
    def recomputed_ops(self) -> int:
        """Number of ops that run more than once."""
        return sum(1 for runs in self.runs.values() if runs > 1)

    def moved_bytes(self, direction: Direction) -> int:
        """Bytes copied in this direction."""
        return sum(transfer.bytes for transfer in self.transfers if transfer.direction is direction)

    def busy_time(self, direction: Direction) -> int:
        """Time that the link spends on copies in this direction.

        Copies that outlast the compute stream count in full.
        """
        return sum(transfer.end - transfer.start for transfer in self.transfers if transfer.direction is direction)


@dataclass(slots=True)
class _Device:
    """The device between two steps."""

    graph: Graph
    link: Link | None
    fixed_bytes: int
    live: set[str]  # tensors in device memory: graph inputs, which stay, residents, and outputs of ops
    live_bytes: int = 0  # bytes of the residents and of the outputs of ops in memory
    runs: dict[str, int] = field(default_factory=dict)
    on_host: set[str] = field(default_factory=set)  # tensors with a host copy that holds their value
    written_by: dict[str, str] = field(default_factory=dict)  # the update of each resident that has been written
    offloading: set[str] = field(default_factory=set)  # tensors whose offload has not been waited for
    prefetching: set[str] = field(default_factory=set)  # tensors whose prefetch has not been waited for
    transfer_end: dict[str, int] = field(default_factory=dict)  # end of each tensor's last transfer
    step: int = 0  # index of the current step
    now: int = 0  # end of the compute stream
    # End of each queue of the link. A queue makes one transfer at a time, first in first out.
    queue_ends: dict[Direction | None, int] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)
    idle_time: int = 0

    def memory(self) -> int:
        return self.fixed_bytes + self.live_bytes

    def add(self, name: str) -> None:
        if name not in self.live:
            self.live.add(name)
            self.live_bytes += self.graph.tensors[name].bytes

    def remove(self, name: str) -> None:
        self.live.remove(name)
        self.live_bytes -= self.graph.tensors[name].bytes


def simulate(graph: Graph, schedule: Schedule, *, link: Link | None = None) -> Trace:
    """Replay `schedule` on `graph`, and measure its memory and time.

    Args:
        graph: the graph that the schedule executes.
        schedule: steps in issue order.
        link: the link to the host, needed only for schedules with transfers. A half-duplex link makes one transfer at a
            time, in issue order; a full-duplex link makes one in each direction.

    Raises:
        InvalidSchedule: a step breaks a rule, and the error names the first such step; or, at the end, an op never ran
            or an output is not in memory.
    """
    device = _device_at_start(graph, schedule, link)
    memory, times = [device.memory()], [device.now]
    for index, step in enumerate(schedule.steps):
        device.step = index
        try:
            memory.append(_execute(device, step))
        except _Broken as broken:
            name = step.op if isinstance(step, Compute | Inplace) else step.tensor
            raise InvalidSchedule(
                f"step {index} ({STEP_NAMES[type(step)]} {name!r}): {broken.rule}", step=index, hint=broken.remedy
            ) from None
        times.append(device.now)
    _check_end(device)
    _check_residents_at_end(device, schedule)
    return Trace(
        memory_bytes=tuple(memory),
        times=tuple(times),
        idle_time=device.idle_time,
        runs=device.runs,
        transfers=tuple(device.transfers),
        link=link,
    )


def _device_at_start(graph: Graph, schedule: Schedule, link: Link | None) -> _Device:
    """Return a device that holds the graph inputs, except residents on the host."""
    for name in schedule.on_host:
        if name not in graph.residents:
            raise InvalidSchedule(
                f"at the start: tensor {name!r} is on the host, but is no resident of the graph",
                hint="only parameters and optimizer state may start there; is this schedule for another graph?",
            )
    on_host = set(schedule.on_host)
    fixed_bytes = graph.fixed_bytes - sum(graph.tensors[name].bytes for name in graph.residents)
    live_bytes = sum(graph.tensors[name].bytes for name in graph.residents if name not in on_host)
    live = set(graph.inputs) - on_host
    return _Device(graph, link, fixed_bytes, live, live_bytes, on_host=on_host)


class _Broken(Exception):
    """A step breaks a rule."""

    def __init__(self, rule: str, remedy: Wording = "") -> None:
        super().__init__(rule)
        self.rule = rule
        self.remedy = remedy


def _execute(device: _Device, step: Step) -> int:
    """Execute one step, and return the memory in use meanwhile."""
    if isinstance(step, Compute):
        return _compute(device, _op(device, step.op))
    if isinstance(step, Inplace):
        return _compute_inplace(device, _op(device, step.op))
    if isinstance(step, Free):
        _free(device, step.tensor)
    elif isinstance(step, Offload):
        _offload(device, step.tensor)
    elif isinstance(step, Prefetch):
        _prefetch(device, step.tensor)
    else:
        _wait(device, step.tensor)
    return device.memory()


def _op(device: _Device, name: str) -> Op:
    op = device.graph.op.get(name)
    if op is None:
        raise _Broken(f"the graph has no op {name!r}", "is this schedule for another graph?")
    return op


def _check_tensor(device: _Device, name: str) -> None:
    if name not in device.graph.tensors:
        raise _Broken(f"the graph has no tensor {name!r}", "is this schedule for another graph?")


def _is_graph_input(device: _Device, name: str) -> bool:
    return name not in device.graph.producer


def _is_resident(device: _Device, name: str) -> bool:
    return device.graph.tensors[name].resident is not None


def _check_in_memory(device: _Device, names: tuple[str, ...]) -> None:
    if device.live.issuperset(names) and device.prefetching.isdisjoint(names):
        return
    for name in names:
        if name not in device.live:
            producer = device.graph.producer.get(name)
            remedy = "prefetch it first" if producer is None else f"run {producer.name!r} or prefetch it first"
            raise _Broken(f"tensor {name!r} is not in memory", remedy)
        if name in device.prefetching:
            raise _Broken(f"the prefetch of tensor {name!r} has not been waited for", "wait for it first")


def _check_can_run(device: _Device, op: Op) -> None:
    _check_in_memory(device, op.inputs)
    if device.offloading or device.prefetching:
        for name in op.outputs:
            if name in device.offloading or name in device.prefetching:
                raise _Broken(f"its output {name!r} is being transferred", "wait for the transfer first")
    if not op.recomputable and op.name in device.runs:
        raise _Broken("the op must run exactly once (recomputable: false) and has run before")
    for name in op.inputs if device.written_by else ():
        if name in device.written_by:
            raise _Broken(
                f"{device.written_by[name]!r} has written {name!r}, so its old value is gone", "run that update later"
            )
    for name in op.writes:
        if name in device.offloading:
            raise _Broken(f"it would write {name!r}, whose offload has not been waited for", "wait for it first")


def _run(device: _Device, op: Op) -> None:
    device.runs[op.name] = device.runs.get(op.name, 0) + 1
    device.now += op.time
    for name in op.writes:
        device.written_by[name] = op.name
        device.on_host.discard(name)


def _compute(device: _Device, op: Op) -> int:
    _check_can_run(device, op)
    for name in op.outputs:
        device.add(name)
    _run(device, op)
    return device.memory() + op.workspace_bytes


def _compute_inplace(device: _Device, op: Op) -> int:
    if op.inplace is None:
        raise _Broken("the op cannot work in place: it has no inplace input in the graph", "use compute")
    _check_can_run(device, op)
    taken, output = op.inplace, op.outputs[0]
    if _is_graph_input(device, taken):
        raise _Broken(f"it would take over graph input {taken!r}, which stays from start to end", "use compute")
    if taken in device.offloading:
        raise _Broken(f"it would take over {taken!r}, whose offload has not been waited for", "wait for it first")
    if output in device.live:
        raise _Broken(f"its first output {output!r} is in memory already", "free that, or use compute")
    for name in op.outputs[1:]:
        device.add(name)
    # While the op runs, the larger of input and output counts: before + max(0, output - input).
    before = device.memory()
    growth = max(0, device.graph.tensors[output].bytes - device.graph.tensors[taken].bytes)
    device.remove(taken)
    device.add(output)
    _run(device, op)
    return before + growth + op.workspace_bytes


def _free(device: _Device, name: str) -> None:
    _check_tensor(device, name)
    if _is_graph_input(device, name) and not _is_resident(device, name):
        raise _Broken(f"tensor {name!r} is a graph input, which stays from start to end")
    if device.graph.tensors[name].held:
        raise _Broken(f"tensor {name!r} is held from outside of the graph, and stays once it is made")
    if name not in device.live:
        raise _Broken(f"tensor {name!r} is not in memory", "it was freed before, or never made")
    if name in device.offloading:
        raise _Broken(f"the offload of tensor {name!r} has not been waited for", "wait for it first")
    if name in device.prefetching:
        raise _Broken(f"the prefetch of tensor {name!r} has not been waited for", "wait for it first")
    if _is_resident(device, name) and name not in device.on_host:
        raise _Broken(f"resident {name!r} has no current host copy, and would be lost", "offload it first")
    device.remove(name)


def _offload(device: _Device, name: str) -> None:
    _check_tensor(device, name)
    _check_in_memory(device, (name,))
    if name in device.offloading:
        raise _Broken(f"tensor {name!r} is being offloaded already", "wait for that first")
    if device.graph.tensors[name].held:
        raise _Broken(f"tensor {name!r} is held from outside of the graph, and cannot leave the device")
    _transfer(device, name, Direction.TO_HOST)
    device.offloading.add(name)
    device.on_host.add(name)


def _prefetch(device: _Device, name: str) -> None:
    _check_tensor(device, name)
    if name in device.live:
        raise _Broken(f"tensor {name!r} is in device memory already", "free the device copy first")
    if name not in device.on_host:
        raise _Broken(f"tensor {name!r} has no host copy", "offload it first")
    # The host copy is complete: the step that freed the device copy had waited for the offload.
    _transfer(device, name, Direction.TO_DEVICE)
    device.prefetching.add(name)
    device.add(name)


def _wait(device: _Device, name: str) -> None:
    _check_tensor(device, name)
    if name not in device.transfer_end:
        raise _Broken(f"tensor {name!r} was never transferred", "there is nothing to wait for")
    device.offloading.discard(name)
    device.prefetching.discard(name)
    end = device.transfer_end[name]
    device.idle_time += max(0, end - device.now)
    device.now = max(device.now, end)


def _transfer(device: _Device, name: str, direction: Direction) -> None:
    """Queue a copy on the link.

    The copy starts once it is issued and its queue is free.
    """
    if device.link is None:
        raise _Broken(
            "the schedule has transfers, but the link's bandwidth is not known",
            ("give ", Setting("link_bandwidth", "12GB/s")),
        )
    queue = direction if device.link.duplex is Duplex.FULL else None
    size = device.graph.tensors[name].bytes
    start = max(device.now, device.queue_ends.get(queue, 0))
    end = start + device.link.transfer_time(size)
    device.queue_ends[queue] = device.transfer_end[name] = end
    device.transfers.append(Transfer(name, direction, start, end, size, device.step))


def _check_end(device: _Device) -> None:
    for op in device.graph.ops:
        if op.name not in device.runs:
            raise InvalidSchedule(f"at the end: op {op.name!r} was never run", hint="every op runs at least once")
    for name in device.graph.outputs:
        try:
            _check_in_memory(device, (name,))
        except _Broken as broken:
            raise InvalidSchedule(
                f"at the end: output {name!r} is needed there, but {broken.rule}", hint=broken.remedy
            ) from None


def _check_residents_at_end(device: _Device, schedule: Schedule) -> None:
    """Check that each resident is where it started."""
    for name in device.graph.residents:
        is_there = name in device.live and name not in device.prefetching
        if name in schedule.on_host and name in device.live:
            raise InvalidSchedule(
                f"at the end: resident {name!r} started on the host, and is in device memory",
                hint="offload it if it was written, and free the device copy; or take it from on_host",
            )
        if name not in schedule.on_host and not is_there:
            raise InvalidSchedule(
                f"at the end: resident {name!r} started in device memory, and is not there",
                hint="prefetch it and wait for it, or name it in on_host",
            )
