"""`remat fuse`: a model fused by onnxruntime's optimiser, for planning."""

from __future__ import annotations

from pathlib import Path

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import output_options
from remat_cli.cli.output import STDOUT, Output, force_option
from remat_cli.cli.stdin import READ


@click.command("fuse", cls=Verb)
@click.argument("model", type=READ, metavar="MODEL.onnx")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Write the model here; - is stdout."
)
@click.option(
    "--for-this-machine",
    is_flag=True,
    help="Also lay out tensors for this processor: faster, but only on processors like this one.",
)
@output_options
@force_option
def command(model: Path, output: Path, for_this_machine: bool, as_json: bool, quiet: bool) -> None:
    """Write MODEL as onnxruntime's optimiser leaves it: ops fused, constants computed. Plan the file that this writes.

    A planned model has to run without the optimiser, which would merge the recomputed ops again. To have fused kernels
    as well, fuse first and plan second. This needs onnxruntime (pip install 'remat[run]') and the weights; another
    version of onnxruntime may fuse other ops.

    \b
    Examples:
      remat fuse model.onnx -o fused.onnx
      remat plan fused.onnx --mode inference --dim batch=8 --budget 60% -o schedule.json
      remat apply fused.onnx schedule.json -o planned.onnx
    """
    from remat_cli.formats.onnx.external_data import rebase
    from remat_cli.reports.terminal.fusion import fusion_report, fusion_summary
    from remat_cli.runtime.onnx.apply import model_bytes
    from remat_cli.runtime.onnx.fuse import fuse

    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output}, reads=(model,))
    with streams.progress() as observe:
        observe.phase("fusing")
        fused = fuse(model, for_this_machine=for_this_machine)
    if output != STDOUT:
        rebase(fused.proto, model, output)
    streams.write(output, model_bytes(fused.proto))
    streams.report(lambda: fusion_report(model, fused, output), lambda: fusion_summary(model, fused, output))
