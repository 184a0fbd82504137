"""Compiled searches join the others once they are compiled, and a note says where they did not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from remat_cli.allocation import compiled, exact_kernel, promoted_fit
from remat_cli.allocation.compiled import SEARCHES, CompiledSearches
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.portfolio import allocate
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Observer, Status
from remat_cli.planners.shared.limits import Limits
from tests.unit.allocation.test_exact import TIGHT

# Its buffers need 7 units, though never more than 6 are in memory together.
NEEDED = 7


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> set[object]:
    """The functions that are compiled, none at first; nothing is compiled beside."""
    functions: set[object] = set()
    monkeypatch.setattr(compiled, "is_at_hand", functions.__contains__)
    monkeypatch.setattr(SEARCHES, "start", lambda: None)
    monkeypatch.setattr(SEARCHES, "note", lambda: "left out")
    return functions


def test_each_search_joins_once_it_is_compiled(ready: set[object]) -> None:
    searches = CompiledSearches(Instance.of(TIGHT, 1), NEEDED - 1, seconds=60.0)
    searches.go_on(0.05, lambda: False)
    assert (searches.is_over, searches.is_ready, searches.note) == (False, False, "left out")
    ready.add(promoted_fit.place)
    searches.go_on(0.001, lambda: False)
    assert (searches.is_over, searches.is_ready, searches.note) == (False, True, "left out")
    ready.add(exact_kernel.go_on)
    searches.go_on(0.05, lambda: False)
    assert (searches.is_proof, searches.offsets, searches.note) == (True, None, "")


def test_compiling_calls_every_function_that_a_search_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    for module, function in ((promoted_fit, promoted_fit.place), (exact_kernel, exact_kernel.go_on)):

        def noting(*arguments: Any, function: Callable[..., Any] = function) -> Any:
            called.append(function)
            return function(*arguments)

        monkeypatch.setattr(module, function.__name__, noting)
    compiled.call_all()
    assert {*called} == {*SEARCHES._functions}


def test_without_a_limit_in_seconds_the_first_calls_compile(ready: set[object]) -> None:
    del ready
    searches = CompiledSearches(Instance.of(TIGHT, 1), NEEDED - 1, seconds=float("inf"))
    searches.go_on(0.05, lambda: False)
    assert searches.is_proof


def test_a_report_without_a_proof_says_what_was_left_out(ready: set[object]) -> None:
    del ready
    buffers = (*TIGHT, *(Buffer(each.lower + 6, each.upper + 6, each.size) for each in TIGHT))
    limits = Limits.of(0.3, 1e-6, cores=1, observe=Observer())
    allocation = allocate(buffers, limits, capacity=NEEDED - 1)
    assert (allocation.status, allocation.note) == (Status.UNKNOWN, "left out")
