"""The contract finds what planners do wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from remat_cli.errors import FalseClaim
from remat_cli.testing import contract
from remat_cli.testing.contract import ContractBroken
from tests.places import ROOT
from tests.plugins import PLAIN, install

# Of each check: what a planner does that it finds, as a replacement in `PLAIN`, and what it says.
OFFER = "incumbent.offer("
RESULT = "return incumbent.result()"
FAULTS = {
    "claims_are_true": (RESULT, "return PlanResult(Status.INFEASIBLE)", "the proof that no plan fits"),
    "proofs_hold": (
        RESULT,
        "from remat_cli.core.problem import Scope\n"
        "        nothing = PlanResult(Status.INFEASIBLE, scope=Scope.ANY_ORDER)\n"
        "        return incumbent.result() if incumbent.best else nothing",
        "it proves that no plan fits",
    ),
    "same_twice": (
        RESULT,
        "return PlanResult(Status.UNKNOWN, reason=str(__import__('time').perf_counter_ns()))",
        "it gives two results",
    ),
    "starved_is_unknown": ("range(self.candidates)", "range(1)", "with candidates: 0 it says"),
    "prints_nothing": (RESULT, f"__import__('os').write(2, b'hello');print('x')\n        {RESULT}", "hello"),
    "docstring_tells": ("    Proves: nothing.\n", "", "its docstring lacks Proves:"),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def any_example_will_do() -> Iterator[None]:
    """Look for no smaller example than the first one that fails, which takes far longer than to find it."""
    before = settings.get_current_profile_name()
    settings.register_profile("first", settings.get_profile(before), phases=(Phase.generate,))
    settings.load_profile("first")
    yield
    settings.load_profile(before)


@pytest.mark.usefixtures("any_example_will_do")
@pytest.mark.parametrize("check", FAULTS)
def test_finds(site: Path, check: str) -> None:
    old, new, said = FAULTS[check]
    assert old in PLAIN
    source = PLAIN.replace(old, new)
    if check == "starved_is_unknown":
        # A plan of the four examples, in which the plain run does not fit.
        source = source.replace(RESULT, "return PlanResult(Status.INFEASIBLE)")
    package = f"faulty-{check.replace('_', '-')}"
    install(site, package, source, {"faulty": "Plain"})
    with pytest.raises((ContractBroken, FalseClaim), match=said):
        getattr(contract, check)("faulty")


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join((str(site), str(ROOT)))
    command = [sys.executable, "-m", "remat_cli.testing", *arguments]
    return subprocess.run(command, cwd=site, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)


def test_the_command_runs_all_checks(tmp_path: Path) -> None:
    faulty = PLAIN.replace(RESULT, "return PlanResult(Status.UNKNOWN, reason=str(hash('a')))")
    install(tmp_path, "plugin-plain", PLAIN, {"plain": "Plain"})
    install(tmp_path, "plugin-faulty", faulty, {"faulty": "Plain"})
    good = run(tmp_path, "plain")
    assert (good.returncode, good.stderr) == (0, "")
    assert f"all {len(contract.ALL_CHECKS)} checks hold" in good.stdout
    bad = run(tmp_path, "faulty", "plain", "--keep", "kept")
    assert bad.returncode == 3
    assert "FAILS  results do not depend on how Python hashes names" in bad.stdout
    assert f"1 of {len(contract.ALL_CHECKS)} checks fail" in bad.stdout
    assert good.stdout in bad.stdout


def test_the_command_writes_the_graph_that_fails(tmp_path: Path) -> None:
    install(tmp_path, "plugin-faulty", PLAIN.replace(RESULT, "return 1 / 0"), {"faulty": "Plain"})
    ended = run(tmp_path, "faulty", "--keep", "kept")
    assert ended.returncode == 3
    assert "broke down: ZeroDivisionError" in ended.stdout
    (line, *_) = [line.split() for line in ended.stdout.splitlines() if line.strip().startswith("on kept")]
    assert (tmp_path / line[1].rstrip(":")).exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "Missing argument"), (("rotr",), "did you mean 'rotor'"), (("broken",), "pip uninstall")],
)
def test_the_command_refuses_what_it_cannot_check(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    install(tmp_path, "plugin-broken", "import nowhere", {"broken": "Plain"})
    ended = run(tmp_path, *arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
