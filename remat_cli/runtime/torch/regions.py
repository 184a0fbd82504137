"""Regions: parts of a model that are captured and planned alone, within one budget for the whole step.

What lies between regions runs as eager, so it may branch on data, index by masks and print. In the first training call
a rehearsal runs the step once with each region in `torch.utils.checkpoint`, and sees what is in memory between them.
Each distinct region is planned several times, to keep less and less. Of these plans an integer program takes one for
each region, so that at every moment what the regions keep, what lies between, and the peak of the running region fit
the budget, at the least time.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Phase
from remat_cli.core.schedule import Compute, Inplace, Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import DoesNotFit, UsageError
from remat_cli.formats.torch.internals import Captured
from remat_cli.formats.torch.joint import Joint
from remat_cli.formats.torch.ops import storage_key, tensors_of
from remat_cli.formats.torch.reader import capture
from remat_cli.formats.torch.step import Step
from remat_cli.planners.shared.cp_model import FEASIBLE, OPTIMAL, CpModel, CpSolver
from remat_cli.planning import plan
from remat_cli.prepare import Prepared
from remat_cli.runtime.torch.call import PlannedCall, check_not_sharded
from remat_cli.runtime.torch.choice import ScheduleSource, WithinBudget, check_structure
from remat_cli.runtime.torch.record import PlannedGraph, PlanRecord, told
from remat_cli.units import format_bytes, format_share

# Of what a plain region keeps between its passes beyond what every plan keeps.
_SHARES = (0.8, 0.6, 0.4, 0.2, 0.0)
_PLAN_SECONDS = 1.0  # for each plan of a region, unless the user says otherwise
_NAME = "_remat_regions"
_SECONDS = 5.0  # for the choice among them


@dataclass(frozen=True, eq=False)
class RegionPoint:
    """A plan of a region, beside what is there when it begins.

    Attributes:
        planned: the plan.
        kept: bytes from the end of its forward to the begin of its backward pass, without what it returns.
        forward: the most that its forward pass has at one time.
        backward: the most that its backward pass has at one time, without what it returned and that one's gradient.
        time: of the whole region.
    """

    planned: PlannedGraph
    kept: int
    forward: int
    backward: int
    time: int


def regions_of(model: nn.Module, regions: str | Sequence[Any]) -> dict[str, nn.Module]:
    """Return the regions by path.

    Args:
        model: whose parts they are.
        regions: a pattern of paths such as "layers.*", or paths, patterns and modules.

    Raises:
        UsageError: one is no part of the model, none is named, or one is inside another.
    """
    known = {path: part for path, part in model.named_modules() if path}
    asked = [regions] if isinstance(regions, str) else list(regions)
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
class _Seen:
    """What the rehearsal saw of a region."""

    path: str
    module: nn.Module
    args: Any = None
    kwargs: Any = None
    autocast: tuple[str, torch.dtype, bool] | None = None
    before: int = 0
    before_back: int | None = None
    numbers: tuple[int, int] = (0, 0)  # of autograd's nodes


class _Rehearsal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees how much is in memory between regions, beside what was there before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.level = 0
        self.regions: list[_Seen] = []
        self.between: dict[frozenset[int], int] = {}
        self._there: set[int] = set()
        self._open: int | None = None
        self._holding: set[int] = set()
        self._is_backward = False

    def begin_backward(self) -> None:
        self._is_backward = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self._is_backward:
            self._look_where()
        made = func(*args, **kwargs)
        read = {storage_key(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for tensor in tensors_of(made):
            key = storage_key(tensor)
            if key not in read and key not in self._there:
                storage = tensor.untyped_storage()
                self._there.add(key)
                self.level += storage.nbytes()
                weakref.finalize(storage, self._ended, key, storage.nbytes()).atexit = False
        if self._open is None:
            self._mark()
        return made

    def _ended(self, key: int, size: int) -> None:
        self._there.discard(key)
        self.level -= size

    def _mark(self) -> None:
        where = frozenset(self._holding)
        self.between[where] = max(self.between.get(where, 0), self.level)

    def _look_where(self) -> None:
        node = torch._C._current_autograd_node()
        if node is None or "AccumulateGrad" in type(node).__name__ or "AccumulateGrad" in node.name():
            return
        number = node._sequence_nr()
        place = next((at for at, seen in enumerate(self.regions) if seen.numbers[0] <= number < seen.numbers[1]), None)
        if place != self._open and place is not None:
            self._begin_back(place)
        self._open = place

    def _begin_back(self, place: int) -> None:
        self._holding.discard(place)
        seen = self.regions[place]
        if seen.before_back is None:
            seen.before_back = self.level

    @contextlib.contextmanager
    def _again(self, place: int) -> Iterator[None]:
        self._begin_back(place)
        before, self._open, self._is_backward = self._open, place, False
        try:
            yield
        finally:
            self._open, self._is_backward = before if before == place else place, True

    def call(self, path: str, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a region in a checkpoint."""
        if any(seen.path == path for seen in self.regions):
            raise UsageError(
                f"regions: {path!r} is called twice in one step", hint="leave it out, or name what calls it as a region"
            )
        device = next((part.device.type for part in module.parameters()), "cpu")
        given, named = pytree.tree_map(_described, (args, kwargs))
        cast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        seen = _Seen(path, module, given, named, cast, before=self.level)
        place = len(self.regions)
        self.regions.append(seen)
        self._open = place
        first = torch._C._autograd._get_sequence_nr()
        try:
            result = checkpoint(
                forward,
                *args,
                use_reentrant=False,
                context_fn=lambda: (contextlib.nullcontext(), self._again(place)),
                **kwargs,
            )
        finally:
            self._open = None
        seen.numbers = (first, torch._C._autograd._get_sequence_nr())
        self._holding.add(place)
        self._mark()
        return result


