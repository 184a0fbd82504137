"""Compiled functions: a compiler or a folder that cannot be used is a note, and never an error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


ASKS = """
from remat_cli.allocation import promoted_fit
from remat_cli.allocation.portfolio import compile_searches
from remat_cli.machine.compiled import can_compile, is_at_hand
print(can_compile(), is_at_hand(promoted_fit.place))
"""


def ask(program: str, **different: str) -> str:
    env = {**os.environ, "NUMBA_DISABLE_JIT": "0", **different}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout


def test_an_empty_folder_keeps_nothing(tmp_path: Path) -> None:
    assert ask(ASKS, NUMBA_CACHE_DIR=str(tmp_path)) in ("True False\n", "True True\n")


def test_without_numba_searches_are_plain_python() -> None:
    without = "import sys; sys.modules['numba'] = None\n"
    assert ask(without + ASKS + "print(compile_searches())") == "False True\nTrue\n"
