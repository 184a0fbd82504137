"""Retention intervals (Bartan et al. 2023, section 2) as a CP-SAT model.

The model extends the paper's graphs, whose ops have one output and no workspace:

- An op with several outputs has an interval for each; the intervals start together and end independently.
- An op's workspace is an interval of one event.
- The graph's outputs are read once more, at the end.
- A tensor of 0 bytes has no interval, as keeping it costs nothing: it only orders first runs.
- An op that takes over the storage of an input takes no memory for the shared bytes while it runs.

Intervals are half-open: an interval whose last read is at event t ends at t + 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.planners.published.moccasin.slots import EventSlots
from remat_cli.planners.shared.cp_model import (
    BoundedLinearExpression,
    CpModel,
    Domain,
    IntervalVar,
    IntVar,
    LinearExpr,
    LiteralT,
)
from remat_cli.planners.shared.cp_sat import Values
from remat_cli.planners.shared.scaling import unit_of

Event = LinearExpr | int
Starts = Sequence[Sequence[int]]  # the events of each op's runs, in order


@dataclass(frozen=True, eq=False)
class _IntervalRun:
    """A possible run of an op.

    The retention intervals of the op's outputs start with the run.

    Attributes:
        op: number of the op; the number of ops stands for the end, which reads the graph's outputs.
        number: position among the op's runs.
        start: event of the run.
        earliest: its earliest event.
        latest: its latest event.
        place: the variable that decides on the event; None if there is only one.
        active: the variable that says whether the run takes place; None if it must.
    """

    op: int
    number: int
    start: Event
    earliest: int
    latest: int
    place: IntVar | None = None
    active: IntVar | None = None

    @property
    def takes_place(self) -> list[LiteralT]:
        """The literals under which the run takes place."""
        return [] if self.active is None else [self.active]


@dataclass(frozen=True, eq=False)
class _IntervalRead:
    """The read of a tensor by a run.

    Attributes:
        tensor: number of the tensor.
        reader: the run.
        sources: the producer's runs whose intervals may serve the read.
        choice: variables that select the source: a single one between two sources, one per source for more.
        takes_over: whether the reader takes over the tensor's storage; None if it cannot.
    """

    tensor: int
    reader: _IntervalRun
    sources: Sequence[_IntervalRun]
    choice: Sequence[IntVar]
    takes_over: IntVar | None = None

    def cases(self) -> Iterator[tuple[_IntervalRun, list[LiteralT]]]:
        """Yield each source, with its selecting literals."""
        literals: Sequence[LiteralT] = self.choice
        if len(self.sources) == 2:
            literals = [self.choice[0], ~self.choice[0]]
        for at, source in enumerate(self.sources):
            yield source, [*self.reader.takes_place, *literals[at : at + 1]]


class IntervalModel:
    """The model for one graph; complete once a `minimise_` method has run.

    Attributes:
        model: the CP-SAT model.
    """

    def __init__(self, graph: Graph, slots: EventSlots) -> None:
        self.model = CpModel()
        arrays = graph.arrays
        self._graph = graph
        self._slots = slots
        self._producer: list[int] = arrays.producer.tolist()
        self._size: list[int] = arrays.tensor_bytes.tolist()
        self._workspace: list[int] = arrays.workspace_bytes.tolist()
        self._saving: list[int] = arrays.inplace_bytes.tolist()  # bytes that each op saves by working in place
        self._runs = [[self._run(op, number) for number in range(slots.most_runs[op])] for op in range(len(graph.ops))]
        self._finish = _IntervalRun(len(graph.ops), 0, slots.end, slots.end, slots.end)
        self._ends: dict[int, list[IntVar]] = {}  # by tensor: the end of its interval for each run of its producer
        self._readers: dict[int, list[_IntervalRun]] = {}  # by tensor
        self._readings: dict[int, list[_IntervalRead]] = {}  # by tensor
        self._intervals: list[IntervalVar] = []
        self._bytes: list[int] = []  # bytes of each interval
        for tensor, readers in self._reading_ops().items():
            self._readers[tensor] = [run for op in readers for run in self._runs_of(op)]
            self._add_tensor(tensor)
        for op in range(len(graph.ops)):
            self._leave_out_useless_runs(op)
            for run in self._runs[op]:
                self._add_memory(run)
        self._order_runs()

    def minimise_peak(self, room: int, largest: int) -> int:
        """Minimise the peak, down to the budget (equation 12).

        Args:
            room: bytes for outputs of ops: the budget without the fixed bytes.
            largest: an upper limit on the peak, in bytes.

        Returns:
            Bytes per step of the objective.
        """
        unit, demands = self._demands
        peak = self.model.new_int_var(room // unit, max(room, largest) // unit, "peak")
        self.model.add_cumulative(self._intervals, demands, peak)
        self.model.minimize(peak)
        return unit

    def minimise_time(self, room: int) -> int:
        """Minimise the time of reruns within the budget (equation 1).

        Args:
            room: bytes for outputs of ops: the budget without the fixed bytes.

        Returns:
            Time per step of the objective.
        """
        unit, demands = self._demands
        self.model.add_cumulative(self._intervals, demands, room // unit)
        time: list[int] = self._graph.arrays.op_time.tolist()
        time_unit = max(1, gcd(*time))
        self.model.minimize(
            sum(time[run.op] // time_unit * run.active for runs in self._runs for run in runs if run.active is not None)
        )
        return time_unit

    def starts(self, values: Values) -> list[list[int]]:
        """Return the events of each op's runs in a solution."""
        return [
            [
                run.earliest if run.place is None else self._slots.event(run.op, int(values[run.place.index]))
                for run in runs
                if run.active is None or values[run.active.index]
            ]
            for runs in self._runs
        ]

    def hint(self, starts: Starts) -> None:
        """Suggest a plan to start from."""
        for runs in self._runs:
            for run in runs:
                event = self._event(run, starts)
                if run.place is not None:
                    place = self._slots.place(run.op, run.earliest if event is None else event)
                    self.model.add_hint(run.place, place)
                if run.active is not None:
                    self.model.add_hint(run.active, event is not None)
        for tensor in self._ends:
            self._hint_ends(tensor, starts)

    def _hint_ends(self, tensor: int, starts: Starts) -> None:
        """Suggest that each reader uses the latest interval."""
        runs = self._runs[self._producer[tensor]]
        start = starts[self._producer[tensor]]
        ends = [(start[run.number] if run.number < len(start) else run.earliest) + 1 for run in runs]
        for reader in self._readers[tensor]:
            at = self._event(reader, starts)
            if at is not None:
                source = bisect_left(start, at) - 1
                ends[source] = max(ends[source], at + 1)
        for run, end in zip(runs, self._ends[tensor], strict=True):
            self.model.add_hint(end, ends[run.number])
        for reading in self._readings[tensor]:
            at = self._event(reading.reader, starts)
            chosen = 0 if at is None else bisect_left(start, at) - 1
            for run, literal in zip(reading.sources, reading.choice, strict=False):
                self.model.add_hint(literal, run.number == chosen)
            if reading.takes_over is not None:
                self.model.add_hint(reading.takes_over, at is not None and ends[chosen] == at + 1)

    def _event(self, run: _IntervalRun, starts: Starts) -> int | None:
        """Return the event of a run; None if the run does not take place."""
        if run is self._finish:
            return self._slots.end
        return starts[run.op][run.number] if run.number < len(starts[run.op]) else None

    @property
    def _demands(self) -> tuple[int, list[int]]:
        """Return a unit of bytes, and the memory of each interval in that unit.

        Sizes are rounded down, so that no plan is ruled out.
        """
        sizes = np.array(self._bytes, dtype=np.int64)
        unit = max(unit_of(sizes), int(np.gcd.reduce(sizes)))
        return unit, (sizes // unit).tolist()

    def _reading_ops(self) -> dict[int, list[int]]:
        """Return the readers of each tensor that takes memory and has readers."""
        readers: dict[int, list[int]] = {}
        for op, tensors in enumerate(self._graph.arrays.inputs):
            for tensor in tensors:
                readers.setdefault(tensor, []).append(op)
        for tensor in self._graph.arrays.is_output.nonzero()[0].tolist():
            readers.setdefault(tensor, []).append(self._finish.op)
        return {t: readers[t] for t in sorted(readers) if self._producer[t] >= 0 and self._size[t] > 0}

    def _runs_of(self, op: int) -> Sequence[_IntervalRun]:
        return [self._finish] if op == self._finish.op else self._runs[op]

    def _run(self, op: int, number: int) -> _IntervalRun:
        slots, model = self._slots, self.model
        places = slots.again[op] if number else slots.first[op]
        earliest, latest = slots.event(op, places[0]), slots.event(op, places[-1])
        active = model.new_bool_var("") if number else None
        if earliest == latest:
            return _IntervalRun(op, number, earliest, earliest, latest, active=active)
        place = model.new_int_var_from_domain(Domain.from_values(list(places)), "")
        if active is not None:
            # A run that does not take place leaves no choice of its place.
            self._add(place == places[0], [~active])
        return _IntervalRun(op, number, slots.scale * place + slots.offset[op], earliest, latest, place, active)

    def _add(self, constraint: BoundedLinearExpression | bool | np.bool_, condition: Sequence[LiteralT] = ()) -> None:
        """Add a constraint that holds if all literals in `condition` are true."""
        added = self.model.add(constraint)
        if condition:
            added.only_enforce_if(condition)

    def _add_tensor(self, tensor: int) -> None:
        """Add the ends of a tensor's intervals, and the reads to cover."""
        runs = self._runs[self._producer[tensor]]
        readers = self._readers[tensor]
        last = max(reader.latest for reader in readers) + 1
        ends = [self.model.new_int_var(run.earliest + 1, max(last, run.latest + 1), "") for run in runs]
        self._ends[tensor] = ends
        for run, end in zip(runs, ends, strict=True):
            if run.active is not None:
                self._add(end == run.earliest + 1, [~run.active])
                self._add(ends[run.number - 1] <= run.start, [run.active])
            if run.place is not None:
                self._add(end > run.start, run.takes_place)
        self._readings[tensor] = []
        for reader in readers:
            self._add_reading(tensor, reader)

    def _may_take_over(self, op: int, tensor: int) -> bool:
        return op < len(self._runs) and self._graph.arrays.inplace[op] == tensor and self._saving[op] > 0

    def _add_reading(self, tensor: int, reader: _IntervalRun) -> None:
        """Add the constraint that an interval covers the read (equation 5)."""
        sources = [run for run in self._runs[self._producer[tensor]] if run.earliest < reader.latest]
        takes_over = self.model.new_bool_var("") if self._may_take_over(reader.op, tensor) else None
        reading = _IntervalRead(tensor, reader, sources, self._choice(reader, len(sources)), takes_over)
        self._readings[tensor].append(reading)
        for source, condition in reading.cases():
            self._add(self._ends[tensor][source.number] > reader.start, condition)
            if source.latest >= reader.earliest:
                self._add(source.start < reader.start, condition)
            if source.active is not None:
                self.model.add_bool_or(source.active).only_enforce_if(condition)

    def _choice(self, reader: _IntervalRun, count: int) -> list[IntVar]:
        """Return variables that choose a source.

        If the run does not take place, the first source is chosen.
        """
        choice = [self.model.new_bool_var("") for _ in range(count if count > 2 else count - 1)]
        if count > 2:
            self.model.add_exactly_one(choice)
        if choice and reader.active is not None:
            self.model.add_implication(~reader.active, choice[0])
        return choice

    def _leave_out_useless_runs(self, op: int) -> None:
        """Add the constraint that each run has an output that is read."""
        readings = [reading for tensor in self._read_outputs(op) for reading in self._readings[tensor]]
        for run in self._runs[op]:
            if run.number:
                self._add_use(run, readings)
            elif self._is_free(run) and all(self._size[tensor] for tensor in self._graph.arrays.outputs[op]):
                # A first run that serves any reader also serves the first run of some reader.
                self._add_use(run, [reading for reading in readings if reading.reader.active is None])

    def _is_free(self, run: _IntervalRun) -> bool:
        """Tell whether a first run can wait for its readers.

        A run fixed by the input order cannot.
        """
        return run.place is not None and not self._slots.in_input_order

    def _add_use(self, run: _IntervalRun, readings: Sequence[_IntervalRead]) -> None:
        uses = [condition for reading in readings for source, condition in reading.cases() if source is run]
        if uses and all(uses):
            self.model.add_bool_or(condition[-1] for condition in uses).only_enforce_if(run.takes_place)

    def _read_outputs(self, op: int) -> list[int]:
        return [tensor for tensor in self._graph.arrays.outputs[op] if tensor in self._ends]

    def _add_memory(self, run: _IntervalRun) -> None:
        """Add the intervals in which a run and its outputs take memory."""
        outputs = self._graph.arrays.outputs[run.op]
        read = self._read_outputs(run.op)
        passing = self._workspace[run.op] + sum(self._size[t] for t in outputs if t not in read)
        shared = self._saving[run.op]
        for tensor in read:
            size = self._size[tensor]
            if tensor == outputs[0] and shared:
                self._add_interval(self._begin_in_place(run), self._ends[tensor][run.number], run, shared)
                size -= shared
            self._add_interval(run.start, self._ends[tensor][run.number], run, size)
        if shared and outputs[0] not in read:
            self._add_interval(self._begin_in_place(run), run.start + 1, run, shared)
            passing -= shared
        self._add_interval(run.start, run.start + 1, run, passing)

    def _begin_in_place(self, run: _IntervalRun) -> Event:
        """Return the event from which shared storage counts for the output.

        This is one event later if the run takes the storage over, which it does if the input's interval ends with the
        run.
        """
        tensor = self._graph.arrays.inplace[run.op]
        reading = next(each for each in self._readings[tensor] if each.reader is run)
        takes_over = reading.takes_over
        assert takes_over is not None
        for source, condition in reading.cases():
            self._add(self._ends[tensor][source.number] <= run.start + 1, [takes_over, *condition])
        if run.active is not None:
            self.model.add_implication(takes_over, run.active)
        if run.place is None:
            return run.start + takes_over
        begin = self.model.new_int_var(run.earliest, run.latest + 1, "")
        self._add(begin == run.start + takes_over)
        return begin

    def _add_interval(self, start: Event, end: Event, run: _IntervalRun, size: int) -> None:
        if size == 0:
            return
        length = self.model.new_int_var(0, self._slots.end + 1 - run.earliest, "")
        if run.active is None:
            interval = self.model.new_interval_var(start, length, end, "")
        else:
            interval = self.model.new_optional_interval_var(start, length, end, run.active, "")
            self._add(length == end - start, [~run.active])
        self._intervals.append(interval)
        self._bytes.append(size)

    def _order_runs(self) -> None:
        """Add the constraints on the order of runs that intervals do not imply."""
        if self._slots.shared:
            self.model.add_no_overlap(self._event_of(run) for runs in self._runs for run in runs)
        first = [runs[0] for runs in self._runs]
        if self._slots.in_input_order:
            for run, following in pairwise(first):
                self._add(run.start < following.start)
        for op, tensors in enumerate(self._graph.arrays.inputs):
            for tensor in tensors:
                maker = self._producer[tensor]
                if maker >= 0 and self._size[tensor] == 0 and first[maker].latest >= first[op].earliest:
                    self._add(first[maker].start < first[op].start)

    def _event_of(self, run: _IntervalRun) -> IntervalVar:
        if run.active is None:
            return self.model.new_fixed_size_interval_var(run.start, 1, "")
        return self.model.new_optional_fixed_size_interval_var(run.start, 1, run.active, "")
