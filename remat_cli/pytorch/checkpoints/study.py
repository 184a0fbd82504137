"""What `remat plan --as checkpoints` does: choose, run with torch's checkpoints on tensors without data, and judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from remat_cli.config import GraphOptions, load_measurements
from remat_cli.core.operators import Operand, Operator
from remat_cli.core.problem import Observer
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import share_over
from remat_cli.costs.measured import Measurements
from remat_cli.errors import ExitCode, GraphError, UsageError
from remat_cli.formats.functions import names_function
from remat_cli.formats.reader import Reading
from remat_cli.planning import Planning, Request, plan
from remat_cli.planning.given import file_of_given
from remat_cli.planning.summary import Summary, graph_summary, solution_summary
from remat_cli.prepare import Prepared, prepare_reading, read
from remat_cli.pytorch.capture.eager import EagerStep, run_eagerly
from remat_cli.pytorch.checkpoints.captured import captured_schedule
from remat_cli.pytorch.checkpoints.choice import Choice, choose
from remat_cli.pytorch.checkpoints.memory import Memory
from remat_cli.pytorch.checkpoints.words import TrainerSetting, code, settings
from remat_cli.settings import option_of
from remat_cli.units import BudgetSpec

_TRIES = 3  # of choices whose run takes more than was worked out
# What layers of these kernels keep for the backward pass is known to the kernels only.
_UNTOLD = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
_MANY = 3
# Of a request, what a choice of checkpoints heeds, and what alone asks for nothing; of the options of a graph, what is
# not for steps in eager mode.
_OF_CHECKPOINTS = ("budget", "planner", "alignment")
_OF_NO_CHECKPOINTS = ("ranks", "fused")
# Ops of a captured step that do the work of one in eager mode.
_CAPTURED_AS = {
    "aten._native_batch_norm_legit_functional": "aten.native_batch_norm",
    "aten._native_batch_norm_legit": "aten.native_batch_norm",
    "aten._batch_norm_with_update_functional": "aten.native_batch_norm",
}


@dataclass(frozen=True)
class Wrapped:
    """Modules in `torch.utils.checkpoint`, and the step with them as the judge replayed it.

    Attributes:
        paths: of the modules, in the order of their calls.
        kinds: names of their classes.
        trace: of the step.
        proven: no other choice runs less again and fits; or, of the least peak, has a lower one.
        least_time: no choice that fits runs less again, in the graph's time unit.
    """

    paths: tuple[str, ...]
    kinds: tuple[str, ...]
    trace: Trace
    proven: bool
    least_time: int


@dataclass(frozen=True)
class CheckpointPlanning:
    """What was asked, and what came of it.

    Attributes:
        prepared: the captured step, for the free plan.
        eager: the step as eager PyTorch runs it.
        budget_bytes: of both.
        plain: eager's step without checkpoints, replayed.
        wrapped: the choice; None where no choice fits, or none was found.
        none_fits: it is proven that no choice fits.
        least: without a choice, the one of the least peak; None where none was found.
        settings: of other trainers, with which the step fits, too.
        free: the plan that is free to keep and recompute any tensor, run by remat.
        free_least: where there is neither a choice nor a free plan: the plan at the smallest budget that was found.
        notes: what the user should know, one line each.
    """

    prepared: Prepared
    eager: Prepared
    budget_bytes: int
    plain: Trace
    wrapped: Wrapped | None
    none_fits: bool
    least: Wrapped | None
    settings: tuple[TrainerSetting, ...]
    free: Planning
    free_least: Planning | None
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """How the process ends."""
        if self.free.solution.interrupted:
            return ExitCode.INTERRUPTED
        if self.wrapped is not None:
            return ExitCode.DONE
        return ExitCode.NO_FIT if self.none_fits else ExitCode.NO_PLAN

    def overhead(self, time: int) -> float:
        """Return a time of the step as a share of eager's beyond it."""
        return share_over(time, self.plain.time)

    @property
    def code(self) -> str:
        """Lines that wrap the chosen modules; empty where none are chosen."""
        return code(self.wrapped.paths) if self.wrapped is not None and self.wrapped.paths else ""

    @property
    def schedule_file(self) -> bytes:
        """The same choice as a schedule of the captured step, which remat runs; it draws random numbers once.

        Raises:
            UsageError: there is no choice, or the schedule does not keep within the budget.
        """
        if self.wrapped is None:
            raise UsageError(
                "there is no schedule to write: no checkpoints fit the budget", hint="leave --as out, or allow more"
            )
        schedule = captured_schedule(self.prepared.graph, self.wrapped.paths)
        return file_of_given(self.prepared, schedule, self.budget_bytes, "checkpoints")

    def summary(self) -> Summary:
        """Return what `remat plan --as checkpoints --json` prints, as JSON values."""
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

    def _summary(self, wrapped: Wrapped) -> Summary:
        return {
            "modules": list(wrapped.paths),
            "peak_bytes": wrapped.trace.peak_bytes,
            "time": wrapped.trace.time,
            "overhead": self.overhead(wrapped.trace.time),
            "proven": wrapped.proven,
            "least_overhead": self.overhead(self.plain.time + wrapped.least_time),
        }


