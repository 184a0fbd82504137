"""The choice of a plan for each call of a region.

The whole step must fit the budget.

An integer program chooses the plans, and the calls whose inputs or saved tensors are on the host between their passes.
Its answer is a schedule of the whole step: each pass of a region is one op, and each stretch between regions is one op.
The judge measures the memory of that schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from remat_cli.core.graph import Graph, Kind, Op, Phase, Tensor, build_graph
from remat_cli.core.link import Link
from remat_cli.core.problem import Status
from remat_cli.core.schedule import Compute, Inplace, Schedule, plain_run
from remat_cli.core.simulate import Trace, simulate
from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.cp_sat import solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.pytorch.plan.fused import CompiledMemory
from remat_cli.pytorch.plan.record import GraphRecord, boundary_of
from remat_cli.pytorch.plan.region_copies import PassOrder, input_of, saved_by, waits, with_copies
from remat_cli.pytorch.plan.rehearsal import Moment
from remat_cli.splitting import Split

# Limit of a choice: work, in about seconds, so that a busy machine chooses alike; and seconds in any case.
_WORK, _SAFETY = 1.0, 60.0

# Which tensors a choice may have on the host.
ANYTHING, NOTHING, ALL_INPUTS = "anything", "nothing", "all inputs"


class ChosenPlans(NamedTuple):
    """The choice for the calls of regions.

    Attributes:
        places: places of the chosen plans, one in each curve.
        least: lower bound on all choices.
        away: numbers of the calls whose inputs are on the host between their passes.
        saved_away: numbers of the calls whose saved tensors are.
    """

    places: tuple[int, ...]
    least: int
    away: frozenset[int] = frozenset()
    saved_away: frozenset[int] = frozenset()


class _Solved(NamedTuple):
    """The solver's answer.

    Attributes:
        choice: the choice; None without one.
        is_proven: no choice is better, or there is none.
        least: lower bound on all choices.
    """

    choice: ChosenPlans | None
    is_proven: bool
    least: int


@dataclass(frozen=True, eq=False)
class CurvePoint:
    """A plan of a region, without memory from before the region.

    Attributes:
        planned: the plan.
        kept: bytes kept between its passes, without the outputs.
        forward: peak of its forward pass.
        backward: peak of its backward pass, without the outputs and their gradients.
        time: time of the whole region.
        forward_time: time of its forward pass.
        outputs: bytes of the region's outputs.
    """

    planned: GraphRecord
    kept: int
    forward: int
    backward: int
    time: int
    forward_time: int
    outputs: int

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule, outputs: int) -> CurvePoint:
        """Return a region's plan as measured by the judge.

        Args:
            graph: graph of the region.
            schedule: the plan.
            outputs: bytes of the region's outputs.
        """
        trace = simulate(graph, schedule)
        boundary, begins = boundary_of(graph, schedule)
        forward = (step for step in schedule.steps[:boundary] if isinstance(step, Compute | Inplace))
        levels = [level - graph.fixed_bytes for level in trace.memory_bytes[1:]]  # while each step runs
        tangents = sum(graph.tensors[name].bytes for name in begins.outputs)
        return cls(
            planned=GraphRecord.of(graph, schedule, trace),
            kept=max(0, levels[boundary] - outputs - tangents),
            forward=max(levels[:boundary], default=0),
            backward=max(0, max(levels[boundary:]) - outputs - tangents),
            time=trace.time,
            forward_time=sum(graph.op[step.op].time for step in forward),
            outputs=outputs,
        )

    def at(self, schedule: Schedule) -> CurvePoint:
        """Return another plan of the region as measured by the judge."""
        return CurvePoint.of(self.planned.graph, schedule, self.outputs)

    @property
    def cuts(self) -> Mapping[str, Split]:
        """Cuts of the graph, by the name of an op."""
        return self.planned.cuts

    @property
    def peak_share(self) -> float:
        """The peak as a share of the whole region's plain peak, both without fixed memory."""
        planned = self.planned
        peak, plain = planned.predicted_peak_bytes - planned.fixed_bytes, planned.plain_peak_bytes - planned.fixed_bytes
        return peak / max(1, plain)

    def taking(self, planned: GraphRecord, memory: CompiledMemory) -> CurvePoint:
        """Return the same plan with the memory of its compiled kernels."""
        return replace(
            self,
            planned=planned,
            kept=max(0, memory.kept - self.outputs),
            forward=memory.forward,
            backward=max(0, memory.backward - 2 * self.outputs),
        )

    def most(self, which: str) -> int:
        """Return the peak of a pass."""
        return self.forward if which == "forward" else self.backward


