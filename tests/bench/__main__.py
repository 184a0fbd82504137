"""`make bench`: how long reading, simulating and planning take, what the plans cost, and how they run.

Runs on the graphs of this repository, and on the public data sets too where REMAT_DATA names their folder. Seconds are
of one run on this machine: compare them within a run only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import ParamSpec, TypeVar

from rich.console import Console
from rich.table import Table

from remat_cli.config import GraphOptions
from remat_cli.core.problem import Budget, Planner, Problem
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import PlannerRefuses
from remat_cli.formats import read_graph
from remat_cli.planners import PLANNERS
from remat_cli.planners.published.lower_sets.dp import LowerSetDP
from remat_cli.planners.published.lower_sets.families import LowerSets, all_lower_sets, pruned_family
from remat_cli.planners.published.lower_sets.options import Strategy
from remat_cli.planners.shared.forward_part import ForwardPart
from remat_cli.prepare import prepare
from remat_cli.training import training_graph
from remat_cli.units import format_bytes, format_share
from tests.bench.arena import arena
from tests.bench.commands import commands
from tests.bench.execution import execution
from tests.bench.kernels import kernels
from tests.bench.library import library
from tests.bench.methods import methods
from tests.bench.moccasin import moccasin
from tests.bench.moved_state import moved_state
from tests.bench.pipelines import pipelines
from tests.bench.planted_tables import planted_tables
from tests.bench.portfolio import portfolio
from tests.bench.progress import generated_graphs, named_graphs, progress
from tests.bench.reshard import reshard
from tests.bench.scale import scale
from tests.bench.small import small
from tests.bench.tangled import tangled
from tests.bench.tiny import tiny
from tests.bench.transfers import transfers
from tests.places import GRAPHS

SHARE, SECONDS = 0.6, 5.0
P = ParamSpec("P")
Result = TypeVar("Result")


def timed(call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> tuple[Result, float]:
    """Return what the call returns, and the seconds that it took."""
    start = perf_counter()
    result = call(*args, **kwargs)
    return result, perf_counter() - start


def files() -> Iterator[tuple[Path, GraphOptions]]:
    """The files to plan, and how each is read."""
    dims = {"unet": {"batch": 8}, "resnet50": {"batch": 32}, "gpt": {"batch": 8, "seq": 512}}
    for name, bound in dims.items():
        yield GRAPHS / f"{name}.onnx", GraphOptions(dims=bound, device="a100")
    if "REMAT_DATA" not in os.environ:
        return
    data = Path(os.environ["REMAT_DATA"])
    for path in sorted((data / "onnx").glob("*.onnx")):
        yield path, GraphOptions(dims=_data_dims(path.stem))
    for path in sorted((data / "moccasin").glob("cm_*.json")):
        yield path, GraphOptions()


def public_files() -> Iterator[tuple[Path, GraphOptions]]:
    """All of these, and the graphs without a backward pass."""
    yield from files()
    for path in tangled_files():
        yield path, GraphOptions()


def tangled_files() -> list[Path]:
    """The public graphs without a backward pass."""
    return sorted(Path(os.environ["REMAT_DATA"], "moccasin").glob("rl_*.json")) if "REMAT_DATA" in os.environ else []


def linked_files() -> Iterator[tuple[Path, GraphOptions]]:
    """Training steps of usual kinds whose ops' times are known for any device; those of PyTorch where it is there."""
    dims = {"unet": {"batch": 8}, "resnet50": {"batch": 32}, "gpt": {"batch": 8, "seq": 512}}
    for name, bound in dims.items():
        yield GRAPHS / f"{name}.onnx", GraphOptions(dims=bound)
    if find_spec("torch") is None:
        return
    yield Path("tests.bench.torch_models:densenet121"), GraphOptions(dims={"batch": 32, "size": 224})
    if find_spec("transformers") is not None:
        large = {"batch": 8, "length": 1024, "depth": 8, "width": 1024, "heads": 16}
        yield Path("tests.bench.torch_models:llama"), GraphOptions(dims=large)


def gap_files() -> Iterator[tuple[Path, GraphOptions]]:
    """Training steps on which plan and bound were far apart once, and which are in no other table."""
    if "REMAT_DATA" in os.environ:
        for name in ("resnet50", "unet_noopt"):
            yield Path(os.environ["REMAT_DATA"], "onnx", f"{name}.onnx"), GraphOptions(dims={"batch": 8})
    if find_spec("torch") is not None:
        yield Path("tests.bench.torch_models:mlp"), GraphOptions()
        if find_spec("transformers") is not None:
            yield Path("tests.bench.torch_models:resnet18"), GraphOptions()


