"""The parts of `moccasin`: slots, model and hints, and how its search ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Problem, Scope, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import UsageError
from remat_cli.planners.published.moccasin.model import IntervalModel
from remat_cli.planners.published.moccasin.options import FirstRuns
from remat_cli.planners.published.moccasin.planner import Moccasin
from remat_cli.planners.published.moccasin.slots import EventSlots, line_slots, staged_slots
from remat_cli.planners.shared.cp_sat import solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.scaling import Rounding
from tests.graphs import (
    chain,
    diamond,
    graph_of,
    in_place,
    multi_output,
    op,
    problems,
    small_graphs,
    training_chain,
    training_graphs,
    training_unet,
    with_workspace,
)
from tests.plans import Impatient, RecordingObserver, at_share

LIMITS = Limits.of(1e5)


def skip() -> Graph:
    """`b` is read at once and again at the end; in between `c` is large. Plain run: 4, 8, 12, 13, 6."""
    return graph_of(
        op("a", "", "ta"),
        op("b", "ta", "tb"),
        op("c", "tb", "tc"),
        op("d", "tc", "td"),
        op("e", "tb td", "te"),
        sizes={"ta": 4, "tb": 4, "tc": 8, "td": 1, "te": 1},
    )


def lists(places: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(each) for each in places]


def test_staged_slots_are_where_a_run_can_be_of_use() -> None:
    slots = staged_slots(skip(), 10, FirstRuns.INPUT, 2)
    assert lists(slots.first) == [[0], [1], [2], [3], [4]]
    # `e` reads what `b` made before stages 2 and 3, which are over budget; `b` made again reads what `a` makes again.
    assert lists(slots.again) == [[4], [4], [], [], []]
    assert slots.most_runs == [2, 2, 1, 1, 1]
    assert lists(staged_slots(skip(), 10, FirstRuns.INPUT, 2, depth=1).again) == [[], [4], [], [], []]


def test_no_stage_over_budget_leaves_no_slot_for_further_runs() -> None:
    slots = staged_slots(skip(), 13, FirstRuns.INPUT, 2)
    assert slots.most_runs == [1] * 5
    assert slots.count == 5


def test_further_runs_keep_to_recomputable_ops_and_their_number() -> None:
    graph = graph_of(op("a", "", "ta", recomputable=False), op("b", "ta", "tb"), op("c", "ta tb", "tc"))
    assert line_slots(graph, FirstRuns.FREE, 3).most_runs == [1, 3, 3]
    assert line_slots(graph, FirstRuns.FREE, 1).most_runs == [1, 1, 1]
    assert staged_slots(skip(), 10, FirstRuns.INPUT, 1).most_runs == [1] * 5


def test_line_slots_leave_room_for_what_must_come_before_and_after() -> None:
    graph = diamond()
    free = line_slots(graph, FirstRuns.FREE, 2)
    assert free.end == 8
    assert list(free.first) == [range(0, 5), range(1, 7), range(1, 7), range(3, 8)]
    assert list(line_slots(graph, FirstRuns.INPUT, 2).first) == [range(0, 5), range(1, 6), range(2, 7), range(3, 8)]


def test_first_runs_wait_in_a_free_order_only() -> None:
    free = staged_slots(skip(), 10, FirstRuns.FREE, 2)
    # The last stage comes after all ops' own.
    assert lists(free.first) == [[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [2, 3, 4, 5], [3, 4, 5], [4, 5]]
    assert lists(staged_slots(skip(), 10, FirstRuns.FREE, 2, depth=1).first) == [
        [0, 1],
        [1, 2, 4],
        [2, 3],
        [3, 4],
        [4, 5],
    ]


def all_slots(graph: Graph, budget: int, max_retentions: int) -> list[EventSlots]:
    return [
        slots
        for order in FirstRuns
        for slots in (
            line_slots(graph, order, max_retentions),
            staged_slots(graph, budget, order, max_retentions),
            staged_slots(graph, budget, order, max_retentions, depth=1),
        )
    ]


@given(
    problem=problems(small_graphs(max_ops=5) | training_graphs(max_forward_ops=2)),
    max_retentions=st.integers(1, 3),
    which=st.integers(0, 5),
)
def test_plans_are_complete_hints(problem: Problem, max_retentions: int, which: int) -> None:
    """What a model found is, as a hint, a solution to another model just like it: nothing is left to decide."""
    graph = problem.graph
    slots = all_slots(graph, problem.budget.device_bytes, max_retentions)[which]
    room = problem.budget.device_bytes - graph.fixed_bytes
    fix = {"fix_variables_to_their_hinted_value": True}

    def model() -> IntervalModel:
        return IntervalModel(graph, slots)

    plain = model()
    unit = plain.minimise_peak(0, baseline_of(graph).peak_bytes - graph.fixed_bytes)
    plain.hint(slots.plain_starts)
    outcome = solve_model(plain.model, LIMITS, rounding=Rounding.RELAX, settings=fix)
    assert outcome.bound is not None
    assert outcome.bound * unit == baseline_of(graph).peak_bytes - graph.fixed_bytes
    first = model()
    first.minimise_time(max(0, room))
    found = solve_model(first.model, LIMITS, rounding=Rounding.RELAX)
    if found.values is not None:
        second = model()
        second.minimise_time(max(0, room))
        second.hint(first.starts(found.values))
        again = solve_model(second.model, LIMITS, rounding=Rounding.RELAX, settings=fix)
        assert again.values is not None
        assert second.starts(again.values) == first.starts(found.values)


@pytest.mark.parametrize(
    "graph",
    [chain(3, 5, 2), diamond(), in_place(), multi_output(), with_workspace()],
    ids=["chain", "diamond", "in-place", "multi-output", "workspace"],
)
def test_peak_of_the_model_is_the_peak_of_the_judge(graph: Graph) -> None:
    model = IntervalModel(graph, staged_slots(graph, 0, FirstRuns.INPUT, 1))
    unit = model.minimise_peak(0, 100)
    outcome = solve_model(model.model, LIMITS, rounding=Rounding.RELAX)
    assert outcome.bound is not None
    assert graph.fixed_bytes + outcome.bound * unit == baseline_of(graph).peak_bytes


def tight_unet() -> Problem:
    return at_share(training_unet(6), 0.8)


def test_plans_and_bounds_are_told_as_they_come_up() -> None:
    told = RecordingObserver()
    solution = solve(tight_unet(), Moccasin(), told)
    assert solution.status is Status.OPTIMAL
    assert solution.trace is not None
    assert told.plans
    assert all(bound.scope is Scope.PLANNER for bound in told.bounds)
    times = [bound.time for bound in told.bounds]
    assert times[-1] == solution.trace.time
    assert times == sorted(times)


def test_ctrl_c_keeps_the_best_plan() -> None:
    solution = solve(tight_unet(), Moccasin(), Impatient())
    assert solution.interrupted
    assert solution.status is Status.FEASIBLE
    assert solution.trace is not None
    assert solution.trace.peak_bytes <= solution.problem.budget.device_bytes


def test_stopped_early_it_proves_nothing_and_says_how_close_it_came() -> None:
    result = Moccasin(work_limit=0.0).plan(tight_unet(), Observer())
    assert result.status is Status.UNKNOWN
    assert result.closest == plain_run(tight_unet().graph)
    assert "no proof" in result.reason


def test_infeasible_speaks_of_this_kind_of_plan_only() -> None:
    graph = training_chain(4)
    result = Moccasin(max_retentions=1).plan(Problem(graph, Budget(baseline_of(graph).peak_bytes - 1)), Observer())
    assert result.status is Status.INFEASIBLE
    assert result.scope is Scope.PLANNER
    assert "1 run" in result.reason


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("order", FirstRuns)
def test_same_work_gives_the_same_result(order: FirstRuns, cores: int) -> None:
    planner = Moccasin(order=order, work_limit=0.02, cores=cores)
    first, second = (planner.plan(tight_unet(), Observer()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_retentions": 0}, "max_retentions is 0"),
        ({"phases": 3}, "phases is 3"),
        ({"phases": 0}, "phases is 0"),
        ({"work_limit": -1.0}, "work_limit is -1"),
        ({"cores": -1}, "cores is -1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Moccasin(**options)  # type: ignore[arg-type]
