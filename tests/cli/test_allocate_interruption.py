"""Ctrl-C while addresses are sought: the best until then is kept, through the process of the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.calls import Remat
from tests.places import GRAPHS

CHAIN = GRAPHS / "skip_chain.json"
# The greedy orders have no luck, and the search after them goes on until it is interrupted.
SCRIPT = """
import sys, time
from remat_cli.allocation import portfolio
from remat_cli.cli import main

def apart(instance):
    offsets = instance.sizes.cumsum() - instance.sizes
    yield offsets

def go_on(*_):
    print("searching", flush=True)
    while True:
        time.sleep(0.1)

portfolio.greedy_offsets = apart
portfolio._within = go_on
sys.argv = ["remat", *sys.argv[1:]]
main()
"""

Searching = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def searching() -> Iterator[Searching]:
    """Start `remat` with these arguments, and come back when it has an arena and searches a smaller one."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str | Path) -> subprocess.Popen[str]:
        run = subprocess.Popen([sys.executable, "-c", SCRIPT, *args], stdout=-1, stderr=-1, text=True)
        started.append(run)
        assert run.stderr is not None  # where prints of planners and solvers go
        assert run.stderr.readline() == "searching\n"
        return run

    yield start
    for run in started:
        run.kill()
        run.communicate()


def interrupted(run: subprocess.Popen[str]) -> str:
    """Interrupt a run, and return what it prints."""
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, err.replace("searching\n", "")) == (130, "")  # each further search says so, too
    return out


def test_the_smallest_arena_of_a_table_until_then_is_written(searching: Searching, tmp_path: Path) -> None:
    (tmp_path / "buffers.csv").write_text("id,lower,upper,size\na,0,2,3\nb,1,3,3\nc,2,4,4\n")
    output = tmp_path / "out.csv"
    out = interrupted(searching("allocate", tmp_path / "buffers.csv", "-o", output))
    assert "10 B" in out
    assert [line.split(",")[-1] for line in output.read_text().split()] == ["offset", "0", "3", "6"]


def test_an_arena_above_the_capacity_is_not_written(searching: Searching, tmp_path: Path) -> None:
    (tmp_path / "buffers.csv").write_text("id,lower,upper,size\na,0,2,3\nb,1,3,3\nc,2,4,4\n")
    interrupted(searching("allocate", tmp_path / "buffers.csv", "--capacity", "7", "-o", tmp_path / "out.csv"))
    assert not (tmp_path / "out.csv").exists()


def test_the_smallest_arena_of_a_schedule_until_then_is_written(
    searching: Searching, remat: Remat, tmp_path: Path
) -> None:
    schedule, output = tmp_path / "s.json", tmp_path / "placed.json"
    assert remat("plan", CHAIN, "--budget", "80%", "--planner", "approx_dp", "-o", schedule, "-q").code == 0
    interrupted(searching("allocate", CHAIN, schedule, "-o", output))
    assert json.loads(output.read_text())["arena"]["bytes"] > 0
    # An arena in which nothing shares memory is above the budget, and that is all that is wrong with it.
    ended = remat("verify", CHAIN, output)
    assert ended.code == 5
    assert "is above the budget" in ended.out + ended.err


def test_a_plan_whose_arena_is_found_until_then_is_written(searching: Searching, remat: Remat, tmp_path: Path) -> None:
    output = tmp_path / "s.json"
    call = ("plan", CHAIN, "--budget", "min", "--planner", "approx_dp", "--addresses", "-o", output)
    interrupted(searching(*call))
    assert json.loads(output.read_text())["arena"]["bytes"] > 0
    assert remat("verify", CHAIN, output, "-q").code == 0


def test_without_an_arena_that_fits_the_file_says_that_there_is_no_plan(searching: Searching, tmp_path: Path) -> None:
    output = tmp_path / "s.json"
    call = ("plan", CHAIN, "--budget", "80%", "--planner", "approx_dp", "--addresses", "-o", output)
    out = interrupted(searching(*call))
    assert "for none of them was an arena found" in " ".join(out.split())
    document = json.loads(output.read_text())
    assert (document["status"], "arena" in document) == ("unknown", False)
