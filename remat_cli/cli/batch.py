"""`remat batch`: many graphs, budgets and configs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.batch.result_lines import JobLine, line_bytes
from remat_cli.cli.comparison_options import with_given_options
from remat_cli.cli.help import PLANNER, SectionedOption, Verb
from remat_cli.cli.options import (
    config_names,
    graph_settings,
    output_options,
    plan_settings,
    said_on_command_line,
    setting_option,
)
from remat_cli.cli.output import STDOUT, Output, force_option
from remat_cli.cli.stdin import NameToRead, called, is_stdin
from remat_cli.config import DEFAULT_PLANNER, Request, RunConfig, load_config
from remat_cli.errors import ExitCode, UsageError
from remat_cli.machine.cores import usable_cores
from remat_cli.machine.system_limits import processes_for_files
from remat_cli.settings import over
from remat_cli.units import parse_budgets, parse_bytes, parse_duration

if TYPE_CHECKING:
    from remat_cli.batch.job import Job, JobLimits, JobOutcome
    from remat_cli.batch.loop import Executor
    from remat_cli.batch.requests import JobGroup

_MANIFESTS = (".yaml", ".yml")
_planner_option = partial(click.option, cls=SectionedOption, section=PLANNER)


@click.command("batch", cls=Verb)
@click.argument("files", nargs=-1, required=True, type=NameToRead(), metavar="MANIFEST|GRAPH...")
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="SIZE,...",
    help="Budgets: sizes, shares of the plain peak, min, or a range like 30%..100%:8. Repeatable. "
    "[default: each config's own]",
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    type=NameToRead(),
    metavar="NAME|FILE",
    shell_complete=config_names,
    help=f"How to plan: names of configs that come with remat, or YAML files. Repeatable. [default: {DEFAULT_PLANNER}]",
)
@setting_option(Request, "max_overhead")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Add a JSON line here as each job ends; - is stdout.",
)
@click.option(
    "--schedules", type=click.Path(path_type=Path), metavar="FOLDER", help="Write the schedule of every plan here."
)
@click.option("--resume", is_flag=True, help="Go on with the results in -o: skip the jobs that they have.")
@click.option("--retry", is_flag=True, help="With --resume: run jobs again that failed, or ran out of memory or time.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Jobs that run at the same time. [default: all cores]")
@click.option("--job-timeout", metavar="10m", help="Stop a job after this time; its best plan until then counts.")
@click.option("--memory-limit", metavar="SIZE", help="Memory that each job's process may allocate, such as 4GB.")
@click.option("--scheduler", metavar="ADDRESS", help="Run the jobs on a Dask cluster: tcp://host:8786.")
@graph_settings
@_planner_option(
    "--option",
    "options",
    multiple=True,
    metavar="[CONFIG.]KEY=VALUE",
    help="Option of one planner, or of each that has it. Repeatable.",
)
@plan_settings
@_planner_option("--time-limit", metavar="30s", help="Stop each planner after this time.")
@_planner_option("--seed", type=int, help="Seed of planners that draw.")
@output_options
@force_option
def command(
    files: tuple[str, ...],
    output: Path | None,
    schedules: Path | None,
    resume: bool,
    retry: bool,
    jobs: int | None,
    scheduler: str | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Plan every GRAPH at every budget with every config. A job that fails is recorded, and the others go on.

    GRAPH is a file or a quoted pattern. A MANIFEST (.yaml) names graphs with the options of each; the command line
    wins over it. Each job runs in a process of its own. Ctrl-C keeps the finished jobs; --resume does the others.

    The exit code is that of the worst job, in this order: 1 (a crash), 5, 6, 2, 4 (no plan, or out of memory or
    time), 3, 0.

    \b
    Examples:
      remat batch 'models/*.onnx' --dim batch=8 --budget 60%,8GB -c dtr -c rotor -o results.jsonl
      remat batch zoo.yaml -o results.jsonl --schedules plans --resume
      remat batch zoo.yaml -o results.jsonl --scheduler tcp://10.0.0.1:8786
    """
    from remat_cli.batch.job import JobLimits
    from remat_cli.batch.requests import jobs_of
    from remat_cli.batch.results import Records, absent_dims
    from remat_cli.reports.terminal.batch_table import BatchResult, batch_report, batch_summary

    _check_call(output, resume=resume, retry=retry, jobs=jobs, scheduler=scheduler)
    limits = JobLimits(
        None if given["job_timeout"] is None else parse_duration(given["job_timeout"]),
        None if given["memory_limit"] is None else parse_bytes(given["memory_limit"]),
    )
    slots = jobs or usable_cores()
    groups = _groups(files, given)
    reads = (*map(Path, files), *(file for group in groups for file in group.files))
    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output}, reads=reads)
    asked = jobs_of(groups, one_worker=slots > 1 or scheduler is not None)
    results = None if output == STDOUT else output
    with Records(results, schedules, asked, resume=resume, retry=retry) as records:
        streams.notes(records.notes)
        resumed = len(records.lines)

        def record(job: Job, outcome: JobOutcome) -> JobLine:
            line = records.add(job, outcome)
            if output == STDOUT and not streams.write(STDOUT, line_bytes(line)) and schedules is None:
                raise BrokenPipeError  # the remaining lines have no reader
            return line

        waiting = [job for job in asked if job.key not in records.lines]
        # Lines on the terminal show the progress by themselves.
        shown = Output(quiet=True) if output == STDOUT and sys.stdout.isatty() else streams
        if waiting:
            if scheduler is None:
                slots = _allowed(min(slots, len(waiting)), streams)
            _run(waiting, lambda: _executor(scheduler, slots, limits), record, shown)
        lines = [records.lines[job.key] for job in asked if job.key in records.lines]
    graphs = len({job.graph for job in asked})
    absent = absent_dims(asked, records.lines)
    result = BatchResult(lines, len(asked), graphs, resumed, results, schedules, absent)
    streams.report(lambda: batch_report(result), lambda: batch_summary(result))
    return ExitCode.INTERRUPTED if result.interrupted else result.exit_code


