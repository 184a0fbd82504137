"""The report of `remat verify --execute` on a PyTorch step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.terminal.layout import Cell, columns, facts, section
from remat_cli.units import format_bytes, format_share, format_time

if TYPE_CHECKING:
    from remat_cli.pytorch.run.execution import KernelsMeasured, StepExecution, StepPeak

_WITHOUT = "Without parameters, buffers and inputs, which are there before the step{copies}."
_COPIES = ", and without copies on the host"


def executed_step_report(report: RenderableType, execution: StepExecution) -> RenderableType:
    """Add the measured run of the step to the report of `remat verify`."""
    style = "green" if execution.holds else "red"
    verdict = "The step runs as planned." if execution.holds else "The step does not run as planned."
    peaks = [
        _peak("the step under torch.compile" if execution.fused else "the step as it is", execution.eager),
        _peak("the plain schedule", execution.plain),
        _peak("the schedule", execution.plan),
    ]
    return Report(
        report,
        section(
            f"Run by torch {clean(execution.version)} on {execution.device.upper()}",
            columns(["peak memory", "predicted", "measured", ""], peaks, right=(1, 2)),
            Text(_WITHOUT.format(copies=_COPIES if execution.moves else ""), "dim"),
        ),
        facts(
            [
                ("results", _results(execution)),
                ("beside torch.compile" if execution.fused else "beside eager", _beside_eager(execution)),
                ("overhead", _overhead(execution)),
                *([] if execution.kernels is None else [("kernels", _kernels(execution, execution.kernels))]),
            ]
        ),
        Text(verdict, f"bold {style}"),
    )


def _overhead(execution: StepExecution) -> str:
    predicted, measured = format_share(execution.predicted_overhead), format_share(execution.measured_overhead)
    by_turns = "; on the CPU, copies and ops take turns" if execution.moves and execution.device == "cpu" else ""
    return f"{predicted} predicted, {measured} measured{by_turns}"


def _kernels(execution: StepExecution, kernels: KernelsMeasured) -> str:
    added, took = format_bytes(kernels.added_bytes), format_time(kernels.took_ns, "ns")
    text = f"each measured by itself, in {took}: the schedule's predicted peak has {added} more for their workspace"
    above = 0 if execution.budget_bytes is None else execution.plan.measured - execution.budget_bytes
    if kernels.added_bytes and above > 0:
        own = format_bytes(kernels.workspace_bytes)
        text += f", most at op {clean(kernels.op)}, {own}: {format_bytes(above)} above the budget"
    return text


def _peak(label: str, peak: StepPeak) -> list[Cell]:
    if peak.predicted is None:
        return [label, "", format_bytes(peak.measured), ""]
    off = peak.measured - peak.predicted
    sign = "-" if off < 0 else "+"
    return [label, format_bytes(peak.predicted), format_bytes(peak.measured), f"{sign}{format_bytes(abs(off))}"]


def _results(execution: StepExecution) -> str:
    same = execution.results - len(execution.changed)
    how = "up to rounding" if execution.fused else "bit by bit"
    text = f"{same:,} of {execution.results:,} the same {how} as by the plain schedule"
    if execution.unrepeatable:
        text += f"; {len(execution.unrepeatable):,} differ from run to run of that"
    return text


def _beside_eager(execution: StepExecution) -> str:
    if not execution.beside_eager:
        return "the same bit by bit"
    return f"{len(execution.beside_eager):,} differ, by at most {execution.eager_difference:.1e} of the largest"


def step_execution_summary(execution: StepExecution) -> dict[str, Any]:
    """Return additions to the summary of `remat verify`."""
    peaks = {"eager": execution.eager, "plain": execution.plain, "plan": execution.plan}
    measured = {
        name: {"predicted_bytes": peak.predicted, "measured_bytes": peak.measured, "agrees": peak.agrees}
        for name, peak in peaks.items()
    }
    return {
        "execution": {
            "torch": execution.version,
            "device": execution.device,
            "fused": execution.fused,
            "holds": execution.holds,
            **measured,
            "results": execution.results,
            "changed": list(execution.changed),
            "changed_by": execution.changed_by,
            "unrepeatable": list(execution.unrepeatable),
            "beside_eager": list(execution.beside_eager),
            "eager_difference": execution.eager_difference,
            "eager_tolerance": execution.eager_tolerance,
            "parted_at": execution.parted_at,
            "predicted_overhead": execution.predicted_overhead,
            "measured_overhead": execution.measured_overhead,
            "measuring_ns": None if execution.kernels is None else execution.kernels.took_ns,
            "workspace_bytes": None if execution.kernels is None else execution.kernels.added_bytes,
        }
    }
