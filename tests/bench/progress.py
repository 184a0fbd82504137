"""How the gap between plan and bound falls while `auto` searches, and what ending sooner would cost.

`auto` runs with `gap=0`, so that it goes on for as long as it finds that search pays. Its plans and bounds are noted
with the seconds of the CPU at which they come. The second table is what its defaults are chosen from: for each patience
and each gap at which it might be content, how long it takes and how much time its plans lose. A budget is a share of
what the plain run needs beyond what is always there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import process_time

from rich.console import Console
from rich.table import Table

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Problem
from remat_cli.core.solve import baseline_of, solve
from remat_cli.generate.chain import Chain
from remat_cli.generate.generator import Generator
from remat_cli.generate.transformer import Transformer
from remat_cli.generate.unet import UNet
from remat_cli.planners.auto.planner import Auto
from remat_cli.prepare import prepare
from remat_cli.synthesis import synthesize

SHARES = (0.8, 0.6, 0.4)
SECONDS = 30.0
WIDTH = 160
PATIENCE = (0.25, 0.5, 1.0)
AFTER = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
CONTENT = (0.0, 0.0001, 0.0002, 0.0005, 0.001, 0.002)
GENERATED: Mapping[str, tuple[Generator, int]] = {
    "transformer": (Transformer(), 300),
    "unet": (UNet(), 400),
    "chain": (Chain(), 200),
}


@dataclass
class Standings(Observer):
    """Notes when `auto` came to what: seconds of the CPU, overhead and bound."""

    begun: float = field(default_factory=process_time)
    noted: list[tuple[float, float, float]] = field(default_factory=list)

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        """Note it."""
        self.noted.append((process_time() - self.begun, overhead, bound))


@dataclass(frozen=True)
class Run:
    """One run of `auto`.

    Attributes:
        noted: seconds, overhead and bound, whenever one of the latter changed.
        seconds: when it ended.
    """

    noted: Sequence[tuple[float, float, float]]
    seconds: float

    def gap_after(self, seconds: float) -> float:
        """Return the gap after so many seconds; infinite where there was no plan by then."""
        gaps = [overhead - bound for at, overhead, bound in self.noted if at <= seconds]
        return gaps[-1] if gaps else inf

    def content_with(self, gap: float) -> tuple[float, float]:
        """Return when it would have ended if it were content with a gap, and its overhead then."""
        return next(
            ((at, overhead) for at, overhead, bound in self.noted if overhead - bound <= gap),
            (self.seconds, self.overhead),
        )

    @property
    def overhead(self) -> float:
        """Return that of the last plan; infinite where there is none."""
        return self.noted[-1][1] if self.noted else inf


def progress(console: Console, files: Iterable[tuple[Path, GraphOptions]]) -> None:
    """Print both tables."""
    table = Table(title="auto with gap=0: the gap in points after seconds of the CPU", title_justify="left")
    table.add_column("graph")
    columns = (
        "ops",
        "budget",
        "patience",
        "first plan",
        *(f"{seconds:g} s" for seconds in AFTER),
        "last",
        "at",
        "ended",
    )
    for column in columns:
        table.add_column(column, justify="right")
    found = []
    for name, graph in [*named_graphs(files), *generated_graphs()]:
        for share in SHARES:
            room = baseline_of(graph).peak_bytes - graph.fixed_bytes
            problem = Problem(graph, Budget(graph.fixed_bytes + int(share * room)))
            runs = {patience: _run(problem, patience) for patience in PATIENCE}
            for patience, run in runs.items():
                table.add_row(name, f"{len(graph.ops):,}", f"{share:.0%}", f"{patience:g}", *_cells(run))
            if any(run.noted for run in runs.values()):
                found.append(runs)
    wide(console).print(table, _choices(found))


def wide(console: Console) -> Console:
    """Return a console for a table of many columns."""
    return Console(width=max(WIDTH, console.width), file=console.file)


def _cells(run: Run) -> Iterator[str]:
    yield f"{run.noted[0][0]:.2f}" if run.noted else "-"
    yield from (_points(run.gap_after(seconds)) if seconds <= run.seconds else "" for seconds in AFTER)
    yield from (_points(run.gap_after(inf)), f"{run.noted[-1][0]:.2f}" if run.noted else "-", f"{run.seconds:.2f}")


def named_graphs(files: Iterable[tuple[Path, GraphOptions]]) -> Iterator[tuple[str, Graph]]:
    """Yield the name and graph of each file or function of a training step."""
    for path, options in files:
        yield path.stem if path.exists() else path.name.rpartition(":")[2], prepare(path, options).graph


def generated_graphs() -> Iterator[tuple[str, Graph]]:
    """Yield one graph of each family of training steps."""
    for name, (generator, ops) in GENERATED.items():
        yield name, synthesize(generator, ops=ops).graph


def _run(problem: Problem, patience: float) -> Run:
    standings = Standings()
    solve(problem, Auto(gap=0.0, patience=patience, time_limit=SECONDS), standings)
    return Run(standings.noted, process_time() - standings.begun)


def _choices(found: Sequence[Mapping[float, Run]]) -> Table:
    table = Table(title=f"What it costs to end sooner, on {len(found)} problems", title_justify="left")
    for column in ("patience", "gap", "CPU s, all", "worst", "no plan", "points lost, mean", "worst"):
        table.add_column(column, justify="right")
    for patience in PATIENCE:
        for gap in CONTENT:
            ended = [runs[patience].content_with(gap) for runs in found]
            best = (min(run.overhead for run in runs.values()) for runs in found)
            lost = [overhead - least for (_, overhead), least in zip(ended, best, strict=True) if overhead < inf]
            seconds = [at for at, _ in ended]
            table.add_row(
                f"{patience:g}",
                f"{gap:g}",
                f"{sum(seconds):.1f}",
                f"{max(seconds):.1f}",
                str(len(ended) - len(lost)),
                _points(sum(lost) / max(len(lost), 1)),
                _points(max(lost, default=0.0)),
            )
    return table


def _points(share: float) -> str:
    return "-" if share == inf else f"{100 * share:.3f}"
