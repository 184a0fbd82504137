"""A step run eagerly, by the plain schedule, and by a plan.

All runs begin in the same state. Their results are compared bit by bit, their memory and time are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from statistics import median
from time import perf_counter_ns, time_ns
from typing import Any, ClassVar, Literal

import torch
from torch import fx

from remat_cli.config import GraphOptions
from remat_cli.core.graph import BOUNDARY_TYPE, Graph
from remat_cli.core.link import Link
from remat_cli.core.problem import Observer
from remat_cli.core.schedule import Compute, Schedule, plain_run
from remat_cli.core.simulate import Trace, simulate
from remat_cli.errors import GraphError, InvalidSchedule
from remat_cli.formats.functions import checked_dims
from remat_cli.pytorch.capture.capture_errors import explained
from remat_cli.pytorch.capture.from_config import load_step
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.joint_capture import Captured, compiled, run_by
from remat_cli.pytorch.capture.reader import callable_of, explaining_failure, modules_of
from remat_cli.pytorch.capture.split import split
from remat_cli.pytorch.capture.step import Step, as_step, losses_in
from remat_cli.pytorch.memory.measure import MEASURED_DEVICES, measure_once
from remat_cli.pytorch.memory.memory import Allocations, allocations_of, peak_of, time_of
from remat_cli.pytorch.plan.file_source import check_structure
from remat_cli.pytorch.plan.fused import compiled_plan
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.programs.pieces import KnownPieces
from remat_cli.pytorch.programs.program import Watch, divided
from remat_cli.pytorch.programs.self_test import self_test
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.front_end import forgetting
from remat_cli.pytorch.unstable.inductor import needing_compiler
from remat_cli.settings import Setting
from remat_cli.splitting import Split
from remat_cli.units import format_bytes, format_time

# Tolerances between measured and predicted peak; the larger one counts.
TOLERANCE_BYTES = 2 * 2**20
TOLERANCE_SHARE = 0.03
# Tolerances between results and eager's, as a share of the largest result of the kind: kernels sum in another order,
# and narrow element types round sooner.
EAGER_TOLERANCE = 1e-4
_NARROW_TOLERANCE = 3e-2
_NARROW = ("float16", "bfloat16", "float8")
_TIMED_RUNS = 5
# The time after which no further pair of runs is timed, in nanoseconds; and that of a run whose time is taken as its
# peak is measured, which takes little beside it.
_TIMED_NS, _LONG_NS = 5 * 10**9, 10**9
_PLAN_WITH_WORKSPACE = (
    "kernels may take memory of their own: plan with what 'remat measure' writes, by ",
    Setting("measurements", "FILE"),
)


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The peak of a step without memory from before.

    That memory has parameters, buffers, inputs and optimizer state.

    Attributes:
        predicted: peak in the simulator, in bytes; None without a prediction.
        measured: measured peak in bytes.
    """

    predicted: int | None
    measured: int

    @property
    def agrees(self) -> bool:
        """Whether both peaks agree within the tolerance."""
        return self.predicted is None or abs(self.measured - self.predicted) <= _tolerance(self.predicted)


def _tolerance(size: int) -> float:
    return max(TOLERANCE_BYTES, TOLERANCE_SHARE * size)


@dataclass(frozen=True, slots=True)
class KernelsMeasured:
    """The measured workspace of a step's kernels.

    The schedule's own graph lacks this workspace.

    Attributes:
        took_ns: time of measuring, in nanoseconds.
        added_bytes: growth of the plan's predicted peak through workspace.
        op: the op at the plan's peak with workspace.
        workspace_bytes: the workspace of that op's kernel.
    """

    took_ns: int
    added_bytes: int
    op: str
    workspace_bytes: int


