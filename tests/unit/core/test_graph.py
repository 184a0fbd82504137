from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core import graph as graph_module
from remat_cli.core.graph import (
    Draft,
    Graph,
    Kind,
    Op,
    Phase,
    Residency,
    Tensor,
    build_graph,
    describe_cycle,
    find_cycle,
)
from remat_cli.errors import GraphError
from tests.graphs import chain, diamond, graph_of, in_place, op, with_view


def build(
    tensors: Sequence[Tensor], ops: Sequence[Op], *, outputs: Sequence[str] | None = None, kind: Kind = Kind.INFERENCE
) -> Graph:
    return build_graph(
        name="g", kind=kind, time_unit="unit", resident_bytes=0, tensors=tensors, ops=ops, outputs=outputs
    )


def refusal(tensors: Sequence[Tensor], ops: Sequence[Op], outputs: Sequence[str] | None = None) -> GraphError:
    with pytest.raises(GraphError) as caught:
        build(tensors, ops, outputs=outputs)
    return caught.value


_NAMES = st.lists(st.sampled_from("wxyzq"), max_size=3).map(tuple)
_CHANGES: dict[str, st.SearchStrategy[object]] = {"name": st.sampled_from("abc"), "inputs": _NAMES, "outputs": _NAMES}


@given(st.sampled_from(range(3)), st.sampled_from(sorted(_CHANGES)), st.data())
def test_what_is_held_to_be_in_order_at_once_is_so_op_by_op(place: int, field: str, data: st.DataObject) -> None:
    ops = [op("a", "w", "x"), op("b", "x", "y"), op("c", "x y", "z")]
    ops[place] = ops[place].edited(**{field: data.draw(_CHANGES[field])})
    draft = Draft(
        name="g",
        kind=Kind.INFERENCE,
        time_unit="unit",
        resident_bytes=0,
        tensors={name: Tensor(name, 1) for name in "wxyz"},
        ops=tuple(ops),
        outputs=(),
    )
    # Where it holds at once, nothing else is looked at: a fault would slip through.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_module, "_is_in_order", lambda _: False)
        by_op = _is_refused(draft)
    assert _is_refused(draft) == by_op


def _is_refused(draft: Draft) -> str:
    try:
        draft.checked()
    except GraphError as error:
        return error.message
    return ""


X, Y, Z = Tensor("x", 1), Tensor("y", 2), Tensor("z", 3)


def test_cycle_is_printed_in_the_direction_of_the_data() -> None:
    error = refusal([X, Y, Z], [op("a", "z", "x"), op("b", "x", "y"), op("c", "y", "z")])
    _, cycle = error.message.split("the graph has a cycle: ")
    assert cycle in ("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c")
    assert "unroll the loop" in error.hint


def test_long_cycle_is_shortened_in_the_middle() -> None:
    assert describe_cycle([str(i) for i in range(20)]) == "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 6 -> ... (13 more) -> 0"


def test_cycle_of_eight_is_printed_whole() -> None:
    assert describe_cycle("abcdefgh") == "a -> b -> c -> d -> e -> f -> g -> h -> a"


def test_find_cycle_finds_none_in_a_diamond() -> None:
    assert find_cycle({"b": ["a"], "c": ["a"], "d": ["b", "c"]}) == []


def test_wrong_order_names_both_ops() -> None:
    error = refusal([X, Y], [op("late", "x", "y"), op("early", "", "x")])
    assert error.message == "op 'late' reads 'x' before 'early' has produced it"
    assert "'early' before 'late'" in error.hint


def test_duplicate_tensor() -> None:
    assert refusal([X, X], [op("a", "", "x")]).message == "tensor 'x' is defined twice"


def test_duplicate_op() -> None:
    assert refusal([X, Y], [op("a", "", "x"), op("a", "", "y")]).message == "op 'a' is defined twice"


def test_tensor_with_two_producers() -> None:
    error = refusal([X], [op("a", "", "x"), op("b", "", "x")])
    assert error.message == "tensor 'x' is produced twice, by 'a' and by 'b'"


@pytest.mark.parametrize("faulty", [op("a", "x x", "y"), op("a", "x", "y y")])
def test_tensor_named_twice_by_one_op(faulty: Op) -> None:
    assert "twice" in refusal([X, Y], [faulty]).message


def test_unknown_input_suggests_the_name_that_was_meant() -> None:
    error = refusal([Tensor("conv1_out", 1), Y], [op("a", "conv1_uot", "y")])
    assert error.message == "op 'a' reads 'conv1_uot', which is not in the graph"
    assert error.hint == "did you mean 'conv1_out'?"


def test_unknown_output_of_an_op() -> None:
    assert refusal([X], [op("a", "x", "w")]).message == "op 'a' produces 'w', which is not in the graph"


