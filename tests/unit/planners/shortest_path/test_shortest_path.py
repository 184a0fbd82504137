"""The shortest path through the states of a device: what it finds, what it proves, and when it stops."""

from __future__ import annotations

import pytest

from remat_cli.core.problem import Basis, Budget, Observer, Problem, Scope, Status
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shortest_path.planner import ShortestPath
from remat_cli.planners.shortest_path.search import ShortestPathSearch, StateFront
from remat_cli.planners.shortest_path.states import DeviceState, StateSpace
from tests.graphs import diamond, graph_of, op, training_chain
from tests.oracle import least_peak, least_time
from tests.plans import RecordingObserver, at_share


def search(problem: Problem, observe: Observer | None = None) -> ShortestPathSearch:
    return ShortestPathSearch(Incumbent(problem, observe or Observer(), Scope.ANY_ORDER), Limits())


def test_between_the_smallest_budget_and_the_plain_run_every_plan_is_the_best() -> None:
    graph = training_chain(4)
    least, plain = least_peak(graph).peak_bytes, baseline_of(graph).peak_bytes
    for budget in range(least, plain + 1):
        solution = solve(Problem(graph, Budget(budget)), ShortestPath())
        truth = least_time(graph, budget)
        assert truth is not None
        assert solution.trace is not None
        assert (solution.status, solution.scope, solution.trace.time) == (
            Status.OPTIMAL,
            Scope.ANY_ORDER if truth.time > graph.total_time else Scope.ANY_PLAN,
            truth.time,
        )


def test_below_it_nothing_fits_and_the_plain_run_is_the_closest() -> None:
    graph = diamond()
    problem = Problem(graph, Budget(least_peak(graph).peak_bytes - 1))
    solution = solve(problem, ShortestPath())
    assert (solution.status, solution.scope, solution.result.basis) == (
        Status.INFEASIBLE,
        Scope.ANY_ORDER,
        Basis.COUNTED,
    )
    assert solution.closest is not None
    assert solution.closest.peak_bytes == baseline_of(graph).peak_bytes


def test_an_op_may_run_three_times() -> None:
    # `x` does not fit beside what `b`, `d` and `f` work with, and each of them has what it reads from `x`.
    graph = graph_of(
        op("a", "", "x"),
        op("b", "x", "y", workspace_bytes=8),
        op("c", "y", "big_1"),
        op("d", "big_1 y", "z"),
        op("e", "x z", "w"),
        op("f", "w", "big_2"),
        op("g", "big_2 w", "v"),
        op("h", "x v", "u"),
        sizes={"x": 6, "big_1": 9, "big_2": 9},
    )
    trace = solve(Problem(graph, Budget(15)), ShortestPath()).trace
    assert trace is not None
    assert trace.runs["a"] == 3


def test_more_ops_than_it_takes_are_refused() -> None:
    with pytest.raises(PlannerRefuses, match="'test' has 9 ops; shortest_path takes at most 8") as caught:
        ShortestPath(max_ops=8).plan(at_share(training_chain(4), 0.9), Observer())
    assert "auto" in caught.value.hint
    assert "raise max_ops" in caught.value.hint


def test_more_tensors_than_a_state_can_have_are_refused() -> None:
    graph = graph_of(op("a", "", " ".join(f"x{i}" for i in range(65))))
    with pytest.raises(PlannerRefuses, match="makes 65 tensors; shortest_path takes at most 64") as caught:
        ShortestPath().plan(Problem(graph, Budget(65)), Observer())
    assert "max_ops" not in caught.value.hint


def test_as_many_tensors_as_a_state_can_have() -> None:
    first = [op(f"a{i}", "", " ".join(f"x{i}.{j}" for j in range(8))) for i in range(7)]
    reads = " ".join(f"x{i}.{j}" for i in range(7) for j in range(8))
    graph = graph_of(*first, op("b", reads, " ".join(f"y{j}" for j in range(8))), op("c", "y0"), sizes={"x6.7": 9})
    solution = solve(Problem(graph, Budget(7 * 8 + 8 + 8)), ShortestPath())
    assert solution.status is Status.OPTIMAL
    assert len(graph.producer) == 64


