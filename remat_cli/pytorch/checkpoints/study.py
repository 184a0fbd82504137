"""`remat plan --as checkpoints`: choose modules, run, and judge.

The run has torch's checkpoints, and tensors without data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TypeVar

from remat_cli.config import GraphOptions, load_measurements
from remat_cli.core.graph import Graph
from remat_cli.core.operators import Operand, Operator
from remat_cli.core.problem import Observer
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import share_over
from remat_cli.costs.measured import Measurements
from remat_cli.errors import ExitCode, GraphError, UsageError
from remat_cli.formats.model_config import names_step
from remat_cli.formats.reader import Reading
from remat_cli.planning import Planning, Request, plan
from remat_cli.planning.given import file_of_given
from remat_cli.planning.summary import Summary, graph_summary, solution_summary
from remat_cli.prepare import Prepared, prepare_reading, read
from remat_cli.pytorch.capture.eager import EagerStep, Saved, run_eagerly
from remat_cli.pytorch.checkpoints.candidates import Candidates
from remat_cli.pytorch.checkpoints.captured import captured_schedule
from remat_cli.pytorch.checkpoints.policy_choice import PolicyChoice, choose_policy
from remat_cli.pytorch.checkpoints.policy_memory import Policy, PolicyMemory
from remat_cli.pytorch.checkpoints.words import TrainerSetting, code, saved_turns, settings
from remat_cli.pytorch.memory.workspace import kernel_workspace
from remat_cli.settings import option_of
from remat_cli.units import BudgetSpec, first_of

Result = TypeVar("Result")

_TRIES = 3  # of choices whose run takes more than was worked out
# What layers of these kernels keep for the backward pass is known to the kernels only.
_UNTOLD = ("_cudnn_rnn", "miopen_rnn")
_MANY = 3
# Settings of a request that checkpoints heed, and graph options that do not apply to steps in eager mode.
_OF_CHECKPOINTS = ("budget", "planner", "alignment")
_OF_NO_CHECKPOINTS = ("ranks", "fused")
# Ops of a captured step that do the work of one in eager mode.
_CAPTURED_AS = {
    "aten._native_batch_norm_legit_functional": "aten.native_batch_norm",
    "aten._native_batch_norm_legit": "aten.native_batch_norm",
    "aten._batch_norm_with_update_functional": "aten.native_batch_norm",
}


@dataclass(frozen=True)
class ChosenPolicy:
    """Modules in `torch.utils.checkpoint`, and the judge's replay.

    Attributes:
        policy: the wrapped modules, and what they save; nothing for checkpoints of whole modules.
        paths: paths of the modules, in the order of their calls.
        kinds: names of their classes.
        trace: replay of the step.
        proven: no other choice that fits reruns less; for the least peak, no other choice has a lower peak.
        least_time: lower bound on the rerun time of choices that fit, in the graph's time unit.
    """

    policy: Policy
    paths: tuple[str, ...]
    kinds: tuple[str, ...]
    trace: Trace
    proven: bool
    least_time: int


@dataclass(frozen=True)
class CheckpointPlanning:
    """The result of planning with checkpoints.

    Attributes:
        prepared: the captured step, for the free plan.
        eager: the step as eager PyTorch runs it.
        budget_bytes: budget of both plans, in bytes.
        plain: eager's step without checkpoints, replayed.
        wrapped: the choice; None if no choice fits, or none was found.
        none_fits: it is proven that no choice fits.
        least: the choice of the least peak, if none fits; None if none was found.
        settings: settings of other trainers with which the step fits.
        free: the plan that is free to keep and recompute any tensor, run by remat.
        free_least: the plan at the smallest budget found, if there is neither a choice nor a free plan.
        notes: notes for the user, one line each.
    """

    prepared: Prepared
    eager: Prepared
    budget_bytes: int
    plain: Trace
    wrapped: ChosenPolicy | None
    none_fits: bool
    least: ChosenPolicy | None
    settings: tuple[TrainerSetting, ...]
    free: Planning
    free_least: Planning | None
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the process."""
        if self.free.solution.interrupted:
            return ExitCode.INTERRUPTED
        if self.wrapped is not None:
            return ExitCode.DONE
        return ExitCode.NO_FIT if self.none_fits else ExitCode.NO_PLAN

    def overhead(self, time: int) -> float:
        """Return a time beyond eager's step as a share of that step."""
        return share_over(time, self.plain.time)

    @property
    def code(self) -> str:
        """Lines that wrap the chosen modules; empty without a choice."""
        return code(self.wrapped.paths) if self.wrapped is not None and self.wrapped.paths else ""

    @property
    def schedule_file(self) -> bytes:
        """The same choice as a schedule of the captured step.

        remat runs this schedule. Its random ops run once.

        Raises:
            UsageError: there is no choice, or the schedule exceeds the budget.
        """
        if self.wrapped is None:
            raise UsageError(
                "there is no schedule to write: no checkpoints fit the budget", hint="leave --as out, or allow more"
            )
        schedule = captured_schedule(self.prepared.graph, self.wrapped.paths)
        return file_of_given(self.prepared, schedule, self.budget_bytes, "checkpoints")

    def summary(self) -> Summary:
        """Return the JSON values of `remat plan --as checkpoints --json`."""
        return {
            "graph": graph_summary(self.prepared),
            "budget_bytes": self.budget_bytes,
            "fits": self.wrapped is not None,
            "none_fits": self.none_fits,
            "eager": {"peak_bytes": self.plain.peak_bytes, "time": self.plain.time, "costs": self.eager.costs},
            "checkpoints": None if self.wrapped is None else self._summary(self.wrapped),
            "least": None if self.least is None else self._summary(self.least),
            "settings": [
                {
                    "trainer": item.trainer,
                    "setting": item.setting,
                    "modules": list(item.paths),
                    "peak_bytes": item.peak,
                    "overhead": self.overhead(self.plain.time + item.time),
                }
                for item in self.settings
            ],
            "free": solution_summary(self.free.solution),
            "free_least": None if self.free_least is None else solution_summary(self.free_least.solution),
            "code": self.code,
            "notes": list(self.notes),
        }

    def _summary(self, wrapped: ChosenPolicy) -> Summary:
        return {"modules": list(wrapped.paths), **self.figures(wrapped)}

    def figures(self, chosen: ChosenPolicy) -> Summary:
        """Return the JSON values of a choice without what it wraps."""
        return {
            "peak_bytes": chosen.trace.peak_bytes,
            "time": chosen.trace.time,
            "overhead": self.overhead(chosen.trace.time),
            "proven": chosen.proven,
            "least_overhead": self.overhead(self.plain.time + chosen.least_time),
        }


