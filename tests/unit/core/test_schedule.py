from __future__ import annotations

import pytest

from remat_cli.core.graph import Graph, Op
from remat_cli.core.schedule import (
    Compute,
    Free,
    Inplace,
    Schedule,
    Step,
    input_order,
    live_at,
    plain_run,
    renamed,
    with_frees,
)
from remat_cli.errors import InvalidSchedule
from tests.graphs import chain, diamond, graph_of, in_place, multi_output, op, training_chain


def steps(graph: Graph, computes: str) -> str:
    """Return the steps that `computes` stands for: `a` is a compute, `a!` one in place, `-x` frees x."""
    return " ".join(_word(step) for step in with_frees(graph, computes.split()).steps)


def _word(step: Step) -> str:
    match step:
        case Compute(op=name):
            return name
        case Inplace(op=name):
            return f"{name}!"
        case Free(tensor=name):
            return f"-{name}"
    raise AssertionError(f"{step} is no step that follows from computes")


def test_each_tensor_of_a_chain_is_freed_right_after_its_reader() -> None:
    assert steps(chain(1, 1, 1), "f1 f2 f3") == "f1 f2 -t1 f3 -t2"


def test_tensor_with_two_readers_is_freed_after_the_second() -> None:
    assert steps(diamond(), "a b c d") == "a b c -ta d -tb -tc"


def test_frees_follow_the_order_that_is_given_not_the_input_order() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y"), op("c", "x", "z"))
    assert steps(graph, "a c b") == "a c b -x"


def test_instance_is_freed_at_its_last_read_before_the_tensor_is_made_again() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y"), op("c", "x y", "z"))
    assert steps(graph, "a b a c") == "a b -x a c -x -y"


def test_recomputation_in_a_training_chain() -> None:
    assert steps(training_chain(2), "f1 f2 loss f1 b2 b1") == "f1 f2 -a1 loss -a2 f1 b2 -a1 -g2 b1 -g1"


def test_instance_that_nobody_reads_is_freed_right_after_it_was_made() -> None:
    assert steps(chain(1, 1), "f1 f1 f2") == "f1 -t1 f1 f2 -t1"


def test_each_output_of_an_op_is_freed_on_its_own() -> None:
    assert steps(multi_output(), "split use_left use_right") == "split use_left -left use_right -right"


def test_recomputing_an_op_remakes_the_output_that_is_not_wanted_too() -> None:
    assert (
        steps(multi_output(), "split use_left split use_right")
        == "split -right use_left -left split -left use_right -right"
    )


def test_outputs_of_the_graph_are_kept() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y"), outputs=["x", "y"])
    assert steps(graph, "a b") == "a b"


def test_output_that_is_made_again_is_kept_from_its_last_instance_on() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y"), outputs=["x", "y"])
    assert steps(graph, "a b a") == "a b -x a"


def test_graph_inputs_are_never_freed() -> None:
    assert steps(graph_of(op("a", "in", "x"), op("b", "in x", "y")), "a b") == "a b -x"


def test_in_place_where_the_input_dies() -> None:
    assert steps(in_place(), "make relu use") == "make relu! use -y"


def test_not_in_place_where_the_input_is_read_later() -> None:
    graph = graph_of(op("make", "", "x"), op("relu", "x", "y", inplace="x"), op("use", "x y", "z"))
    assert steps(graph, "make relu use") == "make relu use -x -y"


def test_in_place_where_the_input_is_made_again_before_it_is_read() -> None:
    graph = graph_of(op("make", "", "x"), op("relu", "x", "y", inplace="x"), op("use", "x y", "z"))
    assert steps(graph, "make relu make use") == "make relu! make use -x -y"


def test_not_in_place_on_an_output_of_the_graph() -> None:
    graph = graph_of(op("make", "", "x"), op("relu", "x", "y", inplace="x"), outputs=["x", "y"])
    assert steps(graph, "make relu") == "make relu"


def test_not_in_place_on_a_graph_input() -> None:
    assert steps(graph_of(op("relu", "in", "y", inplace="in")), "relu") == "relu"


@pytest.mark.parametrize("empty", ["x", "y"])
def test_not_in_place_where_one_of_the_two_is_empty(empty: str) -> None:
    graph = graph_of(op("make", "", "x"), op("relu", "x", "y", inplace="x"), sizes={empty: 0})
    assert steps(graph, "make relu") == "make relu -x"


@pytest.mark.parametrize(("x", "y"), [(4, 2), (4, 4), (2, 4)], ids=["shrinks", "same", "grows"])
def test_in_place_whatever_the_sizes_since_the_two_share_the_larger(x: int, y: int) -> None:
    graph = graph_of(op("make", "", "x"), op("cast", "x", "y", inplace="x"), sizes={"x": x, "y": y})
    assert steps(graph, "make cast") == "make cast!"


def test_in_place_where_nobody_reads_the_result() -> None:
    graph = graph_of(op("make", "", "x"), op("relu", "x", "y", inplace="x"), outputs=[])
    assert steps(graph, "make relu") == "make relu! -y"


def test_unknown_op_is_named_with_its_position() -> None:
    with pytest.raises(InvalidSchedule, match="step 1: op 'nope' is not in graph 'test'") as caught:
        with_frees(chain(1, 1), ["f1", "nope"])
    assert caught.value.step == 1


def test_input_order_is_every_op_once() -> None:
    assert input_order(diamond()) == ("a", "b", "c", "d")


def test_computes_are_the_ops_that_run_in_place_or_not() -> None:
    assert Schedule((Compute("a"), Free("x"), Inplace("b"), Compute("a"))).computes == ("a", "b", "a")


@pytest.mark.parametrize(
    ("graph", "live"),
    [
        (diamond(), ["ta", "ta tb", "ta tb tc", "tb tc", "tb tc td", "tc td", "td"]),
        # `relu` takes over the storage of `x`.
        (in_place(), ["x", "y", "y z", "z"]),
    ],
    ids=["diamond", "in place"],
)
def test_what_is_in_memory_while_a_step_runs(graph: Graph, live: list[str]) -> None:
    schedule = plain_run(graph)
    assert [" ".join(live_at(graph, schedule, index)) for index in range(len(schedule.steps))] == live


def test_schedule_in_the_names_of_an_equal_graph() -> None:
    one = graph_of(op("a", "", "x"), op("b", "x", "y z"), op("c", "x z", "w"))
    other = graph_of(op("f", "", "p"), op("g", "p", "q r"), op("h", "p r", "s"))
    same = renamed(with_frees(one, ["a", "b", "a", "c"]), one, other)
    assert same == with_frees(other, ["f", "g", "f", "h"])


@pytest.mark.parametrize(
    "ops",
    [
        [op("f", "", "p"), op("g", "p", "q")],
        [op("f", "", "p"), op("g", "p", "q"), op("h", "q", "s"), op("i", "s", "t")],
        [op("f", "", "p"), op("g", "p", "q"), op("h", "p", "s")],
        [op("f", "", "p"), op("g", "p", "q"), op("h", "q p", "s")],
    ],
    ids=["an op less", "an op more", "another reader", "one more read"],
)
def test_schedule_is_not_renamed_for_another_graph(ops: list[Op]) -> None:
    one = chain(1, 1, 1)
    assert renamed(plain_run(one), one, graph_of(*ops)) is None


def test_schedule_is_not_renamed_for_other_sizes() -> None:
    one, other = (graph_of(op("a", "", "x"), op("b", "x", "y"), sizes={"x": size}) for size in (1, 2))
    assert renamed(plain_run(one), one, other) is None
    assert renamed(plain_run(other), other, one) is None
