"""Who may import whom: modules import downwards, and each heavy library has one home."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.places import ROOT

# Lowest first. A module imports from its own layer and from those below.
LAYERS = (
    (
        "remat_cli",
        "remat_cli.errors",
        "remat_cli.settings",
        "remat_cli.units",
        "remat_cli.machine",
        "remat_cli.pytorch",
    ),
    (
        "remat_cli.core",
        "remat_cli.core.graph",
        "remat_cli.core.link",
        "remat_cli.core.operators",
        "remat_cli.core.buffers",
        "remat_cli.core.schedule",
        "remat_cli.core.allocator",
    ),
    ("remat_cli.core.problem", "remat_cli.pytorch.unstable"),
    ("remat_cli.core.simulate", "remat_cli.core.arena", "remat_cli.core.bounds"),
    ("remat_cli.core.solve",),
    ("remat_cli.splitting",),
    ("remat_cli.formats", "remat_cli.training", "remat_cli.costs", "remat_cli.generate", "remat_cli.planners"),
    ("remat_cli.config",),
    ("remat_cli.pytorch.capture",),
    ("remat_cli.prepare", "remat_cli.synthesis"),
    ("remat_cli.allocation",),
    ("remat_cli.planning",),
    ("remat_cli.pytorch.memory",),
    ("remat_cli.pytorch.update",),
    ("remat_cli.studies", "remat_cli.pipelines"),
    ("remat_cli.pytorch.programs",),
    ("remat_cli.pytorch.plan",),
    ("remat_cli.pytorch.run", "remat_cli.pytorch.checkpoints"),
    ("remat_cli.runtime",),
    ("remat_cli.torch",),
    ("remat_cli.checks",),
    ("remat_cli.api",),
    ("remat_cli.batch",),
    ("remat_cli.reports",),
    ("remat_cli.testing",),
    ("remat_cli.cli",),
    ("remat_cli.__main__",),
)
# Packages in which things multiply: of one layer, and yet closed to each other.
ROOMS = LAYERS[6]

# Within planners: what is shared is below the methods, and these below the portfolio.
PLANNER_LAYERS = (
    ("remat_cli.planners.shared",),
    (
        "remat_cli.planners.keep_all",
        "remat_cli.planners.annealing",
        "remat_cli.planners.dtr",
        "remat_cli.planners.min_cut",
        "remat_cli.planners.offload",
        "remat_cli.planners.pofo",
        "remat_cli.planners.published.acg",
        "remat_cli.planners.published.checkmate",
        "remat_cli.planners.published.lower_sets",
        "remat_cli.planners.published.moccasin",
        "remat_cli.planners.retention",
        "remat_cli.planners.rotor",
        "remat_cli.planners.shortest_path",
    ),
    ("remat_cli.planners.published",),
    ("remat_cli.planners.auto",),
    ("remat_cli.planners",),
    ("remat_cli.planners.plugins",),
)
METHODS = PLANNER_LAYERS[1]
# A method that builds on another: pofo prices a block by rotor's table, retention starts from min_cut's plans, offload
# prices min_cut's cuts, at the moments that retention's bound looks at, annealing mends by min_cut's cuts.
BUILDS_ON = {
    "remat_cli.planners.annealing": ("remat_cli.planners.min_cut",),
    "remat_cli.planners.offload": ("remat_cli.planners.min_cut", "remat_cli.planners.retention"),
    "remat_cli.planners.pofo": ("remat_cli.planners.rotor",),
    "remat_cli.planners.retention": ("remat_cli.planners.min_cut",),
}

HOMES = {
    "click": ("remat_cli.cli", "remat_cli.__main__", "remat_cli.testing.__main__"),
    "hypothesis": ("remat_cli.testing",),
    "rich": ("remat_cli.reports", "remat_cli.cli"),
    "onnx": ("remat_cli.formats.onnx", "remat_cli.runtime.onnx"),
    "onnxruntime": ("remat_cli.runtime.onnx",),
    "torch": ("remat_cli.pytorch",),
    "google": ("remat_cli.formats.onnx",),
    "ortools": ("remat_cli.planners",),
    "pulp": ("remat_cli.planners",),
    "pydantic": ("remat_cli.config",),
    "pydantic_core": ("remat_cli.formats",),
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
    "torch",
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "remat_cli").rglob("*.py"))}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imports_of(module: str) -> frozenset[str]:
    """Return what `module` imports, its functions included: modules of ours by their full name, others as written."""
    return frozenset(name for node in ast.walk(tree_of(module)) for name in _imported(node))


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


def layer_of(module: str, layers: Sequence[Sequence[str]] = LAYERS) -> int:
    """Return the number of the layer that a module is in: by the longest name, as a package is no home to all in it."""
    homes = {home: number for number, layer in enumerate(layers) for home in layer if is_in(module, home)}
    assert homes, f"{module} has no layer"
    home = max(homes, key=len)
    packages = ("remat_cli", "remat_cli.core", "remat_cli.planners", "remat_cli.pytorch")
    assert home not in packages or home == module, f"{module} has no layer"
    return homes[home]


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_downwards(module: str) -> None:
    of_ours = imports_of(module) & MODULES.keys()
    # The planners have layers of their own; among the others they are one.
    ours = _without_planners(module)
    assert {name for name in of_ours if layer_of(_without_planners(name)) > layer_of(ours)} == set()


def _without_planners(module: str) -> str:
    return "remat_cli.planners" if is_in(module, "remat_cli.planners") else module


@pytest.mark.parametrize("module", [module for module in MODULES if is_in(module, "remat_cli.planners")])
def test_planners_import_downwards(module: str) -> None:
    inside = {name for name in imports_of(module) & MODULES.keys() if is_in(name, "remat_cli.planners")}
    own = layer_of(module, PLANNER_LAYERS)
    assert {name for name in inside if layer_of(name, PLANNER_LAYERS) > own} == set()


@pytest.mark.parametrize("method", METHODS)
def test_methods_do_not_import_each_other(method: str) -> None:
    allowed = BUILDS_ON.get(method, ())
    others = [other for other in METHODS if other != method and other not in allowed]
    imported = {name for module in MODULES if is_in(module, method) for name in imports_of(module)}
    assert {name for name in imported if any(is_in(name, other) for other in others)} == set()


def test_no_planner_judges_itself() -> None:
    judges = {m for m in MODULES if is_in(m, "remat_cli.planners") and "remat_cli.core.solve" in imports_of(m)}
    assert judges == set()


def test_only_solve_and_planners_that_ask_others_call_planners() -> None:
    callers = {
        module
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "plan"
    }
    others = {module for module in callers if not is_in(module, "remat_cli.planners.auto")}
    assert others == {"remat_cli.core.solve", "remat_cli.planning.whole_step", "remat_cli.testing.contract"}


def callers_of(name: str) -> set[str]:
    """Return the modules that call something of this name."""
    return {
        module
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    }


def test_one_module_sets_up_cp_sat() -> None:
    # Its settings keep CP-SAT from wrong proofs.
    assert callers_of("CpSolver") == {"remat_cli.planners.shared.cp_sat"}


@pytest.mark.parametrize("name", ["Problem", "solve"])
def test_plans_are_made_in_one_room(name: str) -> None:
    # The contract tests try planners on problems of their own.
    homes = ("remat_cli.planning", "remat_cli.testing")
    assert {module for module in callers_of(name) if not any(is_in(module, home) for home in homes)} == set()


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


def test_no_circle_of_imports() -> None:
    # What functions import counts, too. A package's __init__ runs before its modules, and may name them: that is no
    # circle.
    edges = {
        module: {name for name in imports_of(module) if name in MODULES and not is_in(module, name)}
        for module in MODULES
    }
    TopologicalSorter(edges).prepare()


@pytest.mark.parametrize("method", [*METHODS, "remat_cli.planners.auto"])
def test_room_of_a_planner_does_not_import_the_planner(method: str) -> None:
    room = [module for module in MODULES if is_in(module, method)]
    assert {module for module in room if f"{method}.planner" in imports_of(module)} == set()


def test_nothing_builds_on_the_published_methods() -> None:
    published = "remat_cli.planners.published"
    outside = [module for module in MODULES if not is_in(module, published)]
    using = {module for module in outside if any(is_in(name, published) for name in imports_of(module))}
    # The table of planners names them, and a report of `acg` shows the tree that its graph divides into.
    assert using == {"remat_cli.planners", "remat_cli.reports.terminal.division"}


@pytest.mark.parametrize("library", HOMES)
def test_library_is_used_only_at_home(library: str) -> None:
    strangers = [
        module
        for module in MODULES
        if any(is_in(name, library) for name in imports_of(module))
        and not any(is_in(module, home) for home in HOMES[library])
    ]
    assert strangers == []


@pytest.mark.parametrize("module", ["remat_cli.cli", "remat_cli.__main__", "remat_cli.planning"])
def test_main_path_starts_without_heavy_libraries(module: str) -> None:
    script = f"import sys, {module}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []


def test_no_public_class_name_stands_twice() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


UNSTABLE = "remat_cli.pytorch.unstable"
# Below these names stand ops of torch, some of which begin with an underscore and are as public as the others.
OPS = ("torch.ops", "_aten")


@pytest.mark.parametrize("module", [m for m in MODULES if is_in(m, "remat_cli.pytorch") and not is_in(m, UNSTABLE)])
def test_private_parts_of_torch_are_used_in_one_room(module: str) -> None:
    imported = imports_of(module) - MODULES.keys() - {"__future__"}
    private = {name for name in imported if "._" in f".{name}" or ".experimental." in name}
    taken = {
        ast.unparse(node)
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in our_names() and not ast.unparse(node).startswith(OPS)
    }
    assert private | (taken - {"sys._getframe"}) == set()


@cache
def our_names() -> frozenset[str]:
    """Return all names that remat gives to functions, classes and attributes, outside of the room for torch's."""
    return frozenset(name for module in MODULES if not is_in(module, UNSTABLE) for name in _defined(tree_of(module)))


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
