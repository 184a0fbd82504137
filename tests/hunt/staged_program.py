"""The staged program of Checkmate, written anew for SCIP and HiGHS: it finds plans, and shares nothing with planners.

Stage t ends with the first run of op t. In each stage an op runs at most once, in the graph's order; a tensor may be
freed after each op that makes or reads it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ortools.linear_solver import pywraplp

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Compute, Free, Schedule, Step
from tests.second_judge import replayed

# Larger programs take too long.
_MOST_VARIABLES = 15_000
SOLVERS = ("SCIP", "HIGHS")


def suits(graph: Graph) -> bool:
    """Whether the program of a graph is small enough, and the graph has nothing that it cannot say."""
    touches = sum(len(op.inputs) + len(op.outputs) for op in graph.ops)
    is_plain = not any(tensor.held or tensor.resident for tensor in graph.tensors.values())
    return is_plain and len(graph.ops) * (len(graph.ops) + touches) <= _MOST_VARIABLES


def plan_by_solver(problem: Problem, solver: str, seconds: float) -> Schedule | None:
    """Return a plan within the budget that SCIP or HiGHS finds; None without one that the second judge lets pass."""
    graph, budget = problem.graph, problem.budget.device_bytes
    program = _Program(graph, budget, solver)
    program.solver.SuppressOutput()
    program.solver.SetTimeLimit(int(seconds * 1000))
    if program.solver.Solve() not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return None
    schedule = program.schedule()
    try:
        peak, _ = replayed(graph, schedule, None)
    except AssertionError:  # a number that is whole to the solver's tolerance only
        return None
    return schedule if peak <= budget else None


class _Program:
    """The program of a graph within a budget.

    Attributes:
        solver: has the program.
    """

    def __init__(self, graph: Graph, budget: int, name: str) -> None:
        self._graph = graph
        self.solver = pywraplp.Solver.CreateSolver(name)
        self._runs: dict[tuple[int, int], Any] = {}
        self._starts: dict[tuple[int, str], Any] = {}
        self._frees: dict[tuple[int, int, str], Any] = {}
        self._count = len(graph.ops)
        self._made_by = {name: place for place, op in enumerate(graph.ops) for name in op.outputs}
        self._touched_by: dict[str, list[int]] = defaultdict(list)
        for place, op in enumerate(graph.ops):
            for tensor in {*op.outputs, *op.inputs} & self._made_by.keys():
                self._touched_by[tensor].append(place)
        self._add_variables()
        self._add_runs()
        self._add_starts()
        self._add_frees()
        self._add_memory(budget)
        time = sum(op.time for op in graph.ops) or 1
        self.solver.Minimize(self.solver.Sum(v * (graph.ops[i].time / time) for (_, i), v in self._runs.items()))

    def _add_variables(self) -> None:
        new = self.solver.BoolVar
        for stage in range(self._count + 1):
            for tensor, place in self._made_by.items():
                if place < stage:
                    self._starts[stage, tensor] = new("")
            for place in range(stage + 1 if stage < self._count else 0):
                self._runs[stage, place] = new("")
                op = self._graph.ops[place]
                for tensor in {*op.outputs, *op.inputs} & self._made_by.keys():
                    self._frees[stage, place, tensor] = new("")

    def _add_runs(self) -> None:
        """An op runs where its inputs are there or made; it makes nothing that is there."""
        add, runs, starts = self.solver.Add, self._runs, self._starts
        for (stage, place), run in runs.items():
            op = self._graph.ops[place]
            if place == stage or not op.recomputable:
                add(run == int(place == stage))
            for tensor in set(op.inputs) & self._made_by.keys():
                add(run <= starts.get((stage, tensor), 0) + runs[stage, self._made_by[tensor]])
            for tensor in op.outputs:
                if (stage, tensor) in starts:
                    add(run + starts[stage, tensor] <= 1)

    def _add_starts(self) -> None:
        """A tensor is there as a stage starts if it was there before, or was made; results are there at the end."""
        for (stage, tensor), start in self._starts.items():
            before = self._starts.get((stage - 1, tensor), 0)
            self.solver.Add(start <= before + self._runs.get((stage - 1, self._made_by[tensor]), 0))
            if stage == self._count and tensor in self._graph.outputs:
                self.solver.Add(start == 1)

    def _add_frees(self) -> None:
        """A tensor is freed once in a stage, after its last reader there, and only if the next stage starts without."""
        add, runs, starts, frees = self.solver.Add, self._runs, self._starts, self._frees
        for (stage, place, tensor), free in frees.items():
            add(free <= runs[stage, place])
            add(free + starts[stage + 1, tensor] <= 1)
            for later in self._touched_by[tensor]:
                if place < later <= stage:
                    add(free + runs[stage, later] <= 1)
        for stage in range(self._count):
            for tensor, places in self._touched_by.items():
                freed = [frees[stage, place, tensor] for place in places if place <= stage]
                if freed:
                    add(sum(freed) <= starts.get((stage, tensor), 0) + runs[stage, self._made_by[tensor]])

    def _add_memory(self, budget: int) -> None:
        """Memory stays within the budget at each op; its unit is a power of 2, so that no number is rounded."""
        unit = 2.0 ** budget.bit_length()
        size = {name: self._graph.tensors[name].bytes / unit for name in self._made_by}
        room = (budget - self._graph.fixed_bytes) / unit
        for stage in range(self._count):
            memory = [v * size[name] for (at, name), v in self._starts.items() if at == stage]
            for place in range(stage + 1):
                op, run = self._graph.ops[place], self._runs[stage, place]
                memory += [run * size[name] for name in op.outputs]
                total = self.solver.NumVar(0, room, "")
                self.solver.Add(total == self.solver.Sum(memory))
                self.solver.Add(total + run * (op.workspace_bytes / unit) <= room)
                freed = {*op.outputs, *op.inputs} & self._made_by.keys()
                memory = [total, *(self._frees[stage, place, name] * -size[name] for name in freed)]

    def schedule(self) -> Schedule:
        """Return the plan of the solution."""
        steps: list[Step] = []
        there: set[str] = set()

        def free(names: set[str]) -> None:
            steps.extend(Free(name) for name in sorted(names & there))
            there.difference_update(names)

        def is_set(variable: Any) -> bool:
            return bool(variable.solution_value() > 0.5)

        for stage in range(self._count):
            free({name for name in there if not is_set(self._starts[stage, name])})
            for place in range(stage + 1):
                if is_set(self._runs[stage, place]):
                    op = self._graph.ops[place]
                    steps.append(Compute(op.name))
                    there.update(op.outputs)
                    touched = {*op.outputs, *op.inputs} & self._made_by.keys()
                    free({name for name in touched if is_set(self._frees[stage, place, name])})
        return Schedule(tuple(steps))
