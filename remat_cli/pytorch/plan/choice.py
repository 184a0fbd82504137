"""The schedule for a captured step: from a file, or planned for a budget."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from math import ceil, inf
from pathlib import Path

import torch
from torch import nn

from remat_cli import __version__
from remat_cli.config import GraphOptions, load_measurements, measurements_bytes
from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Activations, Solution, activations_of, baseline_of
from remat_cli.costs import Measurements
from remat_cli.errors import DoesNotFit, GraphError, InvalidSchedule, ScheduleFileError, UsageError
from remat_cli.formats.native import canonical_json, graph_sha256
from remat_cli.formats.reader import Reading
from remat_cli.formats.schedule_json import ScheduleFile, link_fields, read_schedule
from remat_cli.formats.writing import write_faults, write_file
from remat_cli.planning import LEAST_TRIAL, Planning, Request, SplitPlanning, plan, plan_split
from remat_cli.prepare import Prepared, link_of, prepare_reading
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.optimizer import optimizer_state_bytes
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.reader import reading_of, unused_bytes
from remat_cli.pytorch.memory.measure import MEASURED_DEVICES, machine, measure_once
from remat_cli.pytorch.memory.watch import standing_bytes
from remat_cli.pytorch.plan.record import GraphRecord, kept_between, notify
from remat_cli.pytorch.plan.sized_memory import ResizedGraph
from remat_cli.pytorch.plan.waiting import MEASURING, PLANNING, Waiting
from remat_cli.pytorch.unstable.autograd import is_profiling
from remat_cli.pytorch.unstable.tensors import storage_key
from remat_cli.splitting import Split, read_cuts, written_cuts
from remat_cli.units import exact_bytes, format_bytes, format_count, format_time, parse_budget

_log = logging.getLogger("remat")

_NAME = "the captured step"
# Seconds of planning by default, for graphs of up to so many ops; more for larger ones. Each plan that a search for the
# smallest budget asks for has them, too: with less, that search ends above budgets at which a request finds a plan.
_SECONDS, _OPS = 3.0, 500
# The number of plans for several calls before a backward pass, by bisection of what is left free for the others.
_MOST_PLANS_OF_CALLS = 6
# Device profiles by torch's name of the device; other devices have the generic profile.
_PROFILES = ("h200", "h100", "a100", "v100")


class ScheduleSource(ABC):
    """A source of schedules for captured steps.

    Attributes:
        takes_sizes: its plans can be carried over to other sizes.
        has_room: it may plan for larger sizes than asked for, as the budget does not grow with them.
        is_smallest: the budget is the smallest that a plan is found for.
        is_given: the schedule is there already, and no other one is made.
        splits: regions run in parts where that is needed, or takes less time.
        fused: inductor's kernels run the plans.
        strict: a later step without a plan that fits is refused.
        budget_text: the budget, or the file, as the user named it.
    """

    takes_sizes = False
    is_given = False
    has_room = False
    is_smallest = False
    splits = False
    fused = False
    strict = False
    budget_text = "a schedule"

    @property
    def is_decomposed(self) -> bool:
        """Whether steps are captured as inductor decomposes them; parts are found among eager's ops."""
        return self.fused and not self.splits

    @property
    def has_reserved(self) -> bool:
        """Whether memory is left free for measured steps."""
        return False

    @property
    def counts_state(self) -> bool:
        """Whether plans count the optimizer's state, as far as known."""
        return True

    @cached_property
    def waiting(self) -> Waiting:
        """The times that calls have waited for plans and for torch."""
        return Waiting()

    @abstractmethod
    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        """Return a verified schedule of a piece, with its figures.

        Returns:
            The piece with those regions in parts that its plan has in parts, and the plan.
        """

    def graph(self, piece: Piece) -> Graph:
        """Return the graph of a piece, to be planned or replayed."""
        return graph_of(piece.joint, _NAME)

    def explained(self, refusal: DoesNotFit, piece: Piece) -> DoesNotFit:
        """Return a refusal with a remedy."""
        del piece
        return refusal

    def within(self, budget_bytes: int) -> ScheduleSource:
        """Return a source of plans within another budget.

        A source without a budget ignores it.
        """
        del budget_bytes
        return self

    def least(self) -> ScheduleSource | None:
        """Return a source of plans of the least peak found.

        None for a source without a budget.
        """
        return None

    def staying(self) -> ScheduleSource | None:
        """Return a source of plans that move nothing to the host.

        None if these plans move nothing either, or are given.
        """
        return None

    def for_copy(self) -> ScheduleSource:
        """Return a source for a copy of the model; measurements and kept plans are shared."""
        return self

    def budget_bytes(self, graph: Graph) -> int | None:
        """Return the budget for a graph in bytes, if known before planning."""
        del graph
        return None

    def link(self, graph: Graph) -> Link | None:
        """Return the link to the host for a graph, if plans move tensors."""
        del graph
        return None

    def regrant(self) -> None:  # noqa: B027  # only a share has been granted
        """Grant later plans a new share.

        Earlier graphs held more than necessary.
        """

    def carried(self, there: GraphRecord, graph: ResizedGraph) -> GraphRecord | None:
        """Return a plan at other sizes with its budget; None above the budget.

        Args:
            there: the plan at these sizes, with the budget of its own sizes.
            graph: the graph at these sizes.
        """
        del there, graph
        return None

    def reserve(self, missing_bytes: int, gradient_bytes: int, modules: Sequence[nn.Module]) -> bool:
        """Leave memory free in later plans; return whether this is possible.

        Args:
            missing_bytes: memory of a measured step beyond the plan's peak.
            gradient_bytes: gradients in memory at the start of that step.
            modules: the called modules; nothing is reserved for their memory that is known by now.
        """
        del missing_bytes, gradient_bytes, modules
        return False

    def note_calls(self, calls: int, ran: GraphRecord) -> bool:
        """Note the number of calls before a backward pass; return whether plans count them.

        Args:
            calls: number of calls.
            ran: the plan that they ran by.
        """
        del calls, ran
        return False

    def release(self) -> None:  # noqa: B027  # where nothing is left free, there is nothing to take back
        """Take the last reserve back, as no plan fits."""


