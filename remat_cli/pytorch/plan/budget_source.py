"""Schedules planned within a budget, for what torch captures."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, inf

import torch
from torch import nn

from remat_cli import __version__
from remat_cli.config import GraphOptions, measurements_bytes
from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.schedule import plain_run
from remat_cli.core.solve import Activations, activations_of
from remat_cli.costs import Measurements
from remat_cli.errors import DoesNotFit, UsageError
from remat_cli.formats.native import canonical_json, graph_sha256
from remat_cli.formats.reader import Reading
from remat_cli.formats.schedule_json import link_fields
from remat_cli.planning import LEAST_TRIAL, Planning, Request, SplitPlanning, plan, plan_again, plan_split
from remat_cli.prepare import Prepared, link_of, prepare_reading
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.optimizer import optimizer_state_bytes
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.reader import reading_of, unused_bytes
from remat_cli.pytorch.memory.measure import MEASURED_DEVICES, machine, measure_once
from remat_cli.pytorch.memory.watch import standing_bytes
from remat_cli.pytorch.plan.plan_folder import PlanFolder, key_of
from remat_cli.pytorch.plan.record import GraphRecord, notify
from remat_cli.pytorch.plan.refusals import no_plan, with_trial
from remat_cli.pytorch.plan.several_calls import SeveralCalls
from remat_cli.pytorch.plan.sized_memory import ResizedGraph
from remat_cli.pytorch.plan.smallest import plan_smallest
from remat_cli.pytorch.plan.source import NAME, ScheduleSource
from remat_cli.pytorch.plan.waiting import MEASURING, PLANNING
from remat_cli.pytorch.unstable.autograd import is_profiling
from remat_cli.pytorch.unstable.tensors import storage_key
from remat_cli.splitting import Split, written_cuts
from remat_cli.units import format_count, format_time, parse_budget

_log = logging.getLogger("remat")

# Seconds of planning by default, for graphs of up to so many ops; more for larger ones. Each plan that a search for the
# smallest budget asks for has them, too: with less, that search ends above budgets at which a request finds a plan.
_SECONDS, _OPS = 3.0, 500
# Device profiles by torch's name of the device; other devices have the generic profile.
_PROFILES = ("h200", "h100", "a100", "v100")


@dataclass
class OwnState:
    """The budget and the missed memory of one model, whatever sources plan it.

    Attributes:
        granted: bytes of the largest budget that a share has come to: smaller inputs may use as much as larger ones.
        missed_bytes: to leave free, as measured steps took them beyond the plan.
        before_bytes: what that was before it was last raised.
        standing_bytes: of gradients and buckets that were there when a graph was last captured.
        calls: largest number of calls before a backward pass that measured steps have shown.
        kept_bytes: of the missing memory of the last measured step, what further calls kept between their passes.
        inputs: names of the tensors that calls are given, in the graphs that were captured.
    """

    granted: int = 0
    missed_bytes: int = 0
    before_bytes: int = 0
    standing_bytes: int = 0
    calls: int = 1
    kept_bytes: int = 0
    inputs: frozenset[str] = frozenset()


@dataclass
class BudgetSource(ScheduleSource):
    """Plans within a budget, made at each graph's first capture and kept.

    Attributes:
        request: the plan that is wanted.
        graph_options: what else is in memory, the device profile that gives ops their times, and the link to the host.
        optimizer: whose state is counted by its bytes; None where it is counted by its name, or there is none.
        folder: where plans are kept between runs of Python.
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
        calls: number of calls before a backward pass, as the user says; a share of the budget is of all of them.
        fused: inductor's kernels run the plans.
        strict: a later step without a plan that fits is refused.
        counts_work: work limits each try of a search for the smallest budget, as the user limits neither it nor time.
        budget_text: the budget as the user gave it, or the file whose plans run instead.
        own: budget and missed memory of the one model that is planned.

    Raises:
        UsageError: the optimizer's state is unknown.
    """

    takes_sizes = True

    request: Request
    graph_options: GraphOptions
    optimizer: torch.optim.Optimizer | None = None
    folder: PlanFolder = field(default_factory=PlanFolder)
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
    calls: int = 1
    fused: bool = False
    strict: bool = False
    counts_work: bool = True
    budget_text: str = ""
    own: OwnState = field(default_factory=OwnState)

    def __post_init__(self) -> None:
        self.state_bytes()
        self.splits = self.request.split
        self.takes_sizes = self.calls == 1  # what other calls keep is that of one size
        self.is_smallest = self.request.budget is not None and self.request.budget.smallest
        self.has_room = self.request.budget is not None and self.request.budget.device_bytes is not None

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
            self.plans[key] = self.granting(self.kept_or_new(key, prepared))
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
            kept = self.folder.cuts(key)
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

    def chosen_cuts(self, key: str, piece: Piece) -> Mapping[str, Split]:
        """Search for the cuts of the best plan, and keep both."""
        planned_split = self.plan_split(piece)
        planning, self.bound_by = planned_split.planning, planned_split.obstacle
        if planning.schedule is not None and planning.trace is not None:
            own = self.key(planning.prepared)
            planned = GraphRecord.of(planning.prepared.graph, planning.schedule, planning.trace, planning.budget_bytes)
            self.plans[own] = self.granting(planned)
            self.folder.keep("plan", own, planning.schedule_file)
            self.folder.keep("parts", key, canonical_json(written_cuts(planned_split.cuts)))
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

    def for_regions(self) -> BudgetSource:
        """Return a source of plans of single blocks."""
        return self

    def for_copy(self) -> BudgetSource:
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
        counted, self.own.calls = self.counted_calls, max(self.own.calls, calls)
        with_all, without = (
            self.several(each).others_bytes(ran.graph, ran.schedule) for each in (self.counted_calls, counted)
        )
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
        return prepare_reading(self.reading(piece), NAME, self.graph_options)

    def reading(self, piece: Piece) -> Reading:
        """Return the reading of a piece."""
        used = {storage_key(primal.value) for primal in piece.captured.primals if primal.value is not None}
        self.own.standing_bytes = self.standing(piece.modules)
        self.own.inputs |= piece.input_names
        resident = unused_bytes(piece.modules, used) + self.state_bytes() + self.own.standing_bytes + self.free_bytes
        optimizer = None if self.optimizer is None else type(self.optimizer).__name__
        return reading_of(piece.joint, piece.captured, NAME, resident, optimizer)

    def prepared(self, piece: Piece) -> Prepared:
        """Return the graph that is planned."""
        reading = self.reading(piece)
        prepared = prepare_reading(reading, NAME, self.graph_options)
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
        return prepare_reading(reading, NAME, self.graph_options, measured=measured)

    def measured(self, joint: Joint, prepared: Prepared) -> Measurements:
        """Return times and memory of a step's kernels on this machine.

        They come from an earlier run of Python, or are measured now.
        """
        here = {"graph": graph_sha256(prepared.graph), "machine": machine(joint.device), "version": __version__}
        key = key_of(here)
        if (kept := self.folder.measurements(key, prepared.graph)) is not None:
            return kept
        known, before = len(self.kernels), self.waiting.spent_ns[MEASURING]
        with self.waiting.phase(MEASURING):
            measurements = measure_once(joint, joint.device, self.kernels)
        took = format_time(self.waiting.spent_ns[MEASURING] - before, "ns")
        _log.info("measured %s kernels in %s", format_count(len(self.kernels) - known), took)
        self.folder.keep("kernels", key, measurements_bytes(measurements, NAME))
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
            **({"calls": self.counted_calls} if self.counted_calls > 1 else {}),
        }
        return key_of(asked)

    def kept_or_new(self, key: str, prepared: Prepared) -> GraphRecord:
        """Return the valid plan that an earlier run of Python left in the folder, or a new one.

        Raises:
            DoesNotFit: no plan fits.
        """
        budget = self.budget_bytes(prepared.graph)
        kept = self.folder.kept_plan(key, prepared, budget)
        if kept is not None and self.counted_calls > 1:
            kept = self.several(self.counted_calls).kept(kept, budget)
        return kept or self.new_plan(key, prepared)

    def new_plan(self, key: str, prepared: Prepared) -> GraphRecord:
        """Plan a graph, and save the plan in the folder."""
        request = self.request_for(prepared.graph)
        with self.waiting.phase(PLANNING, _up_to(request, prepared.graph)):
            planning = self.refused.get(key) or self.made(prepared, request)
        if planning.schedule is None or planning.trace is None:
            self.refused = {key: planning}
            raise no_plan(planning.solution, self.free_bytes)
        if planning.search is not None and planning.search.note:
            notify(logging.WARNING, f'{planning.search.note} (options={{"time_limit": 60}} gives each try more)')
        if self.counted_calls > 1:
            with self.waiting.phase(PLANNING, _up_to(request, prepared.graph)):
                planned = self.several(self.counted_calls).planned(planning, self.free_bytes)
            self.folder.keep("plan", key, plan_again(planning, prepared, planned.schedule).schedule_file)
            return planned
        self.folder.keep("plan", key, planning.schedule_file)
        return GraphRecord.of(prepared.graph, planning.schedule, planning.trace, planning.budget_bytes)

    def made(self, prepared: Prepared, request: Request) -> Planning:
        """Plan a graph for a request; of the smallest budget, search it."""
        if not self.is_smallest or request.offload:
            return plan(prepared, request)
        return plan_smallest(prepared, request, counts_work=self.counts_work)

    def several(self, calls: int) -> SeveralCalls:
        """Return so many calls before a backward pass."""
        return SeveralCalls(calls, self.graph_options.accumulate, self.own.inputs)

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
        share = request.budget_bytes(seen) or 0
        if self.calls > 1:
            assert request.budget is not None
            assert request.budget.share is not None
            share += int(request.budget.share * self.several(self.calls).others_bytes(seen, plain_run(seen)))
        return request.at(max(share, self.own.granted))

    @property
    def counted_calls(self) -> int:
        """Number of calls before a backward pass that plans count."""
        return max(self.calls, self.own.calls)

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


def _up_to(request: Request, graph: Graph) -> str:
    """Return a graph's size and its plan's longest time, in words.

    Users read this while they wait.
    """
    text = f"the step has {format_count(len(graph.ops))} ops"
    if not request.chosen.has("time_limit"):
        return text
    limit = format_time(int(request.chosen.all_options()["time_limit"] * 1e9), "ns")
    return f'{text}, and a plan may take {limit} (options={{"time_limit": N}}, in seconds, sets another limit)'


def default_profile() -> str:
    """Return the device profile for torch's device.

    For CUDA it is chosen by name (untried on a GPU).
    """
    if not torch.cuda.is_available():
        return "laptop-cpu"
    name = torch.cuda.get_device_name().lower()
    return next((profile for profile in _PROFILES if profile in name), "generic")
