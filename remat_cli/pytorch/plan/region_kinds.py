"""Kinds of regions that share one capture by torch.

Each kind is captured, measured and planned once.

The guards of torch.compile decide whether two regions are of one kind: they check all that a capture depends on, such
as shapes, element types, numbers among the attributes, the mode, and hooks on parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import GraphError
from remat_cli.pytorch.capture.capture_errors import CAPTURE_ERRORS, explained, explanation
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.internals import (
    Captured,
    Divide,
    Likeness,
    boxed_backward,
    compiled_in_ways,
    leaving_out,
    primals_of,
)
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.outputs import OutputGradients
from remat_cli.pytorch.capture.sizes import SizedJoint, Sizes, Values
from remat_cli.pytorch.capture.step import Step
from remat_cli.pytorch.capture.weightless import with_fake_tensors
from remat_cli.pytorch.memory.shards import plain_copy
from remat_cli.pytorch.plan.choice import structure_fault
from remat_cli.pytorch.plan.described import Described, DescribedShard
from remat_cli.pytorch.plan.fused import FusedPlan, compiled_plan
from remat_cli.pytorch.plan.record import PlannedGraph
from remat_cli.pytorch.plan.region_choice import RegionPoint
from remat_cli.pytorch.plan.rehearsal import RegionCall
from remat_cli.pytorch.plan.sized import resized
from remat_cli.pytorch.plan.sized_region import SizedPlan, SizedRegion, watch_runs
from remat_cli.pytorch.programs.program import divided
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.fakes import NO_DATA, FakeTensorMode
from remat_cli.pytorch.unstable.front_end import SeenSizes
from remat_cli.pytorch.unstable.inductor import as_captured
from remat_cli.pytorch.unstable.joint_graphs import boxed


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
class Alike:
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
        self._takes_sizes = takes_sizes and not fused
        self._fused = fused
        self._former: dict[str, RegionCall] = {}  # of the step before, by name
        self._likenesses: dict[object, Likeness] = {}  # that take sizes, by function and place
        self._sizes: dict[Captured, Sizes | None] = {}

    def alike(self, calls: Sequence[RegionCall]) -> tuple[list[Alike], dict[int, GraphError]]:
        """Group the calls of a step.

        Returns:
            Groups of equal calls, and the errors of other calls by place.
        """
        former = [self._former.get(call.name, call) for call in calls]
        twins = _twins(calls)
        given = [(twin, _made(call), _made(before)) for twin, call, before in zip(twins, calls, former, strict=True)]
        step, mode = with_fake_tensors(Step(_reached, tuple(given)), calls[0].device)
        static: dict[object, Likeness] = {}
        groups: dict[object, Alike] = {}
        refused: dict[int, GraphError] = {}
        self.hold_elsewhere = self._takes_sizes and bool(self._former)
        for place, call in enumerate(calls):
            twin, now, before = step.inputs[place]
            function = shared_forward(twin.forward, twin)
            key = function, call.device, call.autocast, call.gradients.outputs
            gradients = OutputGradients(known=call.gradients)
            reach = partial(_reached, call, mode, twin)
            found = None
            is_shared = function is getattr(twin.forward, "__func__", None)
            if self._takes_sizes and self._former and is_shared and not call.is_split:
                likeness = self._likenesses.setdefault(key, Likeness(_called(function), gradients, takes_sizes=True))
                with suppress(GraphError):  # then it is captured for these sizes alone
                    reach(likeness, *before)  # torch sees by it what differs
                    found = self._sized(likeness, reach(likeness, *now), _called(function))
            try:
                if found is None:
                    self.hold_elsewhere = False
                    made = Likeness(_called(function), gradients, fused=self._fused)
                    likeness = static.setdefault(key, made)
                    found = _captured(likeness, reach(likeness, *now), _called(function))
            except GraphError as error:
                refused[place] = error.with_traceback(None)  # which keeps all frames of this call
                continue
            if found is None:
                refused[place] = GraphError(f"region {call.path!r}: nothing that it returns needs a gradient")
            else:
                groups.setdefault((key, found.captured, found.values), found).calls.append(place)
        self._former = {call.name: call for call in calls}
        return list(groups.values()), refused

    def _sized(
        self, likeness: Likeness, reached: tuple[int, Sequence[Any]] | None, function: Callable[..., Any]
    ) -> Alike | None:
        found = _captured(likeness, reached, function)
        if found is None or reached is None:
            return None
        if found.captured not in self._sizes:
            self._sizes[found.captured] = Sizes.of(found.captured)
        if (sizes := self._sizes[found.captured]) is None:
            return found
        return replace(found, sizes=sizes, values=sizes.values_given(reached[1]), seen=likeness.seen)


def _captured(
    likeness: Likeness, reached: tuple[int, Sequence[Any]] | None, function: Callable[..., Any]
) -> Alike | None:
    captured = None if reached is None else likeness.captured[reached[0]]
    return None if captured is None else Alike([], captured, function)


def _made(call: RegionCall) -> Any:
    """Return the arguments of a region's call, without data."""
    return pytree.tree_map(
        lambda leaf: leaf.made() if isinstance(leaf, Described | DescribedShard) else leaf, (call.args, call.kwargs)
    )


