"""Recorded memory snapshots: the peak, what is in it, and nothing but plain values loaded."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from remat_cli.errors import GraphError
from remat_cli.formats.memory_snapshot import read_snapshot

USER = {"filename": "/home/me/train.py", "line": 7, "name": "forward"}
TORCH = {"filename": "/v/site-packages/torch/nn/functional.py", "line": 9, "name": "linear"}
NATIVE = {"filename": "??", "line": 0, "name": "c10::cuda::alloc"}


def event(action: str, address: int, size: int, *frames: dict[str, Any]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": list(frames)}


def written(folder: Path, *events: dict[str, Any], segments: list[dict[str, Any]] | None = None) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": segments or [], "device_traces": [[], list(events)]}))
    return path


def segment(*blocks: tuple[int, str], size: int) -> dict[str, Any]:
    listed = [{"size": bytes, "state": state, "frames": [TORCH, USER]} for bytes, state in blocks]
    return {"device": 1, "address": 0, "total_size": size, "blocks": listed}


def test_the_peak_is_told_with_what_is_in_it(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        event("segment_alloc", 0, 1000),
        event("alloc", 0, 300, NATIVE, TORCH, USER),
        event("alloc", 300, 500, NATIVE),
        event("free_requested", 300, 500),
        event("free_completed", 300, 500),
        event("alloc", 300, 100, NATIVE, TORCH, USER),
        segments=[segment((300, "active_allocated"), (100, "active_allocated"), (600, "inactive"), size=1000)],
    )
    (memory,) = read_snapshot(path)
    assert (memory.device, memory.events) == (1, 6)
    assert (memory.peak_bytes, memory.reserved_bytes, memory.most_reserved_bytes) == (800, 1000, 1000)
    assert memory.fragmentation == pytest.approx(0.2)
    assert memory.places == {"c10::cuda::alloc": 500, "/home/me/train.py:7 forward": 300}


def test_what_was_there_before_the_recording_counts(tmp_path: Path) -> None:
    # Of a history that dropped its oldest events: one block was freed whose beginning is not known, one is there still.
    path = written(
        tmp_path,
        event("free_completed", 400, 600),
        event("alloc", 400, 50, USER),
        segments=[segment((400, "active_allocated"), (50, "active_pending_free"), size=2000)],
    )
    (memory,) = read_snapshot(path)
    assert memory.peak_bytes == 1000
    assert memory.places == {"allocated before the recording began": 600, "/home/me/train.py:7 forward": 400}


def test_a_snapshot_without_a_history_shows_what_is_there(tmp_path: Path) -> None:
    (memory,) = read_snapshot(written(tmp_path, segments=[segment((400, "active_allocated"), size=400)]))
    assert (memory.peak_bytes, memory.events) == (400, 0)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_code_of_a_snapshot_runs(tmp_path: Path) -> None:
    (path := tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(Evil(tmp_path / "made")))
    with pytest.raises(GraphError, match=r"holds posix\.mkdir.* nothing of it was loaded"):
        read_snapshot(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content",
    [b"text", b"\x80\x04.", pickle.dumps([]), pickle.dumps({"segments": 3, "device_traces": []}), pickle.dumps({})],
)
def test_what_is_no_snapshot_is_refused(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "snapshot.pickle").write_bytes(content)
    with pytest.raises(GraphError, match="no memory snapshot"):
        read_snapshot(path)


def test_an_empty_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="nothing is allocated"):
        read_snapshot(written(tmp_path))
