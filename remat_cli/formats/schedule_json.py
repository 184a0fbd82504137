"""The schedule format, `remat.schedule/1`: writing what `solve` verified, and reading what anybody wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from remat_cli import __version__
from remat_cli.errors import ScheduleFileError
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.source import parse_json, read_bytes
from remat_cli.graph import Graph
from remat_cli.problem import Planner
from remat_cli.schedule import STEP_NAMES, Compute, Inplace, Schedule, Step
from remat_cli.solve import Solution

FORMAT = "remat.schedule/1"
_STEP_TYPES: Mapping[str, type[Step]] = {name: step_type for step_type, name in STEP_NAMES.items()}


def options_of(planner: Planner) -> dict[str, Any]:
    """Return a planner's options as JSON values, by name."""
    values = {item.name: getattr(planner, item.name) for item in fields(planner)}
    return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


def schedule_bytes(solution: Solution, mode: str, planner_name: str, planner: Planner) -> bytes:
    """Return the schedule file of a verified result: UTF-8, keys sorted, one step a line, nothing that varies.

    A result without a plan has no steps, peak, time or overhead; its status and reason say why.

    Args:
        solution: what `solve` verified.
        mode: "training" or "inference".
        planner_name: as in PLANNERS.
        planner: its options are recorded.
    """
    document = {key: _json(value) for key, value in _document(solution, mode, planner_name, planner).items()}
    if solution.result.schedule is not None:
        steps = ",\n".join(f"  {_json(_written(step))}" for step in solution.result.schedule.steps)
        document["steps"] = f"[\n{steps}\n ]"
    lines = ",\n".join(f" {_json(key)}: {document[key]}" for key in sorted(document))
    return f"{{\n{lines}\n}}\n".encode()


# One encoder for all steps: `json.dumps` would make one for each.
_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, sort_keys=True).encode


def _document(solution: Solution, mode: str, planner_name: str, planner: Planner) -> dict[str, Any]:
    graph, trace, result = solution.problem.graph, solution.trace, solution.result
    document: dict[str, Any] = {
        "format": FORMAT,
        "tool": {"name": "remat", "version": __version__},
        "graph": {
            "name": graph.name,
            "sha256": graph_sha256(graph),
            "kind": str(graph.kind),
            "ops": len(graph.ops),
            "mode": mode,
            **_structure(graph),
        },
        "planner": {"name": planner_name, "options": options_of(planner)},
        "status": str(result.status),
        "budget_bytes": solution.problem.budget.device_bytes,
        "baseline": {"peak_bytes": solution.baseline.peak_bytes, "time": solution.baseline.time},
    }
    if solution.bound_overhead is not None:
        document["bound"] = {
            "overhead": solution.bound_overhead,
            "scope": str(solution.scope),
            "basis": str(solution.basis),
        }
    if trace is None:
        return document | {"reason": result.reason, "scope": str(result.scope), "basis": str(result.basis)}
    return document | {
        "peak_bytes": trace.peak_bytes,
        "time": trace.time,
        "overhead": solution.overhead,
    }


def _structure(graph: Graph) -> dict[str, dict[str, str]]:
    """Return what whoever runs the plan recognises the graph by, where the graph says it."""
    signatures = {op.name: op.signature for op in graph.ops if op.signature is not None}
    return {"structure": signatures} if signatures else {}


def _written(step: Step) -> list[str]:
    return [STEP_NAMES[type(step)], step.op if isinstance(step, Compute | Inplace) else step.tensor]


@dataclass(frozen=True)
class ScheduleFile:
    """What a schedule file says; all but the steps may be missing in a file that something else wrote.

    Attributes:
        schedule: the steps.
        sha256: hash of the graph that it was made for.
        structure: signatures of that graph's ops by name; None where it says none.
        mode: "training" or "inference".
        planner: name of the planner.
        budget_bytes: the budget that it claims to fit.
        peak_bytes: the peak that it claims.
        time: the time that it claims.
    """

    schedule: Schedule
    sha256: str | None
    structure: Mapping[str, str] | None
    mode: str | None
    planner: str | None
    budget_bytes: int | None
    peak_bytes: int | None
    time: int | None


def read_schedule(path: Path) -> ScheduleFile:
    """Read a schedule file.

    Raises:
        ScheduleFileError: the file is missing, malformed, of an unknown version, or holds no plan.
    """
    document = parse_json(path, read_bytes(path, error=ScheduleFileError), error=ScheduleFileError)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise ScheduleFileError(
            f"{path}: unknown format {found!r}", hint=f'a schedule file has "format": {FORMAT!r}; is it another file?'
        )
    steps = document.get("steps")
    if steps is None:
        raise ScheduleFileError(
            f"{path}: holds no plan (status: {document.get('status', 'missing')})",
            hint="plan again with a larger budget",
        )
    if not isinstance(steps, list):
        raise ScheduleFileError(f"{path}: steps is not a list", hint='write steps as ["compute", "conv1"]')
    graph = _part(document, "graph", dict, path) or {}
    planner = _part(document, "planner", dict, path) or {}
    return ScheduleFile(
        schedule=Schedule(tuple(_step(item, f"{path}: steps[{i}]") for i, item in enumerate(steps))),
        sha256=_part(graph, "sha256", str, path),
        structure=_part(graph, "structure", dict, path),
        mode=_part(graph, "mode", str, path),
        planner=_part(planner, "name", str, path),
        budget_bytes=_part(document, "budget_bytes", int, path),
        peak_bytes=_part(document, "peak_bytes", int, path),
        time=_part(document, "time", int, path),
    )


def _part(document: Mapping[str, Any], key: str, kind: type, path: Path) -> Any:
    value = document.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ScheduleFileError(f"{path}: {key}: {value!r} is of the wrong type", hint="correct it, or leave it out")
    return value


def _step(item: Any, where: str) -> Step:
    if not isinstance(item, list) or len(item) != 2 or not all(isinstance(part, str) for part in item):
        raise ScheduleFileError(f"{where}: {item!r} is no step", hint='write it like ["compute", "conv1"]')
    if item[0] not in _STEP_TYPES:
        raise ScheduleFileError(f"{where}: unknown step {item[0]!r}", hint=f"use one of {', '.join(_STEP_TYPES)}")
    return _STEP_TYPES[item[0]](item[1])