def _check_call(output: Path | None, *, resume: bool, retry: bool, jobs: int | None, scheduler: str | None) -> None:
    if resume and output in (None, STDOUT):
        raise UsageError("--resume needs the results of an earlier run", hint="name their file with -o")
    if retry and not resume:
        raise UsageError("--retry goes with --resume", hint="add --resume, or leave --retry out")
    if jobs is not None and scheduler is not None:
        raise UsageError("--jobs is for this machine and --scheduler for a cluster", hint="leave one of them out")


def _groups(files: Sequence[str], given: Mapping[str, Any]) -> list[JobGroup]:
    """Return the groups of jobs of a manifest or of files.

    The options of the command line override theirs.
    """
    from remat_cli.batch.manifest import load_manifest
    from remat_cli.batch.requests import JobGroup, matching_files

    said = said_on_command_line(given)
    budgets = tuple(budget for text in given["budgets"] for budget in parse_budgets(text))
    configs = tuple(load_config(Path(config)) for config in given["configs"])
    manifest = next((Path(file) for file in files if Path(file).suffix in _MANIFESTS or is_stdin(Path(file))), None)
    if manifest is not None:
        if others := [file for file in files if file != str(manifest)]:
            raise UsageError(f"{manifest} is a manifest, and stands alone", hint=f"add {others[0]} to it")
        groups = load_manifest(manifest, called(manifest))
    else:
        groups = [JobGroup(tuple(dict.fromkeys(graph for file in files for graph in matching_files(file))))]
    default = RunConfig(DEFAULT_PLANNER)
    return [
        replace(
            group,
            said=over(group.said, said),
            optional_dims=group.optional_dims | said.get("dims", {}).keys(),
            budgets=budgets or group.budgets,
            configs=_with_options(configs or group.configs or (default,), given),
        )
        for group in groups
    ]


def _with_options(configs: Sequence[RunConfig], given: Mapping[str, Any]) -> tuple[RunConfig, ...]:
    """Return the configs with planner options from the command line."""
    chosen = with_given_options({config.label: config.request.chosen for config in configs}, given)
    return tuple(config.under({"planner": chosen[config.label]}) for config in configs)


def _allowed(wanted: int, streams: Output) -> int:
    """Return the number of parallel jobs; note a limit by the system."""
    from remat_cli.batch.processes import FILES_EACH

    allowed = processes_for_files(wanted, FILES_EACH)
    if allowed < wanted:
        streams.notes([f"{allowed} jobs at a time, not {wanted}: the system allows no more open files (ulimit -n)"])
    return allowed


def _executor(scheduler: str | None, slots: int, limits: JobLimits) -> Executor:
    if scheduler is None:
        from remat_cli.batch.processes import ProcessExecutor

        return ProcessExecutor(slots, limits)
    from remat_cli.batch.cluster import Cluster

    return Cluster(scheduler, limits)


def _run(
    waiting: Sequence[Job],
    make_executor: Callable[[], Executor],
    record: Callable[[Job, JobOutcome], JobLine],
    shown: Output,
) -> None:
    from remat_cli.batch.loop import Interruption, run_jobs

    with (
        shown.progress(may_print=True) as observe,
        Interruption() as interruption,
        closing(make_executor()) as executor,
    ):
        run_jobs(waiting, executor, record, interruption, observe)
