"""Progress of work in which planners run many times."""

from __future__ import annotations

from remat_cli.core.problem import Observer, PassingObserver


class Prefixed(PassingObserver):
    """Passes everything on, each phase with a prefix that says what it belongs to."""

    def __init__(self, observe: Observer, prefix: str = "") -> None:
        super().__init__(observe)
        self.prefix = prefix

    def phase(self, text: str) -> None:
        """Pass on the phase."""
        self.observe.phase(f"{self.prefix}{text}")
