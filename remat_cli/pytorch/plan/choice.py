"""The schedule for a captured step: from a file, or planned for a budget."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from math import ceil
from pathlib import Path

import torch
from torch import nn

from remat_cli import __version__
from remat_cli.config import GraphOptions, load_measurements, measurements_bytes
from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, activations_of, baseline_of
from remat_cli.costs import Measurements
from remat_cli.errors import DoesNotFit, GraphError, InvalidSchedule, ScheduleFileError, UsageError
from remat_cli.formats.native import canonical_json, graph_sha256
from remat_cli.formats.schedule_json import ScheduleFile, link_fields, read_schedule
from remat_cli.formats.writing import write_faults, write_file
from remat_cli.planning import Request, plan
from remat_cli.prepare import Prepared, prepare_reading
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.internals import Captured
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.ops import storage_key
from remat_cli.pytorch.capture.optimizer import optimizer_state_bytes
from remat_cli.pytorch.capture.reader import reading_of, unused_bytes
from remat_cli.pytorch.memory.measure import MEASURED_DEVICES, machine, measure_once
from remat_cli.pytorch.memory.memory import profiler_runs
from remat_cli.pytorch.memory.watch import standing_bytes
from remat_cli.pytorch.plan.record import PlannedGraph, told
from remat_cli.pytorch.plan.waiting import MEASURING, PLANNING, Waiting
from remat_cli.training import OPTIMIZERS
from remat_cli.units import format_bytes, format_count, format_time, parse_budget

_log = logging.getLogger("remat")

_NAME = "the captured step"
# Seconds that a plan may take by default, for graphs of up to so many ops; more for more.
_SECONDS, _OPS = 3.0, 500
# A search for the smallest budget asks for many plans. Of a GPT of 419 ops it takes 6 s with this share of the time for
# each, and its peak is 0.9 % above what 19 s find.
_SHARE_OF_EACH = 0.1
# Device profiles by what torch calls the device; anything else has the generic one.
_PROFILES = ("h200", "h100", "a100", "v100")


class ScheduleSource(ABC):
    """Gives the schedule of a captured step.

    Attributes:
        takes_sizes: its plans can be carried over to other sizes.
        has_room: it may plan for larger sizes than asked for, as the budget does not grow with them.
        is_smallest: the budget is the smallest that a plan is found for.
        is_given: the schedule is there already, and no other one is made.
    """

    takes_sizes = False
    is_given = False
    has_room = False
    is_smallest = False

    @property
    def has_reserved(self) -> bool:
        """Whether something is left free that measured steps took."""
        return False

    @property
    def counts_state(self) -> bool:
        """Whether the optimizer's state is in the plans, as far as is known."""
        return True

    @cached_property
    def waiting(self) -> Waiting:
        """How long calls have waited for it and for torch."""
        return Waiting()

    @abstractmethod
    def planned(self, joint: Joint, captured: Captured, modules: Sequence[nn.Module]) -> PlannedGraph:
        """Return a schedule that was verified on the graph of `joint`, and what is known of it.

        Args:
            joint: what torch has captured.
            captured: the same as torch handed it over.
            modules: whose parameters are in memory, used or not.
        """

    def planned_within(
        self, budget_bytes: int, joint: Joint, captured: Captured, modules: Sequence[nn.Module]
    ) -> PlannedGraph:
        """Return what `planned` does, for another budget where this source plans for one."""
        del budget_bytes
        return self.planned(joint, captured, modules)

    def least(self) -> ScheduleSource | None:
        """Return a source of plans of the least peak that is found; None where this one plans for no budget."""
        return None

    def budget_bytes(self, graph: Graph) -> int | None:
        """Return the budget for a graph in bytes, as far as it is known before it is planned."""
        del graph
        return None

    def regrant(self) -> None:  # noqa: B027  # only a share has been granted
        """Let a share be one of what is planned from now on, as former graphs held more than they had to."""

    def carried(self, planned: PlannedGraph, graph: Graph, schedule: Schedule) -> PlannedGraph | None:
        """Return a schedule as a plan for the graph at other sizes; None where it is above the budget there.

        Args:
            planned: the graph's plan at the sizes that it was made for.
            graph: the graph at the other sizes.
            schedule: of the plan, or the plain run.
        """
        del planned, graph, schedule
        return None

    def reserve(self, missing_bytes: int, gradient_bytes: int, modules: Sequence[nn.Module]) -> bool:
        """Leave this much of the budget free in what is planned from now on; return whether that can be.

        Args:
            missing_bytes: what a measured step took beyond the plan's peak.
            gradient_bytes: of gradients that were there when that step began.
            modules: that are called; of what is known of them by now, nothing is reserved.
        """
        del missing_bytes, gradient_bytes, modules
        return False

    def release(self) -> None:  # noqa: B027  # where nothing is left free, there is nothing to take back
        """Take back what was left free last, as no plan fits beside it."""


