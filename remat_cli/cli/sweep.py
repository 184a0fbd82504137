"""`remat sweep`: overhead against budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remat_cli.cli.comparison_options import planner_files, planners_options, read_planners, refused_by_all
from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options
from remat_cli.cli.output import Output, force_option
from remat_cli.errors import ExitCode
from remat_cli.prepare import prepare
from remat_cli.units import parse_budgets

DEFAULT_BUDGETS = "30%..100%:8"


@click.command("sweep", cls=Verb)
@graph_argument
@click.option(
    "--budgets",
    "--budget",
    "budgets",
    metavar="LIST",
    default=DEFAULT_BUDGETS,
    show_default=True,
    help="Sizes, shares of the plain run's peak, ranges with a number of budgets, and min, separated by commas.",
)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write a line for each point; - is stdout.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curves: a file that ends in .png or .svg.")
@graph_options
@planners_options
@output_options
@force_option
def command(
    graph: Path, budgets: str, csv_file: Path | None, plot: Path | None, as_json: bool, quiet: bool, **given: Any
) -> int:
    """Show what memory costs: the overhead of GRAPH's plans against the budget, its knee and its smallest budget.

    Each plan is replayed. A faster plan from another budget that fits here is taken over and marked, so that more
    memory never makes a curve worse. min searches the smallest budget, which takes about twenty plans. With --offload
    there are two curves: recomputation alone, and recomputation with transfers to the host.

    \b
    Examples:
      remat sweep model.onnx --dim batch=8
      remat sweep model.onnx --dim batch=8 --budgets 30%..100%:15 --planner rotor,approx_dp --plot curves.svg
      remat sweep model.onnx --dim batch=8 --device a100 --offload
      remat sweep graph.json --budgets min,2GB..8GB:7 --csv curve.csv
    """
    from remat_cli.planning.memory_need import notes_on_memory
    from remat_cli.reports.plot import check_can_plot, sweep_plot
    from remat_cli.reports.terminal.sweep import sweep_csv, sweep_report, sweep_summary
    from remat_cli.studies.eager import eager_peak_of
    from remat_cli.studies.sweep import sweep

    config = merge_config(given)
    requests = read_planners(given, config, twice=True)
    sizes = parse_budgets(budgets)
    reads = (graph, *config.files, *planner_files(given))
    streams = Output(as_json=as_json, quiet=quiet, writes={"--csv": csv_file, "--plot": plot}, reads=reads)
    if plot is not None:
        check_can_plot(plot)
    with streams.progress() as observe:
        observe.phase("reading the graph")
        eager_peak = eager_peak_of(graph, config.graph)
        prepared = prepare(graph, config.graph, split=config.request.split)
        streams.notes(notes_on_memory(prepared.graph))
        result = sweep(prepared, requests, sizes, observe)
    if not result.points:
        raise refused_by_all(result.curves)
    if csv_file is not None:
        streams.write(csv_file, sweep_csv(result, prepared))
    if plot is not None:
        streams.write(plot, sweep_plot(result, prepared.graph, plot.suffix.lower()))
    streams.report(
        lambda: sweep_report(result, prepared, eager_peak), lambda: sweep_summary(result, prepared, eager_peak)
    )
    return ExitCode.INTERRUPTED if result.interrupted else result.status.exit_code