def _reached(
    call: RegionCall, mode: FakeTensorMode, twin: nn.Module, likeness: Likeness, args: Any, kwargs: Any
) -> tuple[int, Sequence[Any]] | None:
    """Return the capture that torch would run in a call.

    Raises:
        GraphError: the call cannot be captured.
    """
    dtype, on = call.autocast
    cast = torch.autocast(call.device, dtype=dtype, enabled=on)
    with mode, explained(f"region {call.path!r}"), cast, suppress(*NO_DATA):
        return likeness.kind_of(twin, *args, **kwargs)
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
                memo[id(part)] = nn.Parameter(whole.made().detach(), requires_grad=whole.requires_grad)
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
        made_for: the graph at the plans' own sizes.
        plans: plans in the order of the kind's.
        values: sizes at which their memory is in the budget.
    """

    region: SizedRegion
    sizes: Sizes
    made_for: SizedJoint
    plans: tuple[SizedPlan, ...]
    values: Values

    def run(self, way: int, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run a region by one of the plans."""
        return self.region.run(self.plans[way], self.values, module, args, kwargs)

    def points_at(self, values: Values) -> tuple[RegionPoint, ...]:
        """Return the plans at other sizes, as measured by the judge."""
        sizes = self.sizes.bytes_at(self.made_for, values)
        outputs = sum(sizes[storage.name] for storage in self.made_for.joint.returned)
        graph = resized(self.plans[0].graph, sizes)
        return tuple(RegionPoint.of(graph, plan.schedule, outputs) for plan in self.plans)


