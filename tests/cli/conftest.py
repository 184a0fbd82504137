"""The command line, called in this process."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from remat_cli.cli import main
from remat_cli.machine.interruption import REQUESTS_TO_END
from tests.cli.calls import Ended, Remat


@pytest.fixture
def remat(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Remat:
    """Call the command line, `main` and its way with errors included."""

    def call(*args: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["remat", *map(str, args)])
        # A call is deaf once it tells an error, as its process then ends; this one goes on.
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *REQUESTS_TO_END)}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        captured = capfd.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 1, captured.out, captured.err)

    return call
