"""The growth of a model's peak since its baseline.

It lists tensors at the peak, and ops of each type added or removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from remat_cli.checks.baseline import Figures
from remat_cli.core.graph import Graph
from remat_cli.core.solve import baseline_of
from remat_cli.studies.difference import PeakContents, matched
from remat_cli.units import first_of, format_bytes

# The part of the plain peak below which a tensor is not kept in a baseline.
_SMALLEST_SHARE = 100
_MOST_NAMED = 3


def largest_at_peak(graph: Graph) -> dict[str, int]:
    """Return the tensors that fill the plain peak, largest first.

    Tensors below a hundredth of the peak are left out.
    """
    least = baseline_of(graph).peak_bytes / _SMALLEST_SHARE
    tensors = {name: size for name, size in PeakContents.of(graph).tensors.items() if size >= least}
    return dict(sorted(tensors.items(), key=lambda item: (-item[1], item[0])))


def what_grew(before: Figures, now: Figures) -> str:
    """Return clauses on new or larger tensors at the peak, and changed ops.

    Tensors are matched by name and, where names have changed, by size. The text is empty if the baseline does not list
    tensors and ops.
    """
    parts: list[str] = []
    if before.at_peak is not None and now.at_peak is not None:
        parts += _tensors(before.at_peak, now.at_peak)
    if before.op_types is not None and now.op_types is not None:
        parts += _ops(before.op_types, now.op_types)
    return "".join(f"; {part}" for part in parts)


def _tensors(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
    old_names = matched(before, now)
    new = [f"{name!r} ({format_bytes(size)})" for name, size in now.items() if name not in old_names]
    had = {name: before[old] for name, old in old_names.items()}
    grown = [
        f"{name!r} ({format_bytes(had[name])} before, {format_bytes(size)} now)"
        for name, size in now.items()
        if name in had and size > had[name]
    ]
    if new:
        yield f"new at the peak: {first_of(new, _MOST_NAMED)}"
    if grown:
        yield f"larger at the peak: {first_of(grown, _MOST_NAMED)}"


def _ops(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
    changes = {kind: now.get(kind, 0) - before.get(kind, 0) for kind in dict.fromkeys((*now, *before))}
    for what, sign in (("ops added", 1), ("ops gone", -1)):
        counts = [f"{abs(change):,} {kind}" for kind, change in changes.items() if change * sign > 0]
        if counts:
            yield f"{what}: {first_of(counts, _MOST_NAMED)}"
