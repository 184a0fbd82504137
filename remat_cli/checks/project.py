"""A project file: which models `remat check` holds to which limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from remat_cli.config import (
    Document,
    GraphOptions,
    PlannerChoice,
    Request,
    RequestKeys,
    RunConfig,
    beside,
    checked,
    load_config,
    placed,
    read_yaml,
)
from remat_cli.errors import UsageError
from remat_cli.formats.torch import graph_beside
from remat_cli.units import parse_bytes, parse_share

Parsed = TypeVar("Parsed")

# A check must come out the same on every machine. So a planner whose search ends by counted work is not given less time
# than that takes, and a fixed number of threads; the clock is there for a search that hangs. One that would search
# until the time is up is given an end by work, of about as many seconds.
_REPEATABLE: Mapping[str, object] = {"time_limit": 600.0, "cores": 1}
_WORK_LIMIT = 30.0


@dataclass(frozen=True)
class ModelCheck:
    """One line of a check: a model and its limits; None stands for no limit.

    Attributes:
        name: unique in the project.
        path: the model's file.
        line: where it stands in the project file.
        graph: how the file is read.
        request: the plan that is required, if it names a budget; the planner is asked if the plain run exceeds it.
        max_peak: bytes that the plan may need, or without a budget the plain run.
        max_regression: allowed growth since the baseline: of the plain run's peak as a share of the earlier peak, and
            of the overhead as a share of the plain run's time.
        execute: the plan, or without a budget the plain run, must run as predicted: in onnxruntime, or in torch.
        files: from which it is read.
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


@dataclass(frozen=True)
class Project:
    """What a project file says.

    Attributes:
        path: of the project file.
        baseline: the file of the figures to which `max_regression` compares.
        models: in the order of the file.
    """

    path: Path
    baseline: Path
    models: tuple[ModelCheck, ...]


@dataclass(frozen=True)
class _ProjectFile:
    """The keys of a project file, as YAML gives them."""

    models: list[Any]
    defaults: dict[str, Any] = field(default_factory=dict)
    baseline: str | None = None


@dataclass(frozen=True)
class _Defaults(RequestKeys, GraphOptions):
    """The keys under `defaults`, as YAML gives them."""

    config: str | None = None
    max_peak: str | int | None = None
    max_regression: str | float | None = None
    execute: bool | None = None


@dataclass(frozen=True, kw_only=True)
class _Model(_Defaults):
    """The keys of one model, as YAML gives them."""

    path: str
    name: str | None = None


@dataclass(frozen=True)
class _ModelLimits:
    """What was said of a model, by the file's defaults, a config file or the model itself."""

    run: RunConfig = field(default_factory=RunConfig)
    max_peak: int | None = None
    max_regression: Fraction | None = None
    execute: bool | None = None


def load_project(path: Path, *, offload: bool = False, called: Path | None = None) -> Project:
    """Read a project file. Paths in it are relative to the folder that it lies in.

    Args:
        path: of the file.
        called: what it is called, and lies beside, where its content was put elsewhere.
        offload: plans of all models may move tensors to the host, whatever the file says.

    Raises:
        UsageError: the file is missing or no valid YAML, or a key or value is wrong; with file and line.
    """
    document = read_yaml(path, called)
    path = called or path
    raw = checked(_ProjectFile, document)
    if not raw.models:
        raise UsageError(f"{document.place(('models',))}: is empty", hint="list a model: '- path: model.onnx'")
    section = document.section("defaults", raw.defaults)
    whole = _ModelLimits(RunConfig(request=Request(offload=offload)))
    defaults = _limits(checked(_Defaults, section), section, whole, path.parent)
    models: dict[str, ModelCheck] = {}
    entries = document.section("models", {})
    for index, entry in enumerate(raw.models):
        if not isinstance(entry, dict):
            raise UsageError(f"{document.place(('models', index))}: is no model", hint="write it like '- path: g.onnx'")
        line = document.lines[("models", index)]
        model = _model(entries.section(index, entry), line, defaults, path.parent)
        if model.name in models:
            raise UsageError(
                f"{document.place(('models', index))}: the name {model.name!r} is taken by the model at line "
                f"{models[model.name].line}",
                hint="give one of them another 'name: ...'",
            )
        models[model.name] = model
    baseline = path.with_suffix(".baseline.json") if raw.baseline is None else path.parent / raw.baseline
    return Project(path, baseline, tuple(models.values()))


