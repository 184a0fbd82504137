"""Where output goes and cannot go: read-only folders, full disks, closed pipes, and two writers of one file."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.calls import Remat
from tests.places import GRAPHS

GRAPH = GRAPHS / "skip_chain.json"
PLAN = ("plan", str(GRAPH), "--budget", "80%", "-c", "dtr")
ROOT_WRITES_EVERYWHERE = pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")


def started(*args: str | Path, **more: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "remat_cli", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)  # type: ignore[call-overload,no-any-return]


@ROOT_WRITES_EVERYWHERE
def test_a_read_only_folder_is_told(remat: Remat, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    ended = remat(*PLAN, "-o", tmp_path / "s.json")
    assert ended.code == 2
    assert "cannot be written: Permission denied" in ended.err


def test_a_place_in_a_system_folder_that_takes_no_files_is_told(remat: Remat) -> None:
    ended = remat(*PLAN, "-o", "/proc/s.json")
    assert ended.code == 2
    assert "/proc/s.json: cannot be written" in ended.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_told_and_the_device_is_left_alone(remat: Remat) -> None:
    ended = remat(*PLAN, "-o", "/dev/full")
    assert ended.code == 2
    assert "No space left on device" in ended.err
    assert Path("/dev/full").is_char_device()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("args", [PLAN, (*PLAN, "--json"), ("planners",), ("inspect", str(GRAPH)), (*PLAN, "-o", "-")])
def test_a_full_disk_behind_stdout_is_told(args: Sequence[str]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "remat_cli", *args]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_file_that_grows_too_large_leaves_the_old_one(tmp_path: Path) -> None:
    """As on a disk that fills up while the file is written: the limit is on the size of any file of the process."""
    path = tmp_path / "s.json"
    path.write_text("the old one")

    def allow_little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    process = started(*PLAN, "-q", "-o", path, preexec_fn=allow_little)
    _, err = process.communicate()
    assert process.returncode == 2
    assert b"cannot be written: File too large" in err
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("args", [PLAN, ("planners",), ("planners", "--schema"), ("inspect", str(GRAPH), "--json")])
def test_a_reader_that_leaves_early_ends_it_quietly(args: Sequence[str]) -> None:
    process = started(*args)
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_two_writers_of_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    processes = [started("plan", GRAPH, "--budget", share, "-c", "dtr", "-q", "-o", path) for share in ("80%", "90%")]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0]
    assert json.loads(path.read_text())["format"] == "remat.schedule/1"
    assert list(tmp_path.iterdir()) == [path]


def test_names_of_ten_megabytes_stay_short_in_every_report(remat: Remat, tmp_path: Path) -> None:
    graph = json.loads(GRAPH.read_text())
    name = graph["ops"][3]["name"]
    text = GRAPH.read_text().replace(f'"{name}"', json.dumps("\x1b[31m<b>" + 10_000_000 * "n"))
    path = tmp_path / "huge.json"
    path.write_text(text)
    for args in (("inspect", path), ("plan", path, "--budget", "80%", "-c", "dtr")):
        ended = remat(*args)
        assert ended.code == 0
        assert len(ended.out) < 20_000
        assert "\x1b" not in ended.out


@pytest.mark.parametrize(
    "args",
    [
        ("plan", "NAME", "--budget", "1GB"),
        ("plan", GRAPH, "--budget", "80%", "-c", "NAME"),
        ("plan", GRAPH, "--budget", "80%", "--device", "NAME"),
        ("plan", GRAPH, "--budget", "80%", "-c", "dtr", "-o", "NAME"),
        ("verify", GRAPH, "NAME"),
        ("apply", GRAPH, "NAME", "-o", "out.onnx"),
        ("check", "NAME"),
        ("batch", "NAME", "--budget", "80%", "-o", "-"),
        ("batch", GRAPH, "--budget", "80%", "-c", "dtr", "-o", "NAME"),
        ("sweep", "NAME", "--budgets", "80%"),
        ("sweep", GRAPH, "--planner", "NAME", "--budgets", "80%"),
        ("compare", "NAME", "--planners", "dtr", "--budgets", "80%"),
        ("fit", "NAME", "--dim", "batch", "--budget", "1GB"),
        ("report", "NAME", GRAPH, "-o", "out.html"),
        ("--log-file", "NAME", "planners"),
    ],
    ids=lambda args: args[0],
)
@pytest.mark.parametrize("name", ["n" * 5000, "absent/\x1b[31mfile"])
def test_names_that_no_file_can_have_are_told(
    remat: Remat, args: Sequence[str | Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = remat(*(name if arg == "NAME" else arg for arg in args))
    assert ended.code in (2, 6)
    assert "a bug in remat" not in ended.err
    assert len(ended.err) < 5000
    assert "\x1b[31mfile" not in ended.err
    assert list(tmp_path.iterdir()) == []
