"""The front end of torch.compile: what it captures, and when it captures again."""

from __future__ import annotations

import copy
import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch._dynamo import config, exc, pgo, reset, trace_rules
from torch._dynamo.callback import callback_handler
from torch.torch_version import TorchVersion

from remat_cli.pytorch.unstable.modules import own_call

# Raised where something cannot be captured: of all kinds, in the code that is captured, and behind the front end.
CaptureError = exc.TorchDynamoException
TracedError = exc.TorchRuntimeError
BackendError = exc.BackendCompilerFailed

# Options of torch.compile under which a step is read and run, both times the same: one graph, recurrent layers too.
_OPTIONS = {
    "allow_rnn": True,
    "trace_autograd_ops": True,  # gradients within the forward pass, as of a potential by its coordinates
    # Each capture is a plan, and none of them is left out: what keeps them few is that sizes are captured as symbols.
    "recompile_limit": 1_000_000,
    "accumulated_recompile_limit": 1_000_000,
    "skip_nnmodule_hook_guards": False,
    "suppress_errors": False,
    "optimize_ddp": False,
    "run_gc_after_compile": False,  # seconds for large models, after each capture
}
# Older releases know some of them not yet.
_OPTIONS = {name: value for name, value in _OPTIONS.items() if hasattr(config, name)}
if TorchVersion(torch.__version__) < "2.12":
    # Else it does not look whether a parameter of a module that has not changed needs a gradient by now.
    _OPTIONS["skip_tensor_guards_with_matching_dict_tags"] = False


def configured(
    function: Callable[..., Any],
    backend: Callable[..., Any],
    *,
    takes_sizes: bool = False,
    seen: SeenSizes | None = None,
    capture_context: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Callable[..., Any]:
    """Return `function` as torch.compile has it captured, with code of its own."""
    compiled_function = torch.compile(
        with_own_code(function), backend=backend, fullgraph=True, dynamic=None if takes_sizes else False
    )

    options = {**_OPTIONS, "reorderable_logging_functions": {print}, "ignore_logging_functions": _logging_methods()}

    known = seen or SeenSizes()
    set_options = config._make_closure_patcher(**options)  # takes a third of the time of `config.patch`

    def call(*args: Any, **kwargs: Any) -> Any:
        set_back = set_options()
        try:
            with known, _entered_in_captures(capture_context):
                return compiled_function(*args, **kwargs)
        finally:
            set_back()

    return call


@contextmanager
def _entered_in_captures(around: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """While this lasts, have torch enter a context before it captures something, and leave it afterwards."""
    entered = ExitStack()

    def begins(_: object) -> None:
        entered.enter_context(around())

    def ends(_: object) -> None:
        entered.close()

    callback_handler.register_start_callback(begins)
    callback_handler.register_end_callback(ends)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(begins)
        callback_handler.remove_end_callback(ends)
        entered.close()


class SeenSizes:
    """While it is entered, torch knows of no sizes but those that it has seen while it was entered.

    Else it takes sizes of one model for those of another that shares code with it, and captures symbols at once.
    """

    def __init__(self) -> None:
        self._own: Any = defaultdict(pgo.CodeState)
        self._before: list[Any] = []  # a call may be within another one

    def copy(self) -> SeenSizes:
        """Return another that has seen the same."""
        other = SeenSizes()
        other._own = copy.deepcopy(self._own)
        return other

    def __enter__(self) -> None:
        self._before.append(pgo._CODE_STATE)
        pgo._CODE_STATE = self._own

    def __exit__(self, *_: object) -> None:
        pgo._CODE_STATE = self._before.pop()


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same, in code that no other one has."""
    of = getattr(function, "__func__", function)
    if not isinstance(of, FunctionType):
        return function
    code = of.__code__.replace()
    own = FunctionType(code, of.__globals__, of.__name__, of.__defaults__, of.__closure__)
    own.__kwdefaults__ = of.__kwdefaults__
    functools.update_wrapper(own, of)
    del own.__wrapped__  # type: ignore[attr-defined]
    return MethodType(own, function.__self__) if isinstance(function, MethodType) else own


def is_passed_over(error: RuntimeError | UserWarning) -> bool:
    """Tell whether torch says that it ran a function without a capture: that of code it was told to pass over.

    torch 2.12 warns of it, torch 2.11 says nothing.

    A module's forward method is the same code for all modules of its class, and it is passed over for all of them once
    somebody else's torch.compile has captured it as often as its limit allows.
    """
    return "no compiled frames" in str(error)


def captured_apart(module: nn.Module) -> Callable[..., Any]:
    """Return a module's call in a form that is captured as a whole, with no code that other modules share."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return own_call(module)(*args, **kwargs)

    return call


def captured_call(module: nn.Module) -> Callable[..., Any]:
    """Return a module's call, in a form that torch.compile does not pass over.

    It does not look into functions of torch itself, which the forward method of a `Sequential` is, unless somebody
    else's function calls them.
    """

    return captured_apart(module) if is_passed_over_as_torchs(module) else own_call(module)


class _Functions(dict[Callable[..., Any], None]):
    """Functions, as a setting of torch.compile.

    torch 2.11 writes this setting as JSON: it sorts sets, which fails for functions. So it is told of no items.
    """

    def items(self) -> Any:
        """Return nothing."""
        return ()


def _logging_methods() -> _Functions:
    """Return all methods of loggers, for a captured step does not log.

    Libraries' additions are included.
    """
    methods = (method for name, method in vars(logging.Logger).items() if not name.startswith("_"))
    return _Functions((method, None) for method in methods if callable(method))


def is_passed_over_as_torchs(module: nn.Module) -> bool:
    """Return whether torch.compile traces a module's forward method despite its call, as that is torch's own."""
    return bool(trace_rules.check(module.forward))


@contextmanager
def forgetting() -> Iterator[None]:
    """Drop everything that torch.compile captures meanwhile."""
    reset()
    try:
        yield
    finally:
        reset()
