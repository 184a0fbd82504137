"""`planned`: a model that trains within a budget of memory."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch._dynamo import exc
from torch.utils import _pytree as pytree

from remat_cli.config import named_planner
from remat_cli.errors import RematError, UsageError
from remat_cli.formats.torch.capture_errors import explanation
from remat_cli.formats.torch.internals import Captured, check_supported, compiled, unsupported
from remat_cli.formats.torch.joint import BOUNDARY, Joint
from remat_cli.formats.torch.optimizer import optimizer_state_bytes
from remat_cli.formats.torch.reader import callable_of
from remat_cli.runtime.torch.choice import Choice, FromFile, WithinBudget, graph_options
from remat_cli.runtime.torch.program import divided
from remat_cli.units import BudgetSpec, parse_budget

_log = logging.getLogger("remat")

Model = TypeVar("Model", bound=Callable[..., Any])

_ONE_OF_BOTH = "planned(model, 'schedule.json') or planned(model, budget='8GB')"


def planned(
    model: Model,
    schedule: str | Path | None = None,
    *,
    budget: int | str | None = None,
    optimizer: str | torch.optim.Optimizer | None = None,
    accumulate: bool = False,
    planner: str = "auto",
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    measurements: str | Path | None = None,
    offload: bool = False,
    link_bandwidth: str | float | None = None,
    plans: str | Path | None = None,
) -> Model:
    """Return `model` so that forward and backward pass follow a plan; the gradients are the same.

    Calls under `torch.no_grad()` run unplanned, and so do those of a module in `eval()`. Everything else runs as
    planned, or raises an error. The whole call must be one graph for `torch.compile(fullgraph=True)`.

    Args:
        model: a module, which is changed and given back; or a function that computes the loss, modules among its
            arguments or not.
        schedule: a file that `remat plan FILE.py:NAME` has written for this model and these sizes.
        budget: instead of a schedule: total device memory, as "8GB", "80%" (of the plain run's peak), "min", or in
            bytes. It is planned when a graph is first captured, again for inputs of other shapes. It counts parameters,
            buffers, inputs, gradients and activations, and the optimizer's state if that is named.
        optimizer: whose state is in memory: itself, or "sgd", "momentum" or "adam".
        accumulate: gradients are in memory before the step, which adds to them.
        planner: which planner makes the plan.
        options: of the planner, such as {"time_limit": 60}.
        device: device profile that gives ops their times, such as "h100".
        measurements: a file that `remat measure` has written for these sizes: times, and memory that kernels take for
            themselves, are then those of the machine.
        offload: plans may move tensors to the host and back.
        link_bandwidth: of the link to the host, such as "12GB/s"; by default the device profile's.
        plans: a folder in which plans are kept between runs of Python.

    Raises:
        UsageError: neither or both of schedule and budget are given, or another argument is wrong; when called: this
            torch is not supported, or the model is sharded.
        GraphError: when called: the model cannot be captured, or the schedule is for another graph.
        DoesNotFit: when called: no plan fits the budget; says what the floor is, and why.
    """
    if (schedule is None) == (budget is None):
        raise UsageError("planned() needs a schedule or a budget, not both", hint=_ONE_OF_BOTH)
    choice: Choice
    if schedule is not None:
        choice = FromFile.at(Path(schedule))
    else:
        assert budget is not None
        made_by = named_planner(planner, "planner").with_options(options or {})
        if offload:
            made_by.check_can_offload()
        choice = WithinBudget(
            _budget(budget),
            made_by,
            graph_options(
                optimizer,
                accumulate=accumulate,
                device=device,
                measurements=None if measurements is None else str(measurements),
                link_bandwidth=link_bandwidth,
                offload=offload,
            ),
            optimizer=type(optimizer).__name__ if isinstance(optimizer, torch.optim.Optimizer) else None,
            state_bytes=optimizer_state_bytes(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else 0,
            folder=None if plans is None else Path(plans),
        )
    call = PlannedCall(model, choice)
    if isinstance(model, nn.Module):
        model._compiled_call_impl = call
        return model
    return functools.update_wrapper(call, model)  # type: ignore[return-value]


def _budget(budget: int | str) -> BudgetSpec:
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise UsageError(f"budget {budget!r} is no size", hint="give bytes as an int, or text such as '8GB'")
    return parse_budget(str(budget))


class PlannedCall:
    """A model's call, carried out by a schedule.

    Attributes:
        function: what is called where nothing is planned.
        module: the model, if it is one module.
        choice: gives the schedule of each graph.
        graphs: how many graphs were captured and planned.
    """

    def __init__(self, model: Callable[..., Any], choice: Choice) -> None:
        self.module = model if isinstance(model, nn.Module) else None
        self.function = callable_of(model)
        self.choice = choice
        self.graphs = 0
        self._modules: list[nn.Module] = []
        self._compiled = compiled(self.function, self._divide)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model.

        Raises:
            RematError: see `planned`.
        """
        modules = [self.module] if self.module is not None else _modules_in((args, kwargs))
        trains = any(module.training for module in modules) if modules else True
        if not trains or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.function(*args, **kwargs)
        self._modules = modules
        try:
            if not self.graphs:
                self_test()
                _check_not_sharded(modules)
            result = self._compiled(*args, **kwargs)
            if not self.graphs and _needs_gradient(result):
                raise unsupported("torch.compile did not hand the model over: is it switched off?")
        except exc.TorchDynamoException as error:
            told = explanation(error, "the model")
            # What remat itself raised says all; what it makes of torch's error may not.
            cause = None if told.__traceback__ is not None else error
            raise _with_hint(told) from cause
        except RematError as error:
            raise _with_hint(error) from error.__cause__
        return result

    def _divide(self, captured: Captured) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = Joint.of(captured)
        schedule = self.choice.schedule(joint, captured, self._modules)
        if schedule.has_transfers and joint.device == "cpu":
            _log.warning("the plan moves tensors to the host, which is the device here: that saves no memory")
        graphs = divided(joint, schedule)
        self.graphs += 1
        return graphs


def _with_hint(error: RematError) -> RematError:
    """Let a traceback show what the command line shows beside the message, and the user's code only."""
    if error.hint and not getattr(error, "__notes__", None):
        error.add_note(f"hint: {error.hint}")
    return error.with_traceback(None)


def _modules_in(arguments: Any) -> list[nn.Module]:
    return [value for value in pytree.tree_leaves(arguments) if isinstance(value, nn.Module)]


def _needs_gradient(result: Any) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in pytree.tree_leaves(result))


