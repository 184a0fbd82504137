"""Plans by torch.compile(model, backend="remat"): eager's bits, and errors in words."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from remat_cli.errors import DoesNotFit, GraphError, UsageError
from tests.torch_steps import MLP
from tests.unit.pytorch.run.test_planned import gradients, same, twins

BUDGET = {"budget": "100%"}


class Breaking(MLP):
    """Branches on data between its layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if x.sum() > 0:
            x = -x
        return super().forward(x)


def compiled(model: torch.nn.Module, options: Any, **kwargs: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="remat", options=options, **kwargs)


def test_bits_are_eagers_at_all_sizes(caplog: pytest.LogCaptureFixture) -> None:
    model, twin = twins(MLP)
    run = compiled(model, BUDGET)
    for size in (4, 6, 9):
        x = torch.randn(size, 16)
        for each in (run, twin):
            torch.autograd.backward(each(x))
        assert same(gradients(model), gradients(twin))
    with torch.no_grad():
        assert torch.equal(run(x), twin(x))
    assert sum("planned" in record.message for record in caplog.records) <= 3


@pytest.mark.parametrize(
    ("options", "raised", "says"),
    [
        (None, UsageError, 'needs a budget\nhint: torch.compile(model, backend="remat"'),
        ({"budget": "12 apples"}, UsageError, "unknown unit 'apples'"),
        ({**BUDGET, "planer": "dtr"}, UsageError, "has no option 'planer'\nhint: there are accumulate, budget"),
        ({**BUDGET, "schedule": "s.json"}, UsageError, "has no option 'schedule'"),
        ({"budget": "100B"}, DoesNotFit, "no plan fits a budget of 100 B"),
    ],
)
def test_wrong_options_are_told(options: Any, raised: type[Exception], says: str) -> None:
    with pytest.raises(BackendCompilerFailed) as error:
        compiled(MLP(), options)(torch.ones(2, 16))
    assert isinstance(error.value.inner_exception, raised)
    assert says in str(error.value)


def test_model_that_breaks_into_several_graphs_is_refused_with_the_line() -> None:
    with pytest.raises(BackendCompilerFailed, match=r"breaks into several graphs at .*test_backend\.py:\d+") as error:
        compiled(Breaking(), BUDGET)(torch.ones(2, 16))
    assert isinstance(error.value.inner_exception, GraphError)


def test_fused_kernels_of_one_capture_run_at_all_sizes(caplog: pytest.LogCaptureFixture) -> None:
    model, twin = twins(MLP)
    run = compiled(model, {**BUDGET, "fused": True})
    with caplog.at_level(logging.INFO, "remat"):
        for size in (4, 6):
            x = torch.randn(size, 16)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(run(x), twin(x))
    assert sum(record.message.startswith("planned ") for record in caplog.records) == 1
