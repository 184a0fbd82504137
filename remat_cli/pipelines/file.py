"""The pipeline format, `remat.pipeline/1`: writing and reading."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from remat_cli import __version__
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import STEP_NAMES, Compute, Inplace, Schedule, Step
from remat_cli.errors import GraphError, InvalidSchedule, ScheduleFileError
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.schedule_json import step_in
from remat_cli.formats.source import Source, parse_json, read_bytes
from remat_cli.pipelines.chunks import JobKind, Residents, StageCuts, cut_graph
from remat_cli.pipelines.jobs import Pipeline, RankJob
from remat_cli.pipelines.planner import PipelinePlanning

FORMAT = "remat.pipeline/1"
_LARGEST = 2**62
_JOB = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})", re.ASCII)


@dataclass(frozen=True)
class PipelineFile:
    """The content of a pipeline file.

    Attributes:
        sha256: hash of the graph of one microbatch.
        mode: "training".
        read_with: further options for reading the graph, as in the file: not checked yet.
        cuts: where the graph is cut.
        rank_of: [chunks] rank of each chunk.
        microbatches: number of microbatches.
        orders: [ranks] jobs of each rank.
        schedules: schedule of each chunk and microbatch.
        bytes_per_time: rate between two ranks; None if transfers take no time.
        budgets: [ranks] budget of each rank, in bytes.
        makespan: as the file says; in the graph's time unit.
        peaks: [ranks] as the file says, in bytes.
    """

    sha256: str
    mode: str
    read_with: Mapping[str, Any]
    cuts: StageCuts
    rank_of: tuple[int, ...]
    microbatches: int
    orders: tuple[tuple[RankJob, ...], ...]
    schedules: Mapping[tuple[int, int], Schedule]
    bytes_per_time: Fraction | None
    budgets: tuple[int, ...]
    makespan: int
    peaks: tuple[int, ...]

    def pipeline(self, graph: Graph, residents: Residents) -> Pipeline:
        """Return the pipeline of this file on its graph.

        Raises:
            GraphError: the file was made for another graph.
            InvalidSchedule: see `on`.
        """
        if graph_sha256(graph) != self.sha256:
            raise GraphError(
                f"the pipeline was made for another graph than {graph.name!r} with these options (sha256 differs)",
                hint="give the graph that was planned, with the options of then",
            )
        return self.on(graph, residents)

    def on(self, graph: Graph, residents: Residents) -> Pipeline:
        """Return the pipeline of this file on a graph with the same ops, which may have other times.

        Raises:
            InvalidSchedule: a chunk has no rank or no schedule.
            UsageError: the graph cannot be cut so.
        """
        chunks = cut_graph(graph, self.cuts, residents)
        if len(self.rank_of) != len(chunks) or not set(self.rank_of) <= set(range(len(self.orders))):
            raise InvalidSchedule(
                f"rank_of names ranks of {len(self.rank_of)} chunks, and the cuts make {len(chunks)}",
                hint="give each chunk one of the ranks that have an order",
            )
        missing = [(c.index, i) for c in chunks for i in range(self.microbatches) if (c.index, i) not in self.schedules]
        if missing:
            raise InvalidSchedule(
                f"chunk {missing[0][0]} has no plan for microbatch {missing[0][1]}", hint="list it in plans"
            )
        return Pipeline(chunks, self.rank_of, self.microbatches, self.orders, self.schedules, self.bytes_per_time)


def pipeline_bytes(planning: PipelinePlanning) -> bytes:
    """Return the pipeline file of a verified plan: UTF-8, sorted keys, the same bytes every time."""
    pipeline, replay, prepared = planning.pipeline, planning.replay, planning.prepared
    assert pipeline is not None, "there is a plan"
    assert replay is not None, "there is a plan"
    microbatches_of: dict[tuple[int, int], list[int]] = {}
    for (chunk, i), schedule in sorted(pipeline.schedules.items(), key=lambda item: item[0]):
        microbatches_of.setdefault((chunk, id(schedule)), []).append(i)
    plans = [
        {
            "chunk": chunk,
            "microbatches": microbatches,
            "steps": [_written(step) for step in pipeline.schedules[chunk, microbatches[0]].steps],
        }
        for (chunk, _), microbatches in microbatches_of.items()
    ]
    document = {
        "format": FORMAT,
        "tool": {"name": "remat", "version": __version__},
        "graph": {
            "name": prepared.graph.name,
            "sha256": graph_sha256(prepared.graph),
            "mode": prepared.mode,
            "options": dict(prepared.options.recorded),
        },
        "cuts": list(planning.cuts.first_ops),
        "split_backward": planning.cuts.split_backward,
        "rank_of": list(pipeline.rank_of),
        "microbatches": pipeline.microbatches,
        "orders": [[job.text for job in order] for order in pipeline.orders],
        "plans": plans,
        "budgets_bytes": list(planning.budgets),
        "peaks_bytes": list(replay.peaks),
        "makespan": replay.makespan,
        "bound": planning.bound,
        "status": str(planning.status),
    } | ({} if pipeline.bytes_per_time is None else {"bytes_per_time": str(pipeline.bytes_per_time)})
    lines = ",\n".join(f" {json.dumps(key)}: {_text(key, document[key])}" for key in sorted(document))
    return f"{{\n{lines}\n}}\n".encode()


def _text(key: str, value: Any) -> str:
    if key in ("plans", "orders"):
        rows = ",\n".join(f"  {json.dumps(item, ensure_ascii=False, sort_keys=True)}" for item in value)
        return f"[\n{rows}\n ]"
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _written(step: Step) -> list[str]:
    return [STEP_NAMES[type(step)], step.op if isinstance(step, Compute | Inplace) else step.tensor]


def holds_pipeline(path: Path) -> bool:
    """Tell whether a file declares itself a pipeline; a missing or broken file does not."""
    try:
        return Source(path).is_json and Source(path).document.get("format") == FORMAT
    except GraphError:
        return False


def read_pipeline(path: Path) -> PipelineFile:
    """Read a pipeline file.

    Raises:
        ScheduleFileError: the file is missing, malformed, or of an unknown version.
    """
    document = parse_json(path, read_bytes(path, error=ScheduleFileError), error=ScheduleFileError)
    fields = _Fields(document, path)
    graph = _Fields(fields.value("graph", dict), path, "graph.")
    schedules: dict[tuple[int, int], Schedule] = {}
    for number, plan in enumerate(fields.value("plans", list)):
        where = f"plans[{number}]."
        item = _Fields(plan, path, where)
        steps = item.value("steps", list)
        schedule = Schedule(tuple(step_in(step, f"{path}: {where}steps[{at}]") for at, step in enumerate(steps)))
        chunk = item.value("chunk", int)
        schedules.update({(chunk, i): schedule for i in item.list_of("microbatches", int)})
    rate = document.get("bytes_per_time")
    return PipelineFile(
        sha256=graph.value("sha256", str),
        mode=graph.value("mode", str),
        read_with=graph.value("options", dict),
        cuts=StageCuts(
            first_ops=tuple(fields.list_of("cuts", str)),
            split_backward=fields.value("split_backward", bool) if "split_backward" in document else False,
        ),
        rank_of=tuple(fields.list_of("rank_of", int)),
        microbatches=fields.value("microbatches", int),
        orders=tuple(tuple(_job(text, path) for text in order) for order in fields.list_of("orders", list)),
        schedules=schedules,
        bytes_per_time=None if rate is None else _rate(rate, path),
        budgets=tuple(fields.list_of("budgets_bytes", int)),
        makespan=fields.value("makespan", int),
        peaks=tuple(fields.list_of("peaks_bytes", int)),
    )


@dataclass(frozen=True)
class _Fields:
    """The fields of a part of a file, checked as they are read."""

    document: Any
    path: Path
    place: str = ""

    def value(self, name: str, kind: type) -> Any:
        """Return a field of this type."""
        value: Any = self.document.get(name) if isinstance(self.document, dict) else None
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < _LARGEST):
            raise ScheduleFileError(
                f"{self.path}: {self.place}{name} is missing or is no {_WORDS[kind]}",
                hint="plan again, or write it as remat_cli/pipelines/README.md says",
            )
        return value

    def list_of(self, name: str, kind: type) -> list[Any]:
        """Return a list of values of this type."""
        values = self.value(name, list)
        place = f"{self.place}{name}"
        return [_Fields({place: value}, self.path).value(place, kind) for value in values]


_WORDS = {str: "text", int: "whole number", list: "list", dict: "object", bool: "truth value"}


def _job(text: Any, path: Path) -> RankJob:
    parts = _JOB.fullmatch(text) if isinstance(text, str) else None
    if parts is None:
        raise ScheduleFileError(f"{path}: {text!r} is no job", hint="write it like 1F0: chunk, pass, microbatch")
    return RankJob(int(parts[1]), int(parts[3]), JobKind(parts[2]))


def _rate(text: Any, path: Path) -> Fraction:
    if not isinstance(text, str) or not re.fullmatch(r"[1-9]\d{0,30}(/[1-9]\d{0,30})?", text, re.ASCII):
        raise ScheduleFileError(f"{path}: bytes_per_time {text!r} is no rate", hint="write it like 12 or 25/2")
    return Fraction(text)
