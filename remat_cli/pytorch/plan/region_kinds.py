"""Kinds of regions that share one capture by torch.

Each kind is captured, measured and planned once.

The guards of torch.compile decide whether two regions are of one kind: they check all that a capture depends on, such
as shapes, element types, numbers among the attributes, the mode, and hooks on parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from remat_cli.core.schedule import Schedule
from remat_cli.errors import GraphError
from remat_cli.pytorch.capture.capture_errors import explained
from remat_cli.pytorch.capture.joint_capture import Captured, GuardedCaptures
from remat_cli.pytorch.capture.outputs import OutputGradients
from remat_cli.pytorch.capture.sizes import SizedJoint, Sizes, Values
from remat_cli.pytorch.capture.step import Step
from remat_cli.pytorch.capture.weightless import with_fake_tensors
from remat_cli.pytorch.memory.shards import plain_copy
from remat_cli.pytorch.plan.block_step import CurvePoint
from remat_cli.pytorch.plan.described import Described, DescribedShard
from remat_cli.pytorch.plan.region_curve import RegionGraphs
from remat_cli.pytorch.plan.region_runner import RegionPlan, RegionRunner
from remat_cli.pytorch.plan.rehearsal import RegionCall
from remat_cli.pytorch.plan.sized_memory import resized
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.fakes import NO_DATA, FakeTensorMode
from remat_cli.pytorch.unstable.front_end import SeenSizes
from remat_cli.pytorch.unstable.joint_graphs import shards_take_sizes
from remat_cli.splitting import Split


def shared_forward(forward: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    """Return a forward function for any module of a class.

    It takes the module first. A module's own forward serves this module alone.
    """
    if isinstance(forward, MethodType) and forward.__self__ is module and isinstance(forward.__func__, FunctionType):
        return forward.__func__

    def own(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return own


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another.

    torch traces its own functions only if others call them.
    """

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(module, *args, **kwargs)

    return call


@dataclass(eq=False)
class CallGroup:
    """Calls of regions with the same capture and sizes.

    Attributes:
        calls: places of the calls.
        captured: joint graph of the calls.
        sizes: sizes that may differ in other calls.
        values: the sizes.
        seen: sizes that torch has seen.
    """

    calls: list[int]
    captured: Captured
    sizes: Sizes
    values: Values
    seen: SeenSizes


class Captures:
    """Groups calls of regions by their capture.

    Captures are made on copies without data.

    Sizes that differ between steps become symbols in one capture for all steps.

    Attributes:
        hold_elsewhere: the last capture holds at other sizes, too.
    """

    def __init__(self, *, takes_sizes: bool, fused: bool = False) -> None:
        """Begin with no step.

        Args:
            takes_sizes: capture symbols.
            fused: joint graphs have the ops that inductor fuses.
        """
        self.hold_elsewhere = False
        self._takes_sizes = takes_sizes
        self._fused = fused
        self._former: dict[str, RegionCall] = {}  # of the step before, by name
        self._guarded: dict[object, GuardedCaptures] = {}  # that take sizes, by function and place
        self._sizes: dict[Captured, Sizes] = {}

    def groups(self, calls: Sequence[RegionCall]) -> tuple[list[CallGroup], dict[int, GraphError]]:
        """Group the calls of a step.

        Returns:
            Groups of equal calls, and the errors of other calls by place.
        """
        former = [self._former.get(call.name, call) for call in calls]
        twins = _twins(calls)
        given = [
            (twin, _arguments(call), _arguments(before))
            for twin, call, before in zip(twins, calls, former, strict=True)
        ]
        step, mode = with_fake_tensors(Step(_reached, tuple(given)), calls[0].device)
        static: dict[object, GuardedCaptures] = {}
        groups: dict[object, CallGroup] = {}
        refused: dict[int, GraphError] = {}
        self.hold_elsewhere = self._takes_sizes and bool(self._former)
        for place, call in enumerate(calls):
            twin, now, before = step.inputs[place]
            function = shared_forward(twin.forward, twin)
            key = function, call.device, call.autocast, call.gradients.outputs
            gradients = OutputGradients(known=call.gradients)
            reach = partial(_reached, call, mode, twin)
            group = None
            is_shared = function is getattr(twin.forward, "__func__", None)
            takes_sizes = self._takes_sizes and (not call.is_split or shards_take_sizes())
            if takes_sizes and self._former and is_shared:
                symbolic = GuardedCaptures(called(function), gradients, takes_sizes=True, fused=self._fused)
                guarded = self._guarded.setdefault(key, symbolic)
                with suppress(GraphError):  # then it is captured for these sizes alone
                    reach(guarded, *before)  # torch sees by it what differs
                    group = self._group(guarded, reach(guarded, *now))
            try:
                if group is None:
                    self.hold_elsewhere = False
                    unsized = GuardedCaptures(called(function), gradients, fused=self._fused)
                    guarded = static.setdefault(key, unsized)
                    group = self._group(guarded, reach(guarded, *now))
            except GraphError as error:
                refused[place] = error.with_traceback(None)  # which keeps all frames of this call
                continue
            if group is None:
                refused[place] = GraphError(f"region {call.path!r}: nothing that it returns needs a gradient")
            else:
                groups.setdefault((key, group.captured, group.values), group).calls.append(place)
        self._former = {call.name: call for call in calls}
        return list(groups.values()), refused

    def _group(self, guarded: GuardedCaptures, reached: tuple[int, Sequence[Any]] | None) -> CallGroup | None:
        """Return the group of a call by its capture; None if nothing in it needs a gradient."""
        if reached is None or (captured := guarded.captured[reached[0]]) is None:
            return None
        if captured not in self._sizes:
            self._sizes[captured] = Sizes.of(captured)
        sizes = self._sizes[captured]
        return CallGroup([], captured, sizes, sizes.values_given(reached[1]), guarded.seen)


