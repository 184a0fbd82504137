"""A plan with inductor's fused kernels, compiled and corrected.

The peak is read from the compiled code.

Fusion removes intermediates, and inductor moves ops, so the compiled peak is near the plan's peak on the graph, but not
equal. Inductor's code is a sequence of kernels, allocations and frees: it runs once on tensors without data, forward
and backward pass with the saved tensors. If its peak is above the budget, the plan is compiled again without the
fusions that change the order of ops, and then a tighter plan is compiled. If the peak leaves room, a looser plan is
compiled.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from remat_cli.core.solve import baseline_of
from remat_cli.errors import DoesNotFit, GraphError
from remat_cli.pytorch.capture.joint import Joint, JointOp
from remat_cli.pytorch.capture.joint_capture import Captured, leaving_out
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.sizes import SizedJoint, Sizes, Values, put_symbols_back, with_strides
from remat_cli.pytorch.memory.live import LiveOnCpu
from remat_cli.pytorch.memory.measure import workspace_of
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.pytorch.plan.waiting import COMPILING
from remat_cli.pytorch.programs.pieces import CompiledPieces, KnownPieces
from remat_cli.pytorch.programs.program import halves
from remat_cli.pytorch.programs.slots import PassFunctions
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import TorchDispatchMode, without_modes
from remat_cli.pytorch.unstable.inductor import CompiledGraph
from remat_cli.pytorch.unstable.ops import name_of
from remat_cli.units import counted, format_bytes, format_time

_log = logging.getLogger("remat")

CompiledPass = CompiledGraph | CompiledPieces

# Largest number of compilations of a step before it runs.
MOST_COMPILED = 3
# A plan that leaves more than this share of the budget free is replaced by a looser one.
_ROOM = 0.03
# A tighter plan is asked for with this share of the budget beyond what was missing, as fusion takes its peak elsewhere.
_MARGIN = 0.01
# Where the least peak is wanted, plans for so many times the least before fusion are compiled, too: they recompute
# less, so less is fused that lies far apart.
_LOOSER = (1.06, 1.15)


@dataclass(frozen=True)
class CompiledMemory:
    """Memory of a compiled step without its inputs, in bytes.

    Attributes:
        forward: peak of the forward pass.
        kept: memory between the passes, with the forward pass's outputs.
        backward: peak of the backward pass, with the outputs and their gradients.
        peak_at: the kernel at the peak.
    """

    forward: int
    kept: int
    backward: int
    peak_at: str

    @property
    def peak(self) -> int:
        """The peak of both passes."""
        return max(self.forward, self.backward)


@dataclass(frozen=True, eq=False)
class CompiledPasses:
    """A plan with its two graphs compiled.

    Attributes:
        planned: the plan, with the compiled peak.
        forward: forward pass.
        backward: backward pass.
        memory: memory of the compiled graphs.
        keeps_order: ops are fused only if one reads the other.
        beside_kernels: names of ops that torch runs, without a compiled kernel.
        replay: tells the memory of the compiled graphs at other sizes; None for kernels of certain sizes.
        joint: the step in parts; None for the step as it was given.
    """

    planned: GraphRecord
    forward: CompiledPass
    backward: CompiledPass
    memory: CompiledMemory
    keeps_order: bool
    beside_kernels: frozenset[str] = frozenset()
    replay: Callable[[Values], CompiledMemory] | None = None
    joint: Joint | None = None

    def memory_at(self, values: Values) -> CompiledMemory:
        """Return the memory at some sizes, those of the plan for kernels of certain sizes."""
        return self.memory if self.replay is None else self.replay(values)

    def functions(self, joint: Joint) -> PassFunctions:
        """Return the functions that run both passes of the joint graph."""
        joint = self.joint or joint
        passes = halves(joint, self.planned.schedule)
        run_back = leaving_out(passes.backward, self.backward.run)
        return PassFunctions.of(joint, passes.saved, self.forward.run, run_back)

    @property
    def kernels(self) -> int:
        """Number of compiled kernels of both passes."""
        return len(self.forward.kernels) + len(self.backward.kernels)

    def time(self, joint: Joint) -> float:
        """Estimated time of the step in kernels, in the graph's time unit.

        A fused op takes the share of its own time that kernels are of fused ops, so plans with many short pieces take
        longer. Ops that torch runs, and waits for the link, take their own time.
        """
        joint = self.joint or joint
        graph, runs = self.planned.graph, self.planned.schedule.computes
        fused = [name for name in runs if _called(joint.op[name]) not in self.beside_kernels]
        saved = sum(graph.op[name].time for name in fused) * (1 - min(1, self.kernels / max(1, len(fused))))
        return baseline_of(graph).time * (1 + self.planned.overhead) - saved


def _called(op: JointOp) -> str:
    """Return the name of an op, without its overload; "" for the boundary."""
    return "" if op.node is None else _packet(op.node.target)


def _packet(target: Any) -> str:
    return str(getattr(target, "overloadpacket", target))


def fused_plan(source: ScheduleSource, piece: Piece, sized: SizedJoint | None = None) -> CompiledPasses:
    """Plan and compile a step until it fits the budget, at most three times.

    If plans may move tensors to the host, plans that recompute alone are compiled before them, and the best of all is
    returned.

    Args:
        source: source of plans.
        piece: the step, as inductor decomposes it.
        sized: the graph, if it is that of certain sizes, and kernels for all sizes are compiled.

    Raises:
        DoesNotFit: there is no plan, or the compiled step stays above the budget; the message has the place of its
            peak.
        GraphError: inductor does not compile the step.
        UsageError: there is no compiler.
    """
    recomputed: CompiledPasses | None = None
    if (staying := source.staying()) is not None:
        with suppress(DoesNotFit):
            recomputed = _corrected_plan(staying, piece, sized)
        if recomputed is not None and recomputed.planned.overhead == 0 and not source.is_smallest:
            return recomputed
    try:
        moved = _corrected_plan(source, piece, sized)
    except DoesNotFit:
        if recomputed is None:
            raise
        return recomputed
    if recomputed is None:
        return moved
    if source.is_smallest:
        return min(recomputed, moved, key=_by_peak)
    return min(recomputed, moved, key=lambda plan: plan.time(piece.joint))


def _by_overhead(plan: CompiledPasses) -> tuple[float, int]:
    return plan.planned.overhead, plan.planned.predicted_peak_bytes


def _by_peak(plan: CompiledPasses) -> tuple[int, float]:
    return plan.planned.predicted_peak_bytes, plan.planned.overhead


def _corrected_plan(source: ScheduleSource, given_piece: Piece, sized: SizedJoint | None) -> CompiledPasses:
    """Plan and compile a step; arguments and errors are those of `fused_plan`."""
    known: KnownPieces | None = None if source.is_decomposed else {}
    piece, planned = source.planned(given_piece)
    given = planned.budget_bytes
    budget = given or sys.maxsize  # a schedule from a file has no budget
    compiled: list[CompiledPasses] = []
    asked = budget  # of the last plan
    spent, before = source.waiting.spent_ns, source.waiting.spent_ns[COMPILING]
    keeps_order = source.is_smallest
    while True:
        with source.waiting.phase(COMPILING):
            outputs = piece.captured.forward_outputs
            plan = compiled_plan(piece.joint, planned, outputs, keeps_order=keeps_order, sized=sized, known=known)
        compiled.append(plan)
        peak = plan.planned.predicted_peak_bytes
        _log.info("compiled %s of at most %s: a peak of %s", len(compiled), MOST_COMPILED, format_bytes(peak))
        fits = peak <= budget
        has_room = (budget - peak) > _ROOM * budget and plan.planned.overhead > 0
        if len(compiled) == MOST_COMPILED or (fits and not has_room and not source.is_smallest):
            break
        if not fits and not keeps_order:
            keeps_order = True
            continue
        if source.is_smallest:
            asked = int(budget * _LOOSER[len(compiled) - 1])
        else:
            asked = corrected_budget(asked, planned.predicted_peak_bytes, peak, budget)
        try:
            within = source.within(asked)
            piece, another = within.planned(given_piece)
        except DoesNotFit:
            break
        if another.schedule.steps in [one.planned.schedule.steps for one in compiled if one.keeps_order == keeps_order]:
            break
        planned = another
    if source.is_smallest:
        budget = min(plan.planned.predicted_peak_bytes for plan in compiled)
    fitting = [plan for plan in compiled if plan.planned.predicted_peak_bytes <= budget]
    if not fitting:
        raise _above(min(compiled, key=_by_peak), budget, len(compiled))
    best = min(fitting, key=_by_overhead)
    times = counted(len(compiled), "time")
    words = f"{best.kernels} fused kernels, compiled {times} in {format_time(spent[COMPILING] - before, 'ns')}"
    return replace(best, planned=replace(best.planned, budget_bytes=given and budget, kernels=words))


def corrected_budget(asked: int, planned: int, peak: int, budget: int) -> int:
    """Return the budget of the next plan.

    Args:
        asked: budget of the last plan.
        planned: its peak on the graph.
        peak: its peak, once compiled.
        budget: what compiled plans are to fit.
    """
    if peak <= budget:
        return asked + budget - peak
    return min(asked, planned) + budget - peak - int(_MARGIN * budget)


def _above(plan: CompiledPasses, budget: int, compiled: int) -> DoesNotFit:
    peak = plan.planned.predicted_peak_bytes
    return DoesNotFit(
        f"compiled {counted(compiled, 'time')}, the step peaks at {format_bytes(peak)} or more, "
        f"above the budget of {format_bytes(budget)}: at kernel {plan.memory.peak_at!r}",
        hint=f"give a larger budget ({format_bytes(peak)} holds), or plan without fused=True",
    )


def compiled_plan(
    joint: Joint,
    planned: GraphRecord,
    forward_outputs: int,
    *,
    keeps_order: bool = False,
    sized: SizedJoint | None = None,
    known: KnownPieces | None = None,
) -> CompiledPasses:
    """Return a plan with its two graphs compiled, and their peak.

    Args:
        joint: the step, as inductor decomposes it.
        planned: the plan.
        forward_outputs: number of the step's outputs.
        keeps_order: fuse ops only if one reads the other: fewer fusions, and less memory.
        sized: see `fused_plan`.
        known: pieces compiled so far, for a step of eager's ops, in parts or not; None: inductor has decomposed it.

    Raises:
        GraphError: inductor does not compile the plan.
        UsageError: there is no compiler.
    """
    passes = halves(joint, planned.schedule, fused=True)
    if sized is not None:
        put_symbols_back(passes.forward)
        put_symbols_back(passes.backward)
    # Modes of the user's, and the one that measures a step, are not to see what the compiler does.
    with without_modes():
        compiled: Any = CompiledPieces if planned.schedule.has_transfers else CompiledGraph
        if known is not None:
            compiled = partial(CompiledPieces, known=known)
        forward = compiled(
            passes.forward, user_outputs=range(forward_outputs), is_backward=False, keeps_order=keeps_order
        )
        handed_over = passes.backward.graph.find_nodes(op="placeholder")[
            len(joint.sizes) : -len(joint.tangents) or None
        ]
        _take_strides(handed_over, forward.output_strides[forward_outputs:])
        gradients = range(len(joint.backward_outputs))
        backward = compiled(passes.backward, user_outputs=gradients, is_backward=True, keeps_order=keeps_order)
    replay = _Replays(forward, backward, forward_outputs, len(joint.sizes))
    at_sizes = None if sized is None else partial(replay.at, sized.of)
    memory = replay.memory(_without_data) if at_sizes is None or sized is None else at_sizes(sized.values)
    planned = replace(planned, predicted_peak_bytes=planned.graph.fixed_bytes + memory.peak)
    called, in_parts = frozenset(replay.called), None if known is None else joint
    return CompiledPasses(planned, forward, backward, memory, keeps_order, called, at_sizes, in_parts)


def given_to(captured: Captured) -> list[object]:
    """Return the facts about a joint graph's inputs that its kernels depend on."""
    given = (node.meta["val"] for node in captured.module.graph.find_nodes(op="placeholder"))
    return [
        (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device)
        if isinstance(value, torch.Tensor)
        else value
        for value in given
    ]