class _Eager:
    """Runs of a step on tensors without data, made graphs with times."""

    def __init__(self, reference: str, options: GraphOptions, reading: Reading) -> None:
        self._reference, self._options = reference, options
        self._reading = reading
        self._measured: Measurements | None = None
        self._ratio: float | None = None  # of measured times to estimates, from the first run: the same for all
        if options.measurements is not None:
            self._measured = load_measurements(Path(options.measurements))
            self._measured.check(reading.graph, options.dims, options.measurements)

    def run(self, checkpoints: Sequence[str] = (), *, looked_at: bool = False) -> tuple[EagerStep, Prepared]:
        """Return the step with these checkpoints, and the graph of what ran."""
        step = run_eagerly(
            self._reference,
            self._options,
            checkpoints=checkpoints,
            looked_at=looked_at,
            accumulate=self._options.accumulate,
        )
        options = replace(self._options, measurements=None, accumulate=False)
        reading = step.reading(self._reading.graph.name)
        if self._measured is None:
            return step, prepare_reading(reading, self._reference, options)
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

    def trace(self, checkpoints: Sequence[str] = ()) -> tuple[Trace, Prepared]:
        """Return what the judge makes of the step with these checkpoints."""
        step, prepared = self.run(checkpoints)
        return simulate(prepared.graph, step.schedule), prepared

    def fails_with(self, path: str) -> bool:
        """Tell whether the step fails with a checkpoint of this module alone."""
        try:
            run_eagerly(self._reference, self._options, checkpoints=(path,), accumulate=self._options.accumulate)
        except GraphError:
            return True
        return False


def _by_kind(measured: Mapping[str, int], captured: Reading) -> Mapping[object, int]:
    """Return what was measured of captured ops by what they have in common."""
    found: dict[object, int] = {}
    for name, operator in captured.operators.items():
        if name in measured:
            found.setdefault(_key(operator), measured[name])
    return found


def _carried_over(
    times: Mapping[object, int], workspace: Mapping[object, int], ratio: float, step: EagerStep, estimated: Prepared
) -> Measurements:
    """Return what was measured of captured ops for those of eager mode that are given, and make, the same.

    Others take the estimated time, in the measure of those that are known.
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
    """Return what ops have in common that run the same kernel on tensors of the same shapes."""
    kind = operator.type.rpartition("/")[2]
    return (_CAPTURED_AS.get(kind, kind), *map(_shape, operator.inputs), *map(_shape, operator.outputs[:1]))


def _shape(operand: Operand | None) -> object:
    return None if operand is None else (operand.shape, operand.dtype)


def plan_checkpoints(reference: Path, options: GraphOptions, request: Request, observe: Observer) -> CheckpointPlanning:
    """Choose the modules of a training step to wrap in `torch.utils.checkpoint`, and plan freely beside it.

    Args:
        reference: FILE.py:NAME or package.module:NAME.
        options: how it is read.
        request: names a budget; a share is of eager's peak, the smallest is the least peak with checkpoints. Its
            planner makes the free plan.
        observe: is told what is done.

    Raises:
        UsageError: this is no PyTorch step, or the request asks for what checkpoints cannot do.
        GraphError: the step cannot be captured, or run on tensors without data.
    """
    _check(reference, options, request)
    observe.phase("reading the graph")
    reading = read(reference, options)
    prepared = prepare_reading(reading, str(reference), options)
    observe.phase("running the step on tensors without data")
    eager = _Eager(str(reference), options, reading)
    step, looked_at = eager.run(looked_at=True)
    memory = Memory(step, looked_at.graph)
    plain, plain_prepared = eager.trace()
    observe.phase("choosing modules")
    asked = request.budget_bytes(plain_prepared.graph)
    failing: tuple[str, ...] = ()
    while True:
        try:
            wrapped, none_fits, least = _chosen(eager, memory, asked)
            break
        except _CannotRunAgain as found:
            failing += found.paths
            memory = Memory(step, looked_at.graph, failing)
    budget = asked
    if budget is None:
        budget = plain.peak_bytes if wrapped is None else wrapped.trace.peak_bytes
    observe.phase("planning freely")
    free = plan(prepared, request.at(budget), observe)
    free_least = None
    if wrapped is None and free.trace is None:
        free_least = plan(prepared, replace(request, budget=BudgetSpec(smallest=True)), observe)
    return CheckpointPlanning(
        prepared=prepared,
        eager=plain_prepared,
        budget_bytes=budget,
        plain=plain,
        wrapped=wrapped,
        none_fits=none_fits,
        least=least,
        settings=settings(memory, budget) if wrapped is not None and wrapped.paths else (),
        free=free,
        free_least=free_least,
        notes=(*prepared.notes, *_notes(step, memory, failing, wrapped, options)),
    )


def _check(reference: Path, options: GraphOptions, request: Request) -> None:
    if not names_function(reference):
        raise UsageError(
            "--as checkpoints wraps modules of PyTorch, and this graph has none",
            hint="name the function that makes the model: train.py:step; or leave --as out",
        )
    without_meaning = [name for name in request.not_default if name not in _OF_CHECKPOINTS]
    without_meaning += [name for name in options.not_default if name in _OF_NO_CHECKPOINTS]
    for option in map(option_of, without_meaning):
        raise UsageError(f"{option} has no meaning for checkpoints", hint=f"leave {option} or --as out")


class _CannotRunAgain(Exception):
    """The step fails with checkpoints of some modules."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        super().__init__(paths)
        self.paths = paths


