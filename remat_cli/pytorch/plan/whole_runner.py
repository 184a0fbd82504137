"""One captured graph for calls of one size or many, run by few plans.

A new plan follows if a measured step used memory unknown to the plan, or if the first backward pass shows that the
caller has freed outputs before it.

A plan for some sizes is carried over to others of the same ops if it fits there (`sized_memory`). If not, or if it
would cost needless time, a plan is made for these sizes, with some room for larger ones. The first plan is for the
largest sizes of earlier calls: torch sees several sizes before it captures them as symbols.

A plan in parts is written again at each size, from the same capture, as bounds of parts are numbers. Its cuts and its
schedule are carried over, if they hold.

torch is given two graphs that stand for all of these plans (`slots`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any

from torch import fx, nn

from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, share_over
from remat_cli.errors import DoesNotFit, InvalidSchedule, UsageError
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.joint_capture import Captured
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.sizes import SizedJoint, Sizes, Values
from remat_cli.pytorch.plan.budget_keeper import BudgetKeeper
from remat_cli.pytorch.plan.carrying import WORTH, is_much_smaller, wants_new_plan
from remat_cli.pytorch.plan.fused import CompiledPasses
from remat_cli.pytorch.plan.record import GraphRecord, PlanRecord, notify
from remat_cli.pytorch.plan.sized_fused import SizedKernels
from remat_cli.pytorch.plan.sized_memory import ResizedGraph, SizedMemory
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.pytorch.plan.waiting import COMPILING, DIVIDING
from remat_cli.pytorch.programs.slots import Entry, PassFunctions, Slots, pass_functions

# A plan within a budget in bytes is for sizes this much larger than requested.
_ROOM = 1.25
# A plain run may fit once it is compiled if its peak before fusion is above the budget by no more than this factor. It
# was 1.06 of a GPT, and 1.23 of blocks of two linear layers.
_FUSED_AWAY = 1.25
# Larger sizes stay multiples of the powers of two that those are multiples of, up to this.
_LARGEST_STEP = 64


@dataclass(frozen=True, eq=False)
class _SizedPasses:
    """A plan with the functions of its two passes.

    Attributes:
        planned: the plan at its own sizes.
        sized: the graph at these sizes.
        schedule: the schedule.
        overhead: overhead of the plan.
        pass_functions: functions that run the schedule; None for kernels that are not compiled yet, and for parts that
            are not written at this size.
        compiled: compiled kernels that run the schedule; None for eager's.
    """

    planned: GraphRecord
    sized: SizedJoint
    schedule: Schedule
    overhead: float
    pass_functions: PassFunctions | None
    compiled: CompiledPasses | None = None

    @cached_property
    def has_transfers(self) -> bool:
        """Whether the schedule moves tensors to the host."""
        return self.schedule.has_transfers

    @cached_property
    def memory(self) -> SizedMemory:
        """The schedule's memory at any sizes."""
        return SizedMemory(self.planned.graph, self.schedule)


@dataclass(frozen=True, eq=False)
class _Here:
    """A step at the sizes of a call, for plans to be carried over.

    Attributes:
        values: the sizes.
        graphs: graphs without parts at these sizes, by the graph at a plan's sizes.
        in_parts: steps in parts, with their graphs, by the graph at a plan's sizes.
    """

    values: Values
    graphs: dict[Graph, ResizedGraph] = field(default_factory=dict)
    in_parts: dict[Graph, tuple[Joint, Graph]] = field(default_factory=dict)


