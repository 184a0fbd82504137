"""Plans that use the link to the host, as a user asks for them: on every verb that plans, in files, and replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from remat_cli.cli import VERBS, cli
from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.formats.native import graph_bytes
from remat_cli.planners import OFFLOADERS, OFFLOADING, PLANNERS
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.pofo.options import StateRounding
from remat_cli.planners.pofo.planner import Pofo
from tests.cli.calls import Remat
from tests.documents import changed
from tests.graphs import training_chain
from tests.unit.formats.onnx.models import Model, float_input, node, weight

FAST = ("--link-bandwidth", "400", "--offload")  # a tensor of 100 bytes takes a quarter of what an op does
BUDGET = "60%"


@pytest.fixture(autouse=True)
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A chain whose recomputation takes time, and a link that is faster than it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "chain.json"
    path.write_bytes(graph_bytes(training_chain(6, size=100)))
    return path


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` answers at once: here is tested what it is asked. (Jobs of a batch run in processes of their own.)"""
    small = Pofo(candidates=2, memory_slots=8, rounding=StateRounding.UP)

    def plan(planner: Auto, problem: Problem, observe: Observer) -> PlanResult:
        return (small if problem.offload else DTR()).plan(problem, observe)

    monkeypatch.setattr(Auto, "plan", plan)


@pytest.fixture
def schedule(remat: Remat, graph: Path, tmp_path: Path) -> Path:
    path = tmp_path / "s.json"
    assert remat("plan", graph, "--budget", BUDGET, *FAST, "-q", "-o", path).code == 0
    return path


def read(path: Path) -> Any:
    return json.loads(path.read_text())


class TestVerbs:
    def test_it_is_a_setting_of_the_verbs_that_plan(self) -> None:
        commands = {verb: cli.get_command(click.Context(cli), verb) for verb in VERBS}
        having = {verb for verb, made in commands.items() if made and any("--offload" in o.opts for o in made.params)}
        assert having == {"plan", "budget", "sweep", "compare", "fit", "check", "batch"}

    def test_a_plan_may_use_the_link_only_where_that_is_asked_for(self, remat: Remat, graph: Path) -> None:
        without, with_it = (
            remat("plan", graph, "--budget", BUDGET, *options, "--json").json for options in (FAST[:2], FAST)
        )
        assert without["link"] is None
        assert without["overhead"] > 0
        assert with_it["overhead"] == 0
        assert with_it["link"]["to_host"]["bytes"] == with_it["link"]["to_device"]["bytes"] > 0
        assert (with_it["link"]["bytes_per_time"], with_it["link"]["duplex"]) == ("400", "half")

    def test_the_smallest_budget_is_smaller(self, remat: Remat, graph: Path) -> None:
        call = ("budget", graph, "--max-overhead", "0%", "--link-bandwidth", "400", "--json")
        assert remat(*call, "--offload").json["found_bytes"] < remat(*call).json["found_bytes"]

    def test_a_sweep_shows_both_and_each_planner_that_never_offloads_once(self, remat: Remat, graph: Path) -> None:
        call = ("sweep", graph, "--budgets", "60%,80%", *FAST, "--planners", "auto,pofo,dtr", "--json")
        curves = {curve["planner"]: curve["points"] for curve in remat(*call).json["curves"]}
        assert list(curves) == ["auto", "auto, offloading", "pofo", "dtr"]
        overheads = {label: [point["overhead"] for point in points] for label, points in curves.items()}
        assert min(overheads["auto"]) > 0
        assert overheads["auto, offloading"] == [0, 0]

    def test_a_comparison_says_who_never_does(self, remat: Remat, graph: Path) -> None:
        ended = remat("compare", graph, "--budgets", BUDGET, *FAST, "--planners", "auto,dtr,keep_all", "--json")
        assert ended.code == 0
        assert ended.err == "note: --offload makes no difference to dtr, keep_all\n"
        overheads = {result["planner"]: result["overhead"] for result in ended.json["graphs"][0]["results"]}
        assert overheads["auto"] == 0
        assert overheads["dtr"] > 0

    def test_fit_finds_more(self, remat: Remat, tmp_path: Path) -> None:
        names = ["x", *(f"h{number}" for number in range(3)), "y"]
        nodes = []
        for number in range(4):
            nodes.append(node("MatMul", [names[number], "w"], [f"m{number}"]))
            nodes.append(node("Relu", [f"m{number}"], [names[number + 1]]))
        inputs = [float_input("x", "batch", 64)]
        model = Model(nodes, inputs=inputs, stored=[weight("w", 64, 64)]).save(tmp_path)
        call = ("fit", model, "--dim", "batch", "--budget", "50kB", "--max-overhead", "0%", "--at-most", "64")
        found = [
            remat(*call, *more, "--json").json["found"]["value"] for more in ((), ("--offload", "--device", "h100"))
        ]
        assert found[0] < found[1]

    def test_a_batch_does_so_in_every_job(self, remat: Remat, graph: Path) -> None:
        ended = remat("batch", graph, "--budget", BUDGET, *FAST, "--schedules", "plans", "-o", "r.jsonl", "-q")
        assert ended.code == 0
        (line,) = map(json.loads, Path("r.jsonl").read_text().splitlines())
        assert (line["overhead"], line["scope"], line["scope_transfers"]) == (0, "any-order", True)
        assert read(Path(line["schedule"]))["link"] == {"bytes_per_time": "400", "duplex": "half"}

    def test_a_check_does_so_for_every_model(self, remat: Remat) -> None:
        model = "{path: chain.json, budget: 60%, max_overhead: 0%, link_bandwidth: 400}"
        Path("remat.yaml").write_text(f"models: [{model}]\n")
        assert remat("check").code == 3
        assert remat("check", "--offload").code == 0


