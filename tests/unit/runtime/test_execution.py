"""What is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.config import GraphOptions
from remat_cli.core.schedule import Schedule
from remat_cli.errors import UsageError
from remat_cli.runtime.execution import check_can_execute


@pytest.mark.parametrize("path", ["train.py:step", "model.onnx"])
def test_a_plan_for_sharded_parameters_is_not_run(path: str) -> None:
    with pytest.raises(UsageError, match="simulated; nothing here runs it yet") as error:
        check_can_execute(Path(path), GraphOptions(ranks=8), Schedule(()))
    assert "without ranks" in str(error.value.hint)
