"""The choice among plans of regions: one for each call of a region, so that the whole step fits the budget.

An integer program chooses; its answer is a schedule of the whole step, in which each pass of a region is one op, and
what lies between regions is one op for each stretch. The judge says what that schedule needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Kind, Op, Phase, Tensor, build_graph
from remat_cli.core.schedule import Compute, Inplace, Schedule, plain_run
from remat_cli.core.simulate import Trace, simulate
from remat_cli.planners.shared.cp_model import FEASIBLE, OPTIMAL, CpModel, CpSolver
from remat_cli.runtime.torch.fused import CompiledMemory
from remat_cli.runtime.torch.record import PlannedGraph
from remat_cli.runtime.torch.rehearsal import Moment

_SECONDS = 1.0  # for a choice

# Places of plans, one of each curve, and what no choice goes below.
Choice = tuple[tuple[int, ...], int]


@dataclass(frozen=True, eq=False)
class RegionPoint:
    """A plan of a region, beside what is there when it begins.

    Attributes:
        planned: the plan.
        kept: bytes from the end of its forward to the begin of its backward pass, without what it returns.
        forward: the most that its forward pass has at one time.
        backward: the most that its backward pass has at one time, without what it returned and that one's gradient.
        time: of the whole region.
        forward_time: of its forward pass.
        outputs: bytes of what the region returns.
    """

    planned: PlannedGraph
    kept: int
    forward: int
    backward: int
    time: int
    forward_time: int
    outputs: int

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule, outputs: int) -> RegionPoint:
        """Return what the judge makes of a plan of a region.

        Args:
            graph: of the region.
            schedule: the plan.
            outputs: bytes of what the region returns.
        """
        trace = simulate(graph, schedule)
        runs = [
            (at, graph.op[step.op]) for at, step in enumerate(schedule.steps) if isinstance(step, Compute | Inplace)
        ]
        boundary, begins = next((at, op) for at, op in runs if op.type == BOUNDARY_TYPE)
        levels = [level - graph.fixed_bytes for level in trace.memory_bytes[1:]]  # while each step runs
        tangents = sum(graph.tensors[name].bytes for name in begins.outputs)
        return cls(
            planned=PlannedGraph.of(graph, schedule, trace),
            kept=max(0, levels[boundary] - outputs - tangents),
            forward=max(levels[:boundary], default=0),
            backward=max(0, max(levels[boundary:]) - outputs - tangents),
            time=trace.time,
            forward_time=sum(op.time for at, op in runs if at < boundary),
            outputs=outputs,
        )

    def at(self, schedule: Schedule) -> RegionPoint:
        """Return what the judge makes of another plan of the same region."""
        return RegionPoint.of(self.planned.graph, schedule, self.outputs)

    def taking(self, planned: PlannedGraph, memory: CompiledMemory) -> RegionPoint:
        """Return the same plan with the memory that its compiled kernels take."""
        return replace(
            self,
            planned=planned,
            kept=max(0, memory.kept - self.outputs),
            forward=memory.forward,
            backward=max(0, memory.backward - 2 * self.outputs),
        )

    def most(self, which: str) -> int:
        """Return the most that a pass has at one time."""
        return self.forward if which == "forward" else self.backward


@dataclass(frozen=True, eq=False)
class WholeStep:
    """What is known of a step that is planned by regions.

    Attributes:
        always: bytes that are in memory at all times.
        moments: bytes that are there beside that and the regions, at each moment in their order.
        paths: of the calls of regions.
        curves: plans of each, the plain one first.
        old_gradients: bytes of gradients of the step before, which are there until the backward pass begins.
    """

    always: int
    moments: Mapping[Moment, int]
    paths: Sequence[str]
    curves: Sequence[Sequence[RegionPoint]]
    old_gradients: int = 0

    @property
    def _levels(self) -> Iterator[tuple[Moment, int]]:
        """Bytes that are there at each moment beside what is there always, and beside the regions."""
        for moment, level in self.moments.items():
            yield moment, level + (0 if moment.is_backward else self.old_gradients)

    @property
    def plain(self) -> tuple[RegionPoint, ...]:
        """The plain plan of each region."""
        return tuple(curve[0] for curve in self.curves)

    def judged(self, points: Sequence[RegionPoint], free: int) -> Trace:
        """Return what the judge makes of the schedule that these plans come to.

        Args:
            points: one for each call of a region.
            free: bytes to leave free.
        """
        graph = self.graph(points, free)
        return simulate(graph, plain_run(graph))

    def graph(self, points: Sequence[RegionPoint], free: int) -> Graph:
        """Return the step as a graph: what a region keeps is a tensor, and its passes make and read it."""
        kept = [Tensor(f"kept by {path}", point.kept) for path, point in zip(self.paths, points, strict=True)]
        ops: list[Op] = []
        read: set[int] = set()
        for number, (moment, level) in enumerate(self._levels):
            if moment.running is None:
                phase = Phase.BACKWARD if moment.is_backward else Phase.FORWARD
                ops.append(Op(f"between {number}", "Eager", (), (), 0, level, phase=phase, recomputable=False))
                continue
            place, which = moment.running
            point, is_forward = points[place], which == "forward"
            if not is_forward:
                read.add(place)
            ops.append(
                Op(
                    f"{which} of {self.paths[place]}",
                    "Region",
                    () if is_forward else (kept[place].name,),
                    (kept[place].name,) if is_forward else (),
                    point.forward_time if is_forward else point.time - point.forward_time,
                    max(0, level + point.most(which) - point.kept),
                    phase=Phase.FORWARD if is_forward else Phase.BACKWARD,
                    recomputable=False,
                )
            )
        # What no gradient reaches is kept to the end.
        rest = [tensor.name for place, tensor in enumerate(kept) if place not in read]
        return build_graph(
            name="the whole step",
            kind=Kind.TRAINING,
            time_unit="ns",
            resident_bytes=self.always + free,
            tensors=kept,
            ops=ops,
            outputs=rest,
        )

    def at(self, places: Sequence[int]) -> tuple[RegionPoint, ...]:
        """Return the plans at these places, one of each curve."""
        return tuple(curve[place] for curve, place in zip(self.curves, places, strict=True))

    def smallest(self, free: int) -> Choice:
        """Choose a plan for each region, so that the step has the least peak that was found.

        Returns:
            The places of the plans, one of each curve, and the peak that no choice goes below.
        """
        chosen = self._solved(free, None)
        assert chosen is not None
        return chosen

    def tightest(self, free: int) -> Choice:
        """Choose a plan for each region, so that the step takes the least time at the least peak that was found.

        Returns:
            As `within`.
        """
        places, _ = self.smallest(free)
        points = self.at(places)
        return self.within(self.judged(points, free).peak_bytes, free) or (places, sum(point.time for point in points))

    def least(self, free: int) -> int:
        """Return the least peak that was found."""
        return self.judged(self.at(self.smallest(free)[0]), free).peak_bytes

    def within(self, budget: int, free: int) -> Choice | None:
        """Choose a plan for each region, so that the step takes the least time that was found.

        Args:
            budget: bytes.
            free: bytes to leave free.

        Returns:
            The places of the plans, one of each curve, and the time that no choice goes below; None where nothing was
            found.
        """
        return self._solved(free, budget)

    def _solved(self, free: int, budget: int | None) -> Choice | None:
        model = CpModel()
        taken = [[model.new_bool_var("") for _ in curve] for curve in self.curves]
        for literals in taken:
            model.add_exactly_one(literals)
        kept = [sum(p.kept * x for p, x in zip(c, t, strict=True)) for c, t in zip(self.curves, taken, strict=True)]
        peak = model.new_int_var(0, 2**60, "peak") if budget is None else budget
        for moment, level in self._levels:
            used = level + self.always + free + sum(kept[place] for place in sorted(moment.holding))
            if moment.running is not None:
                place, which = moment.running
                used += sum(p.most(which) * x for p, x in zip(self.curves[place], taken[place], strict=True))
            model.add(used <= peak)
        if budget is None:
            model.minimize(peak)
        else:
            pairs = zip(self.curves, taken, strict=True)
            model.minimize(sum(p.time * x for c, t in pairs for p, x in zip(c, t, strict=True)))
        solver = CpSolver()
        solver.parameters.max_time_in_seconds = _SECONDS
        solver.parameters.num_workers = 1
        if solver.solve(model) not in (OPTIMAL, FEASIBLE):
            return None
        places = tuple(next(p for p, literal in enumerate(of) if solver.boolean_value(literal)) for of in taken)
        return places, int(solver.best_objective_bound)
