"""Plans as planners tell of them, for planners that tests make up."""

from __future__ import annotations

from remat_cli.problem import Plan
from remat_cli.schedule import Schedule


def told(schedule: Schedule) -> Plan:
    """A plan that says of itself that it costs nothing: nobody is to believe it."""
    return Plan(0, 0, lambda: schedule)
