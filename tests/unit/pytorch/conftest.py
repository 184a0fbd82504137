"""A machine under load makes calls wait: what they wait for is told only where a test asks for it."""

from __future__ import annotations

import pytest

from remat_cli.pytorch.plan import waiting


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_NS", 10**15)
