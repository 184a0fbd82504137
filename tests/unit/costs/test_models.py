"""Cost models: what time they give an op, and where they refuse to guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remat_cli.core.graph import Graph, Kind, Op, Tensor, build_graph
from remat_cli.costs import COST_MODELS, CostModel, Device, Flops, Measured, Roofline, Unit, apply_costs
from remat_cli.errors import UsageError
from tests.graphs import graph_of, op

DEVICE = Device(
    name="test",
    peak_flops={"float32": 10**12, "float16": 4 * 10**12},  # 1000 and 4000 FLOP/ns
    bandwidth=10**11,  # 100 bytes/ns
    memory_bytes=10**9,
    link_bandwidth=10**10,
)


def costed(model: CostModel, *ops: Op, kind: Kind = Kind.INFERENCE, **fields: Any) -> Graph:
    return apply_costs(graph_of(*ops, kind=kind, **fields), model).checked()


def time_on(device: Device, **fields: Any) -> int:
    return costed(Roofline(device), op("a", "", "x", **fields)).ops[0].time


def test_every_model_has_a_name_and_counts_in_a_unit_of_the_format() -> None:
    assert {name: model.time_unit for name, model in COST_MODELS.items()} == {
        "unit": "unit",
        "flops": "flop",
        "roofline": "ns",
        "measured": "ns",
    }


def test_times_and_their_unit_replace_those_of_the_file() -> None:
    graph = costed(Flops(), op("a", "", "x", time=99, flops=7))
    assert graph.ops[0].time == 7
    assert graph.time_unit == "flop"


def test_unit_costs_one_each_way() -> None:
    a = costed(Unit(), op("a", "", "x", time=5), kind=Kind.FORWARD).ops[0]
    assert (a.time, a.grad_time) == (1, 1)


@pytest.mark.parametrize(
    "model", [Unit(), Flops(), Roofline(replace(DEVICE, launch_overhead_ns=5)), Measured({"a": 3, "Test": 4})]
)
def test_op_that_only_makes_views_takes_no_time(model: CostModel) -> None:
    ops = [op("a", "", "x", flops=1, moved_bytes=1), op("view", "x", "v")]
    graph = costed(model, *ops, views={"v": "x"}, kind=Kind.FORWARD)
    assert graph.ops[0].time > 0
    assert (graph.ops[1].time, graph.ops[1].grad_time) == (0, 0)


def test_backward_times_are_for_forward_graphs_only() -> None:
    a = op("a", "", "x", flops=7, grad_flops=11)
    assert costed(Flops(), a, kind=Kind.FORWARD).ops[0].grad_time == 11
    assert costed(Flops(), a, kind=Kind.INFERENCE).ops[0].grad_time is None


def test_backward_without_flops_of_its_own_is_left_at_twice_the_forward() -> None:
    assert costed(Flops(), op("a", "", "x", flops=7), kind=Kind.FORWARD).ops[0].grad_time is None


def test_flops_of_an_op_of_which_only_bytes_are_known_are_one_for_each_4_bytes() -> None:
    assert costed(Flops(), op("a", "", "x", moved_bytes=40)).ops[0].time == 10


def test_data_movement_is_free_in_flops() -> None:
    assert costed(Flops(), op("a", "", "x", flops=0, moved_bytes=40)).ops[0].time == 0


# --- Roofline ---------------------------------------------------------------------------------------------------------


def test_op_is_bound_by_the_slower_of_compute_and_memory() -> None:
    assert time_on(DEVICE, flops=50_000, moved_bytes=1000) == 50
    assert time_on(DEVICE, flops=5_000, moved_bytes=1000) == 10


def test_time_is_rounded_up_and_every_launch_costs() -> None:
    assert time_on(DEVICE, flops=1, moved_bytes=1) == 1
    assert time_on(replace(DEVICE, launch_overhead_ns=40), flops=1, moved_bytes=101) == 42


def test_efficiencies_slow_their_own_side() -> None:
    slow_compute, slow_memory = replace(DEVICE, compute_efficiency=0.5), replace(DEVICE, memory_efficiency=0.25)
    assert time_on(slow_compute, flops=50_000, moved_bytes=1000) == 100
    assert time_on(slow_compute, flops=0, moved_bytes=1000) == 10
    assert time_on(slow_memory, flops=0, moved_bytes=1000) == 40


@pytest.mark.parametrize(("dtype", "expected"), [("float16", 25), ("float32", 100), ("int64", 100), (None, 100)])
def test_peak_is_that_of_the_element_type_of_the_output(dtype: str | None, expected: int) -> None:
    graph = build_graph(
        name="test",
        kind=Kind.INFERENCE,
        time_unit="unit",
        resident_bytes=0,
        tensors=[Tensor("x", 8, dtype="float64"), Tensor("y", 8, dtype=dtype)],
        ops=[op("a", "x", "y", flops=100_000)],
    )
    assert apply_costs(graph, Roofline(DEVICE)).ops[0].time == expected


def test_backward_also_moves_what_is_saved() -> None:
    ops = [op("a", "", "x", flops=0, moved_bytes=8), op("b", "x", "y", flops=100, moved_bytes=2000, saves=("x",))]
    graph = costed(Roofline(DEVICE), *ops, sizes={"x": 1000, "y": 1000}, kind=Kind.FORWARD)
    assert graph.op["b"].time == 20
    assert graph.op["b"].grad_time == 30


def test_backward_has_twice_the_flops_unless_they_are_known() -> None:
    twice = op("a", "", "x", flops=50_000, moved_bytes=0)
    known = op("b", "", "y", flops=50_000, grad_flops=50_000, moved_bytes=0)
    graph = costed(Roofline(DEVICE), twice, known, kind=Kind.FORWARD)
    assert [each.grad_time for each in graph.ops] == [100, 50]


@pytest.mark.parametrize("model", [Flops(), Roofline(DEVICE)])
def test_op_without_flops_and_bytes_is_refused_by_type(model: CostModel) -> None:
    ops = [
        op("a", "", "x", flops=1),
        replace(op("b", "x", "y"), type="Swirl"),
        replace(op("c", "y", "z"), type="Swirl"),
    ]
    with pytest.raises(UsageError, match="type 'Swirl' in") as caught:
        costed(model, *ops)
    assert "given" in caught.value.hint


def test_refusal_of_many_types_names_five() -> None:
    ops = [replace(op(f"a{i}", "", f"x{i}"), type=f"T{i}") for i in range(7)]
    with pytest.raises(UsageError, match="'T0', 'T1', 'T2', 'T3', 'T4' and 2 more"):
        costed(Flops(), *ops)


# --- Measured ---------------------------------------------------------------------------------------------------------


def test_measured_name_wins_over_type() -> None:
    graph = costed(Measured({"a": 3, "Test": 4}), op("a", "", "x"), op("b", "x", "y"))
    assert [each.time for each in graph.ops] == [3, 4]


def test_measured_backward_goes_by_the_names_of_the_training_graph() -> None:
    table = {"Test": 4, "a.backward": 9, "TestGrad": 7}
    graph = costed(Measured(table), op("a", "", "x"), op("b", "x", "y"), kind=Kind.FORWARD)
    assert [each.grad_time for each in graph.ops] == [9, 7]


def test_measured_table_without_an_op_is_refused() -> None:
    with pytest.raises(UsageError, match="'Test'") as caught:
        costed(Measured({"a": 3}), op("a", "", "x"), op("b", "x", "y"))
    assert "table" in caught.value.hint


# --- Devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"peak_flops": {"float16": 1}}, "float32"),
        ({"peak_flops": {"float32": 0}}, "peak_flops.float32 0"),
        ({"bandwidth": 0}, "bandwidth 0"),
        ({"memory_bytes": -1}, "memory_bytes -1"),
        ({"link_bandwidth": 0}, "link_bandwidth 0"),
        ({"launch_overhead_ns": -1}, "launch_overhead_ns -1"),
        ({"compute_efficiency": 0.0}, "compute_efficiency 0.0"),
        ({"memory_efficiency": 1.5}, "memory_efficiency 1.5"),
        ({"node_devices": -1}, "node_devices -1"),
        ({"network_bandwidth": -1}, "network_bandwidth -1"),
        ({"collective_efficiency": 0.0}, "collective_efficiency 0.0"),
    ],
)
def test_device_with_a_figure_out_of_range_is_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError, match=fault) as caught:
        replace(DEVICE, **fields)
    assert caught.value.hint


JOINED = replace(DEVICE, node_devices=4, node_bandwidth=2 * 10**9, network_bandwidth=10**8, collective_overhead_ns=5)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (2, 500 + 5),  # half of 2000 bytes, at 2 bytes/ns
        (4, 750 + 5),
        (8, 4375 + 5),  # seven eighths, over the networks of 4 devices together: 0.4 bytes/ns
        (6, 8334 + 5),  # five sixths, over those of the 2 devices in the second node
    ],
)
def test_collective_is_as_fast_as_the_slowest_link_of_its_rings(ranks: int, expected: int) -> None:
    assert JOINED.collective_time(2000, ranks) == expected
    assert replace(JOINED, collective_efficiency=0.5).collective_time(2000, 2) == 1000 + 5


@pytest.mark.parametrize(("missing", "ranks"), [("node_devices", 2), ("node_bandwidth", 2), ("network_bandwidth", 5)])
def test_collective_of_devices_that_are_joined_nobody_knows_how_is_refused(missing: str, ranks: int) -> None:
    unknown: dict[str, Any] = {missing: 0}
    device = replace(JOINED, **unknown)
    with pytest.raises(UsageError, match=f"{ranks} ranks.*no {missing}"):
        device.collective_time(1, ranks)
    if missing == "network_bandwidth":
        assert device.collective_time(2000, 4) == 755
