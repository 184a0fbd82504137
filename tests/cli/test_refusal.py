"""A budget that weights alone exceed: the refusal says what the next call may ask for, and that call has a plan."""

from __future__ import annotations

import re
import shlex

import pytest

from remat_cli.core.problem import Status
from tests.cli.calls import Remat
from tests.places import GRAPHS

MODELS = (
    "gpt.onnx --mode inference --dim batch=1 --dim seq=64",
    "resnet50.onnx --mode inference --dim batch=1",
    "unet.onnx --dim batch=1",
)


@pytest.mark.parametrize("model", MODELS)
def test_the_second_call_works(remat: Remat, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GRAPHS)
    call = ("plan", *model.split(), "--planner", "dtr", "-q")
    refused = remat(*call[:-1], "--budget", "20%")
    assert refused.code == Status.INFEASIBLE.exit_code
    said = " ".join(refused.out.split())
    named = re.findall(r"(--budget (?:\d+|'[^']*of activations'))", said)
    assert len(named) == (2 if "inference" in model else 1)
    for budget in named:
        assert remat(*call, *shlex.split(budget)).code == 0
