"""How the gap between plan and bound falls while `auto` searches, and what ending sooner would cost.

`auto` runs with `gap=0`, so that it goes on for as long as it finds that search pays. Its plans and bounds are noted
with the seconds of the CPU at which they come. The second table is what its defaults are chosen from: for each gap at
which it might be content, how long it would have taken and how much time its plans would lose.
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
from remat_cli.generate.chain import Chain
from remat_cli.generate.generator import Generator
from remat_cli.generate.transformer import Transformer
from remat_cli.generate.unet import UNet
from remat_cli.graph import Graph
from remat_cli.planners.auto.planner import Auto
from remat_cli.prepare import prepare
from remat_cli.problem import Budget, Observer, Problem
from remat_cli.solve import baseline_of, solve
from remat_cli.synthesis import synthesize

SHARES = (0.8, 0.6, 0.4)
SECONDS = 60.0
AFTER = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
CONTENT = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005)
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
        """Return when it would have ended if it were content with a gap, and the overhead beyond its last one."""
        *_, last = self.noted
        at, overhead, _ = next((one for one in self.noted if one[1] - one[2] <= gap), (self.seconds, last[1], 0.0))
        return at, overhead - last[1]


def progress(console: Console, files: Iterable[tuple[Path, GraphOptions]]) -> None:
    """Print both tables."""
    table = Table(title="auto with gap=0: the gap in points after seconds of the CPU", title_justify="left")
    table.add_column("graph")
    for column in ("ops", "budget", "first plan", *(f"{seconds:g} s" for seconds in AFTER), "last", "at", "ended"):
        table.add_column(column, justify="right")
    runs = []
    for name, graph in _graphs(files):
        for share in SHARES:
            run = _run(Problem(graph, Budget(int(share * baseline_of(graph).peak_bytes))))
            cells = [_points(run.gap_after(seconds)) if seconds <= run.seconds else "" for seconds in AFTER]
            first, last = (f"{run.noted[at][0]:.2f}" if run.noted else "-" for at in (0, -1))
            ends = (_points(run.gap_after(inf)), last, f"{run.seconds:.2f}")
            table.add_row(name, f"{len(graph.ops):,}", f"{share:.0%}", first, *cells, *ends)
            if run.noted:
                runs.append(run)
    console.print(table)
    console.print(_choices(runs))


def _graphs(files: Iterable[tuple[Path, GraphOptions]]) -> Iterator[tuple[str, Graph]]:
    for path, options in files:
        yield path.stem, prepare(path, options).graph
    for name, (generator, ops) in GENERATED.items():
        yield name, synthesize(generator, ops=ops).graph


def _run(problem: Problem) -> Run:
    standings = Standings()
    solve(problem, Auto(gap=0.0, time_limit=SECONDS), standings)
    return Run(standings.noted, process_time() - standings.begun)


def _choices(runs: Sequence[Run]) -> Table:
    table = Table(title=f"What it costs {len(runs)} plans to end at a gap", title_justify="left")
    for column in ("gap", "CPU s, all", "worst", "points lost, mean", "worst"):
        table.add_column(column, justify="right")
    for gap in CONTENT:
        seconds, lost = zip(*(run.content_with(gap) for run in runs), strict=True)
        mean = sum(lost) / len(runs)
        table.add_row(f"{gap:g}", f"{sum(seconds):.1f}", f"{max(seconds):.1f}", _points(mean), _points(max(lost)))
    return table


def _points(share: float) -> str:
    return "-" if share == inf else f"{100 * share:.3f}"
