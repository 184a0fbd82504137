"""Progress of work in which planners run many times."""

from __future__ import annotations

from remat_cli.core.problem import Observer, PassingObserver


class Prefixed(PassingObserver):
    """Passes everything on, each phase with a prefix."""

    def __init__(self, observe: Observer, prefix: str = "") -> None:
        super().__init__(observe)
        self.prefix = prefix

    def phase(self, text: str) -> None:
        """Pass on a phase with the prefix."""
        self.observe.phase(f"{self.prefix}{text}")
