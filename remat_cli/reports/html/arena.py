"""The arena as a picture: time across, addresses up.

Each tensor or workspace is a rectangle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape

from remat_cli.allocation.lifetimes import needed_by
from remat_cli.core.arena import AT_START, Arena
from remat_cli.core.schedule import Compute, Inplace, Prefetch
from remat_cli.reports.safe_text import shorten
from remat_cli.reports.timeline import Run
from remat_cli.units import format_bytes

_LONGEST_NAME = 120
# The largest number of rectangles, largest first: more would be indistinguishable.
_MOST = 5_000
_WIDTH, _HEIGHT = 960, 320
# the same colours as in the style sheet
_COLOURS = {"plan": "#2f6fde", "again": "#c02a86", "host": "#0b8a7d", "input": "#8a94a0", "workspace": "#c05f00"}


@dataclass(frozen=True)
class _Lying:
    """A rectangle in the arena: its time, bytes, colour and name."""

    start: int
    end: int
    offset: int
    size: int
    colour: str
    name: str
    bank: str | None


def arena_section(run: Run | None, arena: Arena | None) -> str:
    """Return the section of the page on a run's arena, if any."""
    if run is None or arena is None or not arena.bytes:
        return ""
    lying = sorted(_lying(run, arena), key=lambda each: -(each.end - each.start) * each.size)
    more = len(lying) - _MOST
    left_out = f" The {more:,} smallest are left out." if more > 0 else ""
    top = f"{format_bytes(arena.bytes)}" if not arena.banks else "the size of the bank"
    return (
        f'<section class="card"><h2>Arena</h2>{_panels(lying[:_MOST], run, arena)}'
        f'<p class="more">Time across, addresses up, from 0 to {top}; each is a multiple of '
        f"{arena.alignment:,} bytes. Blue what is made for the first time, pink what is recomputed, green what comes "
        "back from the host, grey inputs, orange workspaces. The one under the pointer says its name, size and offset."
        f"{left_out}</p></section>"
    )


def _lying(run: Run, arena: Arena) -> Iterator[_Lying]:
    addresses = {(address.step, address.tensor): address for address in arena.addresses}
    # Tensors at the start, or of the first step, begin at 0; a step begins at the end of the step before.
    times = (0, *run.trace.times, run.trace.times[-1])
    needed, produced = needed_by(run.graph, run.schedule), set[str]()
    for (step, tensor), buffer in sorted(
        zip(needed.things, needed.buffers, strict=True), key=lambda each: each[1].lower
    ):
        colour = _colour(run, step, tensor, produced)
        if tensor is not None:
            produced.add(tensor)
        op = run.schedule.steps[step] if step != AT_START else None
        owner = op.op if isinstance(op, Compute | Inplace) else ""
        name = f"workspace of {owner}" if tensor is None else tensor
        start, end = times[buffer.lower], times[buffer.upper]
        address = addresses[step, tensor]
        yield _Lying(start, end, address.offset, buffer.size, colour, name, address.bank)


def _colour(run: Run, step: int, tensor: str | None, produced: set[str]) -> str:
    if tensor is None:
        return "workspace"
    if step == AT_START:
        return "input"
    if isinstance(run.schedule.steps[step], Prefetch):
        return "host"
    return "again" if tensor in produced else "plan"


def arena_svg(run: Run, arena: Arena) -> str:
    """Return the picture of an arena as a separate SVG file.

    Its colours are those of light pages.
    """
    lying = sorted(_lying(run, arena), key=lambda each: -(each.end - each.start) * each.size)
    colours = "".join(f".{name}{{fill:{colour}}}" for name, colour in _COLOURS.items())
    starts = arena.bank_starts
    stacked = [replace(each, offset=starts[each.bank] + each.offset) for each in lying[:_MOST]]
    shapes = "\n".join(_shapes(stacked, run, arena.span_bytes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'aria-label="The arena: time across, addresses up">\n'
        f"<style>rect{{fill-opacity:.6;stroke:#fff;stroke-width:.5}}.ground{{fill:#eceff2;fill-opacity:1}}{colours}</style>\n"
        f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}"/>\n{shapes}\n</svg>\n'
    )


def _panels(lying: list[_Lying], run: Run, arena: Arena) -> str:
    """Return a picture of the block, or of each bank under its name."""
    if not arena.banks:
        return _picture(lying, run, arena.bytes, "The arena")
    panels = []
    for bank in arena.banks:
        title = f"{shorten(bank.name, _LONGEST_NAME)}: {format_bytes(bank.bytes)}, speed {float(bank.speed):g}"
        inside = [each for each in lying if each.bank == bank.name]
        panels.append(f"<h3>{escape(title)}</h3>{_picture(inside, run, bank.bytes, f'Bank {title}')}")
    return "".join(panels)


def _picture(lying: list[_Lying], run: Run, size: int, title: str) -> str:
    return (
        f'<svg class="arena" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}: time across, addresses up">{"".join(_shapes(lying, run, size))}</svg>'
    )


def _shapes(lying: list[_Lying], run: Run, size: int) -> Iterator[str]:
    total = max(1, run.trace.time)
    for each in lying:
        x, width = _WIDTH * each.start / total, _WIDTH * (each.end - each.start) / total
        height = _HEIGHT * each.size / size
        y = _HEIGHT - _HEIGHT * each.offset / size - height
        says = f"{shorten(each.name, _LONGEST_NAME)}: {format_bytes(each.size)} at {each.offset:,}"
        yield (
            f'<rect class="{each.colour}" x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.2):.2f}" height="{height:.2f}">'
            f"<title>{escape(says)}</title></rect>"
        )