class WholeRunner:
    """Runs a captured step at one size or many.

    Attributes:
        is_stale: whether to plan again before the next run.
    """

    def __init__(
        self,
        given: Captured,
        keeper: BudgetKeeper,
        record: PlanRecord,
        modules: Sequence[nn.Module],
    ) -> None:
        self.is_stale = self._again = False
        self._sizes = sizes = Sizes.of(given)
        self._outputs = given.released
        self._released = given.released.known
        self._keeper, self._source = keeper, keeper.source
        self._record = record
        self._modules = modules
        self._kernels = SizedKernels(sizes, modules) if keeper.source.fused else None
        self._sized_passes: list[_SizedPasses] = []
        self._numbers: dict[Values, int] = {}  # numbers of entries
        self._judged: list[GraphRecord] = []  # plans as measured by the judge, by number
        self._largest = self._largest_so_far()
        self._first = sizes.at(self._largest)
        self._slots = Slots(given, self._first.joint, keeper.watch.leave_out)

    def interface(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the two graphs for all plans; plan for the captured sizes.

        Raises:
            DoesNotFit: no plan fits there.
        """
        try:
            self._number(self._sizes.first)
        except DoesNotFit as refusal:
            sized = self._sizes.at(self._sizes.first)
            piece = Piece(sized.joint, sized.in_numbers, self._modules).releasing(self._outputs.possible)
            raise self._source.explained(refusal, piece) from None
        return self._slots.interface(self.run_forward, self.run_backward)

    def run_forward(self, args: list[Any]) -> tuple[Any, ...]:
        """Run the forward pass; return outputs, ticket and slots.

        Raises:
            DoesNotFit: no plan fits at these sizes.
        """
        is_released = self._outputs.known != self._released and not self._source.is_given
        if self.is_stale or is_released:
            if self._released != (released := self._outputs.known):
                self._source.regrant()
            self.is_stale, self._released = False, released
            self._sized_passes, self._numbers, self._again = [], {}, True
        number = self._number(self._sizes.values(args))
        with self._record.runs(self._judged[number]):
            return self._slots.forward(number, args)

    def run_backward(self, args: list[Any]) -> Any:
        """Run the backward pass; return the gradients.

        The arguments are the ticket, the slots and incoming gradients.
        """
        self._record.runs_back()
        return self._slots.backward(args)

    def _number(self, values: Values) -> int:
        """Return the number of the entry for these sizes."""
        if values not in self._numbers:
            carried = self._carried(values)
            if carried is None:
                with self._source.waiting.phase(DIVIDING):
                    carried = self._planned(values)
                self._keeper.tell_again()
            self._again = False
            passes, planned = carried
            assert passes.pass_functions is not None
            planned.inputs = self._sizes.input_shapes(values)
            numbers = [] if planned.cuts else self._sizes.numbers(values)
            self._numbers[values] = self._slots.add(Entry(passes.pass_functions, numbers))
            self._judged.append(planned)
        return self._numbers[values]

    def _carried(self, values: Values) -> tuple[_SizedPasses, GraphRecord] | None:
        """Return the plan of least overhead that fits at these sizes.

        None if a new plan is required.
        """
        here = _Here(values)
        for passes in sorted(self._sized_passes, key=lambda passes: (passes.overhead, passes.has_transfers)):
            passes = self._ready(passes, here)
            planned = self._at(passes, here)
            if planned is None:
                continue
            sizes = planned.plain_peak_bytes, passes.planned.plain_peak_bytes
            if planned.cuts and is_much_smaller(*sizes):
                continue  # parts of so few rows take longer
            if wants_new_plan(passes.overhead, *sizes):
                return None
            if planned not in passes.planned.carried:
                passes.planned.carried.append(planned)
            return self._written(passes, here), planned
        return None

    def _ready(self, passes: _SizedPasses, here: _Here) -> _SizedPasses:
        """Compile a plain run that has no kernels yet, if it may fit at these sizes.

        The graph's memory before fusion tells.
        """
        if passes.pass_functions is not None or passes.planned.cuts:
            return passes
        there = self._record_at(passes, here)
        there.predicted_peak_bytes = int(there.plain_peak_bytes / _FUSED_AWAY)
        if self._source.carried(there, self._graph_at(passes, here)) is None:
            return passes
        assert self._kernels is not None
        graph = passes.planned.graph
        with self._source.waiting.phase(COMPILING):
            planned = GraphRecord.of(graph, passes.schedule, baseline_of(graph))
            compiled = self._kernels.compiled(planned, passes.sized)
        ready = replace(passes, pass_functions=compiled.functions(passes.sized.joint), compiled=compiled)
        self._sized_passes[self._sized_passes.index(passes)] = ready
        return ready

    def _at(self, passes: _SizedPasses, here: _Here) -> GraphRecord | None:
        """Return a plan at other sizes; None above the budget.

        Args:
            passes: the plan.
            here: the sizes.
        """
        if passes.planned.cuts:
            with suppress(UsageError, InvalidSchedule):  # fewer rows than parts, or other ops
                return self._carried_by(passes, self._record_in_parts(passes, here), here)
            return None
        if passes.pass_functions is None or not self._holds_at(passes, here.values):
            return None
        return self._carried_by(passes, self._record_at(passes, here), here)

    def _carried_by(self, passes: _SizedPasses, there: GraphRecord, here: _Here) -> GraphRecord | None:
        """Return a plan at other sizes, if it fits there or is the one of the least peak.

        Args:
            passes: the plan.
            there: the plan at the other sizes, with the budget of its own.
            here: the other sizes.
        """
        if (carried := self._source.carried(there, self._graph_at(passes, here))) is not None:
            return carried
        budget, peak = passes.planned.budget_bytes, passes.planned.predicted_peak_bytes
        # The plan of the least peak runs where none fits.
        is_least = budget is not None and budget < peak
        return there if is_least and there.predicted_peak_bytes <= peak else None

    def _record_at(self, passes: _SizedPasses, here: _Here) -> GraphRecord:
        """Return a plan at other sizes, with the budget of its own; see `_at`.

        Its compiled kernels tell their memory. The judge replays a plan with copies to the host: their times depend on
        sizes.
        """
        graph, planned, schedule = self._graph_at(passes, here), passes.planned, passes.schedule
        if passes.has_transfers:
            trace = simulate(graph.graph, schedule, link=self._source.link(graph.graph))
            there = GraphRecord.of(graph.graph, schedule, trace, planned.budget_bytes)
        else:
            there = GraphRecord(
                planned_graph=graph,
                schedule=schedule,
                budget_bytes=planned.budget_bytes,
                fixed_bytes=graph.fixed_bytes,
                predicted_peak_bytes=graph.peak_bytes(passes.memory),
                plain_peak_bytes=graph.plain_peak_bytes,
                overhead=share_over(passes.memory.time, planned.graph.total_time),
            )
        if passes.compiled is not None:
            there.predicted_peak_bytes = graph.fixed_bytes + passes.compiled.memory_at(here.values).peak
        return replace(there, kernels=planned.kernels)

    def _record_in_parts(self, passes: _SizedPasses, here: _Here) -> GraphRecord:
        """Return a plan in parts at other sizes, with the budget of its own; see `_at`.

        The judge replays it on the graph that is written there. Its overhead stays that of the plan.

        Raises:
            UsageError: there are fewer rows than parts.
            InvalidSchedule: the graph has other ops there.
        """
        planned, whole = passes.planned, self._graph_at(passes, here)
        if planned.graph not in here.in_parts:
            sized = self._sizes.at(here.values)
            joint = sized.joint.releasing(passes.sized.joint.released)
            piece = Piece(joint, sized.in_numbers, self._modules).in_parts(planned.cuts)
            here.in_parts[planned.graph] = piece.joint, self._source.graph(piece)
        _, graph = here.in_parts[planned.graph]
        trace = simulate(graph, passes.schedule, link=self._source.link(graph))
        there = GraphRecord.of(graph, passes.schedule, trace, planned.budget_bytes)
        return replace(
            there,
            plain_peak_bytes=whole.plain_peak_bytes,
            overhead=planned.overhead,
            cuts=planned.cuts,
            whole=whole,
        )

    def _written(self, passes: _SizedPasses, here: _Here) -> _SizedPasses:
        """Return a plan with functions that run it at other sizes."""
        if passes.planned.graph not in here.in_parts:
            return passes
        joint, _ = here.in_parts[passes.planned.graph]
        return replace(passes, pass_functions=pass_functions(joint, passes.schedule))

    def _graph_at(self, passes: _SizedPasses, here: _Here) -> ResizedGraph:
        """Return the graph of a plan at other sizes, without parts; see `_at`."""
        given = _without_parts(passes.planned).graph
        if given not in here.graphs:
            here.graphs[given] = ResizedGraph(given, self._sizes.bytes_at(passes.sized, here.values))
        return here.graphs[given]

    def _holds_at(self, passes: _SizedPasses, values: Values) -> bool:
        """Return whether the plan's kernels run at some sizes."""
        if self._kernels is None or passes.compiled is None:
            return True
        return self._kernels.hold_at(passes.compiled, passes.sized.values, values)

    def _planned(self, values: Values) -> tuple[_SizedPasses, GraphRecord]:
        """Make a plan that fits at these sizes; larger sizes are tried first."""
        if not self._sized_passes and self._largest != values:
            with suppress(DoesNotFit):  # then these sizes alone have to fit
                if self._planned_for(self._largest, values) and (planned_here := self._carried(values)) is not None:
                    return planned_here
        asked = self._roomier(values) if self._source.has_room else values
        if asked != values:
            with suppress(DoesNotFit):  # then less room is left
                if (planned_here := self._planned_for(asked, values)) is not None:
                    return planned_here
        planned_here = self._planned_for(values, values, is_last=True)
        assert planned_here is not None
        return planned_here

    def _planned_for(
        self, asked: Values, values: Values, *, is_last: bool = False
    ) -> tuple[_SizedPasses, GraphRecord] | None:
        """Make a plan for some sizes; return it at others, or None.

        None means that the plan does not fit there.

        Args:
            asked: sizes of the plan.
            values: other sizes.
            is_last: if no plan fits and a step has run already, make the plan of the least peak.

        Raises:
            DoesNotFit: no plan fits.
        """
        sized = self._first if asked == self._largest else self._sizes.at(asked)
        captured = sized.in_numbers if self._source.splits else sized.captured
        piece = Piece(sized.joint, captured, self._modules).releasing(self._released)

        def make(source: ScheduleSource, piece: Piece) -> tuple[tuple[Joint, CompiledPasses | None], GraphRecord]:
            if self._kernels is None:
                piece, planned = source.planned(piece)
                return (piece.joint, None), planned
            compiled = self._kernels.planned(source, replace(sized, joint=piece.joint))
            return (piece.joint, compiled), compiled.planned

        if is_last:
            result = self._keeper.planned(piece, self._outputs.possible, make, again=self._again)
        else:
            result = make(self._source, piece)
        (joint, compiled), planned = result
        sized = replace(sized, joint=sized.joint.releasing(joint.released).updating(joint.updates))
        if planned.schedule.has_transfers and joint.device == "cpu":
            text = "the plan moves tensors to the host, which is the device here: that saves no memory"
            notify(logging.WARNING, text)
        planned = replace(planned, inputs=self._sizes.input_shapes(asked))
        is_written_here = bool(planned.cuts) and compiled is None and asked == values
        here = _Here(values, in_parts={planned.graph: (joint, planned.graph)} if is_written_here else {})
        functions = _functions(joint, planned, compiled)
        passes = _SizedPasses(planned, sized, planned.schedule, planned.overhead, functions, compiled)
        at_values = planned if asked == values else self._at(passes, here)
        if at_values is None:
            return None
        own = self._record.add(planned)
        if at_values is planned:
            at_values = own
        else:
            own.carried.append(at_values)
        passes = replace(passes, planned=own)
        if self._sizes.symbols and not self._sized_passes and self._is_worth_less(planned):
            # The plain run is a plan, too, for smaller sizes.
            whole = _without_parts(own)
            plain = plain_run(whole.graph)
            runs = None if self._kernels else pass_functions(sized.joint, plain)
            self._sized_passes.append(_SizedPasses(whole, sized, plain, 0.0, runs))
        self._sized_passes.append(passes)
        return self._written(passes, here), at_values

    def _is_worth_less(self, planned: GraphRecord) -> bool:
        """Return whether the plain run is better than a plan, where both fit."""
        return planned.overhead > (WORTH if self._kernels else 0) or planned.schedule.has_transfers

    def _largest_so_far(self) -> Values:
        """Return the largest sizes of calls and plans so far."""
        first, planned_here = self._sizes.first, self._sizes.first
        for planned in self._record.graphs:
            known = self._sizes.values_of(planned.inputs)
            if known is not None:
                planned_here = tuple(map(max, planned_here, known))
        planned_here = planned_here if self._sizes.allows(planned_here) else first
        return self._roomier(planned_here) if self._source.has_room else planned_here

    def _roomier(self, values: Values) -> Values:
        """Return larger sizes if torch allows these for the graph.

        Otherwise return the same sizes.
        """
        larger = tuple(_larger(value) if isinstance(value, int) else value for value in values)
        return larger if self._sizes.allows(larger) else values


def _functions(joint: Joint, planned: GraphRecord, compiled: CompiledPasses | None) -> PassFunctions | None:
    """Return the functions of a plan; None for parts of eager's ops, which are written at the sizes of a call."""
    if compiled is not None:
        return compiled.functions(joint)
    return None if planned.cuts else pass_functions(joint, planned.schedule)


def _without_parts(planned: GraphRecord) -> GraphRecord:
    """Return a plan with the graph without parts; both note the same sizes that it is carried over to."""
    return planned if planned.whole is None else replace(planned, planned_graph=planned.whole, cuts={}, whole=None)


def _larger(size: int) -> int:
    step = min(size & -size, _LARGEST_STEP)  # the largest power of two that it is a multiple of
    return ceil(size * _ROOM / step) * step if step else size