@dataclass(eq=False)
class RegionKind:
    """Runs regions of one kind by their plans.

    Attributes:
        name: name of the first region.
        function: their forward method, which takes the module first.
        gradients: outputs with a gradient.
        points: their plans, the plain one first.
        sized: runs them at many sizes; None for a capture of their sizes alone.
        captured: the planned graph, if inductor's kernels will run; None: eager's kernels run.
        compiled: compiled plans by place.
        around: entered while a forward pass runs.
        at_backward: called at the beginning of a backward pass.
        otherwise: called if a region differs from the planned one, and runs by the plain schedule.
        ways: places of the used plans.
    """

    name: str
    function: Callable[..., Any]
    gradients: OutputGradients
    points: tuple[RegionPoint, ...]
    sized: SizedKind | None = None
    captured: Captured | None = None
    compiled: dict[int, FusedPlan] = field(default_factory=dict)
    around: Callable[[], Any] = nullcontext
    at_backward: Callable[[], None] = lambda: None
    otherwise: Callable[[], None] = lambda: None
    ways: frozenset[int] = frozenset()
    _way: int = 0
    _run: Callable[..., Any] | None = None
    _known: set[int] = field(default_factory=set)

    @property
    def values(self) -> Values:
        """The sizes of regions of this kind.

        There are none for a capture of their sizes alone.
        """
        return () if self.sized is None else self.sized.values

    def take(self, schedules: Sequence[Schedule]) -> None:
        """Replace the kind's plans."""
        self.points = tuple(self.points[0].at(schedule) for schedule in schedules)
        if self.sized is not None:
            made_for = self.sized.plans[0]
            plans = tuple(replace(made_for, schedule=schedule) for schedule in schedules)
            self.sized = replace(self.sized, plans=plans)

    def at(self, values: Values) -> RegionKind:
        """Return the same plans for regions of other sizes.

        The judge measures them there.
        """
        assert self.sized is not None
        sized = replace(self.sized, values=values)
        return RegionKind(self.name, self.function, self.gradients, sized.points_at(values), sized)

    def use(self, ways: frozenset[int]) -> None:
        """Note the plans that calls will use."""
        if not ways <= self.ways:
            self._run = None
        self.ways |= ways

    def compile(self, way: int) -> None:
        """Compile a plan's kernels, which tell the plan's memory.

        Args:
            way: place of the plan.

        Raises:
            GraphError: inductor does not compile the plan.
            UsageError: there is no compiler.
        """
        assert self.captured is not None
        with as_captured([node.meta.get("val") for node in primals_of(self.captured.module.graph)]):
            joint = Joint.of(self.captured)
            made = compiled_plan(joint, self.points[way].planned, self.captured.forward_outputs)
        self.compiled[way] = made
        point = self.points[way].taking(made.planned, made.memory)
        self.points = (*self.points[:way], point, *self.points[way + 1 :])

    def run(self, way: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a region.

        Args:
            way: place of its plan.
            module: the region.
            args: positional arguments.
            kwargs: keyword arguments.

        Raises:
            RematError: the region cannot be captured with these inputs.
        """
        run = self._runner(way)
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

    def _runner(self, way: int) -> Callable[..., Any]:
        if self.sized is not None:
            return partial(self.sized.run, way)
        if self._run is None:
            fused = self.captured is not None
            function = _called(self.function)
            self._run = compiled_in_ways(function, self._ways, lambda: self._way, self.gradients, fused=fused)
            self._known = set()
        self._way = way
        return self._run

    def _ways(self) -> dict[int, Divide]:
        return {way: partial(self._divide, way) for way in sorted(self.ways)}

    def _divide(self, way: int, captured: Captured) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        point = self.points[way]
        joint = Joint.of(captured)
        graph = graph_of(joint, self.name)
        structure = {op.name: op.signature or "" for op in point.planned.graph.ops}
        is_planned = structure_fault(graph, structure) is None
        schedule = point.planned.schedule if is_planned else plain_run(graph)
        forward, backward = divided(joint, schedule)
        if self.captured is None:
            run, run_back = boxed(forward), boxed_backward(backward)
        else:
            fused = self.compiled.get(way)
            if fused is None or not is_planned or _given_of(captured) != _given_of(self.captured):
                planned = PlannedGraph.of(graph, schedule, simulate(graph, schedule))
                fused = compiled_plan(joint, planned, captured.forward_outputs)
            run, run_back = fused.forward.run, leaving_out(backward, fused.backward.run)
        watch_runs(self, (forward, run), (backward, run_back), is_planned=is_planned)
        return forward, backward


def _given_of(captured: Captured) -> list[object]:
    """Return the facts about a joint graph's inputs that kernels depend on."""
    given = (node.meta["val"] for node in captured.module.graph.find_nodes(op="placeholder"))
    return [
        (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device)
        if isinstance(value, torch.Tensor)
        else value
        for value in given
    ]
