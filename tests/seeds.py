"""How much of what takes long a run of the tests does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def is_thorough() -> bool:
    """Tell whether this is a run of `make thorough`."""
    return settings.default == settings.get_profile("thorough")


def seeds(count: int) -> range:
    """Return every fourth of a sweep's seeds; all of them in `make thorough`.

    The same seeds are drawn each time, so that more of them would find nothing new tomorrow.
    """
    return range(0, count, 1 if is_thorough() else 4)


def sampled(cases: Iterable[Any], always: Iterable[Any]) -> list[Any]:
    """Return a test's cases; all but the named ones are marked as thorough.

    Args:
        cases: values of one parameter, or tuples of several.
        always: the cases that every run of the tests takes.
    """
    kept = list(always)
    marked = []
    for case in cases:
        if case in kept:
            kept.remove(case)
            marked.append(case)
        else:
            values = case if isinstance(case, tuple) else (case,)
            marked.append(pytest.param(*values, marks=pytest.mark.thorough))
    assert not kept, f"no cases: {kept}"
    return marked
