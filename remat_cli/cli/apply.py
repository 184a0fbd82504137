"""`remat apply`: an ONNX model that runs a schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from remat_cli.checks.schedule_file import as_planned, replay, taken_from_file
from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_options, merge_config, output_options
from remat_cli.cli.output import STDOUT, Output, force_option
from remat_cli.cli.stdin import READ
from remat_cli.core.schedule import with_frees
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.schedule_json import read_schedule
from remat_cli.settings import over
from remat_cli.units import format_names

_MOST_NAMED = 4


@click.command("apply", cls=Verb)
@click.argument("model", type=READ, metavar="MODEL.onnx")
@click.argument("schedule", type=READ, metavar="SCHEDULE")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Write the model here; - is stdout."
)
@click.option("--execute", is_flag=True, help="Run the new model too, with session_options() and without.")
@graph_options
@output_options
@force_option
def command(model: Path, schedule: Path, output: Path, execute: bool, as_json: bool, quiet: bool, **given: Any) -> None:
    """Write MODEL with its nodes in the order of SCHEDULE; recomputed nodes are repeated under new names.

    SCHEDULE must be for inference. It records the options with which MODEL was read; they need not be given again.
    onnxruntime runs the result as planned with the options that remat_cli.session_options() returns; with its default
    options it merges the repeated nodes. Weights are never opened: if they lie in separate files, write the result
    beside them.

    \b
    Examples:
      remat plan model.onnx --mode inference --dim batch=8 --budget 2GB -o schedule.json
      remat apply model.onnx schedule.json -o planned.onnx
      remat apply model.onnx schedule.json -o planned.onnx --execute
      remat verify model.onnx schedule.json --execute
    """
    from remat_cli.formats.onnx.external_data import absent_files, rebase
    from remat_cli.reports.terminal.execution import apply_report, apply_summary
    from remat_cli.runtime.onnx.apply import (
        apply_schedule,
        check_can_apply,
        checked,
        each_in_parts,
        model_bytes,
        read_for,
    )
    from remat_cli.runtime.onnx.execution import check_can_measure, check_parts, in_both_sessions
    from remat_cli.runtime.onnx.node_order import without_dead_ops

    config = merge_config(given)
    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output}, reads=(model, schedule, *config.files))
    file = read_schedule(schedule)
    planned = as_planned(config.said, file)
    options = replace(planned, mode=planned.mode or "inference")
    check_can_apply(model, options, file.schedule)
    if execute:
        check_can_measure()
    taken = taken_from_file(config.said, options)
    prepared, _ = replay(model, over(config.said, {"mode": options.mode}), file, schedule)
    graph = prepared.graph
    live = without_dead_ops(graph)
    # The runtime frees every value as early as possible, whatever the file says.
    run = with_frees(live, [name for name in file.schedule.computes if name in live.op])
    trace = simulate(live, run)
    plain = baseline_of(prepared.undivided)
    facts = {
        "planner": file.planner,
        "budget_bytes": file.budget_bytes,
        "peak_bytes": trace.peak_bytes,
        "plain_peak_bytes": plain.peak_bytes,
        "graph_sha256": graph_sha256(graph),
    }
    rewritten = apply_schedule(model, options, graph, file.schedule, facts)
    notes = [*prepared.notes, *checked(rewritten.proto, model)]
    if dead := [op.name for op in graph.ops if op.name not in live.op]:
        notes.append(f"left out, as no output depends on them: {format_names(dead, _MOST_NAMED)}")
    if absent := absent_files(rewritten.proto, model):
        notes.append(
            f"files of weights that the model refers to are missing; put them beside the new file: {', '.join(absent)}"
        )
    if options.parts:
        with streams.progress() as observe:
            whole, regions = read_for(model, options, keep_data=False), each_in_parts(model, options)
            notes.append(check_parts(model, whole, rewritten, graph, regions, observe))
    prepared = replace(prepared, notes=tuple(notes))
    execution = None
    if execute:
        with streams.progress() as observe:
            execution = in_both_sessions(
                model,
                read_for(model, options, keep_data=False),
                live,
                run,
                rewritten=rewritten.proto,
                observe=observe,
            )
    if output != STDOUT:
        rebase(rewritten.proto, model, output)
    streams.write(output, model_bytes(rewritten.proto))
    streams.report(
        lambda: apply_report(prepared, plain, trace, rewritten, output, taken=taken, execution=execution),
        lambda: apply_summary(prepared, plain, trace, rewritten, output, taken=taken, execution=execution),
    )