def gaps(console: Console) -> None:
    """Plan and bound on these, and on generated graphs."""
    library(console, [*named_graphs(gap_files()), *generated_graphs()], (0.8, 0.6, 0.4))


def _data_dims(name: str) -> dict[str, int]:
    if name in ("gpt2", "bert_base"):
        return {"batch": 2, "seq": 128}
    return {} if name == "unet_train_legacy" else {"batch": 2}


def planning(console: Console) -> None:
    """Every planner on every file at one budget, within the same seconds."""
    table = Table(title=f"Every planner at {SHARE:.0%} of the plain peak, within {SECONDS:g} s", title_justify="left")
    for column in ("graph", "ops", "planner", "budget", "status", "overhead", "bound", "peak", "seconds"):
        table.add_column(column, justify="left" if column in ("graph", "planner", "status") else "right")
    for path, options in files():
        prepared = prepare(path, options)
        budget = Budget(int(SHARE * baseline_of(prepared.graph).peak_bytes))
        problem = Problem(prepared.graph, budget, prepared.link)
        first = (path.stem, f"{len(prepared.graph.ops):,}")
        for name, planner in limited_planners():
            table.add_row(*first, name, format_bytes(budget.device_bytes), *_planned(problem, planner))
            first = ("", "")
        table.add_section()
    console.print(table)


def limited_planners() -> Iterator[tuple[str, Planner]]:
    """Yield every planner but the baseline and the exponential ones, with the time limit where it has one."""
    for name, planner in PLANNERS.items():
        if name not in ("keep_all", "exact_dp", "exhaustive"):
            has_limit = any(option.name == "time_limit" for option in fields(planner))
            yield name, planner(**({"time_limit": SECONDS} if has_limit else {}))


def _planned(problem: Problem, planner: Planner) -> tuple[str, ...]:
    try:
        solution, seconds = timed(solve, problem, planner)
    except PlannerRefuses:
        return ("refuses",)
    shares = ("" if share is None else format_share(share) for share in (solution.overhead, solution.bound_overhead))
    peak = "" if solution.trace is None else format_bytes(solution.trace.peak_bytes)
    return (str(solution.status), *shares, peak, f"{seconds:.2f}")


