"""The requests of a batch and the jobs made of them: graphs times budgets times configs."""

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
        graphs: their files.
        said: settings of all of them, which win over those of a config.
        budgets: as asked for; empty: each config's own.
        configs: planner and options of each, under the label by which the user knows it.
        optional_dims: the dims in `said` that are given for many graphs, of which some may lack them.
    """

    graphs: tuple[Path, ...]
    said: Said = field(default_factory=dict)
    budgets: tuple[BudgetSpec, ...] = ()
    configs: tuple[RunConfig, ...] = ()
    optional_dims: frozenset[str] = frozenset()

    @property
    def files(self) -> tuple[Path, ...]:
        """All that is read for it."""
        options = GraphOptions.of(self.said)
        return (*self.graphs, *options.files, *(file for config in self.configs for file in config.files))


class NoSuchFile(GraphError):
    """A graph that is to be planned is not there."""


def matching_files(pattern: str, folder: Path = Path()) -> tuple[Path, ...]:
    """Return the file of that name, or all that a pattern such as models/**/*.onnx matches, sorted.

    Args:
        pattern: a path or pattern, relative to `folder`.
        folder: of the file that names it.

    Raises:
        GraphError: there is no such file, or nothing matches.
    """
    path = folder / pattern
    if isfile(path):
        return (path,)
    if isdir(path):
        raise GraphError(f"{path} is a directory", hint=f"name the files in it, such as '{path / '*.onnx'}'")
    if names_function(path):
        # Its result depends on more than the file: a finished result might be out of date, and nothing would tell.
        raise GraphError(
            f"{path} is Python, not a graph file", hint=f"remat convert {path} -o graph.json, and name that"
        )
    if not has_magic(pattern):
        raise NoSuchFile(f"{path}: no such file", hint="check the path")
    found = sorted(folder / name for name in glob(pattern, root_dir=folder, recursive=True))
    files = tuple(match for match in found if match.is_file())
    if not files:
        raise NoSuchFile(f"{path}: no file matches", hint="check the pattern; ** stands for any folders")
    return files


@dataclass(frozen=True)
class _Settled:
    """A config resolved for the graphs of a group: everything but graph and budget.

    Attributes:
        job: with this in place, and no graph.
        identity: the parts on which a job's result depends, as JSON.
        budgets: as asked for.
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
    """Return the jobs in the order of the requests, each once.

    Args:
        groups: what is asked for.
        one_worker: jobs run at the same time: a planner that takes several cores gets one, unless the user says how
            many.

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
        # Not in the identity: with more or fewer jobs beside it, it is the same job.
        choice = replace(choice, options={"cores": 1, **choice.options})
    job = Job("", Path(), "", options, config.label, replace(request, planner=choice), group.optional_dims)
    return _Settled(job, identity, budgets)


def _wanted(request: Request) -> dict[str, Any]:
    """Return the rest of what is wanted, which stands for itself; the budget is that of each job."""
    return {name: value for name, value in request.not_default.items() if name not in ("budget", "planner")}


def _content(options: GraphOptions) -> dict[str, Any]:
    """Return the options, with the content of files in place of their names."""
    values = options.not_default
    if options.device is not None:
        values["device"] = asdict(load_device(options.device))
    if options.measurements is not None:
        values["measurements"] = asdict(load_measurements(Path(options.measurements)))
    return values


def schedule_name(job: Job, digest: str) -> str:
    """Return the name of a job's schedule file: graph, budget and config in safe characters, and a digest.

    Args:
        job: whose plan it is.
        digest: of the file's content, in hexadecimal digits: no plan overwrites another, even of another run.
    """
    words = (job.graph.stem, str(job.request.budget).replace(" ", ""), job.config)
    return f"{'-'.join(map(_safe, words))}-{digest[:12]}.json"


def _safe(text: str, longest: int = 60) -> str:
    text = text.replace("%", "pct")
    return "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in text[:longest])
