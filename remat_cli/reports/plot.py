"""Overhead against budget as a PNG or SVG picture.

This needs matplotlib, from the extra `plot`.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph
from remat_cli.errors import UsageError
from remat_cli.reports.safe_text import shorten
from remat_cli.studies.sweep import Curve, Point, Sweep
from remat_cli.units import format_bytes, format_share

FORMATS = (".png", ".svg")
# The colours of Okabe and Ito, which colour-blind people can distinguish; marks and dashes serve in print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
_MARKS = ("o", "^", "s", "D", "v", "P", "X", "*")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":")
_GREY = "#777777"
_INCHES = (8.0, 4.8)
_DOTS_PER_INCH = 160
_LONGEST_NAME = 48
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    # Text that stays text can be searched and copied; fixed salt gives the same identifiers each time.
    "svg.fonttype": "none",
    "svg.hashsalt": "remat",
}


def check_can_plot(path: Path) -> None:
    """Check in advance that `sweep_plot` can write this file.

    Raises:
        UsageError: matplotlib is missing, or the name has no supported ending.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"--plot {path}: the name ends in no format that can be drawn", hint=f"end it in {' or '.join(FORMATS)}"
        )
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed", hint="pip install 'remat[plot]'")


def sweep_plot(sweep: Sweep, graph: Graph, suffix: str) -> bytes:
    """Draw a sweep.

    Args:
        sweep: the sweep to draw.
        graph: graph of the sweep.
        suffix: one of FORMATS.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # The user's matplotlibrc is ignored: with TeX enabled, a name could be a command.
    style: dict[Any, Any] = {**mpl.rcParamsDefault, **_STYLE}
    with mpl.rc_context(style), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.add_subplot()
        budgets = [point.budget_bytes for point in sweep.points]
        unit, factor = _unit(max(budgets))
        curves = [curve for curve in sweep.curves if any(point.trace is not None for point in curve.points)]
        for number, curve in enumerate(curves):
            _draw_curve(axes, curve, number, factor)
        _draw_limits(axes, sweep, graph, factor)
        axes.set_title(shorten(graph.name, _LONGEST_NAME), loc="left", fontweight="bold", parse_math=False)
        axes.set_xlabel(f"memory budget ({unit})")
        axes.set_ylabel("time overhead (%)")
        margin = max(max(budgets) - min(budgets), max(budgets) // 10, 1) / factor / 30
        axes.set_xlim(min(budgets) / factor - margin, max(budgets) / factor + margin)
        axes.set_ylim(bottom=0, top=None if _has_overhead(sweep) else 1)
        _add_shares(axes, sweep, factor)
        if len(curves) > 1 or _any_carried(curves):
            _add_legend(axes, curves)
        elif curves and curves[0].knee is not None:
            place = _place(curves[0].knee, factor)
            axes.annotate(_knee_in_words(curves[0].knee), place, xytext=(10, 8), textcoords="offset points")
        output = io.BytesIO()
        metadata = {"Date": None} if suffix == ".svg" else {}
        kind = suffix.removeprefix(".")
        figure.savefig(output, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata, bbox_inches="tight", pad_inches=0.15)
    return output.getvalue()


def _unit(size: int) -> tuple[str, int]:
    """Return the best unit for sizes up to `size`, and its bytes."""
    unit = format_bytes(size).split()[-1]
    return unit, {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}[unit]


def _has_overhead(sweep: Sweep) -> bool:
    return any(point.solution.overhead for point in sweep.points)


def _draw_curve(axes: Any, curve: Curve, number: int, factor: int) -> None:
    points = [(point, *_place(point, factor)) for point in curve.points if point.trace is not None]
    colour, mark = _COLOURS[number % len(_COLOURS)], _MARKS[number % len(_MARKS)]
    # A plan fits every larger budget: between two points, the plan of the left one holds.
    axes.plot(
        [x for _, x, _ in points],
        [y for _, _, y in points],
        _DASHES[number % len(_DASHES)],
        drawstyle="steps-post",
        color=colour,
        alpha=0.6,
        linewidth=1.4,
    )
    for carried in (False, True):
        chosen = [(x, y) for point, x, y in points if (point.found_at is not None) == carried]
        if not chosen:
            continue
        axes.plot(
            [x for x, _ in chosen],
            [y for _, y in chosen],
            mark,
            color=colour,
            markerfacecolor="white" if carried else colour,
            # Later marks are smaller: where marks overlap, all stay visible.
            markersize=max(4, 8 - number),
            clip_on=False,
            zorder=3,
        )
    if curve.knee is not None:
        x, y = _place(curve.knee, factor)
        axes.plot([x], [y], "o", markersize=14 + 3 * number, markerfacecolor="none", color=colour, zorder=2)


def _knee_in_words(knee: Point) -> str:
    return f"knee: {format_bytes(knee.budget_bytes)}, {format_share(knee.solution.overhead or 0)}"


def _place(point: Point, factor: int) -> tuple[float, float]:
    return point.budget_bytes / factor, 100 * (point.solution.overhead or 0.0)


def _draw_limits(axes: Any, sweep: Sweep, graph: Graph, factor: int) -> None:
    """Draw lines at the largest working set and at the plain peak.

    Lines outside of the budgets are left out.
    """
    budgets = [point.budget_bytes for point in sweep.points]
    for size, text, side in (
        (largest_working_set(graph).bytes, "less never fits", 1),
        (sweep.baseline.peak_bytes, "plain run", -1),
    ):
        if min(budgets) <= size <= max(budgets):
            axes.axvline(size / factor, color=_GREY, linestyle=(0, (1, 2)), linewidth=1.2, zorder=1)
            axes.annotate(
                text,
                (size / factor, 1),
                xycoords=("data", "axes fraction"),
                xytext=(4 * side, -2),
                textcoords="offset points",
                rotation=90,
                ha="left" if side > 0 else "right",
                va="top",
                color=_GREY,
                fontsize=9,
            )


def _add_shares(axes: Any, sweep: Sweep, factor: int) -> None:
    """Add an upper axis of budgets as shares of the plain peak."""
    plain_peak = max(1, sweep.baseline.peak_bytes) / factor
    above = axes.secondary_xaxis(
        "top", functions=(lambda size: 100 * size / plain_peak, lambda share: share * plain_peak / 100)
    )
    above.set_xlabel("% of the plain run's peak", color=_GREY)
    above.tick_params(colors=_GREY)
    above.spines["top"].set_color(_GREY)


def _add_legend(axes: Any, curves: Sequence[Curve]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKS[number % len(_MARKS)],
            linestyle=_DASHES[number % len(_DASHES)],
        )
        for number in range(len(curves))
    ]
    labels = [shorten(curve.label, _LONGEST_NAME).lstrip("_") for curve in curves]
    labels = [
        label if curve.knee is None else f"{label} ({_knee_in_words(curve.knee)})"
        for label, curve in zip(labels, curves, strict=True)
    ]
    if _any_carried(curves):
        handles.append(Line2D([], [], color=_GREY, marker="o", markerfacecolor="white", linestyle=""))
        labels.append("found at another budget")
    legend = axes.legend(handles, labels, framealpha=0.9, edgecolor="none")
    for text in legend.get_texts():
        text.set_parse_math(False)


def _any_carried(curves: Sequence[Curve]) -> bool:
    return any(point.found_at is not None for curve in curves for point in curve.points)
