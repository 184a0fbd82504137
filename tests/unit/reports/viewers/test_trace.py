"""A schedule as a trace: it keeps the rules of Chrome's format, and shows what the simulator measured."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.link import Duplex
from remat_cli.core.schedule import with_frees
from remat_cli.core.simulate import simulate
from remat_cli.reports.timeline import Run
from remat_cli.reports.viewers.trace import trace_bytes
from tests.graphs import compute_sequences, small_graphs, training_chain
from tests.unit.reports.rendering import moving, run_of, two_again

Event = dict[str, Any]


def events_of(run: Run, budget: int | None = None) -> list[Event]:
    events: list[Event] = json.loads(trace_bytes(run, budget_bytes=budget))["traceEvents"]
    for event in events:
        assert {"ph", "pid", "name"} <= event.keys()
        assert event["ph"] in "MXCsf"
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["tid"] in named(events)
    return events


def named(events: list[Event]) -> dict[int, str]:
    return {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}


def values(events: list[Event], name: str) -> list[int]:
    return [each["args"]["bytes"] for each in events if each["ph"] == "C" and each["name"] == name]


def slices(events: list[Event], track: str) -> list[Event]:
    number = next(number for number, name in named(events).items() if name == track)
    return [each for each in events if each["ph"] == "X" and each["tid"] == number]


@given(st.data())
def test_every_step_is_a_slice_and_the_counters_reach_the_peaks(data: st.DataObject) -> None:
    graph = data.draw(small_graphs())
    schedule = with_frees(graph, data.draw(compute_sequences(graph)))
    run = Run(graph, schedule, simulate(graph, schedule))
    events = events_of(run)
    assert [each["args"]["step"] for each in events if each["ph"] == "X"] == list(range(len(schedule.steps)))
    assert max(values(events, "memory")) == run.trace.peak_bytes
    assert max(values(events, "memory of the plain run")) == Run.plain(graph).trace.peak_bytes
    times = [each["ts"] for each in events if each["ph"] == "C" and each["name"] == "memory"]
    assert times == sorted(times)
    ends = [(each["ts"], each["ts"] + each["dur"]) for each in slices(events, "compute")]
    assert all(end <= start for (_, end), (start, _) in pairwise(ends)), "they do not overlap"


def test_slice_says_what_runs_where_and_whether_again() -> None:
    graph = training_chain(6)
    schedule = two_again(graph)
    run = Run(graph, schedule, simulate(graph, schedule))
    again = [each for each in events_of(run) if each["ph"] == "X" and each["args"].get("recomputed")]
    assert [each["name"] for each in again] == ["f1", "f2"]
    assert again[0]["cat"] == "compute, again"
    assert again[0]["args"].keys() >= {"type", "bytes", "phase", "step"}


@pytest.mark.parametrize("duplex", Duplex)
def test_copies_have_a_track_for_each_direction_and_an_arrow(duplex: Duplex) -> None:
    events = events_of(moving(duplex, "ns"))
    (gone,), (back,) = slices(events, "to host"), slices(events, "to device")
    # 1 MB takes a nanosecond: times are in microseconds.
    assert (gone["ts"], gone["dur"], back["ts"], back["dur"]) == (0.001, 0.004, 0.005, 0.004)
    start, end = (next(each for each in events if each["ph"] == kind) for kind in "sf")
    assert start["id"] == end["id"]
    for arrow, copy in ((start, gone), (end, back)):
        assert arrow["tid"] == copy["tid"]
        assert copy["ts"] <= arrow["ts"] <= copy["ts"] + copy["dur"]
    assert end["bp"] == "e"


def test_budget_is_a_line_as_long_as_the_longer_run() -> None:
    graph = training_chain(6)
    schedule = two_again(graph)
    run = Run(graph, schedule, simulate(graph, schedule))
    line = [(each["ts"], each["args"]["bytes"]) for each in events_of(run, 5) if each["name"] == "budget"]
    assert line == [(0, 5), (run.trace.time, 5)]
    assert "budget" not in {each["name"] for each in events_of(run)}


def test_names_cannot_break_the_file() -> None:
    graph = training_chain(2)
    run = run_of(graph, *(each.name for each in graph.ops))
    text = trace_bytes(run, budget_bytes=None)
    assert gzip.decompress(trace_bytes(run, budget_bytes=None, compressed=True)) == text
    assert text.isascii()


def test_where_nothing_takes_time_a_step_takes_a_microsecond() -> None:
    graph = training_chain(2, time=0)
    run = run_of(graph, *(each.name for each in graph.ops))
    counted = Counter(each["dur"] for each in slices(events_of(run), "compute"))
    assert counted == {1: len(graph.ops)}
