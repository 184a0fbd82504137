"""Sweeps over flat arrays: the same moves as those by numpy, compiled or not."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.problem import Observer
from remat_cli.generate.layered import Layered
from remat_cli.planners.annealing import flat, kernel, remaking, search, sweeps, weather
from remat_cli.planners.annealing.flat import FlatSweeps
from remat_cli.planners.annealing.planner import Annealing
from remat_cli.planners.annealing.sweeps import NumpySweeps, sweeps_of
from remat_cli.planners.annealing.weather import Sweeps, Weather
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.orders import moves
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.synthesis import synthesize
from tests.graphs import small_graphs, training_graphs
from tests.plans import at_share, sequences

TANGLED = synthesize(Layered(), ops=40).graph


def swept(ways: Sweeps, sequence: RematSequence, weather: Weather, seed: int) -> tuple[list[list[int]], list[int]]:
    """The ops after each of three sweeps, and how many moves were tried."""
    ops, tried = [], []
    for number in range(3):
        sequence, count = ways.sweep(sequence, weather, np.random.default_rng([seed, number]), lambda: False)
        ops.append(sequence.ops.tolist())
        tried.append(count)
    return ops, tried


def hot(share: float = 0.5) -> tuple[RematSequence, Weather]:
    """A sequence far above the room, at a temperature at which reruns are added and left out."""
    sequence = RematSequence.plain(TANGLED)
    time, size = TANGLED.total_time / len(TANGLED.ops), TANGLED.arrays.tensor_bytes.mean()
    return sequence, Weather(int(share * sequence.peak), time / size, time)


@given(
    sequences(small_graphs() | training_graphs()), st.integers(0, 20), st.integers(0, 99), st.sampled_from([0.1, 10.0])
)
def test_the_same_moves_as_by_numpy(sequence: RematSequence, room: int, seed: int, price: float) -> None:
    weather = Weather(room, price, 5.0)
    assert swept(FlatSweeps(sequence.graph), sequence, weather, seed) == swept(NumpySweeps(), sequence, weather, seed)


def test_tables_grow_within_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def scarcely(table: Ints, length: int) -> Ints:
        lengths.append(length)
        return np.pad(table, ((0, 0), (0, max(0, length - 30 - table.shape[1]))))

    monkeypatch.setattr(flat, "_longer", scarcely)
    sequence, weather = hot()
    assert swept(FlatSweeps(TANGLED), sequence, weather, 0) == swept(NumpySweeps(), sequence, weather, 0)
    assert len(lengths) > 3 * 4  # four tables at each of three sweeps, and when one was too short


def test_constants_of_the_kernel_are_those_of_the_others() -> None:
    assert (kernel.STEPS, kernel.LAST_STEP) == (weather.STEPS, weather.LAST_STEP)
    assert kernel.REACH == moves._REACH
    assert (kernel.DEPTH, kernel.MOST_PRICED) == (remaking._DEPTH, remaking._MOST_PRICED)
    assert kernel.MOST_COST == remaking._MOST_COST


def test_without_a_compiler_or_time_to_load_numpy_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(sweeps_of(TANGLED, 60.0), NumpySweeps)  # tests compile nothing
    monkeypatch.setattr(sweeps, "can_compile", lambda: True)
    monkeypatch.setattr(flat, "is_ready", lambda: True)
    assert isinstance(sweeps_of(TANGLED, 60.0), FlatSweeps)
    assert isinstance(sweeps_of(TANGLED, 1.0), NumpySweeps)


def test_the_same_work_finds_the_same_plan_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, planner = at_share(TANGLED, 0.65), Annealing(work_limit=0.004)
    by_numpy = planner.plan(problem, Observer())
    monkeypatch.setattr(search, "sweeps_of", lambda graph, _: FlatSweeps(graph))
    assert by_numpy == planner.plan(problem, Observer())


COMPILED = """
from remat_cli.machine.compiled import can_compile
from tests.unit.planners.annealing.test_flat import TANGLED, FlatSweeps, NumpySweeps, hot, swept
sequence, weather = hot()
assert can_compile()
print(swept(FlatSweeps(TANGLED), sequence, weather, 1) == swept(NumpySweeps(), sequence, weather, 1))
"""


def test_the_same_moves_when_compiled() -> None:
    pytest.importorskip("numba")
    call = [sys.executable, "-c", COMPILED]
    done = subprocess.run(call, env={**os.environ, "NUMBA_DISABLE_JIT": "0"}, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