@dataclass(frozen=True)
class FromFile(ScheduleSource):
    """The schedule in a file, which must have been made for the same graph.

    Attributes:
        path: of the file.
        file: what it says.
    """

    is_given = True

    path: Path
    file: ScheduleFile

    @classmethod
    def at(cls, path: Path, *, fused: bool = False) -> FromFile:
        """Read the file.

        Args:
            path: of the file.
            fused: inductor's kernels are to run it.

        Raises:
            ScheduleFileError: it cannot be read, or holds no plan.
            UsageError: it was not made for a PyTorch step, or for other kernels.
        """
        file = read_schedule(path)
        if file.structure is None:
            raise UsageError(
                f"{path} does not say which graph it is for", hint="plan a PyTorch step: remat plan FILE.py:NAME ..."
            )
        planned_fused = (file.read_with or {}).get("fused") is True
        if planned_fused and not fused:
            raise UsageError(
                f"{path} was planned for the kernels of torch.compile (--fused)", hint="planned(..., fused=True)"
            )
        if fused and not planned_fused:
            raise UsageError(
                f"{path} was planned for eager's kernels", hint="plan with --fused, or leave fused=True out"
            )
        return cls(path, file)

    def planned(self, joint: Joint, captured: Captured, modules: Sequence[nn.Module]) -> PlannedGraph:
        """Return the schedule in the file.

        Raises:
            GraphError: it was made for another graph; names the first op that differs.
            InvalidSchedule: it breaks a rule.
        """
        del captured, modules
        graph = graph_of(joint, _NAME)
        check_structure(graph, self.file.structure or {}, str(self.path))
        # Whether a step holds does not depend on how fast the link is.
        trace = simulate(graph, self.file.schedule, link=Link(Fraction(1)))
        planned = PlannedGraph.of(graph, self.file.schedule, trace, self.file.budget_bytes)
        # The graph has no times here.
        return replace(planned, overhead=self.file.overhead or 0.0)


def check_structure(graph: Graph, structure: Mapping[str, str], where: str) -> None:
    """Check that a graph is the planned one: the same ops on the same values, with the same shapes and constants.

    Args:
        graph: of what is to run.
        structure: signatures of the planned graph's ops by name.
        where: where they come from, for messages.

    Raises:
        GraphError: it is another one.
    """
    if (fault := structure_fault(graph, structure)) is not None:
        raise GraphError(
            f"{where} is for another graph: {fault}",
            hint="plan it again, with the sizes, the mode and the torch that it runs with",
        )


def structure_fault(graph: Graph, structure: Mapping[str, str]) -> str | None:
    """Return in what a graph is another than the planned one; None where it is the same.

    Args:
        graph: of what is to run.
        structure: signatures of the planned graph's ops by name.
    """
    for op in graph.ops:
        at = f" ({op.source})" if op.source else ""
        if op.name not in structure:
            return f"op {op.name!r}{at} was not in it"
        if structure[op.name] != op.signature:
            return f"op {op.name!r}{at} had other inputs, shapes or constants"
    missing = [name for name in structure if name not in graph.op]
    return f"op {missing[0]!r} does not run here" if missing else None


