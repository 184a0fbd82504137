"""Checks of planners' options."""

from __future__ import annotations

from remat_cli.errors import UsageError


def check_least(planner: object, **least: int) -> None:
    """Check that given options are not below their least value.

    Raises:
        UsageError: an option is below its least value; the message names it.
    """
    for name, value in least.items():
        said = getattr(planner, name)
        if said is not None and said < value:
            raise UsageError(f"{name} is {said}", hint=f"give {value} or more")
