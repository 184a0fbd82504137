"""Jobs from the requests of a batch: graphs times budgets times configs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from glob import glob, has_magic
from hashlib import sha256
from os.path import isdir, isfile  # unlike those of Path, false for a name that no file can have
from pathlib import Path
from typing import Any

from remat_cli import __version__
from remat_cli.batch.job import Job
from remat_cli.batch.run_job import sha256_of
from remat_cli.config import GraphOptions, Request, RunConfig, load_device, load_measurements
from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.functions import names_function
from remat_cli.settings import Said, Setting
from remat_cli.units import BudgetSpec


@dataclass(frozen=True)
class JobGroup:
    """Graphs to plan with the same configs.

    Attributes:
        graphs: files of the graphs.
        said: settings for all graphs; they win over a config's settings.
        budgets: budgets, as the user gave them; empty: each config's own.
        configs: planners and options, with the user's labels.
        optional_dims: dims of `said` that some graphs may lack.
    """

    graphs: tuple[Path, ...]
    said: Said = field(default_factory=dict)
    budgets: tuple[BudgetSpec, ...] = ()
    configs: tuple[RunConfig, ...] = ()
    optional_dims: frozenset[str] = frozenset()

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the group's jobs read."""
        options = GraphOptions.of(self.said)
        return (*self.graphs, *options.files, *(file for config in self.configs for file in config.files))


class NoSuchFile(GraphError):
    """A graph file does not exist."""


def matching_files(pattern: str, folder: Path = Path()) -> tuple[Path, ...]:
    """Return the file of that name, or a pattern's matches, sorted.

    A pattern is such as models/**/*.onnx.

    Args:
        pattern: a path or pattern, relative to `folder`.
        folder: folder of the file that names the pattern.

    Raises:
        GraphError: there is no such file, or nothing matches.
    """
    path = folder / pattern
    if isfile(path):
        return (path,)
    if isdir(path):
        raise GraphError(f"{path} is a directory", hint=f"name the files in it, such as '{path / '*.onnx'}'")
    if names_function(path):
        # A function's graph depends on more than this file: a finished result might be out of date unnoticed.
        raise GraphError(
            f"{path} is Python, not a graph file", hint=f"remat convert {path} -o graph.json, and name that"
        )
    if not has_magic(pattern):
        raise NoSuchFile(f"{path}: no such file", hint="check the path")
    matches = sorted(folder / name for name in glob(pattern, root_dir=folder, recursive=True))
    files = tuple(match for match in matches if match.is_file())
    if not files:
        raise NoSuchFile(f"{path}: no file matches", hint="check the pattern; ** stands for any folders")
    return files


@dataclass(frozen=True)
class _Settled:
    """A config resolved for a group: a job without graph and budget.

    Attributes:
        job: a job with this config, and no graph.
        identity: parts of a job on which its result depends, as JSON.
        budgets: budgets, as the user gave them.
    """

    job: Job
    identity: Mapping[str, Any]
    budgets: tuple[BudgetSpec, ...]

    def on(self, graph: Path, digest: str, budget: BudgetSpec) -> Job:
        """Return the job on a graph at a budget."""
        identity = {
            **self.identity,
            "graph": [graph.name, digest],
            "budget": [budget.device_bytes, str(budget.share), budget.smallest, budget.of_activations],
        }
        key = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
        return replace(self.job, key=key, graph=graph, sha256=digest, request=replace(self.job.request, budget=budget))


def jobs_of(groups: Sequence[JobGroup], *, one_worker: bool) -> list[Job]:
    """Return the jobs of groups in their order, each once.

    Args:
        groups: groups of requests.
        one_worker: give each planner one core, as jobs run at the same time; a user's number of workers comes first.

    Raises:
        UsageError: a budget is missing, or a planner, option, device or table of times is wrong.
    """
    digest_of = cache(sha256_of)
    jobs: dict[str, Job] = {}
    for group in groups:
        settled = [_settled(config, group, one_worker) for config in group.configs]
        budgets = dict.fromkeys(budget for part in settled for budget in part.budgets)
        for graph in group.graphs:
            for budget in budgets:
                for part in settled:
                    if budget in part.budgets:
                        job = part.on(graph, digest_of(graph), budget)
                        jobs.setdefault(job.key, job)
    return list(jobs.values())


def _settled(config: RunConfig, group: JobGroup, one_worker: bool) -> _Settled:
    said = config.under(group.said)
    request, options = said.request, said.graph
    budgets = group.budgets or (() if request.budget is None else (request.budget,))
    if not budgets:
        raise UsageError(
            f"{config.label} has no budget",
            hint=("give ", Setting("budget", "8GB"), ", 80% (of the plain peak) or min; in a manifest: budgets: [80%]"),
        )
    choice = request.chosen
    request.check(f"{config.label}: " if config.label != choice.name else "")
    identity = {
        "remat": __version__,
        "options": _content(options),
        "planner": [choice.name, choice.all_options()],
        "request": _wanted(request),
    }
    if one_worker and choice.has("cores"):
        # The number of workers is not in the identity: the job stays the same with more or fewer jobs at its side.
        choice = replace(choice, options={"cores": 1, **choice.options})
    job = Job("", Path(), "", options, config.label, replace(request, planner=choice), group.optional_dims)
    return _Settled(job, identity, budgets)


def _wanted(request: Request) -> dict[str, Any]:
    """Return a request's settings other than budget and planner.

    The job has a budget of its own.
    """
    return {name: value for name, value in request.not_default.items() if name not in ("budget", "planner")}


def _content(options: GraphOptions) -> dict[str, Any]:
    """Return options with files' content in place of their names."""
    values = options.not_default
    if options.device is not None:
        values["device"] = asdict(load_device(options.device))
    if options.measurements is not None:
        values["measurements"] = asdict(load_measurements(Path(options.measurements)))
    return values


def schedule_name(job: Job, digest: str) -> str:
    """Return the name of a job's schedule file.

    The name has graph, budget and config in safe characters, and a digest.

    Args:
        job: the job of the schedule.
        digest: digest of the file's content, in hexadecimal digits: no schedule overwrites another, even of another
            run.
    """
    words = (job.graph.stem, str(job.request.budget).replace(" ", ""), job.config)
    return f"{'-'.join(map(_safe, words))}-{digest[:12]}.json"


def _safe(text: str, longest: int = 60) -> str:
    text = text.replace("%", "pct")
    return "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in text[:longest])