class TestFiles:
    def test_a_config_says_so(self, remat: Remat, graph: Path) -> None:
        Path("mine.yaml").write_text(
            "planner: auto\nbudget: 60%\nlink_bandwidth: 400\nlink_duplex: full\noffload: true\n"
        )
        summary = remat("plan", graph, "-c", "mine.yaml", "--json").json
        assert (summary["overhead"], summary["link"]["duplex"]) == (0, "full")
        ended = remat("compare", graph, "--budgets", BUDGET, "--planner", "mine.yaml,auto", *FAST[:2], "--json")
        overheads = {result["planner"]: result["overhead"] for result in ended.json["graphs"][0]["results"]}
        assert overheads["mine"] == 0
        assert overheads["auto"] > 0

    @pytest.mark.parametrize("place", ["defaults", "model"])
    def test_a_project_says_so(self, place: str, remat: Remat) -> None:
        model = "path: chain.json, budget: 60%, max_overhead: 0%, link_bandwidth: 400"
        in_model, in_defaults = (", offload: true", "") if place == "model" else ("", "offload: true")
        Path("remat.yaml").write_text(f"defaults: {{{in_defaults}}}\nmodels: [{{{model}{in_model}}}]\n")
        assert remat("check").code == 0

    def test_a_manifest_says_so_for_all_graphs_or_for_one(self, remat: Remat, graph: Path) -> None:
        Path("other.json").write_bytes(graph.read_bytes().replace(b'"name":"test"', b'"name":"other"'))
        top = "budgets: [60%]\nlink_bandwidth: 400\n"
        Path("zoo.yaml").write_text(f"{top}graphs: [{{path: chain.json, offload: true}}, other.json]\n")
        assert remat("batch", "zoo.yaml", "-o", "r.jsonl", "-q").code == 0
        lines = map(json.loads, Path("r.jsonl").read_text().splitlines())
        assert {Path(line["graph"]).stem: line["overhead"] == 0 for line in lines} == {"chain": True, "other": False}


