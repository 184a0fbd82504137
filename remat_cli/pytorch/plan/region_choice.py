"""The choice of a plan for each call of a region.

The whole step must fit the budget.

An integer program chooses the plans, and the calls whose inputs are on the host between their passes. Its answer is a
schedule of the whole step: each pass of a region is one op, and each stretch between regions is one op. The judge
measures the memory of that schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Kind, Op, Phase, Tensor, build_graph
from remat_cli.core.link import Link
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait, plain_run
from remat_cli.core.simulate import Trace, simulate
from remat_cli.planners.shared.cp_model import FEASIBLE, OPTIMAL, CpModel, CpSolver
from remat_cli.pytorch.plan.fused import CompiledMemory
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.rehearsal import Moment

_SECONDS = 1.0  # seconds for a choice


class ChosenPlans(NamedTuple):
    """The choice for the calls of regions.

    Attributes:
        places: places of the chosen plans, one in each curve.
        least: lower bound on all choices.
        away: numbers of the calls whose inputs are on the host between their passes.
    """

    places: tuple[int, ...]
    least: int
    away: frozenset[int] = frozenset()


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
        runs = [
            (at, graph.op[step.op]) for at, step in enumerate(schedule.steps) if isinstance(step, Compute | Inplace)
        ]
        boundary, begins = next((at, op) for at, op in runs if op.type == BOUNDARY_TYPE)
        levels = [level - graph.fixed_bytes for level in trace.memory_bytes[1:]]  # while each step runs
        tangents = sum(graph.tensors[name].bytes for name in begins.outputs)
        return cls(
            planned=GraphRecord.of(graph, schedule, trace),
            kept=max(0, levels[boundary] - outputs - tangents),
            forward=max(levels[:boundary], default=0),
            backward=max(0, max(levels[boundary:]) - outputs - tangents),
            time=trace.time,
            forward_time=sum(op.time for at, op in runs if at < boundary),
            outputs=outputs,
        )

    def at(self, schedule: Schedule) -> CurvePoint:
        """Return another plan of the region as measured by the judge."""
        return CurvePoint.of(self.planned.graph, schedule, self.outputs)

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
class WholeStep:
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
    """

    always: int
    moments: Mapping[Moment, int]
    paths: Sequence[str]
    curves: Sequence[Sequence[CurvePoint]]
    old_gradients: int = 0
    inputs: Sequence[int] = ()
    link: Link | None = None

    @property
    def _levels(self) -> Iterator[tuple[Moment, int]]:
        """Bytes at each moment without constant memory and regions."""
        for moment, level in self.moments.items():
            yield moment, level + (0 if moment.is_backward else self.old_gradients)

    @property
    def plain(self) -> tuple[CurvePoint, ...]:
        """The plain plan of each region."""
        return tuple(curve[0] for curve in self.curves)

    def judged(self, points: Sequence[CurvePoint], free: int, away: Set[int] = frozenset()) -> Trace:
        """Return the judge's replay of the step with these plans.

        Args:
            points: one for each call of a region.
            free: bytes to leave free.
            away: numbers of the calls whose inputs are on the host between their passes.
        """
        graph = self.graph(points, free)
        schedule = plain_run(graph)
        return simulate(graph, self._moving(schedule, away) if away else schedule, link=self.link)

    def _moving(self, schedule: Schedule, away: Set[int]) -> Schedule:
        """Return a schedule with copies of inputs to the host and back.

        The copies are issued as when the step runs.
        """
        coming: dict[str, list[int]] = {}  # inputs to fetch, by the op that begins
        fetched: set[int] = set()
        for moment in self.moments:
            if moment.running is not None and moment.running[1] == "backward":
                place = moment.running[0]
                due = [each for each in (place, max(moment.holding, default=place)) if each in away - fetched]
                coming[f"backward of {self.paths[place]}"] = list(dict.fromkeys(due))
                fetched.update(due)
        leaving = {f"input of {self.paths[place]}": place for place in away}
        left = {f"forward of {self.paths[place]}": place for place in away}
        back = {f"backward of {self.paths[place]}": place for place in away & fetched}
        steps: list[Step] = []
        for step in schedule.steps:
            op = step.op if isinstance(step, Compute | Inplace) else ""
            steps += [Prefetch(_input(self.paths[place])) for place in coming.get(op, ())]
            steps += [Wait(_input(self.paths[back[op]]))] if op in back else []
            steps.append(step)
            steps += [Offload(_input(self.paths[leaving[op]]))] if op in leaving else []
            if op in left:
                name = _input(self.paths[left[op]])
                steps += [Wait(name), Free(name)]
        return Schedule(tuple(steps))

    def graph(self, points: Sequence[CurvePoint], free: int) -> Graph:
        """Return the step as a graph.

        A region's kept bytes are a tensor, which its passes write and read.
        """
        kept = [Tensor(f"kept by {path}", point.kept) for path, point in zip(self.paths, points, strict=True)]
        given = [Tensor(_input(path), size) for path, size in zip(self.paths, self.inputs, strict=False)]
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
            resident_bytes=self.always + free,
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
        chosen = self._solved(free, None)
        assert chosen is not None
        return chosen

    def tightest(self, free: int) -> ChosenPlans:
        """Choose a plan for each region for the least time at the least peak."""
        found = self.smallest(free)
        trace = self.judged(self.at(found.places), free, found.away)
        return self.within(trace.peak_bytes, free) or found._replace(least=trace.time)

    def least(self, free: int) -> int:
        """Return the least peak found."""
        found = self.smallest(free)
        return self.judged(self.at(found.places), free, found.away).peak_bytes

    def within(self, budget: int, free: int) -> ChosenPlans | None:
        """Choose a plan for each region for the least time in a budget.

        Args:
            budget: budget in bytes.
            free: bytes to leave free.

        Returns:
            The choice, with `least` as a time; None without a choice.
        """
        return self._solved(free, budget)

    def _solved(self, free: int, budget: int | None) -> ChosenPlans | None:
        model = CpModel()
        taken = [[model.new_bool_var("") for _ in curve] for curve in self.curves]
        for literals in taken:
            model.add_exactly_one(literals)
        kept = [sum(p.kept * x for p, x in zip(c, t, strict=True)) for c, t in zip(self.curves, taken, strict=True)]
        away = {place: model.new_bool_var("") for place in self._can_leave}
        peak = model.new_int_var(0, 2**60, "peak") if budget is None else budget
        for moment, level in self._levels:
            used = level + self.always + free + sum(kept[place] for place in sorted(moment.holding))
            if moment.running is not None:
                place, which = moment.running
                used += sum(p.most(which) * x for p, x in zip(self.curves[place], taken[place], strict=True))
            model.add(used + self._inputs_at(moment, away) <= peak)
        # The time for which copies keep a step waiting depends on the plans beside which they run: at the most, and at
        # the least, as no bound may count on more.
        stalls, surely = self._stalls()
        if budget is None:
            model.minimize(peak)
        else:
            pairs = zip(self.curves, taken, strict=True)
            times = sum(p.time * x for c, t in pairs for p, x in zip(c, t, strict=True))
            model.minimize(times + sum(stalls[place] * x for place, x in away.items()))
        solver = CpSolver()
        solver.parameters.max_time_in_seconds = _SECONDS
        solver.parameters.num_workers = 1
        if solver.solve(model) not in (OPTIMAL, FEASIBLE):
            return None
        places = tuple(next(p for p, literal in enumerate(of) if solver.boolean_value(literal)) for of in taken)
        least = int(solver.best_objective_bound)
        if budget is not None:
            least -= sum(stalls[place] - surely[place] for place in away)
        return ChosenPlans(places, least, frozenset(place for place, x in away.items() if solver.boolean_value(x)))

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
    def _can_leave(self) -> list[int]:
        """The calls whose inputs may be on the host.

        Their backward pass reads these inputs.
        """
        read = {moment.running[0] for moment in self.moments if moment.running and moment.running[1] == "backward"}
        return [place for place, size in enumerate(self.inputs) if size and self.link is not None and place in read]

    @property
    def _ever_held(self) -> frozenset[int]:
        return frozenset().union(*(moment.holding for moment in self.moments))

    def _stalls(self) -> tuple[list[int], list[int]]:
        """Return the most and the least waiting time for each call's copies."""
        if self.link is None:
            return [], []
        most, least = [], []
        times = [[(p.forward_time, p.time - p.forward_time) for p in curve] for curve in self.curves]
        for place, size in enumerate(self.inputs):
            copy = self.link.transfer_time(size)
            forward = [time for time, _ in times[place]]
            backward = [time for _, time in times[place + 1]] if place + 1 < len(times) else [0]
            most.append(max(0, copy - min(forward)) + max(0, copy - min(backward)))
            least.append(max(0, copy - max(forward)) + max(0, copy - max(backward)))
        return most, least


def _input(path: str) -> str:
    """Return the name of the tensor of a call's own inputs."""
    return f"given to {path}"