def test_unknown_output_of_the_graph() -> None:
    error = refusal([X], [op("a", "", "x")], outputs=["nowhere"])
    assert error.message == "the outputs name 'nowhere', which is not in the graph"
    assert error.hint == "define it, or correct the name"


def test_grad_of_unknown_op() -> None:
    error = refusal([X, Y], [op("conv1", "", "x"), op("b", "x", "y", grad_of="conv2")])
    assert error.message == "op 'b' has grad_of 'conv2', which is not in the graph"
    assert "conv1" in error.hint


@pytest.mark.parametrize("size", [-1, 1.5, True, "8", float("nan"), None])
def test_size_that_is_no_whole_number(size: object) -> None:
    error = refusal([Tensor("x", size)], [op("a", "", "x")])  # type: ignore[arg-type]
    assert error.message == f"the size of tensor 'x' is {size!r}"
    assert error.hint == "use a whole number, 0 or more"


@pytest.mark.parametrize(
    ("faulty", "what"),
    [
        (op("a", "", "x", time=-1), "the time of op 'a' is -1"),
        (op("a", "", "x", workspace_bytes=-2), "the workspace of op 'a' is -2"),
        (op("a", "", "x", grad_time=-3), "grad_time of op 'a' is -3"),
        (op("a", "", "x", flops=0.5), "flops of op 'a' is 0.5"),
        (op("a", "", "x", moved_bytes=-4), "moved_bytes of op 'a' is -4"),
    ],
)
def test_number_of_an_op_that_is_no_whole_number(faulty: Op, what: str) -> None:
    assert refusal([X], [faulty]).message == what


def test_negative_resident_bytes() -> None:
    with pytest.raises(GraphError, match="resident_bytes is -1"):
        graph_of(op("a", "", "x"), resident_bytes=-1)


def test_no_ops() -> None:
    assert refusal([X], []).message == "graph 'g' has no ops"


def test_unknown_time_unit() -> None:
    with pytest.raises(GraphError, match="unknown time unit 'fortnight'") as caught:
        replace(chain(1), time_unit="fortnight")
    assert caught.value.hint == "use one of ns, flop, unit"


def test_sizes_that_add_up_to_2_to_the_60_are_accepted() -> None:
    assert build([Tensor("x", 2**60)], [op("a", "", "x")]).fixed_bytes == 0


@pytest.mark.parametrize(
    ("size", "workspace_bytes"), [(2**60 + 1, 0), (2**60, 1)], ids=["tensors", "tensors-and-workspace"]
)
def test_sizes_beyond_2_to_the_60(size: int, workspace_bytes: int) -> None:
    error = refusal([Tensor("x", size)], [op("a", "", "x", workspace_bytes=workspace_bytes)])
    assert error.message == f"the sizes of graph 'g' add up to {2**60 + 1}, more than 2^60"


@pytest.mark.parametrize("what", ["grad_time", "flops", "moved_bytes", "grad_flops"])
def test_work_beyond_2_to_the_100(what: str) -> None:
    assert build([X], [op("a", "", "x", **{what: 2**100})])
    error = refusal([X], [op("a", "", "x", **{what: 2**100 + 1})])
    assert error.message == f"{what} of op 'a' is about 10^30, more than 2^100"


def test_times_beyond_2_to_the_60() -> None:
    ops = [op("a", "", "x", time=2**59), op("b", "", "y", time=2**59), op("c", "", "z", time=1)]
    assert "the times of graph 'g' add up to" in refusal([X, Y, Z], ops).message


@pytest.mark.parametrize(
    ("faulty", "what"),
    [
        (op("a", "x", "y", inplace="z"), "op 'a' works in place on 'z', which is not one of its inputs"),
        (op("a", "x", "y", inplace="y"), "op 'a' works in place on 'y', which is not one of its inputs"),
        (op("a", "x", "", inplace="x"), "op 'a' works in place but has no output"),
        (op("a", "x", "y", saves=("z",)), "op 'a' saves 'z', which is neither its input nor its output"),
        (op("a", "x", "y", grad_inputs=("y",)), "op 'a' has 'y' in grad_inputs, which is not one of its inputs"),
    ],
    ids=["inplace-no-input", "inplace-output", "inplace-nothing", "saves-stranger", "grad-of-output"],
)
def test_role_of_a_tensor_that_does_not_have_it(faulty: Op, what: str) -> None:
    assert refusal([X, Y, Z], [faulty, op("b", "y" if faulty.outputs else "x", "z")]).message == what


def test_view_with_bytes_of_its_own() -> None:
    error = refusal([X, Tensor("v", 4, view_of="x")], [op("a", "x", "v")])
    assert error.message == "tensor 'v' is a view (view_of 'x') but has 4 bytes"
    assert "0 bytes" in error.hint


