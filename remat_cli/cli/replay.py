"""A schedule replayed on the graph that it was made for: what `verify` and `apply` begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from remat_cli.config import GraphOptions
from remat_cli.errors import GraphError
from remat_cli.prepare import Prepared, prepare
from remat_cli.readers.native import graph_sha256
from remat_cli.reports.schedule_json import ScheduleFile
from remat_cli.simulate import Trace, simulate


def with_mode(options: GraphOptions, mode: str | None) -> GraphOptions:
    """Return the options with this mode where none was given."""
    return replace(options, mode=mode) if options.mode is None else options


def replay(graph: Path, options: GraphOptions, file: ScheduleFile, schedule: Path) -> tuple[Prepared, Trace]:
    """Return the graph, and what the simulator measured of the schedule on it.

    Args:
        graph: the file that was planned.
        options: how it is read.
        file: what the schedule file says.
        schedule: its path, for messages.

    Raises:
        GraphError: the graph cannot be read, or is another one than the schedule was made for.
        InvalidSchedule: a step breaks a rule.
    """
    prepared = prepare(graph, options)
    if file.sha256 is not None and file.sha256 != graph_sha256(prepared.graph):
        raise GraphError(
            f"{schedule} was made for another graph than {prepared.graph.name!r} with these options (sha256 differs)",
            hint="give the options that it was planned with (--dim, --mode, --optimizer, --cost-model, --device, ...), "
            "or the file that 'remat convert' wrote with them",
        )
    return prepared, simulate(prepared.graph, file.schedule, bytes_per_time=prepared.bytes_per_time)