@dataclass(frozen=True)
class FromFile(ScheduleSource):
    """The schedule in a file, for the same graph.

    Attributes:
        path: path of the file.
        file: content of the file.
        fused: inductor's kernels will run the schedule.
        strict: see `ScheduleSource`.
    """

    is_given = True

    path: Path
    file: ScheduleFile
    fused: bool = False
    strict: bool = False

    @property
    def budget_text(self) -> str:  # type: ignore[override]
        """The path of the file."""
        return str(self.path)

    @classmethod
    def at(cls, path: Path, *, fused: bool = False, strict: bool = False) -> FromFile:
        """Read the file.

        Args:
            path: path of the file.
            fused: inductor's kernels will run the schedule.
            strict: see `ScheduleSource`.

        Raises:
            ScheduleFileError: the file cannot be read, or has no plan.
            UsageError: the schedule is not for a PyTorch step, or is for other kernels.
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
        return cls(path, file, fused, strict)

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        """Return the schedule in the file, and the piece in the parts that the file names.

        Raises:
            GraphError: the schedule is for another graph; the message names the first different op.
            InvalidSchedule: the schedule breaks a rule.
        """
        try:
            piece = piece.in_parts(self.file.cuts)
        except UsageError as fault:
            raise GraphError(f"{self.path} is for another graph: {fault.message}", hint="plan it again") from None
        graph = self.graph(piece)
        check_structure(graph, self.file.structure or {}, str(self.path))
        # Whether a step holds does not depend on how fast the link is.
        link = Link(Fraction(1))
        peak = simulate(graph, self.file.schedule, link=link).peak_bytes
        # The graph here has no optimizer; the file's may have counted its state.
        state_bytes = max(0, int(self.file.figures.get("peak_bytes", peak)) - peak)
        graph = graph.edited(resident_bytes=graph.resident_bytes + state_bytes).checked()
        trace = simulate(graph, self.file.schedule, link=link)
        planned = GraphRecord.of(graph, self.file.schedule, trace, self.file.budget_bytes)
        # The graph here has no times.
        return piece, replace(planned, overhead=self.file.overhead or 0.0, cuts=self.file.cuts)


def check_structure(graph: Graph, structure: Mapping[str, str], where: str) -> None:
    """Check that a graph equals the planned graph.

    It must have the same ops on the same values, with the same shapes and constants.

    Args:
        graph: graph of the step to run.
        structure: signatures of the planned graph's ops by name.
        where: origin of the signatures, for messages.

    Raises:
        GraphError: the graph is another.
    """
    if (fault := structure_fault(graph, structure)) is not None:
        raise GraphError(
            f"{where} is for another graph: {fault}",
            hint="plan it again, with the sizes, the mode and the torch that it runs with",
        )


def structure_fault(graph: Graph, structure: Mapping[str, str]) -> str | None:
    """Return the first difference from the planned graph, or None.

    Args:
        graph: graph of the step to run.
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
class OwnState:
    """The budget and the missed memory of one model, whatever sources plan it.

    Attributes:
        granted: bytes of the largest budget that a share has come to: smaller inputs may use as much as larger ones.
        missed_bytes: to leave free, as measured steps took them beyond the plan.
        before_bytes: what that was before it was last raised.
        standing_bytes: of gradients and buckets that were there when a graph was last captured.
        calls: number of calls before a backward pass that plans count.
        kept_bytes: of the missing memory of the last measured step, what further calls kept between their passes.
    """

    granted: int = 0
    missed_bytes: int = 0
    before_bytes: int = 0
    standing_bytes: int = 0
    calls: int = 1
    kept_bytes: int = 0


