"""The command line: one file a verb, found by name when it is called, so that `remat --help` stays instant."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import NoReturn

import click

from remat_cli import __version__
from remat_cli.errors import RematError

# Verb: its one line of help. Its command stands in the module of the same name.
VERBS: Mapping[str, str] = {
    "inspect": "Show what a graph needs: its plain peak, what fills it, and the least that any plan needs.",
    "convert": "Write a graph in the native JSON format.",
    "plan": "Plan a graph under a budget, prove the plan by simulation, and write it.",
    "budget": "Search the smallest budget: proven and found.",
    "verify": "Replay a schedule on its graph; name the first broken step.",
    "apply": "Write an ONNX model that runs a schedule.",
    "generate": "Write a synthetic graph of any size.",
    "planners": "List the planners, their options, defaults and sources.",
}

EXIT_CODES = """\b
Exit codes:
  0    done: a verified plan, or the check holds
  1    a bug in remat
  2    a wrong call or config
  3    proven not to fit
  4    stopped without a plan
  5    a schedule failed verification
  6    the graph or file is bad
  130  interrupted"""

INTERRUPTED = 130


class _Verbs(click.Group):
    """Imports a verb's module only when that verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"remat_cli.cli.{cmd_name}").command
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
def cli(debug: bool) -> None:
    """Plan what a neural network keeps, recomputes or offloads, so that its peak memory fits a budget.

    \b
    remat inspect model.onnx --dim batch=8
    remat plan model.onnx --dim batch=8 --budget 8GB -o schedule.json
    remat verify model.onnx schedule.json --dim batch=8
    """


def main() -> NoReturn:
    """Run the command line, and turn whatever ends it into a message and an exit code."""
    # A large graph is a million objects and no cycles: the collector would go through them again and again.
    gc.set_threshold(100_000, 50, 100)
    debug = "--debug" in sys.argv[1:2] or bool(os.environ.get("REMAT_DEBUG"))
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        _fail("interrupted", "", INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RematError as error:
        if debug:
            raise
        _fail(error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", "nothing had been found yet", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has left (`remat ... | head`); there is nobody to tell. The interpreter would
        # complain while it closes stdout, so that is pointed elsewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except MemoryError:
        _fail("out of memory", "use a smaller graph, or a planner for large graphs: dtr", 4)
    except Exception as error:
        if debug:
            raise
        name = type(error).__name__
        _fail(f"a bug in remat: {name}: {error}", "run it again as 'remat --debug ...' for a traceback to report", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, hint: str, code: int) -> NoReturn:
    """Show an error and leave; control characters in names from files do not reach the terminal."""
    click.echo(f"{click.style('error', fg='red', bold=True)}: {_shown(message)}", err=True)
    if hint:
        click.echo(f"{click.style('hint', fg='yellow')}: {_shown(hint)}", err=True)
    sys.exit(code)


def _shown(text: str, longest: int = 2000) -> str:
    visible = "".join(char if char.isprintable() or char == "\n" else "�" for char in text[: longest + 1])
    return visible if len(text) <= longest else visible[:longest] + "..."
