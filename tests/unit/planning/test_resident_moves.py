"""Moves of residents in a schedule: what stays, what is fetched ahead, and what leaves in the next step."""

from __future__ import annotations

from fractions import Fraction

from remat_cli.core.graph import Graph, Kind, Phase, Residency
from remat_cli.core.link import Direction, Duplex, Link
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import Trace, simulate
from remat_cli.planning.resident_moves import with_moves
from remat_cli.planning.step_views import with_early_updates, without_residents
from tests.graphs import graph_of, op, updating_chain


def moved(graph: Graph, away: list[str], budget: int, rate: int = 1, duplex: Duplex = Duplex.FULL) -> Trace:
    view = without_residents(with_early_updates(graph), away)
    return with_moves(graph, plain_run(view), away, budget, Link(Fraction(rate), duplex))[1]


def schedule(graph: Graph, away: list[str], budget: int, rate: int = 1) -> Schedule:
    view = without_residents(with_early_updates(graph), away)
    return with_moves(graph, plain_run(view), away, budget, Link(Fraction(rate), Duplex.FULL))[0]


def adapters(frozen: int = 2, time: int = 4) -> Graph:
    """A frozen parameter, which the first op and the last read, with other work between; a trained one of no bytes."""
    ops = (
        op("f", "frozen", "x", time=time),
        op("g", "x", "y", time=time),
        op("b", "y frozen", "dw", time=time, phase=Phase.BACKWARD),
        op("u", "w dw", "done", phase=Phase.UPDATE, recomputable=False, writes=("w",)),
    )
    sizes = {"frozen": frozen, "w": 0, "done": 0, "dw": 0}
    roles = {"frozen": Residency.PARAMETER, "w": Residency.PARAMETER}
    return graph_of(*ops, sizes=sizes, residents=roles, kind=Kind.TRAINING)


def test_residents_stay_where_there_is_room() -> None:
    graph = updating_chain(3)
    trace = moved(graph, list(graph.residents), budget=1000)
    assert (trace.transfers, trace.time) == ((), graph.total_time)


def test_frozen_parameter_is_fetched_before_each_use_and_never_sent_back() -> None:
    # While `g` runs, x, y and the parameter need 4 bytes.
    trace = moved(adapters(), ["frozen"], budget=3, rate=2)
    assert [each.direction for each in trace.transfers] == [Direction.TO_DEVICE, Direction.TO_DEVICE]
    assert trace.peak_bytes == 3


def test_frozen_parameter_that_stays_between_its_uses_is_fetched_once_or_never() -> None:
    assert len(moved(adapters(), ["frozen"], budget=4).transfers) == 0


def test_state_is_fetched_while_other_ops_run() -> None:
    graph = updating_chain(3)
    away = [name for name in graph.residents if name.startswith("s")]
    budget = moved(graph, away, 1000).peak_bytes - 4
    trace = moved(graph, away, budget, rate=4)
    assert trace.transfers
    assert trace.idle_time < sum(each.end - each.start for each in trace.transfers)
    assert trace.peak_bytes <= budget


def test_state_may_leave_as_the_next_step_begins() -> None:
    # `big` has no room for the state, but all ops before and after it have: so it is there at both ends.
    ops = (
        op("f", "w", "y", time=9),
        op("big", "y", "z", time=9, workspace_bytes=10),
        op("b", "y z w", "dw", time=9, phase=Phase.BACKWARD),
        op("u", "w s dw", "done", phase=Phase.UPDATE, recomputable=False, writes=("w", "s")),
    )
    roles = {"w": Residency.PARAMETER, "s": Residency.STATE}
    graph = graph_of(*ops, sizes={"s": 8, "done": 0}, residents=roles, kind=Kind.TRAINING)
    plan = schedule(graph, ["s"], budget=13)
    trace = simulate(graph, plan, link=Link(Fraction(1), Duplex.FULL))
    assert plan.on_host == ()
    assert [each.direction for each in trace.transfers] == [Direction.TO_HOST, Direction.TO_DEVICE]
    assert (trace.idle_time, trace.time) == (0, graph.total_time)