@dataclass
class WithinBudget(ScheduleSource):
    """A plan made for each graph when it is first captured, and kept.

    Attributes:
        request: the plan that is wanted.
        graph_options: what else is in memory, the device profile that gives ops their times, and the link to the host.
        optimizer: whose state is counted by its bytes; None where it is counted by its name, or there is none.
        folder: where plans are kept between runs of Python, by several at once or not; None: only in memory.
        measures: measure each kernel where it will run, before anything is planned.
        times_given: take only the kernels' memory from that; times are those of the device profile.
        kernels: what was measured so far: time in nanoseconds and memory of its own in bytes, by the kind of op.
        plans: what was planned, by the hash of all that it depends on.
        reserve_bytes: to leave free, as the user says.
        missed_bytes: to leave free, as measured steps took them beyond the plan.
        before_bytes: what that was before it was last raised.
        standing_bytes: of gradients and buckets that were there when a graph was last captured.
        granted: bytes of the largest budget that a share has come to: smaller inputs may use as much as larger ones.

    Raises:
        UsageError: the folder is a file, or the optimizer's state cannot be told.
    """

    request: Request
    graph_options: GraphOptions
    optimizer: torch.optim.Optimizer | None = None
    folder: Path | None = None
    measures: bool = True
    times_given: bool = False
    kernels: dict[str, tuple[int, int]] = field(default_factory=dict)
    plans: dict[str, PlannedGraph] = field(default_factory=dict)
    granted: int = 0
    reserve_bytes: int = 0
    missed_bytes: int = 0
    before_bytes: int = 0
    standing_bytes: int = 0

    def __post_init__(self) -> None:
        self.state_bytes()
        self.takes_sizes = not self.request.offload
        self.is_smallest = self.request.budget is not None and self.request.budget.smallest
        self.has_room = self.request.budget is not None and self.request.budget.device_bytes is not None
        if self.folder is not None and os.path.isfile(self.folder):
            raise UsageError(f"plans: {self.folder} is a file", hint="name a folder; it is made where there is none")

    def planned(self, joint: Joint, captured: Captured, modules: Sequence[nn.Module]) -> PlannedGraph:
        """Return the plan for this graph, made now or before.

        Raises:
            DoesNotFit: there is none.
        """
        prepared = self.prepared(joint, captured, modules)
        key = self.key(prepared)
        if key not in self.plans:
            self.plans[key] = self.kept(key, prepared) or self.made(key, prepared)
        return self.plans[key]

    def planned_within(
        self, budget_bytes: int, joint: Joint, captured: Captured, modules: Sequence[nn.Module]
    ) -> PlannedGraph:
        """Return the plan for this graph within another budget, in bytes; what was measured is shared.

        Raises:
            DoesNotFit: there is none.
        """
        source = replace(self, request=self.request.at(budget_bytes))
        source.waiting = self.waiting
        return source.planned(joint, captured, modules)

    def least(self) -> ScheduleSource | None:
        """Return a source of plans of the least peak that is found; what was measured is shared."""
        source = replace(self, request=replace(self.request, budget=parse_budget("min")))
        source.waiting = self.waiting
        return source

    def budget_bytes(self, graph: Graph) -> int | None:
        """Return the budget for a graph in bytes; None where it is the smallest that is found."""
        return self.request_for(graph).budget_bytes(graph)

    def regrant(self) -> None:
        """Let a share be one of what is planned from now on."""
        self.granted = 0

    def state_bytes(self) -> int:
        """Return the bytes of the optimizer's state: of what it has by now, else of what its first step will make."""
        return 0 if self.optimizer is None else optimizer_state_bytes(self.optimizer)

    def standing(self, modules: Sequence[nn.Module]) -> int:
        """Return the bytes of gradients and buckets in memory, without those that `accumulate` counts."""
        return standing_bytes(modules, gradients=not self.graph_options.accumulate)

    def reserve(self, missing_bytes: int, gradient_bytes: int, modules: Sequence[nn.Module]) -> bool:
        """Leave this much of the budget free; see `ScheduleSource.reserve`. The smallest budget leaves nothing free."""
        if self.request.budget is None or self.request.budget.smallest:
            return False
        self.before_bytes = self.missed_bytes
        # Gradients that are there by now, and were not in that step, are no part of what it missed.
        known = min(gradient_bytes, max(0, self.standing(modules) - self.standing_bytes))
        self.missed_bytes += max(0, missing_bytes - known)
        return True

    def release(self) -> None:
        """Take back what was left free last; when that is done again, all that was."""
        self.missed_bytes, self.before_bytes = self.before_bytes, 0

    @property
    def has_reserved(self) -> bool:
        """Whether something is left free that measured steps took."""
        return self.missed_bytes > 0

    @property
    def counts_state(self) -> bool:
        """Whether the optimizer's state is in the plans."""
        return self.optimizer is not None or self.graph_options.optimizer is not None

    @property
    def free_bytes(self) -> int:
        """Bytes that plans leave free."""
        return self.reserve_bytes + self.missed_bytes

    def prepared(self, joint: Joint, captured: Captured, modules: Sequence[nn.Module]) -> Prepared:
        """Return the graph that is planned."""
        used = {storage_key(primal.value) for primal in captured.primals if primal.value is not None}
        self.standing_bytes = self.standing(modules)
        resident = unused_bytes(modules, used) + self.state_bytes() + self.standing_bytes + self.free_bytes
        optimizer = None if self.optimizer is None else type(self.optimizer).__name__
        reading = reading_of(joint, captured, _NAME, resident, optimizer)
        prepared = prepare_reading(reading, _NAME, self.graph_options)
        if not self.measures or joint.device not in MEASURED_DEVICES:
            return prepared
        if profiler_runs():
            told(logging.WARNING, "the workspace of kernels is not counted: another profiler runs")
            return prepared
        measured = self.measured(joint, prepared)
        if self.times_given:
            measured = replace(measured, times_ns={})
        else:
            measured = replace(measured, times_ns={**measured.missing(prepared.graph), **measured.times_ns})
        return prepare_reading(reading, _NAME, self.graph_options, measured=measured)

    def measured(self, joint: Joint, prepared: Prepared) -> Measurements:
        """Return what the kernels of a step take here: as an earlier run of Python has left it, or measured now."""
        here = {"graph": graph_sha256(prepared.graph), "machine": machine(joint.device), "version": __version__}
        path = self.path("kernels", sha256(canonical_json(here)).hexdigest())
        if path is not None and os.path.exists(path):
            try:
                found = load_measurements(path)
                found.check(prepared.graph, {}, str(path))
            except UsageError as fault:
                told(logging.WARNING, f"what is kept in {path} does not hold, and is measured anew: {fault.message}")
            else:
                return found
        known, before = len(self.kernels), self.waiting.spent_ns[MEASURING]
        with self.waiting.phase(MEASURING):
            found = measure_once(joint, joint.device, self.kernels)
        took = format_time(self.waiting.spent_ns[MEASURING] - before, "ns")
        _log.info("measured %s kernels in %s", format_count(len(self.kernels) - known), took)
        self.keep(path, measurements_bytes(found, _NAME))
        return found

    def key(self, prepared: Prepared) -> str:
        """Return a hash of all that a plan depends on."""
        asked = {
            "graph": graph_sha256(prepared.graph),
            "budget_bytes": self.request_for(prepared.graph).budget_bytes(prepared.graph),
            "planner": self.request.chosen.name,
            "options": self.request_for(prepared.graph).chosen.all_options(),
            "offload": self.request.offload,
            "link": None if prepared.link is None else link_fields(prepared.link),
            "version": __version__,
        }
        return sha256(canonical_json(asked)).hexdigest()

    def kept(self, key: str, prepared: Prepared) -> PlannedGraph | None:
        """Return the plan that an earlier run of Python left in the folder; None where there is none that holds."""
        path = self.path("plan", key)
        if path is None or not os.path.exists(path):
            return None
        try:
            file = read_schedule(path)
            trace = simulate(prepared.graph, file.schedule, link=prepared.link)
            budget = self.request_for(prepared.graph).budget_bytes(prepared.graph) or file.budget_bytes or 0
            if trace.peak_bytes > budget:
                peak = format_bytes(trace.peak_bytes)
                raise InvalidSchedule(f"its peak of {peak} is above the budget, {format_bytes(budget)}")
        except (ScheduleFileError, InvalidSchedule) as fault:
            told(logging.WARNING, f"the plan kept in {path} does not hold, and is made anew: {fault.message}")
            return None
        return self.granting(PlannedGraph.of(prepared.graph, file.schedule, trace, budget))

    def made(self, key: str, prepared: Prepared) -> PlannedGraph:
        """Make a plan, and leave it in the folder."""
        request = self.request_for(prepared.graph)
        with self.waiting.phase(PLANNING, _up_to(request, prepared.graph)):
            planning = plan(prepared, request)
        if planning.schedule is None or planning.trace is None:
            raise no_plan(planning.solution, self.free_bytes)
        self.keep(self.path("plan", key), planning.schedule_file)
        planned = PlannedGraph.of(prepared.graph, planning.schedule, planning.trace, planning.budget_bytes)
        return self.granting(planned)

    def request_for(self, graph: Graph) -> Request:
        """Return what is asked for a graph; a share is one of the largest plain peak there was.

        The first step waits for the plan: without a time limit of the user's, the planner has some seconds.
        """
        request, chosen = self.request, self.request.chosen
        if chosen.has("time_limit") and "time_limit" not in chosen.options:
            seconds = min(chosen.all_options()["time_limit"], _SECONDS * max(1.0, len(graph.ops) / _OPS))
            if request.budget is not None and request.budget.smallest:
                seconds *= _SHARE_OF_EACH
            request = replace(request, planner=chosen.with_options({"time_limit": seconds}))
        if not self.is_share:
            return request
        seen = graph
        if self.missed_bytes:  # memory that steps took beyond their plans does not raise the budget
            seen = replace(graph, resident_bytes=graph.resident_bytes - self.missed_bytes)
        return request.at(max(request.budget_bytes(seen) or 0, self.granted))

    @property
    def is_share(self) -> bool:
        """Whether the budget depends on the graph's plain run."""
        return self.request.budget is not None and self.request.budget.share is not None

    def granting(self, planned: PlannedGraph) -> PlannedGraph:
        """Let other sizes use as much memory as this plan, where the budget is a share."""
        if self.is_share:
            self.granted = max(self.granted, planned.budget_bytes or 0)
        return planned

    def carried(self, planned: PlannedGraph, graph: Graph, schedule: Schedule) -> PlannedGraph | None:
        """Return a schedule as a plan for the graph at other sizes; see `ScheduleSource.carried`."""
        trace = baseline_of(graph) if schedule == plain_run(graph) else simulate(graph, schedule)
        # The smallest budget is the one that was found for the plan.
        budget = self.request_for(graph).budget_bytes(graph) or planned.budget_bytes
        assert budget is not None
        if trace.peak_bytes > budget:
            return None
        return self.granting(PlannedGraph.of(graph, schedule, trace, budget))

    def keep(self, path: Path | None, content: bytes) -> None:
        """Leave a file in the folder, as a whole at once; where that cannot be, say so and go on."""
        if path is None:
            return
        try:
            with write_faults(path.parent, ""):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content)
        except UsageError as fault:
            told(logging.WARNING, f"nothing is kept for the next time: {fault.message}")

    def path(self, what: str, key: str) -> Path | None:
        """Return where something is kept between runs, by its key."""
        return None if self.folder is None else self.folder / f"{what}-{key[:32]}.json"


