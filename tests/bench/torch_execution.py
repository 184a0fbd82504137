"""Training steps in PyTorch: plans predicted and measured, beside what torch itself offers, at equal measured peaks.

`python -m tests.bench.torch_execution gpt unet` runs these models only. Peaks are beside parameters, buffers and
inputs. What is recomputed is the measured time of the ops that run more than in the step without it, as a share of
that step: for torch's checkpoints the eager one, else the plain schedule. The overhead of the whole step is the median
of pairs of runs, and the quartiles around it; denormal numbers are flushed to zero there, as a product of two matrices
takes 40 times as long for them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf, isnan
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.checkpoint import checkpoint

from remat_cli.config import GraphOptions, PlannerChoice, Request, measurements_bytes
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import RematError
from remat_cli.formats.functions import load_function
from remat_cli.formats.reader import ReadOptions
from remat_cli.planning import plan
from remat_cli.prepare import Prepared, prepare_reading
from remat_cli.pytorch.capture.reader import callable_of, modules_of, take_step
from remat_cli.pytorch.capture.step import Step, as_step
from remat_cli.pytorch.memory.measure import measure_joint
from remat_cli.pytorch.run.execution import StepRuns
from remat_cli.pytorch.unstable.front_end import forgetting
from remat_cli.units import format_bytes, format_share, parse_budget
from tests.bench.torch_op_times import OpTimes

Call = Callable[..., Any]

MODELS = (
    "gpt", "unet", "vit", "gpt2", "changing_buffer", "deeplab", "llama", "bert", "t5", "swin", "diffusion_unet",
    "efficientnet_b0", "gpt_bfloat16", "whisper", "mixture_of_experts", "lstm", "resnet50",
)  # fmt: skip
SHARES = ("80%", "60%", "40%")
SECONDS = 5.0
PAIRS = 15  # of runs of the whole step
SOLVERS, STOCK_BUDGETS = ("dp", "ilp", "greedy"), (0.8, 0.6, 0.4, 0.2, 0.0)


@dataclass(frozen=True)
class Measured:
    """What came of running a call: peak in bytes, the time of its ops in nanoseconds, how its results differ."""

    peak: int
    time: int
    results: str

    def beside(self, time: int) -> str:
        """Return what it takes more than this time, as a share."""
        return format_share(self.time / time - 1)


@dataclass
class Trial:
    """One model: its graph, with what was measured of its ops, and the calls that all others are held against."""

    step: Step
    prepared: Prepared
    runs: StepRuns
    plain: Call
    eager_results: dict[str, torch.Tensor]
    plain_results: dict[str, torch.Tensor]
    op_times: OpTimes
    eager_time: int = field(init=False)
    plain_time: int = field(init=False)

    def __post_init__(self) -> None:
        self.eager_time, self.plain_time = self.time(callable_of(self.step.model)), self.time(self.plain)

    @classmethod
    def of(cls, name: str) -> Trial:
        reference = f"tests.bench.torch_models:{name}"
        taken = take_step(reference, ReadOptions())
        with TemporaryDirectory() as folder:
            path = Path(folder) / "measured.json"
            path.write_bytes(measurements_bytes(measure_joint(taken.joint, taken.device), name))
            prepared = prepare_reading(taken.reading(), reference, GraphOptions(measurements=str(path)))
        torch.manual_seed(0)
        step = as_step(load_function(reference)(), reference)
        runs = StepRuns(step, reference, prepared.graph, 0, False)
        plain = runs.planned(plain_run(prepared.graph))
        eager_results, times = runs.results(callable_of(step.model)), OpTimes(taken.device)
        return cls(step, prepared, runs, plain, eager_results, runs.results(plain), times)

    def schedule(self, budget: str) -> Schedule | None:
        """Return a plan for a budget, or for the smallest that is found where there is none; None without any."""
        found = plan(self.prepared, _request(budget)).schedule
        return found or plan(self.prepared, _request("min")).schedule

    def measured(self, call: Call, beside: dict[str, torch.Tensor]) -> Measured:
        """Return what comes of a call, its results beside these."""
        found = difference(beside, self.runs.results(call))
        return Measured(self.runs.peak(call), self.time(call), found)

    def overhead_of_step(self, call: Call, beside: Call | None = None) -> str:
        """Return how much more time a step takes than by the plain schedule, or another call: median, and quartiles."""
        torch.set_flush_denormal(True)
        try:
            low, middle, high = quantiles(self.runs.overhead(beside or self.plain, call, PAIRS), n=4)
        finally:
            torch.set_flush_denormal(False)
        return f"{format_share(middle)} ({format_share(low)} to {format_share(high)})"

    def time(self, call: Call) -> int:
        """Return the measured time of all ops that run in a call, in nanoseconds."""
        self.runs.reset()
        return self.op_times.total(lambda: self.runs.run(call))


def share_off(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> float:
    """Return the largest difference as a share of the largest result of its kind; 0 where all bits are the same.

    Args:
        expected: results by name, whose first word is their kind.
        found: the same of another run; one that is missing, or no number, is infinitely far away.
    """
    largest: dict[str, float] = {}
    for name, value in expected.items():
        kind = name.split()[0]
        largest[kind] = max(largest.get(kind, 1e-30), float(value.double().abs().max()))
    if expected.keys() != found.keys():
        return inf
    off = [
        float((value.double() - found[name].double()).abs().max()) / largest[name.split()[0]]
        for name, value in expected.items()
        if not torch.equal(value, found[name])
    ]
    return inf if any(map(isnan, off)) else max(off, default=0.0)


def difference(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> str:
    """Return "same bits", or the largest difference as a share of the largest result of its kind."""
    worst = share_off(expected, found)
    return f"{worst:.0e}" if worst else "same bits"


def plans(console: Console, name: str, trial: Trial) -> None:
    """Print plans at shares of the plain peak: predicted and measured."""
    table = Table(title=f"{name}, {len(trial.prepared.graph.ops):,} ops", title_justify="left", box=MARKDOWN)
    columns = (
        "budget",
        "peak predicted",
        "measured",
        "overhead predicted",
        "of its ops",
        "of the step",
        "beside eager",
        "results",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "budget" else "right")
    runs, eager = trial.runs, callable_of(trial.step.model)
    table.add_row("eager", "", format_bytes(runs.peak(eager)))
    graph = trial.prepared.graph
    beside = difference(trial.eager_results, trial.plain_results)
    plain = plain_run(graph)
    table.add_row(
        "plain",
        format_bytes(runs.predicted(plain)),
        format_bytes(runs.peak(trial.plain)),
        "",
        "",
        "",
        trial.overhead_of_step(trial.plain, eager),
        f"eager: {beside}",
    )
    done: list[Schedule] = []
    for share in SHARES:
        schedule = trial.schedule(share)
        if schedule is None or schedule in done:
            continue
        done.append(schedule)
        call = runs.planned(schedule)
        found = trial.measured(call, trial.plain_results)
        overhead = simulate(graph, schedule).time / simulate(graph, plain).time - 1
        fits = simulate(graph, schedule).peak_bytes <= float(share[:-1]) / 100 * simulate(graph, plain).peak_bytes
        table.add_row(
            share if fits else "smallest",
            format_bytes(runs.predicted(schedule)),
            format_bytes(found.peak),
            format_share(overhead),
            found.beside(trial.plain_time),
            trial.overhead_of_step(call),
            trial.overhead_of_step(call, eager),
            f"plain: {found.results}",
        )
    console.print(table)


def side_by_side(console: Console, model: str, trial: Trial) -> None:
    """Print what torch offers, each beside a plan whose measured peak is no higher."""
    table = Table(title=f"{model}: beside torch's own", title_justify="left", box=MARKDOWN)
    for column in ("torch's own", "peak", "recomputed", "to eager", "plan: peak", "recomputed"):
        table.add_column(column, justify="left" if column == "torch's own" else "right")
    seen: set[int | str] = set()
    for label, offered, eager in own(trial.step):
        with offered as call:
            try:
                theirs = trial.measured(call, trial.eager_results)
            except Exception as error:  # a row of the table: torch itself fails
                if (name := type(error).__name__) not in seen:
                    table.add_row(label, "", "", f"fails: {name}")
                seen.add(name)
                continue
        if theirs.peak in seen:
            continue
        seen.add(theirs.peak)
        ours = beside_peak(trial, theirs.peak)
        plan = ("none found", "") if ours is None else (format_bytes(ours.peak), ours.beside(trial.plain_time))
        share = theirs.beside(trial.eager_time if eager else trial.plain_time)
        table.add_row(label, format_bytes(theirs.peak), share, theirs.results, *plan)
    console.print(table)


def _request(budget: str) -> Request:
    return Request(parse_budget(budget), PlannerChoice("auto", {"time_limit": SECONDS}))


def beside_peak(trial: Trial, peak: int) -> Measured | None:
    """Return what a plan of at most this measured peak takes; None where none was found."""
    budget = trial.prepared.graph.fixed_bytes + peak
    schedule = plan(trial.prepared, _request(str(budget))).schedule
    return None if schedule is None else trial.measured(trial.runs.planned(schedule), trial.plain_results)


def own(step: Step) -> Iterator[tuple[str, Any, bool]]:
    """Yield the ways of torch itself, what gives the call of each, and whether it runs as the eager step does."""
    for stride, label in ((1, "checkpoint every block"), (2, "every second block")):
        if blocks := blocks_of(step):
            yield label, checkpointed(step, blocks[::stride]), True
    for solver in SOLVERS:
        for share in STOCK_BUDGETS:
            yield f"memory budget {share:g}, {solver}", stock(step, share, solver), False


def blocks_of(step: Step) -> list[nn.Module]:
    """Return the modules of the longest lists in the model: each of the lists that are as long as half of that."""
    lists = [
        list(part)
        for module in modules_of(step)
        for part in module.modules()
        if isinstance(part, nn.ModuleList) and len(part) > 2
    ]
    longest = max(map(len, lists), default=0)
    return [block for one in lists if 2 * len(one) > longest for block in one]


@contextmanager
def checkpointed(step: Step, blocks: list[nn.Module]) -> Iterator[Call]:
    """Give the call that has these blocks checkpointed, for as long as each call lasts."""

    def call(*args: Any, **kwargs: Any) -> Any:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        try:
            return callable_of(step.model)(*args, **kwargs)
        finally:
            for block in blocks:
                del block.forward

    yield call


@contextmanager
def stock(step: Step, share: float, solver: str) -> Iterator[Call]:
    """Give the call that torch's own partitioner makes, compiled to the same kernels."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    backend = aot_autograd(
        fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=min_cut_rematerialization_partition
    )
    settings = {"activation_memory_budget": share, "activation_memory_budget_solver": solver, "donated_buffer": False}
    with (
        torch._functorch.config.patch(settings),
        torch._dynamo.config.patch(recompile_limit=64, allow_rnn=True),
    ):
        yield torch.compile(callable_of(step.model), backend=backend, fullgraph=True, dynamic=False)


def torch_steps(console: Console, models: tuple[str, ...] = MODELS) -> None:
    """Both tables of every model that can be had here."""
    warnings.simplefilter("ignore")
    for name in models:
        try:
            with forgetting():
                trial = Trial.of(name)
                plans(console, name, trial)
                side_by_side(console, name, trial)
        except (RematError, ImportError) as error:
            console.print(f"{name}: {error}")


if __name__ == "__main__":
    torch_steps(Console(width=150), tuple(sys.argv[1:]) or MODELS)
