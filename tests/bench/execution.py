"""Memory and time of models in onnxruntime: as it comes, the plain run, and the tightest plan that is found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from remat_cli.config import GraphOptions
from remat_cli.core.problem import Planner
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planning import plan
from remat_cli.prepare import prepare
from remat_cli.runtime.onnx.apply import apply_schedule, read_for
from remat_cli.runtime.onnx.execution import ModelExecution, ProcessPeak, execute
from remat_cli.runtime.onnx.fuse import fuse
from remat_cli.runtime.onnx.measured_process import random_weight
from remat_cli.units import BudgetSpec, format_share
from tests.places import GRAPHS
from tests.plans import asking

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
    execution: ModelExecution
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


def executed(path: Path, dims: Mapping[str, int], planner: Planner, *, beside_usual: bool = False) -> Executed:
    """Plan a model at the smallest budget that `planner` finds, and run it as it is and as planned.

    Args:
        path: the model.
        dims: its sizes.
        planner: what plans it.
        beside_usual: run it with onnxruntime's own options, too, and take the times of all three.
    """
    options = GraphOptions(mode="inference", dims=dims)
    prepared = prepare(path, options)
    graph = prepared.graph
    planning = plan(prepared, asking(planner, budget=BudgetSpec(smallest=True)))
    schedule = planning.schedule
    assert schedule is not None
    rewritten = apply_schedule(path, options, graph, schedule, {})
    model = read_for(path, options, keep_data=False)
    execution = execute(path, model, rewritten, graph, schedule.computes, beside_usual=beside_usual)
    return Executed(path.stem, dims, execution, planning.overhead or 0.0)


def with_weights(path: Path, folder: Path) -> Path:
    """Write a model into a folder with random weights in place of those whose files are not there."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            name, dtype = tensor.name, helper.tensor_dtype_to_np_dtype(tensor.data_type).name
            tensor.CopyFrom(numpy_helper.from_array(random_weight(name, dtype, tuple(tensor.dims), 0), name))
    target = folder / path.name
    onnx.save(model, target)
    return target


def execution(console: Console) -> None:
    """Peaks beside weights and inputs, and times: as onnxruntime comes, the plain run, and the tightest plan of dtr."""
    table = Table(title="onnxruntime, one thread: peaks beside weights and inputs in MiB; ms", title_justify="left")
    columns = ("model", "sizes", "ops", "as it comes", "ms", "plain predicted", "measured", "ms")
    for column in (*columns, "plan predicted", "measured", "ms", "overhead", ""):
        table.add_column(column, justify="left" if column in ("model", "sizes", "ops", "") else "right")
    for path, dims in models():
        with TemporaryDirectory() as folder:
            model = with_weights(path, Path(folder))
            _add_row(table, "as exported", executed(model, dims, DTR(), beside_usual=True))
            for title, for_this_machine in (("fused", False), ("and for this machine", True)):
                fused = fuse(model, for_this_machine=for_this_machine)
                onnx.save(fused.proto, model.with_stem("fused"))
                _add_row(table, title, executed(model.with_stem("fused"), dims, DTR(), beside_usual=True), path.stem)
    console.print(table)


def _add_row(table: Table, ops: str, found: Executed, name: str | None = None) -> None:
    run = found.execution
    assert run.usual is not None
    table.add_row(
        name or found.name,
        " ".join(f"{dim} {size}" for dim, size in found.dims.items()),
        ops,
        "failed" if run.usual.peak_bytes is None else f"{run.usual.peak_bytes / MIB:.2f}",
        _milliseconds(run.usual.time_ns),
        *_figures(run.plain),
        _milliseconds(run.plain_time_ns),
        *_figures(run.plan),
        _milliseconds(run.plan_time_ns),
        format_share(found.overhead),
        "as planned" if run.holds and run.plain.agrees else "not as planned",
    )


def _figures(peak: ProcessPeak) -> tuple[str, str]:
    return f"{peak.predicted / MIB:.2f}", f"{peak.measured / MIB:.2f}"


def _milliseconds(time_ns: int | None) -> str:
    return "" if time_ns is None else f"{time_ns / 10**6:.0f}"


if __name__ == "__main__":
    execution(Console(width=200))