def test_view_between_another_view_and_its_base_with_bytes_of_its_own() -> None:
    error = refusal(
        [Tensor("w", 0, view_of="v"), Tensor("v", 4, view_of="x"), X], [op("a", "x", "v"), op("b", "v", "w")]
    )
    assert error.message == "tensor 'v' is a view (view_of 'x') but has 4 bytes"


def test_view_of_an_undefined_tensor() -> None:
    error = refusal([X, Tensor("v", 0, view_of="w")], [op("a", "x", "v")])
    assert error.message == "tensor 'v' is a view of 'w', which is not defined"


def test_views_in_a_circle() -> None:
    error = refusal(
        [Tensor("v", 0, view_of="w"), Tensor("w", 0, view_of="v"), X], [op("a", "x", "v"), op("b", "v", "w")]
    )
    assert error.message == "views refer to each other in a circle: v -> w -> v"


def test_reader_of_a_view_reads_its_base_too() -> None:
    assert with_view().op["use"].inputs == ("v", "x")


def test_view_of_a_view_is_a_view_of_the_storage() -> None:
    graph = graph_of(
        op("a", "", "x"), op("v1", "x", "v"), op("v2", "v", "w"), op("use", "w", "y"), views={"v": "x", "w": "v"}
    )
    assert graph.tensors["w"].view_of == "x"
    assert graph.op["use"].inputs == ("w", "x")


def test_maker_of_a_view_needs_the_storage_that_it_points_to() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "", "shape"), op("view", "shape", "v"), views={"v": "x"})
    assert graph.op["view"].inputs == ("shape", "x")


def test_op_that_makes_a_view_of_its_own_output_does_not_read_it() -> None:
    graph = graph_of(op("a", "", "x v"), op("use", "v", "y"), views={"v": "x"})
    assert graph.op["a"].inputs == ()


VIEWS = [Tensor("v", 0, view_of="x"), Tensor("w", 0, view_of="y")]


@pytest.mark.parametrize(
    "faulty",
    [
        op("a", "x", "x"),
        op("b", "x y", "y"),
        op("b", "v y", "y"),  # beside a view of something else
        op("b", "w", "y"),  # by a view that nothing produces
    ],
)
def test_op_does_not_read_what_it_produces(faulty: Op) -> None:
    own = faulty.outputs[0]
    error = refusal([X, Y, *VIEWS], [faulty])
    assert error.message == f"op {faulty.name!r} reads {own!r}, which it produces itself"


def test_views_hide_no_name_that_stands_twice() -> None:
    made = [op("a", "", "x"), op("view", "x", "v")]
    assert "twice" in refusal([X, Y, *VIEWS], [*made, op("b", "v v", "y")]).message
    assert "twice" in refusal([X, Y, *VIEWS], [*made, op("b", "v", "y")], outputs=("v", "y", "v")).message


def test_what_is_read_by_its_view_alone_is_no_output_by_default() -> None:
    graph = graph_of(op("a", "", "x"), op("view", "", "v"), op("b", "v", "y"), views={"v": "x"})
    assert graph.outputs == ("y",)


def test_output_that_is_a_view_keeps_its_base() -> None:
    assert graph_of(op("a", "", "x"), op("view", "x", "v"), views={"v": "x"}).outputs == ("v", "x")


@pytest.mark.parametrize("reads", ["v", "v x"])
def test_saved_view_saves_its_base(reads: str) -> None:
    reader = op("b", reads, "y", saves=("v",))
    graph = graph_of(op("a", "", "x"), op("view", "x", "v"), reader, views={"v": "x"}, kind=Kind.FORWARD)
    assert graph.op["b"].saves == ("v", "x")


def test_base_that_a_view_adds_receives_no_gradient() -> None:
    graph = graph_of(op("a", "", "x"), op("view", "x", "v"), op("b", "v", "y"), views={"v": "x"}, kind=Kind.FORWARD)
    assert graph.op["b"].inputs == ("v", "x")
    assert graph.op["b"].grad_inputs == ("v",)


@pytest.mark.parametrize("kind", list(Kind))
def test_resolving_views_twice_changes_nothing(kind: Kind) -> None:
    once = graph_of(
        op("a", "", "x"),
        op("v1", "x", "v", saves=("x", "v")),
        op("v2", "v", "w"),
        op("use", "w", "y"),
        views={"v": "x", "w": "v"},
        kind=kind,
    )
    twice = build(tuple(once.tensors.values()), once.ops, outputs=once.outputs, kind=kind)
    assert (twice.tensors, twice.ops, twice.outputs) == (once.tensors, once.ops, once.outputs)


