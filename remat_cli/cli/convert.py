"""`remat convert`: any graph in the native format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, merge_config
from remat_cli.cli.output import Output, force_option
from remat_cli.errors import UsageError
from remat_cli.formats.native import graph_bytes
from remat_cli.prepare import prepare


@click.command("convert", cls=Verb)
@graph_argument
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Write the graph here; - is stdout."
)
@click.option("--training", is_flag=True, help="Derive the training graph, as plan does.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@graph_options
@force_option
def command(graph: Path, output: Path, training: bool, quiet: bool, **given: Any) -> None:
    """Write GRAPH in the native JSON format.

    A forward graph stays a forward graph, from which a training graph can be derived later, unless --training is given.
    With --training or --mode the file holds exactly the graph that `plan` with the same options plans: its sha256 is
    the one in the schedule.

    \b
    Examples:
      remat convert model.onnx -o graph.json --dim batch=8
      remat convert model.onnx -o training.json --dim batch=8 --training
    """
    config = merge_config(given)
    options = config.graph
    if training and options.mode == "inference":
        raise UsageError("--training contradicts --mode inference", hint="leave one of them out")
    streams = Output(quiet=quiet, writes={"-o": output}, reads=(graph, *config.files))
    prepared = prepare(graph, options, derive_training=training or options.mode == "training")
    streams.write(output, graph_bytes(prepared.graph))
    streams.notes(prepared.notes)
