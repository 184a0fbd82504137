"""Regions: parts of a model that are captured and planned alone.

One budget covers the whole step.

Code between regions runs in eager mode, so it may branch on data, index by masks and print. In the first training call
a rehearsal runs the step once with each region in `torch.utils.checkpoint`, and sees the memory between them. Each
distinct region is planned several times, to keep less and less. An integer program chooses one of these plans for each
region at the least time. At every moment the tensors kept by regions, the memory between regions, and the peak of the
running region must fit the budget.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Phase
from remat_cli.core.link import Link
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import Trace
from remat_cli.errors import DoesNotFit, GraphError, InvalidSchedule, RematError, UsageError
from remat_cli.formats.writing import write_file
from remat_cli.prepare import Prepared
from remat_cli.pytorch.capture.capture_errors import drawing_again
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.joint_capture import Captured
from remat_cli.pytorch.capture.model_state import ModelState
from remat_cli.pytorch.capture.outputs import OutputGradients
from remat_cli.pytorch.capture.sizes import Values
from remat_cli.pytorch.capture.step import losses_in
from remat_cli.pytorch.memory.hosted import HostedStep, can_leave
from remat_cli.pytorch.memory.live import bytes_in
from remat_cli.pytorch.memory.shards import (
    Ranks,
    arrived,
    check_not_offloaded,
    check_regions_are_whole,
    gathered_parameters,
    gradients_kept,
    is_distributed,
    parameters_at_rest,
)
from remat_cli.pytorch.memory.watch import MeasuredStep, StepWatch
from remat_cli.pytorch.plan.choice import WithinBudget, larger_share
from remat_cli.pytorch.plan.described import Dimension, Inputs
from remat_cli.pytorch.plan.given_blocks import GivenBlocks, file_of_blocks
from remat_cli.pytorch.plan.holding import Holding
from remat_cli.pytorch.plan.record import PlanRecord, beyond, notify, waited
from remat_cli.pytorch.plan.region_choice import ChosenPlans, CurvePoint, WholeStep
from remat_cli.pytorch.plan.region_kinds import CallGroup, Captures, RegionKind, SizedKind, shared_forward
from remat_cli.pytorch.plan.rehearsal import RegionCall, Rehearsal, RunsOnce, checkpointed, named_call
from remat_cli.pytorch.plan.sized_region import RegionKernels, SizedRegion, SizedSchedule
from remat_cli.pytorch.plan.waiting import COMPILING
from remat_cli.pytorch.run.attached import attach, attached_call, detach
from remat_cli.pytorch.run.call import check_not_sharded
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.modules import call_instead, own_call, set_call_instead
from remat_cli.training.resident import OPTIMIZERS
from remat_cli.units import format_bytes, format_share, format_time

# Shares of a plain region's kept memory, beyond the memory that every plan keeps.
_SHARES = (0.8, 0.6, 0.4, 0.2, 0.0)
# A plan with a larger overhead than this share does not run inputs of less than this share of its size: a new plan
# takes less time there.
_WORTH, _SMALLER = 0.02, 0.5
_NEAR = 0.5  # plans are reused if the peak of a region differs by no more than this factor
_PLAN_SECONDS = 1.0  # for each plan of a region, by default
_NAME = "_remat_regions"
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)  # containers, which are not called


def regions_of(model: nn.Module, regions: str | Sequence[Any]) -> dict[str, nn.Module]:
    """Return the regions of a model by path.

    Args:
        model: the model.
        regions: a pattern of paths such as "layers.*", or paths, patterns and modules.

    Raises:
        UsageError: a region is no part of the model, none is named, or one is inside another.
    """
    known = {path: part for path, part in model.named_modules() if path}
    asked = [regions] if isinstance(regions, str) or not isinstance(regions, Iterable) else list(regions)
    if not asked:
        raise UsageError("regions: none is named", hint="leave it out, or name parts of the model, such as 'layers.*'")
    found: dict[str, nn.Module] = {}
    for item in asked:
        if isinstance(item, str):
            depth = item.count(".")
            named = {path: part for path, part in known.items() if path.count(".") == depth and fnmatchcase(path, item)}
        else:
            named = {path: part for path, part in known.items() if part is item}
        if not named:
            some = ", ".join([path for path in known if path.rpartition(".")[2].isdecimal()][:3]) or ", ".join(known)
            raise UsageError(f"regions: the model has no part {item!r}", hint=f"its parts are called {some} and so on")
        found |= named
    for path in found:
        inner = next((other for other in found if other.startswith(f"{path}.")), None)
        if inner is not None:
            raise UsageError(f"regions: {inner!r} is inside {path!r}", hint="name one of them")
    return found


@dataclass(eq=False)
class RegionsRecord(PlanRecord):
    """The record of a model planned by regions.

    Attributes:
        predicted_peak_bytes: predicted peak of the whole step: regions, memory between them, and memory from before.
        budget_bytes: budget of the whole step.
        overhead: extra time of the regions, as a share of their unplanned time.
        least_overhead: lower bound on the overhead of choices among the regions' plans.
        points: the chosen plans, by the path of the region.
        kinds: number of regions that were captured and planned; the others equal one of them.
        plans: number of plans of the step, for different sizes of inputs.
        kernels: the compiled kernels, in words; empty if eager's kernels run.
        left: reasons why regions run in eager mode, by path.
        away: calls whose inputs are on the host between their passes, with the inputs' bytes.
        saved_away: calls whose saved tensors are, with these tensors' bytes.
        measured_peak_bytes: peak of each measured step, counted like the predicted peak.
        beyond_bytes: largest excess of such a step over the predicted peak, under the present plans.
        whole_calls: number of the model's calls that ran as planned.
        fused: inductor's kernels run the plans.
        other_bytes: bytes of the optimizer's state and of free memory within the predicted peak.
        has_symbols: plans of the last step are for captures with symbols in place of sizes.
    """

    predicted_peak_bytes: int = 0
    budget_bytes: int = 0
    overhead: float = 0.0
    least_overhead: float = 0.0
    points: dict[str, CurvePoint] = field(default_factory=dict)
    kinds: int = 0
    plans: int = 0
    kernels: str = ""
    left: dict[str, str] = field(default_factory=dict)
    away: dict[str, int] = field(default_factory=dict)
    saved_away: dict[str, int] = field(default_factory=dict)
    measured_peak_bytes: list[int] = field(default_factory=list)
    beyond_bytes: int = 0
    whole_calls: int = 0
    fused: bool = False
    other_bytes: int = 0
    has_symbols: bool = False

    def save(self, path: str | Path) -> None:
        """Write the plans of the last step's blocks, for `planned(model, path)`.

        Args:
            path: such as "blocks.json".

        Raises:
            UsageError: nothing is planned yet, sizes have changed, or the file cannot be written.
        """
        if not self.points:
            raise UsageError("no blocks are planned yet, which a file could hold", hint="call the model once before")
        if self.has_symbols:
            raise UsageError(
                "sizes have changed between calls, and the last step's plans are for symbols: a file holds one size",
                hint="save the plans of a model that is called with inputs of this size alone",
            )
        figures = self.budget_bytes, self.predicted_peak_bytes, self.other_bytes
        write_file(Path(path), file_of_blocks(self.points, self.away, self.saved_away, self.fused, *figures))

    def snapshot(self, path: str | Path) -> None:
        """Refuse a snapshot: only blocks of the step are planned.

        Raises:
            UsageError: always.
        """
        hint = "planned(..., regions=None) plans the whole, where that can be captured"
        raise UsageError("a plan by blocks is no plan of the whole step, which a snapshot could show", hint=hint)

    @property
    def calls(self) -> int:
        """The number of calls that ran as planned."""
        return self.whole_calls

    @property
    def plan(self) -> str:
        """One line on the plan, for a report or a log."""
        parts = (self.away, "inputs"), (self.saved_away, "saved tensors")
        hosted = " and ".join(f"{format_bytes(sum(of.values()))} of {what}" for of, what in parts if of)
        hosted = hosted and f", {hosted} on the host between passes"
        return (
            f"{len(self.points)} regions ({_kinds(self.kinds)}) within {format_bytes(self.budget_bytes)}: predicted "
            f"peak of the step {format_bytes(self.predicted_peak_bytes)}, {format_share(self.overhead)} more time in "
            f"regions{hosted}{self.kernels and f', {self.kernels}'}; what lies between them runs as eager"
        )

    def __str__(self) -> str:
        """Return the report."""
        lines = [f"Planned for {self.budget}: {self.calls} calls as planned, {self.unplanned.total()} not"]
        if self.waited_ns.total():
            lines.append(f"  calls waited {waited(self.waited_ns)}")
        if self.plans > 1:
            lines.append(f"  {self.plans} plans for inputs of different sizes; the one that ran last:")
        if self.points:
            lines.append(f"  {self.plan}")
        if self.overhead > self.least_overhead:
            lines.append(f"  no other choice among their plans takes less than {format_share(self.least_overhead)}")
        if self.measured_peak_bytes:
            measured = ", ".join(map(format_bytes, self.measured_peak_bytes))
            lines.append(f"  measured peak of the first steps{self.without}: {measured}")
        lines += beyond(self.beyond_bytes, self.predicted_peak_bytes)
        for path, point in self.points.items():
            where = " on the host" if path in self.saved_away else ""
            hosted = f", {format_bytes(self.away[path])} of inputs on the host" if path in self.away else ""
            lines.append(
                f"    {path}: keeps {format_bytes(point.kept)}{where} between its passes{hosted}, "
                f"{format_share(point.planned.overhead)} more time"
            )
        lines += [f"    {path} is left to eager: {why}" for path, why in self.left.items()]
        lines += [f"  unplanned, {reason}: {count}" for reason, count in self.unplanned.items()]
        return "\n".join(lines)


class _Forward:
    """Stands for the forward method of a region.

    Copies and pickles of the region have the method itself.
    """

    def __init__(self, whole: RegionsCall, path: str) -> None:
        self._whole, self._path = whole, path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._whole.run_region(self._path, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of a module that is about to be filled: its class's own.
        return getattr, (self._whole.regions[self._path], "forward")


class AttachedRegions:
    """The attribute of a model that is planned by regions.

    Attributes:
        call: runs the model's calls.
    """

    def __init__(self, call: RegionsCall) -> None:
        self.call = call

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Let a copy of the model run by plans of its own.

        The plans begin with the copy's first call.
        """
        copied = memo.get(id(self.call.module))
        if isinstance(copied, nn.Module):
            set_call_instead(copied, partial(_first_call, copied, tuple(self.call.regions), self.call))

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Leave the plans out of pickles: loaded modules get new plans."""
        return type(None), ()


def _first_call(model: nn.Module, paths: Sequence[str], former: RegionsCall, *args: Any, **kwargs: Any) -> Any:
    options = {"fused": former.fused, "strict": former.strict}
    attach_regions(model, paths, former.asked, former.record.budget, **options, given=former.given)
    return model(*args, **kwargs)


def attach_regions(
    model: nn.Module,
    regions: str | Sequence[str | nn.Module],
    source: WithinBudget,
    budget: str,
    *,
    fused: bool = False,
    strict: bool = False,
    given: GivenBlocks | None = None,
) -> None:
    """Let parts of a model run as planned.

    One budget covers the whole.

    Args:
        model: the model, which is changed.
        regions: as for `regions_of`.
        source: source of plans, with the request and other memory.
        budget: budget, as the user gave it.
        fused: run inductor's kernels.
        strict: refuse a later step without plans that fit.
        given: plans of the regions from a file.

    Raises:
        UsageError: as in `regions_of`.
    """
    if isinstance(former := model.__dict__.get(_NAME), AttachedRegions):
        former.call.let_go()
    call = RegionsCall(model, regions_of(model, regions), source, budget, fused=fused, strict=strict, given=given)
    set_call_instead(model, call)
    model.__dict__[_NAME] = AttachedRegions(call)


def plan_blocks(
    source: WithinBudget, budget: str, fused: bool, strict: bool, model: nn.Module, refusal: GraphError
) -> Callable[[], None]:
    """Plan a model's repeated blocks, as the whole cannot be captured.

    Args:
        source: source of plans, with the request and other memory.
        budget: budget, as the user gave it.
        fused: run inductor's kernels.
        strict: refuse a later step without plans that fit.
        model: the model, planned as a whole, which is changed.
        refusal: error of the failed capture.

    Returns:
        A function that plans the model as a whole again.

    Raises:
        GraphError: `refusal`, if the model has no repeated blocks.
    """
    blocks = repeated_blocks(model)
    if not blocks:
        raise refusal
    whole = attached_call(model)
    detach(model)
    paths = [block for found in blocks.values() for block in found]
    attach_regions(model, paths, source, budget, fused=fused, strict=strict)
    count = sum(map(len, blocks.values()))
    named = ", ".join(f"{path}.*" for path in blocks)
    notify(
        logging.WARNING,
        f"the step is not planned as a whole, but by its {count} repeated blocks, {named}: {refusal.message}",
    )

    def back() -> None:
        model.__dict__.pop(_NAME).call.let_go()
        attach(model, whole)

    return back


def repeated_blocks(model: nn.Module) -> dict[str, list[str]]:
    """Return the paths of modules in each `nn.ModuleList` of a model.

    Lists within these modules are left out.
    """
    found: dict[str, list[str]] = {}
    inside: tuple[str, ...] = ()
    for path, part in model.named_modules():
        is_list = (
            isinstance(part, nn.ModuleList) and type(part).forward is nn.ModuleList.forward
        )  # has no call of its own
        if path and is_list and not path.startswith(inside or "\0"):
            blocks = [name for name, block in part.named_children() if not isinstance(block, _CONTAINERS)]
            if blocks:
                found[path] = [f"{path}.{name}" for name in blocks]
                inside += tuple(f"{block}." for block in found[path])
    return found


def regions_record(model: nn.Module) -> PlanRecord | None:
    """Return the record of a model planned by regions, or None."""
    attached = model.__dict__.get(_NAME)
    return attached.call.record if isinstance(attached, AttachedRegions) else None


class RegionsCall:
    """A model's call with parts that run as planned.

    Attributes:
        module: the model.
        asked: source of plans as requested.
        source: the same for one region, without transfers while a region runs.
        record: record of plans and calls.
        regions: the regions by path.
        fused: run inductor's kernels.
        strict: refuse a later step without plans that fit.
        given: plans from a file, which are run in place of new ones; None without a file.
    """

    def __init__(
        self,
        model: nn.Module,
        regions: Mapping[str, nn.Module],
        source: WithinBudget,
        budget: str,
        *,
        fused: bool = False,
        strict: bool = False,
        given: GivenBlocks | None = None,
    ) -> None:
        self.module = model
        self.asked = source
        self.source = source = replace(source, request=replace(source.request, offload=False))
        self.fused, self.strict, self.given = fused, strict, given
        self.record = RegionsRecord(budget, fused=fused)
        self.regions = dict(regions)
        self._captures: Captures | None = None
        self._dimensions: frozenset[Dimension] = frozenset()  # dimensions of inputs with different sizes so far
        self._sized: dict[Captured, SizedRegion] = {}
        self._sized_kinds: dict[SizedRegion, list[RegionKind]] = {}  # kinds whose plans were made for their sizes
        self._forwards = {path: part.forward for path, part in regions.items()}
        self._plans: dict[Inputs, _StepChoice] = {}  # by the arguments of the model
        self._step_choices: list[_StepChoice] = []  # as many on all ranks
        self._wants_another = False
        self._ranks = Ranks()
        self._plan: _StepChoice | None = None
        self._compiled = 0  # number of compiled plans of regions
        self._left: set[str] = set()  # regions that cannot be captured
        self._times: Counter[str] = Counter()  # number of calls of each region in this step
        self._rehearsal: Rehearsal | None = None
        self._hosted = HostedStep()
        self._staying: set[tuple[str, int]] = set()  # inputs that the caller holds: names of calls, and places
        self._link: Link | None = None
        self._watch = StepWatch()
        self._holding = Holding(source, self._watch, strict=strict)
        for path, part in regions.items():
            part.forward = _Forward(self, path)

    def let_go(self) -> None:
        """Let the regions run unplanned again, before new plans."""
        for path, part in self.regions.items():
            if getattr(self._forwards[path], "__func__", None) is type(part).forward:
                del part.__dict__["forward"]
            else:
                part.forward = self._forwards[path]

    def run_region(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Run a region as planned, in a checkpoint, or unchanged.

        A checkpoint is used while rehearsing.
        """
        forward, module = self._forwards[path], self.regions[path]
        if not module.training or not torch.is_grad_enabled() or path in self._left or torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        if self._ranks.groups:
            args, kwargs = pytree.tree_map(arrived, (args, kwargs))
        if self._rehearsal is not None:
            return self._rehearsal.call(path, module, forward, *args, **kwargs)
        self._times[path] += 1
        name = named_call(path, self._times[path])
        plan = self._plan
        if plan is None or name in plan.untrained:
            return forward(*args, **kwargs)
        if name not in plan.chosen:
            self.record.unplanned[f"{name}, which the rehearsal did not call: it runs in a checkpoint"] += 1
            return checkpointed(path, module, forward, args, kwargs)
        if not self._watch.left:
            return self._run_planned(plan, name, module, args, kwargs)
        self._watch.pause()
        try:
            return self._run_planned(plan, name, module, args, kwargs)
        finally:
            self._watch.resume()

    def _run_planned(
        self, plan: _StepChoice, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        kind, plan_index = plan.chosen[name]
        if not plan.away and not plan.saved_away:
            return kind.run(plan_index, module, args, kwargs)
        number, hosted = plan.step.paths.index(name), self._hosted
        leaves = pytree.tree_leaves((args, kwargs)) if name in plan.away else []
        going = [leaves[place] for place in plan.inputs_of[number]] if leaves else []
        saves = name in plan.saved_away
        with hosted.leaving(number, [value for value in going if can_leave(value)], saves=saves):
            result = kind.run(plan_index, module, args, kwargs)
        hosted.watch(number, result)
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model.

        Raises:
            RematError: see `planned`.
        """
        if torch.compiler.is_compiling():
            return _left_alone(self, args, kwargs)
        if (measured := self._watch.end()) is not None:
            self._hold(measured)
        reason = "without gradients" if not torch.is_grad_enabled() else None
        reason = reason or (None if self.module.training else "in eval mode")
        if reason is not None:
            self.record.unplanned[reason] += 1
            return own_call(self.module)(*args, **kwargs)
        self._check_eager()
        if is_distributed(self.module):
            check_regions_are_whole(self.regions)
            check_not_offloaded(self.module)
            self._ranks = self._ranks if self._ranks.groups else Ranks.of(self.module)
        else:
            check_not_sharded([self.module])
        self._take(self._plan_for(args, kwargs))
        self.record.whole_calls += 1
        self._times.clear()
        self._hosted = HostedStep()
        self._watch.begin(self._device(), [self.module], (args, kwargs))
        try:
            result = own_call(self.module)(*args, **kwargs)
        finally:
            self._watch.pause()
        self._watch.resume(result)
        return result

    def _check_eager(self) -> None:
        compiled = next((path for path, part in self.regions.items() if call_instead(part) is not None), None)
        if compiled is not None:
            raise UsageError(
                f"regions: {compiled!r} was compiled by its compile(), so it would run without its plan",
                hint="leave compile() out, or leave this part out of the regions",
            )

    def _device(self) -> str:
        return next((part.device.type for part in self.module.parameters()), "cpu")

    def _hold(self, measured: MeasuredStep) -> None:
        """Compare a measured step with the budget.

        If it is above, choose again with the missing bytes, or warn.
        """
        plan = self._plan
        assert plan is not None
        self.record.measured_peak_bytes.append(measured.peak_bytes)
        self.record.without = self._watch.without
        self.record.beyond_bytes = max(self.record.beyond_bytes, measured.peak_bytes - plan.peak)
        old = measured.gradient_bytes - plan.standing
        if old > plan.step.old_gradients and self._holding.is_above(measured, plan.budget):
            for other in self._step_choices:
                other.step = replace(other.step, old_gradients=max(other.step.old_gradients, old))
            self._wants_another = True
            self._holding.note_old_gradients(measured, plan.budget, old)
        elif self._holding.needs_another(replace(measured, gradient_bytes=0), plan.peak, plan.budget, [self.module]):
            self._wants_another = True

    def _choose_again(self) -> None:
        self._wants_another, self.record.beyond_bytes = False, 0
        chosen = [plan.chosen for plan in self._step_choices]
        for plan in self._step_choices:
            self._choose(plan)
        if chosen != [plan.chosen for plan in self._step_choices]:
            self._holding.tell_again()

    def _take(self, plan: _StepChoice) -> None:
        self._plan, record = plan, self.record
        record.predicted_peak_bytes, record.budget_bytes = plan.peak, plan.budget
        record.overhead, record.least_overhead = plan.overhead, plan.least_overhead
        record.kinds = len(set(plan.kinds))
        record.points = {name: kind.points[plan_index] for name, (kind, plan_index) in plan.chosen.items()}
        sizes = dict(zip(plan.step.paths, plan.step.inputs, strict=False))
        record.away = {name: sizes[name] for name in plan.step.paths if name in plan.away}
        record.saved_away = {name: point.kept for name, point in record.points.items() if name in plan.saved_away}
        record.other_bytes = plan.other_bytes
        record.has_symbols = any(kind.sized is not None for kind in plan.kinds)

    def _plan_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _StepChoice:
        """Return the plan for the model's arguments, new or earlier."""
        inputs = Inputs.of(args, kwargs, self._device())
        if inputs not in self._plans and (larger := self._larger(inputs)) is not None:
            self._plans[inputs] = larger
        is_new, is_another = self._ranks.most(inputs not in self._plans, self._wants_another)
        if is_another:
            self._choose_again()
        if is_new:
            plan = self._planned_step(args, kwargs, inputs)
            self._choose(plan)
            self._take(plan)
            notify(logging.INFO if self._plans else logging.WARNING, f"planned {self.record.plan}")
            self._plans[inputs] = plan
            self._step_choices.append(plan)
            self.record.plans = len(self._step_choices)
        return self._plans[inputs]

    def _larger(self, inputs: Inputs) -> _StepChoice | None:
        """Return a larger inputs' plan that can run these inputs.

        None if these inputs need a plan of their own.
        """
        found = [plan for plan in self._step_choices if inputs.is_within(plan.inputs, plan.dimensions)]
        plan = min(found, key=lambda plan: plan.inputs.numel, default=None)
        if plan is not None and plan.overhead > _WORTH and inputs.numel < _SMALLER * plan.inputs.numel:
            return None
        return plan

    def _planned_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Inputs) -> _StepChoice:
        """Rehearse a step, and plan each kind of region at several budgets.

        Regions that cannot be captured are left out.

        Raises:
            RematError: one rank fails; all ranks raise its error.
        """
        plan, refusal = None, None
        try:
            plan = self._planned_here(args, kwargs, inputs)
        except RematError as error:
            refusal = error
        self._ranks.all_or_none(refusal)
        assert plan is not None
        return self._agreed(plan)

    def _agreed(self, plan: _StepChoice) -> _StepChoice:
        """Return a plan that all ranks share, if their captures are equal."""
        if not self._ranks.groups:
            return plan
        order = list(dict.fromkeys(plan.kinds))
        structures = [(kind.values, [op.signature for op in kind.points[0].planned.graph.ops]) for kind in order]
        places = [order.index(kind) for kind in plan.kinds]
        schedules = [[point.planned.schedule for point in kind.points] for kind in order]
        moved = plan.step.inputs, plan.inputs_of
        offers = self._ranks.all(
            ((structures, moved), places, list(plan.step.moments.items()), plan.step.always, schedules)
        )
        same = all(offer[:2] == offers[0][:2] for offer in offers)
        if not same or any([at for at, _ in offer[2]] != [at for at, _ in offers[0][2]] for offer in offers):
            return plan
        for kind, taken in zip(order, offers[0][4], strict=True):
            kind.take(taken)
        moments = {at: max(dict(offer[2])[at] for offer in offers) for at in plan.step.moments}
        always = max(offer[3] for offer in offers)
        step = replace(plan.step, always=always, moments=moments, curves=[kind.points for kind in plan.kinds])
        return replace(plan, step=step, plain=step.plain, is_common=True)

    def _planned_here(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Inputs) -> _StepChoice:
        if self._captures is None:
            takes_sizes = self.source.takes_sizes and self.given is None
            self._captures = Captures(takes_sizes=takes_sizes, fused=self.fused)
        rehearsal, always, groups = self._rehearsed(args, kwargs, self._captures)
        names = [call.name for call in rehearsal.calls]
        if self.given is not None:
            self.given.check_calls(names)
        kinds: dict[int, RegionKind] = {}
        for group in groups:
            kind = self._kind(rehearsal.calls[group.calls[0]], group, [names[place] for place in group.calls])
            kinds.update(dict.fromkeys(group.calls, kind))
        ordered = [kinds[place] for place in range(len(rehearsal.calls))]
        step = WholeStep(always, rehearsal.moments, names, [kind.points for kind in ordered])
        if self.asked.request.offload and groups:
            assert self._link is not None, "every device profile has one"
            step = replace(step, inputs=[sum(hosted.values()) for hosted in rehearsal.hosted], link=self._link)
        if self.given is not None:
            self.given.check_copies(step)
        for former in self._step_choices:
            self._dimensions |= inputs.differing(former.inputs) or frozenset()
        dimensions = self._dimensions if self._captures.hold_elsewhere else frozenset()
        untrained = frozenset(rehearsal.untrained)
        places = [tuple(hosted) for hosted in rehearsal.hosted]
        standing = self.source.standing([self.module])
        return _StepChoice(inputs, dimensions, step, step.plain, ordered, untrained, standing, inputs_of=places)

    def _rehearsed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], captures: Captures
    ) -> tuple[Rehearsal, int, list[CallGroup]]:
        """Rehearse a step, and group the calls of its regions.

        This is repeated until no further region has to run in eager mode.

        Returns:
            The rehearsal, the bytes that are in memory at all times, and groups of equal calls.
        """
        refused: dict[int, GraphError] = {}
        while True:
            try:
                rehearsal, always = self._rehearse(args, kwargs)
            except RunsOnce as error:
                if self._ranks.groups:
                    raise
                self._leave({error.path: error.message})
                continue
            if not rehearsal.calls and rehearsal.untrained and not refused:  # they are frozen, for now
                return rehearsal, always, []
            if not rehearsal.calls:
                raise next(iter(refused.values()), None) or UsageError(
                    "regions: none of them was called in the first training step",
                    hint="name parts of the model that its forward pass calls, and that are trained",
                )
            if not self._settled(rehearsal.lasting):
                continue
            groups, refused = captures.groups(rehearsal.calls)
            left = {rehearsal.calls[place].path: refusal.message for place, refusal in refused.items()}
            left = {path: why for others in self._ranks.all(left) for path, why in others.items()}
            if not left and self._settled(_outputs_kept(rehearsal, groups)):
                return rehearsal, always, groups
            self._leave(left)

    def _settled(self, staying: Set[tuple[str, int]]) -> bool:
        """Note inputs that cannot leave for the host on any rank.

        Return whether all were known.
        """
        if not self.asked.request.offload:
            return True
        found = set[tuple[str, int]]().union(*self._ranks.all(set(staying)))
        is_known = found <= self._staying
        self._staying |= found
        return is_known

    def _leave(self, reasons: Mapping[str, str]) -> None:
        """Leave regions to eager mode from now on, and warn."""
        for path, why in reasons.items():
            if path not in self._left:
                self._left.add(path)
                self.record.left[path] = why
                notify(logging.WARNING, f"{path} is left to eager: {why}")

    def _choose(self, plan: _StepChoice) -> None:
        """Choose a plan for each region.

        Memory that steps used beyond a plan is left free if possible.

        Raises:
            RematError: no choice fits the budget with the user's reserve.
        """
        if self.given is not None:
            self._choose_given(plan, self.given)
            return
        reserved = self.source.reserve_bytes
        (free,) = self._ranks.most(reserved + self.source.missed_bytes)
        budget = self._budget_bytes(plan, reserved)
        if plan.is_common:
            budget = -self._ranks.most(-budget)[0]  # the smallest of all ranks

        def choose(step: WholeStep) -> ChosenPlans | None:
            choice = step.within(budget, free)
            if choice is None and free > reserved and (plan.chosen or step.within(budget, reserved) is not None):
                return step.tightest(free)
            if choice is None and self._step_choices and not self.strict:
                return step.tightest(free)
            return choice

        choice, refusal = self._compiled_choice(plan, choose, free)
        step = plan.step
        if refusal is None and choice is None:
            least, other_bytes = step.least(free), step.always + free
            share = larger_share(least, other_bytes, step.judged(plan.plain, free).peak_bytes - other_bytes)
            refusal = DoesNotFit(
                f"no plans of the regions fit a budget of {format_bytes(budget)} together: the least peak of the step "
                f"that was found is {format_bytes(least)}",
                hint=f'give a larger budget ({share}budget="min" takes the smallest that is found), or more regions',
            )
        self._ranks.all_or_none(refusal)
        assert choice is not None
        trace = step.replay(choice, free)
        is_above = trace.peak_bytes > budget
        may_be_above = free > reserved or (bool(self._step_choices) and not self.strict)
        if is_above and (not may_be_above or step.within(budget, free) is not None):
            refusal = InvalidSchedule(
                f"the plans that were chosen peak at {format_bytes(trace.peak_bytes)}, above the budget of "
                f"{format_bytes(budget)}",
                hint="please report it, with the model",
            )
        self._ranks.all_or_none(refusal)
        if is_above and free > reserved:
            self._holding.warn_of_tightest(trace.peak_bytes, budget, free - reserved)
        elif is_above:
            self._holding.tell_of_least(trace.peak_bytes, budget)
        self._use(plan, choice, trace, budget, free)

    def _choose_given(self, plan: _StepChoice, given: GivenBlocks) -> None:
        """Take the plans of a file.

        Raises:
            RematError: they cannot be compiled.
        """
        free = self.source.reserve_bytes
        choice, refusal = self._compiled_choice(plan, given.choice, free)
        self._ranks.all_or_none(refusal)
        assert choice is not None
        trace = plan.step.replay(choice, free)
        given.warn_if_above(trace.peak_bytes)
        self._use(plan, choice, trace, given.file.budget_bytes, free)

    def _use(self, plan: _StepChoice, choice: ChosenPlans, trace: Trace, budget: int, free: int) -> None:
        """Note a choice as the step's.

        Args:
            plan: the step.
            choice: the choice.
            trace: the judge's replay.
            budget: budget in bytes.
            free: bytes that are left free.
        """
        step, (places, least, away, saved_away) = plan.step, choice
        plain = sum(point.time for point in plan.plain)
        plan.peak, plan.budget = trace.peak_bytes, budget
        plan.other_bytes = self._state_bytes() + free
        plan.overhead = trace.time / plain - 1 if plain else 0.0
        plan.least_overhead = max(0.0, least / plain - 1) if plain else 0.0
        chosen = list(zip(plan.kinds, places, strict=True))
        plan.chosen = dict(zip(step.paths, chosen, strict=True))
        plan.away = frozenset(step.paths[place] for place in away)
        plan.saved_away = frozenset(step.paths[place] for place in saved_away)
        for kind in set(plan.kinds):
            kind.use(frozenset(plan_index for other, plan_index in chosen if other is kind))

    def _compiled_choice(
        self, plan: _StepChoice, choose: Callable[[WholeStep], ChosenPlans | None], free: int
    ) -> tuple[ChosenPlans | None, RematError | None]:
        """Choose a compiled plan for each region.

        Chosen plans are compiled, and the choice is repeated with their compiled peaks.

        Args:
            plan: the plan with the regions' plans.
            choose: function that chooses; without a choice, the plans of the least peak are compiled.
            free: bytes to leave free.

        Returns:
            The choice, and the error if it cannot be compiled here.
        """
        refusal: RematError | None = None
        while True:
            choice = choose(plan.step)
            if plan.is_common:  # as the first rank has chosen
                choice = self._ranks.all(choice)[0]
            new: set[tuple[RegionKind, int]] = set()
            if self.fused:
                places = (plan.step.smallest(free) if choice is None else choice).places
                new = {(kind, place) for kind, place in zip(plan.kinds, places, strict=True) if not kind.has(place)}
                if choice is None and not new:  # kernels of another plan may take less than the plan tells
                    new = {(kind, at) for kind in plan.kinds for at in range(len(kind.points)) if not kind.has(at)}
            try:
                for kind, plan_index in new if refusal is None else ():
                    self._compile(kind, plan_index)
            except RematError as error:
                refusal = error.with_traceback(None)
            if not self._ranks.most(bool(new) and refusal is None)[0]:
                return choice, refusal
            plan.step = replace(plan.step, curves=[kind.points for kind in plan.kinds])

    def _compile(self, kind: RegionKind, plan_index: int) -> None:
        """Compile one of the plans of a region."""
        with self.source.waiting.phase(COMPILING):
            self._compiled += kind.compile(plan_index)
        spent = self.source.waiting.spent_ns[COMPILING]
        self.record.waited_ns[COMPILING] = spent
        times = f"{self._compiled} {'plan' if self._compiled == 1 else 'plans'} compiled"
        self.record.kernels = f"with fused kernels ({times} in {format_time(spent, 'ns')})"

    def _budget_bytes(self, plan: _StepChoice, free: int) -> int:
        asked, step = self.source.request.budget, plan.step
        assert asked is not None
        if asked.device_bytes is not None:
            return asked.device_bytes
        if asked.share is None:
            if self.fused:
                _, refusal = self._compiled_choice(plan, lambda step: step.smallest(free), free)
                self._ranks.all_or_none(refusal)
            return plan.step.least(free)
        plain = step.judged(plan.plain, free).peak_bytes
        share = asked.share * (plain - step.always) + step.always if asked.of_activations else asked.share * plain
        self.source.granted = max(self.source.granted, int(share))
        return self.source.granted

    def _rehearse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Rehearsal, int]:
        """Run the step once with each region in a checkpoint.

        The run leaves no trace.
        """
        module = self.module
        rehearsal = Rehearsal(moves=self.asked.request.offload, staying=self._staying)
        parameters = parameters_at_rest(module)
        tensors = [*parameters, *module.buffers(), *pytree.tree_leaves((args, kwargs))]
        there = bytes_in(tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
        always = there + self._state_bytes() + self.source.standing([module])
        before = ModelState([module])
        self._rehearsal = rehearsal
        rehearsal.follow(gathered_parameters(module))
        try:
            with drawing_again(), gradients_kept(module) if self._ranks.groups else nullcontext(), rehearsal:
                returned = own_call(module)(*args, **kwargs)
                leaves = pytree.tree_leaves(_plain(returned))
                ends = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
                ends = losses_in(returned, ends)
                rehearsal.begin_backward(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
                if not ends:
                    raise UsageError(
                        "regions: nothing that the model returns needs a gradient",
                        hint="call it as in training, and return the loss, or what it is computed from",
                    )
                begins = [torch.ones_like(end) for end in ends]
                if self._ranks.groups:
                    torch.autograd.backward(ends, begins)
                else:
                    inputs = [part for part in module.parameters() if part.requires_grad]
                    # Gradients are held as in a step, and no hook on them runs.
                    gradients = torch.autograd.grad(ends, inputs, begins, allow_unused=True)
                    del gradients
                del ends, leaves, returned
        except CheckpointError as error:
            raise rehearsal.runs_once(error) from None
        finally:
            self._rehearsal = None
            before.restore()
            torch.clear_autocast_cache()  # the cache holds casts of the rehearsal
        return rehearsal, always

    def _state_bytes(self) -> int:
        """Return the bytes of the optimizer's state, and of gradients that are added to.

        Without an optimizer's name, a file's bytes count.
        """
        options = self.source.graph_options
        copies = OPTIMIZERS[options.optimizer or "sgd"] + options.accumulate
        trained = (part for part in parameters_at_rest(self.module) if part.requires_grad)
        counted = copies * bytes_in(trained) + self.source.state_bytes()
        return counted if counted or self.given is None else self.given.file.other_bytes

    def _kind(self, call: RegionCall, group: CallGroup, names: Sequence[str]) -> RegionKind:
        """Return the kind for a call's region, with its plans.

        The plans keep less and less, the plain one first; or they are those of a file.
        """
        region, sized = None, None
        if group.sizes is not None:
            region = self._sized_region(call, group)
            if (former := self._former_kind(region, group.values)) is not None:
                return former
            sized = group.sizes.at(group.values)
        captured, joint = (group.captured, Joint.of(group.captured)) if sized is None else (sized.captured, sized.joint)
        alone = replace(self.source, optimizer=None, reserve_bytes=0, missed_bytes=0, plans={})
        prepared = alone.prepared(joint, captured, [])
        self._link = prepared.link
        self.record.waited_ns.update(alone.waiting.spent_ns)
        given = None if self.given is None else self.given.schedules_for(names, prepared.graph)
        points = curve_of(alone, prepared, joint, given)
        function = shared_forward(self._forwards[call.path], call.module)
        kind = RegionKind(call.path, function, self._gradients(call), tuple(points))
        if group.sizes is not None and sized is not None and region is not None:
            plans = tuple(SizedSchedule(group.values, prepared.graph, point.planned.schedule) for point in points)
            kind.sized = SizedKind(region, group.sizes, sized, plans, group.values)
            self._sized_kinds.setdefault(region, []).append(kind)
            return kind
        kind.captured = captured if self.fused else None
        kind.forward_context, kind.at_backward = self._watch.looking, self._watch.backward_begins
        kind.at_forward = self._note_given
        kind.on_mismatch = partial(self._ran_unplanned, call.path)
        return kind

    def _note_given(self, given: list[Any]) -> None:
        if self._plan is not None and self._plan.saved_away:
            self._hosted.note_given(given)

    def _gradients(self, call: RegionCall) -> OutputGradients:
        """Return the outputs of a region that get a gradient."""
        return OutputGradients(at_rerun=self._watch.backward_begins, known=call.gradients)

    def _sized_region(self, call: RegionCall, group: CallGroup) -> SizedRegion:
        """Return the runner of regions of one capture at many sizes."""
        if group.captured not in self._sized:
            assert group.sizes is not None
            kernels = RegionKernels(group.sizes) if self.fused else None
            region = SizedRegion(call.path, group.function, self._gradients(call), group.seen, kernels)
            region.forward_context, region.at_backward = self._watch.looking, self._watch.backward_begins
            region.at_forward = self._note_given
            region.on_mismatch = partial(self._ran_unplanned, call.path)
            region.on_larger = partial(self._ran_larger, call.path)
            self._sized[group.captured] = region
        return self._sized[group.captured]

    def _former_kind(self, region: SizedRegion, values: Values) -> RegionKind | None:
        """Return an earlier kind with plans for similar sizes, at these sizes."""
        for kind in self._sized_kinds.get(region, ()):
            at = kind.at(values)
            here, there = (other.points[0].forward for other in (at, kind))
            if _NEAR * max(here, there) <= min(here, there):
                return at
        return None

    def _ran_unplanned(self, path: str) -> None:
        self._ran(f"{path} or a region like it, which is called otherwise than in the rehearsal", "its plain schedule")

    def _ran_larger(self, path: str) -> None:
        self._ran(f"{path} or a region like it, which is larger than in the rehearsal", "the plan for smaller sizes")

    def _ran(self, reason: str, by: str) -> None:
        if reason not in self.record.unplanned:
            notify(logging.WARNING, f"not within the budget: {reason}, runs by {by}")
        self.record.unplanned[reason] += 1


@dataclass(eq=False)
class _StepChoice:
    """The plans of a step's regions, and their choice.

    Attributes:
        inputs: inputs of the step.
        dimensions: dimensions of the inputs that may be smaller.
        step: facts about the step for the choice.
        plain: the plain plan of each region, before anything is compiled.
        kinds: kinds of the regions' calls.
        untrained: names of calls without any gradient.
        standing: bytes of gradients and buckets during the rehearsal.
        is_common: all ranks have the same plans, and the same choice.
        inputs_of: places of the inputs of each call that may be on the host between its passes.
        chosen: kind of each call, and the number of its plan, by name.
        away: names of the calls whose inputs are on the host between their passes.
        saved_away: names of the calls whose saved tensors are.
        peak: predicted peak in bytes.
        budget: budget in bytes.
        overhead: extra time of the regions, as a share of their unplanned time.
        least_overhead: lower bound on the overhead of choices among these plans.
        other_bytes: bytes of the optimizer's state and of free memory within the peak.
    """

    inputs: Inputs
    dimensions: frozenset[Dimension]
    step: WholeStep
    plain: Sequence[CurvePoint]
    kinds: Sequence[RegionKind]
    untrained: frozenset[str]
    standing: int
    is_common: bool = False
    inputs_of: Sequence[tuple[int, ...]] = ()
    chosen: Mapping[str, tuple[RegionKind, int]] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    saved_away: frozenset[str] = frozenset()
    peak: int = 0
    budget: int = 0
    overhead: float = 0.0
    least_overhead: float = 0.0
    other_bytes: int = 0


def _outputs_kept(rehearsal: Rehearsal, groups: Iterable[CallGroup]) -> set[tuple[str, int]]:
    """Return inputs of calls that are outputs of earlier calls.

    Only inputs count whose producing call reads them in its backward pass.
    """
    reading: set[int] = set()
    for group in groups if any(rehearsal.makers) else ():
        joint = Joint.of(group.captured) if group.sizes is None else group.sizes.at(group.values).joint
        returned = {storage.name for storage in joint.returned}
        ops = [op for op in graph_of(joint, "region").ops if op.phase is Phase.BACKWARD and op.type != BOUNDARY_TYPE]
        if any(not returned.isdisjoint(op.inputs) for op in ops):
            reading.update(group.calls)
    named = zip(rehearsal.calls, rehearsal.makers, strict=True)
    return {(call.name, at) for call, makers in named for at, maker in makers.items() if maker in reading}


def curve_of(
    source: WithinBudget, prepared: Prepared, joint: Joint, given: Iterable[Schedule] | None = None
) -> list[CurvePoint]:
    """Return plans of a region that keep less and less, the plain one first.

    Args:
        source: source of plans for the region alone.
        prepared: graph of the region.
        joint: the captured region.
        given: schedules in place of new ones, if any.
    """
    outputs = sum(storage.bytes for storage in joint.returned)
    plain = CurvePoint.of(prepared.graph, plain_run(prepared.graph), outputs)
    floor = _kept_in_any_case(prepared.graph)
    if given is not None:
        return [plain, *map(plain.at, given)]
    points = [plain]
    for share in _SHARES:
        kept = floor + int(share * max(0, plain.kept - floor))
        schedule = _plan_that_keeps(source, prepared, kept + 2 * outputs, plain.planned.predicted_peak_bytes)
        if schedule is not None:
            points.append(plain.at(schedule))
    return points


def _plan_that_keeps(source: WithinBudget, prepared: Prepared, kept: int, peak: int) -> Schedule | None:
    """Return a plan of a region with a limit on kept bytes.

    `kept` bytes may stay between the passes, without memory from before.

    A planner knows one limit for all moments, so the boundary between the passes counts the rest as workspace.
    """
    graph, request = prepared.graph, source.request
    rest = peak - graph.fixed_bytes - kept
    ops = tuple(op.edited(workspace_bytes=max(0, rest)) if op.type == BOUNDARY_TYPE else op for op in graph.ops)
    chosen = request.chosen
    if chosen.has("time_limit") and "time_limit" not in chosen.options:
        request = replace(request, planner=chosen.with_options({"time_limit": _PLAN_SECONDS}))
    limited = replace(prepared, graph=graph.edited(ops=ops).checked())
    within = replace(source, request=request.at(peak))
    key = within.key(limited)
    try:
        return (within.kept(key, limited) or within.new_plan(key, limited)).schedule
    except DoesNotFit:
        return None


def _kept_in_any_case(graph: Graph) -> int:
    """Return the bytes that every plan keeps for the backward pass.

    No op may recompute these tensors.
    """
    read = {name for op in graph.ops if op.phase is Phase.BACKWARD for name in op.inputs}
    once = (op for op in graph.ops if op.phase is Phase.FORWARD and not op.recomputable and op.type != BOUNDARY_TYPE)
    return sum(graph.tensors[name].bytes for op in once for name in op.outputs if name in read)


@torch.compiler.disable(reason="plans run its parts")  # type: ignore[no-untyped-call,untyped-decorator]
def _left_alone(call: RegionsCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return call(*args, **kwargs)


def _kinds(count: int) -> str:
    return f"{count} {'kind' if count == 1 else 'kinds'}"


def _plain(returned: Any) -> Any:
    return dict(returned) if isinstance(returned, Mapping) else returned
