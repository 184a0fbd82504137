"""Kinds of regions that share one capture by torch.

Each kind is captured, measured and planned once.

The guards of torch.compile decide whether two regions are of one kind: they check all that a capture depends on, such
as shapes, element types, numbers among the attributes, the mode, and hooks on parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.errors import GraphError, UsageError
from remat_cli.pytorch.capture.capture_errors import CAPTURE_ERRORS, explained, explanation
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint_capture import (
    Captured,
    Divide,
    GuardedCaptures,
    boxed_backward,
    compiled_variants,
    leaving_out,
    primals_of,
)
from remat_cli.pytorch.capture.outputs import OutputGradients
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.sizes import SizedJoint, Sizes, Values
from remat_cli.pytorch.capture.step import Step
from remat_cli.pytorch.capture.weightless import with_fake_tensors
from remat_cli.pytorch.memory.shards import plain_copy
from remat_cli.pytorch.plan.block_step import CurvePoint
from remat_cli.pytorch.plan.described import Described, DescribedShard
from remat_cli.pytorch.plan.file_source import structure_fault
from remat_cli.pytorch.plan.fused import CompiledPasses, compiled_plan, given_to
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.region_curve import RegionGraphs
from remat_cli.pytorch.plan.rehearsal import RegionCall
from remat_cli.pytorch.plan.sized_memory import resized
from remat_cli.pytorch.plan.sized_region import RegionHooks, SizedRegion, SizedSchedule, watch_runs
from remat_cli.pytorch.programs.pieces import KnownPieces
from remat_cli.pytorch.programs.program import divided
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.fakes import NO_DATA, FakeTensorMode
from remat_cli.pytorch.unstable.front_end import SeenSizes
from remat_cli.pytorch.unstable.inductor import as_captured
from remat_cli.pytorch.unstable.joint_graphs import boxed, shards_take_sizes
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


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
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
        function: the captured function: it takes the module first, and calls its forward method.
        sizes: sizes that may differ in other calls; None for a capture of these sizes alone.
        values: the sizes.
        seen: sizes that torch has seen.
    """

    calls: list[int]
    captured: Captured
    function: Callable[..., Any]
    sizes: Sizes | None = None
    values: Values = ()
    seen: SeenSizes = field(default_factory=SeenSizes)


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
                symbolic = GuardedCaptures(_called(function), gradients, takes_sizes=True, fused=self._fused)
                guarded = self._guarded.setdefault(key, symbolic)
                with suppress(GraphError):  # then it is captured for these sizes alone
                    reach(guarded, *before)  # torch sees by it what differs
                    group = self._sized(guarded, reach(guarded, *now), _called(function))
            try:
                if group is None:
                    self.hold_elsewhere = False
                    unsized = GuardedCaptures(_called(function), gradients, fused=self._fused)
                    guarded = static.setdefault(key, unsized)
                    group = _captured(guarded, reach(guarded, *now), _called(function))
            except GraphError as error:
                refused[place] = error.with_traceback(None)  # which keeps all frames of this call
                continue
            if group is None:
                refused[place] = GraphError(f"region {call.path!r}: nothing that it returns needs a gradient")
            else:
                groups.setdefault((key, group.captured, group.values), group).calls.append(place)
        self._former = {call.name: call for call in calls}
        return list(groups.values()), refused

    def _sized(
        self, guarded: GuardedCaptures, reached: tuple[int, Sequence[Any]] | None, function: Callable[..., Any]
    ) -> CallGroup | None:
        group = _captured(guarded, reached, function)
        if group is None or reached is None:
            return None
        if group.captured not in self._sizes:
            self._sizes[group.captured] = Sizes.of(group.captured)
        if not (sizes := self._sizes[group.captured]).symbols:
            return group
        return replace(group, sizes=sizes, values=sizes.values_given(reached[1]), seen=guarded.seen)