class Eager:
    """Runs of a step on tensors without data, made graphs with times."""

    def __init__(self, reference: str, options: GraphOptions, reading: Reading) -> None:
        self._reference, self._options = reference, options
        self._reading = reading
        self._measured: Measurements | None = None
        # ratio of measured times to estimates, from the first run; the same for all runs
        self._ratio: float | None = None
        if options.measurements is not None:
            self._measured = load_measurements(Path(options.measurements))
            self._measured.check(reading.graph, options.dims, options.measurements)

    def run(
        self, checkpoints: Sequence[str] = (), *, saved: Mapping[str, Saved] | None = None, looked_at: bool = False
    ) -> tuple[EagerStep, Prepared]:
        """Return the step with these checkpoints, and the graph of its run."""
        step = run_eagerly(
            self._reference,
            self._options,
            checkpoints=checkpoints,
            saved=saved,
            looked_at=looked_at,
            accumulate=self._options.accumulate,
            outputs_held=True,
        )
        options = replace(self._options, measurements=None, accumulate=False)
        reading = step.reading(self._reading.graph.name)
        if self._measured is None:
            workspace_alone = Measurements({}, kernel_workspace(step.calls_alone))
            return step, prepare_reading(reading, self._reference, options, measured=workspace_alone)
        without = replace(options, cost_model=None)
        estimated = prepare_reading(reading, self._reference, without)
        times = _by_kind(self._measured.times_ns, self._reading)
        if self._ratio is None:
            keyed = [(_key(op.operator), estimated.graph.op[op.name].time) for op in step.ops]
            ratios = [times[key] / time for key, time in keyed if key in times and time]
            self._ratio = median(ratios) if ratios else 1.0
        workspace = _by_kind(self._measured.workspace_bytes, self._reading)
        measured = _carried_over(times, workspace, self._ratio, step, estimated)
        measured = replace(measured, machine=self._measured.machine)
        return step, prepare_reading(reading, self._reference, options, measured=measured)

    def trace(
        self, checkpoints: Sequence[str] = (), saved: Mapping[str, Saved] | None = None
    ) -> tuple[Trace, Prepared]:
        """Return the judge's replay of the step with these checkpoints."""
        step, prepared = self.run(checkpoints, saved=saved)
        return simulate(prepared.graph, step.schedule), prepared

    def confirm(self, checkpoints: Sequence[str], saved: Mapping[str, Saved] | None = None) -> Trace:
        """Return the replay of a step with checkpoints in torch's order.

        Raises:
            CannotRunAgain: the step fails with some of them.
        """
        try:
            return self.trace(checkpoints, saved)[0]
        except GraphError:
            failing = tuple(path for path in checkpoints if self.fails_with(path))
            if not failing:
                raise
            raise CannotRunAgain(failing) from None

    def fails_with(self, path: str) -> bool:
        """Return whether the step fails with only this module checkpointed."""
        try:
            run_eagerly(self._reference, self._options, checkpoints=(path,), accumulate=self._options.accumulate)
        except GraphError:
            return True
        return False


