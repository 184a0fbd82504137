"""No state of the process outlives a step, however it ends."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _python_dispatch as dispatch
from torch.utils.checkpoint import checkpoint

from remat_cli.pytorch.run.planned import plan_of, planned
from remat_cli.pytorch.unstable.modules import GLOBAL_HOOKS

Step = Callable[[Any, torch.Tensor], object]
EXTENTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "blocks": {"regions": "auto"},
    "moved": {"regions": "auto", "offload": True},
}


def process_state() -> dict[str, Any]:
    """State that torch, Python, and its logging share among all code of the process."""
    of_python = ("_is_in_torch_dispatch_mode", "_is_in_any_mode_without_ignore_compile_internals")
    loggers = [logging.getLogger(name) for name in ("torch", "torch._dynamo", "torch.fx", "torch._inductor")]
    return {
        "dispatch modes": dispatch._get_current_dispatch_mode_stack(),
        "flags of dispatch modes": [getattr(dispatch, name) for name in of_python],
        "function modes": _get_current_function_mode_stack(),  # type: ignore[no-untyped-call]
        "keys": [str(torch._C._dispatch_tls_local_exclude_set()), str(torch._C._dispatch_tls_local_include_set())],
        "hooks on saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "hooks on modules": [list(hooks) for hooks in GLOBAL_HOOKS],
        "resizes": torch.UntypedStorage.resize_,
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_cache_enabled(), torch.is_autocast_enabled("cpu")),
        "kernels": (torch._C._get_mkldnn_enabled(), torch.are_deterministic_algorithms_enabled()),
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "options of torch.compile": torch._dynamo.config.get_serializable_config_copy(),
        "options of capture": torch._functorch.config.get_serializable_config_copy(),
        "warnings": list(warnings.filters),
        "loggers": [(logger.level, logger.disabled, list(logger.handlers)) for logger in loggers],
    }


@contextmanager
def unchanged() -> Iterator[None]:
    before = process_state()
    yield
    after = process_state()
    assert {name: value for name, value in after.items() if value != before[name]} == {}


def optimize_in_backward(model: nn.Module) -> None:
    """Let each parameter be updated as soon as its gradient is there."""
    for each in model.parameters():
        optimizer: Any = torch.optim.AdamW([each], lr=1e-2)

        def update(_: torch.Tensor, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        each.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]


class Failure(Exception):
    """Raised by a step."""


class Fails(torch.autograd.Function):
    """An op whose backward pass fails."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, *__: Any) -> None:
        raise Failure


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = model(x).square().mean()
    return value


def plain(model: nn.Module, x: torch.Tensor) -> None:
    torch.autograd.backward(loss(model, x))


def fails_before_backward(model: nn.Module, x: torch.Tensor) -> None:
    model(x) @ torch.ones(7)  # sizes do not match


def fails_in_loss(model: nn.Module, x: torch.Tensor) -> None:
    torch.autograd.backward(Fails.apply(loss(model, x)))  # type: ignore[no-untyped-call]


def fails_in_hook(model: Any, x: torch.Tensor) -> None:
    y = model(x)

    def fail(_: torch.Tensor) -> None:
        raise Failure

    model[0].weight.register_hook(fail)
    torch.autograd.backward(y.sum())


def fails_in_model(model: nn.Module, x: torch.Tensor) -> None:
    model(x[:, :5])  # sizes do not match


def without_backward(model: nn.Module, x: torch.Tensor) -> None:
    model(x)


def within_checkpoint(model: nn.Module, x: torch.Tensor, use_reentrant: bool = False) -> None:
    torch.autograd.backward(checkpoint(model, x.clone().requires_grad_(), use_reentrant=use_reentrant).sum())


def within_reentrant_checkpoint(model: nn.Module, x: torch.Tensor) -> None:
    within_checkpoint(model, x, use_reentrant=True)


def twice_back(model: nn.Module, x: torch.Tensor) -> None:
    value = loss(model, x)
    torch.autograd.backward(value, retain_graph=True)
    torch.autograd.backward(value)


def within_mode(model: nn.Module, x: torch.Tensor) -> None:
    value = loss(model, x)
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        torch.autograd.backward(value)


FAILING: tuple[Step, ...] = (fails_before_backward, fails_in_loss, fails_in_hook, fails_in_model)
STEPS: tuple[Step, ...] = (
    plain,
    *FAILING,
    without_backward,
    within_checkpoint,
    within_reentrant_checkpoint,
    twice_back,
    within_mode,
)


def fails(step: Step, model: nn.Module) -> bool:
    """Run a step, and let go of its error, which holds the graph of the step."""
    try:
        step(model, torch.randn(32, 16))
    except (Failure, RuntimeError):
        return True
    return False


def sequential() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(*(each for _ in range(3) for each in (nn.Linear(16, 16), nn.GELU())))


def train(model: nn.Module, steps: int = 5) -> list[float]:
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        value = loss(model, torch.randn(32, 16))
        torch.autograd.backward(value)
        losses.append(value.item())
    return losses


@pytest.mark.filterwarnings("ignore:.*gradients arrived at a planned:UserWarning")
@pytest.mark.parametrize("extent", EXTENTS)
def test_no_state_of_the_process_outlives_a_step(extent: str) -> None:
    model = sequential()
    planned(model, budget="80%", **EXTENTS[extent])
    plain(model, torch.randn(32, 16))
    for step in STEPS:
        for _ in range(2):
            model._compiled_call_impl._watch.again()
            with unchanged():
                assert fails(step, model) == (step in FAILING)
        model[0].weight._backward_hooks = None
    with unchanged():
        plain(model, torch.randn(32, 16))


@pytest.mark.parametrize("extent", EXTENTS)
def test_the_optimizer_may_step_within_the_backward_pass(extent: str) -> None:
    eager, model = sequential(), sequential()
    planned(model, budget="80%", **EXTENTS[extent])
    optimize_in_backward(eager)
    optimize_in_backward(model)
    with unchanged():
        losses = train(model)
    assert losses == train(eager)
    assert all(map(torch.equal, model.parameters(), eager.parameters()))
    measured = [peak for plan in plan_of(model).graphs for peak in plan.measured_peak_bytes]
    assert len(measured) >= 3
