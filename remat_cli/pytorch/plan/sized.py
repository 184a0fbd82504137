"""One captured graph for calls of many sizes, run by few plans.

A plan that was made for some sizes is carried over to others of the same ops where the judge finds that it fits there.
Else, or where it would take more time than is needed, one is made for these sizes, with some room for larger ones. The
first is made for the largest sizes that calls have had: before torch captures sizes as symbols, it has seen others.

torch is given two graphs that stand for all of these plans (`slots`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

from torch import fx, nn

from remat_cli.core.graph import Graph, Op
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import DoesNotFit
from remat_cli.pytorch.capture.internals import Captured
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.sizes import SizedJoint, Sizes, Values
from remat_cli.pytorch.plan.choice import ScheduleSource
from remat_cli.pytorch.plan.holding import Holding
from remat_cli.pytorch.plan.record import PlannedGraph, PlanRecord
from remat_cli.pytorch.plan.waiting import DIVIDING
from remat_cli.pytorch.programs.slots import Entry, Slots, Written, written

# A plan within bytes is made for sizes this much larger than those that ask for it.
_ROOM = 1.25
# A plan that takes more than this share of time is not carried over to where the plain run has less than this share of
# the memory: there a new one takes less time.
_WORTH, _SMALLER = 0.02, 0.5
# Larger sizes stay multiples of the powers of two that those are multiples of, up to this.
_LARGEST_STEP = 64


@dataclass(frozen=True, eq=False)
class _Program:
    """A plan as it runs.

    Attributes:
        planned: the plan at the sizes that it was made for.
        sized: the graph at these sizes.
        schedule: what is carried out.
        overhead: of the plan.
        written: the schedule as it runs.
    """

    planned: PlannedGraph
    sized: SizedJoint
    schedule: Schedule
    overhead: float
    written: Written


class SizedStep:
    """A captured graph that is called with many sizes.

    Attributes:
        is_stale: it is to be planned again before it runs.
    """

    def __init__(
        self,
        sizes: Sizes,
        given: Captured,
        holding: Holding,
        record: PlanRecord,
        modules: Sequence[nn.Module],
    ) -> None:
        self.is_stale = self._again = False
        self._sizes = sizes
        self._outputs = given.released
        self._released = given.released.known
        self._holding, self._source = holding, holding.source
        self._record = record
        self._modules = modules
        self._programs: list[_Program] = []
        self._numbers: dict[Values, int] = {}  # of what runs
        self._judged: list[PlannedGraph] = []  # what runs, as the judge finds it, by its number
        self._largest = self._largest_so_far()
        self._first = sizes.at(self._largest)
        self._slots = Slots(given, self._first.joint)

    def interface(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the two graphs that stand for all plans; plan for the sizes with which the step was captured.

        Raises:
            DoesNotFit: no plan fits there.
        """
        self._number(self._sizes.first)
        return self._slots.interface(self.run_forward, self.run_backward)

    def run_forward(self, args: list[Any]) -> tuple[Any, ...]:
        """Run the forward pass on the primals; return its outputs, the ticket and the slots.

        Raises:
            DoesNotFit: no plan fits at these sizes.
        """
        if self.is_stale or self._outputs.known != self._released:
            if self._released != (released := self._outputs.known):
                self._source.regrant()
            self.is_stale, self._released = False, released
            self._programs, self._numbers, self._again = [], {}, True
        number = self._number(self._sizes.values(args))
        with self._record.runs(self._judged[number]):
            return self._slots.forward(number, args)

    def run_backward(self, args: list[Any]) -> Any:
        """Run the backward pass on the ticket, the slots and the gradients that come in; return the gradients."""
        self._record.runs_back()
        return self._slots.backward(args)

    def _number(self, values: Values) -> int:
        """Return the number of the entry for these sizes."""
        if values not in self._numbers:
            carried = self._carried(values)
            if carried is None:
                with self._source.waiting.phase(DIVIDING):
                    carried = self._made(values)
                self._holding.tell_again()
            self._again = False
            program, planned = carried
            planned.inputs = self._sizes.input_shapes(values)
            self._numbers[values] = self._slots.add(Entry(program.written, self._sizes.numbers(values)))
            self._judged.append(planned)
        return self._numbers[values]

    def _carried(self, values: Values) -> tuple[_Program, PlannedGraph] | None:
        """Return the plan of least overhead that fits at these sizes; None where a new one is called for."""
        graphs: dict[Graph, Graph] = {}
        for program in sorted(self._programs, key=lambda program: program.overhead):
            planned = self._at(program, values, graphs)
            if planned is None:
                continue
            smaller = planned.plain_peak_bytes < _SMALLER * program.planned.plain_peak_bytes
            if program.overhead > _WORTH and smaller:
                return None
            if planned not in program.planned.carried:
                program.planned.carried.append(planned)
            return program, planned
        return None

    def _at(self, program: _Program, values: Values, graphs: dict[Graph, Graph]) -> PlannedGraph | None:
        """Return what the judge makes of a plan at other sizes; None where it is above the budget.

        Args:
            program: the plan.
            values: the sizes.
            graphs: at these sizes, by those that were planned; what is missing is added.
        """
        given = program.planned.graph
        if given not in graphs:
            graphs[given] = resized(given, self._sizes.bytes_at(program.sized, values))
        carried = self._source.carried(program.planned, graphs[given], program.schedule)
        budget, peak = program.planned.budget_bytes, program.planned.predicted_peak_bytes
        if carried is None and budget is not None and peak > budget:  # the plan of the least peak, where none fits
            trace = simulate(graphs[given], program.schedule)
            if trace.peak_bytes <= peak:
                return PlannedGraph.of(graphs[given], program.schedule, trace, budget)
        return carried

    def _made(self, values: Values) -> tuple[_Program, PlannedGraph]:
        """Make a plan that fits at these sizes, for larger ones if it can be."""
        if not self._programs and self._largest != values:
            with suppress(DoesNotFit):  # then these sizes alone have to fit
                if self._made_for(self._largest, values) and (found := self._carried(values)) is not None:
                    return found
        asked = self._roomier(values) if self._source.has_room else values
        if asked != values:
            with suppress(DoesNotFit):  # then less room is left
                if (found := self._made_for(asked, values)) is not None:
                    return found
        found = self._made_for(values, values, is_last=True)
        assert found is not None
        return found

    def _made_for(
        self, asked: Values, values: Values, *, is_last: bool = False
    ) -> tuple[_Program, PlannedGraph] | None:
        """Make a plan for some sizes, and return it as it is at others; None where it does not fit there.

        Args:
            asked: the sizes that it is made for.
            values: the others.
            is_last: where none fits, make the one of the least peak, if a step has run already.

        Raises:
            DoesNotFit: there is none.
        """
        sized = self._first if asked == self._largest else self._sizes.at(asked)
        captured, joint = sized.captured, sized.joint.releasing(self._released)

        def make(source: ScheduleSource, joint: Joint) -> tuple[Joint, PlannedGraph]:
            return joint, source.planned(joint, captured, self._modules)

        if is_last:
            joint, planned = self._holding.planned(joint, self._outputs.possible, make, again=self._again)
        else:
            joint, planned = make(self._source, joint)
        sized = replace(sized, joint=joint)
        planned = replace(planned, inputs=self._sizes.input_shapes(asked))
        program = self._written(planned, sized, planned.schedule, planned.overhead)
        at_values = planned if asked == values else self._at(program, values, {})
        if at_values is None:
            return None
        own = self._record.add(planned)
        if at_values is planned:
            at_values = own
        else:
            own.carried.append(at_values)
        program = replace(program, planned=own)
        plain = plain_run(planned.graph)
        if not self._programs and planned.overhead:  # the plain run is a plan, too, for smaller sizes
            self._programs.append(self._written(own, sized, plain, 0.0))
        self._programs.append(program)
        return program, at_values

    def _written(self, planned: PlannedGraph, sized: SizedJoint, schedule: Schedule, overhead: float) -> _Program:
        return _Program(planned, sized, schedule, overhead, written(sized.joint, schedule))

    def _largest_so_far(self) -> Values:
        """Return the largest sizes that calls have had; larger ones yet, where a plan is made for such."""
        first, found = self._sizes.first, self._sizes.first
        for planned in self._record.graphs:
            known = self._sizes.values_of(planned.inputs)
            if known is not None:
                found = tuple(map(max, found, known))
        found = found if self._sizes.allows(found) else first
        return self._roomier(found) if self._source.has_room else found

    def _roomier(self, values: Values) -> Values:
        """Return larger sizes, where torch would run the graph at them; else these."""
        larger = tuple(_larger(value) if isinstance(value, int) else value for value in values)
        return larger if self._sizes.allows(larger) else values


