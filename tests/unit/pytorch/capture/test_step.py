"""What a user's function may return as a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from remat_cli.pytorch.capture.step import Step, as_step, losses_in

MODEL, X, MASK = nn.Linear(2, 2), torch.ones(1, 2), torch.ones(2)


@pytest.mark.parametrize(
    ("returned", "inputs", "keyword_inputs"),
    [
        ((MODEL, X), (X,), {}),
        ([MODEL, [X, MASK]], (X, MASK), {}),
        ((MODEL, {"x": X}), (), {"x": X}),
        ((MODEL, X, {"mask": MASK}), (X,), {"mask": MASK}),
        ({"model": MODEL, "keyword_inputs": {"x": X}}, (), {"x": X}),
        (Step(MODEL, (X,)), (X,), {}),
    ],
)
def test_a_step_is_a_model_and_its_inputs(returned: Any, inputs: Any, keyword_inputs: Any) -> None:
    step = as_step(returned, "step")
    assert (step.model, step.inputs, step.keyword_inputs, step.optimizer) == (MODEL, inputs, keyword_inputs, None)


def test_losses_are_what_is_named_so_or_the_scalars_or_all() -> None:
    logits, loss, other = (torch.ones(shape, requires_grad=True) for shape in ((2,), (), ()))
    assert losses_in({"loss": loss, "other": other}, [loss, other]) == [loss]
    assert losses_in({"loss": None, "logits": logits}, [logits]) == [logits]
    assert losses_in((logits, loss, other), [logits, loss, other]) == [loss, other]
    assert losses_in((logits,), [logits]) == [logits]
