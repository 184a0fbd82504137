"""Kinds of regions: those that torch carries out by one capture are captured, measured and planned once.

Whether two regions are of one kind, the guards of torch.compile tell: they hold everything that a capture rests on,
such as shapes, element types, numbers among the attributes, the mode, and hooks on parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import GraphError
from remat_cli.formats.torch.capture_errors import CAPTURE_ERRORS, explained, explanation
from remat_cli.formats.torch.convert import graph_of
from remat_cli.formats.torch.inductor import as_captured
from remat_cli.formats.torch.internals import (
    NO_DATA,
    Captured,
    Divide,
    Likeness,
    boxed,
    compiled_in_ways,
    run_by,
)
from remat_cli.formats.torch.joint import Joint
from remat_cli.formats.torch.step import Step
from remat_cli.formats.torch.weightless import with_fake_tensors
from remat_cli.runtime.torch.choice import structure_fault
from remat_cli.runtime.torch.fused import FusedPlan, compiled_plan
from remat_cli.runtime.torch.program import divided
from remat_cli.runtime.torch.record import PlannedGraph
from remat_cli.runtime.torch.region_choice import RegionPoint
from remat_cli.runtime.torch.rehearsal import Described, DescribedShard, RegionCall
from remat_cli.runtime.torch.shards import plain_copy


def shared_forward(forward: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    """Return what carries out a forward method for any module of its class, given first; of a module's own, for it."""
    if isinstance(forward, MethodType) and forward.__self__ is module and isinstance(forward.__func__, FunctionType):
        return forward.__func__

    def own(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return own


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls one; torch does not look into functions of its own unless others call them."""

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(module, *args, **kwargs)

    return call


@dataclass(frozen=True, eq=False)
class Alike:
    """Calls of regions that torch carries out by one capture.

    Attributes:
        calls: their places.
        captured: their joint graph.
    """

    calls: list[int]
    captured: Captured


def alike(calls: Sequence[RegionCall], *, fused: bool = False) -> tuple[list[Alike], dict[int, GraphError]]:
    """Sort calls of regions by what torch captures of them, on copies without data.

    Args:
        calls: in a step.
        fused: joint graphs have the ops that inductor fuses.

    Returns:
        Those that are alike, and why the others cannot be captured, by their places.
    """
    twins = _twins(calls)
    functions = [shared_forward(twin.forward, twin) for twin in twins]
    made = partial(pytree.tree_map, lambda leaf: leaf.made() if isinstance(leaf, Described | DescribedShard) else leaf)
    given = tuple((twin, made(call.args), made(call.kwargs)) for twin, call in zip(twins, calls, strict=True))
    step, mode = with_fake_tensors(Step(alike, given), calls[0].device)
    found: dict[object, Likeness] = {}
    groups: dict[tuple[object, int], Alike] = {}
    refused: dict[int, GraphError] = {}
    for place, (call, function) in enumerate(zip(calls, functions, strict=True)):
        twin, args, kwargs = step.inputs[place]
        key = function, call.device, call.autocast
        likeness = found.setdefault(key, Likeness(_called(function), fused=fused))
        dtype, on = call.autocast
        number = None
        try:
            cast = torch.autocast(call.device, dtype=dtype, enabled=on)
            with mode, explained(f"region {call.path!r}"), cast, suppress(*NO_DATA):
                number = likeness.kind_of(twin, *args, **kwargs)
        except GraphError as error:
            refused[place] = error
            continue
        captured = None if number is None else likeness.captured[number]
        if number is None or captured is None:
            refused[place] = GraphError(f"region {call.path!r}: nothing that it returns needs a gradient")
        else:
            groups.setdefault((key, number), Alike([], captured)).calls.append(place)
    return list(groups.values()), refused


def _twins(calls: Sequence[RegionCall]) -> list[nn.Module]:
    """Return copies of regions without data; what they share, the copies share."""
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


@dataclass(eq=False)
class RegionKind:
    """Runs regions of one kind by plans of theirs.

    Attributes:
        name: of the first of them.
        function: their forward method, which takes the module first.
        points: their plans, the plain one first.
        captured: what was planned, where inductor's kernels are to run; None: eager's run.
        compiled: plans whose kernels were compiled, by their places.
        around: entered while a forward pass runs.
        at_backward: called where a backward pass begins.
        otherwise: called where a region runs by the plain schedule, as it is not what was planned.
        ways: places of the plans that calls run by.
    """

    name: str
    function: Callable[..., Any]
    points: tuple[RegionPoint, ...]
    captured: Captured | None = None
    compiled: dict[int, FusedPlan] = field(default_factory=dict)
    around: Callable[[], Any] = nullcontext
    at_backward: Callable[[], None] = lambda: None
    otherwise: Callable[[], None] = lambda: None
    ways: frozenset[int] = frozenset()
    _way: int = 0
    _run: Callable[..., Any] | None = None
    _known: set[int] = field(default_factory=set)

    def use(self, ways: frozenset[int]) -> None:
        """Note which plans calls run by from now on."""
        if not ways <= self.ways:
            self._run = None
        self.ways |= ways

    def compile(self, way: int) -> None:
        """Compile the kernels of a plan, and read its memory from them.

        Args:
            way: the place of the plan.

        Raises:
            GraphError: inductor does not compile it.
            UsageError: there is no compiler.
        """
        assert self.captured is not None
        with as_captured(self.captured.module):
            joint = Joint.of(self.captured)
            made = compiled_plan(joint, self.points[way].planned, self.captured.forward_outputs)
        self.compiled[way] = made
        point = self.points[way].taking(made.planned, made.memory)
        self.points = (*self.points[:way], point, *self.points[way + 1 :])

    def run(self, way: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a region.

        Args:
            way: the place of its plan.
            module: the region.
            args: what it is called with.
            kwargs: the same.

        Raises:
            RematError: it cannot be captured with these inputs.
        """
        if self._run is None:
            fused = self.captured is not None
            self._run = compiled_in_ways(_called(self.function), self._ways, lambda: self._way, fused=fused)
            self._known = set()
        self._way = way
        if id(module) in self._known:
            return self._run(module, *args, **kwargs)
        try:
            with warnings.catch_warnings():
                # torch.compile looks at the gradients of all inputs, those that other regions made among them.
                warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
                result = self._run(module, *args, **kwargs)
        except CAPTURE_ERRORS as error:
            raise explanation(error, f"region {self.name!r}") from None
        self._known.add(id(module))
        return result

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
            run, run_back = boxed(forward), boxed(backward)
        else:
            fused = self.compiled.get(way)
            if fused is None or not is_planned or _given_of(captured) != _given_of(self.captured):
                planned = PlannedGraph.of(graph, schedule, simulate(graph, schedule))
                fused = compiled_plan(joint, planned, captured.forward_outputs)
            run, run_back = fused.forward.run, fused.backward.run

        def noted(args: list[Any]) -> Any:
            if not is_planned:
                self.otherwise()
            with self.around():
                return run(args)

        def noted_back(args: list[Any]) -> Any:
            self.at_backward()
            return run_back(args)

        run_by(forward, noted)
        run_by(backward, noted_back)
        return forward, backward


def _given_of(captured: Captured) -> list[object]:
    """Return of each input of a joint graph what kernels are compiled for."""
    given = (node.meta["val"] for node in captured.module.graph.find_nodes(op="placeholder"))
    return [
        (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device)
        if isinstance(value, torch.Tensor)
        else value
        for value in given
    ]
