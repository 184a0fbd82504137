"""The final report of `remat batch`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from remat_cli.batch.result_lines import WORST_FIRST, JobLine
from remat_cli.reports.safe_text import Name, Report, clean, shorten
from remat_cli.reports.terminal.layout import Cell, bullets, columns, facts, section
from remat_cli.units import format_bytes, format_names, format_share

_LONGEST_LABEL = 30
# The largest numbers of jobs, and of failures, shown one by one.
_MOST_ROWS = 500
_MOST_REASONS = 20
_MOST_NAMED = 3
# Columns on reading a graph: their places in a row.
_READ_AS = {"mode": 1, "dims": 2}


@dataclass(frozen=True)
class BatchResult:
    """The results of a batch.

    Attributes:
        lines: lines of the finished jobs, in the order of the request.
        jobs: number of requested jobs.
        graphs: number of their graphs.
        resumed: number of lines from an earlier run.
        results: the file of results; None without one.
        schedules: the folder of the schedules; None if none were written.
        absent_dims: dims given for many graphs, with the graphs that lack them.
    """

    lines: Sequence[JobLine]
    jobs: int
    graphs: int
    resumed: int = 0
    results: Path | None = None
    schedules: Path | None = None
    absent_dims: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        """Whether jobs are unfinished."""
        return len(self.lines) < self.jobs

    @property
    def exit_code(self) -> int:
        """The worst exit code of any job."""
        codes = {line.exit_code for line in self.lines}
        return next((code for code in WORST_FIRST if code in codes), 0)


def batch_report(result: BatchResult) -> Report:
    """Return the report of `remat batch`: a line per job, and failures.

    The failures say why a job has no plan.
    """
    planned = sum(line.peak_bytes is not None for line in result.lines)
    style = "green" if planned == result.jobs else "red" if not planned else "yellow"
    verdict = f"{planned:,} of {result.jobs:,} {'job has' if result.jobs == 1 else 'jobs have'} a plan."
    absent = [_absent(dim, graphs) for dim, graphs in result.absent_dims.items()]
    reasons = _reasons([line for line in result.lines if line.peak_bytes is None])
    names = _short_names(result.lines)
    rows = [_row(line, names[line.graph]) for line in result.lines[:_MOST_ROWS]]
    more = len(result.lines) - len(rows)
    headers = ["graph", "mode", "dims", "budget", "", "config", "status", "peak", "overhead"]
    return Report(
        facts([*_facts(result), *_shared_facts(rows)]),
        Text(verdict, f"bold {style}"),
        *([_table(headers, rows)] if rows else []),
        *([Text(f"and {more:,} more, which are in the results")] if more > 0 else []),
        *([section("Why not", bullets(reasons))] if reasons else []),
        *([section("Notes", bullets(absent))] if absent else []),
        *([Text(_left(result), "bold")] if result.interrupted else []),
    )


def _table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> RenderableType:
    """Return a table with a line per job.

    Mode and dims have columns only if they differ between jobs.
    """
    shown = [number for number, header in enumerate(headers) if header not in _READ_AS or _differs(header, rows)]
    right = {headers.index("budget"), headers.index("budget") + 1, headers.index("peak"), headers.index("overhead")}
    return columns(
        [headers[number] for number in shown],
        [[row[number] for number in shown] for row in rows],
        right=[place for place, number in enumerate(shown) if number in right],
    )


def _shared_facts(rows: Sequence[Sequence[Cell]]) -> list[tuple[str, Cell]]:
    """Return the mode and dims shared by all graphs."""
    said = {header: next((row[place] for row in rows if row[place]), "") for header, place in _READ_AS.items()}
    return [(header, cell) for header, cell in said.items() if cell and not _differs(header, rows)]


def _differs(header: str, rows: Sequence[Sequence[Cell]]) -> bool:
    return len({str(row[_READ_AS[header]]) for row in rows} - {""}) > 1


def _absent(dim: str, graphs: Sequence[str]) -> str:
    return f"--dim {clean(dim)}: not in {clean(format_names(graphs, _MOST_NAMED))}; read without it"


def _facts(result: BatchResult) -> list[tuple[str, Cell]]:
    rows: list[tuple[str, Cell]] = [("graphs", f"{result.graphs:,}"), ("jobs", _jobs(result))]
    for label, path in (("results", result.results), ("schedules", result.schedules)):
        if path is not None:
            rows.append((label, clean(str(path))))
    return rows


def _jobs(result: BatchResult) -> str:
    return f"{result.jobs:,}" + (f", {result.resumed:,} of them done before" if result.resumed else "")


def _short_names(lines: Sequence[JobLine]) -> dict[str, str]:
    """Return the name of each graph for the table.

    This is the name of its file, if unique.
    """
    graphs = list(dict.fromkeys(line.graph for line in lines))
    count = Counter(Path(graph).name for graph in graphs)
    return {graph: Path(graph).name if count[Path(graph).name] == 1 else graph for graph in graphs}


def _row(line: JobLine, graph: str) -> list[Cell]:
    return [
        Name(graph),
        line.mode or "",
        " ".join(f"{clean(name)}={size}" for name, size in line.dims.items()),
        clean(line.budget),
        "" if line.budget_bytes is None or not line.budget.endswith(("%", "min")) else format_bytes(line.budget_bytes),
        shorten(line.config, _LONGEST_LABEL),
        f"{line.status}{', estimated' if line.estimated else ''}{', stopped' if line.interrupted else ''}",
        "" if line.peak_bytes is None else format_bytes(line.peak_bytes),
        "" if line.overhead is None else format_share(line.overhead),
    ]


def _reasons(failed: Sequence[JobLine]) -> list[str]:
    """Return each reason of failure once, with its jobs."""
    jobs: dict[str, list[str]] = {}
    for line in failed:
        hint = f" ({line.hint})" if line.hint else ""
        jobs.setdefault(f"{line.error or line.status}{hint}", []).append(f"{line.graph} {line.budget} {line.config}")
    shown = [
        f"{clean(names[0])}{f' and {len(names) - 1:,} more' if len(names) > 1 else ''}: {clean(why)}"
        for why, names in jobs.items()
    ]
    more = len(shown) - _MOST_REASONS
    return shown if more <= 0 else [*shown[:_MOST_REASONS], f"and {more:,} more, which are in the results"]


def _left(result: BatchResult) -> str:
    left = result.jobs - len(result.lines)
    how = "the same command with --resume goes on" if result.results is not None else "with -o they could be resumed"
    return f"Interrupted: {left:,} {'job has' if left == 1 else 'jobs have'} not ended; {how}."


def batch_summary(result: BatchResult) -> dict[str, Any]:
    """Return the summary of `remat batch`.

    It has the lines of the results, and the number of jobs by status.
    """
    return {
        "jobs": result.jobs,
        "done_before": result.resumed,
        "interrupted": result.interrupted,
        "exit_code": result.exit_code,
        "absent_dims": {dim: list(graphs) for dim, graphs in result.absent_dims.items()},
        "endings": dict(Counter(str(line.status) for line in result.lines)),
        "results": [asdict(line) for line in result.lines],
    }