@dataclass(frozen=True, eq=False)
class BlockStep:
    """The memory of a step planned by regions.

    Attributes:
        always: bytes that are in memory at all times.
        moments: further bytes outside of regions, at each moment in order.
        paths: paths of the regions' calls.
        curves: plans of each call, the plain one first.
        old_gradients: bytes of the earlier step's gradients, which exist until the backward pass begins.
        inputs: bytes of the inputs that each call alone keeps between its passes, and that `moments` leave out while
            the call does not run; empty if nothing may leave for the host.
        link: link to the host.
        calls: number of calls before a backward pass.
        kept_outside: bytes outside of regions that a call keeps between its passes.
        gradients: bytes of gradients that calls leave in memory.
    """

    always: int
    moments: Mapping[Moment, int]
    paths: Sequence[str]
    curves: Sequence[Sequence[CurvePoint]]
    old_gradients: int = 0
    inputs: Sequence[int] = ()
    link: Link | None = None
    calls: int = 1
    kept_outside: int = 0
    gradients: int = 0

    def _others(self, kept: Any) -> list[Any]:
        """Return the bytes of other calls while one runs, before and after the first backward pass.

        Args:
            kept: bytes that a call's regions keep between its passes.
        """
        if self.calls == 1:
            return [0]
        each = self.kept_outside + kept
        return [(self.calls - 1) * each, (self.calls - 2) * each + self.gradients]

    @property
    def _levels(self) -> Iterator[tuple[Moment, int]]:
        """Bytes at each moment without constant memory and regions."""
        for moment, level in self.moments.items():
            yield moment, level + (0 if moment.is_backward else self.old_gradients)

    @property
    def plain(self) -> tuple[CurvePoint, ...]:
        """The plain plan of each region."""
        return tuple(curve[0] for curve in self.curves)

    def judged(
        self, points: Sequence[CurvePoint], free: int, away: Set[int] = frozenset(), saved_away: Set[int] = frozenset()
    ) -> Trace:
        """Return the judge's replay of the step with these plans.

        Args:
            points: one for each call of a region.
            free: bytes to leave free.
            away: numbers of the calls whose inputs are on the host between their passes.
            saved_away: numbers of the calls whose saved tensors are.
        """
        graph = self.graph(points, free)
        schedule = plain_run(graph)
        if away or saved_away:
            schedule = with_copies(schedule, self.order, dict(enumerate(self.paths)), away, saved_away)
        return simulate(graph, schedule, link=self.link)

    def replay(self, choice: ChosenPlans, free: int) -> Trace:
        """Return the judge's replay of a choice."""
        return self.judged(self.at(choice.places), free, choice.away, choice.saved_away)

    @cached_property
    def order(self) -> PassOrder:
        """The order of the calls' passes."""
        return PassOrder.of(self.moments)

    def graph(self, points: Sequence[CurvePoint], free: int) -> Graph:
        """Return the step as a graph.

        A region's kept bytes are a tensor, which its passes write and read.
        """
        kept = [Tensor(saved_by(path), point.kept) for path, point in zip(self.paths, points, strict=True)]
        given = [Tensor(input_of(path), size) for path, size in zip(self.paths, self.inputs, strict=False)]
        ops: list[Op] = []
        read: set[int] = set()
        for number, (moment, level) in enumerate(self._levels):
            if moment.running is None:
                phase = Phase.BACKWARD if moment.is_backward else Phase.FORWARD
                ops.append(Op(f"between {number}", "Eager", (), (), 0, level, phase=phase, recomputable=False))
                continue
            place, which = moment.running
            point, is_forward = points[place], which == "forward"
            size = given[place].bytes if given else 0
            if not is_forward:
                read.add(place)
            elif size:
                name, other_bytes = f"input of {self.paths[place]}", max(0, level - size)
                ops.append(
                    Op(name, "Eager", (), (given[place].name,), 0, other_bytes, phase=Phase.FORWARD, recomputable=False)
                )
            ops.append(
                Op(
                    f"{which} of {self.paths[place]}",
                    "Region",
                    ((given[place].name,) if size else ()) + (() if is_forward else (kept[place].name,)),
                    (kept[place].name,) if is_forward else (),
                    point.forward_time if is_forward else point.time - point.forward_time,
                    max(0, level + point.most(which) - point.kept - (size if is_forward else 0)),
                    phase=Phase.FORWARD if is_forward else Phase.BACKWARD,
                    recomputable=False,
                )
            )
        # A tensor without gradient is kept to the end.
        rest = [tensor.name for place, tensor in enumerate(kept) if place not in read]
        rest += [tensor.name for place, tensor in enumerate(given) if place not in read and tensor.bytes]
        return build_graph(
            name="the whole step",
            kind=Kind.TRAINING,
            time_unit="ns",
            resident_bytes=self.always + free + max(self._others(sum(point.kept for point in points))),
            tensors=[*kept, *(tensor for tensor in given if tensor.bytes)],
            ops=ops,
            outputs=rest,
        )

    def at(self, places: Sequence[int]) -> tuple[CurvePoint, ...]:
        """Return the plans at these places, one of each curve."""
        return tuple(curve[place] for curve, place in zip(self.curves, places, strict=True))

    def smallest(self, free: int) -> ChosenPlans:
        """Choose a plan for each region for the least peak.

        `least` is a peak.
        """
        chosen = self._best(free, None, ANYTHING, lambda choice: self.replay(choice, free).peak_bytes)
        assert chosen is not None
        return chosen

    def tightest(self, free: int) -> ChosenPlans:
        """Choose a plan for each region for the least time at the least peak."""
        smallest = self.smallest(free)
        trace = self.replay(smallest, free)
        return self.within(trace.peak_bytes, free) or smallest._replace(least=trace.time)

    def least(self, free: int) -> int:
        """Return the least peak found."""
        return self.replay(self.smallest(free), free).peak_bytes

    def within(self, budget: int, free: int, moves: str = ANYTHING) -> ChosenPlans | None:
        """Choose a plan for each region for the least time in a budget.

        Args:
            budget: budget in bytes.
            free: bytes to leave free.
            moves: which tensors may be on the host: any of them, none, or all inputs together.

        Returns:
            The choice, with `least` as a time; None without a choice.
        """
        return self._best(free, budget, moves, lambda choice: self.replay(choice, free).time)

    def _best(
        self, free: int, budget: int | None, moves: str, cost: Callable[[ChosenPlans], int]
    ) -> ChosenPlans | None:
        """Return the solver's choice, or a simple one that costs less.

        Simple choices move nothing, or all inputs. They are tried if the solver proves nothing.
        """
        solved = self._solved(free, budget, moves)
        if solved.is_proven or not self.inputs or moves != ANYTHING:
            return solved.choice
        simple = (self._solved(free, budget, each) for each in (NOTHING, ALL_INPUTS))
        fitting = [each.choice for each in (solved, *simple) if each.choice is not None]
        best = min(fitting, key=cost, default=None)
        return None if best is None else best._replace(least=solved.least)

    def _solved(self, free: int, budget: int | None, moves: str = ANYTHING) -> _Solved:
        """Choose plans and copies.

        Args:
            free: bytes to leave free.
            budget: budget in bytes; None: choose for the least peak.
            moves: which tensors are on the host: any of them, none, or all inputs.
        """
        model = CpModel()
        may_leave = set(self.saved_can_leave) if moves == ANYTHING else set[int]()
        there = [[model.new_bool_var("") for _ in curve] for curve in self.curves]
        gone = [
            [model.new_bool_var("") if place in may_leave and point.kept else 0 for point in curve]
            for place, curve in enumerate(self.curves)
        ]
        taken = [[x + y for x, y in zip(*both, strict=True)] for both in zip(there, gone, strict=True)]
        for literals in taken:
            model.add(sum(literals) == 1)

        def total(place: int, value: Callable[[CurvePoint], int], of: Sequence[Sequence[Any]] = taken) -> Any:
            return sum(value(point) * x for point, x in zip(self.curves[place], of[place], strict=True))

        can_leave = [] if moves == NOTHING else self.inputs_can_leave
        away: dict[int, Any] = {place: 1 if moves == ALL_INPUTS else model.new_bool_var("") for place in can_leave}
        peak = model.new_int_var(0, 2**60, "peak") if budget is None else budget
        others = self._others(sum(total(place, lambda point: point.kept) for place in range(len(self.curves))))
        for moment, level in self._levels:
            used = level + self.always + free
            for place in sorted(moment.holding):
                of = taken if place not in may_leave or self._is_there(place, moment) else there
                used += total(place, lambda point: point.kept, of)
            if moment.running is not None:
                place, which = moment.running
                used += total(place, lambda point, which=which: point.most(which))  # type: ignore[misc]
            for other_bytes in others:
                model.add(used + self._inputs_at(moment, away) + other_bytes <= peak)
        if budget is None:
            model.minimize(peak)
        else:
            time = sum(total(place, lambda point: point.time) for place in range(len(self.curves)))
            model.minimize(time + self._waiting(model, total, away, gone))
        outcome = solve_model(model, Limits.of(_SAFETY, work=_WORK), rounding=None)
        least, is_proven = outcome.bound or 0, outcome.status in (Status.OPTIMAL, Status.INFEASIBLE)
        values = outcome.values
        if values is None:
            return _Solved(None, is_proven, least)

        def is_set(literal: Any) -> bool:
            return bool(literal if isinstance(literal, int) else values[literal.index])

        places = tuple(
            next(at for at, literals in enumerate(zip(*both, strict=True)) if any(map(is_set, literals)))
            for both in zip(there, gone, strict=True)
        )
        inputs = frozenset(place for place, x in away.items() if is_set(x))
        saved = frozenset(place for place in may_leave if is_set(gone[place][places[place]]))
        return _Solved(ChosenPlans(places, least, inputs, saved), is_proven, least)

    def _waiting(self, model: CpModel, total: Any, away: Mapping[int, Any], gone: Sequence[Sequence[Any]]) -> Any:
        """Return the time for which passes wait for copies, as an expression."""
        if self.link is None or not self.inputs:
            return 0
        copy = self.link.transfer_time
        inputs = {place: copy(self.inputs[place]) * x for place, x in away.items()}
        saved = {place: total(place, lambda point: copy(point.kept), gone) for place in self.saved_can_leave}
        passes = {
            (place, which): total(place, _TIMES[which])
            for which, calls in (("forward", self.order.forward), ("backward", self.order.backward))
            for place in calls
        }
        largest = max((point.kept for curve in self.curves for point in curve), default=0)
        most = copy(largest) + copy(max(self.inputs))
        waiting = []
        for least in waits(self.order, passes, inputs, saved):
            waiting.append(model.new_int_var(0, most, ""))
            model.add(waiting[-1] >= least)
        return sum(waiting)

    def _is_there(self, place: int, moment: Moment) -> bool:
        """Return whether saved tensors are on the device, though they leave.

        They are until the next forward pass ends, and again from the next backward pass on.
        """
        return place == max(moment.holding) and (not moment.is_backward or moment.holding < self._ever_held)

    def _inputs_at(self, moment: Moment, away: Mapping[int, Any]) -> Any:
        """Return the bytes of inputs at a moment that `moments` leave out.

        An input on the host comes back when the backward pass of another region begins, the next region's first.
        """
        there: Any = 0
        for place in sorted(moment.holding) if self.inputs else ():
            there += self.inputs[place] * (1 - away[place] if place in away else 1)
        if moment.is_backward and moment.holding and moment.holding < self._ever_held:
            last = max(moment.holding)
            there += self.inputs[last] * away[last] if last in away else 0
        if moment.running is not None and moment.running[1] == "backward" and self.inputs:
            there += self.inputs[moment.running[0]]
        return there

    @property
    def inputs_can_leave(self) -> list[int]:
        """The calls whose inputs may be on the host.

        Their backward pass reads these inputs.
        """
        read = {moment.running[0] for moment in self.moments if moment.running and moment.running[1] == "backward"}
        return [place for place, size in enumerate(self.inputs) if size and self.link is not None and place in read]

    @property
    def _ever_held(self) -> frozenset[int]:
        return frozenset().union(*(moment.holding for moment in self.moments))

    @property
    def saved_can_leave(self) -> list[int]:
        """The calls whose saved tensors may be on the host.

        Another forward pass follows, and their own backward pass.
        """
        if self.link is None or not self.inputs:
            return []
        return sorted(set(self.order.forward[:-1]) & set(self.order.backward))


def _backward_time(point: CurvePoint) -> int:
    return point.time - point.forward_time


def _forward_time(point: CurvePoint) -> int:
    return point.forward_time


_TIMES = {"forward": _forward_time, "backward": _backward_time}
