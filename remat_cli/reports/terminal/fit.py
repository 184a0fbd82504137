"""The report of `remat fit`: the largest dimension that fits.

It is shown with and without a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from remat_cli.config import PlannerChoice
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import baseline_of
from remat_cli.planning.summary import Summary, graph_summary, solution_summary
from remat_cli.reports.safe_text import Report, shorten
from remat_cli.reports.summary import eager_figure
from remat_cli.reports.terminal.layout import Cell, bullets, columns, facts, indented, section
from remat_cli.reports.terminal.plan import STATUS_STYLES, notes_section, plan_facts, why_there_is_no_plan
from remat_cli.reports.terminal.sweep import NO_PLAN
from remat_cli.settings import Setting, on_command_line
from remat_cli.studies.fit import EagerFit, Fit, Sized
from remat_cli.studies.trainer_settings import SettingFit
from remat_cli.units import format_bytes, format_share, format_time

_LONGEST_NAME = 16


def fit_report(
    fit: Fit, planner: PlannerChoice, eager: EagerFit | None = None, tried: Sequence[SettingFit] = ()
) -> Report:
    """Return the report of `remat fit`.

    Args:
        fit: the result.
        planner: the planner, with the options that the user gave only.
        eager: the search for a PyTorch step without a plan; None where there is none.
        tried: searches with settings of trainers, without a plan.
    """
    prepared, solution = fit.shown.prepared, fit.solution
    labels = plan_facts(solution, prepared, planner)
    verdict = Text(_verdict(fit, eager), f"bold {STATUS_STYLES[solution.status]}")
    parts: list[RenderableType] = [facts([*labels[:-1], ("budget", format_bytes(fit.question.budget_bytes))]), verdict]
    if fit.found is None:
        parts += why_there_is_no_plan(solution, prepared.optimizer)
    parts.append(indented(_table(fit, eager)))
    if tried:
        parts.append(section("Settings of trainers, without a plan", _settings(fit, tried)))
    remarks = _remarks(fit)
    if remarks:
        parts.append(section("Reading it", bullets(remarks)))
    return Report(*parts, *notes_section(prepared.notes))


def _verdict(fit: Fit, eager: EagerFit | None) -> str:
    question, dim = fit.question, shorten(fit.question.dim, _LONGEST_NAME)
    budget = format_bytes(question.budget_bytes)
    limit = question.request.max_overhead
    within = "" if limit is None else f" at no more than {format_share(limit)} overhead"
    begun = "Interrupted. " if fit.interrupted else ""
    if fit.found is None:
        return f"Not even {dim}={question.multiple_of} fits {budget}{within}."
    largest = _without_plan(fit, eager)
    if largest is not None and largest >= fit.found.value:
        return f"{begun}The largest {dim} that fits {budget} is {largest:,}, without a plan."
    without = "without, none fits" if largest is None else f"without, {largest:,}"
    return f"{begun}The largest {dim} that fits {budget} with a plan{within} is {fit.found.value:,}; {without}."


def _without_plan(fit: Fit, eager: EagerFit | None) -> int | None:
    """Return the largest value that fits without a plan; None if none fits."""
    if eager is not None:
        return eager.value
    return None if fit.plain is None else fit.plain.value


def _table(fit: Fit, eager: EagerFit | None) -> RenderableType:
    dim = shorten(fit.question.dim, _LONGEST_NAME)
    rows: list[list[Cell]] = []
    eager_peaks = {} if eager is None else eager.peaks
    if eager is not None and eager.value is not None:
        rows.append(["eager", f"{eager.value:,}", format_bytes(eager.peaks[eager.value])])
    if fit.plain is not None:
        rows.append(_row("plain run", fit.plain, None, baseline_of(fit.plain.prepared.graph), eager_peaks))
    if fit.found is not None and fit.solution.trace is not None and fit.solution.overhead:
        largest = _without_plan(fit, eager)
        gain = "" if largest is None else f"× {fit.found.value / largest:.2f}"
        rows.append([*_row("with a plan", fit.found, fit.solution.overhead, fit.solution.trace, eager_peaks), gain])
    if fit.found is None:
        rows.append(_row("smallest", fit.smallest, None, None, eager_peaks))
    if fit.limit is not None and fit.limit_is_proven:
        rows.append(_row("hard limit", fit.limit, None, None, eager_peaks))
    without = "eager peak" if eager_peaks else "plain peak"
    return columns(["", dim, without, "peak", "overhead", f"time/{dim}", ""], rows, right=(1, 2, 3, 4, 5))


def _settings(fit: Fit, tried: Sequence[SettingFit]) -> RenderableType:
    dim, unit = shorten(fit.question.dim, _LONGEST_NAME), fit.smallest.prepared.graph.time_unit
    rows: list[list[Cell]] = []
    for found in tried:
        at = found.value or fit.question.multiple_of
        missing = found.peak_bytes - fit.question.budget_bytes
        rows.append(
            [
                " ".join(on_command_line(Setting(name, value)) for name, value in found.changes.items()),
                "none fits" if found.value is None else f"{found.value:,}",
                format_bytes(found.peak_bytes),
                format_time(round(found.time / at), unit),
                f"{format_bytes(missing)} too much at {at:,}" if found.value is None else "",
            ]
        )
    return columns(["", dim, "eager peak", f"time/{dim}", ""], rows, right=(1, 2, 3))


def _row(
    label: str, sized: Sized, overhead: float | None, trace: Trace | None, eager_peaks: Mapping[int, int]
) -> list[Cell]:
    unit = sized.prepared.graph.time_unit
    without = eager_peaks.get(sized.value) if eager_peaks else sized.plain_peak_bytes
    return [
        label,
        f"{sized.value:,}",
        "" if without is None else format_bytes(without),
        "" if trace is None else format_bytes(trace.peak_bytes),
        "" if overhead is None else format_share(overhead),
        "" if trace is None else format_time(round(trace.time / sized.value), unit),
    ]


def _remarks(fit: Fit) -> list[str]:
    dim = shorten(fit.question.dim, _LONGEST_NAME)
    said = []
    if fit.limit is not None and fit.limit_is_proven:
        needs = "what is always in memory" if fit.question.request.split else "one op alone"
        said.append(f"Above the hard limit no plan in any order fits: {needs} needs more.")
    if fit.reaches_end:
        said.append(f"No {dim} above {fit.question.at_most:,} was tried: --at-most allows more.")
    if fit.found is not None and fit.refused:
        tried = ", ".join(f"{value:,} ({NO_PLAN[status]})" for value, status in fit.refused)
        said.append(f"Larger values that were tried without finding a plan: {tried}.")
    if not fit.is_monotone:
        said.append(
            f"The plain run does not always need more memory at a larger {dim}: beyond those that were tried, a larger "
            "one may fit."
        )
    return said


def fit_summary(fit: Fit, eager: EagerFit | None = None, tried: Sequence[SettingFit] = ()) -> Summary:
    """Return the summary of `remat fit`; a missing figure is null.

    Arguments are those of `fit_report`.
    """
    question, planner = fit.question, fit.question.request.chosen

    def peak_in_eager(value: int) -> Summary:
        return eager_figure(None if eager is None else eager.peaks.get(value))

    def sized(at: Sized | None) -> Summary | None:
        if at is None:
            return None
        baseline = baseline_of(at.prepared.graph)
        return {
            "value": at.value,
            **peak_in_eager(at.value),
            "plain_peak_bytes": baseline.peak_bytes,
            "plain_time": baseline.time,
        }

    limit = question.request.max_overhead
    return {
        "graph": graph_summary(fit.shown.prepared),
        "planner": {"name": planner.name, "options": planner.all_options()},
        "dim": question.dim,
        "budget_bytes": question.budget_bytes,
        "max_overhead": None if limit is None else float(limit),
        "multiple_of": question.multiple_of,
        "at_most": question.at_most,
        **_eager_summary(eager),
        **({"settings": [_setting_summary(found) for found in tried]} if tried else {}),
        "plain": sized(fit.plain),
        "found": sized(fit.found),
        "limit": sized(fit.limit) if fit.limit_is_proven else None,
        "plan": solution_summary(fit.solution),
        "refused": [{"value": value, "status": status.value} for value, status in fit.refused],
        "is_monotone": fit.is_monotone,
        "reaches_end": fit.reaches_end,
        "interrupted": fit.interrupted,
        "notes": list(fit.shown.prepared.notes),
    }


def _setting_summary(found: SettingFit) -> Summary:
    return {
        "settings": dict(found.changes),
        "value": found.value,
        "eager_peak_bytes": found.peak_bytes,
        "time": found.time,
    }


def _eager_summary(eager: EagerFit | None) -> Summary:
    """Return the largest value of a step without a plan; nothing where there is no eager run."""
    if eager is None:
        return {}
    found = None if eager.value is None else {"value": eager.value, **eager_figure(eager.peaks[eager.value])}
    return {"eager": found}
