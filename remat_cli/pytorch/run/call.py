"""A model's call: run by a schedule in training, unplanned otherwise."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils.checkpoint import get_device_states, set_device_states

from remat_cli.errors import DoesNotFit, GraphError, RematError, UsageError
from remat_cli.pytorch.capture.capture_errors import (
    CAPTURE_ERRORS,
    call_without_data,
    explanation,
    raised_by_remat,
    random_states,
)
from remat_cli.pytorch.capture.joint_capture import Captured, compiled
from remat_cli.pytorch.capture.model_state import ModelState
from remat_cli.pytorch.capture.outputs import OutputGradients
from remat_cli.pytorch.capture.reader import callable_of
from remat_cli.pytorch.capture.sizes import without_inputs
from remat_cli.pytorch.memory.shards import has_plain_parameters, is_distributed, is_sharded
from remat_cli.pytorch.memory.watch import MeasuredStep, StepWatch
from remat_cli.pytorch.plan.budget_keeper import BudgetKeeper
from remat_cli.pytorch.plan.record import PlanRecord, notify
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.pytorch.plan.waiting import DIVIDING, TRACING
from remat_cli.pytorch.plan.whole_runner import WholeRunner
from remat_cli.pytorch.programs.self_test import self_test
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import mode_that_watches
from remat_cli.pytorch.unstable.front_end import CaptureError, captured_apart, is_passed_over
from remat_cli.pytorch.unstable.modules import GLOBAL_HOOKS, call_instead, is_within_transform
from remat_cli.pytorch.unstable.ranks import is_managed_by_fsdp1
from remat_cli.pytorch.unstable.versions import unsupported

_REGIONS = 'hint: or plan its blocks, and leave what lies between them to eager: planned(..., regions="auto")'

_MANY = 4
_SIZES_DIFFER = (
    f"sizes that depend on data differ from call to call, and each is captured and planned by itself, {_MANY} by now: "
    "a mask with torch.where, or padding to one size, needs one plan"
)


class _SizedByData(GraphError):
    """Sizes in a model depend on data, and its blocks may be planned.

    So the whole is not captured for the data of one call.
    """

    def __init__(self) -> None:
        super().__init__("sizes in it depend on data, and a plan of the whole would be for the data of one call")


class PlannedCall:
    """A model's call, run by a schedule.

    Attributes:
        function: function to call without a plan.
        module: the model, if it is one module.
        source: source of the schedule of each graph.
        record: record of plans and calls.
        fallback: function that changes how a model runs, if it cannot be captured; then the call is repeated. Its
            result undoes the change.
    """

    def __init__(self, model: Callable[..., Any], source: ScheduleSource) -> None:
        self.module = model if isinstance(model, nn.Module) else None
        self.function = callable_of(model)
        self.source = source
        self.record = PlanRecord(source.budget_text)
        self.fallback: Callable[[PlannedCall, GraphError], Callable[[], None]] | None = None
        self._modules: list[nn.Module] = []
        self._has_called = False  # a call without data
        self._before: ModelState | None = None  # state before a trial
        self._sizes_of_data = 0  # number of data-dependent sizes that the model was traced for
        self._is_apart = False  # captured without code that other modules share
        self._takes_sizes = source.takes_sizes and not (source.fused and source.splits)
        self._compiled: dict[tuple[int, ...], Callable[..., Any]] = {}  # by the hooks of all modules
        self._given: Any = ()
        self.gradients = OutputGradients(partial(notify, logging.WARNING), self._runs_back_eagerly)
        self._watch = StepWatch()
        if self.source.fused and source.calls > 1:
            raise UsageError(
                f"plans of a whole model for {source.calls} calls before a backward pass run eager's kernels",
                hint="leave fused out, or plan by blocks (regions='layers.*')",
            )
        self._keeper = BudgetKeeper(source, self._watch, calls=source.calls)
        self._steps: weakref.WeakSet[WholeRunner] = weakref.WeakSet()
        self.record.run_context = self._measured_run
        self.record.at_backward = self._watch.backward_begins
        self.record.waited_ns = source.waiting.spent_ns

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model.

        Raises:
            RematError: see `planned`.
        """
        if torch.compiler.is_compiling():
            # Within another plan the call is a part of that plan; other uses of torch.compile must leave it alone.
            return self.function(*args, **kwargs) if _is_running else left_alone(self, args, kwargs)
        modules = [self.module] if self.module is not None else _modules_in((args, kwargs))
        if (measured := self._watch.end()) is not None:
            self._hold(measured)
        if (reason := why_unplanned(modules)) is not None:
            self.record.unplanned[reason] += 1
            return self.function(*args, **kwargs)
        self._modules, self._given = modules, (args, kwargs)
        if self.source.begins_step():
            self._plan_again()
        try:
            result = self._explained(args, kwargs)
            self._keeper.has_begun = True
            self.source.ends_call(result)
            return result
        except DoesNotFit:
            self.record.refused += 1
            raise
        except GraphError as refusal:
            if self.fallback is None or self.module is None or self.record.graphs:
                raise
            back = self.fallback(self, refusal)
            if isinstance(refusal, _SizedByData):
                return self._by_blocks_or_whole(self.module, back, args, kwargs)
            return self.module(*args, **kwargs)
        finally:
            self._given = ()

    def _by_blocks_or_whole(
        self, module: nn.Module, back: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module with planned blocks, or plan the whole.

        The whole is planned for the data's sizes if the blocks cannot be planned.
        """
        generator, on_devices = torch.get_rng_state(), get_device_states(*pytree.tree_leaves((args, kwargs)))
        try:
            return module(*args, **kwargs)
        except GraphError as refusal:
            torch.set_rng_state(generator)
            set_device_states(*on_devices)
            back()
            self.fallback = None
            notify(
                logging.WARNING, f"it is planned as a whole after all, for these sizes of its data: {refusal.message}"
            )
            return module(*args, **kwargs)

    def _explained(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model as planned; translate errors for the user."""
        modules = self._modules
        try:
            _check_not_transformed()
            _check_no_mode()
            if not self.record.graphs:
                self_test()
            check_not_sharded(modules)
            result = self._run(args, kwargs)
            if not self.record.graphs and _needs_gradient(result):
                raise unsupported("torch.compile did not hand the model over: is it switched off?")
        except CAPTURE_ERRORS as error:
            meant = explanation(error, "the model")
            # remat's own messages are complete; translations of torch's errors may not be.
            cause = None if meant.__traceback__ is not None else error
            meant = _with_hint(meant)
            may_have_regions = self.module is not None and self.fallback is None
            if may_have_regions and isinstance(meant, GraphError):
                meant.add_note(_REGIONS)
            raise meant from cause
        except RematError as error:
            raise _with_hint(error) from error.__cause__
        self._watch.resume(result)
        return result

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model as planned; undo trials after an error.

        Errors of the model's own code are raised unchanged.
        """
        try:
            return self._tried(args, kwargs)
        except BaseException:
            if self._before is not None:
                self._before.restore()
            raise
        finally:
            self._before = None

    def _tried(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before, put_back = self._first_state()
        try:
            result = _planning(self._captured(), args, kwargs)
            if before is None or self.record.graphs or not _needs_gradient(result):
                return result
        except CaptureError as error:
            own = raised_by_remat(error)
            if own is not None and not isinstance(own, GraphError):
                raise
            if own is None:
                self._before = call_without_data(self.function, self._modules, args, kwargs)
            if self._takes_sizes and self.record.graphs:
                return self._run_at_each_size(args, kwargs)
            if self._has_called or own is not None:
                raise
            self._has_called = True
            return _planning(self._captured(), args, kwargs)
        except (RuntimeError, UserWarning) as error:
            if before is None or not is_passed_over(error):
                raise
        # torch ran the model without a capture.
        before.restore()
        put_back()
        self._compiled, self._is_apart = {}, True
        return self._tried(args, kwargs)

    def _first_state(self) -> tuple[ModelState | None, Callable[[], None]]:
        """Return the state before a run that torch may leave uncaptured.

        None if torch always captures.
        """
        if self.module is None or self._is_apart or self.record.graphs:
            return None, lambda: None
        return ModelState(self._modules), random_states()

    def _run_at_each_size(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model as captured for the sizes of this call alone.

        From now on every call runs this way, if possible.
        """
        compiled_functions, self._compiled, self._takes_sizes = self._compiled, {}, False
        try:
            result = _planning(self._captured(), args, kwargs)
        except CaptureError:
            self._compiled, self._takes_sizes = compiled_functions, True
            raise
        notify(
            logging.WARNING, "sizes that differ cannot be captured as symbols: each is captured and planned by itself"
        )
        return result

    def _captured(self) -> Callable[..., Any]:
        """Return the function captured under the present global hooks."""
        hooks = tuple(id(hook) for hooks in GLOBAL_HOOKS for hook in hooks.values())
        if hooks not in self._compiled:
            function = captured_apart(self.module) if self.module is not None and self._is_apart else self.function
            self._compiled[hooks] = compiled(
                function,
                self.divide,
                gradients=self.gradients,
                takes_sizes=self._takes_sizes,
                fused=self.source.is_decomposed,
                capture_context=lambda: self.source.waiting.phase(TRACING),
            )
        return self._compiled[hooks]

    def _runs_back_eagerly(self) -> None:
        self.record.runs_back()
        self._watch.drop()

    @contextmanager
    def _measured_run(self) -> Iterator[None]:
        device = next((p.device.type for module in self._modules for p in module.parameters()), "cpu")
        self._watch.begin(device, self._modules, self._given)
        try:
            yield
        finally:
            self._watch.pause()

    def _hold(self, measured: MeasuredStep) -> None:
        """Compare a measured step with the budget.

        If it is above, plan again with the missing bytes, or warn.
        """
        plan = self.record.last
        assert plan is not None
        plan.measured_peak_bytes.append(measured.peak_bytes)
        self.record.without = self._watch.without
        if self._watch.awaits_backward:  # the last of these calls peaks highest
            return
        if not self.source.fused:
            self._keeper.counts_calls = self.source.note_calls(self._watch.calls, plan)
        if plan.budget_bytes is not None and self._keeper.needs_another(
            measured, plan.predicted_peak_bytes, plan.budget_bytes, self._modules
        ):
            self._plan_again()

    def _plan_again(self) -> None:
        for step in self._steps:
            step.is_stale = True

    def divide(self, captured: Captured) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the two planned graphs of a joint graph.

        `pytorch.capture.joint_capture` calls this.
        """
        with self.source.waiting.phase(DIVIDING):
            return self._divided(captured)

    def _divided(self, captured: Captured) -> tuple[fx.GraphModule, fx.GraphModule]:
        for part in (part for module in self._modules for part in module.modules()):
            if isinstance(other := call_instead(part), PlannedCall) and other is not self:
                other.record.is_part = True
        if captured.is_sized_by_data:
            if self.fallback is not None and not self.record.graphs:
                raise _SizedByData
            self._sizes_of_data += 1
            if self._sizes_of_data == _MANY:
                notify(logging.WARNING, _SIZES_DIFFER)
        step = WholeRunner(without_inputs(captured, self._modules), self._keeper, self.record, self._modules)
        self._steps.add(step)
        return step.interface()


# Whether a planned call runs: torch traces for a plan then.
_is_running = False


def _planning(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    global _is_running
    before, _is_running = _is_running, True
    try:
        return function(*args, **kwargs)
    finally:
        _is_running = before


@torch.compiler.disable(reason="a plan runs it")  # type: ignore[no-untyped-call,untyped-decorator]
def left_alone(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a planned call within a graph that others capture, outside of that graph."""
    return call(*args, **kwargs)


def why_unplanned(modules: list[nn.Module]) -> str | None:
    """Return the reason why a call runs unplanned, or None."""
    if not torch.is_grad_enabled():
        return "without gradients"
    if modules and not any(module.training for module in modules):
        return "in eval mode"
    return None


def _with_hint(error: RematError) -> RematError:
    """Add the hint to a traceback, and cut remat's own frames.

    The command line shows the hint next to the message.
    """
    if error.hint and not getattr(error, "__notes__", None):
        error.add_note(f"hint: {error.hint}")
    return error.with_traceback(None)


def _modules_in(arguments: Any) -> list[nn.Module]:
    return [value for value in pytree.tree_leaves(arguments) if isinstance(value, nn.Module)]


def _needs_gradient(result: Any) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in pytree.tree_leaves(result))


