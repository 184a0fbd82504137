"""The manifest of a batch: a YAML file of graphs, budgets and configs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remat_cli.batch.requests import JobGroup, NoSuchFile, matching_files
from remat_cli.config import (
    Document,
    GraphOptions,
    Request,
    RunConfig,
    beside,
    checked,
    load_config,
    placed,
    placed_share,
    planner_section,
    read_yaml,
)
from remat_cli.core.arena import USUAL_ALIGNMENT
from remat_cli.errors import RematError, UsageError
from remat_cli.units import BudgetSpec, parse_budget


@dataclass(frozen=True)
class _Keys(GraphOptions):
    """Keys that stand at the top, for all graphs, or with one of them, where they win."""

    budgets: list[str | int] = field(default_factory=list)
    configs: list[str | dict[str, Any]] = field(default_factory=list)
    max_overhead: str | float | None = None
    offload: bool = False
    arena: bool = False
    alignment: int = USUAL_ALIGNMENT


@dataclass(frozen=True)
class _Top(_Keys):
    graphs: list[str | dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry(_Keys):
    path: str = ""


def load_manifest(path: Path, called: Path | None = None) -> list[JobGroup]:
    """Read a manifest. Paths in it are relative to its folder.

    Args:
        path: of the file.
        called: what it is called, and lies beside, where its content was put elsewhere.

    Raises:
        UsageError: the file is missing or no valid YAML, or a key or value is wrong; with file and line.
    """
    document = read_yaml(path, called)
    path = called or path
    top = checked(_Top, document)
    if not top.graphs:
        raise UsageError(f"{document.place(('graphs',))}: names no graph", hint="write it like 'graphs: [model.onnx]'")
    whole = _group(top, document, path.parent)
    return [_entry(whole, item, index, document, path.parent) for index, item in enumerate(top.graphs)]


def _entry(whole: JobGroup, item: str | dict[str, Any], index: int, document: Document, folder: Path) -> JobGroup:
    values = {"path": item} if isinstance(item, str) else item
    part = document.section("graphs", {}).section(index, values)
    entry = checked(_Entry, part)
    if not entry.path:
        raise UsageError(f"{part.place(('path',))}: is missing", hint="write it like 'path: model.onnx'")
    said = _group(entry, part, folder)
    try:
        graphs = matching_files(entry.path, folder)
    except NoSuchFile:
        graphs = (folder / entry.path,)  # which its jobs will find, and be recorded as any other fault is
    except RematError as error:
        raise UsageError(f"{part.place(('path',))}: {error.message}", hint=error.remedy) from None
    return JobGroup(
        graphs,
        whole.options.under(said.options),
        said.budgets or whole.budgets,
        said.configs or whole.configs,
        whole.request.under(said.request),
        frozenset(whole.options.dims.keys() - said.options.dims.keys()),
    )


def _group(raw: _Keys, document: Document, folder: Path) -> JobGroup:
    return JobGroup(
        graphs=(),
        options=GraphOptions.of(raw).beside(folder),
        budgets=tuple(_budget(text, index, document) for index, text in enumerate(raw.budgets)),
        configs=tuple(_config(config, index, document, folder) for index, config in enumerate(raw.configs)),
        request=Request(
            max_overhead=placed_share(raw.max_overhead, document),
            offload=raw.offload,
            arena=raw.arena,
            alignment=raw.alignment,
        ),
    )


def _budget(text: str | int, index: int, document: Document) -> BudgetSpec:
    return placed(document, ("budgets", index), lambda: parse_budget(str(text)))


def _config(config: str | dict[str, Any], index: int, document: Document, folder: Path) -> RunConfig:
    """Return the config that a name, a file, or a planner with options stands for."""
    if isinstance(config, str):
        return placed(document, ("configs", index), lambda: load_config(beside(folder, config)))
    part = document.section("configs", {}).section(index, config)
    # As it would stand in a config file.
    lines = {("planner", *path): line for path, line in part.lines.items()}
    choice = planner_section(config, Document({"planner": config}, part.source, lines))
    assert choice is not None
    said = (f"{key}={value}" for key, value in choice.options.items())
    return RunConfig(" ".join((choice.name, *said)), Request(planner=choice))