@dataclass
class WithinBudget(ScheduleSource):
    """Plans within a budget, made at each graph's first capture and kept.

    Attributes:
        request: the plan that is wanted.
        graph_options: what else is in memory, the device profile that gives ops their times, and the link to the host.
        optimizer: whose state is counted by its bytes; None where it is counted by its name, or there is none.
        folder: where plans are kept between runs of Python, by several at once or not; None: only in memory.
        measures: measure each kernel where it will run, before anything is planned.
        times_given: take only the kernels' memory from that; times are those of the device profile.
        kernels: what was measured so far: time in nanoseconds and memory of its own in bytes, by the kind of op.
        plans: what was planned, by the hash of all that it depends on.
        cuts: what is split, by the hash of all that the plan without depends on.
        search_seconds: limit of each search for cuts, after which no more are tried.
        former: the last cuts by their ops, each with the bytes of activations without parts.
        bound_by: what was in the way when parts were last searched for, in words; empty where nothing was.
        refused: the last result without a plan, by the hash of all that it depends on.
        reserve_bytes: to leave free, as the user says.
        fused: inductor's kernels run the plans.
        strict: a later step without a plan that fits is refused.
        budget_text: the budget as the user gave it, or the file whose plans run instead.
        own: budget and missed memory of the one model that is planned.

    Raises:
        UsageError: the folder is a file, or the optimizer's state is unknown.
    """

    takes_sizes = True

    request: Request
    graph_options: GraphOptions
    optimizer: torch.optim.Optimizer | None = None
    folder: Path | None = None
    measures: bool = True
    times_given: bool = False
    kernels: dict[str, tuple[int, int]] = field(default_factory=dict)
    plans: dict[str, GraphRecord] = field(default_factory=dict)
    cuts: dict[str, Mapping[str, Split]] = field(default_factory=dict)
    search_seconds: float = inf
    former: dict[tuple[str, ...], tuple[int, Mapping[str, Split]]] = field(default_factory=dict)
    bound_by: str = ""
    refused: dict[str, Planning] = field(default_factory=dict)
    reserve_bytes: int = 0
    fused: bool = False
    strict: bool = False
    budget_text: str = ""
    own: OwnState = field(default_factory=OwnState)

    def __post_init__(self) -> None:
        self.state_bytes()
        self.splits = self.request.split
        self.is_smallest = self.request.budget is not None and self.request.budget.smallest
        self.has_room = self.request.budget is not None and self.request.budget.device_bytes is not None
        if self.folder is not None and os.path.isfile(self.folder):
            raise UsageError(f"plans: {self.folder} is a file", hint="name a folder; it is made where there is none")

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        """Return the plan for a piece, new or earlier, and the piece in the parts that make the best plan.

        Raises:
            DoesNotFit: no plan fits.
        """
        whole = self.prepared(piece)
        cuts: Mapping[str, Split] = {}
        if self.splits:
            if self.is_share:  # of the step without parts
                self.own.granted = max(self.own.granted, self.request_for(whole.graph).budget_bytes(whole.graph) or 0)
            cuts = self.best_cuts(whole, piece)
        if not cuts:
            return piece, self.plan_of(whole)
        piece = piece.in_parts(cuts)
        return piece, self.plan_in_parts(cuts, whole.graph, self.prepared(piece))

    def plan_of(self, prepared: Prepared) -> GraphRecord:
        """Return the plan for a graph, new or earlier.

        Raises:
            DoesNotFit: no plan fits.
        """
        key = self.key(prepared)
        if key not in self.plans:
            self.plans[key] = self.kept(key, prepared) or self.new_plan(key, prepared)
        return self.plans[key]

    def graph(self, piece: Piece) -> Graph:
        """Return the graph of a piece with measured kernels; see `ScheduleSource.graph`."""
        return self.prepared(piece).graph

    def best_cuts(self, whole: Prepared, piece: Piece) -> Mapping[str, Split]:
        """Return the cuts of the best plan, found now or before; none where the graph is best whole.

        Args:
            whole: the graph without cuts.
            piece: the piece without cuts.
        """
        key = self.key(whole)
        if key not in self.cuts:
            kept = self.kept_cuts(key)
            with suppress(UsageError):  # they were kept by another version of torch
                if kept is not None:
                    piece.in_parts(kept)
                    self.cuts[key] = kept
        if key not in self.cuts:
            self.cuts[key] = self.chosen_cuts(key, piece)
        if cuts := self.cuts[key]:
            self.former.pop(tuple(cuts), None)
            self.former[tuple(cuts)] = activations_of(whole.graph).bytes, cuts
        return cuts

    def plan_in_parts(self, cuts: Mapping[str, Split], whole: Graph, prepared: Prepared) -> GraphRecord:
        """Return the plan of a graph in parts, compared with the graph without."""
        planned = self.plan_of(prepared)
        if not planned.cuts:
            planned = self.plans[self.key(prepared)] = planned.in_parts(cuts, whole)
        return planned

    def kept_cuts(self, key: str) -> Mapping[str, Split] | None:
        """Return the cuts that an earlier run of Python left in the folder; None where there are none."""
        path = self.path("parts", key)
        if path is None or not path.exists():
            return None
        try:
            return read_cuts(json.loads(path.read_text()))
        except (OSError, ValueError, AttributeError, UsageError):
            notify(logging.WARNING, f"what is kept in {path} does not hold, and is made anew")
            return None

    def chosen_cuts(self, key: str, piece: Piece) -> Mapping[str, Split]:
        """Search for the cuts of the best plan, and keep both."""
        planned_split = self.plan_split(piece)
        planning, self.bound_by = planned_split.planning, planned_split.obstacle
        if planning.schedule is not None and planning.trace is not None:
            own = self.key(planning.prepared)
            planned = GraphRecord.of(planning.prepared.graph, planning.schedule, planning.trace, planning.budget_bytes)
            self.plans[own] = self.granting(planned)
            self.keep(self.path("plan", own), planning.schedule_file)
            self.keep(self.path("parts", key), canonical_json(written_cuts(planned_split.cuts)))
        return planned_split.cuts

    def plan_split(self, piece: Piece, *, is_trial: bool = False) -> SplitPlanning:
        """Search for the best plan with regions in parts.

        A trial ends at the first plan, or after as long as this source has made its calls wait.

        Args:
            piece: the piece without parts.
            is_trial: the search is a trial for a refusal.
        """

        def prepared_with(cuts: Mapping[str, Split]) -> Prepared:
            return self.prepared(piece.in_parts(cuts))

        def draft(cuts: Mapping[str, Split]) -> Prepared:
            return self.unmeasured(piece.in_parts(cuts))

        whole = prepared_with({})
        request, key = self.request_for(whole.graph), self.key(whole)
        seconds = max(LEAST_TRIAL, self.waiting.spent_ns.total() / 1e9) if is_trial else self.search_seconds
        with self.waiting.phase(PLANNING, _up_to(request, whole.graph)):
            refused = self.refused.get(key)
            planned_split = plan_split(
                prepared_with,
                request,
                whole=refused,
                draft=draft,
                former=self.former_cuts(whole.graph),
                any_plan=is_trial,
                has_loss=any(tangent.meta["val"].numel() == 1 for tangent in piece.joint.tangents),
                seconds=seconds,
            )
        if planned_split.whole.schedule is None:
            self.refused = {key: planned_split.whole}
        return planned_split

    def former_cuts(self, whole: Graph) -> Iterator[Mapping[str, Split]]:
        """Yield cuts of other sizes, the last first, with equally many rows in a part."""
        size = activations_of(whole).bytes
        for former, cuts in reversed(list(self.former.values())):
            factor = Fraction(size, max(1, former))
            yield {name: replace(cut, parts=max(2, ceil(cut.parts * factor))) for name, cut in cuts.items()}

    def explained(self, refusal: DoesNotFit, piece: Piece) -> DoesNotFit:
        """Return a refusal with the effect of splitting, tried here."""
        if self.splits:
            tried = f"split was tried: {self.bound_by}; " if self.bound_by else ""
            return DoesNotFit(refusal.message, hint=f"{tried}{refusal.hint}")
        trial = self.plan_split(piece, is_trial=True)
        if not trial.cuts and not trial.bound_by:
            return refusal
        return with_trial(refusal, trial.in_words("split=True"), fits=bool(trial.cuts))

    def within(self, budget_bytes: int) -> ScheduleSource:
        """Return a source of plans within another budget, in bytes.

        Measurements are shared.
        """
        source = replace(self, request=self.request.at(budget_bytes))
        source.waiting = self.waiting
        return source

    def least(self) -> ScheduleSource | None:
        """Return a source of plans of the least peak found.

        Measurements are shared.
        """
        source = replace(self, request=replace(self.request, budget=parse_budget("min")))
        source.waiting = self.waiting
        return source

    def staying(self) -> ScheduleSource | None:
        """Return a source of plans that recompute alone.

        Measurements are shared.
        """
        if not self.request.offload:
            return None
        source = replace(self, request=replace(self.request, offload=False))
        source.waiting = self.waiting
        return source

    def for_copy(self) -> WithinBudget:
        """Return a source with a budget of its own; see `ScheduleSource.for_copy`."""
        return replace(self, own=OwnState())

    def budget_bytes(self, graph: Graph) -> int | None:
        """Return the budget for a graph in bytes.

        None stands for the smallest budget that can be found.
        """
        return self.request_for(graph).budget_bytes(graph)

    def link(self, graph: Graph) -> Link | None:
        """Return the link of the request's options."""
        return link_of(graph, self.graph_options) if self.request.offload else None

    def regrant(self) -> None:
        """Grant later plans a new share."""
        self.own.granted = 0

    def state_bytes(self) -> int:
        """Return the bytes of the optimizer's state.

        A state that does not exist yet is counted as its first step will allocate it.
        """
        return 0 if self.optimizer is None else optimizer_state_bytes(self.optimizer)

    def standing(self, modules: Sequence[nn.Module]) -> int:
        """Return the bytes of gradients and buckets in memory, without those that `accumulate` counts."""
        return standing_bytes(modules, gradients=not self.graph_options.accumulate)

    def reserve(self, missing_bytes: int, gradient_bytes: int, modules: Sequence[nn.Module]) -> bool:
        """Leave memory of the budget free; see `ScheduleSource.reserve`.

        The smallest budget leaves nothing free.
        """
        if self.request.budget is None or self.request.budget.smallest:
            return False
        self.own.before_bytes = self.own.missed_bytes
        # Gradients that exist by now, but not in that step, were no part of its missing memory.
        known = min(gradient_bytes, max(0, self.standing(modules) - self.own.standing_bytes))
        self.own.missed_bytes += max(0, missing_bytes - known - self.own.kept_bytes)
        return True

    def note_calls(self, calls: int, ran: GraphRecord) -> bool:
        """Note the number of calls before a backward pass; see `ScheduleSource.note_calls`.

        Plans that offload, or have regions in parts, count one call.
        """
        if self.splits or self.request.offload:
            return False
        counted, self.own.calls = self.own.calls, max(self.own.calls, calls)
        with_all, without = (self.others_bytes(ran.graph, ran.schedule, each) for each in (self.own.calls, counted))
        self.own.kept_bytes = with_all - without
        return True

    def release(self) -> None:
        """Take the last reserve back; the second time take all back."""
        self.own.missed_bytes, self.own.before_bytes = self.own.before_bytes, 0

    @property
    def has_reserved(self) -> bool:
        """Whether memory is left free for measured steps."""
        return self.own.missed_bytes > 0

    @property
    def counts_state(self) -> bool:
        """Whether plans count the optimizer's state."""
        return self.optimizer is not None or self.graph_options.optimizer is not None

    @property
    def free_bytes(self) -> int:
        """Bytes that plans leave free."""
        return self.reserve_bytes + self.own.missed_bytes

    def unmeasured(self, piece: Piece) -> Prepared:
        """Return the graph without the workspace of its kernels."""
        return prepare_reading(self.reading(piece), _NAME, self.graph_options)

    def reading(self, piece: Piece) -> Reading:
        """Return the reading of a piece."""
        used = {storage_key(primal.value) for primal in piece.captured.primals if primal.value is not None}
        self.own.standing_bytes = self.standing(piece.modules)
        resident = unused_bytes(piece.modules, used) + self.state_bytes() + self.own.standing_bytes + self.free_bytes
        optimizer = None if self.optimizer is None else type(self.optimizer).__name__
        return reading_of(piece.joint, piece.captured, _NAME, resident, optimizer)

    def prepared(self, piece: Piece) -> Prepared:
        """Return the graph that is planned."""
        reading = self.reading(piece)
        prepared = prepare_reading(reading, _NAME, self.graph_options)
        if not self.measures or piece.joint.device not in MEASURED_DEVICES:
            return prepared
        if is_profiling():
            notify(logging.WARNING, "the workspace of kernels is not counted: another profiler runs")
            return prepared
        measured = self.measured(piece.joint, prepared)
        if self.times_given:
            measured = replace(measured, times_ns={})
        else:
            measured = replace(measured, times_ns={**measured.missing(prepared.graph), **measured.times_ns})
        return prepare_reading(reading, _NAME, self.graph_options, measured=measured)

    def measured(self, joint: Joint, prepared: Prepared) -> Measurements:
        """Return times and memory of a step's kernels on this machine.

        They come from an earlier run of Python, or are measured now.
        """
        here = {"graph": graph_sha256(prepared.graph), "machine": machine(joint.device), "version": __version__}
        path = self.path("kernels", sha256(canonical_json(here)).hexdigest())
        if path is not None and os.path.exists(path):
            try:
                measurements = load_measurements(path)
                measurements.check(prepared.graph, {}, str(path))
            except UsageError as fault:
                notify(logging.WARNING, f"what is kept in {path} does not hold, and is measured anew: {fault.message}")
            else:
                return measurements
        known, before = len(self.kernels), self.waiting.spent_ns[MEASURING]
        with self.waiting.phase(MEASURING):
            measurements = measure_once(joint, joint.device, self.kernels)
        took = format_time(self.waiting.spent_ns[MEASURING] - before, "ns")
        _log.info("measured %s kernels in %s", format_count(len(self.kernels) - known), took)
        self.keep(path, measurements_bytes(measurements, _NAME))
        return measurements

    def key(self, prepared: Prepared) -> str:
        """Return a hash of all inputs of a plan: the graph, and every field of the request for it."""
        request = self.request_for(prepared.graph)
        asked = {
            **request.in_json,
            "budget": request.budget_bytes(prepared.graph),
            "planner": request.chosen.record,
            "graph": graph_sha256(prepared.graph),
            "link": None if prepared.link is None else link_fields(prepared.link),
            "version": __version__,
            **({"calls": self.own.calls} if self.own.calls > 1 else {}),
        }
        return sha256(canonical_json(asked)).hexdigest()

    def kept(self, key: str, prepared: Prepared) -> GraphRecord | None:
        """Return a valid plan that an earlier run of Python left, or None."""
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
            notify(logging.WARNING, f"the plan kept in {path} does not hold, and is made anew: {fault.message}")
            return None
        return self.granting(GraphRecord.of(prepared.graph, file.schedule, trace, budget))

    def new_plan(self, key: str, prepared: Prepared) -> GraphRecord:
        """Plan a graph, and save the plan in the folder."""
        request = self.request_for(prepared.graph)
        with self.waiting.phase(PLANNING, _up_to(request, prepared.graph)):
            planning = self.refused.get(key) or plan(prepared, request)
        if planning.schedule is None or planning.trace is None:
            self.refused = {key: planning}
            raise no_plan(planning.solution, self.free_bytes)
        if planning.search is not None and planning.search.note:
            notify(logging.WARNING, f'{planning.search.note} (options={{"time_limit": 60}} gives each try more)')
        if self.own.calls > 1:
            with self.waiting.phase(PLANNING, _up_to(request, prepared.graph)):
                return self.granting(self.plan_of_calls(planning))
        self.keep(self.path("plan", key), planning.schedule_file)
        planned = GraphRecord.of(prepared.graph, planning.schedule, planning.trace, planning.budget_bytes)
        return self.granting(planned)

    def plan_of_calls(self, alone: Planning) -> GraphRecord:
        """Return a plan for several calls before a backward pass.

        While one call runs, the others keep what the plan keeps between its passes. That much is left free: the least
        that is enough is searched, as a call with more memory takes less time.

        Args:
            alone: plan of one call within the budget.

        Raises:
            DoesNotFit: no plan that was found leaves enough free.
        """
        assert alone.schedule is not None
        together = self.together(alone.prepared.graph, alone.schedule, alone.budget_bytes)
        if alone.search is not None:  # the smallest budget is what they come to
            return replace(together, budget_bytes=together.predicted_peak_bytes)
        if together.predicted_peak_bytes <= alone.budget_bytes:
            return together
        graph, best, low = alone.prepared.graph, None, 0
        high = self.others_bytes(graph, alone.schedule, self.own.calls)
        for _ in range(_MOST_PLANS_OF_CALLS):
            free = (low + high) // 2
            leaving = graph.edited(resident_bytes=graph.resident_bytes + free).checked()
            planning = plan(replace(alone.prepared, graph=leaving), alone.request)
            fits = False
            if planning.schedule is not None:
                together = self.together(graph, planning.schedule, alone.budget_bytes)
                fits = together.predicted_peak_bytes <= alone.budget_bytes
                best = together if fits else best
            low, high = (low, free) if fits or planning.schedule is None else (free, high)
        if best is None:
            raise no_plan(planning.solution, self.free_bytes)
        return best

    def together(self, graph: Graph, schedule: Schedule, budget_bytes: int) -> GraphRecord:
        """Return the record of a plan with the memory of all calls before a backward pass."""
        others, plain = (self.others_bytes(graph, each, self.own.calls) for each in (schedule, plain_run(graph)))
        all_calls = graph.edited(resident_bytes=graph.resident_bytes + others).checked()
        planned = GraphRecord.of(all_calls, schedule, budget_bytes=budget_bytes)
        return replace(planned, plain_peak_bytes=baseline_of(graph).peak_bytes + plain)

    def others_bytes(self, graph: Graph, schedule: Schedule, calls: int) -> int:
        """Return the memory of other calls while one of them runs its backward pass.

        They keep tensors between their passes, or have left gradients.
        """
        if calls == 1:
            return 0
        kept = kept_between(graph, schedule)
        adds = self.graph_options.accumulate  # the gradients are counted already
        gradients = 0 if adds else sum(graph.tensors[name].bytes for name in graph.outputs if name in graph.producer)
        return max((calls - 1) * kept, (calls - 2) * kept + gradients)

    def request_for(self, graph: Graph) -> Request:
        """Return the request for a graph as it is, whole or in parts.

        A share is of the largest plain peak so far.

        The first step waits for the plan: without the user's time limit, the planner has some seconds.
        """
        request = replace(self.request, split=False).in_time(usual=_SECONDS * max(1.0, len(graph.ops) / _OPS))
        if not self.is_share:
            return request
        seen = graph
        if self.own.missed_bytes:  # memory of steps beyond their plans does not raise the budget
            seen = replace(graph, resident_bytes=graph.resident_bytes - self.own.missed_bytes)
        return request.at(max(request.budget_bytes(seen) or 0, self.own.granted))

    @property
    def is_share(self) -> bool:
        """Whether the budget depends on the graph's plain run."""
        return self.request.budget is not None and self.request.budget.share is not None

    def granting(self, planned: GraphRecord) -> GraphRecord:
        """Let other sizes use as much memory as this plan, where the budget is a share."""
        if self.is_share:
            self.own.granted = max(self.own.granted, planned.budget_bytes or 0)
        return planned

    def carried(self, there: GraphRecord, graph: ResizedGraph) -> GraphRecord | None:
        """Return a plan at other sizes with its budget; see `ScheduleSource.carried`."""
        # The smallest budget is the one that was found for the plan.
        budget = self.share_at(graph) if self.is_share else there.budget_bytes
        assert budget is not None
        there = replace(there, budget_bytes=budget)
        return None if there.predicted_peak_bytes > budget else self.granting(there)

    def share_at(self, graph: ResizedGraph) -> int:
        """Return the budget at other sizes, where it is a share; see `request_for`."""
        budget = self.request.budget
        assert budget is not None
        activations = graph.activations if budget.of_activations else Activations(0, 0)
        other_bytes = max(0, activations.other_bytes - self.own.missed_bytes)
        share = budget.bytes_of(graph.plain_peak_bytes - self.own.missed_bytes, other_bytes, activations.bytes)
        return max(share, self.own.granted)

    def keep(self, path: Path | None, content: bytes) -> None:
        """Leave a file in the folder, as a whole at once; where that cannot be, say so and go on."""
        if path is None:
            return
        try:
            with write_faults(path.parent, ""):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content)
        except UsageError as fault:
            notify(logging.WARNING, f"nothing is kept for the next time: {fault.message}")

    def path(self, what: str, key: str) -> Path | None:
        """Return where something is kept between runs, by its key."""
        return None if self.folder is None else self.folder / f"{what}-{key[:32]}.json"