def _chosen(eager: _Eager, memory: Memory, budget: int | None) -> tuple[Wrapped | None, bool, Wrapped | None]:
    """Return the choice for a budget, whether it is proven that there is none, and without one, the least peak.

    Raises:
        _CannotRunAgain: the step fails with the checkpoints of a choice.
    """
    limit = choose(memory, None).peak if budget is None else budget
    wrapped, none_fits = _within(eager, memory, limit)
    if wrapped is not None:
        return wrapped, False, None
    least = _confirmed(eager, memory, choose(memory, None))
    if least is not None and budget is not None and least.trace.peak_bytes <= budget:
        # What was worked out was a little too much.
        return replace(least, proven=False), False, None
    return None, none_fits, least


def _within(eager: _Eager, memory: Memory, budget: int) -> tuple[Wrapped | None, bool]:
    """Return the choice for a budget whose run keeps within it, or whether it is proven that there is none."""
    limit, proven = budget, True
    for _ in range(_TRIES):
        choice = choose(memory, limit)
        if choice.paths is None:
            return None, choice.proven and proven
        found = _confirmed(eager, memory, choice)
        if found is not None and found.trace.peak_bytes <= budget:
            return (found if proven else replace(found, proven=False, least_time=0)), False
        # What was worked out was too little: by as much less from now on.
        limit, proven = choice.peak - 1, False
    return None, False


def _confirmed(eager: _Eager, memory: Memory, choice: Choice) -> Wrapped | None:
    if choice.paths is None:
        return None
    try:
        trace, _ = eager.trace(choice.paths)
    except GraphError:
        failing = tuple(path for path in choice.paths if eager.fails_with(path))
        if not failing:
            raise
        raise _CannotRunAgain(failing) from None
    kinds = tuple(memory.by_path[path].kind for path in choice.paths)
    return Wrapped(choice.paths, kinds, trace, choice.proven, choice.least_time)


def _notes(
    step: EagerStep, memory: Memory, failing: Sequence[str], wrapped: Wrapped | None, options: GraphOptions
) -> tuple[str, ...]:
    notes = []
    if memory.overwritten:
        notes.append(
            f"not wrapped, as what they read is overwritten before they could run again: {_some(memory.overwritten)}"
        )
    if failing:
        notes.append(f"not wrapped, as the step fails with their checkpoints: {_some(failing)}")
    if options.measurements is None:
        notes.append("the workspace of kernels is not counted: it is with --measurements FILE of 'remat measure'")
    if any(kernel in op.operator.type for op in step.ops for kernel in _UNTOLD):
        notes.append("what recurrent layers keep in eager mode is known to their kernels only: peaks are understated")
    normed = _with_batch_norm(step, () if wrapped is None else wrapped.paths)
    if normed:
        notes.append(f"checkpoints update the running statistics of batch norm twice a step: in {_some(normed)}")
    return tuple(notes)


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_MANY]) + (f" and {len(paths) - _MANY} more" if len(paths) > _MANY else "")


def _with_batch_norm(step: EagerStep, paths: Sequence[str]) -> list[str]:
    ranges: Mapping[str, tuple[int, int]] = {call.path: call.ops for call in step.calls}
    return [path for path in paths if any("batch_norm" in op.operator.type for op in step.ops[slice(*ranges[path])])]
