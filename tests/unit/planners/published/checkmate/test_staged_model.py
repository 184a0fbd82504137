"""Checkmate's program: what is left out is left out without loss, every block of rows matters, and bounds hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Problem, Status
from remat_cli.core.solve import baseline_of
from remat_cli.planners.published.checkmate import staged_choices
from remat_cli.planners.published.checkmate.mip_solvers import installed_solver
from remat_cli.planners.published.checkmate.options import SolverName
from remat_cli.planners.published.checkmate.staged_choices import StagedChoices
from remat_cli.planners.published.checkmate.staged_holds import gap, least_holds, least_runs, reads, rerun_time
from remat_cli.planners.published.checkmate.staged_model import StagedModel
from remat_cli.planners.published.checkmate.staged_plans import StagedPlans
from remat_cli.planners.published.checkmate.staged_variables import largest_size
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.stages import Stages
from tests.graphs import (
    graph_of,
    op,
    problems,
    small_graphs,
    training_chain,
    training_graphs,
)

SOLVER = installed_solver(SolverName.AUTO)
AMPLE = Limits.of(1e5)
PROBLEMS = problems(small_graphs(max_ops=7) | training_graphs(max_forward_ops=3))


def choices_of(problem: Problem, depth: int | None = None) -> StagedChoices:
    stages = Stages.of(problem.graph)
    room = problem.budget.device_bytes - problem.graph.fixed_bytes
    return StagedChoices.of(stages, room, stages.recomputable, depth)


def without_loose_stages(problem: Problem) -> StagedChoices:
    choices = choices_of(problem)
    return staged_choices._with_loose(
        choices.stages, choices.room, choices.stages.recomputable, None, np.zeros_like(choices.is_loose)
    )


def limited(choices: StagedChoices, *, in_any_sequence: bool = False) -> StagedModel:
    """Return the program with every limit on memory within stages."""
    model = StagedModel(choices, in_any_sequence=in_any_sequence)
    for number, stage in np.argwhere(choices.may_run).tolist():
        model.limit_memory(stage, number)
    return model


def best(model: StagedModel) -> int | None:
    """Return the least extra time of a solution; None where there is none."""
    outcome = model.solve(SOLVER, AMPLE)
    assert outcome.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return outcome.bound if outcome.status is Status.OPTIMAL else None


def tight(graph: Graph, missing: int) -> Problem:
    return Problem(graph, Budget(baseline_of(graph).peak_bytes - missing))


# What is left out


@given(problem=PROBLEMS)
def test_loose_stages_decide_nothing(problem: Problem) -> None:
    assert best(StagedModel(choices_of(problem))) == best(StagedModel(without_loose_stages(problem)))
    assert best(limited(choices_of(problem))) == best(limited(without_loose_stages(problem)))


@given(problem=PROBLEMS)
def test_unconnected_recomputations_decide_nothing_but_memory_within_stages(problem: Problem) -> None:
    choices = choices_of(problem)
    connected = choices.connected()
    assert not (connected.may_run & ~choices.may_run).any()
    assert best(StagedModel(connected)) == best(StagedModel(choices))


def test_choices_are_left_out() -> None:
    two_branches = graph_of(
        op("a1", "", "x1"),
        op("a2", "x1", "x2"),
        op("a3", "x2", "x3"),
        op("b1", "", "y1"),
        op("b2", "y1", "y2"),
        op("b3", "y2", "y3"),
        op("join", "x3 y3 x2", "z"),
        sizes={"x1": 3, "x2": 4, "y1": 5, "y2": 5},
    )
    problem = tight(two_branches, 1)
    choices = choices_of(problem)
    counts = [each.may_run.sum() for each in (without_loose_stages(problem), choices, choices.connected())]
    assert counts == [28, 18, 15]


@given(problem=PROBLEMS, depth=st.integers(1, 3))
def test_depth_is_a_restriction(problem: Problem, depth: int) -> None:
    shallow, deeper, every = (best(limited(choices_of(problem, each))) for each in (depth, depth + 1, None))
    assert shallow is None or (deeper is not None and deeper <= shallow)
    assert deeper is None or (every is not None and every <= deeper)


@given(problem=PROBLEMS)
def test_relaxation_bounds_the_solutions_with_each_recomputation(problem: Problem) -> None:
    model = limited(choices_of(problem))
    relaxation, outcome = model.relax(SOLVER, AMPLE), model.solve(SOLVER, AMPLE)
    if outcome.values is None or outcome.bound is None:
        return
    assert relaxation.bound is not None
    assert relaxation.bound_if_run is not None
    assert relaxation.bound <= outcome.bound
    assert all(bound <= outcome.bound for bound in relaxation.bound_if_run[model.runs(outcome.values)])
    # And so the others can be left out.
    kept = choices_of(problem).only((relaxation.bound_if_run <= outcome.bound).astype(np.bool_))
    assert best(limited(kept)) == outcome.bound


@given(problem=PROBLEMS)
def test_limits_in_any_sequence_lie_between_none_and_those_of_staged_plans(problem: Problem) -> None:
    choices = choices_of(problem)
    none, some, all_ = (
        best(model) for model in (StagedModel(choices), limited(choices, in_any_sequence=True), limited(choices))
    )
    assert all_ is None or (some is not None and some <= all_)
    assert some is None or (none is not None and none <= some)


@given(problem=PROBLEMS)
def test_exceeding_costs_nothing_only_where_there_is_a_solution(problem: Problem) -> None:
    choices = choices_of(problem)
    relaxation = StagedModel(choices, may_exceed=True).relax(SOLVER, AMPLE)
    assert relaxation.bound is not None
    if relaxation.bound > 0:
        assert best(StagedModel(choices)) is None


@given(problem=PROBLEMS)
def test_program_is_no_larger_than_announced(problem: Problem) -> None:
    choices = choices_of(problem)
    announced = largest_size(choices.stages)
    assert StagedModel(choices).size <= announced.variables
    assert without_loose_stages(problem).may_run.sum() <= announced.variables


@given(problem=PROBLEMS, seed=st.integers(0, 2**20), share=st.sampled_from([0.1, 0.3, 0.6]))
def test_rows_hold_for_exactly_the_plans_that_fit(problem: Problem, seed: int, share: float) -> None:
    choices = without_loose_stages(problem)
    model = limited(choices)
    drawn = np.random.default_rng(seed).random(choices.may_run.shape) < share
    plan = StagedPlans(Incumbent(problem, Observer()), choices.stages).judge(drawn & choices.may_run)
    solution = model._start(plan.runs)
    assert solution is not None
    holds = all(
        (np.add.reduceat(np.append(rows.coefficient * solution[rows.variable], 0), rows.start[:-1]) >= rows.at_least)[
            np.diff(rows.start) > 0
        ].all()
        for rows in model._program._rows
    )
    assert (holds and not model._is_contradictory) == (not plan.excess)


# What is held and what is recomputed


@given(problem=PROBLEMS, seed=st.integers(0, 2**20))
def test_holds_and_recomputations_follow_from_each_other(problem: Problem, seed: int) -> None:
    choices = without_loose_stages(problem)
    stages = choices.stages
    drawn = (np.random.default_rng(seed).random(choices.may_run.shape) < 0.3) & choices.may_run
    runs = StagedPlans(Incumbent(problem, Observer()), stages).judge(drawn).runs
    holds = least_holds(stages, runs)
    least = least_runs(stages, holds)
    assert not (least & ~runs).any()
    assert (least_holds(stages, least) <= holds).all()


def test_gap_goes_from_the_last_reader_to_the_next() -> None:
    # a1 is made in stage 0 and read by f2, by b3's predecessor b2 in stage 6, and by nobody in between.
    stages = Stages.of(training_chain(3))
    none = np.zeros((len(stages), len(stages) + 1), dtype=np.bool_)
    holds, is_read = least_holds(stages, none), reads(stages, none)
    assert np.flatnonzero(is_read[0]).tolist() == [1, 5]
    assert np.flatnonzero(holds[0]).tolist() == [1, 2, 3, 4, 5]
    assert gap(holds, is_read, 0, 3) == (2, 5)
    assert rerun_time(stages, holds, none, 0, 5) == 1
    holds[1] = holds[0] = False
    assert rerun_time(stages, holds, none, 2, 5) == 3


def test_what_cannot_be_recomputed_is_not() -> None:
    graph = graph_of(op("a", "", "x", recomputable=False), op("b", "x", "y"), op("c", "y", "z"), op("d", "z y", "w"))
    stages = Stages.of(graph)
    holds = np.zeros((len(stages.bytes), len(stages) + 1), dtype=np.bool_)
    assert np.argwhere(least_runs(stages, holds)).tolist() == [[1, 2], [1, 3], [1, 4], [2, 3], [2, 4], [3, 4]]
    assert rerun_time(stages, holds, np.zeros((4, 5), dtype=np.bool_), 1, 3) is None


# Every block of rows


def nothing(*_: object) -> None:
    """In place of a block of rows."""


def wide_rerun() -> Problem:
    """While `b` is recomputed for `f`, it has no room beside what `f` reads, too, unless `c` is run again after it."""
    graph = graph_of(
        op("a", "", "ta"),
        op("b", "ta", "tb", workspace_bytes=6),
        op("c", "tb", "tc"),
        op("d", "", "big"),
        op("e", "big tc", "te"),
        op("f", "te tb tc", "tf"),
        sizes={"tb": 5, "big": 8, "tc": 4},
    )
    return Problem(graph, Budget(13))


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("_add_supplies", tight(training_chain(6), 1)),
        ("_add_continuity", tight(training_chain(6), 1)),
        ("_limit_first_run", tight(training_chain(6), 1)),
        ("_limit_rerun", wide_rerun()),
    ],
)
def test_without_a_block_of_rows_the_program_promises_too_much(
    block: str, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = best(limited(choices_of(problem)))
    assert complete is None or complete > 0
    monkeypatch.setattr(StagedModel, block, nothing)
    faulty = best(limited(choices_of(problem)))
    assert faulty is not None
    assert complete is None or faulty < complete
