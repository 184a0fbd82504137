"""What pyproject.toml and the files of continuous integration say of the tree, held against the tree."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import remat_cli
from remat_cli.reports.terminal.planner_cards import planner_cards
from tests.golden.pages import name_of
from tests.places import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]


def test_every_package_is_listed() -> None:
    in_tree = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "remat_cli").rglob("__init__.py")}
    assert set(SETUPTOOLS["packages"]) == in_tree | set(SETUPTOOLS["package-dir"])


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "remat_cli").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_config_travels_in_the_package() -> None:
    configs = ROOT / SETUPTOOLS["package-dir"]["remat_cli.configs"]
    packed = {path for pattern in SETUPTOOLS["package-data"]["remat_cli.configs"] for path in configs.glob(pattern)}
    assert packed == set(configs.rglob("*.yaml"))


def test_every_file_that_is_neither_code_nor_page_travels_in_the_package() -> None:
    package = ROOT / "remat_cli"
    packed = {
        path
        for name, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*name.split(".")).glob(pattern)
    }
    # What Python and numba compile lies in `__pycache__`.
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in files if path.suffix not in (".py", ".md")} == packed


def test_every_python_that_is_named_is_checked() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8"))
    checked = workflow["jobs"]["check"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"]))
    assert checked == named
    assert PYPROJECT["project"]["requires-python"] == f">={checked[0]}"


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_the_version_stands_in_the_package_alone() -> None:
    assert "version" not in PYPROJECT["project"]
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert SETUPTOOLS["dynamic"]["version"] == {"attr": "remat_cli.__version__"}


def test_the_workflow_runs_every_release_of_torch_that_was_tested() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (default,) = re.findall(r"^DEFAULT_TORCH := (\S+)$", makefile, re.MULTILINE)
    source = (ROOT / "remat_cli/pytorch/unstable/versions.py").read_text(encoding="utf-8")
    (tested,) = re.findall(r"^TESTED_VERSIONS = (.*)$", source, re.MULTILINE)
    ran = [default, *workflow["jobs"]["torch"]["strategy"]["matrix"]["torch"]]
    releases = sorted(
        (version.rpartition(".")[0] for version in ran), key=lambda each: tuple(map(int, each.split(".")))
    )
    assert tuple(releases) == ast.literal_eval(tested)
    (declared,) = PYPROJECT["project"]["optional-dependencies"]["torch"]
    assert declared.startswith(f"torch>={releases[0]},")


def test_the_changes_begin_with_this_version() -> None:
    changes = (ROOT / ".github/CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## Version ([^:\s]+)", changes, re.MULTILINE)[0]
    assert newest == remat_cli.__version__


def test_the_citation_is_of_this_version_and_has_the_papers_of_all_planners() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == remat_cli.__version__
    assert citation["license"] == PYPROJECT["project"]["license"]
    sources = {card.name: card.facts["Source"] for card in planner_cards()}
    of_papers = {name for name, source in sources.items() if not source.startswith(("ours", "what every"))}
    cited = {
        name: reference
        for reference in citation["references"]
        for name in re.findall(r"\w+", reference["notes"].partition(" ")[2].partition(" ")[2].replace(" and ", " "))
    }
    assert of_papers == set(cited)
    assert [name for name, reference in cited.items() if reference["title"] not in sources[name]] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_commits(workflow: Path) -> None:
    used = re.findall(r"^\s*(?:- )?uses: (.*)$", workflow.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


# Where commands stand that no test runs.
AUTOMATION = [ROOT / ".ci/run", ROOT / ".pre-commit-config.yaml", *WORKFLOWS]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))


def of_the_matrix(workflow: str) -> str:
    """A workflow's text, with each line that names a value of its matrix once for each value."""
    lines = []
    for job in yaml.safe_load(workflow).get("jobs", {}).values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for run in (step["run"] for step in job["steps"] if "run" in step):
            values = [(f"${{{{ matrix.{name} }}}}", value) for name, each in matrix.items() for value in each]
            named = [run.replace(name, value) for name, value in values if name in run]
            lines += named or [run]
    return "\n".join(lines)


@pytest.mark.parametrize("path", AUTOMATION, ids=name_of)
def test_automation_makes_what_can_be_made(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    commands = of_the_matrix(text) if path in WORKFLOWS else text
    made = set(re.findall(r"(?:^|: )make ([\w-]+)", commands, re.MULTILINE))
    assert made
    assert made <= TARGETS
    given = {name for line in commands.splitlines() if "make " in line for name in re.findall(r" ([A-Z]+)=", line)}
    assert given <= set(re.findall(r"\$\(([A-Z]+)", MAKEFILE))


def test_targets_that_are_no_files_are_phony() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS


@pytest.mark.parametrize("path", [ROOT / "Makefile", *AUTOMATION], ids=name_of)
def test_automation_names_tests_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    files = {ROOT / name for name in re.findall(r"(?<![\w./])(?:tests|graphs|docs)/[\w./-]+", text)}
    modules = {ROOT.joinpath(*name.split(".")) for name in re.findall(r"(?:-m|import) (tests\.[\w.]+)", text)}
    missing = [file for file in files if not file.exists()]
    missing += [each for each in modules if not (each.with_suffix(".py").exists() or (each / "__main__.py").exists())]
    assert missing == []


def test_targets_install_extras_that_exist() -> None:
    extras = {name for names in re.findall(r"'\.\[([\w,]+)\]'", MAKEFILE) for name in names.split(",")}
    assert extras
    assert extras <= set(PYPROJECT["project"]["optional-dependencies"])
