"""Each verb as a user calls it: streams, files and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from remat_cli.cli import EXIT_CODES, VERBS, cli
from remat_cli.config import GraphOptions
from remat_cli.core.problem import Bound, Observer, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import plain_run
from remat_cli.formats.schedule_json import read_schedule
from remat_cli.planners import PLANNERS
from remat_cli.planners.dtr.planner import DTR
from remat_cli.prepare import prepare
from tests.cli.calls import Ended, Remat
from tests.documents import chain_document, changed

UNET = Path(__file__).parents[2] / "graphs" / "unet.onnx"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(chain_document(12)))
    return path


class TestPlan:
    @pytest.mark.parametrize(("planner", "says"), [("annealing", True), ("dtr", False)])
    def test_says_where_annealing_ran_uncompiled(self, remat: Remat, tmp_path: Path, planner: str, says: bool) -> None:
        tangled = tmp_path / "tangled.json"
        remat("generate", "layered", "--ops", "120", "--seed", "3", "-o", str(tangled))
        ended = remat("plan", str(tangled), "--budget", "70%", "--planner", planner, "--time-limit", "1s")
        assert ended.code in (0, 4)
        assert ("annealing ran uncompiled: NUMBA_DISABLE_JIT is set" in ended.out) == says

    def test_writes_a_schedule_that_fits_and_says_so(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        output = tmp_path / "s.json"
        ended = remat("plan", graph, "--budget", "70%", "-o", output)
        assert (ended.code, ended.err) == (0, "")
        assert "The plan fits" in ended.out
        schedule = json.loads(output.read_text())
        assert schedule["format"] == "remat.schedule/1"
        assert schedule["peak_bytes"] <= schedule["budget_bytes"] < schedule["baseline"]["peak_bytes"]
        assert schedule["overhead"] == schedule["time"] / schedule["baseline"]["time"] - 1 > 0
        assert schedule["steps"][0] == ["compute", "op0"]

    def test_at_the_plain_peak_it_is_optimal(self, remat: Remat, graph: Path) -> None:
        summary = remat("plan", graph, "--budget", "100%", "--json").json
        assert (summary["status"], summary["scope"], summary["overhead"], summary["gap"]) == (
            "optimal",
            "any-order",
            0.0,
            0.0,
        )

    def test_a_dash_writes_to_stdout_and_moves_the_report_to_stderr(self, remat: Remat, graph: Path) -> None:
        ended = remat("plan", graph, "--budget", "70%", "-o", "-")
        assert ended.json["format"] == "remat.schedule/1"
        assert "The plan fits" in ended.err

    def test_the_summary_says_where_the_time_went(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        seconds = remat("plan", graph, "--budget", "70%", "-o", tmp_path / "s.json", "--json").json["seconds"]
        assert set(seconds) == {"reading", "planning", "judging", "writing"}
        assert all(spent > 0 for spent in seconds.values())

    def test_quiet_prints_nothing(self, remat: Remat, graph: Path) -> None:
        assert remat("plan", graph, "--budget", "70%", "-q") == Ended(0, "", "")

    def test_the_same_call_writes_the_same_bytes(self, remat: Remat, graph: Path) -> None:
        call = ("plan", graph, "--budget", "70%", "-o", "-", "-q")
        assert remat(*call).out == remat(*call).out

    def test_below_the_largest_working_set_it_is_proven_not_to_fit(
        self, remat: Remat, graph: Path, tmp_path: Path
    ) -> None:
        output = tmp_path / "s.json"
        ended = remat("plan", graph, "--budget", "100", "-o", output)
        assert ended.code == 3
        schedule = json.loads(output.read_text())
        assert schedule["status"] == "infeasible"
        assert "steps" not in schedule

    def test_a_budget_of_activations_leaves_out_what_is_always_there(self, remat: Remat, graph: Path) -> None:
        graph.write_text(json.dumps(chain_document(12) | {"resident_bytes": 10**6}))
        summary = remat("plan", graph, "--budget", "70% of activations", "--json").json
        fixed, plain = summary["fixed_bytes"], summary["baseline"]["peak_bytes"]
        assert summary["budget_bytes"] == fixed + (plain - fixed) * 7 // 10 < plain
        shown = remat("plan", graph, "--budget", "70% of activations").out
        assert f"{100 * summary['budget_bytes'] / plain:.2f} % of the plain peak, 70.00 % of activations" in shown

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (("--budget", "60%", "-o", "s.json"), "checkpoint these ops in the framework that trains the model"),
            (("--budget", "60%"), "write it: -o schedule.json"),
            (("--budget", "100%", "--planner", "keep_all"), "The plan runs nothing again"),
        ],
    )
    def test_the_report_says_what_to_do_next(
        self, remat: Remat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], says: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        shown = remat("plan", UNET, "--dim", "batch=2", "--planner", "dtr", *options).out
        assert says in " ".join(shown.partition("\nNext\n")[2].split())

    def test_a_plan_for_inference_is_applied_next(
        self, remat: Remat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        model = UNET.with_name("long_skip.onnx")
        call = ("plan", model, "--mode", "inference", "--input-shape", "image:1,16,64,64", "--budget", "60%")
        shown = remat(*call, "--planner", "dtr", "-o", "s.json").out
        assert f"`remat apply {model} s.json -o planned.onnx`" in " ".join(shown.split())

    def test_without_a_plan_there_is_nothing_next(self, remat: Remat) -> None:
        assert "\nNext\n" not in remat("plan", UNET, "--dim", "batch=2", "--budget", "1MB").out

    def test_a_budget_of_80_may_be_a_percentage(self, remat: Remat) -> None:
        ended = remat("plan", UNET, "--dim", "batch=2", "--budget", "80")
        assert ended.code == 3
        assert "80 bytes: did you mean 80%?" in ended.out

    def test_without_a_proof_it_ends_without_a_plan(self, remat: Remat, graph: Path) -> None:
        ended = remat("plan", graph, "--budget", "70%", "-c", "approx_dp", "--option", "candidates=0")
        assert ended.code == 4
        assert "unknown" in ended.out

    def test_a_planner_is_given_cores(self, remat: Remat, graph: Path) -> None:
        for planner, option in (("auto", "cores"), ("min_cut", "cores"), ("checkmate", "cores")):
            ended = remat("plan", graph, "--budget", "80%", "-c", planner, "--jobs", "2", "--json")
            assert ended.json["planner"]["options"][option] == 2

    def test_the_smallest_budget_is_planned_at(self, remat: Remat, graph: Path) -> None:
        smallest = remat("plan", graph, "--budget", "min", "--json").json
        assert smallest["peak_bytes"] == smallest["budget_bytes"]
        assert smallest["budget_bytes"] == remat("budget", graph, "--json").json["found_bytes"]

    def test_a_config_drives_it_and_the_command_line_wins(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        config = tmp_path / "c.yaml"
        config.write_text("planner: keep_all\nbudget: 90%\nmode: inference\n")
        from_file = remat("plan", graph, "-c", config, "--json").json
        assert (from_file["planner"]["name"], from_file["graph"]["mode"]) == ("keep_all", "inference")
        over = remat("plan", graph, "-c", config, "--planner", "approx_dp", "--mode", "training", "--json").json
        assert (over["planner"]["name"], over["graph"]["mode"]) == ("approx_dp", "training")

    def test_a_config_that_comes_with_remat_is_found_by_name(self, remat: Remat, graph: Path) -> None:
        assert remat("plan", graph, "-c", "keep_all", "--json").json["planner"]["name"] == "keep_all"

    def test_a_graph_without_a_backward_is_refused_with_a_planner_that_takes_it(
        self, remat: Remat, graph: Path
    ) -> None:
        ended = remat("plan", graph, "--budget", "100%", "--mode", "inference", "-c", "approx_dp")
        assert ended.code == 2
        assert "no backward ops" in ended.err
        assert "dtr" in ended.err

    def test_an_output_that_cannot_be_written_leaves_nothing_behind(
        self, remat: Remat, graph: Path, tmp_path: Path
    ) -> None:
        ended = remat("plan", graph, "--budget", "70%", "-o", tmp_path / "no" / "s.json")
        assert ended.code == 2
        assert "cannot be written" in ended.err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["chain.json"]

    def test_an_old_output_survives_a_failed_write(
        self, remat: Remat, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        output = tmp_path / "s.json"
        output.write_text("old")

        def fail(source: str, target: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", fail)
        ended = remat("plan", graph, "--budget", "70%", "-o", output)
        assert (ended.code, output.read_text()) == (2, "old")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["chain.json", "s.json"]


class TestFalseClaims:
    """What the judge refutes costs the claim, not the plan."""

    @pytest.fixture
    def plan(self, remat: Remat, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
        """Plan by a planner of whose result something is changed."""
        honest = DTR.plan

        def call(**claims: Any) -> Ended:
            def claim(planner: DTR, problem: Problem, observe: Observer) -> PlanResult:
                return replace(honest(planner, problem, Observer()), **claims)

            monkeypatch.setattr(DTR, "plan", claim)
            return remat("plan", graph, "--budget", "70%", "--planner", "dtr", "-o", tmp_path / "s.json", "--json")

        return call

    @pytest.mark.parametrize("status", [Status.FEASIBLE, Status.OPTIMAL])
    def test_a_bound_above_the_plan_is_dropped_and_the_plan_stays(
        self, status: Status, plan: Callable[..., Ended], remat: Remat, graph: Path, tmp_path: Path
    ) -> None:
        ended = plan(status=status, bounds=(Bound(10**9, Scope.ANY_ORDER),))
        assert ended.code == 0
        assert "a bound (any-order) is wrong: a plan takes " in ended.err
        assert (ended.json["status"], len(ended.json["warnings"])) == ("feasible", 1)
        assert remat("verify", graph, tmp_path / "s.json", "-q").code == 0

    def test_a_plan_that_fits_after_all_is_taken(self, plan: Callable[..., Ended], tmp_path: Path) -> None:
        honest = plan().json
        schedule = read_schedule(tmp_path / "s.json").schedule
        ended = plan(status=Status.INFEASIBLE, scope=Scope.ANY_ORDER, schedule=None, closest=schedule, bounds=())
        assert ended.code == 0
        assert "the proof that no plan fits (any-order) is wrong: there is one, and it is kept" in ended.err
        assert ended.json["time"] == honest["time"]

    def test_without_a_plan_that_fits_it_ends_as_any_search_that_found_none(
        self, plan: Callable[..., Ended], graph: Path
    ) -> None:
        too_large = plain_run(prepare(graph, GraphOptions()).graph)
        ended = plan(schedule=too_large, bounds=())
        assert ended.code == 4
        assert "above the budget" in ended.err


class TestVerify:
    @pytest.fixture
    def onnx_plan(self, remat: Remat, tmp_path: Path) -> Path:
        path = tmp_path / "unet-plan.json"
        options = ("--dim", "batch=2", "--optimizer", "adam", "--device", "a100")
        remat("plan", UNET, *options, "--budget", "100%", "--planner", "keep_all", "-o", path, "-q")
        return path

    @pytest.fixture
    def schedule(self, remat: Remat, graph: Path, tmp_path: Path) -> Path:
        path = tmp_path / "s.json"
        remat("plan", graph, "--budget", "70%", "-o", path, "-q")
        return path

    def test_accepts_the_original_file(self, remat: Remat, graph: Path, schedule: Path) -> None:
        ended = remat("verify", graph, schedule)
        assert (ended.code, ended.err) == (0, "")

    def test_accepts_the_converted_file_whose_hash_is_in_the_schedule(
        self, remat: Remat, graph: Path, schedule: Path, tmp_path: Path
    ) -> None:
        converted = tmp_path / "training.json"
        assert remat("convert", graph, "--training", "-o", converted).code == 0
        assert remat("verify", converted, schedule).code == 0
        assert sha256(converted.read_bytes()).hexdigest() == json.loads(schedule.read_text())["graph"]["sha256"]

    def test_takes_the_mode_from_the_schedule(self, remat: Remat, graph: Path, tmp_path: Path) -> None:
        path = tmp_path / "inference.json"
        remat("plan", graph, "--mode", "inference", "--planner", "keep_all", "--budget", "100%", "-o", path)
        assert remat("verify", graph, path).code == 0

    def test_takes_what_it_was_planned_with_from_the_schedule_and_says_so(self, remat: Remat, onnx_plan: Path) -> None:
        ended = remat("verify", UNET, onnx_plan)
        assert ended.code == 0
        assert "--mode training --dim batch=2 --optimizer adam --device a100 (from the schedule)" in " ".join(
            ended.out.split()
        )
        taken = remat("verify", UNET, onnx_plan, "--dim", "batch=2", "--json").json["options_from_schedule"]
        assert taken == {"mode": "training", "optimizer": "adam", "device": "a100"}

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            (("--dim", "batch=4"), "planned with --dim batch=2, not --dim batch=4"),
            (("--optimizer", "sgd"), "planned with --optimizer adam, not --optimizer sgd"),
            (("--mode", "inference"), "planned with --mode training, not --mode inference"),
            (("--device", "h100"), "planned with --device a100, not --device h100"),
            (("--cost-model", "unit"), "planned without --cost-model unit"),
        ],
    )
    def test_names_the_option_that_differs(
        self, remat: Remat, onnx_plan: Path, given: tuple[str, str], says: str
    ) -> None:
        ended = remat("verify", UNET, onnx_plan, *given)
        assert ended.code == 6
        assert says in ended.err

    def test_what_convert_wrote_is_not_costed_again(self, remat: Remat, onnx_plan: Path, tmp_path: Path) -> None:
        path, options = tmp_path / "converted.json", ("--dim", "batch=2", "--optimizer", "adam", "--device", "a100")
        assert remat("convert", UNET, "--training", *options, "-o", path).code == 0
        assert remat("verify", path, onnx_plan).code == 0
        ended = remat("verify", changed(path, lambda graph: graph["ops"][0].update(time=1)), onnx_plan)
        assert ended.code == 6
        assert "sha256 differs" in ended.err

    def test_a_device_is_taken_for_a_graph_of_json_that_was_planned_with_it(
        self, remat: Remat, graph: Path, tmp_path: Path
    ) -> None:
        document, path = json.loads(graph.read_text()), tmp_path / "s.json"
        for op in document["ops"]:
            op.update(flops=10**6, moved_bytes=10**6)
        graph.write_text(json.dumps(document | {"time_unit": "ns"}))
        assert remat("plan", graph, "--device", "a100", "--budget", "70%", "-q", "-o", path).code == 0
        ended = remat("verify", graph, path)
        assert (ended.code, ended.err) == (0, "")
        assert "--device a100 (from the schedule)" in ended.out

    def test_the_link_is_taken_from_a_schedule_that_moves_tensors(
        self, remat: Remat, graph: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "moves.json"
        call = ("plan", graph, "--planner", "pofo", "--link-bandwidth", "10", "--budget", "60%", "-q", "-o", path)
        assert remat(*call).code == 0
        assert '["offload"' in path.read_text()
        ended = remat("verify", graph, path)
        assert (ended.code, ended.err) == (0, "")

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"dims": {"batch": "two"}}, "graph.options: dims: input should be a valid integer"),
            ({"dimz": {}}, "did you mean 'dims'?"),
            ({"device": "/etc/hostname"}, "name a file"),
            ({"measurements": "times.yaml"}, "name a file"),
            ([], "graph.options: [] is of the wrong type"),
        ],
    )
    def test_options_that_a_schedule_cannot_have_are_refused(
        self, remat: Remat, onnx_plan: Path, options: object, says: str
    ) -> None:
        ended = remat("verify", UNET, changed(onnx_plan, lambda document: document["graph"].update(options=options)))
        assert ended.code == 6
        assert says in ended.err

    def test_a_schedule_without_options_needs_them_given(self, remat: Remat, onnx_plan: Path) -> None:
        old = changed(onnx_plan, lambda document: document["graph"].pop("options"))
        options = ("--dim", "batch=2", "--optimizer", "adam", "--device")
        assert remat("verify", UNET, old, *options, "a100").code == 0
        ended = remat("verify", UNET, old, *options, "h100")
        assert ended.code == 6
        assert "give the options that it was planned with" in ended.err

    def test_a_budget_of_80_may_be_a_percentage(self, remat: Remat, onnx_plan: Path) -> None:
        assert "80 bytes: did you mean 80%?" in remat("verify", UNET, onnx_plan, "--budget", "80").err

    def test_names_the_first_broken_step(self, remat: Remat, graph: Path, schedule: Path) -> None:
        ended = remat("verify", graph, changed(schedule, lambda document: document["steps"].pop(0)))
        assert ended.code == 5
        assert "step 0 (compute 'op1'): tensor 'y0' is not in memory" in ended.err

    def test_holds_the_peak_against_another_budget(self, remat: Remat, graph: Path, schedule: Path) -> None:
        ended = remat("verify", graph, schedule, "--budget", "60%")
        assert ended.code == 5
        assert "above the budget" in ended.err

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"peak_bytes": 7}, "the file says peak_bytes 7, but the replay gives "),
            ({"time": 7}, "the file says time 7, but the replay gives "),
            ({"overhead": 0.001}, "the file says overhead 0.001, but the replay gives "),
            ({"budget_bytes": 7}, "is above the budget of 7 B"),
            ({"status": "infeasible"}, "the file says status 'infeasible', but there is a plan"),
            ({"status": "perfect"}, "the file says status 'perfect', but there is a plan"),
            ({"bound": {"overhead": 0.001}}, "the file says status optimal, but its overhead, "),
            ({"status": "optimal", "bound": None}, "is above its bound, None"),
            (
                {"bound": {"overhead": 0.5, "scope": "any-order"}},
                "no plan has less overhead than 0.5, but its own has ",
            ),
            (
                {"status": "feasible", "bound": {"overhead": 0, "scope": "all"}},
                "the file says bound.scope 'all', but there are only any-order",
            ),
            (
                {"status": "feasible", "bound": {"overhead": 0, "basis": "god"}},
                "the file says bound.basis 'god', but there are only counted, two-solvers, one-solver",
            ),
            (
                {"planner": {"name": "nobody"}},
                "the file says planner.name 'nobody', which is none of those that 'remat planners' lists",
            ),
            ({"baseline": {"peak_bytes": 7}}, "the file says baseline.peak_bytes 7, but the replay gives 1500"),
            ({"baseline": {"time": 7}}, "the file says baseline.time 7, but the replay gives "),
            ({"graph": {}}, "graph.sha256 is missing"),
            ({"graph": {"sha256": None}}, "graph.sha256 is missing"),
            ({"graph": None}, "graph.sha256 is missing"),
        ],
    )
    def test_does_not_believe_what_the_file_says_of_itself(
        self, change: dict[str, Any], message: str, remat: Remat, graph: Path, schedule: Path
    ) -> None:
        ended = remat("verify", graph, changed(schedule, lambda document: document.update(change)))
        assert ended.code == 5
        assert message in ended.err
        differences = ended.err.partition("hint")[0].splitlines()
        assert len(differences) == 1, "and nothing else is false"

    def test_says_that_a_bound_is_the_files_own_word(self, remat: Remat, graph: Path, schedule: Path) -> None:
        def boast(document: dict[str, Any]) -> None:
            document["status"] = "optimal"
            document["bound"] = {"overhead": document["overhead"], "scope": "any-order", "basis": "two-solvers"}

        boastful = changed(schedule, boast)
        ended = remat("verify", graph, boastful)
        assert ended.code == 0
        assert "any-order · the bound is the file's own word" in ended.out
        claimed = remat("verify", graph, boastful, "--json").json["unchecked_bound"]
        assert claimed == {
            "overhead": json.loads(boastful.read_text())["overhead"],
            "scope": "any-order",
            "basis": "two-solvers",
        }

    def test_says_nothing_of_a_bound_where_the_file_has_none(self, remat: Remat, graph: Path, schedule: Path) -> None:
        plain = changed(schedule, lambda document: document.update(status="feasible", bound=None))
        assert "own word" not in remat("verify", graph, plain).out
        assert remat("verify", graph, plain, "--json").json["unchecked_bound"] is None

    @pytest.mark.parametrize(("key", "said"), [("name", "other"), ("kind", "inference"), ("ops", 7)])
    def test_does_not_believe_what_the_file_says_of_the_graph(
        self, key: str, said: object, remat: Remat, graph: Path, schedule: Path
    ) -> None:
        other = changed(schedule, lambda document: document["graph"].update({key: said}))
        ended = remat("verify", graph, other)
        assert ended.code == 5
        assert f"the file says graph.{key} {said!r}, but" in ended.err

    def test_names_each_difference(self, remat: Remat, graph: Path, schedule: Path) -> None:
        change = {"time": 7, "overhead": 9.0, "budget_bytes": 9, "peak_bytes": 8}
        other = changed(schedule, lambda document: document.update(change))
        ended = remat("verify", graph, other, "--budget", "100%")
        assert ended.code == 5
        assert all(f"the file says {place} {said}" in ended.err for place, said in change.items())

    def test_a_share_may_be_rounded_as_another_program_does(self, remat: Remat, graph: Path, schedule: Path) -> None:
        def otherwise(document: dict[str, Any]) -> None:
            plain = document["baseline"]["time"]
            document["overhead"] = document["bound"]["overhead"] = (document["time"] - plain) / plain
            document["status"] = "optimal"

        assert remat("verify", graph, changed(schedule, otherwise)).code == 0

    def test_what_the_file_leaves_out_is_not_held_against_it(self, remat: Remat, graph: Path, schedule: Path) -> None:
        def strip(document: dict[str, Any]) -> None:
            document["graph"] = {"sha256": document["graph"]["sha256"]}
            for key in document.keys() - {"format", "steps", "graph"}:
                del document[key]

        assert remat("verify", graph, changed(schedule, strip)).code == 0

    @pytest.mark.parametrize("place", ["time", "overhead", "budget_bytes"])
    def test_numbers_beyond_arithmetic_are_refused(self, place: str, remat: Remat, graph: Path, schedule: Path) -> None:
        ended = remat("verify", graph, changed(schedule, lambda document: document.update({place: 10**400})))
        assert ended.code == 6
        assert f"{place}: 1000000" in ended.err
        assert "is too large" in ended.err
        assert len(ended.err) < 300

    def test_refuses_a_schedule_of_another_graph(self, remat: Remat, schedule: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.json"
        other.write_text(json.dumps(chain_document(12, size=101)))
        ended = remat("verify", other, schedule)
        assert ended.code == 6
        assert "sha256 differs" in ended.err

    def test_accepts_what_another_tool_wrote(self, remat: Remat, tmp_path: Path) -> None:
        graph, foreign = tmp_path / "g.json", tmp_path / "foreign.json"
        graph.write_text(json.dumps({**chain_document(1), "kind": "inference"}))
        document: dict[str, Any] = {"format": "remat.schedule/1", "steps": [["compute", "op0"]]}
        foreign.write_text(json.dumps(document))
        ended = remat("verify", graph, foreign)
        assert ended.code == 5
        # The hint says what is missing, ready to be pasted.
        added = ended.err.partition("add ")[2].partition(" to the file")[0]
        foreign.write_text(json.dumps(document | json.loads(f"{{{added}}}")))
        assert remat("verify", graph, foreign, "--budget", "200").code == 0
        assert remat("verify", graph, foreign, "--budget", "199").code == 5

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "is empty"),
            ('{"format": "remat.schedule/1", "steps": [', "ends too early"),
            ('{"format": "remat.schedule/9", "steps": []}', "unknown format 'remat.schedule/9'"),
            ('{"format": "remat.schedule/1", "status": "infeasible"}', "holds no plan (status: infeasible)"),
            ('{"format": "remat.schedule/1", "steps": [["fly", "op0"]]}', "steps[0]: unknown step 'fly'"),
            ('{"format": "remat.schedule/1", "steps": [["compute"]]}', "steps[0]: ['compute'] is no step"),
            ('{"format": "remat.schedule/1", "steps": 3}', "steps is not a list"),
            ('{"format": "remat.schedule/1", "steps": [], "time": "x"}', "time: 'x' is of the wrong type"),
            ("[]", "unknown format None"),
        ],
    )
    def test_a_broken_file_is_refused(
        self, content: str, message: str, remat: Remat, graph: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "broken.json"
        path.write_text(content)
        ended = remat("verify", graph, path)
        assert ended.code == 6
        assert message in ended.err


class TestOtherVerbs:
    def test_inspect_shows_the_plain_peak_and_the_hard_limit(self, remat: Remat, graph: Path) -> None:
        summary = remat("inspect", graph, "--json").json
        # The input and 12 results are there when the backward begins; two gradients come on top.
        assert summary["plain"]["peak_bytes"] == 15 * 100
        assert set(summary["seconds"]) == {"reading", "judging"}
        assert remat("inspect", graph).code == 0

    def test_convert_without_training_keeps_a_forward_graph(self, remat: Remat, graph: Path) -> None:
        assert json.loads(remat("convert", graph, "-o", "-").out)["kind"] == "forward"

    def test_convert_for_inference_leaves_out_what_only_a_backward_needs(self, remat: Remat, graph: Path) -> None:
        assert json.loads(remat("convert", graph, "-o", "-", "--mode", "inference").out)["kind"] == "inference"

    def test_budget_proves_and_finds(self, remat: Remat, graph: Path) -> None:
        summary = remat("budget", graph, "--json").json
        assert summary["proven_bytes"] <= summary["found_bytes"]

    def test_budget_is_exact_where_the_planner_is(self, remat: Remat, graph: Path) -> None:
        summary = remat("budget", graph, "--planner", "keep_all", "--json").json
        assert summary["proven_bytes"] == summary["found_bytes"] == 15 * 100

    def test_budget_at_an_overhead(self, remat: Remat, graph: Path) -> None:
        anything = remat("budget", graph, "--json").json
        nothing = remat("budget", graph, "--max-overhead", "0%", "--json").json
        assert nothing["found_bytes"] == 15 * 100 > anything["found_bytes"]

    def test_planners_lists_every_one(self, remat: Remat) -> None:
        ended = remat("planners")
        assert all(name in ended.out for name in PLANNERS)

    def test_planners_prints_a_schema(self, remat: Remat) -> None:
        assert remat("planners", "--schema").json["approx_dp"]["properties"]["candidates"]["type"] == "integer"


WRONG_CALLS: dict[str, tuple[Sequence[str], str]] = {
    "no budget": (("plan", "GRAPH"), "plan needs a budget"),
    "a budget that is no size": (("plan", "GRAPH", "--budget", "lots"), "budget 'lots' is not understood"),
    "a budget of nothing": (("plan", "GRAPH", "--budget", "0%"), "must be above 0"),
    "an unknown verb": (("pln",), "there is no verb 'pln'. Did you mean 'plan'?"),
    "an unknown planner": (("plan", "GRAPH", "--budget", "80%", "--planner", "aprox_dp"), "did you mean 'approx_dp'?"),
    "an unknown option": (
        ("plan", "GRAPH", "--budget", "80%", "-c", "chen", "--option", "candidats=1"),
        "did you mean 'candidates'?",
    ),
    "a seed that the planner does not have": (
        ("plan", "GRAPH", "--budget", "80%", "-c", "chen", "--seed", "1"),
        "seed: unknown key",
    ),
    "cores for one that uses one": (("plan", "GRAPH", "--budget", "80%", "-c", "chen", "-j2"), "chen uses one core"),
    "a dim without a number": (("inspect", "GRAPH", "--dim", "batch=many"), "--dim 'batch=many' is not understood"),
    "a shape that is none": (("inspect", "GRAPH", "--input-shape", "x"), "--input-shape 'x' is not understood"),
    "an optimizer on JSON": (("inspect", "GRAPH", "--optimizer", "adam"), "an optimizer needs a file"),
    "measured without a table": (("inspect", "GRAPH", "--cost-model", "measured"), "give --measurements FILE"),
    "an overhead without min": (("plan", "GRAPH", "--budget", "80%", "--max-overhead", "5%"), "goes with --budget min"),
    "a missing config": (("plan", "GRAPH", "-c", "nothing.yaml"), "no such file"),
    "a bandwidth a second on a graph without seconds": (
        ("inspect", "GRAPH", "--link-bandwidth", "1GB/s"),
        "is a rate a second",
    ),
    "an unknown device": (("inspect", "GRAPH", "--device", "a1000"), "did you mean 'a100'?"),
    "training that contradicts itself": (
        ("convert", "GRAPH", "-o", "-", "--training", "--mode", "inference"),
        "contradicts",
    ),
}


@pytest.mark.parametrize("fault", WRONG_CALLS)
def test_a_wrong_call_ends_with_2_and_a_message(fault: str, remat: Remat, graph: Path) -> None:
    args, message = WRONG_CALLS[fault]
    ended = remat(*(str(graph) if arg == "GRAPH" else arg for arg in args))
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


@pytest.mark.parametrize("verb", ["inspect", "plan", "budget", "convert"])
def test_a_bad_graph_ends_with_6_and_no_traceback(verb: str, remat: Remat, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"format": "remat.graph/1"')
    more = {"plan": ["--budget", "80%"], "convert": ["-o", "-"]}.get(verb, [])
    ended = remat(verb, path, *more)
    assert (ended.code, ended.out) == (6, "")
    assert ended.err.startswith(f"error: {path}:1:")
    assert "hint:" in ended.err


def test_control_characters_in_a_message_do_not_reach_the_terminal(remat: Remat, tmp_path: Path) -> None:
    document = chain_document(1)
    document["ops"][0]["inputs"] = ["\x1b[31mred"]
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    ended = remat("inspect", path)
    assert ended.code == 6
    assert "\x1b" not in ended.err


def test_a_bug_ends_with_1_and_no_traceback(remat: Remat, graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr("remat_cli.cli.inspect.prepare", broken)
    ended = remat("inspect", graph)
    assert ended.code == 1
    assert "a bug in remat: ZeroDivisionError: by design" in ended.err
    assert "Traceback" not in ended.err


def test_ctrl_c_before_anything_was_found_ends_with_130(
    remat: Remat, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("remat_cli.cli.inspect.prepare", interrupted)
    ended = remat("inspect", graph)
    assert ended.code == 130
    assert "Traceback" not in ended.err


def test_ctrl_c_keeps_the_best_plan_until_then(
    remat: Remat, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remat_cli.planners.published.lower_sets.search import LowerSetSearch

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LowerSetSearch, "_refine", interrupted)
    output = tmp_path / "s.json"
    ended = remat("plan", graph, "--budget", "90%", "-c", "approx_dp", "-o", output)
    assert ended.code == 130
    assert json.loads(output.read_text())["status"] == "feasible"
    assert remat("verify", graph, output).code == 0


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, remat: Remat) -> None:
    ended = remat(verb, "--help")
    assert ended.code == 0
    assert f"remat {verb}" in ended.out


def test_help_lists_every_verb_and_exit_code(remat: Remat) -> None:
    out = remat("--help").out
    assert all(verb in out for verb in VERBS)
    assert all(line.strip() in out for line in EXIT_CODES.splitlines() if line.strip("\b"))


def test_the_installed_command_and_the_module_are_the_same(graph: Path) -> None:
    installed = Path(sys.executable).with_name("remat")
    for command in ([str(installed)], [sys.executable, "-m", "remat_cli"]):
        done = subprocess.run(
            [*command, "plan", str(graph), "--budget", "70%", "-o", "-", "-q"], capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert json.loads(done.stdout)["format"] == "remat.schedule/1"


def test_a_closed_pipe_ends_quietly(graph: Path) -> None:
    command = f"{sys.executable} -m remat_cli plan {graph} --budget 70% | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, check=False, text=True)
    assert done.stderr == ""


def test_help_imports_no_heavy_library() -> None:
    heavy = ("onnx", "ortools", "pulp", "networkx", "numpy", "pydantic", "rich", "yaml")
    script = f"import sys, remat_cli.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_verbs_of_the_table_are_the_ones_that_exist() -> None:
    context = cli.make_context("remat", ["--help"], resilient_parsing=True)
    assert all(cli.get_command(context, verb) is not None for verb in VERBS)


def test_sizes_given_in_vain_are_told(remat: Remat, graph: Path) -> None:
    told = "all sizes in a JSON graph are fixed: those given for batch make no difference"
    assert told in remat("convert", graph, "--dim", "batch=2", "-o", "-").err
    assert "no difference" not in remat("convert", graph, "--dim", "*=2", "-o", "-").err