class TestRefusals:
    def test_without_a_link_it_says_how_to_give_one(self, remat: Remat, graph: Path) -> None:
        ended = remat("plan", graph, "--budget", BUDGET, "--offload")
        assert ended.code == 2
        assert ended.err == (
            "error: plans of 'test' may move tensors to the host, but no link to it is known\n"
            "hint: give --device or --link-bandwidth\n"
        )

    def test_a_check_says_so_in_the_words_of_its_file(self, remat: Remat) -> None:
        Path("remat.yaml").write_text("models: [{path: chain.json, budget: 60%, offload: true}]\n")
        ended = remat("check")
        assert ended.code == 2
        assert "Give device or link_bandwidth." in ended.out

    @pytest.mark.parametrize("verb", ["plan", "budget", "sweep", "fit"])
    def test_a_planner_that_never_offloads_says_who_does(self, verb: str, remat: Remat, graph: Path) -> None:
        ended = remat(
            verb,
            graph,
            "--planner",
            "rotor",
            *FAST,
            *(("--dim", "batch", "--budget", "1GB")[: 4 if verb == "fit" else 0]),
        )
        assert ended.code == 2
        assert ended.err == (
            "error: rotor moves nothing to the host\nhint: leave --offload out, or plan with auto, pofo or offload\n"
        )

    def test_so_do_a_batch_and_a_check(self, remat: Remat, graph: Path) -> None:
        ended = remat("batch", graph, "--budget", BUDGET, *FAST, "-c", "rotor")
        assert (ended.code, ended.err.startswith("error: rotor moves nothing to the host\n")) == (2, True)
        Path("remat.yaml").write_text("models:\n- {path: chain.json, budget: 60%, planner: rotor}\n")
        ended = remat("check", "--offload")
        assert ended.code == 2
        assert ended.err.startswith("error: remat.yaml:2: rotor moves nothing to the host\n")

    @pytest.mark.parametrize("call", [("plan", "--budget", BUDGET), ("compare",)])
    def test_the_option_that_auto_had_leads_to_the_setting(
        self, call: tuple[str, ...], remat: Remat, graph: Path
    ) -> None:
        ended = remat(*call, graph, "--option", "offload=true")
        assert ended.code == 2
        assert ended.err == "error: 'offload' is no option of auto\nhint: it stands by itself: --offload\n"

    def test_so_does_the_key_of_a_config(self, remat: Remat, graph: Path) -> None:
        Path("old.yaml").write_text("planner:\n  name: auto\n  offload: true\n")
        ended = remat("plan", graph, "--budget", BUDGET, "-c", "old.yaml")
        assert ended.code == 2
        assert ended.err == (
            "error: old.yaml:3: planner.offload: 'offload' is no option of auto\nhint: it stands by itself: --offload\n"
        )


