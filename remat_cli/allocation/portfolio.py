"""A portfolio of searches for offsets.

First come a bound and greedy orders. Then exact search and beams take turns, with CP-SAT at their side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from threading import Event

import numpy as np
from numpy.typing import NDArray

from remat_cli.allocation.cp_sat import solved
from remat_cli.allocation.greedy import greedy_offsets
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.skyline import Beam, search
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Basis, Observer, Status
from remat_cli.machine.system_limits import can_start_threads
from remat_cli.planners.shared.limits import Limits

Ints = NDArray[np.int64]

# Largest product of states, buffers and sections for skylines: their arrays have as many entries.
_MOST_FOR_BEAMS = 8_000_000
# Largest number of buffers for CP-SAT.
_MOST_FOR_SOLVER = 5_000
_WIDEST = 256
# Work is about seconds of a usual core: of each search in the first round, and in the first round with a solver; of the
# solver for each second of the others; one second of the solver's deterministic time; of a level of a
# beam, and in addition of each state, buffer and section.
_FIRST_ROUND = 0.25
_FIRST_WITH_SOLVER = 1.0
_OF_SOLVER = 2.0
_SOLVER_UNIT = 0.1
_WORK_OF_LEVEL = 6e-4
_WORK_OF_ENTRY = 9e-9
# Rules that choose the first of the lowest sections to fill.
_CORNERS = ("first", "tight", "few")
# Heights between bound and best that differ by more than this share of the bound are searched first.
_TOLERANCE = 1 / 2000


@dataclass(frozen=True)
class Allocation:
    """The result of a search for offsets.

    Attributes:
        status: optimal (no arena is smaller, or the arena fits the capacity), feasible, infeasible (proven) or unknown.
        offsets: [buffers] offsets in bytes, in the order of the buffers; None without a result.
        bytes: size of the arena, a multiple of the alignment; None without a result.
        bound_bytes: lower bound on the size of an arena.
        basis: basis of the bound, or of the proof that none fits.
        interrupted: the user stopped the search.
        closest_bytes: size of the smallest arena found, if above the capacity.
        note: without a proof: for people, which search was left out.
    """

    status: Status
    offsets: tuple[int, ...] | None
    bytes: int | None
    bound_bytes: int
    basis: Basis = Basis.COUNTED
    interrupted: bool = False
    closest_bytes: int | None = None
    note: str = ""


def limits_of(seconds: float, *, cores: int = 0, observe: Observer | None = None) -> Limits:
    """Return limits for a search that uses all its time.

    Args:
        seconds: latest end of the search.
        cores: number of cores; 0 for all that this process may use.
        observe: may end the search earlier.
    """
    return Limits.of(seconds, cores=cores, observe=observe)


def allocate(
    buffers: Sequence[Buffer],
    limits: Limits,
    *,
    capacity: int | None = None,
    alignment: int = 1,
    observe: Observer | None = None,
) -> Allocation:
    """Search offsets for buffers.

    Buffers that are needed at the same time do not overlap.

    Args:
        buffers: buffers with their lifetimes; may be empty.
        limits: limits of the search. Limited by work alone, the search has the same result on any number of cores; work
            is about the seconds of a usual core. With more than one core a solver runs in parallel to the beams.
        capacity: largest arena, in bytes; None: the smallest found.
        alignment: offsets and the size of the arena are multiples of this.
        observe: is told the progress.
    """
    if not buffers:
        return Allocation(Status.OPTIMAL, (), 0, 0)
    unit = int(np.gcd.reduce([-(-buffer.size // alignment) * alignment for buffer in buffers]))
    instance = Instance.of(buffers, unit)
    hunt = _Hunt(instance, None if capacity is None else capacity // unit, limits, observe or Observer())
    interrupted = False
    try:
        hunt.run()
    except KeyboardInterrupt:
        if hunt.best is None:
            raise
        interrupted = True
    return hunt.allocation(unit, interrupted)


class _Hunt:
    """One search for offsets.

    Attributes:
        best: [buffers] offsets of the lowest height so far, in units.
        height: height of these offsets.
        bound: lower bound on the height.
        basis: basis of the bound.
    """

    def __init__(self, instance: Instance, capacity: int | None, limits: Limits, observe: Observer) -> None:
        self.best: Ints | None = None
        self.height = 0
        self.bound = instance.load
        self.basis = Basis.COUNTED
        self._instance = instance
        self._capacity = capacity
        self._limits = limits
        self._observe = observe
        self._note = ""

    @property
    def is_done(self) -> bool:
        """Whether a better height is unwanted or impossible."""
        if self._capacity is not None and self.bound > self._capacity:
            return True
        return self.best is not None and self.height <= max(self.bound, self._capacity or 0)

    def run(self) -> None:
        """Search until the best height is proven or small enough, or a limit is reached."""
        self._observe.phase("placing buffers in several orders")
        for offsets in greedy_offsets(self._instance):
            self._take(offsets)
            if self.height == self.bound or self._limits.is_over:
                return
        if self.is_done:
            return
        if self._capacity is None:
            self._try(self.bound, 0.4)
            self._narrow()
        if not self.is_done:
            self._try(self._wanted, 1.0)

    @property
    def _wanted(self) -> int:
        return self.bound if self._capacity is None else self._capacity

    def _narrow(self) -> None:
        """Bisect the heights between the bound and the best."""
        low = self.bound
        while self.height - low > max(1, _TOLERANCE * self.bound) and not self._limits.is_over:
            middle = (low + self.height) // 2
            low = max(self.bound, low if self._try(middle, 0.2) else middle)

    def _raise_bound(self, bound: int, basis: Basis) -> None:
        if bound > self.bound:
            self.bound, self.basis = bound, basis

    def _try(self, capacity: int, share: float) -> bool:
        """Search offsets up to a height with a share of the limits.

        Return whether the best offsets have this height.
        """
        if self.height <= capacity and self.best is not None:
            return True
        assert self.best is not None, "greedy orders come first"
        limits = self._limits.part(share, _share(self._limits.work, share))
        offsets = self.best.copy()
        tops = offsets + self._instance.sizes
        for part in self._instance.parts():
            if tops[part].max() <= capacity:
                continue
            self._observe.phase(f"placing {len(part)} buffers within {capacity / self._instance.load:.1%} of the load")
            before = limits.work
            placed, proof, self._note = _within(self._instance.chosen(part), capacity, limits)
            if before < inf:
                self._limits.spend(before - limits.work)
            if proof is not None:
                self._raise_bound(capacity + 1, proof)
            if placed is None:
                return False
            offsets[part] = placed
        self._take(offsets)
        return True

    def _take(self, offsets: Ints) -> None:
        height = int((offsets + self._instance.sizes).max())
        if self.best is None or height < self.height:
            self.best, self.height = offsets, height

    def allocation(self, unit: int, interrupted: bool) -> Allocation:
        """Return the result in bytes."""
        bound = self.bound * unit
        closest = None if self.best is None else self.height * unit
        if self._capacity is not None and self.bound > self._capacity:
            return Allocation(Status.INFEASIBLE, None, None, bound, self.basis, interrupted, closest)
        if self.best is None or (self._capacity is not None and self.height > self._capacity):
            return Allocation(Status.UNKNOWN, None, None, bound, self.basis, interrupted, closest, self._note)
        offsets = tuple((self.best * unit).tolist())
        if self.height == self.bound:
            return Allocation(Status.OPTIMAL, offsets, self.height * unit, bound, self.basis, interrupted)
        return Allocation(Status.FEASIBLE, offsets, self.height * unit, bound, self.basis, interrupted, note=self._note)


def _within(instance: Instance, capacity: int, limits: Limits) -> tuple[Ints | None, Basis | None, str]:
    """Search offsets up to a height; return offsets, a proof's basis, and a note.

    The basis is that of the proof that no offsets exist. The note says which search was left out.

    The searches take turns with equal work, which grows from turn to turn. The solver comes later: the first turns
    mostly suffice.
    """

    def is_late() -> bool:
        return replace(limits, work=inf).is_over

    # Imported here: greedy orders mostly suffice, and numba takes half a second to import.
    from remat_cli.allocation.compiled import OF_FITS, CompiledSearches

    compiled = CompiledSearches(instance, capacity, limits.seconds)
    widest = min(_WIDEST, _MOST_FOR_BEAMS // (len(instance) * instance.sections))
    beams = deque(beam for beam in _beams() if beam.width <= widest)
    asks_solver = len(instance) <= _MOST_FOR_SOLVER
    work, seed = _FIRST_ROUND, limits.seed
    while not limits.is_over and (beams or asks_solver or compiled.wait(limits.seconds, is_late)):
        part = replace(limits.part(work=min(work, limits.work / (OF_FITS + 2 + _OF_SOLVER))), seed=seed)
        compiled.go_on(part.work, is_late)
        if compiled.is_over:
            return compiled.offsets, Basis.COUNTED if compiled.is_proof else None, ""
        if asks_solver and work >= _FIRST_WITH_SOLVER:
            offsets, proof = _side_by_side(instance, capacity, part, beams)
        else:
            offsets, proof = _by_beams(instance, capacity, part, beams), None
        if offsets is not None or proof is not None:
            return offsets, proof, ""
        limits.spend((OF_FITS + 2 + _OF_SOLVER) * work)
        work, seed = 2 * work, seed + 1
    return None, None, compiled.note


def _side_by_side(
    instance: Instance, capacity: int, limits: Limits, beams: deque[Beam]
) -> tuple[Ints | None, Basis | None]:
    """Run beams and a solver for an amount of work.

    The solver has a thread of its own if there is a second core.

    A result of beams wins over the solver's, whichever ends first: so the number and speed of cores make no difference.
    The solver has one thread: several would exchange results by chance.
    """
    is_enough = Event()
    solver_limits = replace(limits, cores=1, has_enough=lambda: is_enough.is_set() or limits.has_enough())
    if limits.cores == 1 or not can_start_threads():
        offsets = _by_beams(instance, capacity, limits, beams)
        return (offsets, None) if offsets is not None else _by_solver(instance, capacity, solver_limits)
    with ThreadPoolExecutor(1, "allocation") as pool:
        answer = pool.submit(_by_solver, instance, capacity, solver_limits)
        try:
            offsets = _by_beams(instance, capacity, limits, beams, lambda: answer.done() and bool(answer.result()[1]))
            return answer.result() if offsets is None else (offsets, None)
        finally:
            is_enough.set()


def _by_solver(instance: Instance, capacity: int, limits: Limits) -> tuple[Ints | None, Basis | None]:
    status, offsets = solved(instance, capacity, replace(limits, work=_OF_SOLVER * _SOLVER_UNIT * limits.work))
    return offsets, Basis.ONE_SOLVER if status is Status.INFEASIBLE else None


def _by_beams(
    instance: Instance,
    capacity: int,
    limits: Limits,
    beams: deque[Beam],
    is_settled: Callable[[], bool] = lambda: False,
) -> Ints | None:
    """Search with one beam after the other.

    Searched beams are removed from the list.
    """
    left = replace(limits)
    while beams and not left.is_over and not is_settled():
        beam = beams.popleft()
        end = search(instance, capacity, beam, lambda: replace(limits, work=inf).is_over or is_settled())
        left.spend(_work(instance, end.levels, beam.width))
        if end.offsets is not None:
            return end.offsets
    return None


def _beams() -> Iterator[Beam]:
    """Yield beams of growing width, in all variants of each width."""
    width, seed = 4, 0
    while width <= _WIDEST:
        for skips, corner, weight, backwards in product((0, 3), _CORNERS, (None, 20.0, 5.0), (False, True)):
            seed += 1
            yield Beam(width, corner, backwards, weight, 0.02, seed, skips)
        width *= 2


def _work(instance: Instance, levels: int, width: int) -> float:
    """Return the work of a beam, about seconds of a usual core."""
    return levels * (_WORK_OF_LEVEL + width * len(instance) * instance.sections * _WORK_OF_ENTRY)


def _share(work: float, share: float) -> float:
    return work if work == inf else share * work
