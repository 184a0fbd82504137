"""Checks that planners make of their options."""

from __future__ import annotations

from remat_cli.errors import UsageError


def check_least(planner: object, **least: int) -> None:
    """Check that options that are given are not below the least value that makes sense.

    Raises:
        UsageError: one is; it is named.
    """
    for name, value in least.items():
        said = getattr(planner, name)
        if said is not None and said < value:
            raise UsageError(f"{name} is {said}", hint=f"give {value} or more")