def lower_sets(console: Console) -> None:
    """The DP on the networks of Table 1: the smallest B, then one run of each strategy there, with exact times."""
    table = Table(title="Lower-set DP: smallest B, then TC and MC at it; seconds on one core", title_justify="left")
    for column in ("network", "#V", "B approx", "approx s", "#L", "B exact", "exact s"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for path in sorted((GRAPHS / "table1").glob("*.json")):
        forward = ForwardPart.of(training_graph(read_graph(path).graph), "the benchmark")
        approximate, approximate_seconds = timed(_dp_answers, pruned_family, forward, None)
        exact, exact_seconds = timed(_dp_answers, partial(all_lower_sets, most=40_000), forward, approximate[0])
        table.add_row(
            path.stem,
            str(len(forward)),
            format_bytes(approximate[0]),
            f"{approximate_seconds:.2f}",
            f"{exact[1]:,}",
            format_bytes(exact[0]),
            f"{exact_seconds:.2f}",
        )
    console.print(table)


def _dp_answers(family: Callable[[ForwardPart], LowerSets], forward: ForwardPart, known: int | None) -> tuple[int, int]:
    """Return the smallest B and the number of sets; the chains are only computed."""
    sets = family(forward)
    dp = LowerSetDP(sets, slots=10**4)
    budget = dp.smallest_budget(known)
    for strategy in (Strategy.TIME, Strategy.MEMORY):
        dp.chain(budget, strategy)
    return budget, len(sets)


def published_tables(console: Console) -> None:
    """Table 3 of the MOCCASIN paper, where its graphs are."""
    if "REMAT_DATA" in os.environ:
        moccasin(console, Path(os.environ["REMAT_DATA"]) / "moccasin")


def torch_table(console: Console) -> None:
    """Training steps in PyTorch, where it is installed."""
    try:
        from tests.bench.torch_execution import torch_steps
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    torch_steps(console)


def split_table(console: Console) -> None:
    """PyTorch steps with regions in parts, where it is installed."""
    try:
        from tests.bench.torch_split import torch_split
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    torch_split(console)


def lengths_table(console: Console) -> None:
    """A training loop of many lengths in PyTorch, where it is installed."""
    try:
        from tests.bench.torch_lengths import torch_lengths
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    torch_lengths(console)


def checkpoints_table(console: Console) -> None:
    """Checkpoints of modules in PyTorch, where it is installed."""
    try:
        from tests.bench.torch_checkpoints import torch_checkpoints
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    torch_checkpoints(console)


def regions_table(console: Console) -> None:
    """Models planned by regions in PyTorch, where it is installed."""
    try:
        from tests.bench.torch_regions import torch_regions
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    torch_regions(console)


def hosted_table(console: Console) -> None:
    """Blocks of a large Llama whose tensors go to the host, where PyTorch is installed."""
    try:
        from tests.bench.torch_hosted import torch_hosted
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    torch_hosted(console)


def updates_table(console: Console) -> None:
    """A GPT with its optimizer's step in the plan, where PyTorch is installed."""
    try:
        from tests.bench.torch_updates import torch_updates
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    torch_updates(console)


def eager_table(console: Console) -> None:
    """Steps in eager mode, where PyTorch is installed."""
    try:
        from tests.bench.torch_eager import torch_eager
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    torch_eager(console)


def predictions_table(console: Console) -> None:
    """Peaks on GPUs, predicted beside published, where PyTorch is installed."""
    try:
        from tests.bench.published import published
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    published(console)


def fused_table(console: Console) -> None:
    """Plans with inductor's kernels in PyTorch, where it is installed."""
    try:
        from tests.bench.torch_fused import torch_fused
    except ImportError as error:
        sys.exit(f"this table needs torch: {error}")
    torch_fused(console)


def model_tables(console: Console) -> None:
    """Models of public kinds, exported to ONNX, where what they come from is installed."""
    try:
        from tests.bench.exported_models import exported_models
    except ImportError as error:
        sys.exit(f"these tables need {error.name}: see 'Exported models' in tests/bench/README.md")
    exported_models(console)


def arenas(console: Console) -> None:
    """Arenas of schedules, of public instances, and of networks of small devices."""
    arena(console, files())
    tiny(console)


TABLES: Mapping[str, Callable[[Console], None]] = {
    "planning": planning,
    "lower_sets": lower_sets,
    "methods": methods,
    "moccasin": published_tables,
    "portfolio": lambda console: portfolio(console, files()),
    "progress": lambda console: progress(console, files()),
    "gaps": gaps,
    "small": small,
    "pipelines": pipelines,
    "arena": arenas,
    "planted": planted_tables,
    "tangled": lambda console: tangled(console, tangled_files()),
    "scale": scale,
    "commands": commands,
    "execution": execution,
    "library": lambda console: library(console, named_graphs(public_files())),
    "reshard": reshard,
    "transfers": lambda console: transfers(console, linked_files()),
    "moved_state": moved_state,
    "kernels": kernels,
    "torch": torch_table,
    "lengths": lengths_table,
    "split": split_table,
    "eager": eager_table,
    "published": predictions_table,
    "checkpoints": checkpoints_table,
    "regions": regions_table,
    "hosted": hosted_table,
    "updates": updates_table,
    "fused": fused_table,
    "models": model_tables,
}
# These take long, and need more than what is installed for development.
ONLY_WHEN_NAMED = (
    "torch",
    "lengths",
    "split",
    "eager",
    "published",
    "checkpoints",
    "regions",
    "hosted",
    "updates",
    "moved_state",
    "fused",
    "reshard",
    "models",
    "library",
    "planted",
    "pipelines",
)


def main() -> None:
    """Print the tables that are named, or all but those that take long."""
    named = sys.argv[1:] or [name for name in TABLES if name not in ONLY_WHEN_NAMED]
    if unknown := [name for name in named if name not in TABLES]:
        sys.exit(f"there is no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    console = Console(width=max(110, Console().width))
    if "REMAT_DATA" not in os.environ:
        print(
            "REMAT_DATA does not name the folder of the public data sets: only our own graphs are run", file=sys.stderr
        )
    for name in named:
        TABLES[name](console)


if __name__ == "__main__":
    main()