def test_out_of_work_it_knows_what_every_plan_takes_at_least() -> None:
    problem = Problem(training_chain(6), Budget(3))
    truth = solve(problem, ShortestPath())
    assert truth.trace is not None
    solution = solve(problem, ShortestPath(work_limit=40))
    assert solution.status is Status.UNKNOWN
    assert solution.result.stats == {"states": 40}
    (bound,) = solution.result.bounds
    assert problem.graph.total_time < bound.time <= truth.trace.time
    assert bound.scope is Scope.ANY_ORDER


def test_it_goes_on_where_it_stopped() -> None:
    problem = Problem(training_chain(6), Budget(4))
    whole, parts = search(problem), search(problem)
    whole.run()
    assert whole.incumbent.is_settled
    while not parts.incumbent.is_settled:
        parts.limits = Limits(work=10)
        parts.run()
    assert parts.states == whole.states > 10
    assert parts.incumbent.result(stats={}) == whole.incumbent.result(stats={})


def test_once_it_has_the_best_plan_it_proves_no_more() -> None:
    again = search(Problem(training_chain(6), Budget(4)))
    again.run()
    bound = again.incumbent.bound
    again.run()
    assert again.incumbent.bound == bound
    assert again.incumbent.is_settled
    assert not again.incumbent.nothing_fits


@pytest.mark.parametrize("others", [0, 1])
def test_where_a_plan_is_known_only_better_ones_are_looked_for(others: int) -> None:
    problem = Problem(training_chain(6), Budget(4))
    best = least_time(problem.graph, problem.budget.device_bytes)
    assert best is not None
    known = search(problem)
    known.better_than = best.time + others
    known.run()
    assert known.incumbent.bound.time == best.time
    assert (known.incumbent.best is not None) == bool(others)


def test_bounds_rise_as_it_goes() -> None:
    told = RecordingObserver()
    search(Problem(training_chain(6), Budget(4)), told).run()
    times = [bound.time for bound in told.bounds]
    assert len(times) > 1
    assert times == sorted(times)


def test_the_time_left_counts_what_must_be_made_again() -> None:
    graph = graph_of(
        op("a", "", "x", time=5),
        op("b", "x", "y", time=7, recomputable=False),
        op("c", "x y", "z", time=11),
        sizes={"x": 4},
    )
    space = StateSpace(graph, 100)
    x, y, z = 1, 2, 4
    a, b, c = 1, 2, 4
    assert space.least_time_left(DeviceState(0, 0)) == 23
    assert space.least_time_left(DeviceState(x | y, a | b)) == 11
    assert space.least_time_left(DeviceState(y, a | b)) == 16
    assert space.least_time_left(DeviceState(x, a | b)) is None
    assert space.least_time_left(DeviceState(z, a | b | c)) == 0


def test_room_is_made_by_every_smallest_set_of_tensors() -> None:
    graph = graph_of(
        op("a", "", "p q r s"), op("b", "", "t"), op("c", "p q r s t"), sizes={"p": 5, "q": 3, "r": 2, "s": 0, "t": 6}
    )
    space = StateSpace(graph, 11)
    p, q, r, s, t = 1, 2, 4, 8, 16
    after = {state.live for op, _, state in space.moves(DeviceState(p | q | r | s, 1)) if op == 1}
    # 5 bytes must go: `p`, or `q` and `r`; never one of 0 bytes.
    assert after == {q | r | s | t, p | s | t}


def test_what_must_run_once_does_not_run_again() -> None:
    graph = graph_of(op("a", "", "x", recomputable=False), op("b", "x", "y"), op("c", "y", "z"))
    nothing_there = DeviceState(0, 0b111)
    assert list(StateSpace(graph, 100).moves(nothing_there)) == []


def test_more_in_memory_makes_up_for_no_time() -> None:
    front = StateFront()
    assert front.add(0b11, 10)
    assert not front.add(0b01, 10)
    assert front.add(0b01, 9)
    assert front.add(0b101, 10)
