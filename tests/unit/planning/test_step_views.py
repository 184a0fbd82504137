"""Views of a whole step: early updates, residents left out, and updates behind what runs again."""

from __future__ import annotations

from fractions import Fraction

from remat_cli.core.graph import Graph, Kind, Phase, Residency
from remat_cli.core.link import Link
from remat_cli.core.schedule import Compute, Free, Offload, Schedule, Wait, plain_run, with_frees
from remat_cli.planning.step_views import (
    movable_residents,
    with_early_updates,
    with_late_updates,
    without_residents,
)
from tests.graphs import graph_of, op, training_chain, updating_chain


def names(graph: Graph) -> list[str]:
    return [each.name for each in graph.ops]


def test_each_update_follows_its_gradient_and_the_last_reader_of_its_parameter() -> None:
    assert names(updating_chain(2)) == ["f1", "f2", "loss", "b2", "b1", "u1", "u2"]
    assert names(with_early_updates(updating_chain(2))) == ["f1", "f2", "loss", "b2", "u2", "b1", "u1"]


def test_reader_after_the_gradient_holds_the_update_back() -> None:
    update = op("u", "w g", "done", phase=Phase.UPDATE, recomputable=False, writes=("w",))
    ops = op("f", "w", "y"), op("b", "y", "g"), op("last", "w", "z"), op("other", "z", "q"), update
    graph = graph_of(*ops, residents={"w": Residency.PARAMETER}, kind=Kind.TRAINING)
    assert names(with_early_updates(graph)) == ["f", "b", "last", "u", "other"]


def test_update_that_waits_for_all_gradients_comes_after_them() -> None:
    ready = op("ready", "g h", "token", phase=Phase.UPDATE)
    update = op("u", "w g token", "done", phase=Phase.UPDATE, recomputable=False, writes=("w",))
    ops = op("b", "w", "g"), op("c", "w", "h"), op("d", "g", "e"), ready, update
    graph = graph_of(*ops, residents={"w": Residency.PARAMETER}, kind=Kind.TRAINING)
    assert names(with_early_updates(graph)) == ["b", "c", "ready", "u", "d"]


def test_step_without_updates_stays_as_it_is() -> None:
    graph = training_chain(3)
    assert with_early_updates(graph) is graph


def test_residents_on_the_host_are_workspace_of_what_reads_them() -> None:
    graph = without_residents(updating_chain(2), ["s1", "w2"])
    assert graph.residents == ("w1", "s2")
    assert {each.name: each.workspace_bytes for each in graph.ops if each.workspace_bytes} == {
        "f2": 2,
        "b2": 2,
        "u1": 4,
        "u2": 2,
    }
    assert not any(each.workspace_bytes for each in without_residents(graph, ["w1"], as_workspace=False).ops[:1])


def test_state_moves_first_and_trained_parameters_last() -> None:
    ops = (
        op("f", "frozen w", "y"),
        op("b", "frozen y w", "g"),
        op("u", "w s g", "done", phase=Phase.UPDATE, recomputable=False, writes=("w", "s")),
    )
    roles = {"w": Residency.PARAMETER, "frozen": Residency.PARAMETER, "s": Residency.STATE}
    assert movable_residents(graph_of(*ops, residents=roles, kind=Kind.TRAINING)) == ("s", "frozen", "w")


def test_update_goes_behind_an_op_that_runs_again() -> None:
    graph = updating_chain(1)
    computes = ("f1", "loss", "b1", "u1", "f1")
    moved = with_late_updates(graph, with_frees(graph, computes))
    assert moved is not None
    assert moved.computes == ("f1", "loss", "b1", "f1", "u1")


def test_schedule_whose_updates_are_late_enough_stays_as_it_is() -> None:
    schedule = plain_run(updating_chain(2))
    assert with_late_updates(updating_chain(2), schedule) is schedule


def test_update_of_a_schedule_with_transfers_takes_the_frees_of_what_it_reads_along() -> None:
    graph = updating_chain(1)
    steps = [*with_frees(graph, ("f1", "loss", "b1", "u1")).steps, Compute("f1"), Offload("a1"), Wait("a1"), Free("a1")]
    moved = with_late_updates(graph, Schedule(tuple(steps)))
    assert moved is not None
    place = moved.steps.index(Compute("u1"))
    assert moved.steps[place - 1 : place + 2] == (Compute("f1"), Compute("u1"), Free("dw1"))


def test_update_that_reads_what_is_moved_meanwhile_cannot_go_behind() -> None:
    graph = updating_chain(1)
    runs = (Compute(name) for name in ("f1", "loss", "b1", "u1"))
    assert with_late_updates(graph, Schedule((*runs, Offload("dw1"), Wait("dw1"), Compute("f1")))) is None


def test_update_lets_as_much_work_go_first_as_its_state_takes_over_the_link() -> None:
    # The state of 4 bytes takes 2 units of time: one of the ops of 2.
    assert names(with_early_updates(updating_chain(3), Link(Fraction(2)))) == [
        *("f1", "f2", "f3", "loss", "b3", "b2", "u3", "b1", "u2", "u1")
    ]
