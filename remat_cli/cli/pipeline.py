"""`remat plan --stages` and `remat verify` of its files: pipelines over several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.checks.schedule_file import with_recorded
from remat_cli.cli.output import Output
from remat_cli.config import RunConfig
from remat_cli.core.graph import Draft
from remat_cli.errors import ExitCode, InvalidSchedule, UsageError
from remat_cli.reports.viewers import Form
from remat_cli.settings import Said
from remat_cli.units import format_bytes, parse_rate

if TYPE_CHECKING:
    from remat_cli.pipelines import Pipeline, Replay
    from remat_cli.pipelines.file import PipelineFile
    from remat_cli.prepare import Prepared

_NS = 10**9


@dataclass(frozen=True)
class PipelineOptions:
    """The options of `remat plan` for pipelines, as given.

    Attributes:
        stages: number of ranks; None without a pipeline.
        microbatches: number of microbatches.
        chunks: chunks of each rank.
        chunk_order: which rank holds which chunk.
        cuts: where the model is cut, or auto.
        stage_bandwidth: rate between two ranks.
        split_backward: whether gradients of weights are jobs of their own.
        budget: budget of all ranks, or of each.
    """

    stages: int | None
    microbatches: int | None
    chunks: int | None
    chunk_order: str | None
    cuts: str | None
    stage_bandwidth: str | None
    split_backward: bool | None
    budget: str | None

    @classmethod
    def taken_from(cls, given: dict[str, Any]) -> PipelineOptions:
        """Take the options out of those of a call; with --stages, its budget too.

        Raises:
            UsageError: one is given without --stages.
        """
        names = ("stages", "microbatches", "chunks", "chunk_order", "cuts", "stage_bandwidth", "split_backward")
        values = {name: given.pop(name) for name in names}
        if values["stages"] is None:
            alone = next((name for name, value in values.items() if value is not None), None)
            if alone is not None:
                flag = f"--{alone.replace('_', '-')}"
                raise UsageError(f"{flag} goes with --stages", hint=f"give --stages 4, or leave {flag} out")
            return cls(**values, budget=None)
        budget, given["budget"] = given["budget"], None
        return cls(**values, budget=budget)


def check_goes_without(others: Mapping[str, object], pipeline: str) -> None:
    """Refuse options that have no meaning for pipelines.

    Args:
        others: value of each option, by its flag.
        pipeline: the option or file that asks for a pipeline.

    Raises:
        UsageError: one is given.
    """
    for flag, value in others.items():
        if value:
            raise UsageError(f"{flag} has no meaning for pipelines", hint=f"leave {flag} or {pipeline} out")


def pipeline_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for pipelines to a command."""
    for option in reversed(
        (
            click.option(
                "--stages", type=int, metavar="N", help="Plan a pipeline on N ranks; GRAPH is one microbatch."
            ),
            click.option(
                "--microbatches", type=int, metavar="N", help="With --stages: of a step. [default: 2 a stage]"
            ),
            click.option("--chunks", type=int, metavar="N", help="With --stages: chunks a rank. [default: 1]"),
            click.option(
                "--chunk-order",
                type=click.Choice(["interleaved", "v"]),
                metavar="interleaved|v",
                help="With --chunks: which rank holds which.",
            ),
            click.option(
                "--cuts",
                metavar="NAME,...|auto",
                help="First op or module of each stage but the first. [default: auto]",
            ),
            click.option(
                "--stage-bandwidth", metavar="RATE", help="Between two ranks, such as 50GB/s. [default: no limit]"
            ),
            click.option(
                "--split-backward",
                is_flag=True,
                default=None,
                help="Gradients of weights may run later than those of inputs.",
            ),
        )
    ):
        command = option(command)
    return command


def plan_pipeline_call(
    graph: Path,
    options: PipelineOptions,
    config: RunConfig,
    output: Path | None,
    html: Path | None,
    streams: Output,
) -> int:
    """Plan a pipeline, write it, and report it; return the exit code.

    Raises:
        UsageError: an option has no meaning for pipelines, or the graph cannot be cut so.
    """
    from remat_cli.pipelines import PipelineRequest, plan_pipeline
    from remat_cli.pipelines.file import pipeline_bytes
    from remat_cli.pipelines.planner import residents_of
    from remat_cli.pipelines.request import ChunkOrder, parse_rank_budgets
    from remat_cli.prepare import prepare_reading, read
    from remat_cli.reports.terminal.pipeline import pipeline_report, pipeline_summary

    request = config.request
    check_goes_without(
        {
            "--max-overhead": request.max_overhead is not None,
            "--offload": request.offload,
            "--addresses": request.arena,
            "--allocator": request.allocator,
        },
        "--stages",
    )
    if options.budget is None:
        raise UsageError("a pipeline needs a budget", hint="give --budget 40GB, or one for each rank: 40GB,40GB,...")
    assert options.stages is not None, "asked for by --stages"
    cuts = None if options.cuts in (None, "auto") else tuple(part.strip() for part in options.cuts.split(","))
    asked = PipelineRequest(
        stages=options.stages,
        microbatches=2 * options.stages if options.microbatches is None else options.microbatches,
        budgets=parse_rank_budgets(options.budget),
        chunks=1 if options.chunks is None else options.chunks,
        chunk_order=ChunkOrder(options.chunk_order or "interleaved"),
        cuts=cuts,
        split_backward=bool(options.split_backward),
    )
    with streams.progress() as observe:
        observe.phase("reading the graph")
        reading = read(graph, config.graph)
        prepared = prepare_reading(reading, str(graph), config.graph)
        rate = None if options.stage_bandwidth is None else _rate(options.stage_bandwidth, prepared.graph)
        planning = plan_pipeline(
            prepared, residents_of(prepared.graph, reading), asked.at(rate), config.request, observe
        )
    if output is not None and planning.pipeline is not None:
        streams.write(output, pipeline_bytes(planning))
    if html is not None:
        from remat_cli.reports.html.pipeline import planned_pipeline_page

        streams.write(html, planned_pipeline_page(planning))
    streams.report(lambda: pipeline_report(planning), lambda: pipeline_summary(planning))
    return ExitCode.INTERRUPTED if planning.interrupted else planning.status.exit_code


