"""The search of `pofo` for a plan that fits, from its tables.

The dynamic program models a chain, states rounded to slots, and data that travels in drops. On the graph whole tensors
travel, so a replay measures the time of each structure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil, inf, isfinite

import numpy as np

from remat_cli.core.problem import ModelFigure, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import input_order
from remat_cli.core.simulate import simulate
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.pofo.dp import PofoTable
from remat_cli.planners.pofo.model import FluidCosts, FluidNeeds
from remat_cli.planners.pofo.options import PofoOptions, StateRounding
from remat_cli.planners.pofo.structure import Structure, fluid_time
from remat_cli.planners.rotor.dp import RotorTable
from remat_cli.planners.rotor.needs import RotorNeeds
from remat_cli.planners.shared.chain.linearisation import Linearised, linearise
from remat_cli.planners.shared.incumbent import Incumbent, SequencePlan
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.transfers import OffloadSequence, known_link

# The memory of a table as a share of the device's. Rounding to the nearest slot errs either way, and the model usually
# overestimates: plans that do not fit are dropped, and tables are asked for less memory, too.
_HEADROOM = {StateRounding.UP: Fraction(1), StateRounding.NEAREST: Fraction(23, 20)}
# The size of rotor's table, which has one state where POFO's has three, and so can be finer.
_ROTOR_SEGMENTS, _ROTOR_SLOTS = 150, 500
# The number of plans that fit to improve.
_IMPROVED = 6


@dataclass(frozen=True, eq=False)
class _PofoPlan:
    """A plan that fits.

    Attributes:
        computes: names of the ops in the order of their runs.
        time: time with the transfers.
        idle_time: part of `time` in which the device waits for the link.
    """

    computes: tuple[str, ...]
    time: int
    idle_time: int


class PofoSearch:
    """Plans one problem; the clock starts with the constructor."""

    def __init__(self, problem: Problem, options: PofoOptions, observe: Observer) -> None:
        self._problem = problem
        self._graph = problem.graph
        self._budget = problem.budget.device_bytes
        self._options = options
        self._observe = observe
        self._limits = Limits.of(options.time_limit, observe=observe)
        self._incumbent = Incumbent(problem, observe)
        self._least_fluid_time: Fraction | float = inf
        self._replays = 0

    def run(self) -> PlanResult:
        """Return the best plan tried that fits.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or cannot be cut; or the link's rate is
                unknown.
            UsageError: the options ask for a table that is too large.
        """
        linearised = linearise(self._graph, "pofo", self._options.cuts, self._options.segments)
        self._rate = known_link(self._problem, "pofo", instead="rotor").bytes_per_time
        if self._options.candidates == 0:
            return PlanResult(Status.UNKNOWN, reason="no candidates are allowed")
        self._try(input_order(self._graph), movable=())
        if self._incumbent.best is None:
            _check_has_cuts(linearised)
            self._search(linearised)
        return self._result(linearised)

    def _search(self, linearised: Linearised) -> None:
        improve = self._options.improve
        tried = [*self._try_without_offloading()] if improve else []
        model = FluidCosts(
            FluidNeeds.measured(linearised.gauge), max(self._budget - linearised.base_bytes, 0), self._rate
        )
        for rounding in self._options.rounding.each:
            if not self._limits.is_over:
                tried += self._try_structures(linearised, model, rounding)
        fitting = [plan for plan in tried if plan is not None]
        if improve and fitting:
            self._observe.phase("leaving out needless reruns")
            for plan in _with_room(fitting):
                self._leave_out_reruns(plan)

    def _try_without_offloading(self) -> Iterator[_PofoPlan | None]:
        """Try the plain run and plans of rotor for some amounts of memory.

        Plans that do not fit may use transfers.
        """
        self._observe.phase("trying plans without offloading")
        linearised = linearise(self._graph, "pofo", self._options.cuts, _ROTOR_SEGMENTS)
        table = RotorTable.of(RotorNeeds.measured(linearised.gauge), _ROTOR_SLOTS)
        faster = np.flatnonzero(table.times < np.append(inf, table.times[:-1]))
        yield self._try(input_order(self._graph), self._graph.producer)
        for number in _evenly(len(faster), self._options.candidates):
            if not self._limits.is_over:
                yield self._try(linearised.computes(table.steps(int(faster[number]))), self._graph.producer)

    def _try_structures(
        self, linearised: Linearised, model: FluidCosts, rounding: StateRounding
    ) -> Iterator[_PofoPlan | None]:
        """Try POFO's structures for all the memory, and for less."""
        self._observe.phase(f"planning a chain of {len(linearised)} layers, states rounded: {rounding.value}")
        memory = int(model.memory * _HEADROOM[rounding])
        table = PofoTable(model.needs, memory, float(model.rate), self._options.memory_slots, rounding)
        self._observe.phase("replaying its plans with whole tensors")
        for structure in self._structures(table):
            self._least_fluid_time = min(self._least_fluid_time, fluid_time(model, structure))
            computes = linearised.computes(structure.steps())
            yield self._try(computes, self._movable(linearised, structure))
            if self._options.improve:
                yield self._try(computes, self._graph.producer)

    def _structures(self, table: PofoTable) -> Iterator[Structure]:
        tried = 0
        before = None
        for reserved in range(table.slots + 1):
            if tried == self._options.candidates or self._limits.is_over or not isfinite(table.time(reserved)):
                return
            structure = table.structure(reserved)
            if structure != before:
                yield structure
                tried += 1
            before = structure

    def _movable(self, linearised: Linearised, structure: Structure) -> set[str]:
        """Return the names of the tensors that a structure offloads."""
        tensors: set[int] = set()
        for item in structure.offloaded():
            layer = linearised.cut.layers[item.layer]
            tensors |= layer.activation | layer.saved if item.saved else layer.activation
        return {self._graph.arrays.tensor_names[tensor] for tensor in tensors}

    def _try(self, computes: Sequence[str], movable: Iterable[str]) -> _PofoPlan | None:
        """Replay a plan, and keep the best; return the plan if it fits."""
        self._replays += 1
        sequence = OffloadSequence.moving_named(RematSequence.of_names(self._graph, computes), movable, self._rate)
        if sequence.least_bytes > self._budget:
            least = partial(sequence.schedule_within, sequence.least_bytes)
            self._incumbent.take(SequencePlan(sequence, 0, sequence.least_bytes, least))
            return None
        schedule = sequence.schedule_within(self._budget)
        trace = simulate(self._graph, schedule, link=self._problem.link)
        plan = SequencePlan(sequence, trace.time, trace.peak_bytes, lambda: schedule)
        self._incumbent.take(plan)
        busy = sum(self._graph.op[name].time for name in computes)
        return _PofoPlan(tuple(computes), plan.time, plan.time - busy)

    def _leave_out_reruns(self, plan: _PofoPlan) -> None:
        """Drop reruns as long as that is faster.

        Ops with the most time for each output byte come first.
        """
        graph = self._graph
        time_per_byte = {op.name: op.time / (1 + sum(graph.tensors[t].bytes for t in op.outputs)) for op in graph.ops}
        repeated = [name for name, runs in Counter(plan.computes).items() if runs > 1]
        repeated.sort(key=lambda name: -time_per_byte[name])
        before = None
        while before is not plan:
            before = plan
            for name in repeated:
                while not self._limits.is_over and (better := self._without_last_run(plan, name)) is not None:
                    plan = better

    def _without_last_run(self, plan: _PofoPlan, name: str) -> _PofoPlan | None:
        """Drop the last rerun of an op; return the plan if it is better."""
        computes = list(plan.computes)
        if computes.count(name) == 1:
            return None
        del computes[len(computes) - 1 - computes[::-1].index(name)]
        useful = RematSequence.of_names(self._graph, computes).without_useless_runs()
        shorter = self._try(useful.names, self._graph.producer)
        return shorter if shorter is not None and shorter.time < plan.time else None

    def _result(self, linearised: Linearised) -> PlanResult:
        stats = {"segments": len(linearised) - 1, "replays": self._replays}
        result = self._incumbent.result(linearised.without_plan, stats)
        if result.schedule is None or self._least_fluid_time == inf:
            return result
        time = linearised.base_time + ceil(self._least_fluid_time)
        return replace(result, model_figures=(ModelFigure("fluid time (paper's model)", time, "time"),))


def _with_room(plans: Sequence[_PofoPlan]) -> list[_PofoPlan]:
    """Return a few plans that never wait for the link, fast to slow.

    If all wait, choose from all plans.
    """
    fastest = {plan.computes: plan for plan in sorted(plans, key=lambda plan: plan.time, reverse=True)}
    by_time = sorted(fastest.values(), key=lambda plan: plan.time)
    chosen = [plan for plan in by_time if plan.idle_time == 0] or by_time
    return [chosen[number] for number in _evenly(len(chosen), _IMPROVED)]


def _check_has_cuts(linearised: Linearised) -> None:
    if len(linearised) <= 2:
        forward_ops = sum(len(layer.forward) for layer in linearised.cut.layers)
        raise PlannerRefuses(
            f"pofo plans a chain of layers, but {linearised.graph.name!r} cannot be cut: one segment holds "
            f"{len(linearised.largest_segment.forward)} of {forward_ops} forward ops",
            hint="use approx_dp, checkmate, moccasin or dtr, which need no chain",
        )


def _evenly(count: int, most: int) -> list[int]:
    """Return at most `most` numbers below `count`, evenly spread."""
    numbers: list[int] = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.int64)).tolist()
    return numbers
