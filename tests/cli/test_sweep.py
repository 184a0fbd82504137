"""`remat sweep` and `remat compare` as a user calls them."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from remat_cli.cli.comparison_options import with_short_limit
from remat_cli.config import PlannerChoice
from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.formats.native import graph_bytes
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP
from tests.cli.calls import Remat
from tests.graphs import chain, training_chain
from tests.unit.formats.onnx.models import Model, float_input, node


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "chain.json"
    path.write_bytes(graph_bytes(training_chain(12, size=100)))
    return path


@pytest.fixture
def forward_only(tmp_path: Path) -> Path:
    """A graph that has no backward pass, so that most planners refuse it."""
    path = tmp_path / "forward.json"
    path.write_bytes(graph_bytes(chain(3, 2, 1)))
    return path


QUICK = ("--planner", "approx_dp")


@pytest.mark.parametrize(
    ("name", "options", "given"),
    [
        ("approx_dp", {"moves": 5}, {"moves": 5, "time_limit": 10.0}),
        ("approx_dp", {"time_limit": 300.0}, {"time_limit": 300.0}),
        ("retention", {"work_limit": 3.0}, {"work_limit": 3.0}),
        ("keep_all", {}, {}),
    ],
)
def test_a_planner_gets_a_short_limit_where_it_has_none_of_its_own(
    name: str, options: dict[str, Any], given: dict[str, Any]
) -> None:
    assert with_short_limit(PlannerChoice(name, options)).options == given


class TestSweep:
    def test_shows_table_chart_and_knee(self, remat: Remat, graph: Path) -> None:
        ended = remat("sweep", graph, *QUICK)
        assert (ended.code, ended.err) == (0, "")
        assert "Plans at " in ended.out
        assert "Overhead against budget" in ended.out
        assert "knee" in ended.out

    def test_the_summary_has_a_point_for_each_budget(self, remat: Remat, graph: Path) -> None:
        summary = remat("sweep", graph, "--planner", "approx_dp,dtr", "--budgets", "40%..100%:4,1000", "--json").json
        assert [curve["planner"] for curve in summary["curves"]] == ["approx_dp", "dtr"]
        plain_peak = summary["baseline"]["peak_bytes"]
        budgets = [int(plain_peak * share / 10) for share in (4, 6, 8, 10)]
        for curve in summary["curves"]:
            assert [point["budget_bytes"] for point in curve["points"]] == sorted({*budgets, 1000})
            overheads = [point["overhead"] for point in curve["points"] if point["overhead"] is not None]
            assert overheads == sorted(overheads, reverse=True)
            assert overheads[-1] == 0

    def test_min_is_what_budget_finds(self, remat: Remat, graph: Path) -> None:
        (curve,) = remat("sweep", graph, *QUICK, "--budgets", "min,90%", "--json").json["curves"]
        smallest = [point["budget_bytes"] for point in curve["points"] if point["searched_smallest"]]
        assert smallest == [remat("budget", graph, *QUICK, "--json").json["found_bytes"]]
        assert curve["smallest_budget_bytes"] == smallest[0]

    def test_writes_csv_and_pictures(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
        table, png, svg = (tmp_path / name for name in ("t.csv", "p.png", "p.svg"))
        assert remat("sweep", graph, *QUICK, "--csv", table, "--plot", png, "-q").code == 0
        assert remat("sweep", graph, *QUICK, "--plot", svg).code == 0
        assert len(list(csv.DictReader(io.StringIO(table.read_text())))) == 8
        assert png.read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in svg.read_bytes()

    def test_a_dash_writes_the_csv_to_stdout_and_moves_the_report(self, remat: Remat, graph: Path) -> None:
        ended = remat("sweep", graph, *QUICK, "--csv", "-")
        assert ended.out.startswith("planner,budget_bytes,")
        assert "Overhead against budget" in ended.err

    def test_the_same_call_prints_the_same(self, remat: Remat, graph: Path) -> None:
        calls = [remat("sweep", graph, "--planner", "approx_dp,dtr,rotor", "--csv", "-") for _ in range(2)]
        assert calls[0] == calls[1]

    def test_quiet_prints_nothing(self, remat: Remat, graph: Path) -> None:
        ended = remat("sweep", graph, *QUICK, "-q")
        assert (ended.code, ended.out, ended.err) == (0, "", "")

    def test_configs_stand_beside_planners(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        mine = tmp_path / "mine.yaml"
        mine.write_text("planner:\n  name: approx_dp\n  moves: 0\n")
        summary = remat("sweep", graph, "--planner", f"{mine},kusumoto-paper", *QUICK, "--json").json
        assert [curve["planner"] for curve in summary["curves"]] == ["mine", "kusumoto-paper", "approx_dp"]

    def test_the_planner_of_the_config_is_swept(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        config = tmp_path / "c.yaml"
        config.write_text("planner: {name: approx_dp, candidates: 0}\nbudget: 50%\n")
        summary = remat("sweep", graph, "-c", config, "--json", "--budgets", "60%").json
        assert summary["curves"][0]["points"][0]["status"] == "unknown"

    def test_options_reach_the_planners_that_have_them(self, remat: Remat, graph: Path) -> None:
        both = ("--planner", "approx_dp,keep_all", "--budgets", "60%", "--json")

        def statuses(*more: str) -> list[str]:
            curves = remat("sweep", graph, *both, *more).json["curves"]
            return [curve["points"][0]["status"] for curve in curves]

        assert statuses() == ["feasible", "infeasible"]
        assert statuses("--option", "candidates=0") == ["unknown", "infeasible"]
        assert statuses("--option", "approx_dp.candidates=0") == ["unknown", "infeasible"]

    def test_where_nothing_ever_fits_that_is_proven(self, remat: Remat, graph: Path) -> None:
        ended = remat("sweep", graph, *QUICK, "--budgets", "5%,10%")
        assert ended.code == 3
        assert "No plan was found" in ended.out

    def test_where_nothing_is_found_nothing_is_proven(self, remat: Remat, graph: Path) -> None:
        assert remat("sweep", graph, *QUICK, "--budgets", "60%", "--option", "candidates=0").code == 4

    def test_a_refusal_is_an_error_only_where_nobody_is_left(self, remat: Remat, forward_only: Path) -> None:
        refused = ("sweep", forward_only, "--budgets", "100%")
        ended = remat(*refused, "--planner", "approx_dp")
        assert ended.code == 2
        assert "no backward ops" in ended.err
        ended = remat(*refused, "--planner", "approx_dp,rotor")
        assert ended.code == 2
        assert "none of these planners can take it" in ended.err
        ended = remat(*refused, "--planner", "approx_dp,keep_all")
        assert ended.code == 0
        assert "approx_dp: " in ended.out

    def test_ctrl_c_keeps_what_was_finished(
        self, remat: Remat, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan, asked = ApproxDP.plan, []

        def interrupted(self: ApproxDP, problem: Problem, observe: Observer) -> PlanResult:
            asked.append(problem.budget)
            if len(asked) > 2:
                raise KeyboardInterrupt
            return plan(self, problem, observe)

        monkeypatch.setattr(ApproxDP, "plan", interrupted)
        ended = remat("sweep", graph, *QUICK, "--csv", tmp_path / "t.csv")
        assert ended.code == 130
        assert "Interrupted. Plans at 2 of 2 budgets." in ended.out
        assert len((tmp_path / "t.csv").read_text().splitlines()) == 3

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--budgets", "60%..min"), "cannot begin or end at min"),
            (("--budgets", "x"), "budget 'x' is not understood"),
            (("--planner", "roto"), "did you mean 'rotor'"),
            (("--planner", "dtr,dtr"), "'dtr' is given twice"),
            (("--planner", "none.yaml"), "no such file"),
            (("--option", "nothing=1"), "none of these planners has such an option"),
            (("--option", "rotor.slots=1"), "there is no 'rotor'"),
            (("--option", "approx_dp.slot=1"), "unknown key"),
            (("--time-limit", "soon"), "duration 'soon' is not understood"),
            (("--plot", "x.gif"), "ends in no format"),
            (("--plot", "no/x.png"), "there is no folder"),
            (("--csv", "no/x.csv"), "there is no folder"),
        ],
    )
    def test_a_wrong_call_ends_with_2_before_any_work(
        self, options: tuple[str, str], message: str, remat: Remat, graph: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ApproxDP, "plan", None)
        ended = remat("sweep", graph, *(() if "--planner" in options else QUICK), *options)
        assert ended.code == 2
        assert message in ended.err
        assert "Traceback" not in ended.err

    def test_a_missing_extra_says_how_to_get_it(
        self, remat: Remat, graph: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        ended = remat("sweep", graph, *QUICK, "--plot", "x.png")
        assert ended.code == 2
        assert "pip install 'remat[plot]'" in ended.err

    def test_a_config_without_a_planner_is_none(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        config = tmp_path / "c.yaml"
        config.write_text("budget: 50%\n")
        ended = remat("sweep", graph, "--planner", config)
        assert ended.code == 2
        assert "the file names no planner" in ended.err


class TestCompare:
    def test_sets_planners_side_by_side(self, remat: Remat, graph: Path) -> None:
        ended = remat("compare", graph, "--planners", "approx_dp,keep_all,exhaustive", "--budgets", "100%,60%")
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.index("100.0 % of the plain peak") < ended.out.index("60.00 % of the plain peak")
        assert "In all" in ended.out

    def test_each_answer_stands_for_itself(self, remat: Remat, graph: Path) -> None:
        summary = remat("compare", graph, "--planners", "dtr,keep_all", "--budgets", "60%,100%", "--json").json
        (found,) = summary["graphs"]
        results = {(result["planner"], result["budget_share"]): result for result in found["results"]}
        assert results["keep_all", 1.0]["best"]
        assert results["dtr", 1.0]["best"]
        planned = [result for result in results.values() if result["overhead"] is not None]
        assert len(planned) == 3
        assert all(result["seconds"] >= 0 for result in results.values())

    def test_several_graphs_go_into_one_table(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.json"
        other.write_bytes(graph_bytes(training_chain(8, size=50)))
        files = ("--csv", tmp_path / "t.csv", "--markdown", tmp_path / "t.md")
        call = ("compare", graph, other, "--planners", "dtr,approx_dp", "--budgets", "60%,80%", "--no-timing")
        assert remat(*call, *files, "-q").code == 0
        records = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
        assert [record["file"] for record in records] == [str(graph)] * 4 + [str(other)] * 4
        assert len((tmp_path / "t.md").read_text().splitlines()) == 10
        assert remat(*call) == remat(*call)

    def test_a_graph_without_a_dimension_is_read_without_it(self, remat: Remat, tmp_path: Path) -> None:
        paths = []
        for name, dims in (("long", ("seq", 4)), ("short", (3, 4))):
            model = Model([node("Relu", ["x"], ["r"]), node("Exp", ["r"], ["y"])], inputs=[float_input("x", *dims)])
            paths.append(model.save(tmp_path).rename(tmp_path / f"{name}.onnx"))
        call = ("compare", *paths, "--mode", "inference", "--planners", "keep_all", "--budgets", "100%")
        ended = remat(*call, "--dim", "seq=8")
        assert ended.code == 0
        assert ended.err == f"note: read without --dim seq, which it does not have: {paths[1]}\n"
        missing = remat(*call)
        assert (missing.code, missing.out) == (2, "")
        assert f"{paths[0]}: these sizes are not known: seq" in missing.err
        nowhere = remat(*call, "--dim", "seq=8", "--dim", "sqe=8")
        assert (nowhere.code, nowhere.out) == (2, "")
        assert "none of the graphs has a dimension 'sqe'" in nowhere.err
        assert remat("compare", paths[1], *call[3:], "--dim", "seq=8").code == 2

    def test_a_planner_that_refuses_says_why_and_the_rest_go_on(self, remat: Remat, forward_only: Path) -> None:
        call = ("compare", forward_only, "--planners", "approx_dp,keep_all", "--budgets", "100%")
        ended = remat(*call)
        assert ended.code == 0
        assert "Planners that cannot take this graph" in ended.out
        refusals = remat(*call, "--json").json["graphs"][0]["refusals"]
        assert list(refusals) == ["approx_dp"]
        assert "no backward ops" in refusals["approx_dp"]["message"]

    @pytest.mark.parametrize(
        ("budgets", "more", "code"),
        [
            ("5%,80%", (), 3),
            ("80%", ("--option", "candidates=0"), 4),
            ("5%,80%", ("--option", "candidates=0"), 4),
        ],
    )
    def test_the_worst_case_decides_how_it_ends(
        self, budgets: str, more: tuple[str, ...], code: int, remat: Remat, graph: Path
    ) -> None:
        assert remat("compare", graph, *QUICK, "--budgets", budgets, *more).code == code

    def test_all_are_asked_where_all_are_meant(self, remat: Remat, graph: Path) -> None:
        call = ("compare", graph, "--planners", "all", "--budgets", "100%", "--time-limit", "0.2s", "--json")
        (found,) = remat(*call).json["graphs"]
        asked = {result["planner"] for result in found["results"]} | set(found["refusals"])
        assert {"keep_all", "rotor", "dtr", "approx_dp", "checkmate", "moccasin", "retention"} <= asked

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--budgets", "min"), "compare asks all planners at the same budgets"),
            (("--csv", "-", "--markdown", "-"), "stdout takes one file, not --csv and --markdown"),
            (("--markdown", "no/x.md"), "there is no folder"),
            (("--planners", "nobody"), "there is no 'nobody'"),
        ],
    )
    def test_a_wrong_call_ends_with_2(self, options: tuple[str, ...], message: str, remat: Remat, graph: Path) -> None:
        ended = remat("compare", graph, *options)
        assert ended.code == 2
        assert message in ended.err

    def test_a_bad_graph_ends_it_before_any_work(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        bad = tmp_path / "bad.json"
        bad.write_text(json.dumps({"format": "remat.graph/9"}))
        ended = remat("compare", graph, bad, *QUICK)
        assert (ended.code, ended.out) == (6, "")

    def test_ctrl_c_between_graphs_keeps_the_first(
        self, remat: Remat, graph: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan, asked = ApproxDP.plan, []

        def interrupted(self: ApproxDP, problem: Problem, observe: Observer) -> PlanResult:
            asked.append(problem.budget)
            if len(asked) > 1:
                raise KeyboardInterrupt
            return plan(self, problem, observe)

        monkeypatch.setattr(ApproxDP, "plan", interrupted)
        ended = remat("compare", graph, graph, *QUICK, "--budgets", "80%")
        assert ended.code == 130
        assert "Interrupted: these are the results until then." in ended.out
        assert "1 of 1" not in ended.out