class TestSchedules:
    def test_a_file_names_its_link_and_is_replayed_on_it(self, remat: Remat, graph: Path, schedule: Path) -> None:
        document = read(schedule)
        assert document["link"] == {"bytes_per_time": "400", "duplex": "half"}
        assert document["planner"]["offload"] is True
        assert document["bound"] == {"overhead": 0.0, "scope": "any-order", "transfers": True, "basis": "counted"}
        # What its options say of a link is not needed.
        alone = changed(schedule, lambda document: document["graph"].pop("options"))
        ended = remat("verify", graph, alone)
        assert (ended.code, ended.err) == (0, "")
        assert "link      400 B per unit of time, half duplex (from the schedule)\n" in ended.out
        summary = remat("verify", graph, alone, "--json").json
        assert summary["link"]["bytes_per_time"] == "400"
        assert remat("report", graph, alone, "-o", "r.html").code == 0
        assert "400 B per unit of time, half duplex (from the schedule)" in Path("r.html").read_text()

    def test_without_transfers_it_names_none(self, remat: Remat, graph: Path) -> None:
        assert remat("plan", graph, "--budget", BUDGET, *FAST[:2], "-q", "-o", "s.json").code == 0
        assert "link" not in read(Path("s.json"))
        assert "offload" not in read(Path("s.json"))["planner"]

    def test_a_file_that_names_none_needs_one(self, remat: Remat, graph: Path, schedule: Path) -> None:
        def as_formerly(document: dict[str, Any]) -> None:
            del document["link"], document["bound"]["transfers"]

        old = changed(schedule, as_formerly)
        assert remat("verify", graph, old).code == 0, "its options say with which link it was planned"
        older = changed(old, lambda document: document["graph"].pop("options"))
        ended = remat("verify", graph, older)
        assert ended.code == 5
        assert "hint: give --link-bandwidth 12GB/s" in ended.err
        ended = remat("verify", graph, older, "--link-bandwidth", "400")
        assert ended.code == 0
        assert "link      400 B per unit of time, half duplex\n" in ended.out

    @pytest.mark.parametrize(
        ("said", "named"),
        [
            (("--link-bandwidth", "300"), "--link-bandwidth 300"),
            (("--link-duplex", "full"), "--link-duplex full"),
        ],
    )
    def test_another_link_is_refused(
        self, said: tuple[str, ...], named: str, remat: Remat, graph: Path, schedule: Path
    ) -> None:
        for verb in (("verify",), ("report", "-o", "r.html")):
            ended = remat(*verb, graph, schedule, *said)
            assert ended.code == 6
            assert (
                "s.json was planned for another link than the one that is given: "
                "400 B per unit of time, half duplex\n"
                f"hint: leave out {named}: the schedule says what it was planned with\n"
            ) in ended.err
        assert remat("verify", graph, schedule, "--link-bandwidth", "400", "--link-duplex", "half").code == 0

    @pytest.mark.parametrize("change", [{"bytes_per_time": "300"}, {"duplex": "full"}])
    @pytest.mark.parametrize("said", [(), ("--link-bandwidth", "400")], ids=["nothing given", "given as planned"])
    def test_a_link_that_was_changed_by_hand_is_the_files_fault(
        self, change: dict[str, str], said: tuple[str, ...], remat: Remat, graph: Path, schedule: Path
    ) -> None:
        other = changed(schedule, lambda document: document["link"].update(change))
        for verb in (("verify",), ("report", "-o", "r.html")):
            ended = remat(*verb, graph, other, *said)
            assert ended.code == 5
            assert "the file says that its link moves " in ended.err
            assert "that is 400 B per unit of time, half duplex" in ended.err
            assert "leave out" not in ended.err

    def test_a_slower_link_in_the_file_shows_in_its_time(self, remat: Remat, graph: Path, schedule: Path) -> None:
        slower = changed(schedule, lambda document: document["link"].update(bytes_per_time="1/3"))
        other = changed(slower, lambda document: document["graph"].pop("options"))
        ended = remat("verify", graph, other)
        assert ended.code == 5
        assert "the file says time " in ended.err

    @pytest.mark.parametrize(
        ("link", "message"),
        [
            ({"bytes_per_time": "0", "duplex": "half"}, "link.bytes_per_time: '0' is no rate"),
            ({"bytes_per_time": "-1", "duplex": "half"}, "link.bytes_per_time: '-1' is no rate"),
            ({"bytes_per_time": "1e999999999", "duplex": "half"}, "is no rate"),
            ({"bytes_per_time": "1/0", "duplex": "half"}, "is no rate"),
            ({"bytes_per_time": 32, "duplex": "half"}, "link.bytes_per_time: 32 is of the wrong type"),
            ({"duplex": "half"}, "link.bytes_per_time: None is no rate"),
            ({"bytes_per_time": "32", "duplex": "both"}, "link.duplex: 'both' is not known"),
            ({"bytes_per_time": "32"}, "link.duplex: None is not known"),
            ("fast", "link: 'fast' is of the wrong type"),
        ],
    )
    def test_a_link_that_makes_no_sense(
        self, link: object, message: str, remat: Remat, graph: Path, schedule: Path
    ) -> None:
        ended = remat("verify", graph, changed(schedule, lambda document: document.update(link=link)))
        assert ended.code == 6
        assert message in ended.err

    def test_transfers_beside_another_scope_mean_nothing(self, remat: Remat, graph: Path, schedule: Path) -> None:
        bound = {"overhead": 0, "scope": "planner", "transfers": True}
        ended = remat("verify", graph, changed(schedule, lambda document: document.update(bound=bound)))
        assert ended.code == 5
        assert "the file says bound.transfers, but bound.scope 'planner': that goes with any-order" in ended.err


def test_those_that_exist_to_offload_are_among_those_that_can() -> None:
    assert set(OFFLOADERS) < set(OFFLOADING) <= set(PLANNERS)
