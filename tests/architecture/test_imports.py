"""Who may import whom: modules import downwards, and each heavy library has one home."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from remat_cli.planners import PLANNERS

ROOT = Path(__file__).parents[2]

# Lowest first. A module imports from its own layer and from those below.
LAYERS = (
    ("remat_cli", "remat_cli.errors", "remat_cli.units", "remat_cli.cores"),
    ("remat_cli.graph", "remat_cli.operators", "remat_cli.schedule"),
    ("remat_cli.problem",),
    ("remat_cli.simulate", "remat_cli.bounds"),
    ("remat_cli.readers", "remat_cli.training", "remat_cli.costs", "remat_cli.generate", "remat_cli.planners"),
    ("remat_cli.solve", "remat_cli.config"),
    (
        "remat_cli.prepare",
        "remat_cli.synthesis",
        "remat_cli.budget_search",
        "remat_cli.progress",
        "remat_cli.sweep",
        "remat_cli.fit",
        "remat_cli.project",
        "remat_cli.baseline",
        "remat_cli.advice",
        "remat_cli.check",
    ),
    ("remat_cli.runtime",),
    ("remat_cli.reports",),
    # Each job writes a schedule as a report does, and has its line in the results.
    ("remat_cli.batch",),
    ("remat_cli.cli",),
    ("remat_cli.__main__",),
)
# Packages in which things multiply: of one layer, and yet closed to each other.
ROOMS = LAYERS[4]

HOMES = {
    "click": ("remat_cli.cli", "remat_cli.__main__"),
    "rich": ("remat_cli.reports", "remat_cli.cli"),
    "onnx": ("remat_cli.readers.onnx", "remat_cli.runtime"),
    "onnxruntime": ("remat_cli.runtime",),
    "google": ("remat_cli.readers.onnx",),
    "ortools": (
        "remat_cli.planners.cp_sat",
        "remat_cli.planners.moccasin",
        "remat_cli.planners.neighbourhoods",
        "remat_cli.planners.retention",
    ),
    "pulp": ("remat_cli.planners.checkmate",),
    "pydantic": ("remat_cli.config",),
    "yaml": ("remat_cli.config",),
    "matplotlib": ("remat_cli.reports.plot",),
    "distributed": ("remat_cli.batch.cluster",),
    "dask": ("remat_cli.batch.cluster",),
}
HEAVY = (
    "distributed",
    "google",
    "matplotlib",
    "networkx",
    "numpy",
    "onnx",
    "onnxruntime",
    "ortools",
    "pulp",
    "pydantic",
    "rich",
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "remat_cli").rglob("*.py"))}


def imports_of(module: str) -> set[str]:
    """Return what `module` imports, wherever in its file: modules of ours by their full name, others as written."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return {name for node in ast.walk(tree) for name in _imported(node)}


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module is not None, "imports are written in full, not relative"  # noqa: PT018
        for alias in node.names:
            inside = f"{node.module}.{alias.name}"
            yield inside if inside in MODULES else node.module


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def layer_of(module: str) -> int:
    # The root package is a layer by itself, not home to all the others.
    found = [number for number, layer in enumerate(LAYERS) if any(is_in(module, p) for p in layer if p != "remat_cli")]
    return found[0] if found else 0


def test_every_module_has_a_layer() -> None:
    homes = [package for layer in LAYERS for package in layer]
    homeless = [m for m in MODULES if m != "remat_cli" and not any(is_in(m, p) for p in homes if p != "remat_cli")]
    assert homeless == []


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_downwards(module: str) -> None:
    upwards = {name for name in imports_of(module) if name in MODULES and layer_of(name) > layer_of(module)}
    assert upwards == set()


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_no_other_room(room: str) -> None:
    others = {
        name
        for module in MODULES
        if is_in(module, room)
        for name in imports_of(module)
        if any(is_in(name, other) for other in ROOMS if other != room)
    }
    assert others == set()


def test_planners_do_not_import_each_other() -> None:
    homes = {planner.__module__ for planner in PLANNERS.values()}
    assert {module: imports_of(module) & homes for module in homes} == {module: set() for module in homes}


def test_no_circle_of_imports() -> None:
    # A package's __init__ runs before its modules, and may name them: that is no circle.
    edges = {
        module: {name for name in imports_of(module) if name in MODULES and not is_in(module, name)}
        for module in MODULES
    }
    TopologicalSorter(edges).prepare()


@pytest.mark.parametrize("library", HOMES)
def test_library_is_used_only_at_home(library: str) -> None:
    strangers = [
        module
        for module in MODULES
        if any(is_in(name, library) for name in imports_of(module))
        and not any(is_in(module, home) for home in HOMES[library])
    ]
    assert strangers == []


@pytest.mark.parametrize("module", ["remat_cli.cli", "remat_cli.__main__"])
def test_command_line_starts_without_heavy_libraries(module: str) -> None:
    script = f"import sys, {module}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
