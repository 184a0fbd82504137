"""The hunt finds faults: each of these is planted, and has to be reported."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from remat_cli.core import graph as graphs
from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Op
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Budget, Problem, Status
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.planners import PLANNERS
from remat_cli.planners.offload.link_bound import LinkCut
from remat_cli.planners.shared.limits import Limits
from tests.graphs import chain, in_place, op, with_view
from tests.hunt.claims import check_by_oracle
from tests.hunt.edges import Edge, check_runs, drawn_graph
from tests.hunt.problems import moved_chain
from tests.second_judge import built, replayed


def test_transfers_that_are_too_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = moved_chain(22)
    check_by_oracle(problem, ["offload"])
    takes = Link.transfer_time
    monkeypatch.setattr(Link, "transfer_time", lambda link, size: takes(link, size) // 2)
    with pytest.raises(AssertionError, match="the judge says"):
        check_by_oracle(problem, ["offload"])


def test_a_bound_that_is_one_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = moved_chain(22)
    check_by_oracle(problem, ["offload"])
    bound = LinkCut.bound

    def too_high(cut: LinkCut, limits: Limits) -> int:
        return bound(cut, limits) + 1

    monkeypatch.setattr(LinkCut, "bound", too_high)
    with pytest.raises(AssertionError, match="is wrong"):
        check_by_oracle(problem, ["offload"])


def test_a_view_whose_base_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = with_view()
    parts = {name: getattr(graph, name) for name in ("name", "kind", "time_unit", "resident_bytes", "outputs")}
    raw = [op("make", "", "x"), op("flatten", "x", "v"), op("use", "v", "y")]
    assert built(tensors=graph.tensors.values(), ops=raw, **parts).op["use"].inputs == ("v", "x")

    def as_it_is(op: Op, base: object) -> Op:
        return op

    monkeypatch.setattr(graphs, "_with_bases_read", as_it_is)
    with pytest.raises(AssertionError, match="reads"):
        built(tensors=graph.tensors.values(), ops=raw, **parts)


def test_graphs_at_the_edge_are_large_and_some_are_small_enough_for_solvers() -> None:
    sizes = [len(drawn_graph(Random(seed)).ops) for seed in range(6)]
    assert all(16 <= size <= 410 for size in sizes)
    assert min(sizes) < 60 < 200 < max(sizes)


def test_a_proof_that_nothing_fits_where_a_plan_of_small_peak_does() -> None:
    graph = chain(6, 4, 2, 1)
    run = baseline_of(graph)
    at = Edge(Problem(graph, Budget(run.peak_bytes)), (run,))
    solution = solve(Problem(graph, Budget(largest_working_set(graph).bytes - 1)), PLANNERS["dtr"]())
    assert solution.status is Status.INFEASIBLE
    check_runs("dtr", solution, Edge(solution.problem, (run,)))
    with pytest.raises(AssertionError, match="dtr proves that nothing fits"):
        check_runs("dtr", solution, at)


@pytest.mark.parametrize("duplex", Duplex)
def test_both_judges_say_the_same_where_both_directions_are_busy(duplex: Duplex) -> None:
    """One way has to wait for the other where the link is half duplex."""
    graph, link = chain(6, 4, 2, 1), Link(Fraction(2), duplex)
    steps: list[Step] = [Compute("f1"), Compute("f2"), Offload("t1"), Wait("t1"), Free("t1")]
    steps += [Offload("t2"), Prefetch("t1"), Wait("t1"), Wait("t2"), Compute("f3"), Compute("f4")]
    trace = simulate(graph, Schedule(tuple(steps)), link=link)
    assert (trace.peak_bytes, trace.time) == replayed(graph, Schedule(tuple(steps)), link)
    assert trace.time == {Duplex.HALF: 12, Duplex.FULL: 10}[duplex]


def test_both_judges_say_the_same_of_ops_in_place() -> None:
    graph = in_place()
    schedule = Schedule((Compute("make"), Inplace("relu"), Compute("use"), Free("y")))
    trace = simulate(graph, schedule)
    assert (trace.peak_bytes, trace.time) == replayed(graph, schedule, None)
