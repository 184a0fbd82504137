"""The rematerialization sequence: runs of ops, their reads and memory.

Every plan without transfers is such a sequence (the term of Bartan et al. 2023), which determines when tensors are
freed. All computations are numpy over whole sequences, so that a sequence of several 100,000 runs takes a fraction of a
second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, TypeVar

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Schedule, plain_run, with_frees
from remat_cli.planners.shared.numbering import Bools, GraphReads, Ints, Ragged
from remat_cli.planners.shared.stages import Stages


@dataclass(frozen=True, eq=False)
class RematSequence:
    """Runs of ops in order, each with an instance of every output.

    Position M, after the last run, stands for the end, where the graph's outputs are read. Instances are numbered in
    the order of their production. Each stays in memory from its production to its last read.

    Attributes:
        reads: reads and outputs of the graph's ops.
        ops: [M] number of each run's op; every op finds its inputs.
    """

    reads: GraphReads
    ops: Ints

    @classmethod
    def of(cls, graph: Graph, ops: Iterable[int] | Ints) -> RematSequence:
        """Return the sequence of ops with these numbers."""
        array = ops if isinstance(ops, np.ndarray) else np.fromiter(ops, dtype=np.int64)
        return cls(GraphReads.of(graph), array.astype(np.int64, copy=False))

    @classmethod
    def of_stages(cls, stages: Stages, reruns: Ints, at: Ints) -> RematSequence:
        """Return the sequence of a staged plan.

        Within a stage the reruns come first, in the order of their first runs.

        Args:
            stages: the order of first runs; stage N stands for the end.
            reruns: [reruns] stage of the first run of each recomputed op.
            at: [reruns] stage of each recomputation, before the stage's own op.
        """
        first = np.arange(len(stages))
        op = np.concatenate([reruns, first])
        in_turn = np.lexsort((op, np.concatenate([at, first])))
        return cls.of(stages.graph, stages.order[op[in_turn]])

    @classmethod
    def of_names(cls, graph: Graph, names: Iterable[str]) -> RematSequence:
        """Return the sequence of ops with these names."""
        index = graph.arrays.op_index
        return cls.of(graph, (index[name] for name in names))

    @classmethod
    def plain(cls, graph: Graph) -> RematSequence:
        """Return the plain run: every op once in the input order."""
        return cls.of(graph, np.arange(len(graph.ops)))

    def __len__(self) -> int:
        return len(self.ops)

    @property
    def graph(self) -> Graph:
        """The graph that the ops belong to."""
        return self.reads.graph

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the ops, in order."""
        ops = self.graph.ops
        return tuple(ops[number].name for number in self.ops.tolist())

    def schedule(self) -> Schedule:
        """Return the steps, with each tensor freed as early as possible."""
        is_plain = len(self.ops) == len(self.graph.ops) and self.keeps_input_order
        return plain_run(self.graph) if is_plain and not self.graph.lasting else with_frees(self.graph, self.names)

    @property
    def first_runs(self) -> Ints:
        """[N] the ops in the order of their first runs."""
        return self.ops[~self.is_rerun]

    @property
    def keeps_input_order(self) -> bool:
        """Whether ops run for the first time in the input order."""
        first = self.first_runs
        return bool((first[1:] > first[:-1]).all())

    @property
    def time(self) -> int:
        """Time of all runs."""
        return int(self.reads.graph.arrays.op_time[self.ops].sum())

    @cached_property
    def run_time(self) -> Ints:
        """[M] time of each run."""
        return self.reads.graph.arrays.op_time[self.ops]

    @cached_property
    def is_rerun(self) -> Bools:
        """[M] whether each run is a rerun of its op."""
        first = np.zeros(len(self), dtype=np.bool_)
        first[np.unique(self.ops, return_index=True)[1]] = True
        return ~first

    @cached_property
    def instances(self) -> tuple[Ints, Ints]:
        """[I] position and tensor of each instance."""
        return self.reads.outputs.expand(self.ops)

    @cached_property
    def bytes(self) -> Ints:
        """[I] size of each instance."""
        return self.reads.graph.arrays.tensor_bytes[self.instances[1]]

    @cached_property
    def read(self) -> tuple[Ints, Ints]:
        """[R] position and instance of each read, by position, including the end."""
        at, tensor = self.reads.inputs.expand(self.ops)
        at = np.concatenate([at, np.full(len(self.reads.kept), len(self))])
        tensor = np.concatenate([tensor, self.reads.kept])
        return at, self.instance(tensor, at)

    def instance(self, tensor: Ints, before: Ints) -> Ints:
        """Return the latest instances of tensors before positions."""
        keys, instances = self._by_tensor
        return instances[np.searchsorted(keys, tensor * (len(self) + 1) + before) - 1]

    @cached_property
    def _by_tensor(self) -> tuple[Ints, Ints]:
        at, tensor = self.instances
        keys = tensor * (len(self) + 1) + at
        order = np.argsort(keys)
        return keys[order], order

    @cached_property
    def inputs(self) -> Ragged:
        """The instances that each run reads; those of the end come last."""
        at, instance = self.read
        return Ragged.of(at, instance, len(self) + 1)

    @cached_property
    def last_read(self) -> Ints:
        """[I] position of each instance's last read, or production if unread."""
        last: Ints = self.instances[0].copy()
        at, instance = self.read
        last[instance] = np.maximum(last[instance], at)  # positions ascend: the last value written is the largest
        return last

    @cached_property
    def shared_bytes(self) -> Ints:
        """[M] bytes that each run saves by working in place.

        Its input's instance must end with the run.
        """
        arrays = self.reads.graph.arrays
        saved: Ints = arrays.inplace_bytes[self.ops]
        at = np.flatnonzero(saved)
        taken = np.array(arrays.inplace, dtype=np.int64)[self.ops[at]]
        saved[at[self.last_read[self.instance(taken, at)] != at]] = 0
        return saved

    @cached_property
    def memory(self) -> Ints:
        """[M] bytes during each run, as the judge measures them.

        Every instance is freed at its last read.
        """
        change = np.zeros(len(self) + 2, dtype=np.int64)
        np.add.at(change, self.instances[0], self.bytes)
        np.add.at(change, self.last_read + 1, -self.bytes)
        graph = self.reads.graph
        workspace = graph.arrays.workspace_bytes[self.ops]
        return graph.fixed_bytes + np.cumsum(change)[: len(self)] + workspace - self.shared_bytes

    def away_at(self, at: int) -> Ints:
        """Return the instances on the host during a run: none here."""
        return np.zeros(0, dtype=np.int64)

    @cached_property
    def peak(self) -> int:
        """The largest memory of any run, in bytes."""
        return int(self.memory.max())

    def without_useless_reruns(self) -> Self:
        """Return the sequence without reruns whose outputs nothing reads.

        First runs keep their places.
        """
        return replace(self, ops=self.ops[self.is_useful])

    @cached_property
    def is_useful(self) -> Bools:
        """[M] whether each run is a first run or leads to one.

        Leading to the graph's outputs counts, too.
        """
        start, instances = self.inputs.start.tolist(), self.inputs.values.tolist()
        produced_at = self._maker_of
        is_wanted = bytearray((~self.is_rerun).tobytes() + b"\1")
        for position in range(len(self), -1, -1):
            if is_wanted[position]:
                for instance in instances[start[position] : start[position + 1]]:
                    is_wanted[produced_at[instance]] = True
        return np.frombuffer(is_wanted, dtype=np.bool_)[:-1]

    def without_useless_runs(self) -> Self:
        """Drop runs whose outputs are all recomputed before their next read.

        First runs are dropped, too, if a later run will do, so the order of first runs may change. An op without a
        useful run keeps its first run, as every op must run. A valid sequence stays valid, and its peak does not rise:
        no instance of a tensor lives longer than before. The time is linear in the length.
        """
        arrays = self.graph.arrays
        # Tensors of 0 bytes count here: the reader of a view needs the view produced before.
        needed = bytearray((arrays.is_output & (arrays.producer >= 0)).tobytes())
        is_first = (~self.is_rerun).tolist()
        has_run = bytearray(len(self.graph.ops))
        useful: list[int] = []
        for op, is_last_chance in zip(reversed(self.ops.tolist()), reversed(is_first), strict=True):
            outputs = arrays.outputs[op]
            if (is_last_chance and not has_run[op]) or any(needed[tensor] for tensor in outputs):
                useful.append(op)
                has_run[op] = True
                for tensor in outputs:
                    needed[tensor] = False
                for tensor in arrays.inputs[op]:
                    needed[tensor] = True
        return replace(self, ops=np.array(useful[::-1], dtype=np.int64))

    def with_reruns(self, at: int, again: Bools) -> Self:
        """Add reruns of some runs, each where its outputs are first missing.

        Args:
            at: position after which the reruns are placed.
            again: [at] whether to repeat each run before that position; its inputs are kept, or recomputed by other
                reruns.
        """
        again = np.append(again, np.zeros(len(self) + 1 - at, dtype=np.bool_))
        produced_at = self.instances[0]
        read_at, instance = self.read
        late = np.flatnonzero((read_at > at) & again[produced_at[instance]])
        makers: list[int] = produced_at[instance[late]].tolist()
        is_due = bytearray(again.tobytes())
        runs: list[int] = []
        places: list[int] = []
        for place, maker in zip(read_at[late].tolist(), makers, strict=True):
            if is_due[maker]:
                for run in self._closure(maker, is_due):
                    runs.append(run)
                    places.append(place)
        return replace(self, ops=np.insert(self.ops, places, self.ops[runs]))

    def _closure(self, maker: int, is_due: bytearray) -> Iterator[int]:
        """Yield the due reruns up to that of `maker`, in order.

        They are not due afterwards.
        """
        produced_at = self._maker_of
        stack = [maker]
        while stack:
            run = stack[-1]
            due = next((p for i in self.inputs[run].tolist() if is_due[p := produced_at[i]]), None)
            if due is None:
                stack.pop()
                is_due[run] = False
                yield run
            else:
                stack.append(due)

    @cached_property
    def _maker_of(self) -> list[int]:
        makers: list[int] = self.instances[0].tolist()
        return makers


AnySequence = TypeVar("AnySequence", bound=RematSequence)
