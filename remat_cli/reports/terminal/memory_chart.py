"""The memory chart: memory of a run over time.

Another run is shown behind it, and the budget across. Every column shows the largest memory of its steps, so that no
peak is lost, however long the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from remat_cli.core.simulate import Transfer
from remat_cli.reports.terminal.layout import QUIET_STYLE
from remat_cli.reports.timeline import Lifetime, Run
from remat_cli.reports.transfers import busy_shares, queues
from remat_cli.units import format_bytes, format_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RUN_STYLE = "cyan"
BEHIND_STYLE = "bright_black"
OVER_STYLE = "red"
BUDGET_STYLE = "yellow"
AGAIN_STYLE = "magenta"
LINK_STYLE = "green"

_FULL, _BEHIND, _BUDGET, _MARK, _NO_MARK = "█", "░", "╌", "━", "·"
_EIGHTHS = " ▁▂▃▄▅▆▇"
_HALF = _EIGHTHS[4]
# A budget far above every peak would flatten the chart.
_HIGHEST_BUDGET = 4 / 3
_ROWS_PER_TICK = 4
_NARROWEST_PLOT = 10
_NARROWEST_BAR, _WIDEST_BAR = 10, 40
# Columns are computed in 64-bit integers: times are first shifted down to this many bits.
_TIME_BITS = 40


@dataclass(frozen=True, slots=True)
class _Scale:
    """The scale from bytes to rows.

    It is linear up to the budget's line, with another linear scale above, so that everything that fits stays below the
    line.

    Attributes:
        top: bytes at the upper edge of the plot.
        rows: height of the plot.
        budget: bytes at the budget's line; 0 without a line.
        below: number of rows below the line.
    """

    top: int
    rows: int
    budget: int
    below: int

    @classmethod
    def of(cls, peak: int, budget: int | None, rows: int) -> _Scale:
        """Return the scale for values up to `peak` bytes."""
        if not budget or budget > peak * _HIGHEST_BUDGET:
            return cls(max(peak, 1), rows, 0, 0)
        if budget >= peak:
            return cls(budget, rows, budget, rows)
        return cls(peak, rows, budget, min(max(1, round(rows * budget / peak)), rows - 1))

    def eighths(self, size: int) -> int:
        """Return the height of `size` bytes in eighths of a row, rounded up."""
        if self.below and size <= self.budget:
            return -(-8 * size * self.below // self.budget)
        return 8 * self.below - (-8 * (size - self.budget) * (self.rows - self.below) // (self.top - self.budget))

    def upper_edge(self, row: int) -> int:
        """Return the bytes at the upper edge of a row."""
        if row < self.below:
            return (row + 1) * self.budget // self.below
        above = (row + 1 - self.below) * (self.top - self.budget) // (self.rows - self.below)
        return self.budget + above

    def ticks(self, peaks: Sequence[int]) -> dict[int, str]:
        """Return labels by row: the peaks, and upper edges of some rows."""
        ticks = {max(0, -(-self.eighths(peak) // 8) - 1): format_bytes(peak) for peak in peaks}
        for row in range(_ROWS_PER_TICK - 1, self.rows, _ROWS_PER_TICK):
            taken = [*ticks, self.below - 1, self.below] if self.budget else [*ticks]
            if all(abs(row - other) >= _ROWS_PER_TICK // 2 for other in taken):
                ticks[row] = format_bytes(self.upper_edge(row))
        return ticks


@dataclass(frozen=True)
class MemoryTimeline:
    """A memory chart over the full width.

    Attributes:
        run: the run drawn solid.
        behind: a run drawn shaded where it is above `run`; None for a chart of one run.
        budget_bytes: budget, drawn as a line across; None for no line.
        rows: height of the plot.
    """

    run: Run
    behind: Run | None = None
    budget_bytes: int | None = None
    rows: int = 12

    @cached_property
    def _runs(self) -> tuple[Run, ...]:
        return (self.run,) if self.behind is None else (self.run, self.behind)

    @cached_property
    def _scale(self) -> _Scale:
        return _Scale.of(max(run.trace.peak_bytes for run in self._runs), self.budget_bytes, self.rows)

    @cached_property
    def _queues(self) -> Mapping[str, Sequence[Transfer]]:
        # If only steps are counted, transfers take no time.
        return {} if self.run.counts_steps else queues(self.run)

    @cached_property
    def total(self) -> int:
        """The time of the chart's width: that of the longest run."""
        return max(run.total for run in self._runs)

    def legend(self, run: str, behind: str = "") -> Text:
        """Return the meaning of the chart's marks, given names of its runs."""
        parts = [(_FULL, RUN_STYLE, run)]
        if self.behind is not None:
            parts.append((_BEHIND, BEHIND_STYLE, behind))
        if self._scale.budget:
            parts.append((_BUDGET, BUDGET_STYLE, "budget"))
        if self.run.recomputing:
            parts.append((_MARK, AGAIN_STYLE, "recomputing"))
        if self._queues:
            parts.append((_HALF, LINK_STYLE, "link busy"))
        legend = Text()
        for mark, style, meaning in parts:
            legend.append("   " if legend else "").append(mark, style).append(f" {meaning}", QUIET_STYLE)
        return legend

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        scale = self._scale
        budget = format_bytes(scale.budget) if scale.budget else ""
        ticks = scale.ticks([run.trace.peak_bytes for run in self._runs])
        gutter = max(map(len, ("again", budget, *ticks.values(), *self._queues)))
        width = max(_NARROWEST_PLOT, options.max_width - gutter - 2)
        heights = [[scale.eighths(size) for size in largest_per_column(run, self.total, width)] for run in self._runs]
        for row in range(scale.rows, -1, -1):
            if row < scale.rows:
                # A peak exactly at the budget needs no label of its own.
                label = ticks[row] if row in ticks and ticks[row] != budget else ""
                is_over = 0 < scale.below <= row
                yield _line(label, gutter, "┤" if label else "│", _plot_row(row, heights, is_over))
            if budget and row == scale.below:
                yield _line(budget, gutter, "┤", Text(_BUDGET * width, BUDGET_STYLE))
        yield from self._axis(width, gutter)

    def _axis(self, width: int, gutter: int) -> Iterator[Text]:
        """Draw the time axis: start of the backward pass, reruns, total time."""
        firsts = [first for first in (self.run.first_backward, self.run.first_update) if first is not None]
        columns = _columns(self.run, self.total, width)[0] if firsts else ()
        boundaries = [int(columns[first + 1]) for first in firsts]
        rule = "".join("┴" if column and column in boundaries else "─" for column in range(width))
        yield _line("0 B", gutter, "└", Text(rule, QUIET_STYLE))
        if self.run.recomputing:
            again = [Lifetime(index, index + 1) for index in self.run.recomputing]
            yield _line("again", gutter, " ", marks(self.run, again, self.total, width, absent=" ", style=AGAIN_STYLE))
        for direction, transfers in self._queues.items():
            yield _line(direction, gutter, " ", _use(busy_shares(transfers, self.total, width)))
        yield _line("", gutter, " ", Text(_axis_labels(width, boundaries, self._end()), QUIET_STYLE))

    def _end(self) -> str:
        """Return the label of the axis' end."""
        if self.run.counts_steps:
            return f"{self.total:,} steps"
        unit, idle = self.run.graph.time_unit, self.run.trace.idle_time
        return f"time {format_time(self.total, unit)}" + (f", {format_time(idle, unit)} of it waiting" if idle else "")


