"""A folder in which plans are kept between runs of Python."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from remat_cli.config import load_measurements
from remat_cli.core.graph import Graph
from remat_cli.core.simulate import simulate
from remat_cli.costs import Measurements
from remat_cli.errors import InvalidSchedule, ScheduleFileError, UsageError
from remat_cli.formats.native import canonical_json
from remat_cli.formats.schedule_json import read_schedule
from remat_cli.formats.writing import write_faults, write_file
from remat_cli.prepare import Prepared
from remat_cli.pytorch.plan.record import GraphRecord, notify
from remat_cli.splitting import Split, read_cuts
from remat_cli.units import format_bytes


def key_of(facts: object) -> str:
    """Return a hash of facts that are JSON values."""
    return sha256(canonical_json(facts)).hexdigest()


@dataclass(frozen=True)
class PlanFolder:
    """A folder with plans, cuts and measurements by their keys.

    Several processes may use it at once.

    Attributes:
        folder: path of the folder; None keeps nothing.

    Raises:
        UsageError: the folder is a file.
    """

    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None and self.folder.is_file():
            raise UsageError(f"plans: {self.folder} is a file", hint="name a folder; it is made where there is none")

    def path(self, what: str, key: str) -> Path | None:
        """Return the path of one kept file; None without a folder."""
        return None if self.folder is None else self.folder / f"{what}-{key[:32]}.json"

    def _there(self, what: str, key: str) -> Path | None:
        path = self.path(what, key)
        return path if path is not None and path.exists() else None

    def keep(self, what: str, key: str, content: bytes) -> None:
        """Write a file as a whole at once; if that fails, warn and go on."""
        path = self.path(what, key)
        if path is None:
            return
        try:
            with write_faults(path.parent, ""):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content)
        except UsageError as fault:
            notify(logging.WARNING, f"nothing is kept for the next time: {fault.message}")

    def measurements(self, key: str, graph: Graph) -> Measurements | None:
        """Return kept measurements that hold for a graph, or None."""
        path = self._there("kernels", key)
        if path is None:
            return None
        try:
            measurements = load_measurements(path)
            measurements.check(graph, {}, str(path))
        except UsageError as fault:
            notify(logging.WARNING, f"what is kept in {path} does not hold, and is measured anew: {fault.message}")
            return None
        return measurements

    def cuts(self, key: str) -> dict[str, Split] | None:
        """Return kept cuts, or None."""
        path = self._there("parts", key)
        if path is None:
            return None
        try:
            return dict(read_cuts(json.loads(path.read_text())))
        except (OSError, ValueError, AttributeError, UsageError):
            notify(logging.WARNING, f"what is kept in {path} does not hold, and is made anew")
            return None

    def kept_plan(self, key: str, prepared: Prepared, budget_bytes: int | None) -> GraphRecord | None:
        """Return a kept plan that is valid within a budget, or None.

        Args:
            key: key of the plan.
            prepared: the planned graph.
            budget_bytes: budget in bytes; None stands for the smallest, which the file has.
        """
        path = self._there("plan", key)
        if path is None:
            return None
        try:
            file = read_schedule(path)
            trace = simulate(prepared.graph, file.schedule, link=prepared.link)
            budget = budget_bytes or file.budget_bytes or 0
            if trace.peak_bytes > budget:
                peak = format_bytes(trace.peak_bytes)
                raise InvalidSchedule(f"its peak of {peak} is above the budget, {format_bytes(budget)}")
        except (ScheduleFileError, InvalidSchedule) as fault:
            notify(logging.WARNING, f"the plan kept in {path} does not hold, and is made anew: {fault.message}")
            return None
        return GraphRecord.of(prepared.graph, file.schedule, trace, budget)
