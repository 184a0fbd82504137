"""A schedule as a memory snapshot: PyTorch's own reader takes it, and finds the plan's peak."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.allocation.snapshot import snapshot_bytes
from remat_cli.core.graph import Graph
from remat_cli.core.link import Duplex
from remat_cli.core.schedule import Schedule, with_frees
from remat_cli.core.simulate import simulate
from tests.graphs import compute_sequences, graph_of, op, small_graphs
from tests.unit.reports.rendering import moving


def snapshot_of(graph: Graph, schedule: Schedule, times: tuple[int, ...]) -> dict[str, Any]:
    document: dict[str, Any] = pickle.loads(snapshot_bytes(graph, schedule, times))
    return document


def highest(snapshot: dict[str, Any]) -> int:
    """The most that is allocated at one time, and no two allocations at one address."""
    allocated: dict[int, int] = {}
    most = 0
    for event in snapshot["device_traces"][0]:
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            assert all(address + size <= other or other + held <= address for other, held in allocated.items())
            allocated[address] = size
            most = max(most, sum(allocated.values()))
        elif event["action"] == "free_completed":
            assert allocated.pop(address) == size
    at_end = {block["address"]: block["size"] for block in blocks(snapshot) if block["state"] == "active_allocated"}
    assert allocated == at_end
    return most


def blocks(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for segment in snapshot["segments"] for block in segment["blocks"]]


@given(st.data())
def test_most_that_is_allocated_is_the_peak(data: st.DataObject) -> None:
    graph = data.draw(small_graphs())
    schedule = with_frees(graph, data.draw(compute_sequences(graph)))
    trace = simulate(graph, schedule)
    snapshot = snapshot_of(graph, schedule, trace.times)
    assert highest(snapshot) == trace.peak_bytes
    times = [event["time_us"] for event in snapshot["device_traces"][0]]
    assert times == sorted(times)
    for segment in snapshot["segments"]:
        ends = [segment["address"], *(block["address"] + block["size"] for block in segment["blocks"])]
        assert ends[:-1] == [block["address"] for block in segment["blocks"]]
        assert ends[-1] == segment["address"] + segment["total_size"]


def test_what_is_on_the_host_is_not_allocated() -> None:
    run = moving(Duplex.FULL)
    assert highest(snapshot_of(run.graph, run.schedule, run.trace.times)) == run.trace.peak_bytes


def test_torch_reads_it_and_finds_the_peak() -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    kib = 1024
    graph = graph_of(
        op("a", "x", "t1", module="net.first", source="net.py:3"),
        op("b", "t1", "t2", workspace_bytes=8 * kib, inplace="t1"),
        op("c", "t2", "t3"),
        sizes={"x": kib, "t1": 4 * kib, "t2": 2 * kib, "t3": kib},
        resident_bytes=16 * kib,
    )
    schedule = with_frees(graph, ["a", "b", "c"])
    trace = simulate(graph, schedule)
    snapshot = snapshot_of(graph, schedule, trace.times)
    # As it prints allocations and frees: "a = seg_0[0:1.0KiB]", "del a # 1.0KiB".
    now = most = 0
    for line in viz.trace(snapshot).splitlines():
        if (found := re.match(r"(?:\w+ = \w+\[\d+:|(del) \w+ # )([\d.]+)KiB", line)) is not None:
            now += round(float(found[2]) * kib) * (-1 if found[1] else 1)
            most = max(most, now)
    assert most == trace.peak_bytes
    # It checks for itself that each segment adds up.
    assert "total_allocated: 18.0KiB" in viz.segsum(snapshot)
    flames: list[str] = []
    viz.memory(snapshot, format_flamegraph=flames.append)
    assert "resident: parameters, gradients, optimizer state" in flames[0]
    first = next(event for event in snapshot["device_traces"][0] if "a: t1" in str(event["frames"]))
    assert [(frame["name"], frame["filename"], frame["line"]) for frame in first["frames"]] == [
        ("a: t1 (Test)", "net.py", 3),
        ("net.first", "net.py", 3),
        ("net", "net.py", 3),
    ]


def test_same_schedule_gives_the_same_bytes() -> None:
    run = moving(Duplex.HALF, "ns")
    once, twice = (snapshot_bytes(run.graph, run.schedule, run.trace.times) for _ in range(2))
    assert once == twice
