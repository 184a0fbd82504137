"""0-1 programs and their solvers: endings, bounds that hold, Ctrl-C, and what is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from signal import SIGKILL
from time import monotonic, sleep

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.problem import Status
from remat_cli.errors import UsageError
from remat_cli.planners.published.checkmate import mip_solvers
from remat_cli.planners.published.checkmate.mip import ZeroOneProgram
from remat_cli.planners.published.checkmate.mip_solvers import MipRows, installed_solver
from remat_cli.planners.published.checkmate.options import SolverName
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Ints


def is_installed(name: SolverName) -> bool:
    try:
        return installed_solver(name) is name
    except UsageError:
        return False


SOLVERS = [name for name in (SolverName.HIGHS, SolverName.CBC) if is_installed(name)]
AMPLE = Limits.of(1e5)
each_solver = pytest.mark.parametrize("solver", SOLVERS)


def program_of(costs: Sequence[int], *rows: tuple[Mapping[int, int], int]) -> ZeroOneProgram:
    """Return the program of these costs, and of rows of terms and what they are to be at least."""
    program = ZeroOneProgram()
    program.add_variables(np.array(costs, dtype=np.int64))
    for terms, at_least in rows:
        program.add_rows(MipRows.one(terms, at_least))
    return program


def market_split(size: int = 40, rows: int = 5) -> ZeroOneProgram:
    """Split each of several lists of numbers into two halves of the same sum, all by the same choice: very hard."""
    draw = random.Random(0)
    program = ZeroOneProgram()
    program.add_variables(np.ones(size, dtype=np.int64))
    for _ in range(rows):
        numbers = [draw.randint(0, 99) for _ in range(size)]
        half = sum(numbers) // 2
        program.add_rows(MipRows.one(dict(enumerate(numbers)), half))
        program.add_rows(MipRows.one({i: -number for i, number in enumerate(numbers)}, -half))
    return program


def solver_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name in SOLVERS]


def best_cost(costs: Sequence[int], rows: Sequence[tuple[Mapping[int, int], int]], **fixed: int) -> int | None:
    """Try every solution; `fixed` gives values by the name of a variable, x0, x1, ..."""
    totals = [
        sum(cost * value for cost, value in zip(costs, values, strict=True))
        for values in product((0, 1), repeat=len(costs))
        if all(sum(factor * values[i] for i, factor in terms.items()) >= least for terms, least in rows)
        and all(values[int(name[1:])] == value for name, value in fixed.items())
    ]
    return min(totals, default=None)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[int], list[tuple[dict[int, int], int]]]:
    """Small costs and rows; some coefficients are so large that a solver cannot tell one more from one less."""
    size = draw(st.integers(1, 6))
    costs = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    coefficients = st.integers(-9, 9) | st.sampled_from([10**13, 10**13 + 1, -(10**13)])
    terms = st.dictionaries(st.integers(0, size - 1), coefficients, min_size=1)
    return costs, draw(st.lists(st.tuples(terms, st.integers(-9, 9)), max_size=4))


@each_solver
@given(program=programs())
def test_relaxation_bounds_every_solution_and_those_with_each_variable(
    solver: SolverName, program: tuple[list[int], list[tuple[dict[int, int], int]]]
) -> None:
    costs, rows = program
    relaxation = program_of(costs, *rows).relax(solver, AMPLE)
    best = best_cost(costs, rows)
    if relaxation.bound is None or relaxation.bound_if_one is None:
        assert relaxation.status is Status.INFEASIBLE
        assert best is None
        return
    assert best is None or 0 <= relaxation.bound <= best
    for variable, bound in enumerate(relaxation.bound_if_one):
        best_with_it = best_cost(costs, rows, **{f"x{variable}": 1})
        assert relaxation.bound <= bound
        assert best_with_it is None or bound <= best_with_it


@given(program=programs(), weights=st.lists(st.floats(0, 10), min_size=4, max_size=4))
def test_counted_bound_holds_whatever_the_multipliers(
    program: tuple[list[int], list[tuple[dict[int, int], int]]], weights: list[float]
) -> None:
    costs, rows = program
    bound, bound_if_one = program_of(costs, *rows)._count_bound(np.array(weights[: len(rows)]))
    best = best_cost(costs, rows)
    assert best is None or bound <= best
    for variable, with_it in enumerate(bound_if_one):
        best_with_it = best_cost(costs, rows, **{f"x{variable}": 1})
        assert best_with_it is None or with_it <= best_with_it


@each_solver
@given(size=st.integers(1, 6), data=st.data())
def test_solution_is_the_best_one(solver: SolverName, size: int, data: st.DataObject) -> None:
    costs = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    terms = st.dictionaries(st.integers(0, size - 1), st.integers(-9, 9), min_size=1)
    rows = data.draw(st.lists(st.tuples(terms, st.integers(-9, 9)), max_size=4))
    start = np.array(data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)))  # good or not
    outcome = program_of(costs, *rows).solve(solver, AMPLE, start=start)
    best = best_cost(costs, rows)
    assert (outcome.status is Status.INFEASIBLE) == (best is None)
    if best is not None:
        assert outcome.status is Status.OPTIMAL
        assert outcome.values is not None
        assert outcome.bound == best == outcome.values @ np.array(costs)


@each_solver
@pytest.mark.parametrize("costs", [[], [3]])
def test_a_program_of_next_to_nothing_is_solved(solver: SolverName, costs: list[int]) -> None:
    assert program_of(costs).solve(solver, AMPLE).bound == program_of(costs, ({}, -1)).relax(solver, AMPLE).bound == 0
    for outcome in (program_of(costs, ({}, 1)).solve(solver, AMPLE), program_of(costs, ({}, 1)).relax(solver, AMPLE)):
        assert outcome.status is Status.INFEASIBLE


@each_solver
def test_rows_can_be_added_after_solving(solver: SolverName) -> None:
    program = program_of([3, 2], ({0: 1, 1: 1}, 1))
    assert program.solve(solver, AMPLE).bound == 2
    program.add_rows(MipRows.one({1: -1}, 0))
    assert program.solve(solver, AMPLE).bound == 3
    assert program.relax(solver, AMPLE).bound == 3
    program.add_rows(MipRows.one({0: -1}, 0))
    assert program.solve(solver, AMPLE).status is Status.INFEASIBLE


@each_solver
def test_large_costs_keep_the_bound_below_the_optimum(solver: SolverName) -> None:
    costs = [10**15 + 7, 10**15 + 3, 10**15 + 1]
    outcome = program_of(costs, ({0: 1, 1: 1, 2: 1}, 2)).solve(solver, AMPLE)
    assert outcome.bound is not None
    assert 0.999 * 2 * 10**15 <= outcome.bound <= costs[1] + costs[2]


@each_solver
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_time_out_proves_nothing(solver: SolverName, seconds: float) -> None:
    outcome = market_split().solve(solver, Limits.of(seconds))
    assert outcome.status is Status.UNKNOWN
    assert outcome.values is None


@each_solver
def test_every_solution_is_handed_over_in_the_calling_thread(solver: SolverName) -> None:
    seen: list[tuple[int, int]] = []

    def see(values: Ints) -> None:
        seen.append((threading.get_ident(), int(values.sum())))

    draw = random.Random(1)
    rows = [(dict.fromkeys(draw.sample(range(30), 3), 1), 1) for _ in range(100)]
    outcome = program_of([1] * 30, *rows).solve(solver, AMPLE, on_solution=see)
    assert outcome.values is not None
    assert {thread for thread, _ in seen} <= {threading.get_ident()}
    if solver is SolverName.HIGHS:  # CBC says nothing on the way
        assert seen[-1][1] == outcome.values.sum()


@each_solver
def test_ctrl_c_stops_the_solver_and_leaves_nothing_behind(
    solver: SolverName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        market_split().solve(solver, AMPLE)
    assert solver_threads() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(SolverName.HIGHS not in SOLVERS, reason="HiGHS is not installed")
def test_exception_in_a_callback_stops_the_solver_and_comes_up() -> None:
    def refuse(_: Ints) -> None:
        raise LookupError("not this one")

    draw = random.Random(1)
    rows = [(dict.fromkeys(draw.sample(range(300), 3), 1), 1) for _ in range(1200)]
    with pytest.raises(LookupError, match="not this one"):
        program_of([1] * 300, *rows).solve(SolverName.HIGHS, AMPLE, on_solution=refuse)
    assert solver_threads() == []


@each_solver
def test_solvers_are_silent_and_clean_up(
    solver: SolverName, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = program_of([1, 2], ({0: 1, 1: 1}, 1))
    program.relax(solver, AMPLE)
    program.solve(solver, AMPLE)
    program.add_rows(MipRows.one({0: -1, 1: -1}, 0))
    program.solve(solver, AMPLE)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wanted", [SolverName.HIGHS, SolverName.CBC])
def test_missing_solver_is_named_with_what_to_install(wanted: SolverName, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SolverName.CBC if wanted is SolverName.HIGHS else SolverName.HIGHS
    monkeypatch.setattr(mip_solvers, "_IS_THERE", {wanted: lambda: False, other: lambda: True})
    with pytest.raises(UsageError) as caught:
        installed_solver(wanted)
    assert wanted.value in caught.value.message
    assert "pip install" in caught.value.hint
    assert f"solver: {other.value}" in caught.value.hint
    assert installed_solver(SolverName.AUTO) is other


@pytest.mark.parametrize("wanted", [SolverName.AUTO, SolverName.HIGHS])
def test_highs_that_writes_to_stdout_is_refused(wanted: SolverName, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = {"highspy": "1.14.9"}
    monkeypatch.setattr(mip_solvers, "_IS_THERE", {SolverName.HIGHS: lambda: True, SolverName.CBC: lambda: True})
    monkeypatch.setattr(mip_solvers, "version", releases.__getitem__)
    assert installed_solver(wanted) is SolverName.HIGHS
    for release in ("1.15.0", "1.15rc1", "2.0"):
        releases["highspy"] = release
        with pytest.raises(UsageError, match=f"highspy {release} is too new") as caught:
            installed_solver(wanted)
        assert "highspy>=1.7,<1.15" in caught.value.hint
    assert installed_solver(SolverName.CBC) is SolverName.CBC


def test_the_package_that_hints_name_is_the_one_that_remat_depends_on() -> None:
    extras = tomllib.loads((Path(__file__).parents[5] / "pyproject.toml").read_text(encoding="utf-8"))
    assert extras["project"]["optional-dependencies"]["highs"] == [mip_solvers._HIGHS_PACKAGE]


def test_no_solver_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mip_solvers, "_IS_THERE", {name: lambda: False for name in (SolverName.HIGHS, SolverName.CBC)})
    for wanted in SolverName:
        with pytest.raises(UsageError, match="installed") as caught:
            installed_solver(wanted)
        assert "pip install" in caught.value.hint


@st.composite
def programs_of_terabytes(draw: st.DrawFn) -> tuple[list[int], list[tuple[dict[int, int], int]]]:
    """Rows of single bytes beside 3.6 TB, whose limits some of them just reach."""
    size = draw(st.integers(2, 6))
    costs = draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    sizes = st.sampled_from([1, 2, 3_600_000_000_000, 3_600_000_000_001]) | st.integers(1, 4 * 10**12)
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        terms = draw(st.dictionaries(st.integers(0, size - 1), sizes, min_size=1))
        some = draw(st.lists(st.sampled_from(sorted(terms)), min_size=1, unique=True))
        rows.append((terms, sum(terms[i] for i in some) + draw(st.sampled_from([0, 0, 1, -1]))))
    return costs, rows


@each_solver
@given(program=programs_of_terabytes())
def test_bytes_beside_terabytes_never_prove_too_much(
    solver: SolverName, program: tuple[list[int], list[tuple[dict[int, int], int]]]
) -> None:
    costs, rows = program
    best = best_cost(costs, rows)
    outcome = program_of(costs, *rows).solve(solver, AMPLE)
    if best is None:
        return
    assert outcome.status is Status.OPTIMAL
    assert outcome.bound is not None
    assert outcome.bound <= best


def test_no_number_that_a_solver_is_given_is_large() -> None:
    # Solvers' tolerances are absolute: HiGHS was wrong once in 4,300 programs that it was given as they were.
    program = program_of([10**18, 1], ({0: 3_600_000_000_001, 1: 1}, 7), ({0: 2**50, 1: -(2**49)}, 2**49))
    given = program.task(AMPLE)
    assert len(given.rows.coefficient) == 4
    assert np.abs(given.rows.coefficient).max() <= 2**24
    assert given.costs.max() <= 1e6


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_a_solver_ends_with_the_process_that_started_it_and_leaves_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    call = ["/bin/sh", "-c", mip_solvers._GUARDED, "sh", str(folder), "sleep", "600"]
    with subprocess.Popen(call, stdin=subprocess.PIPE, start_new_session=True) as guarded:
        assert guarded.stdin is not None
        guarded.stdin.close()  # as where that process is killed
        assert guarded.wait(20) == 128 + SIGKILL
    assert wait_until_gone(folder)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_a_process_that_does_not_look_at_the_clock_is_ended(tmp_path: Path) -> None:
    began, log = monotonic(), tmp_path / "log"
    assert not mip_solvers._run(["sleep", "600"], log, str(tmp_path), began + 0.1, threading.Event())
    assert monotonic() - began < 60
    assert mip_solvers._run(["true"], log, str(tmp_path), monotonic() + 60, threading.Event())


def wait_until_gone(folder: Path) -> bool:
    end = monotonic() + 20
    while folder.exists() and monotonic() < end:
        sleep(0.02)
    return not folder.exists()
