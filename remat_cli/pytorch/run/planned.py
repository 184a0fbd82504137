"""`planned`: a model trained within a budget; `plan_of`: its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from remat_cli.config import GraphOptions, Request, named_planner
from remat_cli.errors import UsageError
from remat_cli.formats.blocks_json import holds_blocks
from remat_cli.pytorch.capture.optimizer import checked_optimizer
from remat_cli.pytorch.capture.regions import block_paths
from remat_cli.pytorch.plan.budget_source import BudgetSource, default_profile
from remat_cli.pytorch.plan.file_source import FileSource
from remat_cli.pytorch.plan.given_blocks import GivenBlocks
from remat_cli.pytorch.plan.plan_folder import PlanFolder
from remat_cli.pytorch.plan.record import PlanRecord
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.pytorch.plan.updating_source import check_update, updating_source
from remat_cli.pytorch.run.attached import attach, attached_record
from remat_cli.pytorch.run.call import PlannedCall
from remat_cli.pytorch.run.regions import attach_regions, plan_blocks, regions_record
from remat_cli.pytorch.unstable.modules import uncompiled
from remat_cli.units import BudgetSpec, format_bytes, parse_budget, parse_bytes

Model = TypeVar("Model", bound=Callable[..., Any])

_ONE_MODULE = "regions are parts of one torch.nn.Module"
_ONE_OF_BOTH = "planned(model, 'schedule.json') or planned(model, budget='8GB')"


def planned(
    model: Model,
    schedule: str | Path | None = None,
    *,
    budget: int | str | None = None,
    optimizer: str | torch.optim.Optimizer | None = None,
    accumulate: bool = False,
    planner: str = "auto",
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    measurements: str | Path | None = None,
    offload: bool = False,
    link_bandwidth: str | float | None = None,
    plans: str | Path | None = None,
    reserve: int | str = 0,
    calls: int = 1,
    regions: str | Sequence[str | nn.Module] | None = "auto",
    fused: bool = False,
    split: bool = False,
    strict: bool = False,
    update: bool | str = False,
) -> Model:
    """Return `model` with passes that follow a plan.

    The gradients are the same.

    Calls under `torch.no_grad()`, and calls of a module in `eval()`, run unplanned. Other calls run as planned, or
    raise an error. The whole call must be one graph for `torch.compile(fullgraph=True)`.

    Args:
        model: a module, which is changed and given back; or a function that computes the loss, modules among its
            arguments or not. Of a `DistributedDataParallel`, the module in it is planned.
        schedule: a file for this model and these sizes, which `remat plan FILE.py:NAME` has written; or, by blocks,
            `plan_of(model).save(...)`.
        budget: instead of a schedule: total device memory, as "8GB", "80%" (of the plain run's peak), "60% of
            activations", "min", or in bytes. It is planned when a graph is first captured. Where sizes differ between
            calls, a plan is carried over to other sizes at which the judge finds that it fits, and one is made where
            none fits; a share is one of the largest plain peak so far. It counts parameters, buffers, inputs, gradients
            and activations, and the optimizer's state if that is named.
        optimizer: whose state is in memory: itself, or its name, such as "adamw".
        accumulate: gradients are in memory before the step, which adds to them.
        planner: which planner makes the plan.
        options: of the planner, such as {"time_limit": 60}; without it, 3 seconds for up to 500 ops, more for more; a
            search for "min" asks for many plans.
        device: device profile that gives ops their times, such as "h100". By default each kernel is run twice before
            anything is planned, for its time and its workspace; with a profile, for its workspace.
        measurements: a file that `remat measure` has written for these sizes, to be used instead.
        offload: plans may move tensors to the host and back.
        link_bandwidth: of the link to the host, such as "12GB/s"; by default the device profile's.
        plans: a folder in which plans are kept between runs of Python.
        reserve: what is to be left free of the budget, as "2GB" or in bytes, for what the model does not see. The first
            steps measure that, too, and may make a new plan.
        calls: number of calls before a backward pass, such as 3 for three microbatches in flight, or the two views of
            a contrastive loss. The budget holds for all of them, and a share of it is of their plain run. It goes
            without a schedule, offload, split and, for the whole model, fused.
        regions: blocks of the model that are captured and planned alone, such as "layers.*": paths, patterns of paths,
            or modules. What lies between them runs as eager. They share the budget; what else the step needs is seen in
            a rehearsal of the first training call, which leaves nothing behind. "auto": none where the whole step can
            be captured, else what the `ModuleList`s of the model hold, and a warning says so. None: the whole step, or
            a refusal.
        fused: run inductor's fused kernels, which torch.compile runs, instead of eager's. The plan is compiled before
            the first step, its peak is read from the kernels, and it is corrected: at most three compilations, six
            with offloading (one of a schedule, which must have been planned with `--fused`). Of blocks, the plans that
            are chosen are compiled, once for each kind of block. From the second size on, kernels are compiled with
            symbols, once for all sizes. With split, equal parts are compiled once, and random numbers are eager's.
        split: run regions of the step, sets of ops such as the loss head, in parts where the budget needs it or it
            takes less time; of a model planned by blocks, regions of each block. Results are those of the step to
            rounding. With fused kernels, and by blocks, each shape of the inputs is captured and planned by itself.
        strict: where no plan fits a later step, as layers are unfrozen or inputs grow, refuse it. Without it, the plan
            of the least peak runs, and a warning says by how much it is above the budget.
        update: plan the optimizer's step, too, whose bits stay the same. `optimizer.step()` stays in the loop. True:
            parameters are updated in the backward pass where the budget needs it and nothing reads gradients before
            the step, else a few at a time in `optimizer.step()`. "step" and "backward" ask for one of the two. With
            offload, the optimizer's state may wait on the host between updates.

    Raises:
        UsageError: neither or both of schedule and budget are given, or another argument is wrong; when called: this
            torch is not supported, or the model is sharded.
        GraphError: when called: the model cannot be captured, or the schedule is for another graph.
        DoesNotFit: when called: no plan fits the budget; says what the floor is, and why.
    """
    if not callable(model):
        raise UsageError(
            f"planned() was given a {type(model).__name__}, which cannot be called",
            hint="give it a torch.nn.Module, or a function that computes the loss",
        )
    if (schedule is None) == (budget is None):
        raise UsageError("planned() needs a schedule or a budget, not both", hint=_ONE_OF_BOTH)
    if schedule is not None and calls != 1:
        raise UsageError(
            "a schedule from a file is for one call before a backward pass",
            hint="give a budget instead, or leave calls out",
        )
    within = _within(model)
    check_update(update, optimizer, schedule)
    source: ScheduleSource
    source_for = partial(
        source_within,
        optimizer=optimizer,
        accumulate=accumulate,
        planner=planner,
        options=options,
        device=device,
        measurements=measurements,
        link_bandwidth=link_bandwidth,
        plans=plans,
        reserve=reserve,
        calls=calls,
        split=split,
        fused=fused,
        strict=strict,
    )
    if schedule is not None and holds_blocks(_path(schedule, "schedule")):
        _check_split(split, schedule)
        given = GivenBlocks.at(_path(schedule, "schedule"), fused=fused)
        module, blocks = _regions_by(given, within, regions)
        as_asked = replace(source_for("min", offload=given.file.offloads), budget_text=str(schedule))
        attach_regions(module, blocks, as_asked, given=given)
        return model
    if schedule is not None:
        from_file = source = FileSource.at(_path(schedule, "schedule"), fused=fused, strict=strict)
        offload = from_file.file.schedule.has_transfers
    else:
        assert budget is not None
        source = updating_source(source_for(budget, offload=offload), within, update)
    _check_split(split, schedule)
    if fused and offload and regions == "auto" and isinstance(within, nn.Module) and isinstance(source, BudgetSource):
        # Copies between blocks cut no fused kernels, those within the whole do.
        regions = block_paths(within) or None
    if regions is not None and regions != "auto":
        _plan_by_regions(within, regions, source)
        return model
    call = PlannedCall(within, source)
    if regions == "auto" and isinstance(source, BudgetSource):
        call.fallback = plan_blocks
    if isinstance(within, nn.Module):
        attach(within, call)
        return model
    return update_wrapper(call, model)  # type: ignore[return-value]


def _check_split(split: bool, schedule: object) -> None:
    """Check that the options go with split.

    Raises:
        UsageError: something else is.
    """
    if not isinstance(split, bool):
        raise UsageError(f"split is {split!r}", hint="give True or False")
    if split and schedule is not None:
        raise UsageError(
            "a schedule from a file says itself what it runs in parts", hint="plan it with --split, and leave split out"
        )


def source_within(
    budget: int | str,
    *,
    optimizer: str | torch.optim.Optimizer | None = None,
    planner: str = "auto",
    options: Mapping[str, Any] | None = None,
    plans: str | Path | None = None,
    reserve: int | str = 0,
    calls: int = 1,
    fused: bool = False,
    strict: bool = False,
    **settings: Any,
) -> BudgetSource:
    """Return a source of plans within a budget.

    Arguments are those of `planned`.

    Args:
        settings: fields of `Request` and `GraphOptions`, by name; each takes those that are its own.

    Raises:
        UsageError: an argument is wrong.
    """
    checked = None if optimizer is None else checked_optimizer(optimizer)
    name, itself = (checked, None) if isinstance(checked, str) else (None, checked)
    paths = {key: settings[key] for key in ("device", "measurements") if settings.get(key) is not None}
    said = {**settings, "optimizer": name, **{key: str(_path(value, key)) for key, value in paths.items()}}
    for_graph = GraphOptions.of(said if paths else {**said, "device": default_profile()})
    for_graph.check()
    chosen = named_planner(str(planner), "planner").with_options(_options(options), "options")
    request = Request.of({**settings, "budget": _budget(budget), "planner": chosen})
    request.check()
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 1:
        raise UsageError(f"calls: {calls!r} is no number of calls", hint="give the calls before a backward pass, as 3")
    if calls > 1 and (request.offload or request.split):
        raise UsageError(
            f"plans for {calls} calls before a backward pass recompute alone",
            hint=f"leave {'offload' if request.offload else 'split'} out, or calls",
        )
    reserve_bytes, budget_bytes = _reserve(reserve), _budget(budget).device_bytes
    if budget_bytes is not None and reserve_bytes >= budget_bytes:
        raise UsageError(
            f"reserve: {format_bytes(reserve_bytes)} leave nothing of a budget of {format_bytes(budget_bytes)}",
            hint="reserve less, or give a larger budget",
        )
    return BudgetSource(
        request,
        for_graph,
        optimizer=itself,
        folder=PlanFolder(None if plans is None else _path(plans, "plans")),
        measures="measurements" not in paths,
        times_given="device" in paths,
        reserve_bytes=reserve_bytes,
        fused=bool(fused),
        strict=bool(strict),
        counts_work=chosen.options.keys().isdisjoint(("time_limit", "work_limit")),
        budget_text=str(budget),
        calls=calls,
    )


def _plan_by_regions(model: Any, regions: str | Sequence[str | nn.Module], source: ScheduleSource) -> None:
    if not isinstance(source, BudgetSource):
        raise UsageError(
            "the file has the schedule of a whole step, which does not go with regions",
            hint="leave regions out; or give a file of blocks' plans, which plan_of(model).save(...) writes",
        )
    if not isinstance(model, nn.Module):
        raise UsageError(_ONE_MODULE, hint="planned(model, budget='8GB', regions='layers.*')")
    attach_regions(model, regions, source)


def _regions_by(
    given: GivenBlocks, model: Any, regions: str | Sequence[str | nn.Module] | None
) -> tuple[nn.Module, str | Sequence[str | nn.Module]]:
    """Return the model and its regions, those of a file unless others are named.

    Raises:
        UsageError: the model is no module or lacks a block, or the whole step is asked for.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(_ONE_MODULE, hint=f"give planned() the module whose blocks {given.file.path} has plans for")
    if regions is None:
        raise UsageError(
            f"{given.file.path} has plans of blocks, and regions=None asks for the whole step", hint="leave regions out"
        )
    return model, given.paths_in(model) if regions == "auto" else regions


def _reserve(size: int | str) -> int:
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise UsageError(f"reserve {size!r} is no size", hint="give bytes as an int, or text such as '2GB'")
    try:
        return parse_bytes(str(size))
    except UsageError as error:
        raise UsageError(f"reserve: {error.message}", hint=error.hint) from None


def _path(given: object, name: str) -> Path:
    if not isinstance(given, str | Path):
        raise UsageError(f"{name}: {given!r} is no path", hint="give text, or a pathlib.Path")
    return Path(given)


def _options(given: object) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"options: {given!r} is no mapping", hint='give {"time_limit": 60}')
    return given or {}


def _budget(budget: int | str) -> BudgetSpec:
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise UsageError(f"budget {budget!r} is no size", hint="give bytes as an int, or text such as '8GB'")
    return parse_budget(str(budget))


def _within(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return the model inside of `DistributedDataParallel`.

    Its wrapper does more than compute, and cannot be captured.
    """
    while isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    return model


def plan_of(model: Callable[..., Any]) -> PlanRecord:
    """Return the record of a model's plan and calls.

    `print` shows the record as a small report.

    Args:
        model: the argument of `planned`, or its result.

    Raises:
        UsageError: the model is not planned.
    """
    within = _within(model)
    if (inside := uncompiled(within)) is not within:  # torch.compile(planned(model))
        within = _within(inside)
    record = getattr(model, "record", None)
    if isinstance(within, nn.Module):
        record = regions_record(within) or attached_record(within)
    if not isinstance(record, PlanRecord):
        raise UsageError(
            f"nothing is planned for this {type(model).__name__}", hint="call plan_of on what planned() has returned"
        )
    return record
