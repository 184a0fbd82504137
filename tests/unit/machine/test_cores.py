"""Processes of a pool end with the one that started them, even where that one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from remat_cli.machine import cores
from remat_cli.machine.cores import process_pool, run_in

POOL = """
import os, time
from multiprocessing import get_context
from remat_cli.machine.cores import serve_parent

def rest(_):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(600)

if __name__ == "__main__":
    with get_context("spawn").Pool(2, initializer=serve_parent) as pool:
        pool.map(rest, range(2))
"""


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_processes_of_a_pool_end_where_their_parent_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "pool.py"
    program.write_text(POOL, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(map(is_alive, workers))
        parent.send_signal(signal.SIGKILL)
        end = time.monotonic() + 20
        while any(map(is_alive, workers)) and time.monotonic() < end:
            time.sleep(0.05)
    assert not any(map(is_alive, workers))


def test_what_a_process_of_a_pool_does_not_finish_is_done_here(tmp_path: Path) -> None:
    """The system kills one where memory runs out."""
    with process_pool(2) as pool:
        assert pool is not None
        done = run_in(pool, partial(killed_once, os.getpid()), range(5), alone=lambda number: -number)
        results = list(done)
    assert [abs(result) for result in results] == list(range(5))
    assert results[3] == -3


def killed_once(parent: int, number: int) -> int:
    if number == 3 and os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_where_no_process_is_allowed_there_is_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "can_start_threads", lambda count: False)
    with process_pool(8) as pool:
        assert pool is None
        assert list(run_in(pool, abs, [-1, 2])) == [1, 2]
