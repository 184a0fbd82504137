"""Modes of tensors without data, also during another capture."""

from __future__ import annotations

import torch
from torch._guards import TracingContext, tracing

from remat_cli.pytorch.unstable.fakes import FakeTensorMode, mode_of


def test_the_mode_is_that_of_the_tensors_not_of_a_capture_under_way() -> None:
    own, of_capture = FakeTensorMode(), FakeTensorMode()
    with own:
        fake = torch.empty(2)
    assert mode_of([3, torch.ones(2), fake]) is own
    assert mode_of([torch.ones(2)]) is None
    with tracing(TracingContext(of_capture)):
        assert mode_of([fake]) is own
        assert mode_of([torch.ones(2)]) is of_capture
