"""Compiled functions: a compiler or a folder that cannot be used is a note, and never an error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from remat_cli.planners.shared import compiling


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


UNWRITABLE = """
from numba.core import caching
from remat_cli.planners.shared import compiling

caching.CompileResultCacheImpl._locator_classes = []  # nowhere can be written

def twice(number):
    return 2 * number

function = compiling.compiled(twice)
print(function(21), compiling.can_compile(), compiling.is_kept(function))
print(*compiling.trouble())
"""


def test_without_a_folder_that_can_be_written_functions_are_compiled_for_this_process() -> None:
    pytest.importorskip("numba")
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run([sys.executable, "-c", UNWRITABLE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "42 True False"
    assert "no folder can be written" in second
    assert "NUMBA_CACHE_DIR" in second


def test_without_numba_functions_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda _: None)
    assert compiling.compiled(twice) is twice
    assert not compiling.can_compile()
    found = compiling.trouble()
    assert found is not None
    assert "not installed" in found.reason
