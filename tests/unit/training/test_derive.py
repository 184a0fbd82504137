"""The training graph: which backward ops there are, what they read and make, and which gradients share storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from remat_cli.core.graph import Graph, Kind, Op, Phase, Tensor, build_graph
from remat_cli.core.schedule import input_order, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.errors import GraphError, UsageError
from remat_cli.training import training_graph
from tests.graphs import graph_of, op

_UNIT = "unit"


def typed(type_: str, reads: str, makes: str, **fields: Any) -> Op:
    """Return op `type_`, named after its first output."""
    return replace(op(f"{type_}.{makes.split()[0]}", reads, makes, **fields), type=type_)


def forward(*ops: Op, **fields: Any) -> Graph:
    return graph_of(*ops, kind=Kind.FORWARD, **fields)


def shaped(
    tensors: Sequence[Tensor], ops: Sequence[Op], outputs: Sequence[str] | None = None, time_unit: str = _UNIT
) -> Graph:
    return build_graph(
        name="test",
        kind=Kind.FORWARD,
        time_unit=time_unit,
        resident_bytes=0,
        tensors=tensors,
        ops=ops,
        outputs=outputs,
    )


def backward_types(graph: Graph) -> list[str]:
    return [each.type for each in graph.ops if each.phase is Phase.BACKWARD]


def residual() -> Graph:
    """x -> Gelu -> h; y = x + h, where x = Conv(image)."""
    return forward(
        typed("Conv", "image", "x", saves=("image",), grad_inputs=()),
        typed("Gelu", "x", "h", saves=("x",)),
        typed("Add", "x h", "y", saves=()),
        sizes={"x": 8, "h": 8, "y": 8},
    )


def test_backward_ops_follow_the_loss_in_reverse_order() -> None:
    graph = training_graph(forward(typed("Conv", "image", "x"), typed("Relu", "x", "y"), typed("Pool", "y", "z")))
    assert graph.kind is Kind.TRAINING
    assert [each.name for each in graph.ops] == [
        "Conv.x",
        "Relu.y",
        "Pool.z",
        "loss",
        "Pool.z.backward",
        "Relu.y.backward",
        "Conv.x.backward",
    ]


def test_backward_op_reads_gradients_and_what_is_saved_and_makes_gradients_of_its_inputs() -> None:
    graph = training_graph(
        forward(typed("Conv", "image", "x"), typed("Relu", "x", "y", saves=("y",), workspace_bytes=3))
    )
    relu = graph.op["Relu.y.backward"]
    assert relu.type == "ReluGrad"
    assert relu.inputs == ("y.grad", "y")
    assert relu.outputs == ("x.grad",)
    assert relu.grad_of == "Relu.y"
    assert relu.phase is Phase.BACKWARD
    assert relu.workspace_bytes == 3
    assert not relu.recomputable


def test_without_marks_all_inputs_and_outputs_are_saved() -> None:
    graph = training_graph(forward(typed("Conv", "image", "x"), typed("Mix", "x image", "y mask")))
    assert set(graph.op["Mix.y.backward"].inputs) == {"y.grad", "mask.grad", "x", "image", "y", "mask"}
    assert graph.op["Mix.y.backward"].outputs == ("x.grad",)


def test_backward_takes_twice_the_time_unless_the_file_says_otherwise() -> None:
    graph = training_graph(forward(typed("Conv", "image", "x", time=5), typed("Relu", "x", "y", time=3, grad_time=4)))
    assert graph.op["Conv.x.backward"].time == 10
    assert graph.op["Relu.y.backward"].time == 4
    assert graph.op["loss"].time == 0


def test_backward_flops_are_twice_those_of_the_forward() -> None:
    graph = training_graph(
        forward(
            typed("Conv", "image", "x", flops=100),
            typed("Gemm", "x", "y", flops=30),
            typed("Mystery", "y", "z"),
        )
    )
    assert graph.op["Conv.x.backward"].flops == 200
    assert graph.op["Gemm.y.backward"].flops == 60
    assert graph.op["Mystery.z.backward"].flops is None


def test_backward_moves_what_it_reads_and_writes() -> None:
    graph = training_graph(
        forward(
            typed("Conv", "image", "x"),
            typed("Gelu", "x", "y", saves=("x",)),
            sizes={"x": 8, "y": 8},
        )
    )
    assert graph.op["Gelu.y.backward"].moved_bytes == 24


def test_forward_ops_keep_no_marks_that_only_a_forward_graph_has() -> None:
    marked = forward(typed("Conv", "image", "x", saves=("image",), grad_inputs=(), grad_time=3, grad_flops=4))
    conv = training_graph(marked).ops[0]
    assert conv == typed("Conv", "image", "x")


def test_outputs_are_those_of_the_forward_and_tokens_of_ops_without_gradients() -> None:
    graph = training_graph(forward(typed("Conv", "image", "x"), typed("Relu", "x", "y"), outputs=["y"]))
    assert graph.outputs == ("y", "Conv.x.backward.done")
    assert graph.tensors["Conv.x.backward.done"].bytes == 0
    assert graph.op["Conv.x.backward"].outputs == ("Conv.x.backward.done",)


def test_gradient_of_a_graph_input_is_an_output() -> None:
    graph = training_graph(forward(typed("Conv", "image w", "x", grad_inputs=("w",)), sizes={"w": 6}))
    assert graph.outputs == ("x", "w.grad")
    assert graph.tensors["w.grad"].bytes == 6


def test_op_outside_the_backward_gets_none_and_stops_the_gradient() -> None:
    graph = training_graph(
        forward(
            typed("Scale", "image", "x", saves=(), grad_inputs=()),
            typed("Conv", "x", "y", saves=("x",), grad_inputs=()),
        )
    )
    assert backward_types(graph) == ["Loss", "ConvGrad"]


def test_op_whose_result_nobody_differentiates_gets_no_backward() -> None:
    graph = training_graph(
        forward(
            typed("Conv", "image", "x"),
            typed("Branch", "x", "side"),
            typed("Relu", "x side", "y", grad_inputs=("x",)),
        )
    )
    assert backward_types(graph) == ["Loss", "ReluGrad", "ConvGrad"]


def test_output_of_an_op_outside_the_backward_seeds_no_gradient() -> None:
    graph = training_graph(
        forward(
            typed("Conv", "image", "x"),
            typed("ArgMax", "x", "best", saves=(), grad_inputs=()),
            outputs=["x", "best"],
        )
    )
    assert graph.op["loss"].inputs == ("x",)
    assert graph.outputs[:2] == ("x", "best")


def test_output_of_integers_seeds_no_gradient() -> None:
    tensors = [Tensor("image", 4), Tensor("x", 4, dtype="float16"), Tensor("rank", 8, dtype="int64")]
    graph = training_graph(shaped(tensors, [typed("TopK", "image", "x rank")]))
    assert graph.op["loss"].outputs == ("x.grad",)


def test_view_that_is_an_output_seeds_a_gradient_and_its_base_no_other() -> None:
    graph = training_graph(
        forward(typed("Gemm", "image", "x"), typed("Reshape", "x", "y"), sizes={"x": 8}, views={"y": "x"})
    )
    assert set(graph.outputs[:2]) == {"x", "y"}
    assert graph.op["loss"].outputs == ("y.grad",)


def test_graph_without_a_gradient_is_refused() -> None:
    with pytest.raises(GraphError, match="nothing to train") as caught:
        training_graph(forward(typed("ArgMax", "image", "best", saves=(), grad_inputs=())))
    assert "inference" in caught.value.hint


@pytest.mark.parametrize("kind", [Kind.TRAINING, Kind.INFERENCE])
def test_graph_that_is_no_forward_pass_is_refused(kind: Kind) -> None:
    with pytest.raises(UsageError, match=kind.value):
        training_graph(graph_of(op("a", "", "x"), kind=kind))


def test_names_that_the_forward_graph_uses_are_not_given_again() -> None:
    graph = training_graph(
        forward(
            typed("Conv", "image", "y.grad"),
            replace(typed("Relu", "y.grad", "y"), name="loss"),
        )
    )
    assert [each.name for each in graph.ops if each.phase is Phase.BACKWARD] == [
        "loss.2",
        "loss.backward",
        "Conv.y.grad.backward",
    ]
    assert graph.op["loss.2"].outputs == ("y.grad.2",)


# --- Sums of gradients ------------------------------------------------------------------------------------------------


def fan_out(readers: int) -> Graph:
    """x feeds Gelu.y1, Gelu.y2, ..., all of them outputs."""
    gelus = [typed("Gelu", "x", f"y{i}", saves=("x",)) for i in range(1, readers + 1)]
    sizes = {"x": 8} | {f"y{i}": 8 for i in range(1, readers + 1)}
    return forward(typed("Conv", "image", "x", flops=1, moved_bytes=1), *gelus, sizes=sizes)


def test_gradients_are_summed_right_after_the_second_one() -> None:
    graph = training_graph(fan_out(3))
    backward = [each.name for each in graph.ops if each.phase is Phase.BACKWARD]
    assert backward == [
        "loss",
        "Gelu.y3.backward",
        "Gelu.y2.backward",
        "x.grad.accumulate2",
        "Gelu.y1.backward",
        "x.grad.accumulate3",
        "Conv.x.backward",
    ]
    first, second = graph.op["x.grad.accumulate2"], graph.op["x.grad.accumulate3"]
    assert first.type == "GradientAccumulation"
    assert first.inputs == ("x.grad", "x.grad.2")
    assert second.inputs == (first.outputs[0], "x.grad.3")
    assert graph.op["Conv.x.backward"].inputs[0] == second.outputs[0]


def test_sum_works_in_place_and_needs_no_third_gradient() -> None:
    graph = training_graph(fan_out(2))
    total = graph.op["x.grad.accumulate2"]
    assert total.inplace == "x.grad"
    assert graph.tensors[total.outputs[0]].bytes == 8


def test_output_that_is_read_again_sums_the_gradient_of_the_loss() -> None:
    graph = training_graph(forward(typed("Conv", "image", "x"), typed("Gelu", "x", "y"), outputs=["x", "y"]))
    assert graph.op["loss"].outputs == ("x.grad", "y.grad")
    assert graph.op["x.grad.accumulate2"].inputs == ("x.grad", "x.grad.2")


@pytest.mark.parametrize(
    ("time_unit", "expected"),
    [
        ("unit", 1),
        ("flop", 2),  # 8 bytes of float32
        ("ns", 12),  # 24 bytes at the 2 bytes/ns at which the fastest op, Gelu.y1, moves its 16
    ],
)
def test_sum_takes_the_time_that_the_graph_counts(time_unit: str, expected: int) -> None:
    tensors = [Tensor("image", 4), *(Tensor(name, 8) for name in ("free", "x", "y1", "y2"))]
    ops = [
        typed("Load", "image", "free", time=0),
        typed("Conv", "image", "x", time=50),
        typed("Gelu", "x", "y1", time=8),
        typed("Gelu", "x", "y2", time=9),
    ]
    total = training_graph(shaped(tensors, ops, time_unit=time_unit)).op["x.grad.accumulate2"]
    assert total.time == expected
    assert (total.flops, total.moved_bytes) == (2, 24)


def test_sum_has_as_many_flops_as_elements() -> None:
    tensors = [Tensor("image", 4), *(Tensor(name, 8, (4,), "float16") for name in ("x", "y1", "y2"))]
    ops = [typed("Conv", "image", "x"), typed("Gelu", "x", "y1"), typed("Gelu", "x", "y2")]
    assert training_graph(shaped(tensors, ops)).op["x.grad.accumulate2"].flops == 4


# --- Shared storage ---------------------------------------------------------------------------------------------------


def test_sum_of_activations_hands_its_gradient_on() -> None:
    graph = training_graph(residual())
    gradients = {name: graph.tensors[name] for name in graph.op["Add.y.backward"].outputs}
    assert {tensor.view_of for tensor in gradients.values()} == {"y.grad"}
    assert graph.op["Add.y.backward"].moved_bytes == 0


def test_gradient_is_not_summed_into_storage_that_another_gradient_shares() -> None:
    graph = training_graph(residual())
    # x.grad is a view of y.grad, as is h.grad; x.grad.2, which Gelu's backward makes, owns its storage.
    assert graph.tensors["x.grad"].view_of == "y.grad"
    assert graph.op["x.grad.accumulate2"].inplace == "x.grad.2"


def test_two_shared_gradients_are_summed_into_new_storage() -> None:
    graph = training_graph(
        forward(
            typed("Conv", "image", "x"),
            typed("Identity", "x", "a"),
            typed("Identity", "x", "b"),
            sizes={"x": 8, "a": 8, "b": 8},
        )
    )
    total = graph.op["x.grad.accumulate2"]
    assert total.inplace is None
    assert graph.tensors[total.outputs[0]].bytes == 8
    assert graph.tensors[total.outputs[0]].view_of is None


def test_gradient_of_a_broadcast_operand_is_storage_of_its_own() -> None:
    graph = training_graph(
        forward(
            typed("Conv", "image", "x"),
            typed("Pool", "x", "row"),
            typed("Add", "x row", "y", saves=()),
            sizes={"x": 8, "row": 2, "y": 8},
        )
    )
    assert graph.tensors["x.grad"].view_of == "y.grad"
    assert graph.tensors["row.grad"].view_of is None
    assert graph.tensors["row.grad"].bytes == 2


def test_parts_of_a_concatenation_have_slices_of_its_gradient() -> None:
    graph = training_graph(
        forward(
            typed("Conv", "image", "a"),
            typed("Conv", "image", "b"),
            typed("Concat", "a b", "y", saves=()),
            sizes={"a": 3, "b": 5, "y": 8},
        )
    )
    assert {graph.tensors[name].view_of for name in ("a.grad", "b.grad")} == {"y.grad"}


def test_gradient_of_a_reshape_is_a_view_with_the_size_that_its_base_has() -> None:
    tensors = [
        Tensor("image", 4),
        Tensor("x", 24, (2, 3), "float32"),
        Tensor("flat", 0, (6,), "float32", "x"),
        Tensor("y", 24, (6,), "float32"),
    ]
    ops = [typed("Conv", "image", "x"), typed("Reshape", "x", "flat", saves=()), typed("Gelu", "flat", "y")]
    graph = training_graph(shaped(tensors, ops))
    assert graph.tensors["flat.grad"].bytes == 24
    assert graph.tensors["x.grad"].view_of == "flat.grad"
    assert graph.tensors["x.grad"].shape == (2, 3)


def view_graph(shape: tuple[int, ...] | None, *, type_: str) -> Graph:
    """x [2, 3] of 24 bytes -> `type_` -> v, a view of it of this shape -> Gelu -> y."""
    size = 24
    tensors = [
        Tensor("image", 4),
        Tensor("x", size, (2, 3), "float32"),
        Tensor("v", 0, shape, "float32", "x"),
        Tensor("y", size, None, "float32"),
    ]
    ops = [typed("Conv", "image", "x"), typed(type_, "x", "v", saves=()), typed("Gelu", "v", "y")]
    return training_graph(shaped(tensors, ops))


@pytest.mark.parametrize(("type_", "shape", "expected"), [("Slice", (1, 3), 12), ("Expand", (4, 2, 3), 96)])
def test_gradient_of_a_view_has_as_many_elements_as_the_view(type_: str, shape: tuple[int, ...], expected: int) -> None:
    graph = view_graph(shape, type_=type_)
    assert graph.tensors["v.grad"].bytes == expected
    assert graph.tensors["x.grad"].view_of is None
    assert graph.tensors["x.grad"].bytes == 24


def test_gradient_of_a_view_of_unknown_shape_is_as_large_as_its_base() -> None:
    assert view_graph(None, type_="Reshape").tensors["v.grad"].bytes == 24


def test_gradients_of_the_parts_of_a_split_are_put_together_in_new_storage() -> None:
    tensors = [
        Tensor("image", 4),
        Tensor("x", 24, (6,)),
        Tensor("left", 0, (3,), None, "x"),
        Tensor("right", 0, (3,), None, "x"),
        Tensor("y", 12, (3,)),
        Tensor("z", 12, (3,)),
    ]
    ops = [
        typed("Conv", "image", "x"),
        typed("Split", "x", "left right", saves=()),
        typed("Gelu", "left", "y"),
        typed("Gelu", "right", "z"),
    ]
    graph = training_graph(shaped(tensors, ops))
    assert graph.tensors["left.grad"].bytes == 12
    assert graph.tensors["x.grad"].view_of is None
    assert graph.tensors["x.grad"].bytes == 24


def test_gradient_that_two_incoming_ones_add_up_to_is_storage_of_its_own() -> None:
    graph = training_graph(
        forward(typed("Conv", "image", "x"), typed("Identity", "x", "a b"), sizes={"x": 8, "a": 8, "b": 8})
    )
    assert graph.op["Identity.a.backward"].inputs[:2] == ("a.grad", "b.grad")
    assert graph.tensors["x.grad"].view_of is None


def test_saved_view_keeps_its_storage() -> None:
    tensors = [Tensor("image", 4), Tensor("x", 24, (2, 3)), Tensor("t", 0, (3, 2), None, "x"), Tensor("y", 24, (3, 2))]
    ops = [
        typed("Conv", "image", "x"),
        typed("Transpose", "x", "t", saves=()),
        typed("Gelu", "t", "y", saves=("t",)),
    ]
    assert set(training_graph(shaped(tensors, ops)).op["Gelu.y.backward"].inputs) == {"y.grad", "t", "x"}


def test_plain_run_of_a_residual_block_needs_what_can_be_counted_by_hand() -> None:
    graph = training_graph(residual())
    trace = simulate(graph, with_frees(graph, input_order(graph)))
    sizes: Mapping[str, int] = {"image": 1, "x": 8, "y": 8, "y.grad": 8, "x.grad.2": 8}
    # While Gelu's backward runs: x, the output y, y's gradient, and the one it makes for x.
    assert trace.peak_bytes == sum(sizes.values())


def test_without_sharing_each_gradient_has_storage_of_its_own() -> None:
    graph = training_graph(
        forward(typed("Conv", "image", "a"), typed("Relu", "a", "b"), typed("Add", "a b", "y")), share_gradients=False
    )
    assert all(tensor.view_of is None for tensor in graph.tensors.values())
