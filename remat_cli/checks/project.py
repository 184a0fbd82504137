"""The project file of `remat check`: models and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from remat_cli.config import (
    Document,
    GraphOptions,
    PlannerChoice,
    Request,
    file_or_shipped,
    load_config,
    read_yaml,
    said_in,
    with_paths_from,
)
from remat_cli.errors import UsageError
from remat_cli.formats.functions import graph_next_to
from remat_cli.settings import Said, Settings, over, setting
from remat_cli.units import parse_bytes, parse_share

# A check must have the same result on every machine. So a planner whose search ends by counted work gets enough time
# for that work, and a fixed number of threads; the clock is there for a search that hangs. A planner that would search
# until the time is up gets a work limit, of about this many seconds.
_REPEATABLE: Mapping[str, object] = {"time_limit": 600.0, "cores": 1}
_WORK_LIMIT = 30.0


@dataclass(frozen=True)
class ModelCheck:
    """One line of a check: a model and its limits.

    None means no limit.

    Attributes:
        name: unique in the project.
        path: the model's file.
        line: line of the model in the project file.
        graph: options for reading the file.
        request: request for a plan; with a budget, the planner is asked if the plain run exceeds it.
        max_peak: bytes that the plan may need, or without a budget the plain run; of a PyTorch step eager's.
        max_regression: allowed growth since the baseline: of the plain peak as a share of the earlier peak, and of the
            overhead as a share of the plain run's time.
        execute: whether the plan, or without a budget the plain run, must run as predicted, in onnxruntime or in torch.
        files: files of the model.
        may_run_code: whether Python code named by `path` may run; otherwise the check of this model is an error.
    """

    name: str
    path: Path
    line: int
    graph: GraphOptions
    request: Request
    max_peak: int | None = None
    max_regression: Fraction | None = None
    execute: bool = False
    files: tuple[Path, ...] = ()
    may_run_code: bool = True


@dataclass(frozen=True)
class Project:
    """The content of a project file.

    Attributes:
        path: path of the project file.
        baseline: file of the figures to which `max_regression` compares.
        models: models in the order of the file.
    """

    path: Path
    baseline: Path
    models: tuple[ModelCheck, ...]


@dataclass(frozen=True)
class ModelLimits(Settings):
    """The limits of a model, besides those of its plan.

    None means no limit.

    Attributes:
        max_peak: as in `ModelCheck`.
        max_regression: likewise.
        execute: likewise.
    """

    max_peak: int | None = setting(
        None, "Bytes that the plan may need, or without a budget the plain run.", parse=parse_bytes, written=str | int
    )
    max_regression: Fraction | None = setting(
        None, "Allowed growth since the baseline.", parse=parse_share, written=str | float
    )
    execute: bool = setting(False, "The plan, or without a budget the plain run, must run as predicted.")


@dataclass(frozen=True)
class _Section:
    """A section's settings, which override outer ones, and the files that set them."""

    said: Said = field(default_factory=dict)
    sources: tuple[Path, ...] = ()


def load_project(
    path: Path, said: Said | None = None, *, called: Path | None = None, may_run_code: bool = True
) -> Project:
    """Read a project file.

    Paths in the file are relative to its folder.

    Args:
        path: path of the file.
        said: settings of all models, which override the file.
        called: the file's name and place, if its content was put elsewhere.
        may_run_code: as in `ModelCheck`, for all models.

    Raises:
        UsageError: the file is missing or no valid YAML, or a key or value is wrong; with file and line.
    """
    document = read_yaml(path, called)
    path = called or path
    kinds = {"models": list[Any], "defaults": dict[str, Any], "baseline": str}
    _, keys = said_in(document, more=kinds, required="models")
    if not keys["models"]:
        raise UsageError(f"{document.place(('models',))}: is empty", hint="list a model: '- path: model.onnx'")
    section = document.section("defaults", keys.get("defaults", {}))
    defaults, _ = _section(section, _Section(), path.parent)
    models: dict[str, ModelCheck] = {}
    entries = document.section("models", {})
    for index, entry in enumerate(keys["models"]):
        if not isinstance(entry, dict):
            raise UsageError(f"{document.place(('models', index))}: is no model", hint="write it like '- path: g.onnx'")
        line = document.lines[("models", index)]
        model = _model(entries.section(index, entry), line, defaults, said or {}, path.parent)
        if model.name in models:
            raise UsageError(
                f"{document.place(('models', index))}: the name {model.name!r} is taken by the model at line "
                f"{models[model.name].line}",
                hint="give one of them another 'name: ...'",
            )
        models[model.name] = replace(model, may_run_code=may_run_code)
    baseline = path.parent / keys["baseline"] if "baseline" in keys else path.with_suffix(".baseline.json")
    return Project(path, baseline, tuple(models.values()))


