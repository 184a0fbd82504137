"""`remat measure`: the time and workspace of each op."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options
from remat_cli.cli.output import Output, force_option
from remat_cli.config import GraphOptions
from remat_cli.errors import UsageError
from remat_cli.formats import has_fixed_sizes
from remat_cli.formats.model_config import names_step
from remat_cli.prepare import Prepared, prepare, prepare_reading
from remat_cli.pytorch.capture import check_installed
from remat_cli.units import format_names, parse_duration

if TYPE_CHECKING:
    from remat_cli.core.problem import Observer
    from remat_cli.costs import Measurements

_MOST_NAMED = 4


@click.command("measure", cls=Verb)
@graph_argument
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Write the measurements here; - is stdout."
)
@click.option("--time-limit", default="10m", show_default=True, metavar="30s", help="Of the run of an ONNX model.")
@graph_options
@output_options
@force_option
def command(graph: Path, output: Path, time_limit: str, as_json: bool, quiet: bool, **given: Any) -> None:
    """Run each op of GRAPH on random tensors, on this machine, and write how long it takes.

    Give the file to other verbs by --measurements: times and overheads are then those of this machine.

    The ops of a PyTorch step (pip install 'remat[torch]') run one at a time, in the memory of a single op. The memory
    that each kernel takes as workspace is measured too, and counts in predicted peaks. An ONNX model (pip install
    'remat[run]') runs as a whole in onnxruntime, with one thread; in training, the backward of an op counts as twice
    its forward. Ops whose workspace follows no known rule also run by themselves. The file holds for the sizes that
    were measured.

    \b
    Examples:
      remat measure train.py:step --dim batch=32 -o measured.json
      remat plan train.py:step --dim batch=32 --measurements measured.json --budget 8GB -o schedule.json
      remat measure model.onnx --dim batch=8 -o measured.json
    """
    from remat_cli.config.measurements import measurements_bytes
    from remat_cli.reports.terminal.measurements import measurements_report, measurements_summary

    config = merge_config(given)
    # The kernels are the same on any number of ranks, and collectives are not measured.
    options = replace(config.graph, ranks=None)
    if options.measurements is not None or options.cost_model is not None:
        raise UsageError("measure makes times; --measurements and --cost-model use them", hint="leave them out")
    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output}, reads=(graph, *config.files))
    with streams.progress() as observe:
        if names_step(graph):
            prepared, measured = _of_step(graph, options, observe)
        else:
            prepared, measured = _of_model(graph, options, parse_duration(time_limit), observe)
    prepared, measured = _completed(prepared, replace(measured, dims=options.dims))
    streams.write(output, measurements_bytes(measured, prepared.graph.name))
    streams.report(
        lambda: measurements_report(prepared, measured, output),
        lambda: measurements_summary(prepared, measured, output),
    )


def _of_step(graph: Path, options: GraphOptions, observe: Observer) -> tuple[Prepared, Measurements]:
    check_installed()
    from remat_cli.pytorch.capture.reader import take_step
    from remat_cli.pytorch.memory.measure import measure_joint

    observe.phase("reading the step")
    taken = take_step(str(graph), options)
    prepared = prepare_reading(taken.reading(), str(graph), options)
    return prepared, measure_joint(taken.joint, taken.device, observe)


def _of_model(
    graph: Path, options: GraphOptions, time_limit: float, observe: Observer
) -> tuple[Prepared, Measurements]:
    from remat_cli.runtime.onnx.execution import check_can_measure
    from remat_cli.runtime.onnx.measure import measure_model

    if has_fixed_sizes(graph):
        raise UsageError(
            f"{graph} has no kernels that could run",
            hint="measure the ONNX model or PyTorch step that it comes from",
        )
    check_can_measure()
    # The file has no backward pass: the measured ops are those of the forward pass.
    options = replace(options, mode="inference", optimizer=None)
    prepared = prepare(graph, options)
    return prepared, measure_model(graph, options, prepared.graph, time_limit=time_limit, observe=observe)


def _completed(prepared: Prepared, measured: Measurements) -> tuple[Prepared, Measurements]:
    """Fill in missing measurements from the roofline model, with a note."""
    missing = measured.missing(prepared.graph)
    if not missing:
        return prepared, measured
    named = format_names(list(missing), _MOST_NAMED)
    note = f"not measured, and written with the times that {prepared.costs} gives them: {named}"
    times = {**missing, **measured.times_ns}
    return replace(prepared, notes=(*prepared.notes, note)), replace(measured, times_ns=times)
