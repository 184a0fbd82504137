"""Reports of `remat apply` and `remat verify --execute`.

They show the model that runs a schedule, and its measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from remat_cli.core.simulate import Trace
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.onnx.contrib import is_fused
from remat_cli.planning.summary import graph_summary
from remat_cli.prepare import Prepared
from remat_cli.reports.safe_text import Report, clean, shorten
from remat_cli.reports.terminal.layout import Cell, bullets, columns, facts, indented, section
from remat_cli.reports.terminal.plan import graph_title, notes_section, taken_facts
from remat_cli.reports.terminal.step_execution import executed_step_report, step_execution_summary
from remat_cli.settings import Setting
from remat_cli.units import format_bytes, format_names, format_time

if TYPE_CHECKING:
    from remat_cli.pytorch.run.execution import StepExecution
    from remat_cli.runtime.onnx.execution import InBothSessions, ModelExecution, ProcessPeak, UsualRun
    from remat_cli.runtime.onnx.rewrite import Rewritten

_LONGEST_NAME = 40
_MOST_NAMED = 3
_HOW_TO_RUN = """\
from onnxruntime import InferenceSession
from remat_cli import session_options

session = InferenceSession({path!r}, session_options())"""
_FUSE_FIRST = "To have fused ops as well, plan the model that `remat fuse` writes."
_OTHER_OPTIONS = "With other options onnxruntime merges the repeats again, or runs in another order{measured}."
_WARNINGS = (
    "session_options() also makes glibc give freed memory back, in the whole process; with another allocator the "
    "process may hold more.",
    "Do not optimise this file: onnxslim, onnxsim and the like merge the repeats, too.",
    "It holds for the sizes that were planned, which are fixed in it.",
)


def apply_report(
    prepared: Prepared,
    plain: Trace,
    trace: Trace,
    rewritten: Rewritten,
    output: Path,
    *,
    taken: Sequence[Setting] = (),
    execution: InBothSessions | None = None,
) -> Report:
    """Return the report of `remat apply`.

    Args:
        prepared: the planned graph.
        plain: the plain run, of the graph without parts.
        trace: measurement of the schedule as the model runs it.
        rewritten: the model.
        output: file of the model.
        taken: options that the schedule gave.
        execution: measurement of the model; None if it was not run.
    """
    graph = prepared.graph
    nodes = len(rewritten.proto.graph.node)
    added = [f"{trace.recomputations:,} of them repeats"] if trace.recomputations else ["none repeated"]
    added += [f"{rewritten.views:,} views derived anew"] if rewritten.views else []
    added += [f"{rewritten.releases:,} to free unread values"] if rewritten.releases else []
    rows: list[list[Cell]] = [
        ["peak memory", format_bytes(plain.peak_bytes), format_bytes(trace.peak_bytes)],
        ["without weights and inputs", *(format_bytes(run.peak_bytes - graph.fixed_bytes) for run in (plain, trace))],
    ]
    return Report(
        facts(
            [
                ("graph", shorten(graph.name, _LONGEST_NAME)),
                *taken_facts(taken),
                ("written", clean(str(output))),
                ("nodes", f"{nodes:,}, {', '.join(added)}"),
            ]
        ),
        indented(columns(["predicted", "plain run", "schedule"], rows, right=(1, 2))),
        section("To run it", Text(_HOW_TO_RUN.format(path=clean(str(output))), overflow="fold")),
        bullets([_other_options(execution), *_WARNINGS, *([] if is_fused(rewritten.proto) else [_FUSE_FIRST])]),
        *([section("Notes", bullets([clean(note) for note in prepared.notes]))] if prepared.notes else []),
    )


def apply_summary(
    prepared: Prepared,
    plain: Trace,
    trace: Trace,
    rewritten: Rewritten,
    output: Path,
    *,
    taken: Sequence[Setting] = (),
    execution: InBothSessions | None = None,
) -> dict[str, Any]:
    """Return the summary of `remat apply`.

    Arguments are as for `apply_report`.
    """
    return {
        "graph": {"name": prepared.graph.name, "sha256": graph_sha256(prepared.graph)},
        "options_from_schedule": {setting.name: setting.value for setting in taken},
        "output": str(output),
        "nodes": len(rewritten.proto.graph.node),
        "recomputations": trace.recomputations,
        "views_made_again": rewritten.views,
        "released": rewritten.releases,
        "peak_bytes": trace.peak_bytes,
        "baseline": {"peak_bytes": plain.peak_bytes},
        "fixed_bytes": prepared.graph.fixed_bytes,
        "execution": None if execution is None else in_both_sessions_summary(execution),
        "notes": list(prepared.notes),
    }


def _other_options(execution: InBothSessions | None) -> str:
    if execution is None:
        return _OTHER_OPTIONS.format(measured="; --execute measures what that takes")
    return clean(_OTHER_OPTIONS.format(measured=f": {execution.usual.compared_with(execution.ours.measured)}"))


def executed_report(report: RenderableType, execution: ModelExecution | StepExecution | None) -> RenderableType:
    """Add the measured run of the model or step to a report.

    Without a run, the report is unchanged.
    """
    if execution is None:
        return report
    if execution.runtime == "torch":
        return executed_step_report(report, execution)
    style = "green" if execution.holds else "red"
    verdict = "The model runs as planned." if execution.holds else "The model does not run as planned."
    return Report(
        report,
        _measured(execution, _peaks(execution), [*_as_it_is(execution), *_beside_the_usual(execution)]),
        facts([("outputs", _outputs(execution)), ("order", _order(execution)), *_weights(execution)]),
        Text(verdict, f"bold {style}"),
    )


def as_it_is_report(prepared: Prepared, execution: InBothSessions | StepExecution) -> RenderableType:
    """Return the report of a model or step run without a schedule."""
    subject = facts([("graph", graph_title(prepared))])
    if execution.runtime == "torch":
        return executed_step_report(subject, execution)
    rows = [
        _usual(execution.usual),
        _peak("session_options()", execution.ours, execution.time_ns),
    ]
    agrees, most = execution.ours.agrees, "at most " if execution.ours.at_most else ""
    verdict = f"The model takes {most}what was predicted." if agrees else "The model does not take what was predicted."
    return Report(
        subject,
        _measured(execution, rows, [_does_not_run(execution.usual)] if execution.usual.failure else []),
        *([facts(drawn)] if (drawn := _weights(execution)) else []),
        Text(verdict, f"bold {'green' if agrees else 'red'}"),
        *notes_section(prepared.notes),
    )


def _measured(
    execution: ModelExecution | InBothSessions, peaks: Sequence[Sequence[Cell]], sentences: Sequence[str]
) -> RenderableType:
    """Return a section on memory measured in onnxruntime."""
    return section(
        f"Run by onnxruntime {clean(execution.version)} on one thread",
        columns(["peak memory", "predicted", "measured", "", "time of a run"], peaks, right=(1, 2, 4)),
        Text("Without weights and inputs, which are there before the run.", "dim"),
        *map(Text, (*_at_most(execution.upper_bounds), *sentences)),
    )


def _at_most(names: Sequence[str]) -> Iterator[str]:
    if names:
        shown = clean(format_names(names, _MOST_NAMED))
        yield f"At most: which branch runs, how often a loop does, or how much is found depends on data: {shown}."


def as_it_is_summary(prepared: Prepared, execution: InBothSessions | StepExecution) -> dict[str, Any]:
    """Return the summary of a model or step run without a schedule."""
    subject = {"graph": graph_summary(prepared), "fixed_bytes": prepared.graph.fixed_bytes}
    if execution.runtime == "torch":
        return subject | step_execution_summary(execution)
    return subject | {"execution": in_both_sessions_summary(execution)}


def in_both_sessions_summary(execution: InBothSessions) -> dict[str, Any]:
    """Return the summary of a model in both sessions of onnxruntime."""
    return {
        "onnxruntime": execution.version,
        "as_it_comes": _usual_summary(execution.usual),
        "with_session_options": _peak_summary(execution.ours) | {"time_ns": execution.time_ns},
        "random_weights": execution.random_weights,
        "upper_bounds": list(execution.upper_bounds),
    }


def _usual_summary(usual: UsualRun) -> dict[str, Any]:
    return {"measured_bytes": usual.peak_bytes, "time_ns": usual.time_ns, "failure": usual.failure or None}


def _peak_summary(peak: ProcessPeak) -> dict[str, Any]:
    return {
        "predicted_bytes": peak.predicted,
        "at_most": peak.at_most,
        "measured_bytes": peak.measured,
        "agrees": peak.agrees,
    }


def _peaks(execution: ModelExecution) -> list[list[Cell]]:
    return [
        *([] if execution.usual is None else [_usual(execution.usual)]),
        _peak("the plain run", execution.plain, execution.plain_time_ns),
        _peak("the schedule", execution.plan, execution.plan_time_ns),
    ]


def _usual(usual: UsualRun) -> list[Cell]:
    measured = "failed" if usual.peak_bytes is None else format_bytes(usual.peak_bytes)
    return ["as onnxruntime comes", "", measured, "", _time(usual.time_ns)]


def _peak(label: str, peak: ProcessPeak, time_ns: int | None) -> list[Cell]:
    off = peak.measured - peak.predicted
    sign = "-" if off < 0 else "+"
    difference = f"{sign}{format_bytes(abs(off))}"
    predicted = f"at most {format_bytes(peak.predicted)}" if peak.at_most else format_bytes(peak.predicted)
    return [label, predicted, format_bytes(peak.measured), difference, _time(time_ns)]


def _time(time_ns: int | None) -> str:
    return "" if time_ns is None else format_time(time_ns, "ns")


def _as_it_is(execution: ModelExecution) -> Iterator[str]:
    """Yield why the original model may take more than predicted.

    Its kernels are not the reason if the schedule agrees with its prediction.
    """
    off = execution.plain.measured - execution.plain.predicted
    if off > 0 and execution.plan.agrees and not execution.plain.agrees:
        yield (
            f"The model as it is needs {format_bytes(off)} more than predicted: where a file leaves out sizes, "
            "onnxruntime shares less memory. `remat apply` writes them all."
        )


def _beside_the_usual(execution: ModelExecution) -> Iterator[str]:
    """Yield the gain of the schedule over onnxruntime's default options."""
    usual = execution.usual
    if usual is None:
        return
    if usual.peak_bytes is None or usual.time_ns is None:
        yield _does_not_run(usual)
        return
    saved = usual.peak_bytes - execution.plan.measured
    if saved < 0:
        yield (
            f"As it comes, onnxruntime needs {format_bytes(-saved)} less than the schedule: run the model without a "
            "plan, with onnxruntime's own options."
        )
    else:
        yield f"The schedule needs {format_bytes(saved)} less than onnxruntime as it comes."
    if not execution.fused and execution.plan_time_ns is not None and usual.time_ns < execution.plan_time_ns:
        yield (
            "As it comes, onnxruntime fuses ops, which takes less time: plan the model of fused ops that `remat fuse` "
            "writes."
        )