def _larger(size: int) -> int:
    step = min(size & -size, _LARGEST_STEP)  # the largest power of two that it is a multiple of
    return ceil(size * _ROOM / step) * step if step else size


def resized(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return a graph with tensors of other sizes.

    The workspace of a kernel grows with the largest growth among the op's tensors, and never shrinks.

    Args:
        graph: at the sizes that it was planned for.
        sizes: bytes of its tensors; tokens, which have none, are not in it.
    """
    tensors = dict(graph.tensors)
    for name, size in sizes.items():
        if tensors[name].bytes != size:
            tensors[name] = replace(tensors[name], bytes=size, shape=None)
    grown = {
        name: Fraction(tensor.bytes, graph.tensors[name].bytes)
        for name, tensor in tensors.items()
        if tensor.bytes > graph.tensors[name].bytes > 0
    }
    ops = tuple(_with_workspace(op, grown) if op.workspace_bytes else op for op in graph.ops)
    return replace(graph, tensors=tensors, ops=ops)


def _with_workspace(op: Op, grown: Mapping[str, Fraction]) -> Op:
    growth = max((grown.get(name, Fraction(1)) for name in (*op.inputs, *op.outputs)), default=Fraction(1))
    return replace(op, workspace_bytes=ceil(op.workspace_bytes * growth))
