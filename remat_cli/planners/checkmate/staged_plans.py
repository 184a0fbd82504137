"""Staged plans as sequences: what they cost, and where they exceed the budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Bools, Stages
from remat_cli.problem import Plan


@dataclass(frozen=True, eq=False)
class StagedPlan:
    """A plan, measured.

    Attributes:
        runs: [N, N + 1] what is recomputed in which stage.
        plan: what it costs.
        extra_time: beyond that of the plain run.
        excess: the runs while which memory is above the budget, as (stage, op), and by how many bytes.
    """

    runs: Bools
    plan: Plan
    extra_time: int
    excess: Mapping[tuple[int, int], int]


class StagedPlans:
    """Turns recomputations into plans, and remembers what the best of them recomputes.

    Attributes:
        incumbent: the best plans.
        best: the plan of least time that fits; None before one was found.
        closest: the plan of the smallest peak.
    """

    def __init__(self, incumbent: Incumbent, stages: Stages) -> None:
        """Begin with the plain run."""
        self.incumbent = incumbent
        self.best: StagedPlan | None = None
        self._stages = stages
        self.closest = self._measure(np.zeros((len(stages), len(stages) + 1), dtype=np.bool_))
        self._keep(self.closest)

    @property
    def least_time(self) -> int | None:
        """Extra time of the best plan; None before one was found."""
        return None if self.best is None else self.best.extra_time

    def judge(self, runs: Bools) -> StagedPlan:
        """Measure the plan that recomputes `runs`, less what that does in vain, and keep it if it is better."""
        plan = self._measure(runs)
        self._keep(plan)
        return plan

    def _measure(self, runs: Bools) -> StagedPlan:
        graph, count = self._stages.graph, len(self._stages)
        stage, op = np.nonzero(runs.T)
        # Within a stage recomputations come first, in the order of their first runs; then its own op.
        stage = np.concatenate([stage, np.arange(count)])
        op = np.concatenate([op, np.arange(count)])
        in_turn = np.lexsort((op, stage))
        stage, op = stage[in_turn], op[in_turn]
        whole = RematSequence.of(graph, self._stages.order[op])
        useful = whole.is_useful
        stage, op = stage[useful], op[useful]
        sequence = RematSequence(whole.reads, whole.ops[useful])
        again = np.zeros_like(runs)
        again[op, stage] = op != stage
        over = sequence.memory - self.incumbent.problem.budget.device_bytes
        short = np.flatnonzero(over > 0)
        turns = zip(stage[short].tolist(), op[short].tolist(), strict=True)
        excess = dict(zip(turns, over[short].tolist(), strict=True))
        plan = self.incumbent.offer(sequence)
        return StagedPlan(again, plan, plan.time - graph.total_time, excess)

    def _keep(self, plan: StagedPlan) -> None:
        if plan.plan is self.incumbent.best:
            self.best = plan
        if plan.plan.peak_bytes < self.closest.plan.peak_bytes:
            self.closest = plan
