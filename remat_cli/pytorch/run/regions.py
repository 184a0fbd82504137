"""Regions: parts of a model that are captured and planned alone.

One budget covers the whole step.

Code between regions runs in eager mode, so it may branch on data, index by masks and print. In the first training call
a rehearsal runs the step once with each region in `torch.utils.checkpoint`, and sees the memory between them. Each
distinct region is planned several times, to keep less and less. An integer program chooses one of these plans for each
region at the least time. At every moment the tensors kept by regions, the memory between regions, and the peak of the
running region must fit the budget.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

from remat_cli.errors import GraphError, UsageError
from remat_cli.pytorch.capture.regions import regions_of, repeated_blocks
from remat_cli.pytorch.memory.hosted import HostedStep, can_leave
from remat_cli.pytorch.memory.shards import (
    arrived,
    check_not_offloaded,
    check_regions_are_whole,
    has_plain_parameters,
    is_distributed,
)
from remat_cli.pytorch.memory.watch import StepWatch
from remat_cli.pytorch.plan.budget_keeper import BudgetKeeper
from remat_cli.pytorch.plan.budget_source import BudgetSource
from remat_cli.pytorch.plan.given_blocks import GivenBlocks
from remat_cli.pytorch.plan.planned_step import PlannedStep
from remat_cli.pytorch.plan.record import PlanRecord, notify
from remat_cli.pytorch.plan.region_record import RegionsRecord
from remat_cli.pytorch.plan.region_request import RegionRequest
from remat_cli.pytorch.plan.region_runner import RegionHooks
from remat_cli.pytorch.plan.rehearsal import FillsCache, checkpointed, named_call
from remat_cli.pytorch.plan.step_plans import StepPlans
from remat_cli.pytorch.run.attached import attach, detach
from remat_cli.pytorch.run.call import PlannedCall, check_not_sharded, left_alone, why_unplanned
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.modules import call_instead, own_call, set_call_instead

_NAME = "_remat_regions"
# The argument by which models of transformers fill no cache of keys and values.
_NO_CACHE = {"use_cache": False}


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
        return getattr, (self._whole.request.regions[self._path], "forward")


class AttachedRegions:
    """The attribute of a model that is planned by regions.

    Attributes:
        call: runs the model's calls.
    """

    def __init__(self, call: RegionsCall) -> None:
        self.call = call

    def __deepcopy__(self, memo: dict[int, Any]) -> _FirstCall | None:
        """Let a copy of the model run by plans of its own."""
        return _FirstCall.of_copy(self.call.request, memo, self.call.request.module)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Leave the plans out of pickles: loaded modules get new plans."""
        return type(None), ()