@dataclass(frozen=True)
class StepExecution:
    """The results of three runs of a step from the same state.

    Attributes:
        version: version of torch.
        device: kind of device.
        eager: peak of the unchanged step.
        plain: peak of the plain schedule, run like a plan.
        plan: peak of the plan.
        results: number of compared results: outputs, gradients, buffers.
        changed: names of results that differ in any bit from the plain schedule's.
        changed_by: the first op with different results; None if all agree.
        unrepeatable: names of results that differ between two runs of the plain schedule; none if the plan's results
            are the plain schedule's, as it runs once then.
        beside_eager: names of results that differ in any bit from eager's.
        eager_difference: the largest difference to eager, as a share of the largest result of its kind.
        eager_tolerance: largest allowed difference to eager.
        parted_at: the op at which the plan's measured memory departs from the prediction; None if they agree.
        moves: whether the plan moves tensors to the host.
        fused: inductor's kernels ran; the unchanged step then is the step under torch.compile.
        predicted_overhead: predicted overhead of the plan, as a share of the plain schedule's time.
        measured_overhead: measured overhead, likewise.
        kernels: measured workspace of kernels; None if a file of measurements has it.
        budget_bytes: budget for the plan's peak, without memory from before the step; None without a budget.
    """

    runtime: ClassVar[Literal["torch"]] = "torch"

    version: str
    device: str
    eager: StepPeak
    plain: StepPeak
    plan: StepPeak
    results: int
    changed: tuple[str, ...]
    changed_by: str | None
    unrepeatable: tuple[str, ...]
    beside_eager: tuple[str, ...]
    eager_difference: float
    eager_tolerance: float
    parted_at: str | None
    moves: bool
    fused: bool
    predicted_overhead: float
    measured_overhead: float
    kernels: KernelsMeasured | None = None
    budget_bytes: int | None = None

    @property
    def holds(self) -> bool:
        """Whether the run agrees with the plan."""
        same = not self.changed and self.eager_difference <= self.eager_tolerance
        return same and self.plan.agrees and not self.is_above_budget

    @property
    def is_above_budget(self) -> bool:
        """Whether the plan exceeds its budget beyond the tolerance."""
        return self.budget_bytes is not None and self.plan.measured > self.budget_bytes + _tolerance(self.budget_bytes)

    def broken(self, graph: Graph) -> InvalidSchedule | None:
        """Return the error for the run's first difference from the plan.

        Graph and schedule are the plan. None without a difference.
        """
        if self.changed:
            at = "" if self.changed_by is None else f"; they first differ at op {_placed(graph, self.changed_by)}"
            return InvalidSchedule(
                f"the plan gives other bits than the plain schedule: {', '.join(self.changed[:4])}{at}",
                hint="kernels of this device do not repeat themselves: so do two runs of the plain schedule"
                if self.unrepeatable
                else "please report it, with the step and the schedule",
            )
        if self.eager_difference > self.eager_tolerance:
            return InvalidSchedule(
                f"the captured graph gives other results than the step as it is, by {self.eager_difference:.1e} of "
                f"the largest: {', '.join(self.beside_eager[:4])}",
                hint="torch.compile(backend='aot_eager') is likely to do the same: please report it",
            )
        if self.is_above_budget:
            return self._above_budget(graph)
        peak = self.plan
        if peak.agrees or peak.predicted is None:
            return None
        at = "no single op" if self.parted_at is None else f"op {_placed(graph, self.parted_at)}"
        return InvalidSchedule(
            f"the measured peak, {format_bytes(peak.measured)}, is not the predicted one, "
            f"{format_bytes(peak.predicted)}; they part most at {at}",
            hint=_PLAN_WITH_WORKSPACE,
        )

    def _above_budget(self, graph: Graph) -> InvalidSchedule:
        assert self.budget_bytes is not None
        above = f"the measured peak, {format_bytes(self.plan.measured)}, is above what the budget leaves beside what "
        above += f"is there before the step, {format_bytes(self.budget_bytes)}"
        if self.kernels is not None and self.kernels.workspace_bytes:
            own = format_bytes(self.kernels.workspace_bytes)
            above += f": the kernel of op {_placed(graph, self.kernels.op)} has a workspace of {own}"
        return InvalidSchedule(above, hint=_PLAN_WITH_WORKSPACE)


