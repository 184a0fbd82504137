"""Limits of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic

from remat_cli.core.problem import Observer
from remat_cli.machine.cores import usable_cores


def _never() -> bool:
    return False


@dataclass(eq=False)
class Limits:
    """The limits of a search, and its resources.

    The clock is for users. Counted work does not depend on how busy the machine is: under a work limit alone, a search
    finds the same plan on every machine.

    Attributes:
        deadline: end of the search by `time.monotonic()`.
        work: remaining work, in the planner's own unit.
        cores: number of threads or processes.
        seed: seed of the random choices.
        has_enough: tells whether the caller wants no better plan.
    """

    deadline: float = inf
    work: float = inf
    cores: int = 1
    seed: int = 0
    has_enough: Callable[[], bool] = _never

    @classmethod
    def of(
        cls,
        seconds: float,
        work: float | None = None,
        *,
        cores: int = 1,
        seed: int = 0,
        observe: Observer | None = None,
    ) -> Limits:
        """Create limits whose clock starts now.

        Args:
            seconds: seconds from now.
            work: limit on counted work; None for no limit.
            cores: number of cores; 0 for all that this process may use.
            seed: seed of the random choices.
            observe: observer that may end the search before a limit is reached.
        """
        work = inf if work is None else work
        has_enough = _never if observe is None else (lambda: observe.has_enough)
        return cls(monotonic() + seconds, work, cores or usable_cores(), seed, has_enough)

    @property
    def seconds(self) -> float:
        """Seconds left."""
        return max(0.0, self.deadline - monotonic())

    @property
    def is_over(self) -> bool:
        """Whether a limit is reached."""
        return self.work <= 0 or monotonic() >= self.deadline or self.has_enough()

    def spend(self, work: float) -> None:
        """Count finished work."""
        self.work -= work

    def part(self, share: float = 1.0, work: float = inf) -> Limits:
        """Return the limits of a part of the search.

        The caller must also spend the work of the part from the whole limits.

        Args:
            share: share of the remaining seconds.
            work: limit on the part's work; never more than the remaining work.
        """
        deadline = self.deadline if share == 1 else monotonic() + share * self.seconds
        return Limits(deadline, min(work, self.work), self.cores, self.seed, self.has_enough)
