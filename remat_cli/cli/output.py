"""The output of a call: its streams, and the progress of a planner."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from os import environ
from os.path import isfile  # unlike that of Path, false for a name that no file can have
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli.help import OUTPUT, SectionedOption
from remat_cli.cli.stdin import with_stdin_named
from remat_cli.cli.streams import reader_may_leave, stdout_is_closed, stdout_kept
from remat_cli.core.problem import Observer
from remat_cli.errors import UsageError
from remat_cli.formats.files_read import files_read
from remat_cli.formats.user_files import check_user_files
from remat_cli.formats.writing import check_writes, write_file
from remat_cli.machine.interruption import heed_a_request_that_waits
from remat_cli.machine.system_limits import can_start_threads
from remat_cli.units import format_share

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

STDOUT = Path("-")
_FORCE = "remat.force"
_LOG = logging.getLogger("remat")


def _note_force(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta[_FORCE] = value


# Every verb that writes files has this option; `Output` obeys it.
force_option = click.option(
    "--force",
    is_flag=True,
    expose_value=False,
    callback=_note_force,
    cls=SectionedOption,
    section=OUTPUT,
    help="Replace files that are write-protected.",
)


def may_replace() -> bool:
    """Tell whether --force was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_FORCE))


class Output:
    """The outputs of one call.

    It writes files, report and summary to stdout, and notes and progress to stderr.

    Args:
        as_json: whether to print the summary as JSON instead of the report.
        quiet: whether to print nothing.
        writes: the files to write, by option; "-" is stdout, and moves the report to stderr; None is no file.
        reads: the graphs and files that the call reads; neither they nor their external data may be written.

    Raises:
        UsageError: a file cannot be written, is named twice, or is also read. The call has done nothing yet.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        quiet: bool = False,
        writes: Mapping[str, Path | None] | None = None,
        reads: Iterable[Path] = (),
    ) -> None:
        self._as_json = as_json
        self._quiet = quiet
        asked = {option: path for option, path in (writes or {}).items() if path is not None}
        to_stdout = [option for option, path in asked.items() if path == STDOUT]
        if len(to_stdout) > 1:
            raise UsageError(f"stdout takes one file, not {' and '.join(to_stdout)}", hint="give one of them a name")
        if to_stdout and stdout_is_closed():
            raise UsageError(f"{to_stdout[0]} -: there is no stdout", hint=f"name a file: {to_stdout[0]} FILE")
        self._stdout_is_taken = bool(to_stdout)
        logs = [Path(log.baseFilename) for log in _LOG.handlers if isinstance(log, logging.FileHandler)]
        self._files = files = {option: path for option, path in asked.items() if path != STDOUT}
        # Only a file that exists can be lost: without one, no model is opened for its references.
        replaces = any(map(isfile, files.values()))
        read = [file for path in reads for file in files_read(path)] if replaces else []
        check_writes(files, (*read, *logs), force=may_replace())

    def check_user_files(self) -> None:
        """Check that no file to write is one that the user's code has read; it may read the plan that it runs.

        Raises:
            UsageError: a file would be lost.
        """
        check_user_files(self._files, force=may_replace())

    def first(self, renderable: Callable[[], RenderableType]) -> None:
        """Show the first part of a report, while the rest is still to come; JSON is printed whole, at the end."""
        if not self._as_json and not self._quiet:
            from rich.console import Group

            self.report(lambda: Group(renderable(), ""), dict)

    def report(self, renderable: Callable[[], RenderableType], summary: Callable[[], Mapping[str, Any]]) -> None:
        """Show the report or the summary, and build only that."""
        if self._quiet:
            return
        with reader_may_leave():
            if self._as_json:
                text = json.dumps(summary(), ensure_ascii=False, indent=2, sort_keys=True) + "\n"
                heed_a_request_that_waits()
                stream = sys.stderr if self._stdout_is_taken else sys.stdout
                stream.write(text)
                stream.flush()
            else:
                console, shown = _console(to_stderr=self._stdout_is_taken), renderable()
                heed_a_request_that_waits()
                console.print(shown, crop=False)  # a report fits the width, except text to copy

    def notes(self, notes: Sequence[str]) -> None:
        """Show notes on the input on stderr, for calls without a report."""
        if self._quiet or not notes:
            return
        from remat_cli.reports.safe_text import clean

        console = _console(to_stderr=True)
        heed_a_request_that_waits()
        for note in notes:
            console.print(f"note: {clean(with_stdin_named(note))}", markup=False, soft_wrap=True)

    @contextmanager
    def progress(self, *, keeps_plans: bool = True, may_print: bool = False) -> Iterator[Observer]:
        """Show a planner's progress on a terminal, and note it in the log.

        What solvers and the user's code print goes to stderr: stdout is for the report, JSON or a file.

        Args:
            keeps_plans: whether an interrupted call goes on with the best plan until then.
            may_print: whether the caller writes to stdout meanwhile, and nothing else does.
        """
        with nullcontext() if may_print else stdout_kept(), self._shown_progress(keeps_plans=keeps_plans) as observe:
            if _LOG.isEnabledFor(logging.INFO):
                from remat_cli.cli.log import Logged

                observe = Logged(observe)
            yield observe

    @contextmanager
    def _shown_progress(self, *, keeps_plans: bool) -> Iterator[Observer]:
        if self._quiet or not sys.stderr.isatty() or not can_start_threads():
            yield Observer()
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        with Progress(*columns, console=_console(to_stderr=True), transient=True) as progress:
            yield _Progress(progress, keeps_plans=keeps_plans)

    def write(self, path: Path, content: bytes) -> bool:
        """Write a file whole or not at all; "-" is stdout.

        Tell whether there is still a reader.

        Raises:
            UsageError: the file cannot be written, or the user's code has read it.
        """
        heed_a_request_that_waits()
        if path != STDOUT:
            self.check_user_files()
            write_file(path, content, force=may_replace())
            return True
        with reader_may_leave():
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
            return True
        return False


class _Progress(Observer):
    """Shows a planner's phase and best plan; the elapsed time runs by itself."""

    def __init__(self, progress: Progress, *, keeps_plans: bool = True) -> None:
        self._progress = progress
        self._task = progress.add_task("")
        self._phase = ""
        self._standing = ""
        # Users who see no more gain should know that the best plan is not lost.
        self._ends = " · Ctrl-C takes the best plan" if keeps_plans else ""

    def begins(self) -> None:
        self._standing = ""

    def phase(self, text: str) -> None:
        self._phase = text
        self._show()

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        by = f" by {found_by}" if found_by else ""
        self._standing = (
            f"best {format_share(overhead)}{by} · bound {format_share(bound)} · gap {format_share(overhead - bound)} · "
        )
        self._show()

    def _show(self) -> None:
        ends = self._ends if self._standing else ""
        self._progress.update(self._task, description=self._standing + self._phase + ends)


def _console(*, to_stderr: bool) -> Console:
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with 1

    # 0 columns mean an unknown number, as everywhere else; rich would take them literally.
    width = get_terminal_size().columns if set(environ.get("COLUMNS", "")) == {"0"} else None
    return Piped(stderr=to_stderr, highlight=False, width=width)