def _up_to(request: Request, graph: Graph) -> str:
    """Return how large a graph is and how long a plan for it may take, for whoever waits."""
    text = f"the step has {format_count(len(graph.ops))} ops"
    if not request.chosen.has("time_limit"):
        return text
    limit = format_time(int(request.chosen.all_options()["time_limit"] * 1e9), "ns")
    return f'{text}, and a plan may take {limit} (options={{"time_limit": N}}, in seconds, sets another limit)'


def no_plan(solution: Solution, free_bytes: int = 0) -> DoesNotFit:
    """Return the error that says that no plan fits, what the floor is, and why.

    Args:
        solution: without a plan.
        free_bytes: of what is always in memory: left free for what the model does not see.
    """
    graph, working_set = solution.problem.graph, solution.working_set
    gradients = sum(graph.tensors[name].bytes for name in graph.outputs if name in graph.producer)
    budget = format_bytes(solution.problem.budget.device_bytes)
    if working_set.op is None:
        why = "that is what is in memory at the end"
    else:
        op = graph.op[working_set.op]
        own = f", of which {format_bytes(op.workspace_bytes)} are workspace of its kernel" if op.workspace_bytes else ""
        why = f"op {op.name!r}{f' ({op.source})' if op.source else ''} alone needs that{own}"
    proven = solution.status.value == "infeasible"
    left = f", and {format_bytes(free_bytes)} are left free for what the model does not see" if free_bytes else ""
    found = (
        "" if solution.closest is None else f"; the closest that was found needs {_exact(solution.closest.peak_bytes)}"
    )
    fixed = format_bytes(graph.fixed_bytes - free_bytes)
    closest = working_set.bytes if solution.closest is None else solution.closest.peak_bytes
    activations = activations_of(graph)
    share = larger_share(closest, activations.beside_bytes, activations.bytes)
    return DoesNotFit(
        f"no plan {'fits' if proven else 'was found for'} a budget of {budget}. No plan at all needs less than "
        f"{_exact(working_set.bytes)}: {why}{found}. Always in memory are {fixed} of parameters, inputs and optimizer "
        f"state{left}; at the end, {format_bytes(gradients)} of gradients and outputs; the plain run needs "
        f"{format_bytes(baseline_of(graph).peak_bytes)}",
        hint=f'give a larger budget ({share}budget="min" takes the smallest that is found), or smaller inputs',
    )


