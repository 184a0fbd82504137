"""`remat compare`: planners side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli.comparison_options import planner_files, planners_options, read_planners, refused_by_all
from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_options, merge_config, output_options
from remat_cli.cli.output import Output, force_option
from remat_cli.cli.stdin import READ, called
from remat_cli.config import GraphOptions, Request
from remat_cli.core.problem import Observer
from remat_cli.errors import ExitCode, RematError, UsageError
from remat_cli.formats import has_fixed_sizes
from remat_cli.formats.reader import ALL_OTHER_DIMS
from remat_cli.prepare import Prepared, prepare_without_absent_dims
from remat_cli.units import BudgetSpec, parse_budgets

if TYPE_CHECKING:
    from remat_cli.reports.terminal.compare import Contest

DEFAULT_BUDGETS = "80%,60%,40%"


@click.command("compare", cls=Verb)
@click.argument("graphs", type=READ, metavar="GRAPH...", nargs=-1, required=True)
@click.option(
    "--budgets",
    "--budget",
    "budgets",
    metavar="LIST",
    default=DEFAULT_BUDGETS,
    show_default=True,
    help="Sizes, shares of each plain run's peak, and ranges such as 40%..80%:5, separated by commas.",
)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write a line for each plan; - is stdout.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write a Markdown table; - is stdout.")
@click.option("--no-timing", is_flag=True, help="Leave out how long planners took, so that the output repeats.")
@graph_options
@planners_options
@output_options
@force_option
def command(
    graphs: tuple[Path, ...],
    budgets: str,
    csv_file: Path | None,
    markdown: Path | None,
    no_timing: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Set planners side by side: overhead, peak, time, bound, status, and how long each took, on each GRAPH.

    Each planner is asked at each budget, and each plan is replayed. A planner that cannot take a graph says why; the
    others go on. Options such as --dim hold for all graphs; one that lacks a dimension is read without it. The exit
    code is 0 if every budget of every graph has a plan.

    \b
    Examples:
      remat compare model.onnx --dim batch=8 --planners approx_dp,rotor,dtr --budgets 60%
      remat compare a.json b.json --planners all --time-limit 30s --markdown results.md
      remat compare graph.json --planners retention,mine.yaml --option retention.cores=1 --csv results.csv
    """
    from remat_cli.reports.terminal.compare import (
        compare_csv,
        compare_markdown,
        compare_report,
        compare_status,
        compare_summary,
    )

    config = merge_config(given)
    requests = read_planners(given, config)
    sizes = parse_budgets(budgets)
    if any(size.smallest for size in sizes):
        raise UsageError("compare asks all planners at the same budgets, and min differs", hint="see `remat budget`")
    writes, reads = {"--csv": csv_file, "--markdown": markdown}, (*graphs, *config.files, *planner_files(given))
    streams = Output(as_json=as_json, quiet=quiet, writes=writes, reads=reads)
    others = [label for label, request in requests.items() if not request.offload]
    if config.request.offload and others:
        streams.notes([f"--offload makes no difference to {', '.join(others)}"])
    with streams.progress() as observe:
        observe.phase("reading the graphs")
        prepared = _prepared(graphs, config.graph, streams, split=config.request.split)
        contests = _contests(prepared, requests, sizes, observe)
    if not any(contest.sweep.points for contest in contests):
        raise refused_by_all([curve for contest in contests for curve in contest.sweep.curves])
    if csv_file is not None:
        streams.write(csv_file, compare_csv(contests, timing=not no_timing))
    if markdown is not None:
        streams.write(markdown, compare_markdown(contests, timing=not no_timing))
    streams.report(
        lambda: compare_report(contests, timing=not no_timing),
        lambda: compare_summary(contests, timing=not no_timing),
    )
    return ExitCode.INTERRUPTED if contests[-1].sweep.interrupted else compare_status(contests).exit_code


def _prepared(
    graphs: Sequence[Path], options: GraphOptions, streams: Output, *, split: bool
) -> list[tuple[Path, Prepared]]:
    """Read the graphs; with several, a graph may lack given dims."""
    from remat_cli.planning.memory_need import notes_on_memory

    optional = frozenset(options.dims) if len(graphs) > 1 else frozenset()
    prepared = []
    for path in graphs:
        try:
            prepared.append((path, prepare_without_absent_dims(path, options, optional, split=split)))
            streams.notes(notes_on_memory(prepared[-1][1].graph))
        except RematError as error:
            if len(graphs) > 1:
                error.name_file(str(called(path)))
            raise
    for dim in sorted(optional - {ALL_OTHER_DIMS}):
        absent = [str(called(path)) for path, graph in prepared if dim not in graph.options.dims]
        if len(absent) == len(graphs) and not all(map(has_fixed_sizes, graphs)):
            raise UsageError(f"none of the graphs has a dimension {dim!r}", hint="check its name, or leave it out")
        if absent:
            streams.notes([f"read without --dim {dim}, which it does not have: {name}" for name in absent])
    return prepared


def _contests(
    prepared: list[tuple[Path, Prepared]],
    requests: Mapping[str, Request],
    sizes: tuple[BudgetSpec, ...],
    observe: Observer,
) -> list[Contest]:
    """Run the planners graph by graph, until the user interrupts."""
    from remat_cli.reports.terminal.compare import Contest
    from remat_cli.studies.eager import eager_peak_of
    from remat_cli.studies.progress import Prefixed
    from remat_cli.studies.sweep import sweep

    contests: list[Contest] = []
    for number, (path, graph) in enumerate(prepared, start=1):
        where = f"{path.name} ({number} of {len(prepared)}) · " if len(prepared) > 1 else ""
        try:
            eager_peak = eager_peak_of(path, graph.options)
            swept = sweep(graph, requests, sizes, Prefixed(observe, where), share_plans=False)
        except KeyboardInterrupt:
            if not contests:
                raise
            contests[-1] = replace(contests[-1], sweep=replace(contests[-1].sweep, interrupted=True))
            break
        contests.append(Contest(str(called(path)), graph, swept, eager_peak))
        if swept.interrupted:
            break
    return contests
