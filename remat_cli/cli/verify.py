"""`remat verify`: replay a schedule on its graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options
from remat_cli.cli.output import Output
from remat_cli.cli.replay import broken_claims, budget_bytes, replay, with_mode
from remat_cli.config import GraphOptions
from remat_cli.errors import InvalidSchedule
from remat_cli.formats.schedule_json import ScheduleFile, read_schedule
from remat_cli.formats.torch import names_function
from remat_cli.prepare import Prepared
from remat_cli.units import format_bytes, parse_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remat_cli.problem import Observer
    from remat_cli.runtime.onnx.execution import Execution
    from remat_cli.runtime.torch.execution import Execution as StepExecution


@click.command("verify", cls=Verb)
@graph_argument
@click.argument("schedule", type=click.Path(path_type=Path), metavar="SCHEDULE")
@click.option("--budget", metavar="SIZE", help="Hold the peak against this budget. [default: the one in SCHEDULE]")
@click.option("--execute", is_flag=True, help="Run the model too, as it is and as planned: ONNX or PyTorch.")
@click.option("--time-limit", default="10m", show_default=True, metavar="30s", help="Of each run of an ONNX model.")
@click.option("--seed", default=0, show_default=True, help="Of the random inputs, with --execute.")
@graph_options
@output_options
def command(
    graph: Path,
    schedule: Path,
    execute: bool,
    time_limit: str,
    seed: int,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Replay SCHEDULE on GRAPH, step by step; name the first broken step, or say what it really costs.

    GRAPH is the file that was planned, with the same options, or what convert wrote of it. SCHEDULE may come from any
    tool; what it says of graph, budget, peak, time, overhead, bound and status is checked, not believed, and each
    difference is named.

    With --execute the model is run by onnxruntime (pip install 'remat[run]') as it is and as 'remat apply' writes it,
    on the same random inputs, and random weights where the file has none: the outputs must be the same bit by bit, the
    order that of the schedule, and the measured peak the predicted one, to within 2 MiB or 3 %.

    A PyTorch step is run by torch (pip install 'remat[torch]') as it is, by the plain schedule and by SCHEDULE: what it
    returns, all gradients and buffers must be the same bit by bit, and the peak as above.

    \b
    Examples:
      remat verify model.onnx schedule.json --dim batch=8
      remat verify graph.json schedule.json --budget 8GB
      remat verify model.onnx schedule.json --dim batch=8 --execute
      remat verify train.py:step schedule.json --dim batch=8 --execute
    """
    from remat_cli.reports.summary import verify_summary
    from remat_cli.reports.terminal.plan import verify_report

    file = read_schedule(schedule)
    config = merge_config(given)
    options = with_mode(config.graph, file.mode)
    limit = parse_duration(time_limit)
    runs = _Step(graph, options, seed) if names_function(graph) else _OnnxModel(graph, options, file, seed, limit)
    if execute:
        runs.check()
    prepared, trace = replay(graph, options, file, schedule)
    budget = budget_bytes(config.budget, file, prepared)
    broken = broken_claims(file, prepared, trace, budget)
    streams = Output(as_json=as_json, quiet=quiet)
    if execute and broken is None:
        with streams.progress() as observe:
            runs.execute(prepared, file, observe)
    streams.report(
        lambda: runs.reported(verify_report(prepared, file.schedule, trace, budget_bytes=budget)),
        lambda: verify_summary(prepared, trace, budget_bytes=budget) | runs.summary(),
    )
    broken = broken or runs.broken(prepared)
    if broken is not None:
        raise broken


@dataclass
class _OnnxModel:
    """An ONNX model that onnxruntime may run."""

    path: Path
    options: GraphOptions
    file: ScheduleFile
    seed: int
    time_limit: float
    execution: Execution | None = None

    def check(self) -> None:
        from remat_cli.runtime.onnx.apply import check_can_apply
        from remat_cli.runtime.onnx.execution import check_can_measure

        check_can_apply(self.path, self.options, self.file.schedule)
        check_can_measure()

    def execute(self, prepared: Prepared, file: ScheduleFile, observe: Observer) -> None:
        from remat_cli.runtime.onnx.apply import apply_schedule, read_for
        from remat_cli.runtime.onnx.execution import execute

        self.execution = execute(
            self.path,
            read_for(self.path, self.options, keep_data=False),
            apply_schedule(self.path, self.options, prepared.graph, file.schedule, {}),
            prepared.graph,
            file.schedule.computes,
            seed=self.seed,
            time_limit=self.time_limit,
            observe=observe,
        )

    def reported(self, report: RenderableType) -> RenderableType:
        from remat_cli.reports.terminal.execution import executed_report

        return executed_report(report, self.execution)

    def summary(self) -> dict[str, Any]:
        from remat_cli.reports.terminal.execution import execution_summary

        return execution_summary(self.execution)

    def broken(self, prepared: Prepared) -> InvalidSchedule | None:
        return None if self.execution is None else _broken_promise(self.execution, prepared)


@dataclass
class _Step:
    """A PyTorch step that torch may run."""

    reference: Path
    options: GraphOptions
    seed: int
    execution: StepExecution | None = None

    def check(self) -> None:
        from remat_cli.formats.torch import check_installed

        check_installed()

    def execute(self, prepared: Prepared, file: ScheduleFile, observe: Observer) -> None:
        from remat_cli.runtime.torch.execution import execute_step

        self.execution = execute_step(
            str(self.reference),
            self.options.dims,
            prepared.graph,
            file.schedule,
            accumulate=self.options.accumulate,
            seed=self.seed,
            observe=observe,
        )

    def reported(self, report: RenderableType) -> RenderableType:
        from remat_cli.reports.terminal.step_execution import executed_step_report

        return report if self.execution is None else executed_step_report(report, self.execution)

    def summary(self) -> dict[str, Any]:
        from remat_cli.reports.terminal.step_execution import step_execution_summary

        return {} if self.execution is None else step_execution_summary(self.execution)

    def broken(self, prepared: Prepared) -> InvalidSchedule | None:
        from remat_cli.reports.terminal.step_execution import broken_step

        return None if self.execution is None else broken_step(self.execution, prepared.graph)


def _broken_promise(execution: Execution, prepared: Prepared) -> InvalidSchedule | None:
    """Hold what onnxruntime did against what was planned."""
    if execution.changed:
        random = [op.name for op in prepared.graph.ops if not op.recomputable]
        return InvalidSchedule(
            f"the rewritten model gives other bits at its outputs: {', '.join(map(repr, execution.changed))}",
            hint=f"it may draw random numbers: {', '.join(map(repr, random[:4]))}"
            if random
            else "a kernel of this onnxruntime does not repeat itself; compare the two models' outputs",
        )
    if execution.out_of_order is not None:
        place, planned, ran = execution.out_of_order
        return InvalidSchedule(
            f"at place {place} of the executed order ran {ran!r}, where the schedule has {planned!r}",
            hint="onnxruntime runs an op as several nodes, not one: it has no kernel for it or its type "
            "(float16 on the CPU); export the model without it",
        )
    peak = execution.plan
    if peak.agrees:
        return None
    at = "no single op" if execution.parted_at is None else f"op {execution.parted_at!r}"
    return InvalidSchedule(
        f"the measured peak, {format_bytes(peak.measured)}, is not the predicted one, {format_bytes(peak.predicted)}; "
        f"they part at {at}",
        hint="its kernel takes memory that is not known to remat, or shares it in another way; please report it",
    )
