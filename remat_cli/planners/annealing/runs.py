"""A sequence that moves change, with the memory and time of each move.

Moves give runs other places, add runs and drop runs. Every instance of a tensor has a producing run and reading runs,
and moves keep these ties; so a run has places like an op in a sequence without recomputation. Laying out the sequence
again gives each reader the latest instance before it, and drops useless runs.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.orders.moves import Bytes, Line, Uses, above, levels
from remat_cli.planners.shared.sequence import RematSequence


class GraphLists(NamedTuple):
    """A graph as plain lists, for quick look-ups of single entries.

    Tensors of 0 bytes are included; reads of graph inputs are left out.

    Attributes:
        producer: op that produces each tensor; -1 for graph inputs.
        size: bytes of each tensor.
        is_output: for each tensor, whether it is an output of the graph, other than an input.
        reads: tensors that each op reads.
        makes: tensors that each op produces.
        time: time of each op.
        own_bytes: bytes of each op's outputs and workspace.
        can_rerun: for each op, whether it may run again.
    """

    producer: list[int]
    size: list[int]
    is_output: list[bool]
    reads: list[list[int]]
    makes: list[list[int]]
    time: list[int]
    own_bytes: list[float]
    can_rerun: list[bool]

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, graph: Graph) -> GraphLists:
        """List `graph`, and cache the lists."""
        arrays = graph.arrays
        producer: list[int] = arrays.producer.tolist()
        size: list[int] = arrays.tensor_bytes.tolist()
        workspace = arrays.workspace_bytes.tolist()
        outputs = zip(workspace, arrays.outputs, strict=True)
        return cls(
            producer=producer,
            size=size,
            is_output=(arrays.is_output & (arrays.producer >= 0)).tolist(),
            reads=[[tensor for tensor in row if producer[tensor] >= 0] for row in arrays.inputs],
            makes=[list(row) for row in arrays.outputs],
            time=arrays.op_time.tolist(),
            own_bytes=[float(sum((size[tensor] for tensor in row), start)) for start, row in outputs],
            can_rerun=arrays.recomputable.tolist(),
        )


class Pause(NamedTuple):
    """The time between two uses of an instance.

    Attributes:
        instance: number of the instance.
        after: the last run before the pause that produces or reads it.
        before: the first run after the pause that reads it; -1 for the end.
    """

    instance: int
    after: int
    before: int


class Remake(NamedTuple):
    """The reruns that recompute a tensor at the end of a pause.

    The tensor then need not be kept through the pause.

    Attributes:
        instance: the instance that is not kept.
        end: position of the reader after the pause, before which the new runs come.
        ops: the ops to run, in order.
        kept: instance of each tensor that these ops read without producing it.
        start: position after which memory changes.
        change: [end - start] bytes added before each of the stages after `start` up to the end.
        excess: memory minus the room at the stages after `start` up to the end, then during the new runs.
        between: memory minus the room before each new run.
        lacking: growth of the bytes above the room, over all stages.
        time: time of the new runs.
    """

    instance: int
    end: int
    ops: list[int]
    kept: dict[int, int]
    start: int
    change: Bytes
    excess: Bytes
    between: list[float]
    lacking: float
    time: int


class Omission(NamedTuple):
    """The effect of dropping a run.

    Attributes:
        run: number of the run.
        at: its position.
        start: position from which on memory changes.
        change: [at + 1 - start] bytes added before each stage from there to the run.
        relief: bytes saved at each stage after the run where two instances of its outputs were alive.
        excess: memory minus the room at the stages from `start` to the last of those, without the run.
        handed: pairs of a used instance of the run and the instance that replaces it.
        lacking: growth of the bytes above the room, over all stages.
        time: time saved, including that of runs that become useless.
    """

    run: int
    at: int
    start: int
    change: Bytes
    relief: Bytes
    excess: Bytes
    handed: list[tuple[int, int]]
    lacking: float
    time: int


class RunLine(Line):
    """A sequence that moves change, as a line of numbered runs.

    Savings from working in place are those of the original layout; new runs save none.

    Attributes:
        lists: the graph as plain lists.
        op: op of each run.
        inputs: instances that each run reads.
        outputs: instances that each run produces.
        maker: run that produces each instance.
        tensor: tensor of each instance.
        readers: runs that read each instance, in any order.
        is_kept: for each instance, whether it is needed at the end.
    """

    def __init__(self, sequence: RematSequence, room: int) -> None:
        """Lay out a sequence.

        Args:
            sequence: a sequence in which every op finds its inputs.
            room: bytes for outputs of ops: the budget without the graph's fixed bytes.
        """
        self.lists = GraphLists.of(sequence.graph)
        self._reads = sequence.reads
        self.op: list[int] = sequence.ops.tolist()
        count = len(self.op)
        self.order = np.arange(count)
        self.position = np.arange(2 * count)
        self._tie()
        size = np.array([self.lists.size[tensor] for tensor in self.tensor], dtype=np.float64)
        last = np.fromiter(map(self.last_read, range(len(self.maker))), dtype=np.int64, count=len(self.maker))
        self.between = levels(np.array(self.maker, dtype=np.int64), last, size, count) - room
        own = np.array([self.lists.own_bytes[op] for op in self.op]) - sequence.shared_bytes
        self.excess = self.between[:-1] + own
        self._own: list[float] = own.tolist()
        self._uses_of: dict[int, Uses] = {}

    def _tie(self) -> None:
        """Give each reader the latest instance before its run."""
        self.maker: list[int] = []
        self.tensor: list[int] = []
        self.readers: list[list[int]] = []
        self.is_kept: list[bool] = []
        self.inputs: list[list[int]] = []
        self.outputs: list[list[int]] = []
        self._instances: list[list[int]] = [[] for _ in self.lists.size]
        self._runs_of: list[list[int]] = [[] for _ in self.lists.time]
        latest: dict[int, int] = {}
        for run, op in enumerate(self.op):
            self._add(run, op, latest)
        for tensor, instance in latest.items():
            self.is_kept[instance] = self.lists.is_output[tensor]

    def _add(self, run: int, op: int, latest: dict[int, int]) -> None:
        """Add a run that reads the instances in `latest`.

        Its own instances replace theirs in `latest`.
        """
        inputs = [latest[tensor] for tensor in self.lists.reads[op]]
        for instance in inputs:
            self.readers[instance].append(run)
        new = range(len(self.maker), len(self.maker) + len(self.lists.makes[op]))
        for instance, tensor in zip(new, self.lists.makes[op], strict=True):
            latest[tensor] = instance
            self._instances[tensor].append(instance)
            self.maker.append(run)
            self.tensor.append(tensor)
            self.readers.append([])
            self.is_kept.append(False)
        self.inputs.append(inputs)
        self.outputs.append(list(new))
        self._runs_of[op].append(run)

    @property
    def sequence(self) -> RematSequence:
        """The current sequence, without useless runs."""
        ops = np.array(self.op, dtype=np.int64)[self.order]
        return RematSequence(self._reads, ops).without_useless_runs()

    def is_there(self, run: int) -> bool:
        """Tell whether the run is still in the sequence."""
        return run in self._runs_of[self.op[run]]

    def has_twin(self, run: int) -> bool:
        """Tell whether the run's op has other runs."""
        return len(self._runs_of[self.op[run]]) > 1

    def last_read(self, instance: int) -> int:
        """Return the position of an instance's last read.

        This is the end for a kept instance, and its producer's position for one without readers.
        """
        if self.is_kept[instance]:
            return len(self.order)
        where = self.position.item
        readers = self.readers[instance]
        return max(map(where, readers)) if readers else where(self.maker[instance])

    def latest(self, tensor: int, before: int) -> int | None:
        """Return the latest instance of a tensor before a position."""
        where, maker = self.position.item, self.maker
        last, latest = -1, None
        for instance in self._instances[tensor]:
            if last < (at := where(maker[instance])) < before:
                last, latest = at, instance
        return latest

    # The moves to try in a fresh layout

    def restless(self) -> Ints:
        """Return the runs that can move across a stage that lacks memory."""
        readers = np.repeat(np.arange(len(self.inputs)), [len(row) for row in self.inputs])
        makers = np.array([self.maker[instance] for row in self.inputs for instance in row], dtype=np.int64)
        return np.flatnonzero(self._can_matter(makers, readers))

    def twins(self) -> list[int]:
        """Return the runs of all ops that run more than once."""
        return [run for runs in self._runs_of if len(runs) > 1 for run in runs]

    def pauses(self) -> list[Pause]:
        """Return the pauses during which memory is lacking."""
        lacking: list[int] = np.concatenate([[0], np.cumsum(self.excess > 0)]).tolist()
        end = len(self.order)
        pauses = []
        for instance, readers in enumerate(self.readers):
            maker = self.maker[instance]
            if self.lists.size[self.tensor[instance]] and self.lists.can_rerun[self.op[maker]]:
                reads = [maker, *readers, end] if self.is_kept[instance] else [maker, *readers]
                pauses += [
                    Pause(instance, after, before if before < end else -1)
                    for after, before in pairwise(reads)
                    if lacking[before] > lacking[after + 1]
                ]
        return pauses

    # Places

    def _uses(self, item: int) -> Uses:
        uses = self._uses_of.get(item)
        if uses is None:
            uses = self._uses_of[item] = self._gathered(item)
        return uses

    def _gathered(self, run: int) -> Uses:
        size, tensor = self.lists.size, self.tensor
        users: list[int] = []
        start: list[int] = []
        sizes: list[float] = []
        for instance in self.inputs[run]:
            if size[tensor[instance]] and not self.is_kept[instance]:
                start.append(len(users))
                sizes.append(size[tensor[instance]])
                users.append(self.maker[instance])
                users += [reader for reader in self.readers[instance] if reader != run]
        outputs = self.outputs[run]
        held = sum(size[tensor[instance]] for instance in outputs if self.readers[instance] or self.is_kept[instance])
        return Uses(
            before=np.array([self.maker[instance] for instance in self.inputs[run]], dtype=np.int64),
            after=np.array([reader for instance in outputs for reader in self.readers[instance]], dtype=np.int64),
            users=np.array(users, dtype=np.int64),
            users_start=np.array(start, dtype=np.int64),
            input_bytes=np.array(sizes, dtype=np.float64),
            held_bytes=float(held),
            own_bytes=self._own[run],
        )

    def _share(self, item: int, ends: Ints, first: int, now: int, excess: Bytes) -> None:
        """Do nothing: a run's own bytes include its savings in place."""

    def _forget(self, instance: int) -> None:
        """Forget the cached uses of an instance's producer and readers.

        Call this when they change.
        """
        for run in (self.maker[instance], *self.readers[instance]):
            self._uses_of.pop(run, None)

    def _hand_over(self, instance: int, readers: list[int], to: int) -> None:
        """Let `readers` read another instance of the same tensor.

        That instance is kept at the end if the old one was.
        """
        self._forget(instance)
        stay = set(self.readers[instance]) - set(readers)
        self.readers[instance] = [reader for reader in self.readers[instance] if reader in stay]
        self.readers[to] = self.readers[to] + readers
        self.is_kept[to], self.is_kept[instance] = self.is_kept[to] or self.is_kept[instance], False
        for reader in readers:
            inputs = self.inputs[reader]
            inputs[inputs.index(instance)] = to
        self._forget(to)

    # Adding runs

    def span(self, pause: Pause) -> tuple[int, int] | None:
        """Return the positions around a pause; None if moves have ended the pause."""
        instance, after, before = pause
        where, readers = self.position.item, self.readers[instance]
        is_there = self.is_there(self.maker[instance]) and (after == self.maker[instance] or after in readers)
        if not is_there or not (before in readers or (before < 0 and self.is_kept[instance])):
            return None
        begin, end = where(after), len(self.order) if before < 0 else where(before)
        is_pause = end - begin > 1 and not any(begin < where(reader) < end for reader in readers)
        return (begin, end) if is_pause else None

    def add(self, remake: Remake) -> None:
        """Add the reruns at the end of a pause."""
        instance, end, start = remake.instance, remake.end, remake.start
        late = [reader for reader in self.readers[instance] if self.position[reader] >= end]
        latest = dict(remake.kept)
        new = np.arange(len(self.op), len(self.op) + len(remake.ops))
        for run, op in zip(new.tolist(), remake.ops, strict=True):
            self.op.append(op)
            self._own.append(self.lists.own_bytes[op])
            self._add(run, op, latest)
            for read in self.inputs[run]:
                self._forget(read)
        self._hand_over(instance, late, latest[self.tensor[instance]])
        self.between[start + 1 : end + 1] += remake.change
        after = self.between[end] - remake.change[-1]
        self.between = np.concatenate([self.between[:end], remake.between, [after], self.between[end + 1 :]])
        self.excess = np.concatenate([self.excess[: start + 1], remake.excess, self.excess[end:]])
        self.order = np.concatenate([self.order[:end], new, self.order[end:]])
        if len(self.op) > len(self.position):
            self.position = np.concatenate([self.position, np.zeros(len(self.op), dtype=np.int64)])
        self.position[self.order[end:]] = np.arange(end, len(self.order))

    # Dropping runs

    def omission(self, run: int) -> Omission | None:
        """Return the effect of dropping a run.

        None if its readers have no other instance to read.
        """
        at = self.position.item(run)
        handed = self._handed(run)
        if handed is None:
            return None
        size = self.lists.size
        steps = [(self.last_read(other) + 1, size[self.tensor[other]]) for _, other in handed]
        steps += [
            (self._last_other(instance, run) + 1, -size[self.tensor[instance]])
            for instance in self.inputs[run]
            if self.last_read(instance) == at
        ]
        start = min([at, *(begin for begin, _ in steps)])
        change = np.zeros(at + 1 - start)
        for begin, by in steps:
            if begin <= at:
                change[begin - start] += by
        change = np.cumsum(change)
        relief = self._relief(at, handed)
        stop = at + 1 + len(relief)
        after = self.excess[at + 1 : stop]
        excess = np.concatenate([self.excess[start:at] + change[:-1], after - relief[: len(after)]])
        lacking = above(excess) - above(self.excess[start:stop])
        time = sum(self.lists.time[self.op[each]] for each in self._useless_without(run))
        return Omission(run, at, start, change, relief, excess, handed, lacking, time)

    def _handed(self, run: int) -> list[tuple[int, int]] | None:
        """Pair each used instance of a run with the one before.

        None if there is none before.
        """
        at = self.position.item(run)
        handed = []
        for instance in self.outputs[run]:
            if self.readers[instance] or self.is_kept[instance]:
                other = self.latest(self.tensor[instance], at)
                if other is None:
                    return None
                handed.append((instance, other))
        return handed

    def _relief(self, at: int, handed: list[tuple[int, int]]) -> Bytes:
        """Return the bytes saved at each stage after a dropped run."""
        ends = [(min(self.last_read(instance), self.last_read(other)), other) for instance, other in handed]
        relief = np.zeros(max([at, *(end for end, _ in ends)]) - at)
        for end, other in ends:
            relief[: max(end - at, 0)] += self.lists.size[self.tensor[other]]
        return relief

    def _last_other(self, instance: int, run: int) -> int:
        """Return the position of an instance's last read by another run."""
        where = self.position.item
        others = [where(reader) for reader in self.readers[instance] if reader != run]
        return max(others, default=where(self.maker[instance]))

    def _useless_without(self, run: int) -> set[int]:
        """Return the run, and all runs that only it needs.

        Indirect needs count, too.
        """
        gone = {run}
        stack = [run]
        while stack:
            for instance in self.inputs[stack.pop()]:
                maker = self.maker[instance]
                if maker not in gone and self.has_twin(maker) and self._serves_only(maker, gone):
                    gone.add(maker)
                    stack.append(maker)
        return gone

    def _serves_only(self, run: int, readers: set[int]) -> bool:
        return not any(self.is_kept[i] or set(self.readers[i]) - readers for i in self.outputs[run])

    def leave_out(self, omission: Omission) -> None:
        """Drop a run."""
        run, at, start = omission.run, omission.at, omission.start
        for instance, other in omission.handed:
            self._hand_over(instance, self.readers[instance], other)
        for instance in self.outputs[run]:
            self._instances[self.tensor[instance]].remove(instance)
        for instance in self.inputs[run]:
            self._forget(instance)
            self.readers[instance].remove(run)
        self._runs_of[self.op[run]].remove(run)
        stop = at + 1 + len(omission.relief)
        self.excess = np.concatenate([self.excess[:start], omission.excess, self.excess[stop:]])
        self.between[start : at + 1] += omission.change
        self.between[at + 2 : stop] -= omission.relief[1:]
        self.between = np.delete(self.between, at + 1)
        self.order = np.delete(self.order, at)
        self.position[self.order[at:]] = np.arange(at, len(self.order))