class _FirstCall:
    """The attribute of a copy, whose parts are not there yet: its first call plans it."""

    def __init__(self, model: nn.Module, former: RegionRequest) -> None:
        self._model, self._former = model, former
        set_call_instead(model, self)

    @classmethod
    def of_copy(cls, former: RegionRequest, memo: dict[int, Any], original: nn.Module) -> _FirstCall | None:
        copied = memo.get(id(original))
        return cls(copied, former) if isinstance(copied, nn.Module) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        former = self._former
        attach_regions(self._model, tuple(former.regions), former.asked.for_copy(), given=former.given)
        return self._model(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _FirstCall | None:
        return self.of_copy(self._former, memo, self._model)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return type(None), ()


def attach_regions(
    model: nn.Module,
    regions: str | Sequence[str | nn.Module],
    source: BudgetSource,
    *,
    given: GivenBlocks | None = None,
) -> None:
    """Let parts of a model run as planned.

    One budget covers the whole.

    Args:
        model: the model, which is changed.
        regions: as for `regions_of`.
        source: source of plans, with the request and other memory.
        given: plans of the regions from a file.

    Raises:
        UsageError: as in `regions_of`.
    """
    if isinstance(former := model.__dict__.get(_NAME), AttachedRegions):
        former.call.let_go()
    request = RegionRequest(model, regions_of(model, regions), source, given)
    call = RegionsCall(request)
    set_call_instead(model, call)
    model.__dict__[_NAME] = AttachedRegions(call)


def plan_blocks(whole: PlannedCall, refusal: GraphError) -> Callable[[], None]:
    """Plan a model's repeated blocks, as the whole cannot be captured.

    Args:
        whole: the call of the model, planned as a whole; the model is changed.
        refusal: error of the failed capture.

    Returns:
        A function that plans the model as a whole again.

    Raises:
        GraphError: `refusal`, if the model has no repeated blocks.
    """
    model, source = whole.module, whole.source
    assert model is not None
    assert isinstance(source, BudgetSource)
    blocks = repeated_blocks(model)
    if not blocks:
        raise refusal
    detach(model)
    paths = [*chain.from_iterable(blocks.values())]
    attach_regions(model, paths, source)
    named = ", ".join(f"{path}.*" for path in blocks)
    notify(
        logging.WARNING,
        f"the step is not planned as a whole, but by its {len(paths)} repeated blocks, {named}: {refusal.message}",
    )

    def back() -> None:
        model.__dict__.pop(_NAME).call.let_go()
        attach(model, whole)

    return back


def regions_record(model: nn.Module) -> PlanRecord | None:
    """Return the record of a model planned by regions, or None."""
    attached = model.__dict__.get(_NAME)
    return attached.call.record if isinstance(attached, AttachedRegions) else None


class RegionsCall:
    """A model's call with parts that run as planned.

    Attributes:
        request: what the user asked for.
        record: record of plans and calls.
    """

    def __init__(self, request: RegionRequest) -> None:
        self.request = request
        self.record = RegionsRecord(request.source.budget_text, fused=request.source.fused, splits=request.may_split)
        self._watch = StepWatch()
        hooks = RegionHooks(
            self._watch.looking, self._note_given, self._watch.backward_begins, self._ran_unplanned, self._ran_larger
        )
        keeper = BudgetKeeper(request.source, self._watch, calls=request.asked.calls)
        self._plans = StepPlans(request, self.record, keeper, hooks)
        self._plan: PlannedStep | None = None
        self._times: Counter[str] = Counter()  # number of calls of each region in this step
        self._hosted = HostedStep()
        self._leaves_cache = False  # whether training calls are given `_NO_CACHE`
        for path, part in request.regions.items():
            part.forward = _Forward(self, path)

    def let_go(self) -> None:
        """Let the regions run unplanned again, before new plans."""
        for path, part in self.request.regions.items():
            forward = self.request.forwards[path]
            if getattr(forward, "__func__", None) is type(part).forward:
                del part.__dict__["forward"]
            else:
                part.forward = forward

    def run_region(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Run a region as planned, in a checkpoint, or unchanged.

        A checkpoint is used while rehearsing.
        """
        forward, module = self.request.forwards[path], self.request.regions[path]
        rehearsing = self._plans.rehearsing
        is_left = path in rehearsing.left or torch.compiler.is_compiling()
        if is_left or not module.training or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if self.request.ranks.groups:
            args, kwargs = pytree.tree_map(arrived, (args, kwargs))
        if rehearsing.current is not None:
            return rehearsing.current.call(path, module, forward, *args, **kwargs)
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
        self, plan: PlannedStep, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        kind, plan_index = plan.chosen[name]
        self.record.note_block(name)
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
            return left_alone(self, args, kwargs)
        module = self.request.module
        if (measured := self._watch.end()) is not None:
            assert self._plan is not None
            self.record.without = self._watch.without
            self._plans.hold(measured, self._plan)
        if (reason := why_unplanned([module])) is not None:
            self.record.unplanned[reason] += 1
            return own_call(module)(*args, **kwargs)
        self._check_eager()
        if self.request.asked.begins_step():
            self._plans.choose_again()
        if not has_plain_parameters(module):  # one look at the parameters, where the check takes several
            self._check_shards()
        self._plan, kwargs = self._plan_without_cache(args, kwargs)
        self.record.whole_calls += 1
        self._times.clear()
        self._hosted = HostedStep()
        self._watch.begin(self.request.device, [module], (args, kwargs))
        try:
            result = own_call(module)(*args, **kwargs)
        finally:
            self._watch.pause()
        self._watch.resume(result)
        return result

    def _plan_without_cache(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[PlannedStep, dict[str, Any]]:
        """Return the plan of a call, and its arguments.

        A model that fills a cache because nobody has said otherwise fills none.
        """
        if self._leaves_cache:
            return self._plans.plan_for(args, {**_NO_CACHE, **kwargs}), {**_NO_CACHE, **kwargs}
        try:
            return self._plans.plan_for(args, kwargs), kwargs
        except FillsCache:
            takes = inspect.signature(self.request.module.forward)
            said = takes.bind_partial(*args, **kwargs).arguments
            if not _NO_CACHE.keys() <= takes.parameters.keys() or not _NO_CACHE.keys().isdisjoint(said):
                raise
        without = {**kwargs, **_NO_CACHE}
        plan = self._plans.plan_for(args, without)
        self._leaves_cache = True
        notify(logging.INFO, "training calls are given use_cache=False, as no plan knows of the tensors in a cache")
        return plan, without

    def _check_shards(self) -> None:
        module = self.request.module
        if not is_distributed(module):
            check_not_sharded([module])
            return
        check_regions_are_whole(self.request.regions)
        check_not_offloaded(module)
        self.request.ranks.meet(module)

    def _check_eager(self) -> None:
        compiled = next((path for path, part in self.request.regions.items() if call_instead(part) is not None), None)
        if compiled is not None:
            raise UsageError(
                f"regions: {compiled!r} was compiled by its compile(), so it would run without its plan",
                hint="leave compile() out, or leave this part out of the regions",
            )

    def _note_given(self, given: list[Any]) -> None:
        if self._plan is not None and self._plan.saved_away:
            self._hosted.note_given(given)

    def _ran_unplanned(self, path: str) -> None:
        self._ran(f"{path} or a region like it, which is called otherwise than in the rehearsal", "its plain schedule")

    def _ran_larger(self, path: str) -> None:
        self._ran(f"{path} or a region like it, which is larger than in the rehearsal", "the plan for smaller sizes")

    def _ran(self, reason: str, by: str) -> None:
        if reason not in self.record.unplanned:
            notify(logging.WARNING, f"not within the budget: {reason}, runs by {by}")
        self.record.unplanned[reason] += 1
