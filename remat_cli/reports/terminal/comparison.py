"""The table that compares a run with the plain run."""

from __future__ import annotations

from remat_cli.core.link import Direction
from remat_cli.core.solve import share_over
from remat_cli.reports.terminal.layout import Cell
from remat_cli.reports.timeline import Run
from remat_cli.reports.transfers import LINK, queues
from remat_cli.units import counted, format_bytes, format_share, format_time

Row = list[Cell]


def comparison_rows(plain: Run, run: Run, budget_bytes: int | None = None) -> list[Row]:
    """Return rows of label, plain run, other run, and words.

    Args:
        plain: the plain run.
        run: another run of the same graph.
        budget_bytes: budget of `run`; None without one.
    """
    unit = plain.graph.time_unit
    before, after = plain.trace, run.trace
    rows: list[Row] = [
        ["peak memory", format_bytes(before.peak_bytes), format_bytes(after.peak_bytes), _saving(plain, run)]
    ]
    if budget_bytes is not None:
        rows.append(["budget", "", format_bytes(budget_bytes), _to_spare(budget_bytes - after.peak_bytes)])
    rows.append(["time", format_time(before.time, unit), format_time(after.time, unit), _overhead(plain, run)])
    rows.append(["op runs", f"{sum(before.runs.values()):,}", f"{sum(after.runs.values()):,}", _recomputed(run)])
    return rows + _transfers(run)


def _transfers(run: Run) -> list[Row]:
    """Return rows on transfers: bytes, the link's use, and waits.

    There are none without transfers.
    """
    trace, unit = run.trace, run.graph.time_unit
    if not trace.transfers or trace.link is None:
        return []
    out, back = (format_bytes(trace.moved_bytes(direction)) for direction in Direction)
    rows: list[Row] = [["transfers", "", f"{len(trace.transfers):,}", f"{out} to the host, {back} back"]]
    of_link = f"; {trace.link.in_words(unit)}"
    for way, transfers in queues(run).items():
        busy = sum(transfer.end - transfer.start for transfer in transfers)
        label = way if way == LINK else f"link {way}"
        share = format_share(busy / max(1, trace.time))
        rows.append([label, "", share, f"busy {format_time(busy, unit)}{of_link}"])
        of_link = ""
    idle = f"{format_share(trace.idle_time / max(1, trace.time))} of the time" if trace.idle_time else "no op waits"
    return [*rows, ["waiting", "", format_time(trace.idle_time, unit), f"{idle} for a transfer"]]


def plain_rows(plain: Run, budget_bytes: int) -> list[Row]:
    """Return the rows of `comparison_rows` for the plain run alone."""
    time = format_time(plain.trace.time, plain.graph.time_unit)
    return [
        ["peak memory", format_bytes(plain.trace.peak_bytes), "", ""],
        ["budget", "", format_bytes(budget_bytes), ""],
        ["time", time, "", ""],
    ]


def _saving(plain: Run, run: Run) -> str:
    share = share_over(run.trace.peak_bytes, plain.trace.peak_bytes)
    return "the same" if share == 0 else f"{format_share(abs(share))} {'less' if share < 0 else 'more'}"


def _to_spare(spare: int) -> str:
    return f"{format_bytes(spare)} to spare" if spare >= 0 else f"exceeded by {format_bytes(-spare)}"


def _overhead(plain: Run, run: Run) -> str:
    extra = run.trace.time - plain.trace.time
    if extra == 0:
        return "no overhead"
    share = format_share(share_over(run.trace.time, plain.trace.time))
    return f"{share} overhead: {format_time(extra, plain.graph.time_unit)} more"


def _recomputed(run: Run) -> str:
    runs = run.trace.recomputations
    if runs == 0:
        return "nothing recomputed"
    ops = run.trace.recomputed_ops
    return f"{counted(ops, 'op')} recomputed, {counted(runs, 'extra run')}"
