"""What torch logs while a step is captured stays with it; what it logs as it is taken apart, too."""

from __future__ import annotations

import logging

import pytest

from remat_cli import interruption
from remat_cli.pytorch.capture.capture_errors import explained


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