def _check_not_sharded(modules: list[nn.Module]) -> None:
    """Check that parameters are tensors of torch itself, whole on this device.

    Raises:
        UsageError: one is of a class of its own, as those of FSDP and tensor parallelism are.
    """
    for module in modules:
        for name, parameter in module.named_parameters():
            if type(parameter) is not nn.Parameter:
                kind = type(parameter).__name__
                raise UsageError(
                    f"parameter {name!r} is a {kind}: sharded and quantized models cannot be planned",
                    hint="use DistributedDataParallel around the planned model instead of FSDP",
                )


@functools.cache
def self_test() -> None:
    """Run a small step whose forward ops all run again in the backward pass, and compare it with eager.

    Raises:
        UsageError: this torch does not carry out what it is given.
    """
    check_supported()
    expected = _gradient_and_buffer(_small_step)
    try:
        found = _gradient_and_buffer(compiled(_small_step, _all_again))
    except Exception as error:
        raise unsupported(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
    if not all(map(torch.equal, expected, found)):
        raise unsupported("a small planned step has other gradients than eager")


def _small_step(x: torch.Tensor, weight: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x @ weight) * (buffer * 2)
    buffer.add_(1)
    return (y * y.t()).sum()


def _gradient_and_buffer(step: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(9.0).reshape(3, 3)
    weight, buffer = (x - 4).requires_grad_(), torch.ones(3)
    step(x, weight, buffer).backward()
    assert weight.grad is not None
    return weight.grad, buffer


def _all_again(captured: Captured) -> tuple[fx.GraphModule, fx.GraphModule]:
    from remat_cli.formats.torch.convert import graph_of
    from remat_cli.schedule import with_frees

    joint = Joint.of(captured)
    names = [op.name for op in joint.ops]
    boundary = names.index(BOUNDARY)
    again = [op.name for op in joint.ops[:boundary] if op.recomputable]
    order = [*names[: boundary + 1], *again, *names[boundary + 1 :]]
    return divided(joint, with_frees(graph_of(joint, "self-test"), order))