def _captured(
    guarded: GuardedCaptures, reached: tuple[int, Sequence[Any]] | None, function: Callable[..., Any]
) -> CallGroup | None:
    captured = None if reached is None else guarded.captured[reached[0]]
    return None if captured is None else CallGroup([], captured, function)


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


@dataclass(frozen=True, eq=False)
class SizedKind:
    """Plans of regions for many sizes.

    Attributes:
        region: runs the plans.
        sizes: sizes that differ between calls.
        planned_at: the graph at the plans' own sizes.
        plans: plans in the order of the kind's.
        values: sizes at which their memory is in the budget.
        call: a call with these sizes.
    """

    region: SizedRegion
    sizes: Sizes
    planned_at: SizedJoint
    plans: tuple[SizedSchedule, ...]
    values: Values
    call: RegionCall

    def run(self, plan_index: int, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run a region by one of the plans."""
        return self.region.run(self.plans[plan_index], self.values, module, args, kwargs)

    def is_compiled(self, plan_index: int) -> bool:
        """Return whether a plan has compiled kernels."""
        return self.region.kernels is not None and self.plans[plan_index] in self.region.kernels

    def compiled(self, plan_index: int) -> CompiledPasses | None:
        """Return the compiled kernels of a plan for these sizes; None if eager's kernels run.

        Raises:
            RematError: see `RegionKernels.of`.
        """
        kernels = self.region.kernels
        return None if kernels is None else kernels.of(self.plans[plan_index], self.values)

    def points_at(self, values: Values) -> tuple[CurvePoint, ...]:
        """Return the plans at other sizes, as measured by the judge."""
        sizes = self.sizes.bytes_at(self.planned_at, values)
        outputs = sum(sizes[storage.name] for storage in self.planned_at.joint.returned)
        graph = resized(self.plans[0].graph, sizes)
        return tuple(CurvePoint.of(graph, plan.schedule, outputs) for plan in self.plans)


@dataclass(eq=False)
class RegionKind:
    """Runs regions of one kind by their plans.

    Attributes:
        name: name of the first region.
        function: their forward method, which takes the module first.
        gradients: outputs with a gradient.
        points: their plans, the plain one first.
        sized: runs them at many sizes; None for a capture of their sizes alone.
        captured: the planned graph, if inductor's kernels will run at its sizes alone; else None.
        compiled: compiled plans by place.
        pieces: pieces compiled so far, if regions may run in parts, and inductor decomposes each piece; else None.
        hooks: called around their passes.
        used: places of the used plans.
        graphs: their graphs, whole and in parts; None for plans of other sizes.
    """

    name: str
    function: Callable[..., Any]
    gradients: OutputGradients
    points: tuple[CurvePoint, ...]
    sized: SizedKind | None = None
    captured: Captured | None = None
    compiled: dict[int, CompiledPasses] = field(default_factory=dict)
    pieces: KnownPieces | None = None
    hooks: RegionHooks = field(default_factory=RegionHooks)
    used: frozenset[int] = frozenset()
    graphs: RegionGraphs | None = None
    _plan_index: int = 0
    _run: Callable[..., Any] | None = None
    _known: set[int] = field(default_factory=set)

    @property
    def values(self) -> Values:
        """The sizes of regions of this kind.

        There are none for a capture of their sizes alone.
        """
        return () if self.sized is None else self.sized.values

    def take(self, plans: Sequence[tuple[Schedule, Mapping[str, Split]]]) -> None:
        """Replace the kind's plans: schedules, each with the cuts of its graph.

        Raises:
            UsageError: the regions cannot be cut so.
        """
        if self.sized is None and self.graphs is not None:
            self._set([self.graphs.point(schedule, cuts) for schedule, cuts in plans])
        else:
            self._set([self.points[0].at(schedule) for schedule, _ in plans])

    def add(self, points: Sequence[CurvePoint]) -> None:
        """Add plans of the whole region, before any is compiled."""
        self._set([*self.points, *points])

    def _set(self, points: Sequence[CurvePoint]) -> None:
        self.points = tuple(points)
        if self.sized is not None:
            planned_at = self.sized.plans[0]
            sized = tuple(replace(planned_at, schedule=point.planned.schedule) for point in points)
            self.sized = replace(self.sized, plans=sized)

    def at(self, values: Values, call: RegionCall) -> RegionKind:
        """Return the same plans for regions of other sizes.

        The judge measures them there.

        Args:
            values: the sizes.
            call: a call with these sizes.
        """
        assert self.sized is not None
        sized = replace(self.sized, values=values, call=call)
        return RegionKind(self.name, self.function, self.gradients, sized.points_at(values), sized)

    def use(self, used: frozenset[int]) -> None:
        """Note the plans that calls will use."""
        if not used <= self.used:
            self._run = None
        self.used |= used

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
        point, is_new = self.points[plan_index], True
        if self.sized is not None:
            is_new = not self.sized.is_compiled(plan_index)
            compiled = self.sized.compiled(plan_index)
            assert compiled is not None
            memory = compiled.memory_at(self.values)
            planned = replace(point.planned, predicted_peak_bytes=point.planned.graph.fixed_bytes + memory.peak)
        else:
            assert self.captured is not None
            with as_captured([node.meta.get("val") for node in primals_of(self.captured.module.graph)]):
                piece = Piece.of(self.captured).in_parts(point.cuts)
                outputs = piece.captured.forward_outputs
                compiled = compiled_plan(piece.joint, point.planned, outputs, known=self.pieces)
            memory, planned = compiled.memory, compiled.planned
        self.compiled[plan_index] = compiled
        point = point.taking(planned, memory)
        self.points = (*self.points[:plan_index], point, *self.points[plan_index + 1 :])
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
        run = self._runner(plan_index)
        if id(module) in self._known:
            return run(module, *args, **kwargs)
        try:
            with warnings.catch_warnings():
                # torch.compile looks at the gradients of all inputs, those that other regions made among them.
                warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
                result = run(module, *args, **kwargs)
        except CAPTURE_ERRORS as error:
            raise explanation(error, f"region {self.name!r}") from None
        self._known.add(id(module))
        return result

    def _runner(self, plan_index: int) -> Callable[..., Any]:
        if self.sized is not None:
            return partial(self.sized.run, plan_index)
        if self._run is None:
            fused = self.captured is not None and self.pieces is None
            function = _called(self.function)
            self._run = compiled_variants(
                function, self._divides, lambda: self._plan_index, self.gradients, fused=fused
            )
            self._known = set()
        self._plan_index = plan_index
        return self._run

    def _divides(self) -> dict[int, Divide]:
        return {plan_index: partial(self._divide, plan_index) for plan_index in sorted(self.used)}

    def _divide(self, plan_index: int, captured: Captured) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        point = self.points[plan_index]
        piece = Piece.of(captured)
        with suppress(UsageError):  # then it is another graph
            piece = piece.in_parts(point.cuts)
        joint, captured = piece.joint, piece.captured
        graph = graph_of(joint, self.name)
        structure = {op.name: op.signature or "" for op in point.planned.graph.ops}
        is_planned = structure_fault(graph, structure) is None
        schedule = point.planned.schedule if is_planned else plain_run(graph)
        forward, backward = divided(joint, schedule)
        if self.captured is None:
            run, run_back = boxed(forward), boxed_backward(backward)
        else:
            fused = self.compiled.get(plan_index)
            if fused is None or not is_planned or given_to(captured) != given_to(self.captured):
                planned = GraphRecord.of(graph, schedule)
                fused = compiled_plan(joint, planned, captured.forward_outputs, known=self.pieces)
            run, run_back = fused.forward.run, leaving_out(backward, fused.backward.run)
        watch_runs(self.hooks, self.name, (forward, run), (backward, run_back), is_planned=is_planned)
        return forward, backward
