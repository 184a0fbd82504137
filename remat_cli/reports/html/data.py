"""Runs for the HTML report, as compact JSON for its script.

Ops, tensors and moments are numbered; growing lists are written as differences. 10,000 ops take about 2 MB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.core.graph import Graph, Phase, Tensor
from remat_cli.core.schedule import Compute, Inplace
from remat_cli.core.simulate import Transfer
from remat_cli.pipelines.judge import RanJob
from remat_cli.reports.html.lifetimes import Doing, Stay, Story
from remat_cli.reports.safe_text import clean, shorten
from remat_cli.reports.transfers import queues

_LONGEST_NAME = 120
_LONGEST_TYPE = 40


def script_data(stories: Mapping[str, Story], budget_bytes: int | None) -> str:
    """Return runs as JSON for a `<script>` element.

    The plain run of a step in parts is of another graph, the step as the user gave it.

    Args:
        stories: runs by name, the plain run first.
        budget_bytes: budget of the last run; None without one.
    """
    graphs = list({id(story.run.graph): story.run.graph for story in stories.values()}.values())
    names = [[*graph.inputs, *(name for op in graph.ops for name in op.outputs)] for graph in graphs]
    runs = []
    for label, story in stories.items():
        number = next(number for number, graph in enumerate(graphs) if graph is story.run.graph)
        runs.append({"label": label, "graph": number, **_run(story, names[number])})
    document = {
        "unit": graphs[0].time_unit,
        "budget": budget_bytes,
        "graphs": [
            {"fixed": graph.fixed_bytes, "ops": _ops(graph), "tensors": _tensors(graph, own)}
            for graph, own in zip(graphs, names, strict=True)
        ],
        "runs": runs,
    }
    return _script_json(document)


@dataclass(frozen=True)
class RankData:
    """A rank of a pipeline.

    Attributes:
        budget_bytes: budget of the rank.
        peak_bytes: its largest memory.
        runs: its jobs as they ran.
        again: time that each job spends on recomputation.
        memory: (time, bytes) at each step, the start first.
    """

    budget_bytes: int
    peak_bytes: int
    runs: Sequence[RanJob]
    again: Sequence[int]
    memory: Sequence[tuple[int, int]]


def pipeline_script_data(unit: str, makespan: int, ranks: Sequence[RankData]) -> str:
    """Return the ranks of a pipeline as JSON for a `<script>` element."""
    document = {
        "unit": unit,
        "makespan": makespan,
        "ranks": [
            {
                "budget": rank.budget_bytes,
                "peak": rank.peak_bytes,
                "jobs": [run.job.text for run in rank.runs],
                "pauses": [
                    run.start - before
                    for before, run in zip([0, *(run.end for run in rank.runs)], rank.runs, strict=False)
                ],
                "durations": [run.end - run.start for run in rank.runs],
                "again": list(rank.again),
                "times": _differences([time for time, _ in rank.memory]),
                "memory": _differences([size for _, size in rank.memory]),
            }
            for rank in ranks
        ],
    }
    return _script_json(document)


def _script_json(document: Mapping[str, Any]) -> str:
    # No name can end the script element, or open a comment there.
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")


def _ops(graph: Graph) -> dict[str, Any]:
    types, type_numbers = _distinct(shorten(op.type, _LONGEST_TYPE) for op in graph.ops)
    return {
        "names": [shorten(op.name, _LONGEST_NAME) for op in graph.ops],
        "types": types,
        "type": type_numbers,
        "time": [op.time for op in graph.ops],
        "backward": [int(op.phase is not Phase.FORWARD) for op in graph.ops],
    }


def _tensors(graph: Graph, names: Sequence[str]) -> dict[str, Any]:
    op_numbers = {op.name: number for number, op in enumerate(graph.ops)}
    kinds, kind_numbers = _distinct(_kind(graph.tensors[name]) for name in names)
    outputs = set(graph.outputs)
    producers = [graph.producer[name].name if name in graph.producer else None for name in names]
    return {
        # Mostly a tensor has the name of its op: 0 means that.
        "names": [0 if name == op else shorten(name, _LONGEST_NAME) for name, op in zip(names, producers, strict=True)],
        "bytes": [graph.tensors[name].bytes for name in names],
        "kinds": kinds,
        "kind": kind_numbers,
        "op": [-1 if op is None else op_numbers[op] for op in producers],
        "outputs": [number for number, name in enumerate(names) if name in outputs],
    }


def _kind(tensor: Tensor) -> str:
    """Describe data type, shape and base of a view: "float32 8 × 64 × 128"."""
    shape = None if tensor.shape is None else " × ".join(map(str, tensor.shape)) or "scalar"
    view = None if tensor.view_of is None else f"view of {shorten(tensor.view_of, _LONGEST_NAME)}"
    return shorten(", ".join(part for part in (clean(tensor.dtype or ""), shape, view) if part), 2 * _LONGEST_NAME)


def _run(story: Story, names: Sequence[str]) -> dict[str, Any]:
    graph, numbers = story.run.graph, {name: number for number, name in enumerate(names)}
    op_numbers = {op.name: number for number, op in enumerate(graph.ops)}
    steps = [story.run.schedule.steps[index] for index in story.steps]
    return {
        "steps": _differences(story.steps),
        "doing": list(map(int, story.doing)),
        "subject": [op_numbers[s.op] if isinstance(s, Compute | Inplace) else numbers[s.tensor] for s in steps],
        "durations": story.durations.tolist(),
        "memory": _differences(story.memory.tolist()),
        "served": [
            story.served.get(moment, moment) - moment
            for moment, doing in enumerate(story.doing)
            if doing is Doing.RERUN
        ],
        "stays": [number for name in names for number in _written(story.stays.get(name, ()))],
        "link": [
            {"label": direction, "transfers": _spans(transfers, numbers)}
            for direction, transfers in queues(story.run).items()
        ],
    }


def _spans(transfers: Sequence[Transfer], numbers: Mapping[str, int]) -> list[int]:
    """Return three numbers per transfer: pause before, duration, tensor."""
    spans: list[int] = []
    end = 0
    for transfer in transfers:
        spans += (transfer.start - end, transfer.end - transfer.start, numbers[transfer.tensor])
        end = transfer.end
    return spans


def _written(stays: Sequence[Stay]) -> list[int]:
    """Return a tensor's stays in memory as numbers, for the page's script.

    The first one counts the stays; seven describe each. 0 stands for what a stay does not have.
    """
    numbers = [len(stays)]
    end = 0
    for stay in stays:
        read = stay.first_read is not None and stay.last_read is not None
        numbers += (
            stay.start - end,
            stay.end - stay.start,
            int(stay.arrival) + 4 * stay.taken_over,
            (stay.first_read or 0) - stay.start if read else 0,
            (stay.last_read or 0) - (stay.first_read or 0) if read else 0,
            0 if stay.offload is None else stay.offload - stay.start,
            0 if stay.fullest is None else stay.fullest - stay.end + 1,
        )
        end = stay.end
    return numbers


def _differences(values: Sequence[int]) -> list[int]:
    return [value - before for before, value in zip((0, *values), values, strict=False)]


def _distinct(texts: Iterable[str]) -> tuple[list[str], list[int]]:
    """Return the distinct texts, and the number of each text."""
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(text, len(numbers)) for text in texts]
    return list(numbers), places
