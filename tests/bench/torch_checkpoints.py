"""Checkpoints chosen by `remat plan --as checkpoints`, beside torch's own run of them: predicted and measured peaks.

`python -m tests.bench.torch_checkpoints gpt vit` runs these models only. Each budget is a share of the way from the
least peak that checkpoints reach to the peak without. Peaks are those of the whole step; parameters, buffers and inputs
are counted, of which only the sizes are known.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from torch.utils.checkpoint import checkpoint

from remat_cli.config import GraphOptions, PlannerChoice, Request, measurements_bytes
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer
from remat_cli.formats.functions import load_function
from remat_cli.formats.reader import ReadOptions
from remat_cli.pytorch.capture.reader import callable_of, modules_of, take_step
from remat_cli.pytorch.capture.step import as_step, losses_in
from remat_cli.pytorch.checkpoints import CheckpointPlanning, plan_checkpoints
from remat_cli.pytorch.memory.measure import measure_joint
from remat_cli.pytorch.run.execution import StepRuns
from remat_cli.units import BudgetSpec, format_bytes, format_share

MODELS = ("gpt", "gpt_bfloat16", "llama", "vit", "resnet50", "unet")
SHARES = (0.75, 0.5, 0.25, 0.0)
SECONDS = 5.0


def measured_peak(reference: str, graph: Graph, paths: tuple[str, ...]) -> int:
    """Return the peak of a step with torch's own checkpoints, beside what is there before, in bytes."""
    torch.manual_seed(0)
    step = as_step(load_function(reference)(), reference)
    whole = modules_of(step)[0]
    for path in paths:
        part = whole.get_submodule(path)
        part.forward = partial(checkpoint, part.forward, use_reentrant=False)
    runs, call = StepRuns(step, reference, graph, 0, accumulate=False), callable_of(step.model)
    held: list[Any] = []

    def loss(*args: Any, **kwargs: Any) -> Any:  # that people call backward() on, while they hold the rest
        held[:] = [call(*args, **kwargs)]
        return losses_in(held[0], [held[0]] if isinstance(held[0], torch.Tensor) else [])

    return runs.peak(loss)


def planned(reference: str, measured: Path, budget: BudgetSpec) -> CheckpointPlanning:
    """Return the choice for a budget."""
    request = Request(budget=budget, planner=PlannerChoice().with_options({"time_limit": SECONDS}))
    return plan_checkpoints(Path(reference), GraphOptions(measurements=str(measured)), request, Observer())


def torch_checkpoints(console: Console, names: tuple[str, ...] = MODELS) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = Table(
        "model", "budget", "modules", "peak: predicted", "measured", "off by", "more time", "free plan", "seconds",
        box=MARKDOWN,
    )  # fmt: skip
    for name in names:
        reference = f"tests.bench.torch_models:{name}"
        taken = take_step(reference, ReadOptions())
        with TemporaryDirectory() as folder:
            measured = Path(folder) / "measured.json"
            measured.write_bytes(measurements_bytes(measure_joint(taken.joint, taken.device), name))
            least = planned(reference, measured, BudgetSpec(smallest=True))
            low, high = least.budget_bytes, least.plain.peak_bytes
            for share in SHARES:
                began = perf_counter()
                found = planned(reference, measured, BudgetSpec(device_bytes=low + int(share * (high - low))))
                seconds = perf_counter() - began
                assert found.wrapped is not None
                fixed = found.eager.graph.fixed_bytes
                peak, real = (
                    found.wrapped.trace.peak_bytes - fixed,
                    measured_peak(reference, found.prepared.graph, found.wrapped.paths),
                )
                free = found.free.overhead
                table.add_row(
                    name,
                    format_bytes(found.budget_bytes - fixed),
                    str(len(found.wrapped.paths)),
                    format_bytes(peak),
                    format_bytes(real),
                    format_share(peak / real - 1),
                    format_share(found.overhead(found.wrapped.trace.time)),
                    "none found" if free is None else format_share(free),
                    f"{seconds:.1f}",
                )
    console.print(table)


if __name__ == "__main__":
    torch_checkpoints(Console(width=200), tuple(sys.argv[1:]) or MODELS)
