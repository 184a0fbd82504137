"""What a user sees of work that is made of many runs of planners."""

from __future__ import annotations

from remat_cli.problem import Observer, Scope
from remat_cli.schedule import Schedule


class Prefixed(Observer):
    """Passes everything on, and says in front of each phase what it belongs to."""

    def __init__(self, observe: Observer, prefix: str = "") -> None:
        self._observe = observe
        self.prefix = prefix

    def phase(self, text: str) -> None:
        """Pass on the phase."""
        self._observe.phase(f"{self.prefix}{text}")

    def found(self, schedule: Schedule) -> None:
        """Pass on the plan."""
        self._observe.found(schedule)

    def bound(self, time: int, scope: Scope) -> None:
        """Pass on the bound."""
        self._observe.bound(time, scope)
