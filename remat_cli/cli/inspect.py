"""`remat inspect`: what a graph needs before anything is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options
from remat_cli.cli.output import Output
from remat_cli.prepare import prepare


@click.command("inspect")
@graph_argument
@graph_options
@output_options
def command(graph: Path, as_json: bool, quiet: bool, **given: Any) -> None:
    """Show what GRAPH needs: its plain peak, what fills it, and the least that any plan needs.

    \b
    remat inspect model.onnx --dim batch=8 --dim seq=512
    remat inspect graph.json --json
    """
    from remat_cli.reports.summary import inspect_summary
    from remat_cli.reports.terminal import inspect_report

    config = merge_config(given)
    streams = Output(as_json=as_json, quiet=quiet)
    prepared = prepare(graph, config.graph)
    streams.report(lambda: inspect_report(prepared, shown=config.report), lambda: inspect_summary(prepared))
