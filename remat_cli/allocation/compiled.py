"""The searches that numba compiles: first fits, and exact search."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from remat_cli.allocation import exact, exact_kernel, promoted_fit
from remat_cli.allocation.exact import ExactSearches
from remat_cli.allocation.exact_kernel import Ints
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.promoted_fit import PromotedFits
from remat_cli.core.buffers import Buffer
from remat_cli.machine.compiled import Kernel, is_at_hand

# Work of first fits for each second of exact search.
OF_FITS = 0.5


class CompiledSearches:
    """First fits and exact search, each from the turn on in which it is compiled.

    Attributes:
        is_proof: exact search has ruled out every arrangement.
        offsets: [buffers] offsets in units; None without a result.
    """

    def __init__(self, instance: Instance, capacity: int, seconds: float) -> None:
        """Prepare the searches, and start to compile them beside other searches.

        Args:
            instance: the buffers.
            capacity: size of the arena, in units; no buffer is larger.
            seconds: limit of the whole search. Without one, the first calls compile.
        """
        self.offsets: Ints | None = None
        self.is_proof = False
        self._instance, self._capacity = instance, capacity
        self._waits = seconds < inf
        self._fits: PromotedFits | None = None
        self._exact: ExactSearches | None = None
        self._is_small = exact.count_overlaps(instance) <= exact.MOST_OVERLAPS
        if self._waits:
            SEARCHES.start()

    @property
    def is_over(self) -> bool:
        """Whether offsets are found, or proven not to exist."""
        return self.is_proof or self.offsets is not None

    @property
    def is_ready(self) -> bool:
        """Whether one of the searches is compiled."""
        return self._can_call(promoted_fit.place)

    @property
    def note(self) -> str:
        """The reason why exact search is left out; empty if it is not."""
        return SEARCHES.note() if self._is_small and not self._can_call(exact_kernel.go_on) else ""

    def wait(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        """Wait until one of the searches is compiled; return whether it is.

        Args:
            seconds: seconds left.
            is_over: tells when to end the wait.
        """
        return self.is_ready or SEARCHES.wait(seconds, lambda: is_over() or self.is_ready) or self.is_ready

    def go_on(self, work: float, is_over: Callable[[], bool]) -> None:
        """Search on with an amount of work for each search that is compiled."""
        if self._fits is None and self._can_call(promoted_fit.place):
            self._fits = PromotedFits(self._instance, self._capacity)
        if self._exact is None and self._is_small and self._can_call(exact_kernel.go_on):
            self._exact = ExactSearches(self._instance, self._capacity)
        if self._fits is not None:
            self._fits.go_on(OF_FITS * work, is_over)
            self.offsets = self._fits.offsets
        if self._exact is not None and not self.is_over:
            self._exact.go_on(work, is_over)
            self.offsets, self.is_proof = self._exact.offsets, self._exact.is_proof

    def _can_call(self, function: Callable[..., object]) -> bool:
        return not self._waits or is_at_hand(function)


def call_all() -> None:
    """Compile the searches by a small table of buffers."""
    instance = Instance.of((Buffer(0, 2, 2), Buffer(1, 3, 1)), 1)
    PromotedFits(instance, 3).go_on(1e-9, lambda: False)
    ExactSearches(instance, 3).go_on(1e-9, lambda: False)


SEARCHES = Kernel("the exact search for arenas", (promoted_fit.place, exact_kernel.go_on), call_all)
