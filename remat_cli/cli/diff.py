"""`remat diff`: the changes between two graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_options, merge_config, output_options
from remat_cli.cli.output import Output
from remat_cli.cli.stdin import READ
from remat_cli.config import GraphOptions
from remat_cli.errors import UsageError
from remat_cli.formats.memory_snapshot import is_snapshot
from remat_cli.prepare import prepare
from remat_cli.studies.eager import eager_peak_of


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
      remat diff train.py:step snapshot.pickle

    NEW may be a .pickle that torch.cuda.memory._dump_snapshot has recorded of OLD. Then predicted and recorded
    lifetimes are compared by module. A PyTorch step is predicted as eager PyTorch runs it, other graphs by their plain
    run.
    """
    from remat_cli.reports.terminal.difference import diff_report, diff_summary
    from remat_cli.studies.difference import Difference

    config = merge_config(given)
    streams = Output(as_json=as_json, quiet=quiet)
    if is_snapshot(old) or is_snapshot(new):
        _beside_recording(old, new, config.graph, streams)
        return
    eager_peaks = eager_peak_of(old, config.graph), eager_peak_of(new, config.graph)
    before, now = prepare(old, config.graph), prepare(new, config.graph)
    difference = Difference(before.graph, now.graph)
    streams.report(
        lambda: diff_report(before, now, difference, eager_peaks),
        lambda: diff_summary(before, now, difference, eager_peaks),
    )


def _beside_recording(graph: Path, snapshot: Path, options: GraphOptions, streams: Output) -> None:
    """Compare what a graph is predicted to allocate with what a snapshot has recorded."""
    if is_snapshot(graph):
        raise UsageError(
            f"{graph} is a recorded snapshot, and there is no graph before it",
            hint="name what was recorded first: remat diff train.py:step snapshot.pickle",
        )
    from remat_cli.formats.memory_snapshot import read_history
    from remat_cli.formats.model_config import names_step
    from remat_cli.pytorch.capture import check_installed
    from remat_cli.reports.terminal.reality import reality_report, reality_summary
    from remat_cli.studies.recorded import Reality, predict_eager, predict_plain

    history = read_history(snapshot)
    with streams.progress() as observe:
        observe.phase("predicting the step")
        if names_step(graph):
            check_installed()
            prediction = predict_eager(graph, options)
        else:
            prediction = predict_plain(prepare(graph, options).graph)
    reality = Reality(prediction, history)
    streams.report(lambda: reality_report(snapshot, reality), lambda: reality_summary(reality))