def _model(document: Document, line: int, defaults: _Section, above: Said, folder: Path) -> ModelCheck:
    here = replace(document, lines={**document.lines, (): line})
    section, keys = _section(here, defaults, folder, path=str, name=str)
    said = over(section.said, above)
    limits, request, graph = ModelLimits.of(said), Request.of(said), GraphOptions.of(said)
    name = keys.get("name") or Path(keys["path"]).stem
    if not name:
        raise UsageError(
            f"{here.place(('path',))}: {keys['path']!r} names no file", hint="write it like 'path: g.onnx'"
        )
    if request.budget is None and limits.max_peak is None and limits.max_regression is None:
        raise UsageError(
            f"{here.place(())}{name!r} is held to nothing",
            hint="give it a budget, a max_peak or a max_regression, or all models one under 'defaults'",
        )
    if document.values.get("max_overhead") is not None and request.budget is None:
        raise UsageError(f"{here.place(('max_overhead',))}: needs a budget", hint="add 'budget: 80%'")
    if document.values.get("execute") and request.budget is None and limits.max_peak is None:
        raise UsageError(f"{here.place(('execute',))}: needs a budget or a max_peak", hint="add 'budget: 80%'")
    planner = replace(_repeatable(request.chosen), source=str(document.source))
    request = replace(request, planner=planner)
    # Without a budget there is no plan, and so nothing to offload.
    (request if request.budget is not None else replace(request, offload=False)).check(here.place(()))
    model = graph_next_to(folder, keys["path"])
    return ModelCheck(
        name=name,
        path=model,
        line=line,
        graph=graph,
        request=request,
        max_peak=limits.max_peak,
        max_regression=limits.max_regression,
        execute=limits.execute,
        files=(model, *section.sources, *graph.files),
    )


def _section(document: Document, below: _Section, folder: Path, **more: type) -> tuple[_Section, dict[str, Any]]:
    """Merge a section over its config file, and both over `below`.

    Also return the section's other keys.
    """
    said, keys = said_in(document, Request, GraphOptions, ModelLimits, more={"config": str, **more}, required="path")
    sources = below.sources
    if "config" in keys:
        config = load_config(file_or_shipped(folder, keys["config"]))
        said, sources = over(config.said, said), (*sources, *config.sources)
    said = over(below.said, with_paths_from(said, folder))
    budget = said.get("budget")
    if budget is not None and budget.smallest:
        raise UsageError(
            f"{document.place(('budget',))}: a check needs a budget of a fixed size",
            hint="write it like 8GB, 80% or 60% of activations",
        )
    return _Section(said, sources), keys


def _repeatable(choice: PlannerChoice) -> PlannerChoice:
    """Return the planner with limits that do not depend on the clock.

    Given limits stay.
    """
    if not choice.has("work_limit") or "time_limit" in choice.options or "work_limit" in choice.options:
        return choice
    work = {} if choice.has("patience") else {"work_limit": _WORK_LIMIT}
    return replace(choice, options={**_REPEATABLE, **work, **choice.options})
