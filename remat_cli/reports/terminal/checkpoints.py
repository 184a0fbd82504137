"""The report of `remat plan --as checkpoints`.

It shows the modules to wrap, their costs, and those of the free plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from remat_cli.pytorch.checkpoints import CheckpointPlanning, ChosenPolicy
from remat_cli.reports.safe_text import Report, Verbatim, clean
from remat_cli.reports.terminal.layout import Cell, bullets, columns, facts, indented, section
from remat_cli.reports.terminal.plan import graph_title
from remat_cli.units import counted, format_bytes, format_share

_MOST_RANGES = 12


def checkpoints_report(planning: CheckpointPlanning) -> Report:
    """Return the report."""
    style = "bold green" if planning.wrapped is not None else "bold red" if planning.none_fits else "bold yellow"
    parts: list[RenderableType | Verbatim] = [subject_facts(planning), Text(_verdict(planning), style)]
    if planning.wrapped is None:
        parts.append(section("What could be done", bullets(_remedies(planning))))
    parts.append(indented(_table(planning)))
    if planning.wrapped is not None and planning.wrapped.paths:
        parts.append(section("Modules to wrap", bullets(ranges(planning.wrapped.paths, planning.wrapped.kinds))))
        parts.append(Verbatim("In code", planning.code))
    if planning.settings:
        lines = [f"{item.trainer}: {clean(item.setting)}" for item in planning.settings]
        parts.append(Verbatim("As settings", "\n".join(lines)))
    if planning.notes:
        parts.append(section("Notes", bullets([clean(note) for note in planning.notes])))
    return Report(*parts)


def subject_facts(planning: CheckpointPlanning) -> RenderableType:
    """Return the subject and the budget of a planning."""
    labels: list[tuple[str, Cell]] = [
        ("graph", graph_title(planning.prepared)),
        ("times", clean(planning.eager.costs)),
        ("budget", format_bytes(planning.budget_bytes)),
    ]
    return facts(labels)


def _verdict(planning: CheckpointPlanning) -> str:
    budget, wrapped = format_bytes(planning.budget_bytes), planning.wrapped
    if wrapped is None:
        why = "No checkpoints of whole modules fit" if planning.none_fits else "No checkpoints were found that fit"
        return f"{why} {budget}."
    if not wrapped.paths:
        return f"The step fits {budget} without checkpoints."
    count = counted(len(wrapped.paths), "module")
    text = f"Checkpoints of {count} fit {budget}, at {format_share(planning.overhead(wrapped.trace.time))} more time"
    if wrapped.proven:
        return f"{text}; no other choice takes less."
    least = planning.overhead(planning.plain.time + wrapped.least_time)
    return f"{text}; no choice takes less than {format_share(least)}."


def _remedies(planning: CheckpointPlanning) -> list[str]:
    said = []
    if planning.least is not None:
        said.append(least_in_words(planning, planning.least, "checkpoints reach"))
    free = planning.free
    if free.trace is not None and free.overhead is not None:
        said.append(
            f"the free plan fits, at {format_share(free.overhead)} more time: leave --as out, and run it with remat"
        )
    elif planning.free_least is not None and planning.free_least.peak_bytes is not None:
        said.append(f"the least peak that was found for a free plan is {format_bytes(planning.free_least.peak_bytes)}")
    return said


def least_in_words(planning: CheckpointPlanning, least: ChosenPolicy, reached_by: str) -> str:
    """Return the least peak that was found, in words."""
    caution = "" if least.proven else ", as far as was found,"
    size, share = format_bytes(least.trace.peak_bytes), format_share(planning.overhead(least.trace.time))
    return f"the least peak that {reached_by}{caution} is {size}, at {share} more time"


def _table(planning: CheckpointPlanning) -> RenderableType:
    found = (("these checkpoints", planning.wrapped), ("checkpoints, least peak", planning.least))
    rows = [(label, chosen.trace.peak_bytes, chosen.trace.time) for label, chosen in found if chosen and chosen.paths]
    for item in planning.settings:
        label = clean(item.setting).rpartition(", ")[2].rpartition("(")[2].rstrip(")")
        rows.append((label, item.peak, planning.plain.time + item.time))
    return table_beside_free(planning, rows)


def table_beside_free(planning: CheckpointPlanning, found: Iterable[tuple[str, int, int]]) -> RenderableType:
    """Return the table of eager's step, steps with checkpoints, and the free plan.

    Args:
        planning: has eager's step and the free plan.
        found: label, peak and time of each step with checkpoints.
    """
    rows: list[list[Cell]] = [["eager, without a plan", format_bytes(planning.plain.peak_bytes), ""]]
    rows += [_row(label, peak, planning.overhead(time)) for label, peak, time in found]
    free = planning.free if planning.free.trace is not None else planning.free_least
    if free is not None and free.peak_bytes is not None and free.overhead is not None:
        rows.append(_row("the free plan, by remat", free.peak_bytes, free.overhead))
    return columns(["", "peak", "more time"], rows, right=(1, 2))


def _row(label: str, peak: int, overhead: float) -> list[Cell]:
    return [label, format_bytes(peak), format_share(overhead)]


def ranges(paths: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Merge neighbouring modules: "blocks.0 to blocks.5 (6 × Block)"."""
    runs: list[list[tuple[str, str]]] = []
    for path, kind in zip(paths, kinds, strict=True):
        if runs and kind == runs[-1][-1][1] and _follows(runs[-1][-1][0], path):
            runs[-1].append((path, kind))
        else:
            runs.append([(path, kind)])
    said = [_run(run) for run in runs]
    return [*said[:_MOST_RANGES], f"and {len(said) - _MOST_RANGES} more"] if len(said) > _MOST_RANGES else said


def _follows(one: str, other: str) -> bool:
    """Tell whether two paths differ only in a number that is higher by 1."""
    first, second = one.split("."), other.split(".")
    apart = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
    if len(first) != len(second) or len(apart) != 1:
        return False
    a, b = apart[0]
    return a.isdecimal() and b.isdecimal() and int(b) == int(a) + 1


def _run(run: Sequence[tuple[str, str]]) -> str:
    (first, kind), (last, _) = run[0], run[-1]
    return clean(f"{first} ({kind})" if len(run) == 1 else f"{first} to {last} ({len(run)} × {kind})")