@dataclass(frozen=True)
class _Described:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def made(self) -> torch.Tensor:
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        return tensor.requires_grad_(self.requires_grad)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Described(tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    return value


class _Chosen(ScheduleSource):
    """Gives a region the plan that was chosen for it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.point: RegionPoint | None = None

    def planned(self, joint: Joint, captured: Captured, modules: Sequence[nn.Module]) -> PlannedGraph:
        """Return the chosen plan, where the region is what was planned."""
        del captured, modules
        from remat_cli.formats.torch.convert import graph_of

        assert self.point is not None
        graph = self.point.planned.graph
        structure = {op.name: op.signature or "" for op in graph.ops}
        check_structure(graph_of(joint, graph.name), structure, f"the plan of region {self.path!r}")
        return self.point.planned


@dataclass(eq=False)
class RegionsRecord(PlanRecord):
    """What was planned for a model by regions.

    Attributes:
        predicted_peak_bytes: of the whole step: regions, what lies between them, and what is there before.
        budget_bytes: that it keeps within.
        overhead: more time than the regions take unplanned, as a share of that.
        points: the chosen plans, by the path of the region.
        whole_calls: how many calls of the model ran as planned.
    """

    predicted_peak_bytes: int = 0
    budget_bytes: int = 0
    overhead: float = 0.0
    points: dict[str, RegionPoint] = field(default_factory=dict)
    whole_calls: int = 0

    @property
    def calls(self) -> int:
        """How many calls ran as planned."""
        return self.whole_calls

    @property
    def plan(self) -> str:
        """One line for a report or a log."""
        return (
            f"{len(self.points)} regions within {format_bytes(self.budget_bytes)}: predicted peak of the step "
            f"{format_bytes(self.predicted_peak_bytes)}, {format_share(self.overhead)} more time in regions; what lies "
            "between them runs as eager"
        )

    def __str__(self) -> str:
        """Return the report."""
        lines = [f"Planned for {self.budget}: {self.calls} calls as planned, {self.unplanned.total()} not"]
        if self.points:
            lines.append(f"  {self.plan}")
        for path, point in self.points.items():
            lines.append(
                f"    {path}: keeps {format_bytes(point.kept)} between its passes, "
                f"{format_share(point.planned.overhead)} more time"
            )
        lines += [f"  unplanned, {reason}: {count}" for reason, count in self.unplanned.items()]
        return "\n".join(lines)


class _PartRecord(PlanRecord):
    """What a region ran by; the record of the whole tells of it."""

    def add(self, planned: PlannedGraph) -> PlannedGraph:
        """Note a plan, without a line in the log."""
        self.graphs.append(planned)
        return planned


class _Forward:
    """Stands for the forward method of a region. Copies and pickles of the region have the method itself."""

    def __init__(self, whole: RegionsCall, path: str) -> None:
        self._whole, self._path = whole, path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._whole.run_region(self._path, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of a module that is about to be filled: its class's own.
        return getattr, (self._whole.regions[self._path], "forward")


class AttachedRegions:
    """Stands among the attributes of a model that is planned by regions.

    Attributes:
        call: carries out the model's calls.
    """

    def __init__(self, call: RegionsCall) -> None:
        self.call = call

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Have a copy of the model run as planned, too, by plans of its own, from its first call on."""
        copied = memo.get(id(self.call.module))
        if isinstance(copied, nn.Module):
            copied.__dict__["_compiled_call_impl"] = partial(_first_call, copied, tuple(self.call.regions), self.call)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Leave the plans out of pickles: a loaded model is planned anew."""
        return type(None), ()


def _first_call(model: nn.Module, paths: Sequence[str], former: RegionsCall, *args: Any, **kwargs: Any) -> Any:
    attach_regions(model, paths, former.source, former.record.budget)
    return model(*args, **kwargs)


def attach_regions(
    model: nn.Module, regions: str | Sequence[str | nn.Module], source: WithinBudget, budget: str
) -> None:
    """Have parts of a model run as planned, within one budget for the whole.

    Args:
        model: is changed.
        regions: as for `regions_of`.
        source: what is asked for, and what else is in memory.
        budget: as it was asked for.

    Raises:
        UsageError: as `regions_of`.
    """
    call = RegionsCall(model, regions_of(model, regions), source, budget)
    model._compiled_call_impl = call
    model.__dict__[_NAME] = AttachedRegions(call)


def regions_record(model: nn.Module) -> PlanRecord | None:
    """Return the record of a model that is planned by regions; None where it is not."""
    attached = model.__dict__.get(_NAME)
    return attached.call.record if isinstance(attached, AttachedRegions) else None


class RegionsCall:
    """A model's call of which parts run as planned.

    Attributes:
        module: the model.
        source: what is asked for, and what else is in memory.
        record: what was planned, and how calls ran.
        regions: the parts, by path.
    """

    def __init__(self, model: nn.Module, regions: Mapping[str, nn.Module], source: WithinBudget, budget: str) -> None:
        self.module = model
        self.source = source
        self.record = RegionsRecord(budget)
        self.regions = dict(regions)
        self._forwards = {path: part.forward for path, part in regions.items()}
        self._chosen = {path: _Chosen(path) for path in regions}
        self._calls: dict[str, PlannedCall] = {}
        self._points: dict[object, tuple[RegionPoint, ...]] = {}
        self._by_shapes: dict[object, dict[str, RegionPoint]] = {}
        self._rehearsal: _Rehearsal | None = None
        for path, part in regions.items():
            call = self._calls[path] = PlannedCall(self._forwards[path], self._chosen[path], budget)
            call.record = _PartRecord(budget)
            part.forward = _Forward(self, path)

    def run_region(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Run the forward method of a region: as planned, in a checkpoint while rehearsing, or as it is."""
        forward, module = self._forwards[path], self.regions[path]
        if not module.training or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if self._rehearsal is not None:
            return self._rehearsal.call(path, module, forward, *args, **kwargs)
        if self._chosen[path].point is None:
            self.record.unplanned[f"{path}, which the rehearsal did not call"] += 1
            return forward(*args, **kwargs)
        with warnings.catch_warnings():
            # torch.compile looks at the gradients of all inputs, those that other regions made among them.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            return self._calls[path](*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model.

        Raises:
            RematError: see `planned`.
        """
        reason = "without gradients" if not torch.is_grad_enabled() else None
        reason = reason or (None if self.module.training else "in eval mode")
        if reason is not None:
            self.record.unplanned[reason] += 1
            return self.module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        check_not_sharded([self.module])
        shapes = str(pytree.tree_map(_described, (args, kwargs)))
        if shapes not in self._by_shapes:
            self._by_shapes[shapes] = self._plan(args, kwargs)
            told(logging.WARNING if len(self._by_shapes) == 1 else logging.INFO, f"planned {self.record.plan}")
        for path, point in self._by_shapes[shapes].items():
            self._chosen[path].point = point
        self.record.whole_calls += 1
        return self.module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, RegionPoint]:
        rehearsal, always = self._rehearse(args, kwargs)
        curves = [self._curve(seen) for seen in rehearsal.regions]
        budget = self._budget_bytes(rehearsal, always, curves)
        picked, peak = _picked(rehearsal, always + self.source.reserve_bytes, curves, budget)
        self.record.predicted_peak_bytes, self.record.budget_bytes = peak, budget
        plain = sum(curve[0].time for curve in curves)
        self.record.overhead = sum(point.time for point in picked) / plain - 1 if plain else 0.0
        self.record.points = {seen.path: point for seen, point in zip(rehearsal.regions, picked, strict=True)}
        return self.record.points

    def _budget_bytes(self, rehearsal: _Rehearsal, always: int, curves: Sequence[Sequence[RegionPoint]]) -> int:
        asked = self.source.request.budget
        assert asked is not None
        if asked.device_bytes is not None:
            return asked.device_bytes
        plain = _peak(rehearsal, always + self.source.reserve_bytes, [curve[0] for curve in curves])
        if asked.share is None:
            return _least(rehearsal, always + self.source.reserve_bytes, curves)
        if asked.of_activations:
            return always + int(asked.share * (plain - always))
        return int(asked.share * plain)

    def _rehearse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Rehearsal, int]:
        """Run the step once with each region in a checkpoint; nothing of it stays."""
        module, rehearsal = self.module, _Rehearsal()
        tensors = [*module.parameters(), *module.buffers(), *pytree.tree_leaves((args, kwargs))]
        sizes = {storage_key(t): t.untyped_storage().nbytes() for t in tensors if isinstance(t, torch.Tensor)}
        always = sum(sizes.values()) + self.source.state_bytes() + self.source.standing([module])
        buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        states = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self._rehearsal = rehearsal
        try:
            with rehearsal:
                returned = module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
                leaves = pytree.tree_leaves(_plain(returned))
                ends = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
                rehearsal.begin_backward()
                if not ends:
                    raise UsageError(
                        "regions: nothing that the model returns needs a gradient",
                        hint="call it as in training, and return the loss, or what it is computed from",
                    )
                inputs = [part for part in module.parameters() if part.requires_grad]
                # Gradients are held as in a step, and no hook on them runs.
                made = torch.autograd.grad(ends, inputs, [torch.ones_like(end) for end in ends], allow_unused=True)
                del made, ends, leaves, returned
        finally:
            self._rehearsal = None
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            torch.set_rng_state(states[0])
            if states[1]:
                torch.cuda.set_rng_state_all(states[1])
        if not rehearsal.regions:
            raise UsageError("regions: none of them was called in the first training step")
        return rehearsal, always

    def _curve(self, seen: _Seen) -> tuple[RegionPoint, ...]:
        """Return the plans of a region, the plain one first; equal regions have them once."""
        named = (*seen.module.named_parameters(), *seen.module.named_buffers())
        key = (
            type(seen.module),
            repr(seen.module),
            str([(name, _described(value)) for name, value in named]),
            str((seen.args, seen.kwargs, seen.autocast)),
        )
        if key not in self._points:
            self._points[key] = self._planned_points(seen)
        return self._points[key]

    def _planned_points(self, seen: _Seen) -> tuple[RegionPoint, ...]:
        twin = _twin(seen.module)
        made = partial(pytree.tree_map, lambda leaf: leaf.made() if isinstance(leaf, _Described) else leaf)
        device, dtype, on = seen.autocast or ("cpu", torch.bfloat16, False)
        kind = next((part.device.type for part in seen.module.parameters()), "cpu")
        with torch.autocast(device, dtype=dtype, enabled=on):
            step, captured = capture(
                Step(twin.forward, made(seen.args), made(seen.kwargs)), kind, f"region {seen.path!r}"
            )
        joint = Joint.of(captured)
        alone = replace(self.source, optimizer=None, reserve_bytes=0, missed_bytes=0, plans={})
        prepared = alone.prepared(joint, captured, [])
        del step
        outputs = sum(storage.bytes for storage in joint.returned)
        plain = _point(prepared.graph, plain_run(prepared.graph), outputs)
        floor = _kept_in_any_case(prepared.graph)
        found = [plain]
        for share in _SHARES:
            kept = floor + int(share * max(0, plain.kept - floor))
            schedule = self._plan_that_keeps(prepared, kept + 2 * outputs, plain.planned.predicted_peak_bytes)
            if schedule is not None:
                found.append(_point(prepared.graph, schedule, outputs))
        return tuple(found)

    def _plan_that_keeps(self, prepared: Prepared, kept: int, peak: int) -> Schedule | None:
        """Return a plan of a region that has at most so much beside what is there before between its passes.

        A planner knows one limit for all moments, so the boundary between the passes counts the rest as workspace.
        """
        graph, request = prepared.graph, self.source.request
        rest = peak - graph.fixed_bytes - kept
        ops = tuple(op.edited(workspace_bytes=max(0, rest)) if op.type == BOUNDARY_TYPE else op for op in graph.ops)
        chosen = request.chosen
        if chosen.has("time_limit") and "time_limit" not in chosen.options:
            request = replace(request, planner=chosen.with_options({"time_limit": _PLAN_SECONDS}))
        found = plan(replace(prepared, graph=graph.edited(ops=ops).checked()), request.at(peak))
        return found.schedule


def _kept_in_any_case(graph: Graph) -> int:
    """Return the bytes of what the backward pass reads and no op may make again."""
    read = {name for op in graph.ops if op.phase is Phase.BACKWARD for name in op.inputs}
    once = (op for op in graph.ops if op.phase is Phase.FORWARD and not op.recomputable and op.type != BOUNDARY_TYPE)
    return sum(graph.tensors[name].bytes for op in once for name in op.outputs if name in read)


def _plain(returned: Any) -> Any:
    return dict(returned) if isinstance(returned, Mapping) else returned


def _twin(module: nn.Module) -> nn.Module:
    """Return a copy of a region without data."""
    memo: dict[int, Any] = {}
    for part in module.parameters():
        memo[id(part)] = nn.Parameter(torch.empty_like(part, device="meta"), requires_grad=part.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


def _point(graph: Graph, schedule: Schedule, outputs: int) -> RegionPoint:
    trace = simulate(graph, schedule)
    boundary = next(
        place
        for place, step in enumerate(schedule.steps)
        if isinstance(step, Compute | Inplace) and graph.op[step.op].type == BOUNDARY_TYPE
    )
    fixed = graph.fixed_bytes
    levels = [level - fixed for level in trace.memory_bytes]
    return RegionPoint(
        planned=PlannedGraph.of(graph, schedule, trace),
        kept=levels[boundary] - outputs,
        forward=max(levels[: boundary + 1]),
        backward=max(levels[boundary + 1 :]) - 2 * outputs,
        time=trace.time,
    )


def _moments(rehearsal: _Rehearsal, always: int) -> Iterator[tuple[int, tuple[int, ...], tuple[int, str] | None]]:
    """Give each moment: what is there anyway, the regions that keep something, the one that runs, and its pass."""
    for holding, level in rehearsal.between.items():
        yield always + level, tuple(holding), None
    for place, seen in enumerate(rehearsal.regions):
        earlier = tuple(range(place))
        yield always + seen.before, earlier, (place, "forward")
        if seen.before_back is not None:
            yield always + seen.before_back, earlier, (place, "backward")


def _peak(rehearsal: _Rehearsal, always: int, points: Sequence[RegionPoint]) -> int:
    return max(
        level
        + sum(points[place].kept for place in holding)
        + (getattr(points[running[0]], running[1]) if running is not None else 0)
        for level, holding, running in _moments(rehearsal, always)
    )


def _least(rehearsal: _Rehearsal, always: int, curves: Sequence[Sequence[RegionPoint]]) -> int:
    return _solved(rehearsal, always, curves, None)[1]


def _picked(
    rehearsal: _Rehearsal, always: int, curves: Sequence[Sequence[RegionPoint]], budget: int
) -> tuple[list[RegionPoint], int]:
    found = _solved(rehearsal, always, curves, budget)
    if found[0] is None:
        least = _least(rehearsal, always, curves)
        raise DoesNotFit(
            f"no plans of the regions fit a budget of {format_bytes(budget)} together: the least peak of the step that "
            f"was found is {format_bytes(least)}",
            hint='give a larger budget (budget="min" takes the smallest that is found), or more regions',
        )
    return found[0], found[1]


def _solved(
    rehearsal: _Rehearsal, always: int, curves: Sequence[Sequence[RegionPoint]], budget: int | None
) -> tuple[list[RegionPoint] | None, int]:
    model = CpModel()
    taken = [[model.new_bool_var("") for _ in curve] for curve in curves]
    for literals in taken:
        model.add_exactly_one(literals)
    peak = model.new_int_var(0, 2**60, "peak") if budget is None else budget
    for level, holding, running in _moments(rehearsal, always):
        used: Any = level
        for place in holding:
            used += sum(p.kept * literal for p, literal in zip(curves[place], taken[place], strict=True))
        if running is not None:
            place, which = running
            used += sum(getattr(p, which) * literal for p, literal in zip(curves[place], taken[place], strict=True))
        model.add(used <= peak)
    if budget is None:
        model.minimize(peak)
    else:
        model.minimize(
            sum(p.time * literal for curve, literals in zip(curves, taken, strict=True)
                for p, literal in zip(curve, literals, strict=True))
        )  # fmt: skip
    solver = CpSolver()
    solver.parameters.max_time_in_seconds = _SECONDS
    solver.parameters.num_workers = 1
    if solver.solve(model) not in (OPTIMAL, FEASIBLE):
        return None, 0
    points = [
        next(p for p, literal in zip(curve, literals, strict=True) if solver.boolean_value(literal))
        for curve, literals in zip(curves, taken, strict=True)
    ]
    return points, _peak(rehearsal, always, points)
