"""`remat fit`: the largest value of a dimension that fits a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from remat_cli.cli.comparison_options import with_short_limit
from remat_cli.cli.help import Verb
from remat_cli.cli.options import output_options, planner_options, read_call, searched_graph_options, setting_option
from remat_cli.cli.output import Output, force_option
from remat_cli.cli.stdin import READ
from remat_cli.config import GraphOptions, Request, load_measurements
from remat_cli.errors import ExitCode, UsageError
from remat_cli.formats import has_fixed_sizes
from remat_cli.units import BudgetSpec

_MOST = 1 << 20


@click.command("fit", cls=Verb)
@click.argument("model", type=READ, metavar="MODEL")
@setting_option(Request, "budget", help="Total device memory: 8GB (10^9), 8GiB (2^30) or bytes.")
@setting_option(Request, "max_overhead")
@click.option("--multiple-of", type=click.IntRange(min=1), default=1, show_default=True, help="Step of the values.")
@click.option("--at-most", type=click.IntRange(min=1), default=_MOST, show_default=True, help="Largest value tried.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the plan's schedule here; - is stdout.")
@searched_graph_options
@planner_options
@output_options
@force_option
def command(
    model: Path, output: Path | None, multiple_of: int, at_most: int, as_json: bool, quiet: bool, **given: Any
) -> int:
    """Search the largest value of a dimension of MODEL that fits: the largest batch, say, that can be trained.

    MODEL is ONNX with a symbolic dimension, or a PyTorch step; --dim without a value names the dimension. The report
    has three values: the largest that fits without a plan (of a PyTorch step: in eager mode), the largest for which a
    plan was found, and the one above which no plan in any order fits. The planner gets 10 seconds for each value that
    is tried, unless --time-limit or a config says otherwise. Of a model's config it has the settings of trainers, too:
    the largest value with checkpoints, adapters and an 8-bit optimizer, without a plan.

    \b
    Examples:
      remat fit model.onnx --dim batch --budget 16GB
      remat fit model.onnx --dim batch --dim seq=512 --budget 24GB --max-overhead 20% -o schedule.json
      remat fit model.onnx --dim seq --dim batch=1 --budget 80GB --multiple-of 128
    """
    from remat_cli.formats.model_config import is_model_config
    from remat_cli.reports.terminal.fit import fit_report, fit_summary
    from remat_cli.studies.eager import eager_peak_of, known_eager_run
    from remat_cli.studies.fit import Question, fit, fit_eager
    from remat_cli.studies.model_by_size import ModelBySize
    from remat_cli.studies.trainer_settings import fit_settings

    dim, values = _split_dims(given["dims"])
    config = read_call({**given, "dims": values})
    choice = config.request.chosen
    _check_budget(config.request.budget)
    question = Question(dim, replace(config.request, planner=with_short_limit(choice)), multiple_of, at_most)
    if has_fixed_sizes(model):
        raise UsageError(f"{model}: sizes in a JSON graph are fixed", hint="give the model that it came from")
    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output}, reads=(model, *config.files))
    options = config.graph
    if options.measurements is not None and dim in load_measurements(Path(options.measurements)).dims:
        raise UsageError(
            f"{options.measurements} was measured at one size of {dim!r}, and fit tries many",
            hint="search without it; then measure and plan at the size that was found",
        )

    sized = ModelBySize(model, options, dim, config.request.split)
    with streams.progress() as observe:
        result = fit(question, sized.at, observe, sized.predict_at)
        shown = [at.value for at in (result.plain, result.shown) if at is not None]
        eager = fit_eager(question, lambda value: eager_peak_of(model, sized.options_at(value)), observe, shown)

        def run(options: GraphOptions) -> tuple[int, int] | None:
            ran = known_eager_run(model, options)
            return None if ran is None else (ran.peak_bytes, ran.trace.time)

        tried = (
            ()
            if eager is None or not is_model_config(model)
            else fit_settings(question, sized.options_at, run, observe)
        )
    if output is not None:
        streams.write(output, result.planning.schedule_file)
    streams.report(lambda: fit_report(result, choice, eager, tried), lambda: fit_summary(result, eager, tried))
    return ExitCode.INTERRUPTED if result.interrupted else result.solution.status.exit_code


def _split_dims(texts: Sequence[str]) -> tuple[str, list[str]]:
    """Split the dimension to search from those with values."""
    searched = [text for text in texts if "=" not in text]
    values = [text for text in texts if "=" in text]
    if len(searched) != 1:
        named = " and ".join(map(repr, searched))
        raise UsageError(
            f"fit searches one dimension, not {named}" if searched else "fit needs a dimension to search",
            hint="name it with --dim batch, and give each other one a value: --dim seq=512",
        )
    if any(text.rpartition("=")[0] == searched[0] for text in values):
        raise UsageError(f"--dim {searched[0]!r} is to be searched, and has a value too", hint="leave one of them out")
    return searched[0], values


def _check_budget(budget: BudgetSpec | None) -> None:
    if budget is None or budget.device_bytes is None:
        raise UsageError(
            "fit needs a budget" if budget is None else f"fit needs a budget in bytes, not {budget}",
            hint="give the memory of the device: --budget 16GB",
        )
