"""The memory that planning takes, told before it begins."""

from __future__ import annotations

import pytest

from remat_cli.generate.layered import Layered
from remat_cli.planning import memory_need
from remat_cli.planning.memory_need import notes_on_memory
from remat_cli.synthesis import synthesize


@pytest.mark.parametrize(
    ("little", "left", "notes"),
    [
        (10**9, 10**9, []),
        (10**9, None, []),
        (10**5, 10**9, ["planning 100 ops may take 1.700 MB of memory"]),
        (
            10**9,
            10**6,
            ["planning 100 ops may take 1.700 MB of memory, and 1.000 MB are left; the planner dtr takes less"],
        ),
    ],
)
def test_much_memory_is_told(monkeypatch: pytest.MonkeyPatch, little: int, left: int | None, notes: list[str]) -> None:
    monkeypatch.setattr(memory_need, "_LITTLE", little)
    monkeypatch.setattr(memory_need, "memory_left", lambda: left)
    assert notes_on_memory(synthesize(Layered(), ops=100).graph) == notes
