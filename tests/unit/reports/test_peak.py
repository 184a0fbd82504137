"""What fills the plain run's peak, and what the plan did about each tensor."""

from __future__ import annotations

from fractions import Fraction

import pytest

from remat_cli.core.link import Link
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Wait
from remat_cli.core.simulate import simulate
from remat_cli.reports.peak import Fate, count_fates, tensors_at_peak
from remat_cli.reports.timeline import Run
from tests.graphs import chain, graph_of, op, training_chain
from tests.unit.reports.rendering import run_of


def test_the_plain_run_keeps_everything_largest_first() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "", "y"), op("c", "x y", "z"), sizes={"x": 2, "y": 3, "z": 1})
    tensors = tensors_at_peak(Run.plain(graph))
    assert [(tensor.name, tensor.bytes, tensor.producer, str(tensor)) for tensor in tensors] == [
        ("y", 3, "b", "kept"),
        ("x", 2, "a", "kept"),
        ("z", 1, "c", "kept"),
    ]


def test_views_and_graph_inputs_are_left_out() -> None:
    graph = graph_of(op("a", "input", "x"), op("b", "x", "v"), op("c", "v", "y"), views={"v": "x"})
    assert [tensor.name for tensor in tensors_at_peak(Run.plain(graph))] == ["x", "y"]


@pytest.mark.parametrize(("times", "words"), [(1, "recomputed"), (2, "recomputed 2×")])
def test_a_recomputed_tensor_says_how_often_and_when_it_was_dropped(times: int, words: str) -> None:
    graph = training_chain(4)
    plan = run_of(graph, "f1", "f2", "f3", "f4", "loss", "b4", *["f1"] * times, "f2", "b3", "b2", "b1")
    (first,) = (tensor for tensor in tensors_at_peak(Run.plain(graph), plan) if tensor.name == "a1")
    assert (first.fate, first.recomputations, str(first)) == (Fate.RECOMPUTED, times, words)
    assert first.dropped_at == 2


def test_of_equal_tensors_those_that_the_plan_touches_come_first() -> None:
    graph = training_chain(4)
    plan = run_of(graph, "f1", "f2", "f3", "f4", "loss", "b4", "f2", "b3", "b2", "b1")
    tensors = tensors_at_peak(Run.plain(graph), plan)
    assert [tensor.name for tensor in tensors] == ["a2", "a1", "a3", "a4", "g4"]
    assert count_fates(tensors) == "4 kept, 1 recomputed"


def test_an_offloaded_tensor_is_not_taken_for_a_recomputed_one() -> None:
    # `a` is read at the end only; it goes to the host while `b` and `c` run.
    graph = graph_of(
        op("a", "", "x"), op("b", "", "y"), op("c", "y", "z"), op("d", "x z", "w"), sizes={"x": 4, "y": 4, "z": 4}
    )
    away = (Compute("a"), Offload("x"), Wait("x"), Free("x"), Compute("b"), Compute("c"), Free("y"))
    schedule = Schedule((*away, Prefetch("x"), Wait("x"), Compute("d")))
    plan = Run(graph, schedule, simulate(graph, schedule, link=Link(Fraction(4))))
    (x,) = (tensor for tensor in tensors_at_peak(Run.plain(graph), plan) if tensor.name == "x")
    assert (str(x), x.recomputations, x.dropped_at) == ("offloaded", 0, 3)


def test_another_order_frees_earlier_or_makes_later() -> None:
    # The plain run peaks at `big`; a plan that runs `use_x` first has `x` gone by then, and `y` not there yet.
    graph = graph_of(
        op("x", "", "tx"), op("y", "", "ty"), op("big", "", "tb"), op("use_x", "tx", ""), op("use_y", "ty", ""),
        sizes={"tx": 2, "ty": 2, "tb": 9}, outputs=["tb"],
    )  # fmt: skip
    plan = run_of(graph, "x", "use_x", "big", "y", "use_y")
    fates = {tensor.name: tensor.fate for tensor in tensors_at_peak(Run.plain(graph), plan)}
    assert fates == {"tb": Fate.KEPT, "tx": Fate.FREED_EARLIER, "ty": Fate.PRODUCED_LATER}


def test_a_peak_at_the_start_has_no_tensors_of_ops() -> None:
    assert tensors_at_peak(Run.plain(graph_of(op("a", "x", "")))) == []


def test_the_peak_of_a_chain_is_its_largest_pair() -> None:
    assert [tensor.name for tensor in tensors_at_peak(Run.plain(chain(1, 5, 4, 1)))] == ["t2", "t3"]
