"""Sweeps: tables that grow, and the same moves whether compiled or not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from remat_cli.generate.layered import Layered
from remat_cli.planners.annealing import kernel, sweeps
from remat_cli.planners.annealing.sweeps import MOVES, Sweeps, Weather, compile_moves
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.synthesis import synthesize

TANGLED = synthesize(Layered(), ops=40).graph


def swept() -> tuple[list[list[int]], list[int]]:
    """The ops after each of three sweeps, and how many moves were tried.

    The sequence is far above the room, at a temperature at which reruns are added and left out.
    """
    sequence = RematSequence.plain(TANGLED)
    time, size = TANGLED.total_time / len(TANGLED.ops), TANGLED.arrays.tensor_bytes.mean()
    weather, ways = Weather(int(0.5 * sequence.peak), time / size, time), Sweeps(TANGLED)
    ops, tried = [], []
    for number in range(3):
        sequence, count = ways.sweep(sequence, weather, np.random.default_rng(number), lambda: False)
        ops.append(sequence.ops.tolist())
        tried.append(count)
    return ops, tried


def test_tables_grow_within_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def scarcely(table: Ints, length: int) -> Ints:
        lengths.append(length)
        return np.pad(table, ((0, 0), (0, max(0, length - 30 - table.shape[1]))))

    amply = swept()
    monkeypatch.setattr(sweeps, "_longer", scarcely)
    assert swept() == amply
    assert len(lengths) > 3 * 4  # four tables at each of three sweeps, and when one was too short


def test_compiling_calls_every_function_that_a_search_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for function in MOVES._functions:

        def noting(*arguments: Any, function: Callable[..., Any] = function) -> Any:
            called.append(function)
            return function(*arguments)

        monkeypatch.setattr(kernel, function.__name__, noting)
    compile_moves()
    assert set(called) == set(MOVES._functions)


COMPILED = "from tests.unit.planners.annealing.test_sweeps import swept; print(swept())"


def test_the_same_moves_when_compiled() -> None:
    call = [sys.executable, "-c", COMPILED]
    done = subprocess.run(call, env={**os.environ, "NUMBA_DISABLE_JIT": "0"}, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f"{swept()}\n", 0), done.stderr
