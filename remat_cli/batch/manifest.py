"""The manifest of a batch: a YAML file of graphs, budgets and configs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remat_cli.batch.requests import Request, matching_files
from remat_cli.config import (
    Document,
    GraphOptions,
    RunConfig,
    beside,
    checked,
    load_config,
    placed,
    planner_section,
    read_yaml,
)
from remat_cli.errors import RematError, UsageError
from remat_cli.units import BudgetSpec, parse_budget, parse_share


@dataclass(frozen=True)
class _Keys(GraphOptions):
    """Keys that stand at the top, for all graphs, or with one of them, where they win."""

    budgets: list[str | int] = field(default_factory=list)
    configs: list[str | dict[str, Any]] = field(default_factory=list)
    max_overhead: str | float | None = None


@dataclass(frozen=True)
class _Top(_Keys):
    graphs: list[str | dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry(_Keys):
    path: str = ""


def load_manifest(path: Path) -> list[Request]:
    """Read a manifest. Paths in it are relative to its folder.

    Raises:
        UsageError: the file is missing or no valid YAML, or a key or value is wrong; with file and line.
    """
    document = read_yaml(path)
    top = checked(_Top, document)
    if not top.graphs:
        raise UsageError(f"{document.place(('graphs',))}: names no graph", hint="write it like 'graphs: [model.onnx]'")
    whole = _request(top, document, path.parent)
    return [_entry(whole, item, index, document, path.parent) for index, item in enumerate(top.graphs)]


def _entry(whole: Request, item: str | dict[str, Any], index: int, document: Document, folder: Path) -> Request:
    values = {"path": item} if isinstance(item, str) else item
    part = document.section("graphs", {}).section(index, values)
    entry = checked(_Entry, part)
    if not entry.path:
        raise UsageError(f"{part.place(('path',))}: is missing", hint="write it like 'path: model.onnx'")
    said = _request(entry, part, folder)
    try:
        graphs = matching_files(entry.path, folder)
    except RematError as error:
        raise UsageError(f"{part.place(('path',))}: {error.message}", hint=error.remedy) from None
    return Request(
        graphs,
        whole.options.under(said.options),
        said.budgets or whole.budgets,
        said.configs or whole.configs,
        whole.max_overhead if said.max_overhead is None else said.max_overhead,
    )


def _request(raw: _Keys, document: Document, folder: Path) -> Request:
    overhead = raw.max_overhead
    return Request(
        graphs=(),
        options=GraphOptions.of(raw).beside(folder),
        budgets=tuple(_budget(text, index, document) for index, text in enumerate(raw.budgets)),
        configs=tuple(_config(config, index, document, folder) for index, config in enumerate(raw.configs)),
        max_overhead=None
        if overhead is None
        else placed(document, ("max_overhead",), lambda: parse_share(str(overhead))),
    )


def _budget(text: str | int, index: int, document: Document) -> BudgetSpec:
    return placed(document, ("budgets", index), lambda: parse_budget(str(text)))


def _config(config: str | dict[str, Any], index: int, document: Document, folder: Path) -> RunConfig:
    """Return the config that a name or file, or a planner with options, stands for."""
    if isinstance(config, str):
        return placed(document, ("configs", index), lambda: load_config(beside(folder, config)))
    part = document.section("configs", {}).section(index, config)
    # As it would stand in a config file.
    lines = {("planner", *path): line for path, line in part.lines.items()}
    choice = planner_section(config, Document({"planner": config}, part.source, lines))
    assert choice is not None
    said = (f"{key}={value}" for key, value in choice.options.items())
    return RunConfig(" ".join((choice.name, *said)), choice)
