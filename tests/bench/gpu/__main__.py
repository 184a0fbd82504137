"""`make gpu`: run the rows of the trial, each in a process of its own, and write one table as Markdown and JSON.

Rows that only tell memory run beside each other where the device has room for that; those that tell times run alone.
The table is written after each row, so that what was found is there if the machine is taken away.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO

import torch

from tests.bench.gpu.place import Place
from tests.bench.gpu.rows import Row, rows
from tests.bench.gpu.table import Line, row_summary, write
from tests.places import ROOT

# What one row may have on the device: eager takes up to 20 GB, and the allocator reserves more than it gives.
_ROW_BYTES = 26 * 10**9


@dataclass(frozen=True)
class Limits:
    """How long rows may take.

    Attributes:
        row: seconds of one row.
        all: seconds of all rows.
        together: how many may run beside each other.
    """

    row: float
    all: float
    together: int


class Trial:
    """Runs rows, each in a process, until the time is up."""

    def __init__(self, command: Callable[[Row, Path], Sequence[str]], limits: Limits) -> None:
        """Begin.

        Args:
            command: gives what runs a row and writes its line to a file.
            limits: how long rows may take.
        """
        self._command, self._limits = command, limits
        self._end = monotonic() + limits.all
        self._running: set[subprocess.Popen[str]] = set()
        self._starting = threading.Lock()
        self._is_over = False

    def lines(self, chosen: Sequence[Row]) -> Iterator[Line]:
        """Run rows in their order, and yield the line of each as it ends."""
        for alone, group in groupby(chosen, lambda row: row.alone):
            with ThreadPoolExecutor(1 if alone else self._limits.together) as pool:
                try:
                    yield from (future.result() for future in as_completed([pool.submit(self._line, r) for r in group]))
                except BaseException:
                    self._stop()
                    raise

    def _line(self, row: Row) -> Line:
        began = monotonic()
        seconds = min(self._limits.row, self._end - began)
        if seconds <= 0:
            return Line(row.name, failed=f"not begun: the {self._limits.all:g} seconds of the trial were up")
        with TemporaryDirectory() as folder:
            result, errors = Path(folder, "line.json"), Path(folder, "stderr.txt")
            with errors.open("w", encoding="utf-8") as stderr:
                process = self._started(self._command(row, result), stderr)
                if process is None:
                    return Line(row.name, failed="not begun: the trial was interrupted")
                failed = self._ended(process, seconds)
            took = monotonic() - began
            if not failed and result.exists():
                line = Line.read(result.read_text(encoding="utf-8"))
                return replace(line, seconds=took)
            said = _last_line(errors.read_text(encoding="utf-8", errors="replace"))
        return Line(row.name, failed=": ".join(filter(None, [failed or "no result", said])), seconds=took)

    def _started(self, command: Sequence[str], stderr: IO[str]) -> subprocess.Popen[str] | None:
        with self._starting:
            if self._is_over:
                return None
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True, text=True
            )
            self._running.add(process)
        return process

    def _ended(self, process: subprocess.Popen[str], seconds: float) -> str:
        """Wait for a row; return why it failed, empty where it did not. What it started ends with it."""
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"took longer than {seconds:.0f} s"
        finally:
            _kill(process)
            process.wait()
            self._running.discard(process)
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"ended with code {code}" if code else ""

    def _stop(self) -> None:
        with self._starting:
            self._is_over = True
            for process in list(self._running):
                _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started, such as the compilers of inductor."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:300]


def chosen_rows(patterns: Sequence[str]) -> list[Row]:
    """Return the rows whose names match one of some patterns; all rows without patterns."""
    return [row for row in rows() if not patterns or any(fnmatchcase(row.name, pattern) for pattern in patterns)]


def together_on(device: str) -> int:
    """Return how many rows have room beside each other."""
    if device != "cuda":
        return max(1, (os.cpu_count() or 1) // 2)
    return max(1, min(3, torch.cuda.get_device_properties(0).total_memory // _ROW_BYTES))


def machine(place: Place) -> str:
    """Return where the trial runs, for people."""
    cores = f"{os.cpu_count()} cores"
    return f"{place.name()}, {cores}, torch {torch.__version__}, Python {platform.python_version()}"


def run_row(name: str, place: Place, result: Path) -> None:
    """Run one row in this process, and write its line."""
    (row,) = (row for row in rows() if row.name == name)
    result.write_text(row.line(place).written(), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; return 0 where all rows hold, 1 where one does not, 2 for wrong arguments."""
    parser = _parser()
    given = parser.parse_args(arguments)
    place = Place(given.device, given.small)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no GPU; try the trial in small: --device cpu --small")
    if given.row is not None:
        run_row(given.row, place, given.result)
        return 0
    chosen = chosen_rows(given.rows)
    if not chosen:
        parser.error(f"no row is named {' or '.join(map(repr, given.rows))}; --list names all")
    if given.list:
        print(*(row.name for row in chosen), sep="\n")
        return 0
    return _run_all(chosen, place, given)


def _run_all(chosen: Sequence[Row], place: Place, given: argparse.Namespace) -> int:
    limits = Limits(given.limit, given.seconds, given.together or together_on(place.device))
    size = ["--small"] if place.small else []

    def command(row: Row, result: Path) -> list[str]:
        own = [sys.executable, "-m", "tests.bench.gpu", "--device", place.device, *size]
        return [*own, "--row", row.name, "--result", str(result)]

    order = {row.name: number for number, row in enumerate(chosen)}
    found: list[Line] = []
    where = machine(place)
    try:
        for line in Trial(command, limits).lines(chosen):
            found = sorted([*found, line], key=lambda each: order[each.row])
            write(found, where, given.out)
            print(row_summary(line), flush=True)
    except KeyboardInterrupt:
        print(f"interrupted: {given.out} has the rows so far", file=sys.stderr)
        return 130
    bad, refused = sum(not line.holds for line in found), sum(bool(line.refused) for line in found)
    hold = len(found) - bad - refused
    print(f"{len(found)} rows: {hold} hold, {refused} refused, {bad} do not hold; {given.out}/table.md")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="where models train [cuda]")
    add("--small", action="store_true", help="models of a few kilobytes")
    add("--rows", nargs="+", default=[], metavar="PATTERN", help="only rows of these names, such as 'llama*'")
    add("--list", action="store_true", help="print the names of rows, and end")
    add("--seconds", type=float, default=480, help="of all rows; later ones are not begun [480]")
    add("--limit", type=float, default=90, help="seconds of one row [90]")
    add("--together", type=int, metavar="N", help="rows that run beside each other [by the memory of the device]")
    add("--out", type=Path, default=Path("build/gpu"), metavar="FOLDER", help="for table.md and table.json [build/gpu]")
    add("--row", help=argparse.SUPPRESS)
    add("--result", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
