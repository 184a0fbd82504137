"""The schedule for a captured step: from a file, or planned for a budget."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from remat_cli.config import GraphOptions, PlannerChoice
from remat_cli.errors import DoesNotFit, GraphError, UsageError
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.reader import Reading
from remat_cli.formats.schedule_json import ScheduleFile, read_schedule, schedule_bytes
from remat_cli.formats.torch.convert import graph_of, operators_of, trained_parameters
from remat_cli.formats.torch.internals import Captured
from remat_cli.formats.torch.joint import Joint
from remat_cli.formats.torch.ops import storage_key
from remat_cli.formats.torch.reader import unused_bytes
from remat_cli.formats.writing import write_file
from remat_cli.graph import Graph
from remat_cli.link import Link
from remat_cli.prepare import Prepared, prepare_reading
from remat_cli.schedule import Schedule
from remat_cli.simulate import simulate
from remat_cli.solve import Solution, baseline_of
from remat_cli.studies.budget_search import plan_at
from remat_cli.training import OPTIMIZERS
from remat_cli.units import BudgetSpec, format_bytes, format_share

_log = logging.getLogger("remat")

_NAME = "the captured step"
# Device profiles by what torch calls the device; anything else has the generic one.
_PROFILES = ("h200", "h100", "a100", "v100")


class Choice(Protocol):
    """Chooses the schedule of a captured step."""

    def schedule(self, joint: Joint, captured: Captured, modules: Sequence[nn.Module]) -> Schedule:
        """Return a schedule that was verified on the graph of `joint`.

        Args:
            joint: what torch has captured.
            captured: the same as torch handed it over.
            modules: whose parameters are in memory, used or not.
        """
        ...


@dataclass(frozen=True)
class FromFile:
    """The schedule in a file, which must have been made for the same graph.

    Attributes:
        path: of the file.
        file: what it says.
    """

    path: Path
    file: ScheduleFile

    @classmethod
    def at(cls, path: Path) -> FromFile:
        """Read the file.

        Raises:
            ScheduleFileError: it cannot be read, or holds no plan.
            UsageError: it was not made for a PyTorch step.
        """
        file = read_schedule(path)
        if file.structure is None:
            raise UsageError(
                f"{path} does not say which graph it is for", hint="plan a PyTorch step: remat plan FILE.py:NAME ..."
            )
        return cls(path, file)

    def schedule(self, joint: Joint, captured: Captured, modules: Sequence[nn.Module]) -> Schedule:
        """Return the schedule.

        Raises:
            GraphError: it was made for another graph; names the first op that differs.
            InvalidSchedule: it breaks a rule.
        """
        del captured, modules
        graph = graph_of(joint, _NAME)
        check_structure(graph, self.file.structure or {}, str(self.path))
        # Whether a step holds does not depend on how fast the link is.
        simulate(graph, self.file.schedule, link=Link(Fraction(1)))
        return self.file.schedule


def check_structure(graph: Graph, structure: Mapping[str, str], where: str) -> None:
    """Check that a graph is the planned one: the same ops on the same values, with the same shapes and constants.

    Args:
        graph: of what is to run.
        structure: signatures of the planned graph's ops by name.
        where: where they come from, for messages.

    Raises:
        GraphError: it is another one.
    """
    hint = "plan it again, with the sizes, the mode and the torch that it runs with"
    for op in graph.ops:
        at = f" ({op.source})" if op.source else ""
        if op.name not in structure:
            raise GraphError(f"{where} is for another graph: op {op.name!r}{at} was not in it", hint=hint)
        if structure[op.name] != op.signature:
            raise GraphError(
                f"{where} is for another graph: op {op.name!r}{at} had other inputs, shapes or constants", hint=hint
            )
    missing = [name for name in structure if name not in graph.op]
    if missing:
        raise GraphError(f"{where} is for another graph: op {missing[0]!r} does not run here", hint=hint)


@dataclass
class WithinBudget:
    """A plan made for each graph when it is first captured, and kept.

    Attributes:
        budget: as everywhere; bytes are of total device memory.
        planner: makes the plan.
        graph_options: what else is in memory, the device profile that gives ops their times, and the link to the host.
        optimizer: name of the optimizer whose state is counted by its bytes; None where it is counted by its name.
        state_bytes: of that optimizer's state.
        folder: where plans are kept between runs of Python; None: only in memory.
        plans: what was planned, by the graph's hash.
    """

    budget: BudgetSpec
    planner: PlannerChoice
    graph_options: GraphOptions
    optimizer: str | None = None
    state_bytes: int = 0
    folder: Path | None = None
    plans: dict[str, Schedule] = field(default_factory=dict)

    def schedule(self, joint: Joint, captured: Captured, modules: Sequence[nn.Module]) -> Schedule:
        """Return the plan for this graph, made now or before.

        Raises:
            DoesNotFit: there is none.
        """
        prepared = self.prepared(joint, captured, modules)
        key = graph_sha256(prepared.graph)
        if key not in self.plans:
            self.plans[key] = self.kept(key, prepared) or self.made(key, prepared)
        return self.plans[key]

    def prepared(self, joint: Joint, captured: Captured, modules: Sequence[nn.Module]) -> Prepared:
        """Return the graph that is planned."""
        used = {storage_key(primal.value) for primal in captured.primals if primal.value is not None}
        resident = unused_bytes(modules, used) + self.state_bytes
        reading = Reading(
            graph_of(joint, _NAME, resident), operators_of(joint), trained_parameters(joint, captured),
            optimizer=self.optimizer,
        )  # fmt: skip
        return prepare_reading(reading, _NAME, self.graph_options)

    def kept(self, key: str, prepared: Prepared) -> Schedule | None:
        """Return the plan that an earlier run of Python left in the folder; None where there is none."""
        path = self.path(key)
        if path is None or not path.exists():
            return None
        schedule = read_schedule(path).schedule
        simulate(prepared.graph, schedule, link=prepared.link)
        return schedule

    def made(self, key: str, prepared: Prepared) -> Schedule:
        """Make a plan, and leave it in the folder."""
        planner = self.planner.planner(source="options")
        solution = plan_at(prepared.graph, self.budget, planner, link=prepared.link, offload=prepared.options.offload)
        if solution.result.schedule is None or solution.trace is None:
            raise no_plan(solution)
        _log.info(
            "planned %d ops within %s: peak %s, %s more time",
            len(prepared.graph.ops),
            format_bytes(solution.problem.budget.device_bytes),
            format_bytes(solution.trace.peak_bytes),
            format_share(solution.overhead or 0),
        )
        path = self.path(key)
        if path is not None:
            write_file(path, schedule_bytes(solution, prepared.mode, self.planner.name, self.planner.all_options()))
        return solution.result.schedule

    def path(self, key: str) -> Path | None:
        """Return where the plan for a graph is kept between runs."""
        budget = str(self.budget).replace("%", "pct").replace(" ", "")
        return None if self.folder is None else self.folder / f"{key[:16]}-{budget}.json"


def no_plan(solution: Solution) -> DoesNotFit:
    """Return the error that says that no plan fits, what the floor is, and why."""
    graph, working_set = solution.problem.graph, solution.working_set
    gradients = sum(graph.tensors[name].bytes for name in graph.outputs if name in graph.producer)
    budget = format_bytes(solution.problem.budget.device_bytes)
    if working_set.op is None:
        why = "that is what is in memory at the end"
    else:
        op = graph.op[working_set.op]
        why = f"op {op.name!r}{f' ({op.source})' if op.source else ''} alone needs that"
    proven = solution.status.value == "infeasible"
    found = (
        "" if solution.closest is None else f"; the closest that was found needs {_exact(solution.closest.peak_bytes)}"
    )
    return DoesNotFit(
        f"no plan {'fits' if proven else 'was found for'} a budget of {budget}. No plan at all needs less than "
        f"{_exact(working_set.bytes)}: {why}{found}. Always in memory are {format_bytes(graph.fixed_bytes)} of "
        f"parameters, inputs and optimizer state; at the end, {format_bytes(gradients)} of gradients and outputs; the "
        f"plain run needs {format_bytes(baseline_of(graph).peak_bytes)}",
        hint='give a larger budget (budget="min" takes the smallest that is found), or smaller inputs',
    )


def _exact(size: int) -> str:
    return f"{format_bytes(size)} ({size} bytes)"


def graph_options(
    optimizer: object,
    *,
    accumulate: bool,
    device: str | None,
    measurements: str | None = None,
    link_bandwidth: str | float | None = None,
    offload: bool = False,
) -> GraphOptions:
    """Return how a captured step becomes the graph that is planned.

    Args:
        optimizer: one of `OPTIMIZERS` by name, or an optimizer, or None.
        accumulate: whether gradients are there before the step.
        device: a device profile; None: the one for the device that torch would use.
        measurements: a file of what was measured, which gives times instead.
        link_bandwidth: of the link to the host; None: that of the device profile, where there is one.
        offload: plans may use it.

    Raises:
        UsageError: there is no such optimizer.
    """
    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        raise UsageError(
            f"unknown optimizer {optimizer!r}", hint=f"name one of {', '.join(OPTIMIZERS)}, or give it itself"
        )
    name = optimizer if isinstance(optimizer, str) else None
    if measurements is None:
        device = device or default_profile()
    return GraphOptions(
        optimizer=name,
        accumulate=accumulate,
        device=device,
        measurements=measurements,
        link_bandwidth=link_bandwidth,
        offload=offload,
    )


def default_profile() -> str:
    """Return the device profile for the device that torch would use; for CUDA by its name (untried on a GPU)."""
    if not torch.cuda.is_available():
        return "laptop-cpu"
    name = torch.cuda.get_device_name().lower()
    return next((profile for profile in _PROFILES if profile in name), "generic")
