"""Staged plans as sequences: costs, excess memory and repair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from remat_cli.core.problem import Plan
from remat_cli.planners.published.checkmate.staged_holds import gap, least_holds, least_runs, reads, rerun_time
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages


@dataclass(frozen=True, eq=False)
class StagedPlan:
    """A staged plan with its measured costs.

    Attributes:
        runs: [N, N + 1] whether each op is recomputed in each stage.
        plan: the plan with its costs.
        extra_time: time beyond that of the plain run.
        excess: bytes above the budget during each run that exceeds it, by (stage, op).
    """

    runs: Bools
    plan: Plan
    extra_time: int
    excess: Mapping[tuple[int, int], int]


class StagedPlans:
    """Turns recomputations into plans, and keeps the best.

    Attributes:
        incumbent: keeps the best plan.
        best: the plan of least time that fits; None before there is one.
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
        """Extra time of the best plan; None before there is one."""
        return None if self.best is None else self.best.extra_time

    def judge(self, runs: Bools) -> StagedPlan:
        """Measure the plan that recomputes `runs`, and keep it if better.

        Useless reruns are dropped.
        """
        plan = self._measure(runs)
        self._keep(plan)
        return plan

    def _measure(self, runs: Bools) -> StagedPlan:
        sequence = RematSequence.of_stages(self._stages, *np.nonzero(runs)).without_useless_reruns()
        # Stages follow the input order: an op has the number of its stage.
        op, stage = sequence.ops, np.cumsum(~sequence.is_rerun, dtype=np.int64) - ~sequence.is_rerun
        again = np.zeros_like(runs)
        again[op, stage] = sequence.is_rerun
        over = sequence.memory - self.incumbent.problem.budget.device_bytes
        short = np.flatnonzero(over > 0)
        turns = zip(stage[short].tolist(), op[short].tolist(), strict=True)
        excess = dict(zip(turns, over[short].tolist(), strict=True))
        plan = self.incumbent.offer(sequence)
        return StagedPlan(again, plan, plan.time - self._stages.graph.total_time, excess)

    def _keep(self, plan: StagedPlan) -> None:
        if plan.plan is self.incumbent.best:
            self.best = plan
        if plan.plan.peak_bytes < self.closest.plan.peak_bytes:
            self.closest = plan


class StagedRepair:
    """Changes plans step by step, as long as there is time."""

    def __init__(self, stages: Stages, plans: StagedPlans, limits: Limits) -> None:
        self._stages = stages
        self._plans = plans
        self._limits = limits

    def improve(self, plan: StagedPlan, changes: int) -> None:
        """Make a plan fit, then faster; the plans on the way are judged."""
        plan = self._fitted(plan, changes)
        if not plan.excess:
            self._thin_out(plan)

    def _fitted(self, plan: StagedPlan, changes: int) -> StagedPlan:
        """Drop tensors where memory is shortest until the plan fits.

        The plan stays unfit if no tensor is left to drop.
        """
        for _ in range(changes):
            holds = least_holds(self._stages, plan.runs)
            if not plan.excess or self._limits.is_over or not self._drop_cheapest(plan, holds):
                break
            plan = self._plans.judge(least_runs(self._stages, holds))
        return plan

    def _thin_out(self, plan: StagedPlan) -> None:
        """Drop recomputations, dearest first, as long as the plan fits.

        Their outputs are held instead.
        """
        op, stage = np.nonzero(plan.runs)
        for each in np.argsort(-self._stages.time[op], kind="stable").tolist():
            if self._limits.is_over:
                return
            runs = plan.runs.copy()
            runs[op[each], stage[each]] = False
            if plan.runs[op[each], stage[each]] and not (without := self._plans.judge(runs)).excess:
                plan = without

    def _drop_cheapest(self, plan: StagedPlan, holds: Bools) -> bool:
        """Drop the cheapest tensor from `holds` where memory is shortest.

        The cost is time per byte relieved. Returns whether there was such a tensor.
        """
        stages = self._stages
        (stage, op), _ = max(plan.excess.items(), key=lambda item: (item[1], item[0]))
        is_read = reads(stages, plan.runs)
        over = np.zeros(len(stages) + 1, dtype=np.int64)
        for (short, _), missing in plan.excess.items():
            over[short] = max(over[short], missing)
        best: tuple[float, int, int, int] | None = None
        for tensor in self._idle(plan.runs, holds, stage, op):
            first, last = gap(holds, is_read, tensor, stage)
            time = rerun_time(stages, holds, plan.runs, int(stages.produced_at[tensor]), last)
            if time is not None:
                relief = int(np.minimum(over[min(first, stage) : last], stages.bytes[tensor]).sum())
                best = min(best or (np.inf, 0, 0, 0), (time / relief, tensor, first, last))
        if best is None:
            return False
        _, tensor, first, last = best
        holds[tensor, first : last + 1] = False
        return True

    def _idle(self, runs: Bools, holds: Bools, stage: int, op: int) -> list[int]:
        """Return the tensors in memory during a run that only later stages need."""
        stages = self._stages
        if stage == len(stages):
            return []
        is_made = runs[stages.produced_at, stage] & (stages.produced_at <= op)
        is_idle = holds[:, stage + 1] & (holds[:, stage] | is_made)
        for turn in (*(np.flatnonzero(runs[op:, stage]) + op).tolist(), stage):
            is_idle[stages.inputs[turn]] = False
        is_idle[stages.outputs[op]] = False
        return [int(tensor) for tensor in np.flatnonzero(is_idle)]