def _line(label: str, gutter: int, edge: str, plot: Text) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    return line.append(f"{label:>{gutter}} {edge}", QUIET_STYLE).append_text(plot)


def _plot_row(row: int, heights: Sequence[Sequence[int]], is_over: bool) -> Text:
    """Return one row of the plot.

    `heights` are those of the run, and of the run behind if there is one.
    """
    cells: list[tuple[str, str]] = []
    for height, height_behind in zip(heights[0], heights[-1], strict=True):
        eighths = min(8, height - 8 * row)
        if eighths > 0:
            mark = _FULL if eighths == 8 else _EIGHTHS[eighths]
            cells.append((mark, OVER_STYLE if is_over else RUN_STYLE))
        elif height_behind > 8 * row:
            cells.append((_BEHIND, OVER_STYLE if is_over else BEHIND_STYLE))
        else:
            cells.append((" ", ""))
    return _joined(cells)


def _joined(cells: Sequence[tuple[str, str]]) -> Text:
    """Join cells, each a mark and its style, into text."""
    text = Text(no_wrap=True, overflow="crop")
    for style, group in groupby(cells, key=itemgetter(1)):
        text.append("".join(mark for mark, _ in group), style)
    return text


def _use(shares: Iterable[float]) -> Text:
    """Return a row of busy shares of time; any use is visible."""
    eighths = [0 if share <= 0 else max(1, round(8 * share)) for share in shares]
    return Text("".join(_FULL if height >= 8 else _EIGHTHS[height] for height in eighths), LINK_STYLE)


