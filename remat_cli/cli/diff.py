"""`remat diff`: the changes between two graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_options, merge_config, output_options
from remat_cli.cli.output import Output
from remat_cli.cli.stdin import READ
from remat_cli.prepare import prepare


@click.command("diff", cls=Verb)
@click.argument("old", type=READ, metavar="OLD")
@click.argument("new", type=READ, metavar="NEW")
@graph_options
@output_options
def command(old: Path, new: Path, as_json: bool, quiet: bool, **given: Any) -> None:
    """Show what the plain peaks of two graphs differ by, and which ops are new or gone.

    Ops are matched by name and, where names have changed, by type and shapes. Options such as --dim hold for both.

    \b
    Examples:
      git show main:model.onnx > before.onnx
      remat diff before.onnx model.onnx --dim batch=8
    """
    from remat_cli.reports.terminal.difference import diff_report, diff_summary
    from remat_cli.studies.difference import Difference

    config = merge_config(given)
    streams = Output(as_json=as_json, quiet=quiet)
    before, now = prepare(old, config.graph), prepare(new, config.graph)
    difference = Difference(before.graph, now.graph)
    streams.report(lambda: diff_report(before, now, difference), lambda: diff_summary(before, now, difference))