def _model(document: Document, line: int, defaults: _ModelLimits, folder: Path) -> ModelCheck:
    here = replace(document, lines={**document.lines, (): line})
    raw = checked(_Model, here)
    limits = _limits(raw, here, defaults, folder)
    name = raw.name or Path(raw.path).stem
    run, budget = limits.run, limits.run.request.budget
    if not name:
        raise UsageError(f"{here.place(('path',))}: {raw.path!r} names no file", hint="write it like 'path: g.onnx'")
    if budget is None and limits.max_peak is None and limits.max_regression is None:
        raise UsageError(
            f"{here.place(())}{name!r} is held to nothing",
            hint="give it a budget, a max_peak or a max_regression, or all models one under 'defaults'",
        )
    if raw.max_overhead is not None and budget is None:
        raise UsageError(f"{here.place(('max_overhead',))}: needs a budget", hint="add 'budget: 80%'")
    if raw.execute and budget is None and limits.max_peak is None:
        raise UsageError(f"{here.place(('execute',))}: needs a budget or a max_peak", hint="add 'budget: 80%'")
    planner = replace(_repeatable(run.request.chosen), source=str(document.source))
    request = replace(run.request, planner=planner)
    # Without a budget nothing has to be planned, and so nothing to offload.
    (request if budget is not None else replace(request, offload=False)).check(here.place(()))
    model, graph = graph_beside(folder, raw.path), run.graph.beside(folder)
    return ModelCheck(
        name=name,
        path=model,
        line=line,
        graph=graph,
        request=request,
        max_peak=limits.max_peak,
        max_regression=limits.max_regression,
        execute=bool(limits.execute),
        files=(model, *run.sources, *graph.files),
    )


def _limits(raw: _Defaults, document: Document, below: _ModelLimits, folder: Path) -> _ModelLimits:
    """Put what a section says on top of its config file, and that on top of what holds without it."""
    run = RunConfig(request=raw.request(document), graph=GraphOptions.of(raw))
    base = below.run
    if raw.config is not None:
        base = _over(load_config(beside(folder, raw.config)), base)
    run = _over(run, base)
    budget = run.request.budget
    if budget is not None and budget.smallest:
        raise UsageError(
            f"{document.place(('budget',))}: a check needs a budget of a fixed size",
            hint="write it like 8GB, 80% or 60% of activations",
        )
    return _ModelLimits(
        run=run,
        max_peak=_parsed(document, "max_peak", raw.max_peak, parse_bytes, else_=below.max_peak),
        max_regression=_parsed(document, "max_regression", raw.max_regression, parse_share, else_=below.max_regression),
        execute=below.execute if raw.execute is None else raw.execute,
    )


def _parsed(
    document: Document,
    key: str,
    value: str | float | None,
    parse: Callable[[str], Parsed],
    *,
    else_: Parsed | None = None,
) -> Parsed | None:
    return else_ if value is None else placed(document, (key,), lambda: parse(str(value)))


def _over(top: RunConfig, base: RunConfig) -> RunConfig:
    """Return `base` with everything that `top` says in its place; dims and shapes are put together."""
    return replace(
        base,
        request=base.request.under(top.request),
        graph=base.graph.under(top.graph),
        sources=(*base.sources, *top.sources),
    )


def _repeatable(choice: PlannerChoice) -> PlannerChoice:
    """Return the planner with limits that the clock has no part in, where none were given."""
    if not choice.has("work_limit") or "time_limit" in choice.options or "work_limit" in choice.options:
        return choice
    work = {} if choice.has("patience") else {"work_limit": _WORK_LIMIT}
    return replace(choice, options={**_REPEATABLE, **work, **choice.options})
