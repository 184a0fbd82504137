"""Plans that keep, make again and move."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from remat_cli.core.graph import Phase
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Budget, Observer, Problem, Scope, Status
from remat_cli.core.solve import solve
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners.offload.planner import Offloading
from remat_cli.planners.offload.search import OffloadSearch
from remat_cli.planners.pofo.planner import Pofo
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from tests.graphs import diamond, training_chain, training_unet


def problem(budget: int, rate: Fraction | int, duplex: Duplex = Duplex.HALF) -> Problem:
    return Problem(training_chain(8, size=4, time=3), Budget(budget), Link(Fraction(rate), duplex), offload=True)


def test_a_link_that_is_fast_enough_costs_nothing_and_that_is_proven() -> None:
    solution = solve(problem(24, 4), Offloading())
    assert solution.status is Status.OPTIMAL
    assert solution.overhead == 0
    assert solution.result.schedule is not None
    assert solution.result.schedule.has_transfers


def test_over_a_slow_link_it_recomputes() -> None:
    solution = solve(problem(24, Fraction(1, 1000)), Offloading())
    assert solution.trace is not None
    assert solution.result.schedule is not None
    assert not solution.result.schedule.has_transfers
    assert solution.scope is Scope.ANY_PLAN
    assert 0 < (solution.bound_overhead or 0) <= (solution.overhead or 0)


def test_a_link_of_middling_speed_is_used_beside_recomputation() -> None:
    alone = solve(problem(20, Fraction(1, 1000)), Offloading()).overhead
    both = solve(problem(20, Fraction(1, 2)), Offloading())
    assert alone is not None
    assert both.overhead is not None
    assert both.overhead < alone


def test_full_duplex_is_no_worse() -> None:
    half, full = (solve(problem(16, 1, duplex), Offloading()).overhead for duplex in Duplex)
    assert half is not None
    assert full is not None
    assert full <= half


def test_what_fits_stays_as_it_is() -> None:
    solution = solve(problem(100, 1), Offloading())
    assert solution.status is Status.OPTIMAL
    assert solution.result.stats["moves"] == 0


def test_without_a_link_it_refuses() -> None:
    with pytest.raises(PlannerRefuses, match="bandwidth of the link is not known") as refusal:
        Offloading().plan(replace(problem(20, 1), link=None, offload=False), Observer())
    assert "min_cut" in str(refusal.value.hint)


def test_moves_are_counted_and_limited() -> None:
    graph = training_unet(6)
    tight = Problem(graph, Budget(530), Link(Fraction(1)), offload=True)
    counts = [solve(tight, Offloading(work_limit=limit, gap=0)).result.stats["moves"] for limit in (0, 5)]
    assert counts == [0, 5]
    with pytest.raises(UsageError, match="work_limit is -1"):
        Offloading(work_limit=-1)


def test_a_search_goes_on_from_the_plan_of_another() -> None:
    asked = problem(20, 1)
    incumbent = Incumbent(asked, Observer(), Scope.ANY_PLAN)
    search = OffloadSearch(incumbent, Limits(), most_moves=0)
    search.start_from(RematSequence.plain(asked.graph))
    assert incumbent.best is not None
    assert incumbent.best.peak_bytes <= 20
    # That it has a plan does not keep it from proving a bound.
    slow = problem(20, Fraction(1, 4))
    known = Incumbent(slow, Observer(), Scope.ANY_PLAN)
    search = OffloadSearch(known, Limits(), most_moves=0)
    search.start_from(RematSequence.plain(slow.graph))
    search.run()
    assert known.bound.time > slow.graph.total_time


def test_any_graph_will_do() -> None:
    solution = solve(Problem(diamond(), Budget(7), Link(Fraction(1)), offload=True), Offloading())
    assert solution.trace is not None


@pytest.mark.parametrize("planner", [Offloading(), Pofo()])
def test_what_is_held_from_outside_never_moves(planner: Offloading | Pofo) -> None:
    graph = training_chain(8, size=4, time=3)
    made = [op.outputs[0] for op in graph.ops if op.phase is Phase.FORWARD]
    held = set(made[1::2])
    ops = tuple(op.edited(recomputable=False) if held.intersection(op.outputs) else op for op in graph.ops)
    tensors = {name: replace(tensor, held=name in held) for name, tensor in graph.tensors.items()}
    outputs = tuple(dict.fromkeys((*graph.outputs, *sorted(held))))
    graph = graph.edited(ops=ops, tensors=tensors, outputs=outputs).checked()
    solution = solve(Problem(graph, Budget(32), Link(Fraction(4)), offload=True), planner)
    assert solution.result.schedule is not None
    assert solution.result.schedule.has_transfers
