"""Predicted lifetimes beside recorded ones; the recordings are of torch's profiler, which is asked for nothing else."""

from __future__ import annotations

import os
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from remat_cli.config import GraphOptions
from remat_cli.core.allocator import rounded
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Compute, Free, Schedule
from remat_cli.formats.memory_snapshot import RecordedAllocation, RecordedHistory, read_history
from remat_cli.studies.recorded import BEFORE, Prediction, Reality, predict, predict_eager, predict_plain
from tests.graphs import graph_of, op
from tests.torch_steps import deep_gpt

DEEP = "tests.torch_steps:deep_gpt"
KB = 1024


@cache
def prediction() -> Prediction:
    return predict_eager(Path(DEEP), GraphOptions())


def recorded_on_cpu(path: Path, steps: int) -> Path:
    """Write what torch allocates in some steps of training, in the form of a snapshot."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    torch.manual_seed(0)
    model, inputs = deep_gpt()

    def run() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        model(**inputs).backward()

    run()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        for _ in range(steps):
            run()
    events: list[tuple[int, int, int]] = []
    kineto: Any = profile.profiler
    waiting = list(kineto.kineto_results.experimental_event_tree())
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.tag.name == "Allocation":
            events.append((node.start_time_ns, node.extra_fields.ptr, node.extra_fields.alloc_size))
    trace: list[dict[str, Any]] = [
        {
            "action": "alloc" if size > 0 else "free_completed",
            "addr": address,
            "size": rounded(abs(size)),
            "frames": [],
        }
        for _, address, size in sorted(events)
    ]
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    return path


@pytest.mark.parametrize("steps", [1, 3])
def test_tensors_of_a_step_are_recognised_in_what_torch_allocates(tmp_path: Path, steps: int) -> None:
    reality = Reality(prediction(), read_history(recorded_on_cpu(tmp_path / "recorded.pickle", steps)))
    assert reality.recognised > 0.95
    at_peak = reality.at_peak
    for module in ("blocks.0", "blocks.1.qkv", "blocks.3.up", "blocks.3.norm2"):
        predicted, recorded = at_peak[module]
        assert predicted == recorded > 0
    # Where autograd adds two gradients up in place, one is predicted that is not there.
    assert all(item.bytes <= 64 * KB for item in reality.partings)
    beside = reality.predicted.peak_bytes - reality.predicted.before_bytes
    assert reality.recorded.peak_bytes == pytest.approx(beside, rel=0.02)


def test_modules_of_the_backward_pass_are_those_whose_tensors_it_asks_for() -> None:
    modules = {item.module for item in prediction().tensors}
    assert {"blocks.0.qkv", "blocks.3.down", "blocks.2.norm"} <= modules
    made = [item for item in prediction().tensors if item.name.startswith("native_layer_norm_backward")]
    assert any(item.module == "blocks.3.norm2" for item in made)


def chain(*kilobytes: int) -> Graph:
    names = [f"t{place}" for place in range(len(kilobytes))]
    ops = [op(f"make_{name}", " ".join(names[max(0, at - 1) : at]), name) for at, name in enumerate(names)]
    return graph_of(*ops, sizes={name: size * KB for name, size in zip(names, kilobytes, strict=True)})


def history(*spans: tuple[int, int, int]) -> RecordedHistory:
    """Make a recording of allocations: kilobytes, and the events that begin and end them."""
    made = tuple(RecordedAllocation(size * KB, begin, end, "model.py:3 forward") for size, begin, end in spans)
    peaks = [sum(item.bytes for item in made if item.begin <= at < item.end) for at in range(-1, 40)]
    return RecordedHistory(0, 40, max(peaks), peaks.index(max(peaks)) - 1, made)


def test_lifetimes_that_are_the_predicted_ones_part_nowhere() -> None:
    reality = Reality(predict_plain(chain(1, 2, 3, 4)), history((1, 0, 2), (2, 1, 4), (3, 3, 6), (4, 5, 40)))
    assert reality.partings == ()
    assert reality.recognised == 1.0
    assert all(predicted == recorded for predicted, recorded in reality.at_peak.values())


def test_what_lives_longer_is_named() -> None:
    sizes = tuple(range(1, 9))
    graph = chain(*sizes)
    spans = [(size, 2 * at, 40 if at == 1 else 2 * at + 3) for at, size in enumerate(sizes)]
    (parting,) = Reality(predict_plain(graph), history(*spans)).partings
    assert (parting.name, parting.bytes, parting.how) == ("t1", 2 * KB, "lives 5 tensors longer than predicted")


def test_what_lives_shorter_is_named() -> None:
    sizes = tuple(range(1, 9))
    graph = chain(*sizes)
    kept = Schedule(tuple(Compute(item.name) for item in graph.ops))
    spans = [(size, 2 * at, 3 if at == 0 else 40) for at, size in enumerate(sizes)]
    (parting,) = Reality(predict(graph, kept), history(*spans)).partings
    assert (parting.name, parting.how) == ("t0", "lives 6 tensors shorter than predicted")


def test_what_one_side_lacks_is_named() -> None:
    reality = Reality(predict_plain(chain(1, 2, 3, 4)), history((1, 0, 2), (9, 1, 2), (3, 3, 6), (4, 5, 40)))
    said = {(item.module, item.name, item.bytes, item.how) for item in reality.partings}
    assert said == {
        ("model.py:3 forward", "", 9 * KB, "was not predicted"),
        ("forward", "t1", 2 * KB, "is not in the recording"),
    }


def test_what_was_there_before_stands_by_itself() -> None:
    graph = graph_of(op("a", "", "x"), sizes={"x": 2 * KB}, resident_bytes=5 * KB)
    reality = Reality(predict_plain(graph), history((5, -1, 40), (1, 0, 40), (2, 3, 6)))
    assert reality.at_peak[BEFORE] == (5 * KB, 6 * KB)


def test_schedule_that_frees_early_is_predicted_as_it_is() -> None:
    graph = chain(1, 2)
    steps = Schedule((Compute("make_t0"), Compute("make_t1"), Free("t0")))
    assert [(item.begin, item.end) for item in predict(graph, steps).tensors] == [(1, 3), (2, 4)]
