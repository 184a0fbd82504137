"""Unused names for new tensors and ops of a graph."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Gives out unused names."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """Return `wanted`, or `wanted` with the first free number.

        Numbers begin at 2.
        """
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}.{number}"
        self._taken.add(name)
        return name
