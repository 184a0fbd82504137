"""Limits of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic

from remat_cli.core.problem import Observer
from remat_cli.cores import usable_cores


def _never() -> bool:
    return False


@dataclass(eq=False)
class Limits:
    """When a search stops, and what it may use until then.

    The clock is for users. Counted work does not depend on how busy the machine is: limited by work alone, a search
    finds the same plan on any machine.

    Attributes:
        deadline: `time.monotonic()` at which it ends.
        work: what may still be done, in the planner's own unit.
        cores: threads or processes.
        seed: seed of the random choices.
        has_enough: tells whether the caller is content with the plan so far.
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
        """Start the clock.

        Args:
            seconds: from now.
            work: None for as much as there is time for.
            cores: 0 for all that this process may use.
            seed: seed of the random choices.
            observe: may have enough before a limit is reached.
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
        """Count work that was done."""
        self.work -= work

    def part(self, share: float = 1.0, work: float = inf) -> Limits:
        """Return the limits of a part of the search. The caller must also spend, of these limits, what the part used.

        Args:
            share: of the seconds left.
            work: at most; never more than what is left.
        """
        deadline = self.deadline if share == 1 else monotonic() + share * self.seconds
        return Limits(deadline, min(work, self.work), self.cores, self.seed, self.has_enough)
