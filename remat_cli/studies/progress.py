"""Progress of work that is made of many runs of planners."""

from __future__ import annotations

from remat_cli.problem import Bound, Observer, Plan


class Passing(Observer):
    """Passes everything on."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe

    @property
    def has_enough(self) -> bool:
        """Whether a planner may end."""
        return self._observe.has_enough

    def phase(self, text: str) -> None:
        """Pass on the phase."""
        self._observe.phase(text)

    def found(self, plan: Plan) -> None:
        """Pass on the plan."""
        self._observe.found(plan)

    def bound(self, bound: Bound) -> None:
        """Pass on the bound."""
        self._observe.bound(bound)


class Prefixed(Passing):
    """Passes everything on, and says in front of each phase what it belongs to."""

    def __init__(self, observe: Observer, prefix: str = "") -> None:
        super().__init__(observe)
        self.prefix = prefix

    def phase(self, text: str) -> None:
        """Pass on the phase."""
        self._observe.phase(f"{self.prefix}{text}")
