"""tests/unit mirrors the tree: who looks for the tests of a planner's module finds them in the folder of its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import MODULES, mirror_of, planted_modules
from tests.places import ROOT

UNIT = ROOT / "tests" / "unit"
PLANNERS = [
    path.relative_to(ROOT / "remat_cli")
    for path in sorted((ROOT / "remat_cli" / "planners").rglob("*.py"))
    if path.name != "__init__.py"
]


@cache
def imported_by(test: Path) -> frozenset[str]:
    return frozenset(_imports(ast.parse(test.read_text(encoding="utf-8"))))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", PLANNERS, ids=str)
def test_module_of_a_planner_has_a_unit_test_that_names_it(path: Path) -> None:
    folder = UNIT / path.parent
    module = ".".join(("remat_cli", *path.with_suffix("").parts))
    naming = [test for test in folder.glob("test_*.py") if module in imported_by(test)]
    assert naming or (folder / f"test_{path.name}").exists()


def test_faults_are_planted_where_there_are_tests() -> None:
    modules = list(planted_modules(MODULES))
    assert len(modules) > 20
    assert {mirror_of(module) for module in modules if not (ROOT / mirror_of(module)).is_dir()} == set()


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in UNIT.rglob("test_*.py")}), ids=lambda each: each.name
)
def test_folder_of_unit_tests_mirrors_one_of_the_tree(folder: Path) -> None:
    assert (ROOT / "remat_cli" / folder.relative_to(UNIT)).is_dir()
