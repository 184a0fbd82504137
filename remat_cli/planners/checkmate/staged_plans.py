"""Staged plans as schedules: what they cost, where they exceed the budget, and the best of them so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from remat_cli.planners.shared.stages import Bools, Stages
from remat_cli.problem import Observer, Problem
from remat_cli.schedule import Compute, Inplace, Schedule, with_frees
from remat_cli.simulate import simulate


@dataclass(frozen=True, eq=False)
class StagedPlan:
    """A plan, measured by the judge.

    Attributes:
        runs: [N, N + 1] what is recomputed in which stage.
        schedule: its steps.
        extra_time: beyond that of the plain run.
        peak_bytes: fixed bytes included.
        excess: the runs while which memory is above the budget, as (stage, op), and by how many bytes.
    """

    runs: Bools
    schedule: Schedule
    extra_time: int
    peak_bytes: int
    excess: Mapping[tuple[int, int], int]


class StagedPlans:
    """Turns recomputations into plans, keeps the best, and tells the observer of each better one.

    Attributes:
        best: the plan of least time that fits; None before one was found.
        closest: the plan of the smallest peak.
        judged: how many plans were measured.
    """

    def __init__(self, problem: Problem, stages: Stages, observe: Observer) -> None:
        self.best: StagedPlan | None = None
        self.judged = 0
        self._problem = problem
        self._stages = stages
        self._observe = observe
        self._names = [problem.graph.ops[op].name for op in stages.order.tolist()]
        self._inputs = [stages.inputs[op].tolist() for op in range(len(stages))]
        self._outputs = [stages.outputs[op].tolist() for op in range(len(stages))]
        self._kept = stages.read_tensor[stages.read_stage == len(stages)].tolist()
        self.closest = self.judge(np.zeros((len(stages), len(stages) + 1), dtype=np.bool_))

    @property
    def least_time(self) -> int | None:
        """Extra time of the best plan; None before one was found."""
        return None if self.best is None else self.best.extra_time

    def judge(self, runs: Bools) -> StagedPlan:
        """Measure the plan that recomputes `runs`, less what that does in vain, and keep it if it is better."""
        graph = self._problem.graph
        runs = self._useful(runs)
        sequence = [(stage, op) for stage in range(len(self._stages) + 1) for op in self._turns(runs, stage)]
        schedule = with_frees(graph, (self._names[op] for _, op in sequence))
        trace = simulate(graph, schedule)
        while_running = [
            memory
            for step, memory in zip(schedule.steps, trace.memory_bytes[1:], strict=True)
            if isinstance(step, Compute | Inplace)
        ]
        budget = self._problem.budget.device_bytes
        excess = {key: memory - budget for key, memory in zip(sequence, while_running, strict=True) if memory > budget}
        plan = StagedPlan(runs, schedule, trace.time - graph.total_time, trace.peak_bytes, excess)
        self.judged += 1
        self._keep(plan)
        return plan

    def _keep(self, plan: StagedPlan) -> None:
        if self.judged == 1 or plan.peak_bytes < self.closest.peak_bytes:
            self.closest = plan
        fits = plan.peak_bytes <= self._problem.budget.device_bytes
        if fits and (self.best is None or plan.extra_time < self.best.extra_time):
            self.best = plan
            self._observe.found(plan.schedule)

    def _turns(self, runs: Bools, stage: int) -> list[int]:
        """Return the ops that a stage runs, in order."""
        again: list[int] = np.flatnonzero(runs[:, stage]).tolist()
        return [*again, stage] if stage < len(self._stages) else again

    def _useful(self, runs: Bools) -> Bools:
        """Leave out the recomputations none of whose outputs is read before it is made again."""
        useful = np.zeros_like(runs)
        needed = set(self._kept)
        for stage in range(len(self._stages), -1, -1):
            for op in reversed(self._turns(runs, stage)):
                if op == stage or not needed.isdisjoint(self._outputs[op]):
                    useful[op, stage] = op != stage
                    needed.difference_update(self._outputs[op])
                    needed.update(self._inputs[op])
        return useful