def _up_to(request: Request, graph: Graph) -> str:
    """Return a graph's size and its plan's longest time, in words.

    Users read this while they wait.
    """
    text = f"the step has {format_count(len(graph.ops))} ops"
    if not request.chosen.has("time_limit"):
        return text
    limit = format_time(int(request.chosen.all_options()["time_limit"] * 1e9), "ns")
    return f'{text}, and a plan may take {limit} (options={{"time_limit": N}}, in seconds, sets another limit)'


def no_plan(solution: Solution, free_bytes: int = 0) -> DoesNotFit:
    """Return the error for no plan, with the least memory and reasons.

    Args:
        solution: a solution without a plan.
        free_bytes: reserved bytes that count as always in memory.
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
    plain_peak = baseline_of(graph).peak_bytes
    nearest = share = ""
    if solution.closest is not None and solution.closest.peak_bytes < plain_peak:  # the plain run is no plan to ask for
        closest, activations = solution.closest.peak_bytes, activations_of(graph)
        nearest = f"; the closest that was found needs {exact_bytes(closest)}"
        share = larger_share(closest, activations.other_bytes, activations.bytes)
    fixed = format_bytes(graph.fixed_bytes - free_bytes)
    return DoesNotFit(
        f"no plan {'fits' if proven else 'was found for'} a budget of {budget}. No plan that runs every op whole needs "
        f"less than {exact_bytes(working_set.bytes)}: {why}{nearest}. Always in memory are {fixed} of parameters, "
        f"inputs and optimizer state{left}; at the end, {format_bytes(gradients)} of gradients and outputs; the plain "
        f"run needs {format_bytes(plain_peak)}",
        hint=f'give a larger budget ({share}budget="min" takes the smallest that is found), or smaller inputs',
    )


def with_trial(refusal: DoesNotFit, effect: str, *, fits: bool) -> DoesNotFit:
    """Return a refusal with the effect of a trial in its hint, first if it fits."""
    hint = f"{effect}; or {refusal.hint}" if fits else f"{refusal.hint}; {effect}"
    return DoesNotFit(refusal.message, hint=hint)


def larger_share(peak_bytes: int, other_bytes: int, activation_bytes: int) -> str:
    """Return a peak as a budget in shares of activations, with a comma.

    The text is empty unless activations are the smaller part.

    Args:
        peak_bytes: peak of the step.
        other_bytes: memory besides activations.
        activation_bytes: peak of activations in the plain run.
    """
    if not 0 < activation_bytes < other_bytes or not other_bytes <= peak_bytes <= other_bytes + activation_bytes:
        return ""
    return f'budget="{ceil((peak_bytes - other_bytes) / activation_bytes * 1000) / 10:g}% of activations", '


def default_profile() -> str:
    """Return the device profile for torch's device.

    For CUDA it is chosen by name (untried on a GPU).
    """
    if not torch.cuda.is_available():
        return "laptop-cpu"
    name = torch.cuda.get_device_name().lower()
    return next((profile for profile in _PROFILES if profile in name), "generic")
