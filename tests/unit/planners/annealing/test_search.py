"""The search: what it finds where neither an order nor recomputation will do alone, and its limits."""

from __future__ import annotations

import pytest

from remat_cli.core.problem import Observer, Status
from remat_cli.core.solve import solve
from remat_cli.errors import UsageError
from remat_cli.generate.layered import Layered
from remat_cli.planners.annealing.planner import Annealing
from remat_cli.synthesis import synthesize
from tests.graphs import training_chain
from tests.plans import at_share

TANGLED = synthesize(Layered(), ops=60).graph


def test_plans_tangled_graphs_in_little_memory() -> None:
    solution = solve(at_share(TANGLED, 0.55), Annealing(work_limit=0.01))
    assert solution.status == Status.FEASIBLE
    assert solution.warnings == ()


def test_the_same_work_finds_the_same_plan() -> None:
    problem = at_share(TANGLED, 0.55)
    first, second = (Annealing(work_limit=0.002).plan(problem, Observer()) for _ in range(2))
    assert first == second


def test_plain_run_that_fits_ends_the_search() -> None:
    result = Annealing().plan(at_share(training_chain(5), 1.0), Observer())
    assert (result.status, dict(result.stats)) == (Status.OPTIMAL, {"rounds": 0})


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="gap"):
        Annealing(gap=-1.0)
