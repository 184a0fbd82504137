"""`remat check`: memory as a CI check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from os.path import exists, islink  # unlike those of Path, false for a name that no file can have
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import plan_settings, said_on_command_line
from remat_cli.cli.output import STDOUT, Output, force_option
from remat_cli.cli.stdin import READ, called, in_a_call, is_stdin
from remat_cli.errors import ExitCode, UsageError
from remat_cli.formats.writing import check_writes
from remat_cli.settings import option_of
from remat_cli.units import counted

if TYPE_CHECKING:
    from remat_cli.checks.baseline import Figures
    from remat_cli.checks.check import CheckOutcome
    from remat_cli.checks.project import ModelCheck, Project

_DEFAULT = "remat.yaml"
_TABLE = "table"
_FORMATS = (_TABLE, "json", "junit", "github", "markdown")
_EXAMPLE = "`remat check --init` writes one; or write  models: [{path: model.onnx, dims: {batch: 8}, budget: 8GB}]"


@click.command("check", cls=Verb)
@click.argument("project", type=READ, default=_DEFAULT, metavar="[PROJECT]")
@click.option(
    "--format",
    "forms",
    multiple=True,
    metavar="FORM[=FILE]",
    help=f"Form of the report, which goes to FILE or stdout: {', '.join(_FORMATS)}. Repeatable. [default: {_TABLE}]",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report here, and print the table.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Check only this model; 'unet*' for several. Repeatable.")
@plan_settings
@click.option("--no-code", is_flag=True, help="Run no Python: a model that is a function (train.py:step) is an error.")
@click.option("--init", "is_first", is_flag=True, help="Write PROJECT for the models in its folder and below.")
@click.option("--update-baseline", is_flag=True, help="Write the baseline to which max_regression compares.")
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), default=1, metavar="N", show_default=True, help="Models at a time."
)
@force_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    project: Path,
    forms: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    only: tuple[str, ...],
    no_code: bool,
    is_first: bool,
    update_baseline: bool,
    jobs: int,
    quiet: bool,
    **given: Any,
) -> int:
    """Hold the models of a project to budgets and limits. PROJECT is a YAML file. [default: remat.yaml]

    Exits with 0 if all models hold, and with 3 if one fails or warns that its run takes more than predicted. If a model
    cannot be read or planned, the others are still checked, and the exit code is that of its error (2, 4, 5 or 6).

    A model may be a function of a Python file, which is imported and run; --no-code refuses that. Use it where others
    may change PROJECT or that file, as in a pull request.

    --init writes PROJECT, with each ONNX model and native graph that lies beside or below it, and overwrites nothing.

    \b
    Examples:
      remat check --init
      remat check
      remat check configs/remat.yaml --only 'unet*'
      remat check --format junit -o report.xml
      remat check --format github --format markdown=summary.md
      remat check --update-baseline
    """
    from remat_cli.checks.baseline import read_baseline
    from remat_cli.checks.check import check_models, worst_exit_code
    from remat_cli.checks.project import load_project

    said = said_on_command_line(given)
    if is_first:
        asked = {"--format": forms, "--json": as_json, "-o": output, "--only": only}
        asked |= {option_of(name): [value] for name, value in said.items()}
        _write_first(project, asked | {"--update-baseline": update_baseline}, Output(quiet=quiet))
        return ExitCode.DONE
    printed, files = _asked_for((*forms, "json") if as_json else forms, output)
    if not exists(project):
        raise UsageError(f"{project}: no such file", hint=_EXAMPLE)
    loaded = load_project(project, said, called=called(project), may_run_code=not no_code)
    chosen = _chosen(loaded, only)
    baseline = _readable(loaded.baseline, read_baseline, or_none=update_baseline and not only)
    writes = {option: file for option, (_, file) in files.items()}
    reads = [project, *(file for model in loaded.models for file in model.files)]
    if update_baseline:
        writes["'baseline: FILE' in the project file"] = loaded.baseline
    else:
        reads.append(loaded.baseline)
    streams = Output(quiet=quiet, writes=writes, reads=reads)
    if any(model.max_regression is not None for model in chosen) and not (update_baseline or exists(loaded.baseline)):
        make = f"`remat check {in_a_call(project)} --update-baseline` writes it, to be committed"
        streams.notes([f"there is no baseline yet, which max_regression needs: {make}"])
    outcomes: list[CheckOutcome] = []
    try:
        with streams.progress(keeps_plans=False) as observe:
            for outcome in check_models(chosen, baseline, observe, accept=update_baseline, jobs=jobs):
                outcomes.append(outcome)
    except KeyboardInterrupt:
        streams.notes([f"interrupted: {len(outcomes)} of {len(chosen)} models were checked, and nothing was written"])
        return ExitCode.INTERRUPTED
    _tell(streams, None if quiet else printed, files.values(), loaded, outcomes)
    if update_baseline:
        _update(streams, loaded, baseline, outcomes, keep_others=bool(only))
    return worst_exit_code(tuple(outcomes))


def _tell(
    streams: Output,
    printed: str | None,
    files: Iterable[tuple[str, Path]],
    project: Project,
    outcomes: Sequence[CheckOutcome],
) -> None:
    """Write the report to its files, and print one form, or none."""
    from remat_cli.reports.check.forms import FORMS, check_report

    for form, file in files:
        streams.write(file, FORMS[form](project, outcomes))
    if printed == _TABLE:
        streams.report(lambda: check_report(outcomes), dict)
    elif printed is not None:
        streams.write(STDOUT, FORMS[printed](project, outcomes))


def _write_first(project: Path, asked: Mapping[str, object], streams: Output) -> None:
    """Write a project file for the models found.

    Raises:
        UsageError: the file exists, or would name no model, or another option is given.
    """
    from remat_cli.checks.first_project import first_project

    others = [option for option, value in asked.items() if value]
    if others:
        raise UsageError(f"--init checks nothing, and takes no {others[0]}", hint="check in a second call")
    _check_is_new(project)
    check_writes({"PROJECT": project})
    with streams.progress(keeps_plans=False) as observe:
        project_file = first_project(project.parent, observe)
    streams.notes([f"left out: {reason}" for reason in project_file.left_out])
    if not project_file.models:
        raise UsageError(
            f"there is no model in {project.parent.resolve()}, nor below it", hint="name the file beside the models"
        )
    _check_is_new(project)  # another program may have written it meanwhile
    streams.write(project, project_file.content)
    models = counted(project_file.models, "model")
    streams.notes([f"{project}: {models}, held to what they take today by: remat check {quote(str(project))}"])


def _check_is_new(project: Path) -> None:
    if is_stdin(project):
        raise UsageError("--init writes a file, and reads none", hint="name it: remat check --init remat.yaml")
    if exists(project) or islink(project):
        raise UsageError(
            f"{project} is there, and is not overwritten", hint="name another: remat check --init other.yaml"
        )


def _asked_for(forms: Sequence[str], output: Path | None) -> tuple[str, dict[str, tuple[str, Path]]]:
    """Return the form to print, and the files of other forms by option.

    Raises:
        UsageError: a form is unknown, or stdout would get several.
    """
    from remat_cli.config import unknown_name

    printed: list[str] = []
    files: dict[str, tuple[str, Path]] = {}
    for text in dict.fromkeys(forms):
        form, equals, file = text.partition("=")
        if form not in _FORMATS:
            raise unknown_name("--format", form, _FORMATS)
        if equals and not file:
            raise UsageError(f"--format {text!r} names no file", hint=f"write it like --format {form}=report")
        if equals:
            files[f"--format {text}"] = (form, Path(file))
        else:
            printed.append(form)
    if output is not None:
        files["-o"] = (printed.pop() if printed else _TABLE, output)
    on_stdout = [*printed, *(form for form, file in files.values() if file == STDOUT)]
    if len(on_stdout) > 1:
        raise UsageError(
            f"stdout takes one form, not {' and '.join(on_stdout)}",
            hint="give the others a file: --format junit=report.xml",
        )
    return (printed or [_TABLE])[0], files


def _chosen(project: Project, only: Sequence[str]) -> tuple[ModelCheck, ...]:
    """Return the models that match a pattern; all without patterns."""
    from remat_cli.config import unknown_name

    names = tuple(model.name for model in project.models)
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise unknown_name("--only", pattern, names)
    return tuple(
        model for model in project.models if not only or any(fnmatchcase(model.name, pattern) for pattern in only)
    )


def _readable(path: Path, read: Callable[[Path], dict[str, Figures]], *, or_none: bool) -> dict[str, Figures]:
    """Read the baseline; `or_none` ignores a broken file.

    It may be broken after a merge, for example, and is about to be replaced.
    """
    try:
        return read(path)
    except UsageError:
        if or_none:
            return {}
        raise


def _update(
    streams: Output,
    project: Project,
    before: Mapping[str, Figures],
    outcomes: Sequence[CheckOutcome],
    *,
    keep_others: bool,
) -> None:
    """Write the figures of every measured model; others keep old figures."""
    from remat_cli.checks.baseline import baseline_bytes
    from remat_cli.checks.check import Verdict

    checked = {outcome.model.name for outcome in outcomes}
    kept = {name: figures for name, figures in before.items() if keep_others or name in checked}
    measured = (outcome for outcome in outcomes if outcome.verdict is not Verdict.ERROR)
    after = kept | {outcome.model.name: outcome.figures for outcome in measured if outcome.figures is not None}
    if after != before or not project.baseline.exists():
        try:
            streams.write(project.baseline, baseline_bytes(after))
        except UsageError as error:
            raise UsageError(error.message, hint="name another place in the project file: 'baseline: FILE'") from None
    changed = sum(1 for name in after.keys() & before.keys() if after[name] != before[name])
    added, removed = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    streams.notes([f"{project.baseline}: {added} added, {changed} changed, {removed} removed"])
