"""The updates of a model's parameters by its optimizer, in groups, or in the backward pass.

`optimizer.step()` stays in the training loop: hooks around it update what no backward pass has updated, and the step
itself then finds no gradients.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from remat_cli.errors import UsageError
from remat_cli.pytorch.memory.watch import weakly
from remat_cli.pytorch.unstable.modules import hooks_on_gradients
from remat_cli.pytorch.update.costs import UpdateCost, update_costs
from remat_cli.pytorch.update.gradients import UsedGradient, as_accumulated
from remat_cli.pytorch.update.hosted_state import HostedState
from remat_cli.pytorch.update.partial_steps import PartialSteps, parameters_in

# The updates of all optimizers: a model that is planned again has others.
_UPDATES: weakref.WeakSet[Updates] = weakref.WeakSet()

_log = logging.getLogger("remat")
_STEP = "planned(..., update='step') updates parameters when optimizer.step() is called"


class Updates:
    """Updates parameters by the optimizer's own step on a few at a time.

    Attributes:
        optimizer: the optimizer.
        model: the model, or function, whose passes make the gradients.
        costs: the memory of each parameter's update.
        hosted: parameters whose state waits on the host between updates.
        room_bytes: memory for the temporaries, and the state that comes and goes, of one group of updates.
        state: moves state to the host and back.
        around_next_step: called once, before the next step of the optimizer and after it.
        in_backward: updates run in the backward pass, where its plan has them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: object = None) -> None:
        """Begin with the state where it is.

        Args:
            optimizer: the optimizer.
            model: the model, or function, whose passes make the gradients.

        Raises:
            UsageError: the optimizer's step does not run without data.
        """
        self.optimizer = optimizer
        self.model = model
        self.costs: Mapping[torch.Tensor, UpdateCost] = update_costs(optimizer)
        self.hosted: Collection[torch.Tensor] = frozenset()
        self.room_bytes = 0
        self.in_backward = False
        self.around_next_step: tuple[Callable[[], None], Callable[[], None]] | None = None
        self.state = HostedState(optimizer)
        self._steps = PartialSteps(optimizer)
        self._group_of: dict[torch.Tensor, int] = {}
        self._used: set[torch.Tensor] = set()  # parameters that this step's backward pass has updated
        self._zeroed: set[torch.Tensor] = set()  # parameters whose used gradient was set to zero
        self._options: list[dict[str, Any]] = []  # options of the groups at the first of these updates
        self._hidden: dict[torch.Tensor, torch.Tensor | None] = {}  # gradients while the step itself runs
        self._gradient_hooks: list[Any] = []
        self._depth = 0  # calls of steps that have begun, one within the other
        before, after = weakly(self._before_step), weakly(self._after_step)
        self._hooks = [
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
            optimizer.register_state_dict_pre_hook(weakly(self._warn_of_half_a_step)),
        ]
        for hook in self._hooks:
            weakref.finalize(self, hook.remove).atexit = False
        for former in list(_UPDATES):
            if former.optimizer is optimizer or (model is not None and former.model is model):
                former.let_go()
        _UPDATES.add(self)

    def let_go(self) -> None:
        """Leave the optimizer as it was; its state stays where it is."""
        for hook in (*self._hooks, *self._gradient_hooks):
            hook.remove()
        _UPDATES.discard(self)

    def settle(self, hosted: Collection[torch.Tensor], room_bytes: int, *, by_hooks: bool = False) -> None:
        """Let the state of these parameters wait on the host from now on.

        Args:
            hosted: the parameters.
            room_bytes: memory for one group of updates.
            by_hooks: update parameters as soon as autograd has accumulated their gradients.
        """
        for hook in self._gradient_hooks:
            hook.remove()
        self._gradient_hooks = [
            parameter.register_post_accumulate_grad_hook(weakly(self.update_moved))  # type: ignore[no-untyped-call]
            for parameter in (self.costs if by_hooks else ())
            if parameter.requires_grad  # others are updated at the optimizer's step, once they do
        ]
        self.hosted, self.room_bytes = frozenset(hosted), room_bytes
        for parameter in self.costs:
            if parameter in self.hosted:
                self.state.offload(parameter)
                self.state.release(parameter)
            else:
                self.state.fetch(parameter)

    # In the backward pass

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Update a parameter, whose gradient is final; the gradient is gone afterwards.

        Its state is in its device's memory.

        Raises:
            UsageError: the parameter was updated before, and no step of the optimizer followed.
        """
        self.check_stepped(parameter)
        if hooks_on_gradients(parameter):
            raise UsageError("a hook is registered on a gradient that the backward pass would use up", hint=_STEP)
        with torch.no_grad():
            if isinstance(parameter.grad, UsedGradient):
                raise UsageError(
                    "the gradient of the step before is still there, and would be added to",
                    hint=f"call optimizer.zero_grad() before; or {_STEP}",
                )
            if parameter.grad is not None:
                parameter.grad += gradient
            else:
                parameter.grad = as_accumulated(gradient, parameter)
        del gradient
        self.update_accumulated(parameter)

    def update_accumulated(self, parameter: torch.Tensor) -> None:
        """Update a parameter by its gradient, which is final and gone afterwards.

        Raises:
            UsageError: see `update`.
        """
        self.check_stepped(parameter)
        if not self._used:
            self._options = self.options()
            self._group_of = {each: number for number, each in parameters_in(self.optimizer)}
        with torch.no_grad():
            if parameter in self._zeroed:  # as if it were added to zeros, which makes a zero of -0
                assert parameter.grad is not None
                parameter.grad += 0.0
                self._zeroed.discard(parameter)
            self._used.add(parameter)
            self.state.fetch(parameter)
            self._steps.step(self._group_of[parameter], [parameter])
            parameter.grad = UsedGradient.of(parameter, self._is_zeroed)

    def update_moved(self, parameter: torch.Tensor) -> None:
        """Update a parameter by its accumulated gradient; its state comes before, and leaves if it waits on the host.

        Raises:
            UsageError: see `update`.
        """
        self.update_accumulated(parameter)
        if parameter in self.hosted:
            self.state.offload(parameter)
            self.state.release(parameter)

    def _is_zeroed(self, parameter: torch.Tensor) -> None:
        """Note that a used gradient is set to zero: the next one is added to that."""
        self._zeroed.add(parameter)
        parameter.grad = None

    def check_stepped(self, parameter: torch.Tensor | None = None) -> None:
        """Check that the optimizer's step has followed the last backward pass.

        Args:
            parameter: check this one alone.

        Raises:
            UsageError: it has not.
        """
        if parameter in self._used if parameter is not None else self._used:
            raise UsageError(
                f"the last backward pass has updated {len(self._used)} parameters, and no optimizer.step() came after "
                "it: they and their state have this step's values, whose gradients are gone",
                hint="optimizer.step() ends the step; where steps are skipped, or gradients of several passes are "
                f"added, {_STEP}",
            )

    def _warn_of_half_a_step(self, _: object) -> None:
        """Warn whoever saves the state between a backward pass with updates and the optimizer's step."""
        if self._used:
            _log.warning(
                "optimizer.state_dict() before optimizer.step(): the backward pass has updated %d parameters and their "
                "state already; save the model with it, and after the step",
                len(self._used),
            )

    @property
    def has_updated(self) -> bool:
        """Whether a backward pass has updated parameters since the last step."""
        return bool(self._used)

    # Around the optimizer's step

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if optimizer is not self.optimizer:
            return None
        if self._steps.is_running:  # the step of a class calls that of the class below
            return None
        if self._depth and all(parameter.grad is None for _, parameter in parameters_in(optimizer)):
            self._depth += 1
            return None
        self._hidden.clear()  # of a step that was interrupted
        self._depth = 1
        try:
            args, kwargs = _with_closure_run(args, kwargs)
            if self.around_next_step is not None:
                self.around_next_step[0]()
            self._check_options()
            with torch.no_grad():
                for number, parameters in self._groups():
                    self._update_group(number, parameters)
        except BaseException:
            self._depth = 0
            raise
        for _, parameter in parameters_in(optimizer):
            self._hidden[parameter], parameter.grad = parameter.grad, None
        return args, kwargs

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if optimizer is not self.optimizer or not self._depth or self._steps.is_running:
            return
        self._depth -= 1
        if self._depth:
            return
        for parameter, gradient in self._hidden.items():
            parameter.grad = gradient
        self._hidden.clear()
        self._steps.finish()
        self._used.clear()
        if self.around_next_step is not None:
            around, self.around_next_step = self.around_next_step, None
            around[1]()

    def _check_options(self) -> None:
        """Check that options are those that the backward pass has used.

        Raises:
            UsageError: an option has changed.
        """
        if self._used and (changed := self.changed_option(self._options)):
            raise UsageError(
                f"{changed} of the optimizer was changed between the backward pass, which has updated parameters, and "
                "optimizer.step()",
                hint=f"change it after the step, as schedulers do; or {_STEP}",
            )

    def options(self) -> list[dict[str, Any]]:
        """Return the options of the optimizer's groups: of a tensor, its value."""
        return [
            {name: _value(value) for name, value in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]

    def changed_option(self, before: Sequence[Mapping[str, Any]]) -> str:
        """Return an option that is not as it was, in words; empty if all are."""
        for number, (former, now) in enumerate(zip(before, self.options(), strict=False)):
            for name, value in former.items():
                if not _is_same(value, now.get(name)):
                    return f"option {name!r} of group {number}"
        return ""

    def _groups(self) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """Yield parameters to update together, with the number of their group in the optimizer."""
        for number, group in enumerate(self.optimizer.param_groups):
            together: list[torch.Tensor] = []
            taken = 0
            for parameter in group["params"]:
                if parameter.grad is None or isinstance(parameter.grad, UsedGradient):
                    continue
                if parameter in self._used:
                    raise UsageError(
                        "a gradient has come to a parameter that was updated in the backward pass before",
                        hint=f"is it used outside of the planned model, too? {_STEP}",
                    )
                size = self.needed_bytes(parameter)
                if together and taken + size > self.room_bytes:
                    yield number, together
                    together, taken = [], 0
                together.append(parameter)
                taken += size
            if together:
                yield number, together

    def needed_bytes(self, parameter: torch.Tensor, hosted: Collection[torch.Tensor] | None = None) -> int:
        """Return the memory that a parameter's update takes while it runs.

        Args:
            parameter: the parameter.
            hosted: parameters whose state waits on the host; None for those of now.
        """
        hosted = self.hosted if hosted is None else hosted
        cost = self.costs.get(parameter)
        if cost is None:  # frozen at first
            return int(parameter.nbytes)
        return cost.temporary_bytes + (cost.movable_bytes if parameter in hosted else 0)

    def _update_group(self, number: int, parameters: Sequence[torch.Tensor]) -> None:
        """Update parameters; their state comes before, and those that wait on the host leave afterwards."""
        for parameter in self._zeroed.intersection(parameters):
            assert parameter.grad is not None
            parameter.grad += 0.0
        self._zeroed.difference_update(parameters)
        for parameter in parameters:
            self.state.prefetch(parameter)
        for parameter in parameters:
            self.state.arrive(parameter)
        self._steps.step(number, parameters)
        leaving = [parameter for parameter in parameters if parameter in self.hosted]
        for parameter in leaving:
            self.state.offload(parameter)
        for parameter in leaving:
            self.state.release(parameter)


def check_one_owner(optimizer: torch.optim.Optimizer, model: object) -> None:
    """Check that no other optimizer updates parameters of this one as a part of a planned step.

    Args:
        optimizer: the optimizer.
        model: the model, or function, to be planned: an optimizer of an earlier plan of it is replaced.

    Raises:
        UsageError: another does.
    """
    own = {parameter for _, parameter in parameters_in(optimizer)}

    def shared() -> str:
        for other in list(_UPDATES):
            if other.optimizer is not optimizer and other.model is not model and not own.isdisjoint(other.costs):
                return type(other.optimizer).__name__
        return ""

    if shared():
        gc.collect()  # of a plan that is no longer in use
    if name := shared():
        raise UsageError(
            f"optimizer: parameters of the {type(optimizer).__name__} are updated by another planned step's {name}, "
            "too",
            hint="give each parameter to one optimizer, or plan both steps without update",
        )


def _with_closure_run(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Run the closure of a step as the step would; return arguments with its result in its place."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")  # the optimizer comes first
    if not callable(closure):
        return args, kwargs
    with torch.enable_grad():
        loss = closure()

    def result() -> Any:
        return loss

    return ((args[0], result, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": result})


def _value(option: Any) -> Any:
    return option.detach().clone() if isinstance(option, torch.Tensor) else option


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one is other or bool(one == other)
