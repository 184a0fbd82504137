"""Requests to end, as Slurm, containers and closed terminals send them: what was found is kept, as with Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import pytest

from tests.cli.calls import Remat
from tests.places import GRAPHS

GRAPH = GRAPHS / "skip_chain.json"
# Plans, says so, and would go on for long.
SCRIPT = """
import sys, time
from remat_cli.cli import main
from remat_cli.planners.lower_sets.search import LowerSetSearch

def go_on(*_):
    print("planned", flush=True)
    while True:  # a signal that comes just before the system sleeps is seen only when it wakes
        time.sleep(0.1)

LowerSetSearch._refine = go_on
sys.argv = ["remat", *sys.argv[1:]]
main()
"""

Planning = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def planning(tmp_path: Path) -> Iterator[Planning]:
    """Start `remat plan` with these arguments, and come back when it has a plan and searches on."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str | Path, **more: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SCRIPT, "plan", GRAPH, "--budget", "90%", "-c", "approx_dp", *args]
        run = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, **more)  # type: ignore[call-overload]
        started.append(run)
        assert run.stdout.readline() == "planned\n"
        return run  # type: ignore[no-any-return]

    yield start
    for run in started:
        run.kill()
        run.communicate()


@pytest.mark.parametrize(
    "sent",
    [
        [signal.SIGINT],
        [signal.SIGTERM],
        [signal.SIGHUP],
        # A shell and the kernel both tell of a closed terminal.
        [signal.SIGHUP, signal.SIGHUP, signal.SIGTERM],
    ],
)
def test_the_best_plan_until_then_is_written(
    sent: list[signal.Signals], planning: Planning, remat: Remat, tmp_path: Path
) -> None:
    output = tmp_path / "s.json"
    run = planning("-o", output, "--html", tmp_path / "s.html")
    for number in sent:
        run.send_signal(number)
    _, err = run.communicate()
    assert (run.returncode, err) == (130, "")
    assert json.loads(output.read_text())["status"] == "feasible"
    assert remat("verify", GRAPH, output, "-q").code == 0
    assert (tmp_path / "s.html").stat().st_size > 10_000


def test_a_call_that_takes_no_notice_of_a_closed_terminal_goes_on(planning: Planning) -> None:
    run = planning(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    run.send_signal(signal.SIGHUP)
    sleep(0.3)
    assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 130


def own_terminal() -> None:
    """Make stdin the terminal of this process, which is told when that is closed."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY)


def test_a_terminal_that_is_closed_keeps_nothing_from_being_written(remat: Remat, tmp_path: Path) -> None:
    output = str(tmp_path / "s.json")
    user, terminal = pty.openpty()
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        "plan",
        str(GRAPH),
        "--budget",
        "90%",
        "-c",
        "approx_dp",
        "-o",
        str(output),
    ]
    run = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=own_terminal)
    os.close(terminal)
    shown = b""
    while b"planned" not in shown:
        shown += os.read(user, 10_000)
    os.close(user)
    assert run.wait() == 130
    assert remat("verify", GRAPH, output, "-q").code == 0


def test_streams_that_nobody_reads_keep_nothing_from_being_written(planning: Planning, tmp_path: Path) -> None:
    output = tmp_path / "s.json"
    run = planning("-o", output)
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    run.stderr.close()
    run.send_signal(signal.SIGHUP)
    assert run.wait() == 130
    assert json.loads(output.read_text())["status"] == "feasible"
