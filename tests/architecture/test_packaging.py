"""What pyproject.toml and the files of continuous integration say of the tree, held against the tree."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

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
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc", ".md")}
    assert others == packed


def test_every_python_that_is_named_is_checked() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8"))
    checked = workflow["jobs"]["check"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"]))
    assert checked == named
    assert PYPROJECT["project"]["requires-python"] == f">={checked[0]}"


@pytest.mark.parametrize("name", [".ci/run", ".github/workflows/check.yml", ".pre-commit-config.yaml"])
def test_automation_makes_what_can_be_made(name: str) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    made = set(re.findall(r"(?:^|: )make (\w+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
    assert made
    assert made <= targets
