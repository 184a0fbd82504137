"""`remat inspect`: the memory that a graph needs, before planning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options
from remat_cli.cli.output import Output
from remat_cli.cli.stopwatch import Stopwatch
from remat_cli.config import load_device
from remat_cli.core.solve import baseline_of
from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.memory_snapshot import is_snapshot, read_snapshot
from remat_cli.prepare import prepare
from remat_cli.studies.eager import EagerReplay, eager_run


@click.command("inspect", cls=Verb)
@graph_argument
@graph_options
@click.option("--division", is_flag=True, help="Show the division tree too: the independent segments that acg plans.")
@output_options
def command(graph: Path, division: bool, as_json: bool, quiet: bool, **given: Any) -> None:
    """Show what GRAPH needs: its plain peak, what fills it, and the least that any plan needs.

    \b
    Examples:
      remat inspect model.onnx --dim batch=8 --dim seq=512
      remat inspect graph.json --json
      remat inspect graph.json --division
      remat inspect snapshot.pickle

    A .pickle that torch.cuda.memory._dump_snapshot has recorded is read too, safely: its peak, what fills that, and
    what the allocator had reserved.
    """
    from remat_cli.reports.phrasing import notes_on_outputs, notes_on_workspace
    from remat_cli.reports.safe_text import Report
    from remat_cli.reports.summary import eager_summary, inspect_summary
    from remat_cli.reports.terminal.division import division_report, division_summary
    from remat_cli.reports.terminal.plan import eager_report, inspect_report, notes_section
    from remat_cli.reports.terminal.recorded import recorded_report, recorded_summary

    config = merge_config(given)
    streams = Output(as_json=as_json, quiet=quiet)
    if is_snapshot(graph):
        if division:
            raise UsageError("--division is of graphs, and a recorded snapshot has none", hint="leave it out")
        recorded = read_snapshot(graph)
        streams.report(lambda: recorded_report(graph, recorded), lambda: recorded_summary(recorded))
        return
    watch = Stopwatch()
    notes: list[str] = []
    eager, prepared = None, None
    with watch.stage("reading"):
        try:
            eager = eager_run(graph, config.graph)
        except GraphError as error:
            notes.append(f"what the step takes without a plan is not known: {error}")
    if (seen := eager) is not None:
        streams.first(lambda: eager_report(seen, shown=config.report))
        # Another run of the step: after the first figure.
        with watch.stage("reading"):
            notes += notes_on_outputs(seen.peak_bytes, seen.let_go_bytes)
        notes += [*seen.step.notes, *_notes_on_device(seen), *notes_on_workspace(seen.peak_bytes, seen.uncounted_bytes)]
    try:
        with watch.stage("reading"):
            prepared = prepare(graph, config.graph)
        with watch.stage("judging"):
            baseline_of(prepared.graph)
    except (GraphError, UsageError) as error:
        # Times of gathers need a device; eager's peak does not.
        if eager is None or (isinstance(error, UsageError) and config.graph.ranks is None):
            raise
        notes.append(f"there is no plan for the step: {error}")
    if prepared is None:
        assert seen is not None, "otherwise the error was raised"
        only = seen
        streams.report(lambda: Report(*notes_section(notes)), lambda: {"eager": eager_summary(only), "notes": notes})
        return
    ready = replace(prepared, notes=(*prepared.notes, *notes))

    def report() -> Report:
        whole = inspect_report(ready, eager=eager, shown=config.report, seconds=watch.seconds)
        return Report(whole, division_report(ready.graph)) if division else whole

    def summary() -> dict[str, Any]:
        whole = {**inspect_summary(ready), "seconds": watch.seconds}
        first = {} if eager is None else {"eager": eager_summary(eager)}
        return {**first, **whole, **({"division": division_summary(ready.graph)} if division else {})}

    streams.report(report, summary)


def _notes_on_device(eager: EagerReplay) -> list[str]:
    """Return notes on the device that the call names: its kernels, and whether eager fits."""
    from remat_cli.reports.phrasing import note_on_room

    name = eager.prepared.options.device
    if name is None:
        return []
    device = load_device(name)
    return [*eager.step.kernels, note_on_room(eager.peak_bytes, device.name, device.memory_bytes)]