def verify_pipeline_call(graph: Path, path: Path, said: Said, streams: Output, others: Mapping[str, object]) -> None:
    """Replay a pipeline file on its graph, and report it.

    Raises:
        UsageError: one of the other options is given, which have no meaning for pipelines.
        InvalidSchedule: it does not run, exceeds a budget, or its figures differ from the replay's.
    """
    from remat_cli.reports.terminal.pipeline import replay_summary, verified_report

    check_goes_without(others, path.name)
    prepared, file, _, replay = _replayed(graph, path, said)
    streams.report(lambda: verified_report(prepared, replay, file.budgets), lambda: replay_summary(replay))


def report_pipeline_call(graph: Path, path: Path, said: Said, output: Path, form: Form, streams: Output) -> None:
    """Write a pipeline file, replayed on its graph, for another viewer.

    Raises:
        UsageError: a pipeline has no such form.
        InvalidSchedule: as in `verify_pipeline_call`.
    """
    from remat_cli.reports.terminal.pipeline import replay_summary, verified_report
    from remat_cli.reports.viewers.pipeline import pipeline_csv, pipeline_trace

    if form not in (Form.HTML, Form.PYTORCH_CSV, Form.TRACE):
        raise UsageError(
            f"a pipeline is written as html, trace or pytorch-csv, not as {form}",
            hint="give --as html, --as trace or --as pytorch-csv",
        )
    prepared, file, pipeline, replay = _replayed(graph, path, said)
    if form is Form.HTML:
        from remat_cli.reports.html.pipeline import pipeline_page

        content = pipeline_page(prepared, pipeline, replay, file.budgets)
    elif form is Form.PYTORCH_CSV:
        content = pipeline_csv(replay)
    else:
        content = pipeline_trace(replay, prepared.graph, file.budgets, compressed=output.suffix == ".gz")
    streams.write(output, content)
    streams.report(lambda: verified_report(prepared, replay, file.budgets), lambda: replay_summary(replay))


def _replayed(graph: Path, path: Path, said: Said) -> tuple[Prepared, PipelineFile, Pipeline, Replay]:
    """Replay a pipeline file on its graph, and hold its figures against the replay.

    Raises:
        InvalidSchedule: it does not run, exceeds a budget, or its figures differ from the replay's.
    """
    from remat_cli.pipelines import replay_pipeline
    from remat_cli.pipelines.file import read_pipeline
    from remat_cli.pipelines.planner import residents_of
    from remat_cli.prepare import prepare_reading, read

    file = read_pipeline(path)
    options = with_recorded(said, file.mode, file.read_with)
    reading = read(graph, options)
    prepared = prepare_reading(reading, str(graph), options)
    pipeline = file.pipeline(prepared.graph, residents_of(prepared.graph, reading))
    replay = replay_pipeline(pipeline)
    for rank, (peak, budget) in enumerate(zip(replay.peaks, file.budgets, strict=False)):
        if peak > budget:
            raise InvalidSchedule(
                f"rank {rank} peaks at {format_bytes(peak)}, above its budget of {format_bytes(budget)}",
                hint="plan again",
            )
    figures: Mapping[str, tuple[object, object]] = {
        "makespan": (file.makespan, replay.makespan),
        "peaks_bytes": (list(file.peaks), list(replay.peaks)),
    }
    for name, (written, measured) in figures.items():
        if written != measured:
            raise InvalidSchedule(f"the file says {name} {written}, and the replay gives {measured}", hint="plan again")
    return prepared, file, pipeline, replay


def _rate(text: str, graph: Draft) -> Fraction:
    """Return a rate in bytes per unit of the graph's time."""
    rate = parse_rate(text)
    if rate <= 0:
        raise UsageError(f"--stage-bandwidth {text} moves nothing", hint="write it like 50GB/s, or leave it out")
    if not text.strip().endswith("/s"):
        return rate
    if graph.time_unit != "ns":
        raise UsageError(
            f"--stage-bandwidth {text} is per second, and the times of {graph.name} are in {graph.time_unit}",
            hint="give bytes per unit of time, such as 12",
        )
    return rate / _NS
