"""Settings from every side: a given value wins, be it false or the default; each side takes every setting."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import click
import pytest

from remat_cli.batch.manifest import load_manifest
from remat_cli.batch.requests import jobs_of
from remat_cli.checks.project import load_project
from remat_cli.cli import cli
from remat_cli.cli.options import merge_config
from remat_cli.config import GraphOptions, Request, load_config
from remat_cli.errors import UsageError
from remat_cli.settings import declared, option_of
from tests.cli.calls import Remat
from tests.places import GRAPHS

GRAPH = GRAPHS / "skip_chain.json"
FLAGS = [item.name for owner in (Request, GraphOptions) for item in fields(owner) if isinstance(item.default, bool)]
# What a flag has a meaning with.
NEEDED = {"update_after_backward": {"update": True}}
# Verbs that plan, and how they say which budgets and planners.
PLANNING = ("plan", "budget", "fit", "sweep", "compare", "batch", "check")
BY_THE_VERB = ("budget", "planner", "max_overhead")


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


class TestTheCommandLineWins:
    def test_with_the_default_over_a_config(self, remat: Remat, tmp_path: Path) -> None:
        config = written(tmp_path, "c.yaml", "arena: true\nalignment: 512\nplanner: approx_dp\nbudget: 80%\n")
        out = tmp_path / "s.json"
        assert remat("plan", GRAPH, "-c", config, "-o", out, "-q").code == 0
        assert json.loads(out.read_text())["arena"]["alignment"] == 512
        assert remat("plan", GRAPH, "-c", config, "--alignment", "64", "-o", out, "-q").code == 0
        assert json.loads(out.read_text())["arena"]["alignment"] == 64
        assert remat("plan", GRAPH, "-c", config, "--no-addresses", "-o", out, "-q").code == 0
        assert "arena" not in json.loads(out.read_text())

    @pytest.mark.parametrize("name", FLAGS)
    def test_with_each_flag_taken_back(self, name: str, tmp_path: Path) -> None:
        needed = NEEDED.get(name, {})
        config = written(tmp_path, "c.yaml", "".join(f"{each}: true\n" for each in (name, *needed)))
        assert merge_config({"config": config, name: None}).said == {name: True, **needed}
        assert merge_config({"config": config, name: False}).said == {name: False, **needed}

    def test_over_a_manifest_and_a_project(self, remat: Remat, tmp_path: Path) -> None:
        manifest = written(
            tmp_path, "m.yaml", f"offload: true\nbudgets: [80%]\ngraphs: ['{GRAPH}']\nconfigs: [rotor]\n"
        )
        assert "rotor moves nothing to the host" in remat("batch", manifest).err
        assert remat("batch", manifest, "--no-offload", "-q").code == 0
        project = written(tmp_path, "r.yaml", f"models: [{{path: '{GRAPH}', budget: 80%, planner: rotor}}]\n")
        assert "rotor moves nothing to the host" in remat("check", project, "--offload").err
        limits = remat("check", project, "--addresses", "--alignment", "256", "--json").json["models"][0]["limits"]
        assert (limits["arena"], limits["alignment"]) == (True, 256)

    def test_over_a_file_among_the_planners(self, remat: Remat, tmp_path: Path) -> None:
        mine = written(tmp_path, "mine.yaml", "planner: pofo\noffload: true\narena: true\nalignment: 512\n")
        call = ("sweep", GRAPH, "--budgets", "100%", "--planners", mine, "--link-bandwidth", "1000000")
        assert remat(*call, "--json").json["curves"][0]["points"][0]["arena_bytes"] % 512 == 0
        (point,) = remat(*call, "--no-addresses", "--no-offload", "--json").json["curves"][0]["points"]
        assert "arena_bytes" not in point or point["arena_bytes"] is None

    def test_and_an_option_that_means_nothing_without_another_is_refused(self, remat: Remat) -> None:
        ended = remat("budget", GRAPH, "--alignment", "64")
        assert (ended.code, "--alignment goes with --addresses" in ended.err) == (2, True)

    @pytest.mark.parametrize("alignment", ["0", "-64", "64B", "1e3", str((1 << 40) + 1)])
    def test_and_a_wrong_value_is_named_with_its_option(self, remat: Remat, alignment: str) -> None:
        ended = remat("plan", GRAPH, "--budget", "80%", "--addresses", f"--alignment={alignment}")
        assert (ended.code, f"--alignment: an alignment of {alignment} bytes" in ended.err) == (2, True)


class TestWhatStandsNearerWins:
    def test_in_a_project_file(self, tmp_path: Path) -> None:
        text = "\n".join(
            [
                "defaults: {max_peak: 1GB, arena: true, alignment: 512, offload: true, strict: true, execute: true}",
                "models:",
                "  - {path: a.json}",
                "  - {path: b.json, arena: false, alignment: 64, offload: false, strict: false, execute: false}",
                "  - {path: c.json, config: c.yaml}",
                "  - {path: d.json, config: c.yaml, offload: true, alignment: 128}",
            ]
        )
        written(tmp_path, "c.yaml", "arena: false\nalignment: 256\noffload: false\nplanner: auto\n")
        models = load_project(written(tmp_path, "remat.yaml", text)).models
        found = [(m.request.arena, m.request.alignment, m.request.offload, m.graph.strict, m.execute) for m in models]
        assert found == [
            (True, 512, True, True, True),
            (False, 64, False, False, False),
            (False, 256, False, True, True),
            (False, 128, True, True, True),
        ]

    def test_in_a_manifest(self, tmp_path: Path) -> None:
        written(tmp_path, "a.json", GRAPH.read_text())
        written(tmp_path, "c.yaml", "strict: true\narena: true\n")
        top = "budgets: [80%]\nconfigs: [c.yaml]\nalignment: 512\nfused: true\noffload: true\n"
        entries = "graphs:\n  - a.json\n  - {path: a.json, arena: false, alignment: 64, fused: false, offload: false}\n"
        groups = load_manifest(written(tmp_path, "m.yaml", top + entries))
        first, second = jobs_of(groups, one_worker=False)
        assert (first.request.arena, first.request.alignment, first.options.fused) == (True, 512, True)
        assert (second.request.arena, second.request.alignment, second.options.fused) == (False, 64, False)
        assert (second.request.offload, second.options.strict) == (False, True)


class TestAnOptionIsDeclaredOnce:
    @pytest.mark.parametrize("verb", PLANNING)
    def test_and_each_verb_that_plans_takes_it(self, verb: str) -> None:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        assert {option_of(item.name) for item in fields(Request) if item.name not in BY_THE_VERB} <= options
        if verb != "check":  # its models have theirs in the file
            assert {option_of(item.name) for item in fields(GraphOptions)} <= options

    @pytest.mark.parametrize("name", FLAGS)
    def test_and_each_file_takes_it(self, name: str, tmp_path: Path) -> None:
        said = f"{name}: true"
        assert load_config(written(tmp_path, "c.yaml", said)).said == {name: True}
        project = f"defaults: {{{said}}}\nmodels: [{{path: a.json, max_peak: 1GB, {said}}}]\n"
        (model,) = load_project(written(tmp_path, "r.yaml", project)).models
        assert getattr(model.request, name, None) or getattr(model.graph, name)
        manifest = f"{said}\ngraphs: [{{path: a.json, {said}}}]\n"
        (group,) = load_manifest(written(tmp_path, "m.yaml", manifest))
        assert group.said == {name: True}

    def test_under_a_name_of_its_own(self) -> None:
        names = [item.name for owner in (Request, GraphOptions) for item in fields(owner)]
        assert len(set(names)) == len(names)
        needed = {declared(item).needs for item in fields(Request)} - {None}
        assert needed <= set(names)

    def test_and_null_gives_nothing(self, tmp_path: Path) -> None:
        assert load_config(written(tmp_path, "c.yaml", "budget: null\nmode: ~\n")).said == {}
        with pytest.raises(UsageError, match=r"c\.yaml:1: strict: "):
            load_config(written(tmp_path, "c.yaml", "strict: null\n"))


@pytest.mark.parametrize("verb", [("plan", "--budget", "80%"), ("compare",)])
def test_no_config_is_dropped_for_another(verb: tuple[str, ...], remat: Remat) -> None:
    ended = remat(*verb, GRAPH, "-c", "dtr", "-c", "rotor")
    assert (ended.code, "-c is given 2 times" in ended.err) == (2, True)
