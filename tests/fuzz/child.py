"""One target under atheris: `python -m tests.fuzz.child TARGET [libFuzzer options]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["remat_cli"]):
    from tests.fuzz.targets import targets

TARGET = targets()[sys.argv.pop(1)]


def read(content: bytes) -> None:
    """Read a file of these bytes; what it raises is a bug."""
    assert TARGET.outcome(content) in ("read", "refused")


atheris.Setup(sys.argv, read)
atheris.Fuzz()