def _by_kind(measured: Mapping[str, int], captured: Reading) -> Mapping[object, int]:
    """Return measurements of captured ops by kernel and shapes."""
    by_kernel: dict[object, int] = {}
    for name, operator in captured.operators.items():
        if name in measured:
            by_kernel.setdefault(_key(operator), measured[name])
    return by_kernel


def _carried_over(
    times: Mapping[object, int], workspace: Mapping[object, int], ratio: float, step: EagerStep, estimated: Prepared
) -> Measurements:
    """Return captured ops' measurements for equal ops of eager mode.

    Equal ops have the same inputs and outputs.

    Other ops have their estimated time, scaled by the ratio of known times.
    """
    keys = {op.name: _key(op.operator) for op in step.ops}
    return Measurements(
        times_ns={
            name: times[key] if key in times else round(ratio * estimated.graph.op[name].time)
            for name, key in keys.items()
        }
        if times
        else {},
        workspace_bytes={name: workspace[key] for name, key in keys.items() if key in workspace},
    )


def _key(operator: Operator) -> object:
    """Return a key of ops with the same kernel and shapes."""
    kind = operator.type.rpartition("/")[2]
    return (_CAPTURED_AS.get(kind, kind), *map(_shape, operator.inputs), *map(_shape, operator.outputs[:1]))


def _shape(operand: Operand | None) -> object:
    return None if operand is None else (operand.shape, operand.dtype)


