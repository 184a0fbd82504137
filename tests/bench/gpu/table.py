"""Lines of the trial's table: what a row found, and the table as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from remat_cli.units import format_bytes, format_share

# A peak is as predicted where it is within this share of it, or these bytes, of small models.
SHARE, SLACK_BYTES = 0.03, 65_536
# Results are eager's where they are within these shares of the largest of their kind.
NARROW_TOLERANCE, TOLERANCE, MORE_THAN_EAGER = 3e-2, 1e-4, 10.0


@dataclass(frozen=True)
class Line:
    """What a row of the trial found; sizes are in bytes, with all that is in memory, times in milliseconds.

    Attributes:
        row: its name.
        budget: of the plan.
        other_peak: of what the plan is held against: eager, unless the row names another.
        predicted: the peak of the plan.
        allocated: the same, measured.
        reserved: by the allocator at that time.
        results: how results differ from eager's.
        eager_ms: time of an eager step.
        other_ms: of what the plan is held against.
        plan_ms: of the planned step.
        says: what else was found.
        faults: what does not hold.
        refused: why remat makes no such plan, in its words; empty where it does.
        failed: why there are no figures; empty where there are.
        seconds: that the row took.
    """

    row: str
    budget: int | None = None
    other_peak: int | None = None
    predicted: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    results: str = ""
    eager_ms: float | None = None
    other_ms: float | None = None
    plan_ms: float | None = None
    says: str = ""
    faults: tuple[str, ...] = ()
    refused: str = ""
    failed: str = ""
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the row ran, and found nothing that does not hold."""
        return not self.failed and not self.faults

    @property
    def off(self) -> float | None:
        """How far the predicted peak is from the measured one, as a share of that."""
        if self.predicted is None or not self.allocated:
            return None
        return self.predicted / self.allocated - 1

    def judged(self) -> Self:
        """Return the line with the faults of its peaks."""
        faults = list(self.faults)
        if self.predicted is not None and self.allocated is not None:
            apart = abs(self.predicted - self.allocated)
            if apart > max(SHARE * self.allocated, SLACK_BYTES):
                faults.append(f"the peak is {format_share(abs(self.off or 0))} from the predicted one")
        if self.budget is not None and self.allocated is not None and self.allocated > self.budget + SLACK_BYTES:
            faults.append(f"the peak is {format_bytes(self.allocated - self.budget)} above the budget")
        return replace(self, faults=tuple(faults))

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the line that `written` wrote."""
        values = json.loads(text)
        return cls(**{**values, "faults": tuple(values["faults"])})

    def written(self) -> str:
        """Return the line as JSON."""
        return json.dumps(asdict(self))


def beside_eager(plan: float, eager: float, *, narrow: bool) -> tuple[str, tuple[str, ...]]:
    """Return how results are beside eager's, in words, and what is wrong with that.

    Args:
        plan: the largest difference of the planned run to eager's, as a share; 0 where all bits are the same.
        eager: the same of two eager runs.
        narrow: the model has numbers of 16 bits.
    """
    if not plan:
        return "same bits", ()
    words = f"to {plan:.0e}, eager itself to {eager:.0e}" if eager else f"to {plan:.0e}"
    most = max(NARROW_TOLERANCE if narrow else TOLERANCE, MORE_THAN_EAGER * eager)
    return words, () if plan <= most else (f"results differ from eager's {words}",)


_COLUMNS: dict[str, Callable[[Line], str]] = {
    "row": lambda line: line.row,
    "budget": lambda line: _bytes(line.budget),
    "peak beside": lambda line: _bytes(line.other_peak),
    "plan: predicted": lambda line: _bytes(line.predicted),
    "allocated": lambda line: _bytes(line.allocated),
    "off by": lambda line: "" if line.off is None else format_share(line.off),
    "reserved": lambda line: _bytes(line.reserved),
    "results": lambda line: line.results,
    "eager ms": lambda line: _ms(line.eager_ms),
    "beside ms": lambda line: _ms(line.other_ms),
    "plan ms": lambda line: _ms(line.plan_ms),
    "": lambda line: _words(line),
    "seconds": lambda line: f"{line.seconds:.0f}",
}


def _bytes(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def _ms(time: float | None) -> str:
    return "" if time is None else f"{time:.1f}"


def _words(line: Line) -> str:
    if line.failed:
        return f"**failed**: {line.failed}"
    if line.refused:
        return f"refused: {line.refused}"
    return "; ".join([*(f"**{fault}**" for fault in line.faults), *filter(None, [line.says])])


def row_summary(line: Line) -> str:
    """Return a row in one line, for a terminal."""
    sign = "fails" if line.failed else "refused" if line.refused else "holds" if line.holds else "is off"
    figures = [f"{name} {value}" for name, value in _figures(line) if value]
    said = _words(line).replace("**", "")
    return f"{line.row} {sign} ({line.seconds:.0f} s): {'; '.join(filter(None, [*figures, said]))}"


def _figures(line: Line) -> Iterator[tuple[str, str]]:
    yield "predicted", _bytes(line.predicted)
    yield "allocated", _bytes(line.allocated)
    yield "results", line.results


def markdown(lines: Sequence[Line], machine: str) -> str:
    """Return the table, under a line that names the machine; peaks and budgets are those of all that is in memory."""
    rows = [list(_COLUMNS), ["---"] * len(_COLUMNS)]
    rows += [[cell(line).replace("|", r"\|") for cell in _COLUMNS.values()] for line in lines]
    return "\n".join([f"{machine}.", "", *(f"| {' | '.join(row)} |" for row in rows), ""])


def as_json(lines: Sequence[Line], machine: str) -> dict[str, Any]:
    """Return the table as plain values."""
    return {"machine": machine, "rows": [{**asdict(line), "holds": line.holds} for line in lines]}


def write(lines: Sequence[Line], machine: str, folder: Path) -> None:
    """Write `table.md` and `table.json` into a folder, which is made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown(lines, machine), encoding="utf-8")
    (folder / "table.json").write_text(json.dumps(as_json(lines, machine), indent=2) + "\n", encoding="utf-8")
