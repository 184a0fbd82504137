"""Predicted against measured memory: models as they are, and by the tightest plan that is found, run by onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from remat_cli.config import GraphOptions
from remat_cli.planners.dtr.planner import DTR
from remat_cli.prepare import prepare
from remat_cli.problem import Planner
from remat_cli.runtime.onnx.apply import apply_schedule, read_for
from remat_cli.runtime.onnx.execution import Execution, Peak, execute
from remat_cli.studies.budget_search import smallest_budget
from remat_cli.units import format_share
from tests.places import GRAPHS

MIB = 2**20


@dataclass(frozen=True)
class Executed:
    """A model that was run.

    Attributes:
        name: of its file.
        dims: its sizes.
        execution: as it is, and by the tightest plan.
        overhead: of that plan, by the cost model.
    """

    name: str
    dims: Mapping[str, int]
    execution: Execution
    overhead: float


def models() -> Iterator[tuple[Path, dict[str, int]]]:
    """What is run: this repository's models, and the exported ones where REMAT_DATA names their folder."""
    yield GRAPHS / "long_skip.onnx", {"batch": 1, "height": 512, "width": 512}
    yield GRAPHS / "unet.onnx", {"batch": 1}
    yield GRAPHS / "resnet50.onnx", {"batch": 4}
    yield GRAPHS / "gpt.onnx", {"batch": 1, "seq": 512}
    if "REMAT_DATA" not in os.environ:
        return
    folder = Path(os.environ["REMAT_DATA"]) / "onnx"
    for name in ("densenet121", "resnet50", "mobilenetv3_large"):
        yield folder / f"{name}.onnx", {"batch": 4}
    for name in ("gpt2", "bert_base"):
        yield folder / f"{name}.onnx", {"batch": 1, "seq": 512}


def executed(path: Path, dims: Mapping[str, int], planner: Planner) -> Executed:
    """Plan a model at the smallest budget that `planner` finds, and run it as it is and as planned."""
    options = GraphOptions(mode="inference", dims=dims)
    graph = prepare(path, options).graph
    solution = smallest_budget(graph, planner).solution
    assert solution.result.schedule is not None
    schedule = solution.result.schedule
    rewritten = apply_schedule(path, options, graph, schedule, {})
    execution = execute(path, read_for(path, options, keep_data=False), rewritten, graph, schedule.computes)
    return Executed(path.stem, dims, execution, solution.overhead or 0.0)


def execution(console: Console) -> None:
    """Predicted and measured peaks beside weights and inputs, at the tightest plan of dtr."""
    table = Table(title="onnxruntime, one thread: peaks beside weights and inputs, in MiB", title_justify="left")
    for column in ("model", "sizes", "plain predicted", "measured", "plan predicted", "measured", "overhead", ""):
        table.add_column(column, justify="left" if column in ("model", "sizes", "") else "right")
    for path, dims in models():
        found = executed(path, dims, DTR())
        table.add_row(
            found.name,
            " ".join(f"{name} {size}" for name, size in found.dims.items()),
            *_figures(found.execution.plain),
            *_figures(found.execution.plan),
            format_share(found.overhead),
            "as planned" if found.execution.holds and found.execution.plain.agrees else "not as planned",
        )
    console.print(table)


def _figures(peak: Peak) -> tuple[str, str]:
    return f"{peak.predicted / MIB:.2f}", f"{peak.measured / MIB:.2f}"


if __name__ == "__main__":
    execution(Console(width=140))