@dataclass
class Looked:
    """A step that was looked at while it ran without checkpoints.

    Attributes:
        prepared: the captured step.
        options: how it was read.
        eager: runs it.
        step: as it ran.
        graph: the same, with times.
        candidates: its modules that may be wrapped.
        plain: eager's step, replayed.
        plain_prepared: its graph.
        failing: modules with whose checkpoints the step fails.
    """

    prepared: Prepared
    options: GraphOptions
    eager: Eager
    step: EagerStep
    graph: Graph
    candidates: Candidates
    plain: Trace
    plain_prepared: Prepared
    failing: tuple[str, ...] = ()

    @classmethod
    def at(cls, reference: Path, options: GraphOptions, observe: Observer) -> Looked:
        """Read and run a step."""
        observe.phase("reading the graph")
        reading = read(reference, options)
        prepared = prepare_reading(reading, str(reference), options)
        observe.phase("running the step on tensors without data")
        eager = Eager(str(reference), options, reading)
        step, looked_at = eager.run(looked_at=True)
        candidates = Candidates(step, looked_at.graph)
        return cls(prepared, options, eager, step, looked_at.graph, candidates, *eager.trace())

    def without_failing(self, choose_modules: Callable[[], Result]) -> Result:
        """Return a choice; modules with whose checkpoints the step fails are left out, and it is made again."""
        while True:
            try:
                return choose_modules()
            except CannotRunAgain as found:
                self.failing += found.paths
                self.candidates = Candidates(self.step, self.graph, self.failing)


def plan_checkpoints(reference: Path, options: GraphOptions, request: Request, observe: Observer) -> CheckpointPlanning:
    """Choose a step's modules to checkpoint, and find a free plan.

    Args:
        reference: FILE.py:NAME or package.module:NAME.
        options: options of reading the step.
        request: names a budget; a share is of eager's peak, the smallest is the least peak with checkpoints. Its
            planner gives the free plan.
        observe: is told the progress.

    Raises:
        UsageError: this is no PyTorch step, or checkpoints cannot meet the request.
        GraphError: the step cannot be captured, or run on tensors without data.
    """
    check_asked(reference, options, request)
    return checkpoints_of(Looked.at(reference, options, observe), request, observe)


def checkpoints_of(looked: Looked, request: Request, observe: Observer) -> CheckpointPlanning:
    """Choose the modules of a captured step by the rules of `plan_checkpoints`."""
    observe.phase("choosing modules")
    asked = request.budget_bytes(looked.plain_prepared.graph)
    wrapped, none_fits, least = looked.without_failing(lambda: chosen_policy(looked, asked, saves=False))
    budget = asked
    if budget is None:
        budget = looked.plain.peak_bytes if wrapped is None else wrapped.trace.peak_bytes
    observe.phase("planning freely")
    free = plan(looked.prepared, request.at(budget), observe)
    free_least = None
    if wrapped is None and free.trace is None:
        free_least = plan(looked.prepared, replace(request, budget=BudgetSpec(smallest=True)), observe)
    notes = _notes(looked, wrapped)
    return CheckpointPlanning(
        prepared=looked.prepared,
        eager=looked.plain_prepared,
        budget_bytes=budget,
        plain=looked.plain,
        wrapped=wrapped,
        none_fits=none_fits,
        least=least,
        settings=settings(looked.candidates, budget) if wrapped is not None and wrapped.paths else (),
        free=free,
        free_least=free_least,
        notes=(*looked.prepared.notes, *notes),
    )


def check_asked(reference: Path, options: GraphOptions, request: Request, form: str = "checkpoints") -> None:
    """Check that checkpoints can serve a request for a PyTorch step.

    Raises:
        UsageError: it is none, or something is.
    """
    if not names_step(reference):
        raise UsageError(
            f"--as {form} wraps modules of PyTorch, and this graph has none",
            hint="name the function that makes the model: train.py:step; or leave --as out",
        )
    without_meaning = [name for name in request.not_default if name not in _OF_CHECKPOINTS]
    without_meaning += [name for name in options.not_default if name in _OF_NO_CHECKPOINTS]
    for option in map(option_of, without_meaning):
        raise UsageError(f"{option} has no meaning for checkpoints", hint=f"leave {option} or --as out")


