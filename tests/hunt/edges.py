"""Problems of 16 to 400 ops whose budget lies at the edge: where plans end, and proofs that nothing fits begin."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Problem, Scope, Status
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import Solution, solve
from remat_cli.errors import PlannerRefuses
from remat_cli.generate.layered import Layered
from remat_cli.generate.transformer import Transformer
from remat_cli.planning.given import Given
from remat_cli.synthesis import synthesize
from tests.graphs import training_chain, training_unet
from tests.hunt.claims import check_by_each_other, planners
from tests.hunt.problems import resized, tangled, varied
from tests.hunt.staged_program import SOLVERS, plan_by_solver, suits

_FEWEST, _MOST = 60, 400
# For one graph in three: so small that SCIP and HiGHS find plans.
_FEWEST_FOR_SOLVERS = 16
# As much longer than planners may such a solver search.
_TIMES_FOR_SOLVERS = 5
# Planners that go on to a small peak where they find nothing that fits.
_FINDERS = ("dtr", "retention", "checkmate_lp")


@dataclass(frozen=True)
class Edge:
    """A problem at the edge.

    Attributes:
        problem: its budget lies from the largest working set to just above the smallest peak of `runs`.
        runs: plans of a small peak; some may exceed the budget.
    """

    problem: Problem
    runs: tuple[Trace, ...]


def edge(seed: int, seconds: float) -> Edge:
    """Draw a graph and a budget; each planner that looks for the smallest peak gets so many seconds."""
    rng = random.Random(seed)
    graph = drawn_graph(rng)
    low, runs = largest_working_set(graph).bytes, _runs_of_small_peak(graph, seconds)
    high = min(run.peak_bytes for run in runs)
    within = [rng.randrange(low, high + 1) for _ in range(4)]
    return Edge(Problem(graph, Budget(max(low, rng.choice([low, high - 1, high - 1, high, high + 1, *within])))), runs)


def drawn_graph(rng: random.Random) -> Graph:
    """Draw a graph of 60 to 400 ops, or few more; one in three has 16 to 60."""
    is_large, seed = rng.random() < 2 / 3, rng.randrange(2**32)
    count = rng.randrange(_FEWEST, _MOST + 1) if is_large else rng.randrange(_FEWEST_FOR_SOLVERS, _FEWEST)
    match rng.choice(["chain", "unet", "tangled", "layered", "transformer"]):
        case "chain":
            graph = training_chain(count // 2)
        case "unet":
            graph = training_unet(min(count // 4, 40))  # sizes double with each level
        case "tangled":
            graph = tangled(seed, count)
        case "layered":
            graph = synthesize(Layered(seed=seed), ops=count).graph
        case _:
            graph = synthesize(Transformer(), ops=count).graph
    if rng.random() < 0.7:
        graph = resized(graph, seed, times=rng.choice(["as drawn", "nanoseconds"]))  # longer ones add up to too much
    return varied(graph, seed) if rng.random() < 0.5 else graph


def _runs_of_small_peak(graph: Graph, seconds: float) -> tuple[Trace, ...]:
    problem = Problem(graph, Budget(largest_working_set(graph).bytes))
    runs: list[Trace] = []
    for name, planner in planners(time_limit=seconds).items():
        if name in _FINDERS:
            try:
                solution = solve(problem, planner)
            except PlannerRefuses:
                continue
            runs += [run for run in (solution.trace, solution.closest) if run is not None]
    return tuple(runs)


def check_edge(at: Edge, seconds: float) -> Counter[str]:
    """Hold each planner's verdict against all others' plans, those of solvers, and `runs`.

    Return how many verdicts of each kind, and how many plans of each solver.
    """
    others = {}
    for solver in SOLVERS if suits(at.problem.graph) else ():
        schedule = plan_by_solver(at.problem, solver, _TIMES_FOR_SOLVERS * seconds)
        if schedule is not None:
            others[solver] = solve(at.problem, Given(schedule, solver))
    found = check_by_each_other(at.problem, others=others, time_limit=seconds)
    for name, solution in found.items():
        check_runs(name, solution, at)
    return Counter(f"by {name}" if name in others else _verdict(solution) for name, solution in found.items())


def _verdict(solution: Solution) -> str:
    is_proof = solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return f"{solution.status} ({solution.scope})" if is_proof else str(solution.status)


def check_runs(name: str, solution: Solution, at: Edge) -> None:
    """Hold a verdict against runs that fit the budget."""
    given_order = [op.name for op in at.problem.graph.ops]
    for run in at.runs:
        if solution.status is Status.INFEASIBLE and run.peak_bytes <= at.problem.budget.device_bytes:
            keeps_order = list(run.runs) == given_order
            is_within = solution.scope in (Scope.ANY_PLAN, Scope.ANY_ORDER) or (
                solution.scope is Scope.FIXED_ORDER and keeps_order
            )
            assert not is_within, f"{name} proves that nothing fits, but a plan of {run.peak_bytes} bytes does"