def _arguments(call: RegionCall) -> Any:
    """Return the arguments of a region's call, without data."""
    return pytree.tree_map(
        lambda leaf: leaf.without_data() if isinstance(leaf, Described | DescribedShard) else leaf,
        (call.args, call.kwargs),
    )


def _reached(
    call: RegionCall, mode: FakeTensorMode, twin: nn.Module, guarded: GuardedCaptures, args: Any, kwargs: Any
) -> tuple[int, Sequence[Any]] | None:
    """Return the capture that torch would run in a call.

    Raises:
        GraphError: the call cannot be captured.
    """
    dtype, on = call.autocast
    cast = torch.autocast(call.device, dtype=dtype, enabled=on)
    with mode, explained(f"region {call.path!r}"), cast, suppress(*NO_DATA):
        return guarded.capture_of(twin, *args, **kwargs)
    return None


def _twins(calls: Sequence[RegionCall]) -> list[nn.Module]:
    """Return copies of regions without data.

    The copies share what the regions share.
    """
    memo: dict[int, Any] = {}
    for call in calls:
        meshes = [part.mesh for part in call.parameters.values() if isinstance(part, DescribedShard)]
        memo.update((id(mesh), mesh) for mesh in meshes)  # hooks of tensor parallelism have them
        for name, part in call.module.named_parameters():
            if id(part) not in memo:
                whole = call.parameters[name]
                memo[id(part)] = nn.Parameter(whole.without_data().detach(), requires_grad=whole.requires_grad)
        for buffer in call.module.buffers():
            if id(buffer) not in memo:
                memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return [plain_copy(call.module, memo) for call in calls]


@dataclass(eq=False)
class RegionKind:
    """The plans of regions of one kind, for certain sizes.

    Attributes:
        region: runs the plans.
        sizes: sizes that differ between calls.
        planned_at: the graph at the plans' own sizes.
        values: sizes at which the plans' memory is in the budget.
        call: a call with these sizes.
        points: the plans as measured by the judge, the plain one first.
        plans: the same plans as they run.
        graphs: their graphs, whole and in parts; None for plans of other sizes.
        compiled: places of plans whose kernels' memory is known.
    """

    region: RegionRunner
    sizes: Sizes
    planned_at: SizedJoint
    values: Values
    call: RegionCall
    points: tuple[CurvePoint, ...] = ()
    plans: tuple[RegionPlan, ...] = ()
    graphs: RegionGraphs | None = None
    compiled: set[int] = field(default_factory=set)

    def take(self, points: Sequence[CurvePoint]) -> None:
        """Replace the kind's plans, before any is compiled."""
        self.points = tuple(points)
        own, planned = self.planned_at.values, [point.planned for point in points]
        self.plans = tuple(RegionPlan(own, plan.graph, plan.schedule, plan.cuts) for plan in planned)

    def take_schedules(self, plans: Sequence[tuple[Schedule, Mapping[str, Split]]]) -> None:
        """Replace the kind's plans by schedules, each with the cuts of its graph.

        Raises:
            UsageError: the regions cannot be cut so.
        """
        if self.graphs is not None:
            self.take([self.graphs.point(schedule, cuts) for schedule, cuts in plans])
            return
        self.points = tuple(self.points[0].at(schedule) for schedule, _ in plans)
        self.plans = tuple(replace(self.plans[0], schedule=schedule) for schedule, _ in plans)

    def at(self, values: Values, call: RegionCall) -> RegionKind:
        """Return the same plans for regions of other sizes.

        The judge measures them there.

        Args:
            values: the sizes.
            call: a call with these sizes.
        """
        return RegionKind(self.region, self.sizes, self.planned_at, values, call, self.points_at(values), self.plans)

    def points_at(self, values: Values) -> tuple[CurvePoint, ...]:
        """Return the plans at other sizes, as measured by the judge."""
        sizes = self.sizes.bytes_at(self.planned_at, values)
        outputs = sum(sizes[storage.name] for storage in self.planned_at.joint.returned)
        graph = resized(self.plans[0].graph, sizes)
        return tuple(CurvePoint.of(graph, plan.schedule, outputs) for plan in self.plans)

    def has(self, plan_index: int) -> bool:
        """Return whether the memory of a plan's kernels is known."""
        return plan_index in self.compiled

    def compile(self, plan_index: int) -> bool:
        """Take the memory of a plan's kernels; compile the plan if it has none.

        Args:
            plan_index: place of the plan.

        Returns:
            Whether the plan was compiled.

        Raises:
            GraphError: inductor does not compile the plan.
            UsageError: there is no compiler.
        """
        kernels, plan, point = self.region.kernels, self.plans[plan_index], self.points[plan_index]
        assert kernels is not None
        is_new = plan not in kernels
        memory = kernels.of(plan, self.values).memory_at(self.values)
        planned = replace(point.planned, predicted_peak_bytes=point.planned.graph.fixed_bytes + memory.peak)
        self.compiled.add(plan_index)
        self.points = (
            *self.points[:plan_index],
            point.taking(planned, memory),
            *self.points[plan_index + 1 :],
        )
        return is_new

    def run(self, plan_index: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a region.

        Args:
            plan_index: place of its plan.
            module: the region.
            args: positional arguments.
            kwargs: keyword arguments.

        Raises:
            RematError: the region cannot be captured with these inputs.
        """
        return self.region.run(self.plans[plan_index], self.values, module, args, kwargs)