class CannotRunAgain(Exception):
    """The step fails with checkpoints of some modules."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        super().__init__(paths)
        self.paths = paths


def chosen_policy(
    looked: Looked, budget: int | None, *, saves: bool
) -> tuple[ChosenPolicy | None, bool, ChosenPolicy | None]:
    """Return the choice for a budget, whether it is proven that there is none, and without one, the least peak.

    Args:
        looked: the step.
        budget: bytes; None for the least peak.
        saves: blocks may save results of calls; else these are checkpoints of whole modules.

    Raises:
        CannotRunAgain: the step fails with the checkpoints of a choice.
    """
    memory = PolicyMemory(looked.candidates, saves=saves)
    limit = choose_policy(memory, None).peak if budget is None else budget
    chosen, none_fits = _within(looked, memory, limit)
    if chosen is not None:
        return chosen, False, None
    least = _confirmed(looked, memory, choose_policy(memory, None))
    if least is not None and budget is not None and least.trace.peak_bytes <= budget:
        # The computed memory was a little too high.
        return replace(least, proven=False), False, None
    return None, none_fits, least


def _within(looked: Looked, memory: PolicyMemory, budget: int) -> tuple[ChosenPolicy | None, bool]:
    """Return the choice for a budget whose run keeps within it, or whether it is proven that there is none."""
    limit, proven = budget, True
    for _ in range(_TRIES):
        choice = choose_policy(memory, limit)
        confirmed = _confirmed(looked, memory, choice)
        if confirmed is None:
            return None, choice.proven and proven
        if confirmed.trace.peak_bytes <= budget:
            return (confirmed if proven else replace(confirmed, proven=False, least_time=0)), False
        # The computed memory was too low: the limit falls by as much.
        limit, proven = choice.peak - 1, False
    return None, False


def _confirmed(looked: Looked, memory: PolicyMemory, choice: PolicyChoice) -> ChosenPolicy | None:
    """Return a choice as torch has run it; None if nothing was chosen."""
    if choice.policy is None:
        return None
    wrapped = set(choice.policy.paths)
    kinds = {path: block.candidate.kind for path, block in memory.blocks.items() if path in wrapped}
    trace = looked.eager.confirm(tuple(kinds), saved_in(choice.policy))
    return ChosenPolicy(choice.policy, tuple(kinds), tuple(kinds.values()), trace, choice.proven, choice.least_time)


def saved_in(policy: Policy) -> dict[str, Saved]:
    """Return the saved calls of each wrapped module, by path; none for checkpoints of whole modules."""
    return {path: saved_turns(calls) for kind, calls in policy.saved.items() for path in policy.blocks[kind]}


def _notes(looked: Looked, wrapped: ChosenPolicy | None) -> tuple[str, ...]:
    notes, step = [], looked.step
    if overwritten := looked.candidates.overwritten:
        some = first_of(overwritten, _MANY)
        notes.append(f"not wrapped, as what they read is overwritten before they could run again: {some}")
    if looked.failing:
        notes.append(f"not wrapped, as the step fails with their checkpoints: {first_of(looked.failing, _MANY)}")
    if looked.options.measurements is None:
        notes.append(
            "the free plan counts no workspace of kernels: it does with --measurements FILE of 'remat measure'"
        )
    if any(kernel in op.operator.type for op in step.ops for kernel in _UNTOLD):
        notes.append("what recurrent layers keep in eager mode is known to their kernels only: peaks are understated")
    normed = _with_batch_norm(step, () if wrapped is None else wrapped.paths)
    if normed:
        some = first_of(normed, _MANY)
        notes.append(f"checkpoints update the running statistics of batch norm twice a step: in {some}")
    return tuple(notes)


def _with_batch_norm(step: EagerStep, paths: Sequence[str]) -> list[str]:
    ranges: Mapping[str, tuple[int, int]] = {call.path: call.ops for call in step.calls}
    return [path for path in paths if any("batch_norm" in op.operator.type for op in step.ops[slice(*ranges[path])])]
