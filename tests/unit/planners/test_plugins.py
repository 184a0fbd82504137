"""Planners of other packages: found by their entry points, and told in words what is wrong with one that is broken."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from remat_cli.errors import UsageError
from remat_cli.planners import PLANNERS
from remat_cli.planners.plugins import all_planners, package_of, planner_named, planner_names
from tests.places import ROOT
from tests.plugins import PLAIN, install

CLASS = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mine:\n    {}\n"
PLAN = "def plan(self, problem, observe): ..."


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_planner_of_another_package_is_one_of_all(site: Path) -> None:
    install(site, "plugin-plain", PLAIN, {"plain": "Plain"})
    planner = planner_named("plain")
    assert planner is not None
    assert planner.__name__ == "Plain"
    assert dict(all_planners()) == {**PLANNERS, "plain": planner}
    assert planner_names() == (*PLANNERS, "plain")
    assert package_of("plain") == "plugin-plain 1.2"


def test_those_of_remat_are_of_no_other_package() -> None:
    assert planner_named("rotor") is PLANNERS["rotor"]
    assert package_of("rotor") is None
    assert planner_named("nobody") is None
    assert package_of("nobody") is None


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        (
            "plugin_syntax",
            "class Mine:",
            "plugin_syntax:Mine cannot be imported: IndentationError: expected an in",
        ),
        ("plugin_import", "import nowhere", "plugin_import:Mine cannot be imported: ModuleNotFoundError: No module na"),
        ("plugin_exit", "raise SystemExit(3)", "plugin_exit:Mine cannot be imported: SystemExit: 3"),
        ("plugin_name", "", "plugin_name:Mine cannot be imported: AttributeError"),
        ("plugin_class", f"class Mine:\n    {PLAN}\n", "plugin_class:Mine is no dataclass"),
        ("plugin_object", "Mine = 3", "plugin_object:Mine is no dataclass"),
        ("plugin_loose", CLASS.format(PLAN).replace("(frozen=True)", ""), "write @dataclass(frozen=True)"),
        ("plugin_required", CLASS.format(f"depth: int\n    {PLAN}"), "has an option without a default: depth"),
        ("plugin_planless", CLASS.format("depth: int = 1"), "has no method plan(problem, observe)"),
        (
            "plugin_init",
            CLASS.format(f"{PLAN}\n    def __post_init__(self): 1 / 0"),
            "defaults: ZeroDivisionError: div",
        ),
        (
            "plugin_type",
            CLASS.format(f"depth: 'Depth' = 1\n    {PLAN}"),
            "has an option of an unknown type: name 'Depth'",
        ),
        (
            "plugin_value",
            CLASS.format(f"depth: object = dict\n    {PLAN}"),
            "has a default that JSON cannot hold: depth",
        ),
    ],
)
def test_a_broken_package_is_told_of_and_harms_no_other(
    site: Path, caplog: pytest.LogCaptureFixture, module: str, source: str, fault: str
) -> None:
    install(site, "plugin-plain", PLAIN, {"plain": "Plain"})
    install(site, module, source, {"broken": "Mine"})
    with pytest.raises(UsageError) as error:
        planner_named("broken")
    assert f"planner 'broken' of the package {module} 1.2 cannot be used" in error.value.message
    assert fault in error.value.message
    assert error.value.hint == f"mend that package, or remove it: pip uninstall {module}"
    with caplog.at_level(logging.WARNING, "remat"):
        assert list(all_planners()) == [*PLANNERS, "plain"]
    assert [record.getMessage() for record in caplog.records] == [error.value.message]


@pytest.mark.parametrize("name", ["rotor", "all", "two-words", "a.b", "9th"])
def test_a_name_that_cannot_be_had_is_refused(site: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    install(site, "plugin-names", PLAIN, {name: "Plain"})
    with caplog.at_level(logging.WARNING, "remat"):
        assert dict(all_planners()) == dict(PLANNERS)
    said = "remat has a planner of its own of this name" if name == "rotor" else "a name consists of letters"
    assert [said in record.getMessage() for record in caplog.records] == [True]


def test_two_packages_with_one_name_are_both_refused(site: Path) -> None:
    install(site, "plugin-one", PLAIN, {"plain": "Plain"})
    install(site, "plugin-two", PLAIN, {"plain": "Plain"})
    with pytest.raises(
        UsageError, match=r"plugin-one 1\.2 and plugin-two 1\.2.*two packages have a planner of this name"
    ):
        planner_named("plain")


def test_no_entry_point_is_read_where_no_planner_of_another_package_is_asked_for() -> None:
    script = (
        "import sys, remat_cli.cli.plan; from remat_cli.config import named_planner\n"
        "named_planner('rotor').built, named_planner('auto').can_offload, named_planner('dtr').record\n"
        "assert 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