def test_outputs_default_to_what_no_op_consumes() -> None:
    graph = graph_of(op("a", "in", "x y"), op("b", "x", "z"))
    assert graph.outputs == ("y", "z")


@pytest.mark.parametrize(("recomputable", "outputs"), [(True, ["x", "y"]), (False, ["y"])])
def test_held_tensor_is_an_output_that_is_made_once(recomputable: bool, outputs: list[str]) -> None:
    with pytest.raises(GraphError, match="tensor 'x' is held, but it is no output, or the op that makes it may run"):
        graph_of(op("a", "", "x", recomputable=recomputable), op("b", "x", "y"), outputs=outputs, held=["x"])


def test_outputs_may_be_none_at_all() -> None:
    assert graph_of(op("a", "", "x"), outputs=[]).outputs == ()


def test_producer_consumers_and_inputs() -> None:
    graph = graph_of(op("a", "in", "x"), op("b", "x in", "y"), op("c", "x", "z"))
    assert {name: made_by.name for name, made_by in graph.producer.items()} == {"x": "a", "y": "b", "z": "c"}
    assert [reader.name for reader in graph.consumers["x"]] == ["b", "c"]
    assert graph.consumers["z"] == ()
    assert graph.inputs == ("in",)


def test_fixed_bytes_are_resident_bytes_and_graph_inputs() -> None:
    assert graph_of(op("a", "in", "x"), sizes={"in": 5, "x": 100}, resident_bytes=7).fixed_bytes == 12


def test_total_time_counts_every_op_once() -> None:
    assert graph_of(op("a", "", "x", time=3), op("b", "x", "y", time=4)).total_time == 7


def test_arrays_number_ops_and_tensors_in_the_graphs_order() -> None:
    arrays = diamond().arrays
    assert arrays.tensor_names == ("ta", "tb", "tc", "td")
    assert arrays.tensor_bytes.tolist() == [4, 2, 2, 1]
    assert arrays.producer.tolist() == [0, 1, 2, 3]
    assert arrays.inputs == ((), (0,), (0,), (1, 2))
    assert arrays.outputs == ((0,), (1,), (2,), (3,))
    assert arrays.is_output.tolist() == [False, False, False, True]


def test_arrays_mark_graph_inputs_and_ops_that_work_in_place() -> None:
    graph = graph_of(op("a", "in", "x", time=3, workspace_bytes=9), op("b", "x", "y", inplace="x"))
    arrays = graph.arrays
    assert arrays.producer.tolist() == [-1, 0, 1]
    assert arrays.inplace == (-1, 1)
    assert arrays.op_time.tolist() == [3, 1]
    assert arrays.workspace_bytes.tolist() == [9, 0]
    assert arrays.op_index == {"a": 0, "b": 1}


def test_a_graph_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        in_place().name = "other"  # type: ignore[misc]


# Residents


_UPDATE: dict[str, Any] = {"phase": Phase.UPDATE, "recomputable": False, "writes": ("w",)}


def _stepping(*more: Op, residents: str = "w", kind: Kind = Kind.TRAINING, **changes: Any) -> Graph:
    update = op("update", "w g", "done", **(_UPDATE | changes))
    roles = dict.fromkeys(residents, Residency.PARAMETER)
    return graph_of(op("use", "w", "g"), update, *more, kind=kind, residents=roles)


def test_residents_are_graph_inputs_and_count() -> None:
    graph = _stepping()
    assert (graph.residents, graph.inputs, graph.fixed_bytes) == (("w",), ("w",), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"residents": "wg"}, "resident 'g' is a view, or an op produces it"),
        ({"residents": "x"}, "op 'update' writes 'w', which is no resident among its inputs"),
        ({"writes": ("g",)}, "op 'update' writes 'g', which is no resident among its inputs"),
        (
            {"phase": Phase.BACKWARD},
            "op 'update' writes residents, but is no update that runs once in a training graph",
        ),
        ({"recomputable": True}, "op 'update' writes residents, but is no update that runs once in a training graph"),
        ({"kind": Kind.INFERENCE}, "op 'update' writes residents, but is no update that runs once in a training graph"),
    ],
)
def test_residents_own_their_storage_and_only_updates_write_them(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        _stepping(**changes)
    assert caught.value.message == message


def test_nothing_reads_a_resident_after_its_update() -> None:
    with pytest.raises(GraphError, match="op 'late' reads 'w' after 'update' has written it"):
        _stepping(op("late", "w", "y"))


def test_resident_is_no_view() -> None:
    with pytest.raises(GraphError, match="resident 'v' is a view"):
        build([Tensor("x", 1), Tensor("v", 0, view_of="x", resident=Residency.STATE)], [op("a", "v", "")])
