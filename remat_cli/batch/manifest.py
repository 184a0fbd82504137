"""The manifest of a batch: a YAML file of graphs, budgets and configs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remat_cli.batch.requests import JobGroup, NoSuchFile, matching_files
from remat_cli.config import (
    Document,
    GraphOptions,
    Request,
    RunConfig,
    file_or_shipped,
    load_config,
    placed,
    planner_section,
    read_yaml,
    said_in,
    with_paths_from,
)
from remat_cli.errors import RematError, UsageError
from remat_cli.settings import over
from remat_cli.units import BudgetSpec, parse_budget

# Keys that stand at the top, for all graphs, or with one of them, where they win. They take the place of the settings
# `budget` and `planner`.
_KEYS: Mapping[str, Any] = {"budgets": list[str | int], "configs": list[str | dict[str, Any]]}
_INSTEAD = ("budget", "planner")


def load_manifest(path: Path, called: Path | None = None) -> list[JobGroup]:
    """Read a manifest; its paths are relative to its folder.

    Args:
        path: path of the file.
        called: the file's own path, if `path` holds a copy of its content.

    Raises:
        UsageError: the file is missing or no valid YAML, or a key or value is wrong; with file and line.
    """
    document = read_yaml(path, called)
    path = called or path
    whole, more = _group(document, path.parent, {"graphs": list[str | dict[str, Any]]})
    graphs = more.get("graphs")
    if not graphs:
        raise UsageError(f"{document.place(('graphs',))}: names no graph", hint="write it like 'graphs: [model.onnx]'")
    return [_entry(whole, item, index, document, path.parent) for index, item in enumerate(graphs)]


def _entry(whole: JobGroup, item: str | dict[str, Any], index: int, document: Document, folder: Path) -> JobGroup:
    values = {"path": item} if isinstance(item, str) else item
    part = document.section("graphs", {}).section(index, values)
    own, more = _group(part, folder, {"path": str})
    name = more.get("path")
    if not name:
        raise UsageError(f"{part.place(('path',))}: is missing", hint="write it like 'path: model.onnx'")
    try:
        graphs = matching_files(name, folder)
    except NoSuchFile:
        graphs = (folder / name,)  # which its jobs will find, and be recorded as any other fault is
    except RematError as error:
        raise UsageError(f"{part.place(('path',))}: {error.message}", hint=error.remedy) from None
    return JobGroup(
        graphs,
        over(whole.said, own.said),
        own.budgets or whole.budgets,
        own.configs or whole.configs,
        frozenset(whole.said.get("dims", {}).keys() - own.said.get("dims", {}).keys()),
    )


def _group(document: Document, folder: Path, more: Mapping[str, Any]) -> tuple[JobGroup, dict[str, Any]]:
    """Return the jobs of a section, and its other keys' values."""
    said, others = said_in(document, Request, GraphOptions, more={**_KEYS, **more}, without=_INSTEAD)
    group = JobGroup(
        graphs=(),
        said=with_paths_from(said, folder),
        budgets=tuple(_budget(text, index, document) for index, text in enumerate(others.get("budgets", ()))),
        configs=tuple(
            _config(config, index, document, folder) for index, config in enumerate(others.get("configs", ()))
        ),
    )
    return group, others


def _budget(text: str | int, index: int, document: Document) -> BudgetSpec:
    return placed(document, ("budgets", index), lambda: parse_budget(str(text)))


def _config(config: str | dict[str, Any], index: int, document: Document, folder: Path) -> RunConfig:
    """Return the config for a name, a file, or a planner with options."""
    if isinstance(config, str):
        return placed(document, ("configs", index), lambda: load_config(file_or_shipped(folder, config)))
    part = document.section("configs", {}).section(index, config)
    # As it would stand in a config file.
    lines = {("planner", *path): line for path, line in part.lines.items()}
    choice = planner_section(config, Document({"planner": config}, part.source, lines))
    assert choice is not None
    said = (f"{key}={value}" for key, value in choice.options.items())
    return RunConfig(" ".join((choice.name, *said)), {"planner": choice})
