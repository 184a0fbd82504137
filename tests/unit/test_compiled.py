"""Functions that numba compiles, and what happens where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remat_cli import compiled as module
from remat_cli.allocation.portfolio import compile_searches

ASKS = """
from remat_cli.allocation import promoted_fit
from remat_cli.allocation.portfolio import compile_searches
from remat_cli.compiled import IS_COMPILED, is_kept
print(IS_COMPILED, is_kept(promoted_fit.place))
"""
WITHOUT = "import sys; sys.modules['numba'] = None\n"


def ask(program: str, **different: str) -> str:
    env = {**os.environ, "NUMBA_DISABLE_JIT": "0", **different}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout


def test_switched_off_a_function_stays_as_it_is() -> None:
    def function() -> int:
        return 1

    assert module.compiled(function) is function
    assert module.is_kept(function)
    assert compile_searches()


def test_without_a_folder_for_code_it_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(function: Any = None, cache: bool = False) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return SimpleNamespace(of=function)

    monkeypatch.setattr(module, "_NUMBA", SimpleNamespace(njit=njit))
    made: Any = module.compiled(ask)
    assert made.of is ask


def test_an_empty_folder_keeps_nothing(tmp_path: Path) -> None:
    assert ask(ASKS, NUMBA_CACHE_DIR=str(tmp_path)) == "True False\n"


def test_without_numba_searches_are_plain_python() -> None:
    assert ask(WITHOUT + ASKS + "print(compile_searches())") == "False True\nTrue\n"
