"""The four parts of a step's memory add up to what the judge counts."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given

from remat_cli.core.graph import Graph
from remat_cli.core.link import Duplex, Link
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.planning.parts import memory_parts, parts_summary
from remat_cli.planning.resident_moves import with_moves
from remat_cli.planning.step_views import movable_residents, with_early_updates, without_residents
from tests.graphs import training_chain, updating_chain, updating_graphs


@given(graph=updating_graphs())
def test_parts_add_up_over_moves(graph: Graph) -> None:
    away = movable_residents(graph)
    view = without_residents(with_early_updates(graph), away)
    budget = simulate(view, plain_run(view)).peak_bytes
    schedule, trace = with_moves(graph, plain_run(view), away, budget, Link(Fraction(1), Duplex.FULL))
    parts = memory_parts(graph, schedule, trace)
    if graph.residents:
        assert tuple(map(sum, zip(*parts.values(), strict=True))) == trace.memory_bytes
        assert all(size >= 0 for sizes in parts.values() for size in sizes)


def test_parts_of_a_chain() -> None:
    graph = updating_chain(2)
    schedule = plain_run(graph)
    summary = parts_summary(graph, schedule, simulate(graph, schedule))["parts"]
    assert {part: figures["most_bytes"] for part, figures in summary.items()} == {
        "parameters": 4,
        "gradients": 4,
        "optimizer_state": 8,
        "activations": 6,
    }


def test_graph_without_residents_has_no_parts() -> None:
    graph = training_chain(2)
    assert parts_summary(graph, plain_run(graph), simulate(graph, plain_run(graph))) == {}
