"""Processes of a pool end with the one that started them, even where that one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

POOL = """
import os, time
from multiprocessing import get_context
from remat_cli.cores import serve_parent

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