def _check_not_transformed() -> None:
    """Check that autograd itself will differentiate the call.

    Raises:
        UsageError: the call is within a function transform of torch.func.
    """
    if is_within_transform():
        raise UsageError(
            "the model is called within a transform of torch.func (grad, vmap, jvp), which a plan cannot follow",
            hint="differentiate with loss.backward() or torch.autograd.grad; or call a model that is not planned here",
        )


def _check_no_mode() -> None:
    """Check that torch.compile will run captured functions.

    Raises:
        UsageError: a mode watches each op, and torch.compile passes over functions called within it.
    """
    if (mode := mode_that_watches()) is not None:
        raise UsageError(
            f"the model is called within {mode}, where torch.compile runs nothing that it captured",
            hint="leave that mode around the planned model, or count with a model that is not planned",
        )


def check_not_sharded(modules: list[nn.Module]) -> None:
    """Check that parameters are plain tensors, whole on this device.

    Raises:
        GraphError: FSDP2 manages a module, or parameters are DTensors.
        UsageError: a parameter has a class of its own, like those of FSDP, or FSDP or DistributedDataParallel manages a
            module.
    """
    hint = "use fully_shard (FSDP2) with planned(..., regions=...), or DistributedDataParallel around the planned model"
    for module in modules:
        if has_plain_parameters(module):
            continue
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise UsageError(
                "a planned function is given a DistributedDataParallel, which communicates and cannot be captured",
                hint="plan that itself, planned(ddp), and compute the loss of what it returns",
            )
        if is_sharded(module):
            raise GraphError(
                "the model is sharded by fully_shard, and a plan of the whole step sees no communication",
                hint='plan its blocks, inside of what FSDP2 does around them: planned(..., regions="auto")',
            )
        if is_distributed(module):
            raise GraphError(
                "the model has DTensors for parameters, and a plan of the whole step is that of one rank",
                hint='plan its blocks, which all ranks do alike: planned(..., regions="auto")',
            )
        # FSDP1 says so; it puts views of its own in the place of parameters.
        if any(is_managed_by_fsdp1(part) for part in module.modules()):
            raise UsageError("the model is sharded by FSDP, which gathers its parameters in each call", hint=hint)
        for name, parameter in module.named_parameters():
            if type(parameter) not in (nn.Parameter, torch.Tensor):
                kind = type(parameter).__name__
                raise UsageError(
                    f"parameter {name!r} is a {kind}: sharded and quantized models cannot be planned", hint=hint
                )
