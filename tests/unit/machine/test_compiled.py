"""Compiled functions: a compiler or a folder that cannot be used is a note, and never an error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest

from remat_cli.machine import compiled as compiling
from tests.places import ROOT


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    failures = list(compiling._failures)
    compiling._failures.clear()
    compiling._compiler.cache_clear()
    yield
    compiling._failures[:] = failures
    compiling._compiler.cache_clear()


def twice(number: int) -> int:
    return 2 * number


FRESH = """
from remat_cli.machine.compiled import compiled


@compiled
def twice(number):
    return 2 * number
"""

UNWRITABLE = """
from numba.core import caching

caching.CompileResultCacheImpl._locator_classes = []  # nowhere can be written

import fresh
from remat_cli.machine import compiled as compiling

function = fresh.twice
print(compiling.can_compile(), compiling.is_kept(function), compiling.is_at_hand(function))
print(*compiling.trouble())
"""


def test_without_a_folder_that_can_be_written_functions_are_compiled_for_this_process(tmp_path: Path) -> None:
    # A module of its own: code of remat's may be kept beside it by an earlier run.
    source = (
        "from remat_cli.machine.compiled import compiled\n\n\n@compiled\ndef twice(number):\n    return 2 * number\n"
    )
    (tmp_path / "fresh.py").write_text(source)
    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", UNWRITABLE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "True False False"
    assert "no folder can be written" in second
    assert "NUMBA_CACHE_DIR" in second


def test_without_numba_functions_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda _: None)
    assert compiling.compiled(twice) is twice
    assert not compiling.can_compile()
    found = compiling.trouble()
    assert found is not None
    assert "not installed" in found.reason


def ask(program: str, **different: str) -> str:
    env = {**os.environ, "NUMBA_DISABLE_JIT": "0", **different}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout


ASKS = """
from remat_cli.allocation import promoted_fit
from remat_cli.allocation.compiled import SEARCHES
from remat_cli.machine.compiled import can_compile, is_at_hand
print(can_compile(), is_at_hand(promoted_fit.place))
"""


def test_an_empty_folder_keeps_nothing(tmp_path: Path) -> None:
    assert ask(ASKS, NUMBA_CACHE_DIR=str(tmp_path)) in ("True False\n", "True True\n")


def test_without_numba_searches_are_plain_python() -> None:
    without = "import sys; sys.modules['numba'] = None\n"
    ready = "print(SEARCHES.is_ready, SEARCHES.wait(0.1, lambda: True), SEARCHES.note())"
    assert ask(without + ASKS + ready).startswith(
        "False True\nTrue True the exact search for arenas ran uncompiled: numba"
    )


# A search of one function; compiling it takes as long as the module's `pause`.
SLOW = """
from time import sleep

from remat_cli.machine.compiled import Kernel, compiled


@compiled
def twice(number):
    return 2 * number


def call_all():
    sleep({pause})
    twice(1)


TWICE = Kernel("doubling", (twice,), call_all)
"""
WAITS = """
import sys
sys.path.insert(0, {folder!r})
from time import monotonic
from slow import TWICE, twice

print(TWICE.is_ready, TWICE.wait(0.5, lambda: False), TWICE.is_compiling)  # too short for a process
end = monotonic() + {seconds}
print(TWICE.wait({seconds}, lambda: monotonic() > end), TWICE.is_ready, bool(twice.signatures))
print(TWICE.note())
print(TWICE._process.pid)
"""


def waits(folder: Path, pause: float, seconds: float) -> list[str]:
    (folder / "slow.py").write_text(SLOW.format(pause=pause))
    return ask(WAITS.format(folder=str(folder), seconds=seconds)).splitlines()


def test_a_process_compiles_for_later_ones_and_is_waited_for(tmp_path: Path) -> None:
    begin, waited, note, _ = waits(tmp_path, 0.0, 60.0)
    assert begin == "False False False"
    assert waited == "True True False"  # kept, though this process compiled nothing
    assert note == ""


def test_a_search_that_is_not_compiled_in_time_is_left_out_and_the_process_ends(tmp_path: Path) -> None:
    begin, waited, note, process = waits(tmp_path, 60.0, 1.1)
    assert (begin, waited) == ("False False False", "False False False")
    assert note.startswith("doubling was left out: it was not compiled in time.")
    assert "remat planners --compile" in note
    for _ in range(100):
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return
        sleep(0.1)
    pytest.fail("the process that compiles outlives its parent")


def test_a_process_that_cannot_be_started_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError("too many processes")

    search = compiling.Kernel("doubling", (twice,), lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "is_at_hand", lambda _: False)
        patch.setattr(compiling, "is_loaded", lambda _: True)
        patch.setattr(compiling, "_compiler", lambda: sys)
        patch.setattr(subprocess, "Popen", refused)
        assert not search.wait(5.0, lambda: False)
        assert "too many processes" in search.note()