def larger_share(peak_bytes: int, beside_bytes: int, activation_bytes: int) -> str:
    """Return a peak as a budget that is a share of activations, and a comma, where these are the smaller part.

    Args:
        peak_bytes: of the step.
        beside_bytes: what is in memory beside activations.
        activation_bytes: their most in the plain run.
    """
    if not 0 < activation_bytes < beside_bytes or not beside_bytes <= peak_bytes <= beside_bytes + activation_bytes:
        return ""
    return f'budget="{ceil((peak_bytes - beside_bytes) / activation_bytes * 1000) / 10:g}% of activations", '


def _exact(size: int) -> str:
    return f"{format_bytes(size)} ({size} bytes)"


def graph_options(
    optimizer: object,
    *,
    accumulate: bool,
    device: str | None,
    measurements: str | None = None,
    link_bandwidth: str | float | None = None,
) -> GraphOptions:
    """Return how a captured step becomes the graph that is planned.

    Args:
        optimizer: one of `OPTIMIZERS` by name, or an optimizer, or None.
        accumulate: whether gradients are there before the step.
        device: a device profile; None: the one for the device that torch would use.
        measurements: a file of what was measured, which gives times instead.
        link_bandwidth: of the link to the host; None: that of the device profile, where there is one.

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
    )


def default_profile() -> str:
    """Return the device profile for the device that torch would use; for CUDA by its name (untried on a GPU)."""
    if not torch.cuda.is_available():
        return "laptop-cpu"
    name = torch.cuda.get_device_name().lower()
    return next((profile for profile in _PROFILES if profile in name), "generic")
