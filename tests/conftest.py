"""What every test runs under: hypothesis profiles, and a terminal of one known shape.

`fast` is the profile of every run: the same examples each time, so that more of them would find nothing new tomorrow.
`make thorough` draws new and many more ones; `make hunt` and `make fuzz` go on as long as wished.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault in a test.
settings.register_profile(
    "fast", max_examples=30, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fast")

# Functions that numba compiles are tested as plain Python: that is the same, and takes no time to compile. A test that
# runs them compiled does so in a process of its own.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")

# What a shell script starts in the background ignores Ctrl-C, what nohup starts hangups, and so would the commands to
# which tests send them.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# What click and rich look at before they colour or shape their output.
_TERMINAL = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES")


@pytest.fixture(autouse=True, scope="module")
def _little_garbage() -> Iterator[None]:
    """Leave what stands before a module's tests out of collections of garbage.

    A process that has collected all tests holds millions of objects of torch and sympy. To look at them again and again
    took half of the time of the tests of PyTorch. To count them takes as long: whoever reads a graph asks whether there
    are any.
    """
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: 1)
        yield


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, and no opinion on colour from the shell that the tests were started in; a test sets its own."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in _TERMINAL:
        monkeypatch.delenv(name, raising=False)


class _Module(pytest.Module):
    """A file of tests, which says so instead of its tests if what it imports needs torch, and there is none."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            if isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "torch":
                pytest.skip("the extra 'torch' is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Skip files that test PyTorch where there is none."""
    return _Module.from_parent(parent, path=module_path)
