"""The table of the largest tensors at the plain run's peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from remat_cli.reports.peak import PeakTensor, count_fates, tensors_at_peak
from remat_cli.reports.safe_text import Name
from remat_cli.reports.terminal.layout import INDENT, QUIET_STYLE, Cell, columns
from remat_cli.reports.terminal.memory_chart import StaysBar
from remat_cli.reports.timeline import Run
from remat_cli.units import format_bytes, format_share

# From this width on, the table shows the step at which a tensor is dropped.
_WIDE = 100 - INDENT

_Column = tuple[str, Callable[[PeakTensor], Cell]]


@dataclass(frozen=True)
class PeakTable:
    """The tensors at the plain run's peak, and their fate in another run.

    Attributes:
        plain: the plain run.
        plan: the other run; None to show each tensor's share of the peak instead.
        shown: number of largest tensors with a line each.
    """

    plain: Run
    plan: Run | None = None
    shown: int = 8

    @cached_property
    def _tensors(self) -> list[PeakTensor]:
        return tensors_at_peak(self.plain, self.plan)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        largest, rest = self._tensors[: self.shown], self._tensors[self.shown :]
        layout = self._columns(largest, is_wide=options.max_width >= _WIDE)
        rows = [[cell(tensor) for _, cell in layout] for tensor in largest]
        rows += ([Text(text, QUIET_STYLE) for text in row] for row in self._remainder(rest))
        yield columns([header for header, _ in layout], rows, right=(1,))
        if self.plan is not None:
            yield Text(f"Of all {len(self._tensors):,} tensors: {count_fates(self._tensors)}.", QUIET_STYLE)

    def _columns(self, tensors: Sequence[PeakTensor], *, is_wide: bool) -> list[_Column]:
        layout: list[_Column] = [
            ("tensor", lambda tensor: Name(tensor.name)),
            ("size", lambda tensor: format_bytes(tensor.bytes)),
        ]
        if self.plan is None:
            layout.append(("of the peak", self._share))
        else:
            layout.append(("in the plan", _fate_and_step if is_wide else str))
        # In many graphs a tensor has the name of its op: a second column would be redundant.
        if any(tensor.name != tensor.producer for tensor in tensors):
            layout.append(("made by", lambda tensor: Name(tensor.producer)))
        run = self.plan or self.plain
        stays = run.stays_of({tensor.name for tensor in tensors} & run.graph.producer.keys())
        layout.append(("in memory", lambda tensor: StaysBar(run, stays.get(tensor.name, ()))))
        return layout

    def _share(self, tensor: PeakTensor) -> str:
        return format_share(tensor.bytes / self.plain.trace.peak_bytes)

    def _remainder(self, rest: Sequence[PeakTensor]) -> list[tuple[str, str, str]]:
        """Return rows for the rest of the peak: name, size, remark."""
        graph, peak = self.plain.graph, self.plain.trace.peak_bytes
        others = sum(tensor.bytes for tensor in rest)
        residents = sum(graph.tensors[name].bytes for name in graph.residents)
        moves = self.plan is not None and self.plan.moved_residents
        workspace = peak - graph.fixed_bytes - sum(tensor.bytes for tensor in self._tensors)
        parts = [
            (f"and {len(rest):,} more", others, ""),
            ("workspace", workspace, ""),
            ("resident bytes", graph.resident_bytes, "always there"),
            ("parameters and state", residents, "some on the host" if moves else "always there"),
            ("graph inputs", graph.fixed_bytes - graph.resident_bytes - residents, "always there"),
        ]
        return [
            (name, format_bytes(size), about or (format_share(size / peak) if self.plan is None else ""))
            for name, size, about in parts
            if size > 0
        ]


def _fate_and_step(tensor: PeakTensor) -> str:
    return str(tensor) if tensor.dropped_at is None else f"dropped at step {tensor.dropped_at:,}, {tensor}"
