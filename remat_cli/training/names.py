"""Names for what is added to a graph."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Gives out names that are not yet taken."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """Return `wanted`, or where that is taken, `wanted` with the first free number from 2 on behind it."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}.{number}"
        self._taken.add(name)
        return name
