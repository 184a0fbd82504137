"""What pyproject.toml says of the tree, held against the tree."""

from __future__ import annotations

import tomllib

from tests.places import ROOT

SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


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
