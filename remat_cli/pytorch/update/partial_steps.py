"""An optimizer's own step on some of its parameters at a time.

The bits are those of one step on all of them if each parameter is updated from its own gradient and state alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from remat_cli.errors import UsageError
from remat_cli.pytorch.capture.optimizer import own_step, twin_of
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import as_outside_of_capture

# A trial takes so many steps, on parameters whose dimensions have at most so many elements.
_TRIAL_STEPS, _TRIAL_SIZE = 3, 3
# Parameters of one kind in a trial: two, as one alone would not show what parameters have in common.
_OF_EACH_KIND = 2

_HINT = "leave update out, or take an optimizer that updates each parameter from its own gradient and state alone"


class PartialSteps:
    """Steps of an optimizer on some of its parameters.

    `finish` ends a step once all parameters had their part.

    Attributes:
        optimizer: the optimizer.
        is_running: a step on some parameters runs.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.is_running = False
        self._options: dict[int, dict[str, Any]] = {}  # options that this step has changed, by group

    def step(self, number: int, parameters: Sequence[torch.Tensor]) -> None:
        """Update parameters of one group by the optimizer's own step.

        Args:
            number: number of the group.
            parameters: the parameters, with their gradients.
        """
        optimizer = self.optimizer
        groups = optimizer.param_groups
        options = {name: value for name, value in groups[number].items() if name != "params"}
        part = {**options, "params": list(parameters)}
        optimizer.param_groups, self.is_running = [part], True
        try:
            own_step(optimizer)()
        finally:
            optimizer.param_groups, self.is_running = groups, False
        # Counters of steps, as other optimizers have: all parameters see the count from before the step.
        changed = {name: value for name, value in part.items() if name not in options or value is not options[name]}
        del changed["params"]
        self._options.setdefault(number, {}).update(changed)

    def finish(self) -> None:
        """Give the groups the options that the step has changed."""
        for number, changed in self._options.items():
            self.optimizer.param_groups[number].update(changed)
        self._options.clear()


def check_partial_steps(optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimizer can update a parameter at a time with the same bits.

    It is tried on small parameters with random values.

    Raises:
        UsageError: it cannot.
    """
    name = type(optimizer).__name__
    try:
        with torch.random.fork_rng(), as_outside_of_capture(), torch.no_grad():
            reason = _fault(optimizer)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        reason = f"its step fails on a part of them: {type(error).__name__}: {lines[0]}"
    if reason:
        raise UsageError(
            f"{name} cannot update its parameters one at a time, as update=True has it: {reason}", hint=_HINT
        )


def _fault(optimizer: torch.optim.Optimizer) -> str:
    """Return the reason why partial steps have other bits; empty if they have the same."""
    torch.manual_seed(0)
    chosen = _two_of_each_kind(optimizer)
    pairs = {parameter: _small(parameter) for parameter in chosen}
    whole, parts = (
        _of_chosen(optimizer, {parameter: pair[place] for parameter, pair in pairs.items()}) for place in (0, 1)
    )
    steps = PartialSteps(parts)
    for _ in range(_TRIAL_STEPS):
        for one, other in pairs.values():
            one.grad = torch.randn(one.shape, device=one.device).to(one.dtype)
            other.grad = one.grad.clone()
        _step(whole)
        for number, group in enumerate(parts.param_groups):
            for parameter in reversed(group["params"]):
                steps.step(number, [parameter])
        for _, other in pairs.values():
            other.grad = None
        _step(parts)
        steps.finish()
        for one, other in pairs.values():
            if not _are_equal(one, other):
                return "parameters depend on each other's gradients"
            if not _are_equal(whole.state.get(one), parts.state.get(other)):
                return "their state depends on each other's gradients"
    return "" if set(whole.state) <= {one for one, _ in pairs.values()} else "it has state that no parameter owns"


def _two_of_each_kind(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return trained parameters, two of each form in a group."""
    taken: dict[object, list[torch.Tensor]] = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            kind = number, parameter.dtype, tuple(min(size, _TRIAL_SIZE) for size in parameter.shape)
            if parameter.requires_grad and len(taken.setdefault(kind, [])) < _OF_EACH_KIND:
                taken[kind].append(parameter)
    return [parameter for parameters in taken.values() for parameter in parameters]


def _of_chosen(
    optimizer: torch.optim.Optimizer, small: dict[torch.Tensor, torch.nn.Parameter]
) -> torch.optim.Optimizer:
    # Parameters that are left out need no memory.
    left_out = torch.empty(0, device="meta")
    every = (parameter for group in optimizer.param_groups for parameter in group["params"])
    twin = twin_of(optimizer, {parameter: small.get(parameter, left_out) for parameter in every})
    for group in twin.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter is not left_out]
    return twin


def _small(parameter: torch.Tensor) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    shape = [min(size, _TRIAL_SIZE) for size in parameter.shape]
    value = torch.randn(shape, device=parameter.device).to(parameter.dtype)
    return torch.nn.Parameter(value), torch.nn.Parameter(value.clone())


def _step(optimizer: torch.optim.Optimizer) -> None:
    own_step(optimizer)()


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two states have the same bits."""
    ones, others = pytree.tree_leaves(one), pytree.tree_leaves(other)
    return len(ones) == len(others) and all(map(_is_equal, ones, others))


def _is_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other)
    return (
        one.dtype == other.dtype
        and torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )


def parameters_in(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the number of the group, and the parameter, for each parameter."""
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            yield number, parameter


def check_owned(optimizer: torch.optim.Optimizer, parameters: Collection[torch.Tensor]) -> None:
    """Check that an optimizer updates parameters of a model, and each once.

    Args:
        optimizer: the optimizer.
        parameters: parameters of the model.

    Raises:
        UsageError: it updates none of them, or one twice.
    """
    owned = [parameter for _, parameter in parameters_in(optimizer)]
    known = {id(parameter) for parameter in parameters}
    if not any(id(parameter) in known for parameter in owned):
        raise UsageError(
            f"optimizer: the {type(optimizer).__name__} updates no parameter of this model",
            hint="give planned() the optimizer of the model's own parameters",
        )
    if len({id(parameter) for parameter in owned}) < len(owned):
        raise UsageError(
            f"optimizer: the {type(optimizer).__name__} has a parameter twice", hint="name each parameter in one group"
        )
