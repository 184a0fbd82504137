"""Graphs and jobs for the tests of `remat batch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remat_cli.batch.job import Job, JobOutcome
from remat_cli.batch.requests import JobGroup, jobs_of
from remat_cli.batch.run_job import carry_out
from remat_cli.config import PlannerChoice, RunConfig
from remat_cli.units import parse_budget
from tests.documents import chain_document

needs_proc = pytest.mark.skipif(
    not any(Path("/proc/self/task").glob("*/children")), reason="this system does not tell which process started which"
)


def write_graphs(folder: Path, *names: str, size: int = 100) -> list[Path]:
    """Write the same chain under several names."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.json" for name in names]
    for path in paths:
        path.write_text(json.dumps(chain_document(size=size)))
    return paths


def config_of(planner: str = "keep_all", **options: Any) -> RunConfig:
    """A planner with options."""
    return RunConfig(planner, {"planner": PlannerChoice(planner, options)})


def jobs_on(*graphs: Path, budget: str = "100%", planner: str = "keep_all", **options: Any) -> list[Job]:
    """A job for each graph."""
    group = JobGroup(graphs, budgets=(parse_budget(budget),), configs=(config_of(planner, **options),))
    return jobs_of([group], one_worker=True)


class Here:
    """Executes jobs in this very process, one at a time."""

    def __init__(self) -> None:
        self.ran: list[Job] = []
        self._ended: list[tuple[Job, JobOutcome]] = []

    trouble = ""

    @property
    def has_room(self) -> bool:
        return not self._ended

    def submit(self, job: Job) -> None:
        self.ran.append(job)
        self._ended.append((job, carry_out(job)))

    def finished(self, seconds: float) -> list[tuple[Job, JobOutcome]]:
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        self._ended = []