def execute_step(
    reference: str,
    options: GraphOptions,
    graph: Graph,
    schedule: Schedule,
    *,
    link: Link | None = None,
    seed: int = 0,
    budget_bytes: int | None = None,
    measures: bool = False,
    observe: Observer | None = None,
) -> StepExecution:
    """Run a step unchanged, by the plain schedule, and by `schedule`.

    A Python function gives the step.

    Args:
        reference: FILE.py:NAME, package.module:NAME, or a model's config; the step is built again, of real tensors.
        options: options of reading the planned graph.
        graph: the planned graph.
        schedule: a verified schedule of the graph.
        link: link to the host; required only for schedules with transfers.
        seed: of the weights, the inputs and what the step draws.
        budget_bytes: that the plan is to keep within, what is there before the step included; None: any peak will do.
        measures: run each kernel by itself to learn its workspace, which `graph` does not have.
        observe: is told what runs.

    Raises:
        UsageError: this torch cannot be used.
        GraphError: the step does not run, or is not the planned one.
    """
    self_test()
    observe = observe or Observer()
    observe.phase("building the model")
    function = load_step(reference, options)
    dims = checked_dims(function, reference, options.dims)
    torch.manual_seed(seed)
    with explaining_failure(reference):
        step = as_step(function(**dims), reference)
    runs = StepRuns(
        step,
        reference,
        graph,
        seed,
        options.accumulate,
        link,
        measures,
        options.fused,
        options.cuts,
        observe,
    )
    left_bytes = None if budget_bytes is None else budget_bytes - graph.fixed_bytes
    with forgetting(), explained(reference):
        return replace(runs.compare(schedule), budget_bytes=left_bytes)


