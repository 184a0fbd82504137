"""The schedule format, `remat.schedule/1`: writing and reading.

Written results are verified by `solve`; a file to read may come from anybody.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, cast

from remat_cli import __version__
from remat_cli.core.allocator import CudaAllocator, parse_allocator
from remat_cli.core.arena import Address, Arena, Bank
from remat_cli.core.graph import Graph
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Scope
from remat_cli.core.schedule import STEP_NAMES, Compute, Inplace, Schedule, Step
from remat_cli.core.solve import Solution
from remat_cli.errors import GraphError, ScheduleFileError, UsageError
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.source import Source, parse_json, read_bytes
from remat_cli.splitting import Split, read_cuts

FORMAT = "remat.schedule/1"
# The whole numbers and names in a file on graph and plan, by place, with their types.
FIGURES: Mapping[str, type] = {
    "graph.name": str,
    "graph.kind": str,
    "graph.ops": int,
    "baseline.peak_bytes": int,
    "baseline.time": int,
    "peak_bytes": int,
    "time": int,
}
# Far larger than any size, time or share, and well within the range of arithmetic and reports.
_LARGEST = 10**100
# A rate: whole numbers above 0, far longer than any real one.
_RATE = re.compile(r"[1-9]\d{0,99}(/[1-9]\d{0,99})?", re.ASCII)
_STEP_TYPES: Mapping[str, type[Step]] = {name: step_type for step_type, name in STEP_NAMES.items()}


def schedule_bytes(
    solution: Solution,
    mode: str,
    planner: Mapping[str, object],
    read_with: Mapping[str, object] | None = None,
    *,
    estimated: bool = False,
) -> bytes:
    """Return the schedule file of a verified result.

    The file is UTF-8 with sorted keys and one step per line, the same bytes every time. A result without a plan has no
    steps, peak, time or overhead; its status and reason say why.

    Args:
        solution: the verified result.
        mode: "training" or "inference".
        planner: name and options of the planner, as JSON values, and its package, if it is another one.
        read_with: options other than the mode for reading the graph, for `verify`, `apply` and `report`.
        estimated: whether sizes of the graph are estimates, so that the peak may be higher.
    """
    graph = _graph_section(solution.problem.graph, mode, read_with or {}) | ({"estimated": True} if estimated else {})
    asked = {**planner} | ({"offload": True} if solution.problem.offload else {})
    document = _document(solution, graph, asked)
    if solution.result.schedule is not None:
        document["steps"] = solution.result.schedule.steps
        if solution.result.schedule.on_host:
            document["on_host"] = sorted(solution.result.schedule.on_host)
    if solution.arena is not None:
        document["arena"] = arena_fields(solution.arena)
    return _file_bytes(document)


def with_arena(path: Path, arena: Arena) -> bytes:
    """Return a schedule file with this arena instead of its own.

    Raises:
        ScheduleFileError: the file is missing or malformed.
    """
    return _file_bytes({**_document_in(path), "arena": arena_fields(arena)})


def arena_fields(arena: Arena) -> dict[str, Any]:
    """Return the JSON fields of an arena."""
    offsets = [
        [address.step, address.tensor, address.offset, *(() if address.bank is None else (address.bank,))]
        for address in arena.addresses
    ]
    banks = [{"name": bank.name, "bytes": bank.bytes, "speed": str(bank.speed)} for bank in arena.banks]
    return {"bytes": arena.bytes, "alignment": arena.alignment, "offsets": offsets} | (
        {"banks": banks} if banks else {}
    )


def _file_bytes(document: Mapping[str, Any]) -> bytes:
    """Write a file with sorted keys, one step and one address per line.

    Steps are lists, as in JSON, or `Step`s.
    """
    texts = {key: _json(value) for key, value in document.items() if key not in ("steps", "arena")}
    if "steps" in document:
        texts["steps"] = _lines(document["steps"])
    if "arena" in document:
        arena = document["arena"]
        others = [f'"{key}": {_json(arena[key])}' for key in ("alignment", "banks", "bytes") if key in arena]
        texts["arena"] = f'{{{", ".join(others)}, "offsets": {_lines(arena["offsets"])}}}'
    lines = ",\n".join(f" {_json(key)}: {texts[key]}" for key in sorted(texts))
    return f"{{\n{lines}\n}}\n".encode()


def _lines(items: Iterable[Any]) -> str:
    lines = ",\n".join(f"  {_line(item)}" for item in items)
    return f"[\n{lines}\n ]"


def _line(item: Any) -> str:
    # A text is encoded directly; a list would need a new encoder, and there are millions of steps.
    if type(item) is list:
        return f"[{', '.join([_text(part) if type(part) is str else _json(part) for part in item])}]"
    name = STEP_NAMES.get(type(item))
    if name is None:
        return _json(item)
    return f'["{name}", {_text(item.op if isinstance(item, (Compute, Inplace)) else item.tensor)}]'


def link_fields(link: Link) -> dict[str, str]:
    """Return the JSON fields of a link.

    Its rate is an exact fraction, as text.
    """
    return {"bytes_per_time": str(link.bytes_per_time), "duplex": link.duplex.value}


def scope_fields(scope: Scope) -> dict[str, Any]:
    """Return the JSON fields of a scope.

    These are its name and, if it covers plans with transfers, a mark.
    """
    return {"scope": scope.written} | ({"transfers": True} if scope is Scope.ANY_PLAN else {})


def scope_columns(scope: Scope) -> dict[str, Any]:
    """Return the fields of a scope for a flat record.

    Every field is present, under a name that stands alone.
    """
    return {"scope": scope.written, "scope_transfers": scope is Scope.ANY_PLAN}


# One encoder for all steps: `json.dumps` would create one for each.
_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, sort_keys=True).encode
_text: Callable[[str], str] = encode_basestring  # the encoder's function for a text


def _graph_section(graph: Graph, mode: str, read_with: Mapping[str, object]) -> dict[str, Any]:
    return {
        "name": graph.name,
        "sha256": graph_sha256(graph),
        "kind": str(graph.kind),
        "ops": len(graph.ops),
        "mode": mode,
        "options": dict(read_with),
        **_structure(graph),
    }


def _document(solution: Solution, graph: Mapping[str, Any], planner: Mapping[str, object]) -> dict[str, Any]:
    trace, result = solution.trace, solution.result
    document: dict[str, Any] = {
        "format": FORMAT,
        "tool": {"name": "remat", "version": __version__},
        "graph": graph,
        "planner": planner,
        "status": str(result.status),
        "budget_bytes": solution.problem.budget.device_bytes,
        "baseline": {"peak_bytes": solution.baseline.peak_bytes, "time": solution.baseline.time},
    }
    if solution.bound_overhead is not None:
        document["bound"] = {
            "overhead": solution.bound_overhead,
            **scope_fields(solution.scope),
            "basis": str(solution.basis),
        }
    if trace is None:
        return document | {"reason": result.reason, **scope_fields(result.scope), "basis": str(result.basis)}
    if trace.transfers and solution.problem.link is not None:
        document["link"] = link_fields(solution.problem.link)
    if solution.reserved is not None:
        document["reserved"] = {"allocator": str(solution.reserved.allocator), "bytes": solution.reserved.bytes}
    return document | {
        "peak_bytes": trace.peak_bytes,
        "time": trace.time,
        "overhead": solution.overhead,
    }


def _structure(graph: Graph) -> dict[str, dict[str, str]]:
    """Return the signatures by which a runtime recognises the graph, if any."""
    signatures = {op.name: op.signature for op in graph.ops if op.signature is not None}
    return {"structure": signatures} if signatures else {}


@dataclass(frozen=True)
class ScheduleFile:
    """The content of a schedule file.

    Every field except the steps is None if the file lacks it.

    Attributes:
        schedule: the steps.
        sha256: hash of the schedule's graph.
        structure: signatures of the graph's ops by name.
        mode: "training" or "inference".
        read_with: further options for reading the graph, by name, as in the file: not checked yet.
        planner: name of the planner.
        package: name and version of the package that the planner comes from; None for remat's own.
        status: how the planner's run ended.
        budget_bytes: the budget that the plan fits.
        overhead: overhead of the plan, as a share of the plain run's time.
        bound_overhead: lower bound on the overhead of plans in `bound_scope`.
        bound_scope: as in `Scope`.
        bound_transfers: whether that scope includes plans with transfers.
        bound_basis: as in `Basis`.
        link: link of the plan's transfers.
        arena: addresses of the plan.
        allocator: allocator that serves the plan.
        reserved_bytes: bytes that it reserves for the plan.
        figures: further whole numbers and names, by place in the file ("baseline.time"), as in `FIGURES`.
    """

    schedule: Schedule
    sha256: str | None
    structure: Mapping[str, str] | None
    mode: str | None
    read_with: Mapping[str, Any] | None
    planner: str | None
    package: str | None
    status: str | None
    budget_bytes: int | None
    overhead: float | None
    bound_overhead: float | None
    bound_scope: str | None
    bound_transfers: bool | None
    bound_basis: str | None
    link: Link | None
    arena: Arena | None
    allocator: CudaAllocator | None
    reserved_bytes: int | None
    figures: Mapping[str, int | str]

    @property
    def cuts(self) -> dict[str, Split]:
        """Cuts of the schedule's graph, by the name of an op.

        Raises:
            UsageError: one is not understood.
        """
        return read_cuts((self.read_with or {}).get("parts") or {})


def holds_schedule(path: Path) -> bool:
    """Tell whether a file declares itself a schedule.

    A missing or broken file does not.
    """
    try:
        return Source(path).document.get("format") == FORMAT
    except GraphError:
        return False


def read_schedule(path: Path) -> ScheduleFile:
    """Read a schedule file.

    Raises:
        ScheduleFileError: the file is missing, malformed, of an unknown version, or holds no plan.
    """
    return _schedule_in(_document_in(path), path)


def schedule_in(document: Mapping[str, Any], path: Path) -> ScheduleFile:
    """Return the content of a parsed schedule file.

    Args:
        document: the parsed file, or such a part of another file.
        path: path of the file, for messages.

    Raises:
        ScheduleFileError: the document is malformed, of an unknown version, or holds no plan.
    """
    _check_format(document, path)
    return _schedule_in(document, path)


def _schedule_in(document: Mapping[str, Any], path: Path) -> ScheduleFile:
    """Return the content of a document of the right format."""
    steps = document.get("steps")
    if steps is None:
        raise ScheduleFileError(
            f"{path}: holds no plan (status: {document.get('status', 'missing')})",
            hint="plan again with a larger budget",
        )
    if not isinstance(steps, list):
        raise ScheduleFileError(f"{path}: steps is not a list", hint='write steps as ["compute", "conv1"]')
    figures = {place: _said(document, place, kind, path) for place, kind in FIGURES.items()}
    return ScheduleFile(
        schedule=Schedule(
            tuple(step_in(item, f"{path}: steps[{i}]") for i, item in enumerate(steps)), _on_host(document, path)
        ),
        sha256=_said(document, "graph.sha256", str, path),
        structure=_said(document, "graph.structure", dict, path),
        mode=_said(document, "graph.mode", str, path),
        read_with=_said(document, "graph.options", dict, path),
        planner=_said(document, "planner.name", str, path),
        package=_said(document, "planner.package", str, path),
        status=_said(document, "status", str, path),
        budget_bytes=_said(document, "budget_bytes", int, path),
        overhead=_said(document, "overhead", float, path),
        bound_overhead=_said(document, "bound.overhead", float, path),
        bound_scope=_said(document, "bound.scope", str, path),
        bound_transfers=_said(document, "bound.transfers", bool, path),
        bound_basis=_said(document, "bound.basis", str, path),
        link=_link(document, path),
        arena=_arena(document, path),
        allocator=_allocator(document, path),
        reserved_bytes=_said(document, "reserved.bytes", int, path),
        figures={place: value for place, value in figures.items() if value is not None},
    )


def _document_in(path: Path) -> dict[str, Any]:
    document = parse_json(path, read_bytes(path, error=ScheduleFileError), error=ScheduleFileError)
    _check_format(document, path)
    return cast(dict[str, Any], document)


def _check_format(document: Any, path: Path) -> None:
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return
    version = document.get("format") if isinstance(document, dict) else None
    raise ScheduleFileError(
        f"{path}: unknown format {version!r}", hint=f'a schedule file has "format": {FORMAT!r}; is it another file?'
    )


def _arena(document: Mapping[str, Any], path: Path) -> Arena | None:
    if document.get("arena") is None:
        return None
    size, alignment = (_said(document, f"arena.{key}", int, path) for key in ("bytes", "alignment"))
    offsets = _said(document, "arena.offsets", list, path)
    if size is None or alignment is None or offsets is None or size < 0 or alignment < 1:
        raise ScheduleFileError(
            f"{path}: arena: needs bytes of at least 0, an alignment of at least 1, and offsets",
            hint='write it like {"bytes": 4096, "alignment": 64, "offsets": [[0, "y", 0]]}, or leave it out',
        )
    banks = _said(document, "arena.banks", list, path) or []
    return Arena(
        size,
        alignment,
        tuple(_address(item, f"{path}: arena.offsets[{i}]") for i, item in enumerate(offsets)),
        tuple(_bank(item, f"{path}: arena.banks[{i}]") for i, item in enumerate(banks)),
    )


def _on_host(document: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    names = _said(document, "on_host", list, path) or []
    if not all(isinstance(name, str) for name in names):
        raise ScheduleFileError(
            f"{path}: on_host: {_short(names)} is no list of names", hint="name residents of the graph, or leave it out"
        )
    return tuple(dict.fromkeys(names))


def _allocator(document: Mapping[str, Any], path: Path) -> CudaAllocator | None:
    text = _said(document, "reserved.allocator", str, path)
    if text is None and document.get("reserved") is not None:
        raise ScheduleFileError(
            f"{path}: reserved names no allocator", hint='write "allocator": "cuda", or leave it out'
        )
    try:
        return None if text is None else parse_allocator(text)
    except UsageError as error:
        raise ScheduleFileError(f"{path}: reserved.allocator: {error.message}", hint=error.remedy) from None


def _address(item: Any, where: str) -> Address:
    if isinstance(item, list) and len(item) in (3, 4) and isinstance(item[1], str | None):
        numbers = item[0], item[2]
        is_text = all(isinstance(name, str) for name in item[3:])
        if is_text and all(type(number) is int and abs(number) <= _LARGEST for number in numbers):
            return Address(item[0], item[1], item[2], *item[3:])
    raise ScheduleFileError(
        f"{where}: {_short(item)} is no address",
        hint='write it like [3, "y", 4096]: step, tensor, offset, and the bank where there are some; null in place of '
        "the tensor is the op's workspace",
    )


def _bank(item: Any, where: str) -> Bank:
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        size, speed = item.get("bytes"), item.get("speed")
        if type(size) is int and 0 < size <= _LARGEST and isinstance(speed, str) and _RATE.fullmatch(speed):
            return Bank(item["name"], size, Fraction(speed))
    raise ScheduleFileError(
        f"{where}: {_short(item)} is no bank",
        hint='write it like {"name": "sram", "bytes": 524288, "speed": "1"}; a speed may be a fraction, such as "2/5"',
    )


def _link(document: Mapping[str, Any], path: Path) -> Link | None:
    rate, duplex = (_said(document, f"link.{key}", str, path) for key in ("bytes_per_time", "duplex"))
    if rate is None and duplex is None:
        return None
    if rate is None or not _RATE.fullmatch(rate):
        raise ScheduleFileError(
            f"{path}: link.bytes_per_time: {_short(rate)} is no rate", hint='write a fraction above 0, such as "16/5"'
        )
    if duplex not in list(Duplex):
        raise ScheduleFileError(
            f"{path}: link.duplex: {_short(duplex)} is not known", hint=f"use one of {', '.join(Duplex)}"
        )
    return Link(Fraction(rate), Duplex(duplex))


def _said(document: Mapping[str, Any], place: str, kind: type, path: Path) -> Any:
    """Return the value at a place such as "baseline.time", or None.

    Raises:
        ScheduleFileError: the value is of another type, or too large a number.
    """
    section, _, key = place.rpartition(".")
    values = _said(document, section, dict, path) or {} if section else document
    value = values.get(key)
    if value is None:
        return None
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, kinds) or isinstance(value, bool) is not (kind is bool):
        problem = "is of the wrong type"
    elif isinstance(value, int | float) and abs(value) > _LARGEST:
        problem = "is too large"
    else:
        return value
    raise ScheduleFileError(f"{path}: {place}: {_short(value)} {problem}", hint="correct it, or leave it out")


def _short(value: Any, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def step_in(item: Any, where: str) -> Step:
    """Return a step of a parsed file.

    Raises:
        ScheduleFileError: it is malformed; the message begins with `where`.
    """
    if not isinstance(item, list) or len(item) != 2 or not all(isinstance(part, str) for part in item):
        raise ScheduleFileError(f"{where}: {item!r} is no step", hint='write it like ["compute", "conv1"]')
    if item[0] not in _STEP_TYPES:
        raise ScheduleFileError(f"{where}: unknown step {item[0]!r}", hint=f"use one of {', '.join(_STEP_TYPES)}")
    return _STEP_TYPES[item[0]](item[1])
