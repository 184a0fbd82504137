"""The format of plans by blocks, `remat.blocks/1`: schedules of one step's blocks.

A file names each call of a block with its schedule. Equal blocks share schedules, each of which is a document of the
format `remat.schedule/1` for the graph of one block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remat_cli import __version__
from remat_cli.errors import GraphError, ScheduleFileError
from remat_cli.formats.schedule_json import ScheduleFile, schedule_in
from remat_cli.formats.source import Source, parse_json, read_bytes

FORMAT = "remat.blocks/1"
_FIGURES = ("budget_bytes", "peak_bytes", "other_bytes")
_HINT = "write it again: plan_of(model).save(...) after a call of a model that is planned by blocks"


@dataclass(frozen=True)
class BlockPlan:
    """The plan of one call of a block.

    Attributes:
        schedule: key of its schedule.
        input_on_host: its input is on the host between its passes.
        saved_on_host: its saved tensors are.
    """

    schedule: str
    input_on_host: bool = False
    saved_on_host: bool = False


@dataclass(frozen=True)
class BlocksFile:
    """The plans of a step by blocks.

    Attributes:
        path: path of the file.
        fused: inductor's kernels run the plans.
        budget_bytes: budget of the step.
        peak_bytes: predicted peak of the step.
        other_bytes: bytes of the optimizer's state and of free memory within the peak.
        blocks: plans by the name of the call.
        schedules: schedules by key.
    """

    path: Path
    fused: bool
    budget_bytes: int
    peak_bytes: int
    other_bytes: int
    blocks: Mapping[str, BlockPlan]
    schedules: Mapping[str, ScheduleFile]

    @property
    def offloads(self) -> bool:
        """Whether any block's tensors are on the host between its passes."""
        return any(block.input_on_host or block.saved_on_host for block in self.blocks.values())


def holds_blocks(path: Path) -> bool:
    """Tell whether a file declares itself plans by blocks.

    A missing or broken file does not.
    """
    try:
        return Source(path).document.get("format") == FORMAT
    except GraphError:
        return False


def blocks_bytes(
    blocks: Mapping[str, BlockPlan],
    schedules: Mapping[str, bytes],
    *,
    fused: bool,
    budget_bytes: int,
    peak_bytes: int,
    other_bytes: int,
) -> bytes:
    """Return the file of plans by blocks, UTF-8 with a step on each line.

    Arguments are the attributes of `BlocksFile`; each schedule is the content of a schedule file.
    """
    head = {
        "format": FORMAT,
        "tool": {"name": "remat", "version": __version__},
        "kernels": "fused" if fused else "eager",
        "budget_bytes": budget_bytes,
        "peak_bytes": peak_bytes,
        "other_bytes": other_bytes,
    }
    lines = [f" {_json(key)}: {_json(value)}" for key, value in head.items()]
    named = _joined(f"  {_json(name)}: {_json(asdict(plan))}" for name, plan in blocks.items())
    lines.append(f' "blocks": {{\n{named}\n }}')
    texts = _joined(f" {_json(key)}: {content.decode().rstrip()}" for key, content in schedules.items())
    lines.append(f' "schedules": {{\n{texts}\n }}')
    return f"{{\n{_joined(lines)}\n}}\n".encode()


def read_blocks(path: Path) -> BlocksFile:
    """Read a file of plans by blocks.

    Raises:
        ScheduleFileError: the file is missing, malformed, or of an unknown version; the message names the block.
    """
    document = parse_json(path, read_bytes(path, error=ScheduleFileError), error=ScheduleFileError)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        version = document.get("format") if isinstance(document, dict) else None
        raise ScheduleFileError(
            f"{path}: unknown format {version!r}", hint=f'a file of plans by blocks has "format": {FORMAT!r}'
        )
    for name in _FIGURES:
        value = document.get(name)
        if type(value) is not int or value < 0:
            raise ScheduleFileError(f"{path}: {name}: {value!r} is no number of bytes", hint=_HINT)
    if document.get("kernels") not in ("eager", "fused"):
        raise ScheduleFileError(f"{path}: kernels: {document.get('kernels')!r} is neither eager nor fused", hint=_HINT)
    blocks, schedules = (_mapping(document, name, path) for name in ("blocks", "schedules"))
    read = {key: _schedule(key, given, path) for key, given in schedules.items()}
    plans = {name: _block(name, given, read, path) for name, given in blocks.items()}
    return BlocksFile(
        path,
        fused=document["kernels"] == "fused",
        budget_bytes=document["budget_bytes"],
        peak_bytes=document["peak_bytes"],
        other_bytes=document["other_bytes"],
        blocks=plans,
        schedules=read,
    )


def _mapping(document: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict) or not value:
        raise ScheduleFileError(f"{path}: {name} is no object with entries", hint=_HINT)
    return value


def _schedule(key: str, given: Any, path: Path) -> ScheduleFile:
    try:
        file = schedule_in(given, path)
    except ScheduleFileError as error:
        raise ScheduleFileError(f"schedule {key!r} of {error.message}", hint=error.hint or _HINT) from None
    if file.structure is None:
        raise ScheduleFileError(f"{path}: schedule {key!r} does not say which graph it is for", hint=_HINT)
    return file


def _block(name: str, given: Any, schedules: Mapping[str, ScheduleFile], path: Path) -> BlockPlan:
    plan = given if isinstance(given, dict) else {}
    key, is_hosted = plan.get("schedule"), [plan.get(name, False) for name in ("input_on_host", "saved_on_host")]
    if not isinstance(key, str) or key not in schedules or any(not isinstance(each, bool) for each in is_hosted):
        raise ScheduleFileError(f"{path}: block {name!r} names none of the schedules in the file", hint=_HINT)
    return BlockPlan(key, *is_hosted)


def _joined(lines: Any) -> str:
    return ",\n".join(lines)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
