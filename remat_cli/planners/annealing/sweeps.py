"""Sweeps: one try of every useful move, by numpy or compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.machine.compiled import can_compile
from remat_cli.planners.annealing.remaking import Remaking
from remat_cli.planners.annealing.runs import Pause, RunLine
from remat_cli.planners.annealing.weather import Sweeps, Weather
from remat_cli.planners.shared.sequence import RematSequence

# The seconds to load the compiled sweeps.
_SECONDS_TO_LOAD = 3.0


def sweeps_of(graph: Graph, seconds: float) -> Sweeps:
    """Return the faster implementation of sweeps; both make the same moves.

    Args:
        graph: the graph to plan.
        seconds: time for the whole search.
    """
    if seconds < _SECONDS_TO_LOAD or not can_compile():
        return NumpySweeps()
    from remat_cli.planners.annealing.flat import FlatSweeps, is_ready

    return FlatSweeps(graph) if is_ready() else NumpySweeps()


class NumpySweeps:
    """Sweeps in numpy."""

    speed = 1.0

    def sweep(
        self, sequence: RematSequence, weather: Weather, rng: np.random.Generator, is_over: Callable[[], bool]
    ) -> tuple[RematSequence, int]:
        """Sweep as `Sweeps` describes."""
        runs = RunLine(sequence, weather.room)
        tried = MoveSweep(runs, weather, rng).run(is_over)
        return runs.sequence, tried


class MoveSweep:
    """One try of every useful move, in random order."""

    def __init__(self, runs: RunLine, weather: Weather, rng: np.random.Generator) -> None:
        """Prepare the sweep.

        Args:
            runs: a fresh layout of the sequence.
            weather: conditions that decide on the moves.
            rng: source of the random choices.
        """
        self._runs, self._weather, self._rng = runs, weather, rng

    def run(self, is_over: Callable[[], bool]) -> int:
        """Try the moves, and return their number."""
        runs = self._runs
        moves: list[tuple[Callable[..., None], int | Pause]] = [
            *_each(self._move, runs.restless().tolist()),
            *_each(self._leave_out, runs.twins()),
            *_each(self._make_again, runs.pauses()),
        ]
        draws: list[float] = self._rng.random(len(moves)).tolist()
        for number, (at, draw) in enumerate(zip(self._rng.permutation(len(moves)).tolist(), draws, strict=True)):
            if number % 64 == 0 and is_over():
                break
            move, what = moves[at]
            move(what, draw)
        return len(moves)

    def _move(self, run: int, draw: float) -> None:
        """Draw a new place for a run."""
        places = self._runs.places(run) if self._runs.is_there(run) else None
        if places is not None:
            costs = places.cost - np.minimum.reduce(places.cost)
            weights = np.cumsum(self._weather.shares(costs))
            place = int(np.searchsorted(weights, draw * weights[-1], side="right"))
            self._runs.move(places, min(place, len(weights) - 1))

    def _leave_out(self, run: int, draw: float) -> None:
        if not (self._runs.is_there(run) and self._runs.has_twin(run)):
            return
        omission = self._runs.omission(run)
        if omission is not None and self._weather.accepts(self._weather.price * omission.lacking - omission.time, draw):
            self._runs.leave_out(omission)

    def _make_again(self, pause: Pause, draw: float) -> None:
        span = self._runs.span(pause)
        remake = (
            None
            if span is None
            else Remaking(self._runs, pause.instance, *span, self._weather.price, self._weather.loss).remake()
        )
        if remake is not None and self._weather.accepts(self._weather.price * remake.lacking + remake.time, draw):
            self._runs.add(remake)


def _each(move: Callable[..., None], of: Iterable[int | Pause]) -> Iterable[tuple[Callable[..., None], int | Pause]]:
    return ((move, what) for what in of)
