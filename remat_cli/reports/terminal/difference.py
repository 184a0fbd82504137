"""The report of `remat diff`: plain peaks and ops of two graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from remat_cli.core.graph import Graph, Op
from remat_cli.core.solve import baseline_of
from remat_cli.planning.summary import Summary, graph_summary
from remat_cli.prepare import Prepared
from remat_cli.reports.safe_text import Name, Report, clean
from remat_cli.reports.summary import eager_figure
from remat_cli.reports.terminal.layout import Cell, bullets, columns, facts, indented, section
from remat_cli.reports.terminal.plan import graph_title
from remat_cli.studies.difference import Difference, PeakChange
from remat_cli.units import format_bytes, format_share, format_time

_MOST_CHANGES = 12
_MOST_OPS = 8
_Peaks = tuple[int | None, int | None]
_UNKNOWN: _Peaks = (None, None)


def diff_report(old: Prepared, new: Prepared, difference: Difference, eager_peaks: _Peaks = _UNKNOWN) -> Report:
    """Return the report of `remat diff` on two prepared graphs.

    `eager_peaks` has the old and the new peak of PyTorch steps without a plan, None where it is not known.
    """
    title = facts([("old", graph_title(old)), ("new", graph_title(new))])
    parts: list[RenderableType] = [
        title,
        Text(_verdict(difference), "bold"),
        indented(_figures(difference, eager_peaks)),
    ]
    if difference.at_peak:
        parts.append(section("What the peaks differ by", _changes(difference.at_peak)))
    for heading, graph, ops in (
        ("Ops that are new", difference.new, difference.added),
        ("Ops that are gone", difference.old, difference.gone),
    ):
        if ops:
            parts.append(section(f"{heading}: {_types(ops)}", _ops(graph, ops)))
    if difference.resized:
        parts.append(section(f"Ops of other shapes: {len(difference.resized):,}", _resized(difference)))
    if difference.renamed:
        count = f"{difference.renamed:,} ops are" if difference.renamed > 1 else "1 op is"
        parts.append(Text(f"{count} alike under another name.", "dim"))
    notes = [f"{which}: {clean(note)}" for which, graph in (("old", old), ("new", new)) for note in graph.notes]
    return Report(*parts, *([section("Notes", bullets(notes))] if notes else []))


def _verdict(difference: Difference) -> str:
    before, now = baseline_of(difference.old).peak_bytes, baseline_of(difference.new).peak_bytes
    if before == now:
        return f"The plain peak is the same: {format_bytes(now)}."
    change = "grew" if now > before else "shrank"
    share = f" by {format_share(abs(now - before) / before)}" if before else ""
    return f"The plain peak {change}{share}, from {format_bytes(before)} to {format_bytes(now)}."


def _figures(difference: Difference, eager_peaks: _Peaks) -> RenderableType:
    old, new = difference.old, difference.new
    before, now = baseline_of(old), baseline_of(new)
    more = len(new.ops) - len(old.ops)
    old_eager, new_eager = eager_peaks
    rows: list[list[Cell]] = [["plain peak", *_sizes(before.peak_bytes, now.peak_bytes)]]
    if old_eager is not None and new_eager is not None:
        rows.insert(0, ["eager peak", *_sizes(old_eager, new_eager)])
    rows += [
        ["time", format_time(before.time, old.time_unit), format_time(now.time, new.time_unit), ""],
        ["ops", f"{len(old.ops):,}", f"{len(new.ops):,}", f"{more:+,}" if more else ""],
    ]
    return columns(["", "old", "new", "change"], rows, right=(1, 2, 3))


def _sizes(before: int, now: int) -> list[str]:
    sign = "+" if now > before else "-"
    return [
        format_bytes(before),
        format_bytes(now),
        "" if now == before else f"{sign}{format_bytes(abs(now - before))}",
    ]


def _changes(changes: Sequence[PeakChange]) -> RenderableType:
    shown, rest = changes[:_MOST_CHANGES], changes[_MOST_CHANGES:]
    rows: list[list[Cell]] = [
        [Name(change.name), *_shares(change.old_bytes, change.new_bytes), change.reason] for change in shown
    ]
    if rest:
        before, now = sum(change.old_bytes for change in rest), sum(change.new_bytes for change in rest)
        rows.append([f"and {len(rest):,} more", *_shares(before, now), ""])
    return columns(["at the peak", "old", "new", "change", ""], rows, right=(1, 2, 3))


def _shares(before: int, now: int) -> list[str]:
    old, new, change = _sizes(before, now)
    return [old if before else "", new if now else "", change]


def _types(ops: Sequence[Op]) -> str:
    counts = Counter(op.type for op in ops).most_common()
    more = f" and {sum(count for _, count in counts[_MOST_OPS:]):,} others" if len(counts) > _MOST_OPS else ""
    return ", ".join(f"{count:,} {clean(kind)}" for kind, count in counts[:_MOST_OPS]) + more


def _ops(graph: Graph, ops: Sequence[Op]) -> RenderableType:
    largest = sorted(ops, key=lambda op: -_output_bytes(graph, op))
    rows: list[list[Cell]] = [
        [Name(op.name), clean(op.type), _shape(graph, op), format_bytes(_output_bytes(graph, op))]
        for op in largest[:_MOST_OPS]
    ]
    if rest := largest[_MOST_OPS:]:
        rows.append([f"and {len(rest):,} more", "", "", format_bytes(sum(_output_bytes(graph, op) for op in rest))])
    return columns(["op", "type", "shape", "makes"], rows, right=(3,))


def _resized(difference: Difference) -> RenderableType:
    pairs = sorted(difference.resized, key=lambda pair: -_output_bytes(difference.new, pair[1]))
    rows: list[list[Cell]] = [
        [
            Name(new.name),
            clean(new.type),
            f"{_shape(difference.old, old)} to {_shape(difference.new, new)}",
            format_bytes(_output_bytes(difference.old, old)),
            format_bytes(_output_bytes(difference.new, new)),
        ]
        for old, new in pairs[:_MOST_OPS]
    ]
    if rest := pairs[_MOST_OPS:]:
        before = sum(_output_bytes(difference.old, old) for old, _ in rest)
        now = sum(_output_bytes(difference.new, new) for _, new in rest)
        rows.append([f"and {len(rest):,} more", "", "", format_bytes(before), format_bytes(now)])
    return columns(["op", "type", "shape", "old", "new"], rows, right=(3, 4))


def _output_bytes(graph: Graph, op: Op) -> int:
    return sum(graph.tensors[name].bytes for name in op.outputs)


def _shape(graph: Graph, op: Op) -> str:
    """Return the shape of an op's first output, if known."""
    shape = graph.tensors[op.outputs[0]].shape if op.outputs else None
    return "" if shape is None else "×".join(map(str, shape)) or "scalar"


def diff_summary(old: Prepared, new: Prepared, difference: Difference, eager_peaks: _Peaks = _UNKNOWN) -> Summary:
    """Return the summary of `remat diff`.

    All changes at the peak add up to the change of the peak.
    """
    return {
        "old": _side(old, eager_peaks[0]),
        "new": _side(new, eager_peaks[1]),
        "at_peak": [
            {
                "name": change.name,
                "old_bytes": change.old_bytes,
                "new_bytes": change.new_bytes,
                "reason": change.reason,
            }
            for change in difference.at_peak
        ],
        "ops": {
            "new": [{"op": op.name, "type": op.type} for op in difference.added],
            "gone": [{"op": op.name, "type": op.type} for op in difference.gone],
            "of_other_shapes": [{"op": now.name, "was": before.name, "type": now.type}
                                for before, now in difference.resized],
            "renamed": difference.renamed,
        },
    }  # fmt: skip


def _side(prepared: Prepared, eager_peak_bytes: int | None) -> Summary:
    plain = baseline_of(prepared.graph)
    return {
        **eager_figure(eager_peak_bytes),
        "graph": graph_summary(prepared),
        "plain": {"peak_bytes": plain.peak_bytes, "time": plain.time},
        "notes": list(prepared.notes),
    }
