"""Planners of other packages, as users call them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calls import Remat
from tests.places import GRAPHS
from tests.plugins import PLAIN, install

GRAPH = str(GRAPHS / "skip_chain.json")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    return site


def broken_after(found: bool) -> str:
    """Return the source of a planner that breaks down, with a plan in hand or without."""
    ending = "1 / 0" if found else "return None"
    count = "self.candidates" if found else "0"
    return PLAIN.replace("range(self.candidates)", f"range({count})").replace("return incumbent.result()", ending)


def test_it_is_listed_with_its_package(remat: Remat, site: Path) -> None:
    install(site, "plugin-plain", PLAIN, {"plain": "Plain"})
    install(site, "plugin-broken", "import nowhere", {"broken": "Broken"})
    for call in (("planners",), ("planners", "plain")):
        assert "package     plugin-plain 1.2" in remat(*call).out
    assert "package" not in remat("planners", "rotor").out
    ended = remat("planners", "--json")
    assert {item["name"]: item["package"] for item in ended.json["planners"]}["plain"] == "plugin-plain 1.2"
    assert "'broken' of the package plugin-broken 1.2 cannot be used" in ended.err
    schemas = remat("planners", "--schema").json
    assert schemas["plain"]["properties"]["candidates"]["type"] == "integer"
    assert "broken" not in schemas


def test_it_plans_and_its_schedule_names_the_package(
    remat: Remat, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "plugin-plain", PLAIN, {"plain": "Plain"})
    schedule = tmp_path / "schedule.json"
    assert remat("plan", GRAPH, "--budget", "100%", "--planner", "plain", "-o", str(schedule)).code == 0
    assert '"package": "plugin-plain 1.2"' in schedule.read_text(encoding="utf-8")
    compared = remat("compare", GRAPH, "--planners", "plain,keep_all", "--budgets", "100%", "--no-timing")
    assert "plain" in compared.out
    assert remat("plan", GRAPH, "--budget", "100%", "--planner", "plain", "--option", "candidate=1").code == 2
    assert remat("plan", GRAPH, "--budget", "100%", "--planner", "plain", "--option", "candidates=0", "-q").code == 4
    # Where the package is not installed, its schedules can still be checked.
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path != str(site)])
    assert remat("verify", GRAPH, str(schedule)).code == 0
    unknown = remat("plan", GRAPH, "--budget", "100%", "--planner", "plain")
    assert unknown.code == 2
    assert "there is no 'plain'" in unknown.err


def test_a_config_file_names_it(remat: Remat, site: Path, tmp_path: Path) -> None:
    install(site, "plugin-plain", PLAIN, {"plain": "Plain"})
    config = tmp_path / "mine.yaml"
    config.write_text("planner: {name: plain, candidates: 2}\n", encoding="utf-8")
    ended = remat("plan", GRAPH, "--budget", "100%", "-c", str(config), "--json")
    assert ended.json["planner"] == {"name": "plain", "options": {"candidates": 2}, "package": "plugin-plain 1.2"}


def test_only_one_that_says_so_is_asked_to_offload(remat: Remat, site: Path) -> None:
    offloading = PLAIN.replace("    candidates: int = 1\n", "    candidates: int = 1\n    can_offload = True\n")
    install(site, "plugin-plain", PLAIN, {"plain": "Plain"})
    install(site, "plugin-moving", offloading, {"moving": "Plain"})
    call = ("plan", GRAPH, "--budget", "100%", "--offload", "--link-bandwidth", "10", "-q", "--planner")
    assert "plain moves nothing to the host" in remat(*call, "plain").err
    assert remat(*call, "moving").code == 0


@pytest.mark.parametrize("broken", ["import nowhere", "class Plain: ..."])
def test_a_broken_package_is_told_of(remat: Remat, site: Path, broken: str) -> None:
    install(site, f"plugin-broken-{len(broken)}", broken, {"broken": "Plain"})
    ended = remat("plan", GRAPH, "--budget", "100%", "--planner", "broken")
    assert ended.code == 2
    assert "planner 'broken' of the package plugin-broken" in ended.err
    assert "pip uninstall plugin-broken" in ended.err


def test_one_that_breaks_down_is_told_of_and_its_plan_kept(remat: Remat, site: Path) -> None:
    install(site, "plugin-early", broken_after(found=False), {"early": "Plain"})
    install(site, "plugin-late", broken_after(found=True), {"late": "Plain"})
    early = remat("plan", GRAPH, "--budget", "100%", "--planner", "early")
    assert early.code == 4
    assert "planner Plain of plugin_early broke down: TypeError: plan returned NoneType, not PlanResult" in early.err
    late = remat("plan", GRAPH, "--budget", "100%", "--planner", "late")
    assert late.code == 0
    said = "the planner broke down after it had found this plan: ZeroDivisionError: division by zero"
    assert said in " ".join((late.out + late.err).split())
