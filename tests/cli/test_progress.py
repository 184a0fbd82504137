"""What a terminal shows while planners work."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest
from rich.progress import Progress

from remat_cli.cli.output import _Progress
from remat_cli.planners.published.checkmate.mip_solvers import SolverRun
from tests.cli.calls import Remat
from tests.documents import chain_document


def test_the_line_shows_best_plan_and_bound_of_the_planner_that_works_now() -> None:
    shown = Progress(disable=True)
    progress = _Progress(shown)

    def line() -> str:
        return shown.tasks[0].description

    progress.phase("60%: starting")
    assert line() == "60%: starting"
    progress.standing(0.5, 0.25, "dtr")
    assert line() == "best 50.00 % by dtr · bound 25.00 % · gap 25.00 % · 60%: starting · Ctrl-C takes the best plan"
    progress.phase("60%: searching")
    assert line() == "best 50.00 % by dtr · bound 25.00 % · gap 25.00 % · 60%: searching · Ctrl-C takes the best plan"
    progress.begins()
    progress.phase("50%: starting")
    assert line() == "50%: starting"


def test_a_call_that_keeps_no_plan_does_not_say_so() -> None:
    shown = Progress(disable=True)
    progress = _Progress(shown, keeps_plans=False)
    progress.standing(0.5, 0.25, "dtr")
    assert "Ctrl-C" not in shown.tasks[0].description


def test_json_is_json_whatever_a_solver_prints(remat: Remat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    solve = SolverRun._solve

    def chatty(self: SolverRun) -> None:
        print("banner of Python")
        ctypes.CDLL(None).printf(b"banner of C\n")
        solve(self)

    monkeypatch.setattr(SolverRun, "_solve", chatty)
    graph = tmp_path / "chain.json"
    graph.write_text(json.dumps(chain_document(12)))
    plan = ("plan", graph, "-c", "checkmate", "--budget", "70%")
    (tmp_path / "remat.yaml").write_text("models: [{path: chain.json, planner: checkmate, budget: 70%}]\n")
    for call, key in (
        ((*plan, "--json"), "planner"),
        ((*plan, "-o", "-"), "steps"),
        ((*plan, "-o", "-", "--json"), "steps"),
        (("check", tmp_path / "remat.yaml", "--json"), "models"),
        (("check", tmp_path / "remat.yaml", "--format", "json=-"), "models"),
    ):
        ended = remat(*call)
        assert ended.code == 0, ended.err
        assert key in ended.json
        assert "banner of Python" in ended.err
        assert "banner of C" in ended.err
    assert "banner" not in remat(*plan).out
    assert remat("plan", graph, "--budget", "100%").out  # stdout is whole again