@dataclass
class StepRuns:
    """Runs of one step from the same state, unchanged or by a schedule.

    Attributes:
        step: the step with real tensors.
        where: origin of the step, for messages.
        graph: the planned graph.
        seed: seed of the step's random numbers.
        accumulate: whether gradients are there before the step.
        link: link to the host; None: schedules have no transfers.
        measures: run each kernel alone before the first schedule runs, and count its workspace from then on.
        fused: schedules run inductor's kernels.
        cuts: what schedules run in parts.
        observe: is told what runs.
        compiled_peaks: of schedules that were compiled, beside what is there before, in bytes, by their identity.
        measuring_ns: how long that took.
        begun: number of runs so far.
        last_ns: time of the last run, in nanoseconds.
    """

    step: Step
    where: str
    graph: Graph
    seed: int
    accumulate: bool
    link: Link | None = None
    measures: bool = False
    fused: bool = False
    cuts: Mapping[str, Split] = field(default_factory=dict)
    observe: Observer = field(default_factory=Observer)
    compiled_peaks: dict[int, int] = field(default_factory=dict)
    measuring_ns: int = 0
    begun: int = 0
    last_ns: int = 0
    changing: list[tuple[torch.Tensor, torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        inputs = pytree.tree_leaves((self.step.inputs, dict(self.step.keyword_inputs)))
        tensors = [*self.named("buffer").values(), *(value for value in inputs if isinstance(value, torch.Tensor))]
        self.pieces: KnownPieces | None = {} if self.cuts else None
        self.changing = [(tensor, tensor.detach().clone()) for tensor in tensors]
        # On a GPU the algorithm, and with it the memory, must not depend on earlier trials (untried).
        torch.backends.cudnn.benchmark = False

    @property
    def device(self) -> str:
        """The kind of device of the parameters."""
        parameters = self.named("parameter").values()
        return "cuda" if any(parameter.is_cuda for parameter in parameters) else "cpu"

    def named(self, kind: str) -> dict[str, torch.Tensor]:
        """Return the parameters or the buffers of all modules."""
        modules = modules_of(self.step)
        return {
            f"{name}" if len(modules) == 1 else f"{number}.{name}": tensor
            for number, module in enumerate(modules)
            for name, tensor in (module.named_parameters() if kind == "parameter" else module.named_buffers())
        }

    def compare(self, schedule: Schedule) -> StepExecution:
        """Run the step unchanged, by the plain schedule and by `schedule`."""
        self.tell("the step as it is")
        eager_call = callable_of(self.step.model)
        if self.fused:
            # Parts are of eager's ops, and so are the numbers that they draw.
            draws_as_eager: dict[str, Any] = {"fallback_random": bool(self.cuts)}
            eager_call = torch.compile(eager_call, fullgraph=True, dynamic=False, options=draws_as_eager)
        with explaining_failure(self.where), needing_compiler():
            eager = self.results(eager_call)
        self.tell("the step as it is, for its peak")
        eager_peak = StepPeak(None, self.peak(eager_call))
        without = self.predicted(schedule)
        self.tell("the plain schedule, once kernels are measured" if self.measures else "the plain schedule")
        plain_schedule = plain_run(self.graph)
        plain_call = self.planned(plain_schedule)
        plain = self.results(plain_call)
        beside_eager, difference = _compared(eager, plain)
        del eager
        expected = _digests(plain)
        self.tell("the schedule")
        plan_call = self.planned(schedule)
        if self.fused:  # other fusions round differently
            differing, by = _compared(plain, self.results(plan_call))
            changed = tuple(differing) if by > self.tolerance() else ()
        else:
            del plain
            digests = _digests(self.results(plan_call))
            differing = [name for name, digest in expected.items() if digests[name] != digest]
            changed = tuple(differing)
        again = expected
        if differing:
            self.tell("the plain schedule again, as results differ")
            again = _digests(self.results(plain_call))
        self.tell("the schedule, for its peak")
        plan_peak, plan_ns = StepPeak(self.predicted(schedule), self.peak(plan_call)), self.last_ns
        self.tell("the plain schedule, for its peak")
        plain_peak = StepPeak(self.predicted(plain_schedule), self.peak(plain_call))
        if self.device == "cpu" and min(plan_ns, self.last_ns) > _LONG_NS:
            measured = plan_ns / self.last_ns - 1
        else:
            measured = median(self.overhead(plain_call, plan_call))
        return StepExecution(
            version=torch.__version__,
            device=self.device,
            eager=eager_peak,
            plain=plain_peak,
            plan=plan_peak,
            results=len(expected),
            changed=changed,
            changed_by=self.first_difference(plain_schedule, schedule) if changed and not self.fused else None,
            unrepeatable=tuple(name for name, digest in expected.items() if again[name] != digest),
            beside_eager=tuple(beside_eager),
            eager_difference=difference,
            eager_tolerance=self.tolerance(),
            parted_at=None if plan_peak.agrees or self.fused or self.device != "cpu" else self.parting(schedule),
            moves=schedule.has_transfers,
            fused=self.fused,
            predicted_overhead=self.replay(schedule).time / max(1, self.replay(plain_schedule).time) - 1,
            measured_overhead=measured,
            kernels=self.kernels_measured(schedule, without) if self.measures and not self.fused else None,
        )

    def tell(self, what: str) -> None:
        """Tell the observer what runs next, and how long the last run took."""
        self.begun += 1
        last = f"; the last run took {format_time(self.last_ns, 'ns')}" if self.last_ns else ""
        self.observe.phase(f"run {self.begun}: {what}{last}")

    def kernels_measured(self, schedule: Schedule, without: int) -> KernelsMeasured:
        """Return the measured workspace for a schedule.

        `without` is the schedule's predicted peak without workspace.
        """
        trace = self.replay(schedule)
        step = schedule.steps[trace.peak_step] if trace.peak_step >= 0 else None
        op = step.op if isinstance(step, Compute) else ""
        workspace = self.graph.op[op].workspace_bytes if op else 0
        return KernelsMeasured(self.measuring_ns, self.predicted(schedule) - without, op, workspace)

    def measure(self, joint: Joint) -> None:
        """Add the workspace of each kernel to later predictions."""
        if self.measuring_ns or joint.device not in MEASURED_DEVICES:
            return
        began = time_ns()
        self.graph = measure_once(joint, joint.device, {}).with_workspace(self.graph).checked()
        self.measuring_ns = time_ns() - began

    def planned(self, schedule: Schedule, watch: Watch | None = None) -> Callable[..., Any]:
        """Return a function that runs the step by a schedule."""
        structure = {op.name: op.signature or "" for op in self.graph.ops}

        def divide(captured: Captured) -> tuple[fx.GraphModule, fx.GraphModule]:
            from remat_cli.pytorch.capture.convert import graph_of

            joint = Joint.with_losses_alone(split(captured, self.cuts))
            check_structure(graph_of(joint, self.graph.name), structure, "the schedule")
            if self.measures:
                self.measure(joint)
            forward, backward = divided(joint, schedule, watch)
            if self.fused:
                planned = GraphRecord.of(self.graph, schedule, self.replay(schedule))
                fused = compiled_plan(joint, planned, captured.forward_outputs, known=self.pieces)
                self.compiled_peaks[id(schedule)] = fused.planned.predicted_peak_bytes - self.graph.fixed_bytes
                run_by(forward, fused.forward.run)
                run_by(backward, fused.backward.run)
            return forward, backward

        return compiled(callable_of(self.step.model), divide, fused=self.fused and not self.cuts)

    def run(self, call: Callable[..., Any], see: Callable[[int, torch.Tensor], None] = lambda *_: None) -> None:
        """Run forward and backward pass once.

        Args:
            call: runs the forward pass.
            see: gets each output with its number, before the backward pass.
        """
        began = perf_counter_ns()
        torch.manual_seed(self.seed)
        outputs = _plain(call(*self.step.inputs, **self.step.keyword_inputs))
        returned = [value for value in pytree.tree_leaves(outputs) if isinstance(value, torch.Tensor)]
        losses = losses_in(outputs, [value for value in returned if value.requires_grad])
        if not losses:
            raise GraphError(f"{self.where}: nothing that the step returns needs a gradient")
        for number in range(len(returned)):
            see(number, returned[number].detach())
        del outputs, returned
        torch.autograd.backward(losses, [_tangent(value) for value in losses])
        self.last_ns = perf_counter_ns() - began

    def reset(self) -> None:
        """Bring back the state before the step."""
        for tensor, value in self.changing:
            tensor.detach().copy_(value)
        for parameter in self.named("parameter").values():
            if not (self.accumulate and parameter.grad is not None):
                parameter.grad = None
            else:
                parameter.grad.zero_()
        for value, _ in self.changing:
            value.grad = None

    def results(self, call: Callable[..., Any]) -> dict[str, torch.Tensor]:
        """Run once from the earlier state, and return copies of all results."""
        self.reset()
        returned: dict[str, torch.Tensor] = {}
        self.run(call, lambda number, value: returned.update({f"output {number}": value.clone()}))
        gradients = {
            f"gradient of {name}": parameter.grad.clone()
            for name, parameter in self.named("parameter").items()
            if parameter.grad is not None
        }
        buffers = {f"buffer {name}": buffer.clone() for name, buffer in self.named("buffer").items()}
        return returned | gradients | buffers

    def peak(self, call: Callable[..., Any]) -> int:
        """Run once, and return the peak without memory from before, in bytes."""
        self.reset()
        return peak_of(lambda: self.run(call), self.device)

    def replay(self, schedule: Schedule) -> Trace:
        """Return the simulator's trace of a schedule."""
        return simulate(self.graph, schedule, link=self.link)

    def predicted(self, schedule: Schedule) -> int:
        """Return a schedule's predicted peak without memory from before, in bytes.

        For a compiled schedule the peak is inductor's.
        """
        if id(schedule) in self.compiled_peaks:
            return self.compiled_peaks[id(schedule)]
        return self.replay(schedule).peak_bytes - self.graph.fixed_bytes

    def tolerance(self) -> float:
        """Return the allowed difference of results from eager's.

        It is a share of the largest result of the kind.
        """
        dtypes = {tensor.dtype or "" for tensor in self.graph.tensors.values()}
        return _NARROW_TOLERANCE if any(dtype.startswith(_NARROW) for dtype in dtypes) else EAGER_TOLERANCE

    def overhead(self, plain: Callable[..., Any], other: Callable[..., Any], runs: int = _TIMED_RUNS) -> list[float]:
        """Return one call's extra time over another, as shares.

        Each share comes from a pair of runs. Where runs take long, there are fewer pairs, at least one.

        Args:
            plain: the call to compare with; each call comes first in half of the pairs.
            other: the call with extra time.
            runs: largest number of pairs.
        """
        shares: list[float] = []
        began = perf_counter_ns()
        for turn in range(runs):
            if shares and perf_counter_ns() - began > _TIMED_NS:
                break
            took = {}
            for call in (plain, other) if turn % 2 == 0 else (other, plain):
                self.tell(f"{'the plain schedule' if call is plain else 'the schedule'}, timed, pair {turn + 1}")
                self.reset()
                took[call] = time_of(lambda call=call: self.run(call), self.device)  # type: ignore[misc]
            shares.append(took[other] / took[plain] - 1)
        return shares

    def first_difference(self, plain: Schedule, schedule: Schedule) -> str | None:
        """Return the first op with other results than the plain schedule."""
        expected: dict[str, list[str]] = {}
        self.reset()
        self.run(self.planned(plain, lambda op, results: expected.update({op: [_digest(value) for value in results]})))
        different: list[str] = []

        def look(op: str, results: tuple[Any, ...]) -> None:
            if [_digest(value) for value in results] != expected[op]:
                different.append(op)

        self.reset()
        self.run(self.planned(schedule, look))
        return different[0] if different else None

    def parting(self, schedule: Schedule) -> str | None:
        """Return the op at which memory departs most from the prediction."""
        ran: list[tuple[str, int]] = []
        call = self.planned(schedule, lambda op, results: ran.append((op, time_ns())))
        self.results(call)
        ran.clear()
        self.reset()
        allocations = allocations_of(lambda: self.run(call))
        return _parting(allocations, ran, self.graph, schedule, self.replay(schedule))


def _parting(
    allocations: Allocations, ran: Sequence[tuple[str, int]], graph: Graph, schedule: Schedule, trace: Trace
) -> str | None:
    sizes = zip(schedule.steps, trace.memory_bytes[1:], strict=True)
    steps = [(step.op, size) for step, size in sizes if isinstance(step, Compute)]
    of_ops = [(op, size - graph.fixed_bytes) for op, size in steps if graph.op[op].type != BOUNDARY_TYPE]
    apart: dict[str, int] = {}
    start = allocations.times_ns[0] if allocations.times_ns else 0
    for (op, end), (planned, size) in zip(ran, of_ops, strict=True):
        if op != planned:
            raise InvalidSchedule(f"op {op!r} ran where the schedule has {planned!r}", hint="please report it")
        apart[op] = max(apart.get(op, 0), abs(allocations.peak_between(start, end) - size))
        start = end
    return max(apart, key=apart.__getitem__) if apart else None


def _placed(graph: Graph, name: str) -> str:
    source = graph.op[name].source
    return f"{name!r} ({source})" if source else repr(name)


def _plain(outputs: Any) -> Any:
    """Convert mapping outputs to plain dicts for pytree."""
    return dict(outputs) if isinstance(outputs, Mapping) else outputs


def _tangent(value: torch.Tensor) -> torch.Tensor | None:
    """Return an output's incoming gradient; None for a loss.

    None stands for 1. Other gradients are random, the same every time.
    """
    if value.dim() == 0:
        return None
    generator = torch.Generator(device=value.device).manual_seed(0)
    return torch.randn(value.shape, dtype=value.dtype, device=value.device, generator=generator)


def _digest(value: torch.Tensor) -> str:
    flat = value.detach().contiguous().cpu().reshape(-1)
    content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return sha256(content).hexdigest()


def _digests(results: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {name: _digest(value) for name, value in results.items()}


def _compared(eager: Mapping[str, torch.Tensor], plain: Mapping[str, torch.Tensor]) -> tuple[list[str], float]:
    """Return results that differ in any bit, and the largest difference.

    The difference is a share of the largest result of the kind.
    """
    different = [name for name, value in eager.items() if not torch.equal(value, plain[name])]
    largest: dict[str, float] = {}
    for name, value in eager.items():
        kind = name.split(" ")[0]
        largest[kind] = max(largest.get(kind, 0.0), _size(value))
    shares = (
        _size(eager[name].double() - plain[name].double()) / max(largest[name.split(" ")[0]], 1e-30)
        for name in different
    )
    return different, max(shares, default=0.0)


def _size(value: torch.Tensor) -> float:
    return float(value.detach().double().abs().max()) if value.numel() else 0.0
