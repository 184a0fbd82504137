"""`remat allocate`: offsets for a schedule or a table of buffers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_options, merge_config, output_options
from remat_cli.cli.output import STDOUT, Output, force_option
from remat_cli.cli.stdin import READ, is_stdin
from remat_cli.config import RunConfig
from remat_cli.errors import ExitCode, UsageError
from remat_cli.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from remat_cli.allocation.banks import BankAllocation
    from remat_cli.allocation.portfolio import Allocation
    from remat_cli.core.arena import Bank
    from remat_cli.planners.shared.limits import Limits

    # banks, the largest arena, or None for the smallest arena
    _Room = tuple[Bank, ...] | int | None


@click.command("allocate", cls=Verb)
@click.argument("source", type=READ, metavar="GRAPH|BUFFERS.csv")
@click.argument("schedule", type=READ, metavar="[SCHEDULE]", required=False)
@click.option(
    "--capacity", metavar="SIZE", help="Largest arena: 1MiB, bytes. [default: none, the smallest that is found]"
)
@click.option(
    "--bank",
    "banks",
    multiple=True,
    metavar="NAME=SIZE[:SPEED]",
    help="A memory of its own, such as sram=512KiB or psram=8MiB:0.4, with its speed beside the first; repeatable. The "
    "bytes that move most lie in the fastest.",
)
@click.option(
    "--alignment",
    type=click.IntRange(1, 2**40),
    metavar="BYTES",
    help="Offsets and the arena's size are multiples of it. [default: 64 for a schedule, 1 for buffers]",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write SCHEDULE or BUFFERS with addresses here.")
@click.option("--time-limit", default="1m", show_default=True, metavar="30s", help="Stop the search after this time.")
@click.option(
    "-j", "--cores", type=click.IntRange(min=0), default=0, metavar="N", help="Cores to use. [default: 0, all]"
)
@graph_options
@output_options
@force_option
def command(
    source: Path,
    schedule: Path | None,
    capacity: str | None,
    banks: tuple[str, ...],
    alignment: int | None,
    output: Path | None,
    time_limit: str,
    cores: int,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Give everything that SCHEDULE keeps in memory an address in one block, so that nothing overlaps.

    Graph inputs, results and workspaces lie in the arena; resident bytes lie beside it, in a block of their own. The
    judge that checks schedules checks the addresses, too. "infeasible" is said only where it is proven.

    BUFFERS.csv, in MiniMalloc's format, needs no graph. Its columns are id, lower, upper and size: a buffer is in
    memory from lower until just before upper. The output adds the column offset.

    \b
    Examples:
      remat allocate model.onnx schedule.json -o placed.json
      remat allocate buffers.csv --capacity 1MiB -o placed.csv
      remat allocate buffers.csv --bank sram=512KiB --bank psram=8MiB:0.4 -o placed.csv
    """
    from remat_cli.allocation.portfolio import limits_of
    from remat_cli.config.banks import parse_banks

    if banks and capacity is not None:
        raise UsageError("--capacity and --bank do not go together", hint="the banks say how large they are")
    limit = None if capacity is None else parse_bytes(capacity)
    seconds = parse_duration(time_limit)
    config = merge_config(given)
    reads = (source, *config.files) if schedule is None else (source, schedule, *config.files)
    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output}, reads=reads)
    room = parse_banks(banks) or limit
    limits = limits_of(seconds, cores=cores)
    if schedule is None:
        allocation, content, title = _of_buffers(source, limits, room, alignment or 1, streams)
    else:
        allocation, content, title = _of_schedule(source, schedule, limits, room, alignment, streams, config)
    if output is not None and content is not None:
        streams.write(output, content)
    written = None if content is None or output in (None, STDOUT) else output
    _report(streams, allocation, title, room, written)
    return ExitCode.INTERRUPTED if allocation.interrupted else allocation.status.exit_code


def _report(
    streams: Output, allocation: Allocation | BankAllocation, title: str, room: _Room, written: Path | None
) -> None:
    from remat_cli.allocation.portfolio import Allocation
    from remat_cli.reports.terminal.allocation import (
        allocation_report,
        allocation_summary,
        banks_report,
        banks_summary,
    )

    if isinstance(allocation, Allocation):
        limit = room if isinstance(room, int) else None
        streams.report(
            lambda: allocation_report(allocation, title, capacity=limit, written=written),
            lambda: allocation_summary(allocation, capacity=limit),
        )
    elif isinstance(room, tuple):
        streams.report(
            lambda: banks_report(allocation, title, banks=room, written=written),
            lambda: banks_summary(allocation, banks=room),
        )


def _of_buffers(
    path: Path, limits: Limits, room: _Room, alignment: int, streams: Output
) -> tuple[Allocation | BankAllocation, bytes | None, str]:
    """Search offsets for a file of buffers.

    Return the result, the file with offsets (None without any), and a title.
    """
    from remat_cli.allocation.banks import allocate_in_banks
    from remat_cli.allocation.portfolio import allocate
    from remat_cli.formats.buffers_csv import read_buffers
    from remat_cli.formats.source import Source

    if Source(path).is_json or (path.suffix != ".csv" and not is_stdin(path)):
        raise UsageError(
            f"{path} is no table of buffers (.csv)", hint="a graph needs a schedule: remat allocate GRAPH SCHEDULE"
        )
    file = read_buffers(path)
    title = f"{path.name} · {len(file.buffers):,} buffers"
    with streams.progress() as observe:
        if not isinstance(room, tuple):
            allocation = allocate(file.buffers, limits, capacity=room, alignment=alignment, observe=observe)
            return allocation, None if allocation.offsets is None else file.with_offsets(allocation.offsets), title
        chosen = allocate_in_banks(file.buffers, file.traffic, room, limits, alignment=alignment, observe=observe)
    if chosen.offsets is None or chosen.banks is None:
        return chosen, None, title
    return chosen, file.with_offsets(chosen.offsets, [room[bank].name for bank in chosen.banks]), title


def _of_schedule(
    graph: Path,
    schedule: Path,
    limits: Limits,
    room: _Room,
    alignment: int | None,
    streams: Output,
    config: RunConfig,
) -> tuple[Allocation | BankAllocation, bytes | None, str]:
    """Search offsets for a schedule.

    Return the result, its file with addresses (None without any), and a title.
    """
    from dataclasses import replace

    from remat_cli.allocation.of_schedule import arena_in_banks, arena_of
    from remat_cli.checks.schedule_file import replay
    from remat_cli.core.arena import USUAL_ALIGNMENT, check_arena
    from remat_cli.formats.schedule_json import read_schedule, with_arena

    file = replace(read_schedule(schedule), arena=None)  # addresses in the file are replaced, right or wrong
    with streams.progress() as observe:
        observe.phase("replaying the schedule")
        prepared, _ = replay(graph, config.said, file, schedule)
        asked = prepared.graph, file.schedule
        alignment = alignment or USUAL_ALIGNMENT
        allocation: Allocation | BankAllocation
        if isinstance(room, tuple):
            allocation, arena = arena_in_banks(*asked, room, limits, alignment=alignment, observe=observe)
        else:
            allocation, arena = arena_of(*asked, limits, capacity=room, alignment=alignment, observe=observe)
    if arena is not None:
        check_arena(prepared.graph, file.schedule, arena)
    content = None if arena is None else with_arena(schedule, arena)
    return allocation, content, f"{schedule.name} · {len(file.schedule.steps):,} steps of {prepared.graph.name}"
