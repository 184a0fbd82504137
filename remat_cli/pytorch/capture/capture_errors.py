"""Errors of torch's capture, told as: what, where in the user's code, what to do."""

from __future__ import annotations

import logging
import random
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from remat_cli.errors import GraphError, RematError
from remat_cli.machine.interruption import was_interrupted
from remat_cli.pytorch.capture.model_state import ModelState
from remat_cli.pytorch.capture.places import innermost, last_place
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.fakes import (
    NO_DATA,
    FakeTensorMode,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from remat_cli.pytorch.unstable.front_end import BackendError, CaptureError, TracedError
from remat_cli.pytorch.unstable.modules import own_tensors

_DATA_DEPENDENT = (
    "a plan needs sizes and branches that do not depend on data: use torch.where or a mask instead, or compute this "
    "outside the step"
)
_WHOLE = (
    "the whole step must be captured by torch.compile(fullgraph=True): change this line, or move it out of the step"
)
_PRINTING = 'in a step that is captured, print takes tensors, numbers and text: print(f"{x.shape}")'
_BACKWARD_HOOK = (
    "a full backward hook of a module cannot be part of a plan: take it off, use tensor.register_hook on what the "
    "module returns, or plan without this module"
)
_REQUIRES_GRAD = (
    "leave out requires_grad_() of what the step computes; enable_input_require_grads(), which transformers and PEFT "
    "use with checkpoints, does so: model.disable_input_require_grads() undoes it, and a plan needs neither. "
    "Of forces, call the model with positions that require a gradient already"
)
_CUMULATIVE = (
    "BatchNorm with momentum=None divides by the number of its batches, which is data: give it a momentum, as 0.1, or "
    'plan the parts around it, regions="layers.*.conv"'
)
_INPLACE = "PyTorch itself could not differentiate this: do it out of place, or on a copy (clone)"
_GUARD = re.compile(r"data-dependent expression (.*?) \(unhinted")
_EXPLANATION = re.compile(r"^\s*Explanation: (.*)$", re.MULTILINE)


# What torch raises where it cannot capture something.
CAPTURE_ERRORS = (CaptureError, GuardOnDataDependentSymNode)

# What stems from there being no data, and not from the code that is called.
_OF_TENSORS_WITHOUT_DATA = (
    *NO_DATA,
    CaptureError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
# The same, of errors that torch gives no class of their own: a tensor without data is on the device "meta" inside.
_NAMES_OF_TENSORS_WITHOUT_DATA = ("Fake", 'device "meta"')


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn torch's errors during a capture into errors for the user.

    torch's log is silenced.

    Args:
        what: the captured model or region, for messages.

    Raises:
        GraphError: the step cannot be captured.
        RematError: an error of remat, raised meanwhile.
    """
    with warnings.catch_warnings(record=True) as warned, silent_torch():
        warnings.simplefilter("always")
        try:
            yield
        except CAPTURE_ERRORS as error:
            raise explanation(error, what, [str(warning.message) for warning in warned]) from error


@contextmanager
def silent_torch() -> Iterator[None]:
    """Silence torch's log."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        # What was under way in torch when a request came is taken apart only later, and torch logs what it misses.
        if not was_interrupted():
            logger.setLevel(level)


def explanation(error: BaseException, what: str, warned: Sequence[str] = ()) -> RematError:
    """Return the error for the user: what remat raised while torch called it, or what torch means.

    Args:
        error: error of torch.
        what: the captured model or region.
        warned: warnings of autograd meanwhile, with the origin of its error.
    """
    return raised_by_remat(error) or _explained(error, what, warned)


def raised_by_remat(error: BaseException) -> RematError | None:
    """Return remat's own error behind an error of torch, or None."""
    own: BaseException | None = error
    while own is not None and not isinstance(own, RematError):
        own = getattr(own, "inner_exception", None)
    return own


def random_states() -> Callable[[], None]:
    """Return a function that puts the states of random generators back: of torch, NumPy and Python."""
    states = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    others = np.random.get_state(), random.getstate()

    def put_back() -> None:
        torch.set_rng_state(states[0])
        if states[1]:
            torch.cuda.set_rng_state_all(states[1])
        np.random.set_state(others[0])
        random.setstate(others[1])

    return put_back


@contextmanager
def drawing_again() -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python afterwards."""
    put_back = random_states()
    try:
        yield
    finally:
        put_back()


def call_without_data(
    function: Callable[..., Any], modules: Iterable[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ModelState:
    """Call a function once on tensors without data.

    Errors of its own code are raised unchanged.

    Some models set up state in their first call that torch cannot capture: this call sets it up. If it would leave
    tensors without data in the modules, a second call, without gradients and on copies, takes its place. torch would
    reword errors of a model's code.

    Args:
        function: the function.
        modules: modules that the function uses; their parameters and buffers stay unchanged.
        args: positional arguments.
        kwargs: keyword arguments.

    Returns:
        The state of the modules before.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    modules = list(modules)
    parts = {part for module in modules for part in module.modules()}
    before = ModelState(modules)
    given = args, kwargs
    args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, given)
    try:
        with drawing_again(), _tensors_of(parts, mode.from_tensor), silent_torch(), mode:
            function(*args, **kwargs)
        if not before.has_fakes():
            return before
    except Exception as error:
        is_of_fakes = isinstance(error, _OF_TENSORS_WITHOUT_DATA)
        is_of_fakes = is_of_fakes or any(name in str(error) for name in _NAMES_OF_TENSORS_WITHOUT_DATA)
        had_fakes = before.has_fakes()
        before.restore()
        if is_of_fakes and not had_fakes:
            return before
        # Torch's rules for tensors without data refuse some that its kernels take.
        if type(error) is not RuntimeError and not is_of_fakes:
            raise
    before.restore()
    args, kwargs = pytree.tree_map_only(torch.Tensor, _copied, given)
    try:
        with drawing_again(), _tensors_of(parts, _copied), torch.no_grad():
            function(*args, **kwargs)
    except Exception:
        before.restore()
        raise
    return before


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().clone()
    return nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied


@contextmanager
def _tensors_of(parts: Iterable[nn.Module], instead: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Let modules have other parameters and buffers: what an op changes in place is theirs no more.

    In the mode of tensors without data, ops with only tensors with data are run all the same.
    """
    held: list[dict[str, Any]] = [kind for part in parts for kind in own_tensors(part)]
    before = [dict(tensors) for tensors in held]
    others: dict[torch.Tensor, torch.Tensor] = {}
    try:
        for tensors in held:
            for name, tensor in tensors.items():
                if tensor is not None:
                    if tensor not in others:
                        others[tensor] = instead(tensor)
                    tensors[name] = others[tensor]
        yield
    finally:
        for tensors, own in zip(held, before, strict=True):
            tensors.clear()
            tensors.update(own)


def _explained(error: BaseException, what: str, warned: Sequence[str]) -> GraphError:
    text = str(error)
    if isinstance(error, BackendError):
        return _differentiated(error, what, warned)
    reason = text.splitlines()[0] if text else type(error).__name__
    details = _EXPLANATION.search(text)
    if isinstance(error, TracedError) or "Observed exception" in reason:
        reason = _raised(error, text)
        hint = "does the step run by itself, without remat?"
    else:
        reason = f"{reason}: {details[1]}" if details else reason
        hint = _WHOLE
        if "backwards hooks" in reason:
            hint = _BACKWARD_HOOK
        elif "requires_grad_()" in reason:
            hint = _REQUIRES_GRAD
        elif "reorder" in reason:
            hint = _PRINTING
        elif _depends_on_data(text):
            hint = _CUMULATIVE if "ToFloat" in text and "batchnorm.py" in _frames(error) else _DATA_DEPENDENT
            reason = f"a branch depends on data ({branch[1]})" if (branch := _GUARD.search(text)) else reason
    return GraphError(f"{what} cannot be captured{_where(error)}: {reason.rstrip('.: ')}", hint=hint)


def _frames(error: Any) -> set[str]:
    """Return the names of the files whose code was captured."""
    return {Path(frame.filename).name for frame in getattr(error, "real_stack", None) or ()}


def _where(error: Any) -> str:
    stack = getattr(error, "real_stack", None) or ()
    place = innermost([(frame.filename, frame.lineno) for frame in stack]) if stack else last_place(str(error))
    return "" if place is None else f" at {place}"


def _depends_on_data(text: str) -> bool:
    return any(sign in text for sign in ("ata-dependent", "dynamic shape", "unbacked", ".item()", "tolist"))


def _raised(error: BaseException, text: str) -> str:
    """Return the user's error from torch's text."""
    for pattern in (r"got (\w+\(.*\))", r"raised exception (.*)$"):
        if match := re.search(pattern, text, re.MULTILINE):
            return match[1]
    return text.splitlines()[0] if text else type(error).__name__


def _differentiated(error: BackendError, what: str, warned: Sequence[str]) -> GraphError:
    """Return the error for a failure while torch traced the backward pass."""
    inner = error.inner_exception
    reason = (str(inner).splitlines() or [""])[0]
    # Autograd says where the forward op is that it failed on in a warning.
    places = [place for text in warned if (place := last_place(text)) is not None]
    where = f" at {places[-1]}" if places else ""
    if "inplace operation" in reason:
        reason = "a value that the backward pass needs is changed in place after it was read"
        return GraphError(f"{what} cannot be differentiated{where}: {reason}", hint=_INPLACE)
    return GraphError(
        f"{what} cannot be captured{where}: {type(inner).__name__}: {reason.rstrip('.')}",
        hint="does the step run under torch.compile(backend='aot_eager')?",
    )