def _axis_labels(width: int, boundaries: Sequence[int], end: str) -> str:
    """Return `end` on the right, and the names of the passes and of the update if they fit."""
    passes = ""
    if boundaries and boundaries[0] > len("forward"):
        passes = f"{'forward':<{boundaries[0]}}backward"
        for boundary in boundaries[1:]:
            if boundary > len(passes) and boundary + len("update") + 2 + len(end) <= width:
                passes = f"{passes:<{boundary}}update"
    if len(passes) + 2 + len(end) > width:
        passes = ""
    return passes + end.rjust(width - len(passes))


def largest_per_column(run: Run, total: int, width: int) -> list[int]:
    """Return [width] the largest memory of `run` per column, in bytes.

    All columns together are `total` time. Columns after the end of the run have 0.
    """
    import numpy as np

    first, last = _columns(run, total, width)
    memory = np.array(run.trace.memory_bytes, dtype=np.int64)
    largest = np.zeros(width, dtype=np.int64)
    np.maximum.at(largest, first, memory)
    # Entries that span several columns; together they are no longer than the chart is wide.
    longer = np.flatnonzero(last > first)
    for entry in longer.tolist():
        stretch = largest[first[entry] : last[entry] + 1]
        np.maximum(stretch, memory[entry], out=stretch)
    return [int(value) for value in largest]


def _columns(run: Run, total: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and last column of each memory entry.

    The arrays are [steps + 1], as `run.trace.memory_bytes`.
    """
    import numpy as np

    shift = max(0, total.bit_length() - _TIME_BITS)
    ends = np.cumsum(run.durations)
    starts = ends - run.durations
    scaled_total = max(1, total >> shift)
    first = (starts >> shift) * width // scaled_total
    last = -((-(ends >> shift) * width) // scaled_total) - 1
    end = max(0, int(last[-1]))
    return np.minimum(first, end), np.clip(last, np.minimum(first, end), end)


def marks(
    run: Run,
    stays: Sequence[Lifetime],
    total: int,
    width: int,
    *,
    absent: str = _NO_MARK,
    style: str = RUN_STYLE,
) -> Text:
    """Return a bar marked where `run` is in one of `stays`.

    It has `width` columns for `total` time.
    """
    first, last = _columns(run, total, width)
    present = [False] * width
    for stay in stays:
        # A step's entry is one after its index; a tensor that leaves at a step is gone during that step.
        for column in range(int(first[stay.start + 1]), int(last[max(stay.start + 1, stay.end)]) + 1):
            present[column] = True
    return _joined([(_MARK, style) if is_present else (absent, QUIET_STYLE) for is_present in present])


@dataclass(frozen=True)
class StaysBar:
    """A bar of a tensor's stays in memory over the time of a run.

    Attributes:
        run: the run.
        stays: stays of the tensor in memory.
    """

    run: Run
    stays: tuple[Lifetime, ...]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_NARROWEST_BAR, min(_WIDEST_BAR, max(_NARROWEST_BAR, options.max_width)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield marks(self.run, self.stays, self.run.total, options.max_width)
