"""The command line: one file per verb, imported when the verb is called.

So `remat --help` stays instant.
"""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from remat_cli import __version__
from remat_cli.cli.stdin import with_stdin_named
from remat_cli.cli.streams import drop_stdout, prepare_streams, reader_may_leave, stdout_kept
from remat_cli.errors import ExitCode, RematError
from remat_cli.machine.interruption import (
    comes_of_a_request,
    end_undisturbed,
    heed_a_request_that_waits,
    take_as_ctrl_c,
    tell,
)
from remat_cli.machine.system_limits import refusal_of

# Each verb with its one line of help. Its command stands in the module of the same name.
VERBS: Mapping[str, str] = {
    "inspect": "Show what a graph needs: its plain peak, what fills it, and the least that any plan needs.",
    "convert": "Write a graph in the native JSON format.",
    "plan": "Plan a graph under a budget, prove the plan by simulation, and write it.",
    "budget": "Search the smallest budget: proven and found.",
    "sweep": "Show overhead against budget: a table, a chart, CSV, PNG or SVG.",
    "compare": "Set planners side by side on one or more graphs.",
    "diff": "Show what the plain peaks of two graphs differ by, and which ops are new or gone.",
    "fit": "Search the largest batch (or other dimension) that fits, with and without a plan.",
    "verify": "Replay a schedule on its graph; name the first broken step.",
    "allocate": "Give everything that a schedule keeps in memory an address in one block.",
    "measure": "Run each op of a model on this machine, and write what it takes.",
    "check": "Hold the models of a project to budgets and limits: memory as a CI check.",
    "report": "Write a schedule as an HTML page: memory, the life of every tensor, overhead by op.",
    "batch": "Plan many graphs, on one machine or a cluster; what fails is recorded, the rest goes on.",
    "fuse": "Write an ONNX model as onnxruntime's optimiser leaves it, to be planned.",
    "apply": "Write an ONNX model that runs a schedule.",
    "generate": "Write a synthetic graph of any size.",
    "completion": "Print the script by which a shell completes verbs, options and names.",
    "planners": "List the planners, their options, defaults and sources.",
}

# The variable by which a shell asks to complete a line, as in click's scripts.
COMPLETE = "_REMAT_COMPLETE"
EXIT_CODES = "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {code.meaning}" for code in ExitCode)

# Disk full, quota exceeded, file too large, device error, read-only file system.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class _Verbs(click.Group):
    """Imports a verb's module only when that verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"remat_cli.cli.{cmd_name}").command
        from remat_cli.formats.user_files import keep_stdout_by

        keep_stdout_by(stdout_kept)
        heed_a_request_that_waits()
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"there is no verb {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="remat")
@click.option("--debug", is_flag=True, help="Show a traceback where something goes wrong.")
@click.option(
    "--log-file", type=click.Path(path_type=Path), help="Append what is done, and when, to this file; tracebacks too."
)
def cli(debug: bool, log_file: Path | None) -> None:
    """Plan what a neural network keeps, recomputes or offloads, so that its peak memory fits a budget.

    \b
    Examples:
      remat inspect model.onnx --dim batch=8
      remat plan model.onnx --dim batch=8 --budget 8GB -o schedule.json
      remat verify model.onnx schedule.json --dim batch=8
    """
    if log_file is not None:
        from remat_cli.cli.log import start

        start(log_file)


def main() -> NoReturn:
    """Run the command line, and exit with a message and an exit code.

    The log notes both, if there is one.
    """
    prepare_streams()
    take_as_ctrl_c()
    try:
        _run()
    except SystemExit as end:
        _note(end)
        raise


class _Warnings(logging.Handler):
    """Shows warnings on stderr: false claims of planners."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one warning."""
        click.echo(f"{click.style('warning', fg='yellow', bold=True)}: {_shown(record.getMessage())}", err=True)


_WARNINGS = _Warnings(logging.WARNING)


def _note(end: SystemExit) -> None:
    """Log the end of the call, with a traceback if remat is to blame."""
    log, error = logging.getLogger("remat"), end.__context__
    if not log.isEnabledFor(logging.INFO):
        return
    from remat_cli.cli.log import stop

    if isinstance(error, RematError | click.ClickException):
        log.info("error: %s", error.message)
    log.info("ended with exit code %s", end.code, exc_info=error if end.code == 1 else None)
    stop()


def _run() -> NoReturn:
    # A large graph is a million objects without cycles: the collector would traverse them again and again.
    gc.set_threshold(100_000, 50, 100)
    # A final collection at exit would take seconds after capturing a large model.
    atexit.register(gc.freeze)
    debug = "--debug" in sys.argv[1:2] or bool(os.environ.get("REMAT_DEBUG"))
    logging.getLogger("remat").addHandler(_WARNINGS)
    try:
        code = _called()
        with reader_may_leave():
            sys.stdout.flush()
    except KeyboardInterrupt:
        _end_interrupted()
    except BrokenPipeError:  # the reader of stdout has left: `remat --help | head`
        drop_stdout()
        code = ExitCode.DONE
    except click.ClickException as error:
        end_undisturbed()
        error.show()
        sys.exit(error.exit_code)
    except RematError as error:
        if debug:
            raise
        _fail(error.message, error.hint, error.exit_code)
    except Exception as error:
        if comes_of_a_request(error):
            _end_interrupted()
        if debug:
            raise
        _fail(*_described(error))
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def _called() -> Any:
    """Run the call and return its exit code, or complete a shell's line.

    `cli.main` does the same, but writes an empty line if Ctrl-C arrives between its parts.
    """
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "remat", COMPLETE, instruction)
    program = Path(sys.argv[0]).name
    try:
        with cli.make_context("python -m remat_cli" if program == "__main__.py" else program, sys.argv[1:]) as context:
            return cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code


def _end_interrupted() -> NoReturn:
    end_undisturbed()
    tell()
    sys.exit(ExitCode.INTERRUPTED)


def _described(error: Exception) -> tuple[str, str, int]:
    """Return message, hint and exit code for a foreign error or a bug."""
    if refused := refusal_of(error):
        return refused.message, refused.hint, refused.exit_code
    if isinstance(error, OSError) and error.errno in _FULL:
        drop_stdout()
        return f"the output cannot be written: {error.strerror}", "make room, or send it elsewhere", ExitCode.USAGE
    name = type(error).__name__
    return (
        f"a bug in remat: {name}: {error}",
        "run it again as 'remat --debug ...' for a traceback to report",
        ExitCode.BUG,
    )


def _fail(message: str, hint: str, code: int) -> NoReturn:
    """Show an error and exit.

    Control characters in names from files do not reach the terminal.
    """
    end_undisturbed()
    click.echo(f"{click.style('error', fg='red', bold=True)}: {_shown(message)}", err=True)
    if hint:
        click.echo(f"{click.style('hint', fg='yellow')}: {_shown(hint)}", err=True)
    sys.exit(code)


def _shown(text: str, longest: int = 2000) -> str:
    text = with_stdin_named(text)
    visible = "".join(char if char.isprintable() or char == "\n" else "�" for char in text[: longest + 1])
    return visible if len(text) <= longest else visible[:longest] + "..."
