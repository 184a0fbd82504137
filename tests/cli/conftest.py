"""The command line, called in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from remat_cli.cli import main
from tests.cli.calls import Ended, Remat


@pytest.fixture
def remat(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Remat:
    """Call the command line, `main` and its way with errors included."""

    def call(*args: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["remat", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 1, captured.out, captured.err)

    return call
