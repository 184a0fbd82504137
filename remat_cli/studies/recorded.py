"""Reality beside a plan: what a step was predicted to keep, and what a recording says that it kept.

A tensor is recognised in the recording by its size and by its place in the order of allocations. Lifetimes are compared
by the tensors that come while they last, as a recording has a clock of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path

from remat_cli.allocation.lifetimes import needed_by
from remat_cli.config import GraphOptions
from remat_cli.core.allocator import LEAST_BLOCK, rounded
from remat_cli.core.arena import AT_START
from remat_cli.core.graph import Graph, Phase
from remat_cli.core.schedule import Compute, Inplace, Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.formats.memory_snapshot import RecordedAllocation, RecordedHistory
from remat_cli.studies.eager import kernels_of

# Lifetimes that differ by no more tensors than this are the same: one op allocates several things.
_TOLERANCE = 2
BEFORE = "what is there before the step"
# What takes no more is not looked for.
SMALL = f"tensors of at most {LEAST_BLOCK} bytes"
BACKWARD, FORWARD = "backward", "forward"


@dataclass(frozen=True)
class PredictedTensor:
    """A tensor that a step is predicted to make. Moments count the steps of its schedule.

    Attributes:
        name: of the tensor, or of the op whose workspace it is.
        module: path of the module that makes it, or "forward" or "backward".
        bytes: its size, rounded up as the allocator does.
        begin: when it is made.
        end: when it is let go.
    """

    name: str
    module: str
    bytes: int
    begin: int
    end: int


@dataclass(frozen=True)
class Prediction:
    """The predicted allocations of a step.

    Attributes:
        name: of the graph.
        before_bytes: what is there before: parameters, gradients, optimizer state, inputs.
        peak_bytes: the most that is there at one time.
        peak: when that is.
        tensors: in the order in which they are made.
    """

    name: str
    before_bytes: int
    peak_bytes: int
    peak: int
    tensors: tuple[PredictedTensor, ...]


def predict(graph: Graph, schedule: Schedule, module_of: Mapping[str, str] | None = None) -> Prediction:
    """Return the predicted allocations of a schedule.

    Args:
        graph: what it is for.
        schedule: valid.
        module_of: paths of modules by op; None: as the graph has them.
    """
    needed = needed_by(graph, schedule)
    tensors = []
    for (step, tensor), buffer in zip(needed.things, needed.buffers, strict=True):
        if step != AT_START:
            op = graph.op[_op_of(schedule, step)] if tensor is None else graph.producer[tensor]
            module = op.module if module_of is None else module_of.get(op.name)
            where = module or (BACKWARD if op.phase is Phase.BACKWARD else FORWARD)
            tensors.append(PredictedTensor(tensor or op.name, where, rounded(buffer.size), buffer.lower, buffer.upper))
    trace = simulate(graph, schedule)
    in_order = tuple(sorted(tensors, key=lambda item: item.begin))
    return Prediction(graph.name, graph.fixed_bytes, trace.peak_bytes, trace.peak_step + 1, in_order)


def _op_of(schedule: Schedule, step: int) -> str:
    run = schedule.steps[step]
    assert isinstance(run, Compute | Inplace), "only ops have a workspace"
    return run.op


def predict_plain(graph: Graph) -> Prediction:
    """Return the predicted allocations of a graph's plain run."""
    return predict(graph, plain_run(graph))


def predict_eager(reference: Path, options: GraphOptions) -> Prediction:
    """Return the predicted allocations of eager PyTorch in a training step.

    Raises:
        UsageError: there is no such function.
        GraphError: it is no training step of one module, or fails on tensors without data.
    """
    from remat_cli.pytorch.capture.eager import run_eagerly

    step = run_eagerly(
        str(reference), options, accumulate=options.accumulate, outputs_held=True, kernels=kernels_of(options)
    )
    return predict(step.reading(str(reference)).graph, step.schedule, step.modules)


@dataclass(frozen=True)
class Parting:
    """A tensor with different recorded and predicted lifetimes.

    Attributes:
        module: that makes it; of one that was not predicted, the line that allocates it.
        name: of the tensor; empty where it was not predicted.
        bytes: its size.
        how: in words.
    """

    module: str
    name: str
    bytes: int
    how: str