def _take_strides(handed_over: Sequence[fx.Node], strides: Sequence[Sequence[int] | None]) -> None:
    """Give inputs of the backward pass the strides from the forward pass."""
    for node, stride in zip(handed_over, strides, strict=True):
        node.meta["val"] = with_strides(node.meta["val"], stride)


@dataclass(frozen=True)
class _Replays:
    """Replays two compiled graphs without data, for their memory.

    Attributes:
        forward: forward pass.
        backward: backward pass.
        outputs: number of the step's outputs.
        sizes: number of inputs that are sizes.
        workspaces: known workspace of kernels that are not compiled, by the kind of call.
        called: names of ops that ran outside of kernels.
    """

    forward: CompiledPass
    backward: CompiledPass
    outputs: int
    sizes: int
    workspaces: dict[str, int] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)

    def at(self, sizes: Sizes, values: Values) -> CompiledMemory:
        """Return the memory at some sizes."""
        return self.memory(partial(sizes.without_data, values=values))

    def memory(self, without_data: Callable[[Any], Any]) -> CompiledMemory:
        """Return the memory of both passes.

        Args:
            without_data: makes an input that has no data of one that the graphs were compiled for.

        Raises:
            GraphError: the code around the kernels does not run without data.
        """
        with without_modes():
            return self._memory(without_data)

    def _memory(self, without_data: Callable[[Any], Any]) -> CompiledMemory:
        forward, backward = self.forward, self.backward
        inputs = [without_data(value) for value in forward.inputs]
        device = next((value.device.type for value in forward.inputs if isinstance(value, torch.Tensor)), "cpu")
        replay = _Replay(inputs, device, self.workspaces)
        try:
            with replay:
                values = list(forward.replay(list(inputs), replay.make, replay.ran))
                returned, saved = values[: self.outputs], values[self.outputs :]
                del values
                of_forward, kept = replay.most, replay.bytes
                tangents = [without_data(value) for value in backward.inputs[self.sizes + len(saved) :]]
                replay.see(tangents)
                arguments = [*map(without_data, backward.inputs[: self.sizes]), *saved, *tangents]
                del saved, tangents
                replay.most = 0, ""
                gradients = backward.replay(arguments, replay.make, replay.ran)
        except (RuntimeError, NotImplementedError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise GraphError(
                f"the peak of the compiled step cannot be read: {reason}", hint="plan without fused=True"
            ) from error
        del returned, gradients
        self.called.update(replay.called)
        of_backward = replay.most
        return CompiledMemory(of_forward[0], kept, of_backward[0], max(of_forward, of_backward)[1])


def _without_data(value: Any) -> Any:
    """Return a fake tensor's copy on the device "meta".

    A number is returned unchanged.
    """
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _described(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


class _Replay(TorchDispatchMode):
    """Follows memory on the device "meta" while the code around kernels runs.

    Kernels that are not compiled run alone, once for each kind of call, to measure their memory.

    Attributes:
        most: peak without the inputs, in bytes, and the kernel that ran then.
        called: names of ops that ran outside of kernels.
    """

    def __init__(self, inputs: Sequence[Any], device: str, workspaces: dict[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live = LiveOnCpu("meta")
        self._live.see(inputs)
        self._inputs_bytes, self._device = self._live.bytes, device
        self._workspaces = workspaces
        self.most = 0, ""
        self.called = set[str]()

    @property
    def bytes(self) -> int:
        """Bytes in memory now, without the inputs."""
        return self._live.bytes - self._inputs_bytes

    def make(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="meta")

    def see(self, tensors: Sequence[Any]) -> None:
        self._live.see(tensors)

    def ran(self, kernel: str, workspace: int = 0) -> None:
        """Note the memory while a kernel runs."""
        now = self.bytes + workspace
        if now > self.most[0]:
            self.most = now, kernel

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        self._live.see(results)
        self.called.add(_packet(func))
        kind = str((func, pytree.tree_map_only(torch.Tensor, _described, (args, kwargs))))
        if kind not in self._workspaces:
            self._workspaces[kind] = workspace_of(func, args, kwargs, self._device)
        self.ran(f"{func.namespace}.{name_of(func)}", self._workspaces[kind])
        return results
