"""What torch logs while a step is captured stays with it; what it logs as it is taken apart, too."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from remat_cli.errors import GraphError
from remat_cli.machine import interruption
from remat_cli.pytorch.capture.capture_errors import explained
from remat_cli.torch import planned


@pytest.mark.parametrize("asked", [False, True])
def test_torch_is_heard_again_unless_the_process_is_about_to_end(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("torch")
    before = logger.level
    monkeypatch.setattr(interruption, "_has_interrupted", asked)
    try:
        with pytest.raises(KeyboardInterrupt), explained("step"):
            raise KeyboardInterrupt
        assert logger.isEnabledFor(logging.CRITICAL) is not asked
    finally:
        logger.setLevel(before)


def test_batch_norm_with_a_cumulative_average_is_refused_with_what_to_do() -> None:
    model = planned(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)), budget="100%", regions=None)
    with pytest.raises(GraphError) as refusal:
        model(torch.randn(8, 4))
    assert "give it a momentum" in str(refusal.value.hint)
