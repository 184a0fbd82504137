"""State attached to a planned module.

It has plans for the module's copies, and a watch on gradients from unplanned calls.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import nn

from remat_cli.pytorch.plan.record import PlanRecord
from remat_cli.pytorch.run.call import PlannedCall
from remat_cli.pytorch.unstable.front_end import is_passed_over_as_torchs
from remat_cli.pytorch.unstable.modules import set_call_instead

_NAME = "_remat_attached"

_NOT_CALLED = (
    "gradients arrived at a planned {kind}, and no call of it ran as planned: the budget does not hold. What trains "
    "must call the module itself, model(...), in training mode. Calls of model.forward(), of a method that does not "
    "call self(...), as a training_step may be, of parts of the model, and of a model in eval() do not run as planned, "
    "nor do any after model.compile(). Plan the part that is called, or a function that computes the loss"
)
_NOT_ALL_CALLED = (
    "gradients arrived at a planned {kind} that no planned call of it has made: what made them is not in the budget. "
    "Calls of model.forward(), of parts of the model, and of a model in eval() do not run as planned, nor do any after "
    "model.compile()"
)


class Attached:
    """A planned module's attribute, with the call by plan.

    Attributes:
        call: runs the module's calls.
    """

    def __init__(self, call: PlannedCall) -> None:
        self.call = call

    def __deepcopy__(self, memo: dict[int, Any]) -> Attached | None:
        """Let a copy of the module run as planned, by plans of its own."""
        module = self.call.module
        copy = memo.get(id(module))
        if module is None or not isinstance(copy, nn.Module):  # a copy without its module
            return None
        former = self.call
        call = PlannedCall(copy, former.source.for_copy())
        call.fallback = former.fallback
        set_call_instead(copy, call)
        # The copy has no parameters of its own yet: they are only in the memo.
        copies = (memo.get(id(parameter)) for parameter in module.parameters())
        _watch_each(copy, call, [each for each in copies if isinstance(each, nn.Parameter)])
        return Attached(call)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Leave the plan out of pickles: loaded modules get new plans."""
        return type(None), ()


def attach(module: nn.Module, call: PlannedCall) -> None:
    """Let a module's calls run by a plan."""
    set_call_instead(module, call)
    module.__dict__[_NAME] = Attached(call)
    if "forward" not in module.__dict__ and is_passed_over_as_torchs(module):
        # torch.compile traces the forward of torch's own modules despite their call, but no forward that is not a
        # method.
        module.__dict__["forward"] = partial(type(module).forward, module)
    watch_gradients(module, call)


def detach(module: nn.Module) -> None:
    """Let a module's calls run unplanned again."""
    set_call_instead(module, None)
    del module.__dict__[_NAME]
    forward = module.__dict__.get("forward")
    if isinstance(forward, partial) and forward.args == (module,):
        del module.__dict__["forward"]


def attached_record(module: nn.Module) -> PlanRecord | None:
    """Return the record of a planned module, or None."""
    attached = module.__dict__.get(_NAME)
    return attached.call.record if isinstance(attached, Attached) else None


def watch_gradients(module: nn.Module, call: PlannedCall) -> None:
    """Warn once of gradients that no planned call has computed."""
    _watch_each(module, call, module.parameters())


def _watch_each(module: nn.Module, call: PlannedCall, parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.requires_grad and parameter.is_leaf:
            parameter.register_post_accumulate_grad_hook(_Watch(module, call))  # type: ignore[no-untyped-call]


class _Watch:
    """Watches the gradients of one parameter."""

    def __init__(self, module: nn.Module, call: PlannedCall) -> None:
        self._module = ref(module)
        self._record = call.record
        self._seen = 0  # planned backward passes

    def __call__(self, _: torch.Tensor) -> None:
        """Note a gradient."""
        record = self._record
        if record.backward_passes != self._seen:
            self._seen = record.backward_passes
            return
        module = self._module()
        if module is None or attached_record(module) is not record or record.is_part:
            return  # planned again, or as a part of another model
        if not record.gradients_unplanned:
            record.gradients_unplanned = True
            said = _NOT_CALLED if record.last is None else _NOT_ALL_CALLED
            _warn(said.format(kind=type(module).__name__))


def _warn(text: str) -> None:
    """Warn, also about another model of the same class.

    Python shows a warning of the same line only once.
    """
    caller = sys._getframe(2)
    warnings.warn_explicit(text, UserWarning, caller.f_code.co_filename, caller.f_lineno, registry={})
