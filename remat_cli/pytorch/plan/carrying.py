"""The policy of carrying plans over to smaller sizes, for wholes and blocks alike."""

from __future__ import annotations

# An overhead up to this share is not worth a new plan.
WORTH = 0.02
_SMALLER = 0.5


def is_much_smaller(size: int, planned_size: int) -> bool:
    """Return whether a size is less than half of a plan's own."""
    return size < _SMALLER * planned_size


def wants_new_plan(overhead: float, size: int, planned_size: int) -> bool:
    """Return whether a new plan takes less time than one carried over.

    Args:
        overhead: overhead of the plan, as a share of the plain run's time.
        size: size of the step that is to run, in bytes or elements.
        planned_size: size of the plan's own step, in the same unit.
    """
    return overhead > WORTH and is_much_smaller(size, planned_size)