def _does_not_run(usual: UsualRun) -> str:
    return f"As it comes, onnxruntime does not run the model: {clean(usual.failure)}."


def _outputs(execution: ModelExecution) -> str:
    same = len(execution.outputs) - len(execution.changed) - len(execution.rounded)
    text = f"{same:,} of {len(execution.outputs):,} the same bit by bit"
    if execution.rounded:
        text += f", {len(execution.rounded):,} to rounding: {max(execution.rounded.values()):.1e} of the largest value"
    return f"{text}, {len(execution.not_finite):,} with infinities in them" if execution.not_finite else text


def _order(execution: ModelExecution) -> str:
    if execution.out_of_order is None:
        return f"that of the schedule, {execution.nodes:,} nodes"
    return f"departs from the schedule at node {execution.out_of_order[0]:,}"


def _weights(execution: ModelExecution | InBothSessions) -> list[tuple[str, Cell]]:
    if not execution.random_weights:
        return []
    return [("weights", f"{execution.random_weights:,} drawn at random: their files are not there")]


def execution_summary(execution: ModelExecution | StepExecution | None) -> dict[str, Any]:
    """Return additions to the summary of `remat verify`; empty without a run."""
    if execution is None:
        return {}
    if execution.runtime == "torch":
        return step_execution_summary(execution)
    peaks = {"plain": execution.plain, "plan": execution.plan}
    measured = {name: _peak_summary(peak) for name, peak in peaks.items()}
    order = execution.out_of_order
    if execution.usual is not None:
        usual = execution.usual
        measured["plain"]["time_ns"], measured["plan"]["time_ns"] = execution.plain_time_ns, execution.plan_time_ns
        measured = {"as_it_comes": _usual_summary(usual), **measured}
    return {
        "execution": {
            "onnxruntime": execution.version,
            "holds": execution.holds,
            **measured,
            "nodes": execution.nodes,
            "outputs": list(execution.outputs),
            "changed_outputs": list(execution.changed),
            "rounded_outputs": dict(execution.rounded),
            "not_finite_outputs": list(execution.not_finite),
            "out_of_order": None if order is None else dict(zip(("place", "planned", "ran"), order, strict=True)),
            "parted_at": execution.parted_at,
            "random_weights": execution.random_weights,
            "upper_bounds": list(execution.upper_bounds),
        }
    }
