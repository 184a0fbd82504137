"""Plans of chains of lower sets, their costs, and the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer, Plan, Problem
from remat_cli.core.schedule import Compute, Free, Inplace, Schedule, Step, with_frees
from remat_cli.planners.published.lower_sets.families import LowerSets
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.sequence import RematSequence

# The power of a phase's peak over the budget, so high that phases well below the budget do not count.
_PRESSURE = 24


def canonical_phases(sets: LowerSets, chain: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the runs of a chain's canonical strategy.

    2019, section 3.

    The forward blocks run one after the other, and only the boundaries are kept; then, from the last block to the
    first, the dropped part of the block is recomputed and its backward ops run. The frees follow from these runs.
    Source: Kusumoto et al. 2019, section 3. The backward ops of a block are those that differentiate its forward ops; a
    backward op without `grad_of` (a sum of gradients) runs as soon as its inputs are in memory. The last block is not
    dropped, and of a dropped block only the part that its backward needs is recomputed. Ops that must run once are
    never dropped.

    Args:
        sets: the family that the chain is taken from.
        chain: numbers of the sets L_1 to L_k = V.

    Returns:
        Numbers of the graph's ops, by phase: the forward phases 1 to k, then the backward phases k to 1, which begin
            with their recomputed ops.
    """
    forward, chosen = sets.forward, list(chain)
    block = np.argmax(sets.members[chosen], axis=0)  # block of each vertex
    is_kept = (block == len(chosen) - 1) | sets.boundary[chosen].any(axis=0)
    is_kept[forward.must_stay] = True
    is_there = is_kept.tolist()
    phases = [tuple(forward.ops[block == number].tolist()) for number in range(len(chosen))]
    blocks: list[list[int]] = [[] for _ in chosen]
    for op, number in forward.places_of_backward(block.tolist(), len(chosen) - 1).items():
        blocks[number].append(op)
    for ops in reversed(blocks):
        again = forward.missing((v for op in ops for v in forward.reads[op]), is_there)
        phases.append((*forward.ops[again].tolist(), *ops))
    return tuple(phases)


@dataclass(frozen=True, eq=False)
class ChainPlan:
    """The plan of a chain.

    Attributes:
        plan: the plan with its costs.
        pressure: how far its phases exceed the budget, see `ChainPlans.urgency`.
    """

    plan: Plan
    pressure: float


class ChainPlans:
    """Measures the plans of one problem, each once.

    Attributes:
        incumbent: keeps the best plan.
        sets: the family that chains are taken from.
        best_chain: the chain of the best plan; empty before the first measurement.
    """

    def __init__(self, problem: Problem, sets: LowerSets, liveness: bool, observe: Observer) -> None:
        """Begin without plans.

        Args:
            problem: the problem to plan.
            sets: the family that chains are taken from.
            liveness: whether tensors are freed right after their last use, or only at the end of a phase.
            observe: receives each better plan that fits.
        """
        self.incumbent = Incumbent(problem, observe)
        self.sets = sets
        self.best_chain: tuple[int, ...] = ()
        self._liveness = liveness
        self._measured: dict[tuple[int, ...], ChainPlan] = {}  # by chain

    def measure(self, chain: Sequence[int]) -> ChainPlan:
        """Measure the plan of a chain, and keep the best.

        Args:
            chain: numbers of the sets L_1 to L_k = V.
        """
        key = tuple(chain)
        if key not in self._measured:
            self._measured[key] = self._measure(canonical_phases(self.sets, chain))
            best = self._measured.get(self.best_chain)
            if best is None or self.merit(self._measured[key]) < self.merit(best):
                self.best_chain = key
        return self._measured[key]

    def _measure(self, phases: Sequence[Sequence[int]]) -> ChainPlan:
        graph = self.incumbent.problem.graph
        budget = max(self.incumbent.problem.budget.device_bytes, 1)
        if not self._liveness:
            plan = self.incumbent.offer(with_late_frees(graph, phases))
            return ChainPlan(plan, (plan.peak_bytes / budget) ** _PRESSURE)
        sequence = RematSequence.of(graph, (op for phase in phases for op in phase))
        lengths = np.array([len(phase) for phase in phases if phase])
        peaks = np.maximum.reduceat(sequence.memory, np.cumsum(lengths) - lengths)
        return ChainPlan(self.incumbent.offer(sequence), float(((peaks / budget) ** _PRESSURE).sum()))

    def merit(self, plan: ChainPlan) -> tuple[int, int, int]:
        """Rank plans: first those that fit, by time; then the rest, by peak."""
        return self.incumbent.merit(plan.plan)

    def urgency(self, plan: ChainPlan) -> tuple[int, float, int]:
        """Rank plans for local search.

        The order is that of `merit`, but plans that do not fit are ranked by all phases that are too large. Often
        several phases have about the same peak, and a step that lowers one of them does not lower the largest. The sum
        of a high power of each phase's peak shows the step.
        """
        if self.incumbent.fits(plan.plan):
            return self.merit(plan)
        return (1, plan.pressure, plan.plan.peak_bytes)

    @property
    def any_fits(self) -> bool:
        """Whether a measured plan fits the budget."""
        return self.incumbent.best is not None

    @property
    def count(self) -> int:
        """Number of measured plans."""
        return len(self._measured)


def with_late_frees(graph: Graph, phases: Sequence[Sequence[int]]) -> Schedule:
    """Return the schedule of a strategy without liveness analysis.

    Tensors are freed only at the end of a phase. Each instance of a tensor is freed at the end of the phase that holds
      its last use, and no op works in place.
    Source: Kusumoto et al. 2019, Table 2.

    Args:
        graph: the graph that the schedule executes.
        phases: numbers of the ops that each phase runs, in order.
    """
    ends = set(accumulate(len(phase) for phase in phases))
    steps: list[Step] = []
    dead: dict[str, None] = {}  # tensors to free at the end of the phase; a dict keeps their order
    ops_run = 0
    for step in with_frees(graph, (graph.ops[op].name for phase in phases for op in phase)).steps:
        match step:
            case Free(tensor=name):
                dead[name] = None
            case Compute(op=op) | Inplace(op=op):
                if ops_run in ends:
                    steps += map(Free, dead)
                    dead.clear()
                steps.append(Compute(op))
                ops_run += 1
                for name in graph.op[op].outputs:  # a recomputed instance overwrites the old one
                    dead.pop(name, None)
                if isinstance(step, Inplace):
                    dead[str(graph.op[op].inplace)] = None
    steps += map(Free, dead)
    return Schedule(tuple(steps))