@dataclass(frozen=True, eq=False)
class Reality:
    """A prediction and a recording.

    Attributes:
        predicted: the step.
        recorded: the device.
    """

    predicted: Prediction
    recorded: RecordedHistory

    @cached_property
    def pairs(self) -> tuple[tuple[PredictedTensor, RecordedAllocation], ...]:
        """Pairs of predicted and recorded tensors, in order."""
        predicted = [item for item in self.predicted.tensors if item.bytes > LEAST_BLOCK]
        recorded = [item for item in self._around_peak() if item.bytes > LEAST_BLOCK]
        sizes = [item.bytes for item in predicted], [rounded(item.bytes) for item in recorded]
        matcher = SequenceMatcher(None, *sizes, autojunk=False)
        return tuple(
            (predicted[block.a + at], recorded[block.b + at])
            for block in matcher.get_matching_blocks()
            for at in range(block.size)
        )

    @cached_property
    def window(self) -> tuple[RecordedAllocation, ...]:
        """The allocations of the step: from the first to the last one that is recognised."""
        if not self.pairs:
            return ()
        first, last = self.pairs[0][1].begin, self.pairs[-1][1].begin
        return tuple(item for item in self.recorded.allocations if first <= item.begin <= last)

    def _around_peak(self) -> Sequence[RecordedAllocation]:
        """Return the allocations among which the step with the peak is: of one recorded step, all."""
        allocations = [item for item in self.recorded.allocations if item.begin >= 0]
        span = 0, len(allocations)
        for start, middle, end in _steps(
            [item.bytes for item in allocations], [item.bytes for item in self.predicted.tensors]
        ):
            if start == 0 or allocations[middle].begin <= self.recorded.peak:
                span = start, end
        return allocations[slice(*span)]

    @cached_property
    def recognised(self) -> float:
        """The share of the predicted bytes that the recording has."""
        whole = sum(item.bytes for item in self.predicted.tensors if item.bytes > LEAST_BLOCK)
        return sum(item.bytes for item, _ in self.pairs) / whole if whole else 1.0

    @cached_property
    def at_peak(self) -> Mapping[str, tuple[int, int]]:
        """Bytes at the predicted and at the recorded peak by module, the largest difference first."""
        peaks = self.predicted.peak, self.recorded.peak
        predicted, recorded = Counter({BEFORE: self.predicted.before_bytes}), Counter[str]()
        for item in self.predicted.tensors:
            where = item.module if item.bytes > LEAST_BLOCK else SMALL
            predicted[where] += item.bytes if item.begin <= peaks[0] < item.end else 0
        modules = {id(allocation): item.module for item, allocation in self.pairs}
        in_window = {id(allocation) for allocation in self.window}
        for allocation in self.recorded.allocations:
            if allocation.begin <= peaks[1] < allocation.end:
                where = modules.get(id(allocation), allocation.place if allocation.bytes > LEAST_BLOCK else SMALL)
                recorded[where if id(allocation) in in_window else BEFORE] += allocation.bytes
        both = {name: (predicted[name], recorded[name]) for name in (*predicted, *recorded)}
        there = ((name, sizes) for name, sizes in both.items() if any(sizes))
        return dict(sorted(there, key=lambda item: (-abs(item[1][1] - item[1][0]), -max(item[1]), item[0])))

    @cached_property
    def partings(self) -> tuple[Parting, ...]:
        """Where lifetimes differ, the largest tensors first."""
        return tuple(sorted(self._partings(), key=lambda item: (-item.bytes, item.module, item.name)))

    def _partings(self) -> Iterator[Parting]:
        begins = [item.begin for item, _ in self.pairs], [allocation.begin for _, allocation in self.pairs]
        for item, allocation in self.pairs:
            apart = bisect_left(begins[1], allocation.end) - bisect_left(begins[0], item.end)
            if abs(apart) > _TOLERANCE:
                how = f"lives {abs(apart):,} tensors {'longer' if apart > 0 else 'shorter'} than predicted"
                yield Parting(item.module, item.name, item.bytes, how)
        known = {id(item) for item, _ in self.pairs}
        for item in self.predicted.tensors:
            if id(item) not in known and item.bytes > LEAST_BLOCK:
                yield Parting(item.module, item.name, item.bytes, "is not in the recording")
        known = {id(allocation) for _, allocation in self.pairs}
        for allocation in self.window:
            if id(allocation) not in known and allocation.bytes > LEAST_BLOCK:
                yield Parting(allocation.place, "", allocation.bytes, "was not predicted")


def _steps(recorded: Sequence[int], predicted: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield where each recorded step begins at the earliest, about where it does, and where it ends at the latest.

    Steps are told apart by the predicted size that is rarest and largest.
    """
    counts, sizes = Counter(predicted), Counter(map(rounded, recorded))
    anchors = [size for size in counts if sizes[size] > counts[size] and size > LEAST_BLOCK]
    if not anchors:
        return
    anchor = min(anchors, key=lambda size: (counts[size], -size))
    places = [at for at, size in enumerate(recorded) if rounded(size) == anchor]
    groups = [places[at : at + counts[anchor]] for at in range(0, len(places), counts[anchor])]
    for number, group in enumerate(groups):
        start = groups[number - 1][-1] + 1 if number else 0
        end = groups[number + 1][0] if number + 1 < len(groups) else len(recorded)
        # Of what lies between two anchors, as much belongs to the later step as is predicted.
        ahead = predicted.index(anchor) / max(1, len(predicted)) * (end - start) / (2 if number else 1)
        yield start, max(start, group[0] - round(ahead)), end
