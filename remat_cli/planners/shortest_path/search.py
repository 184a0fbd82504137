"""A* over the states of a device, from no op run to all ops run.

Source: Hart, Nilsson, Raphael, A Formal Basis for the Heuristic Determination of Minimum Cost Paths, IEEE Transactions
on Systems Science and Cybernetics, 1968.
"""

from __future__ import annotations

import heapq

import numpy as np

from remat_cli.core.problem import Scope
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shortest_path.states import DeviceState, StateSpace

# Larger times do not fit the integers that compare them.
_LONGEST = 2**62
NONE_FITS = "every order of runs was tried, with any recomputation and every choice of what to keep"


class ShortestPathSearch:
    """A search from start to end, which other limits can continue.

    Attributes:
        incumbent: receives the plan and the bounds.
        limits: limits of the search; work is the number of states to expand.
        better_than: time of a plan that fits; the search looks only for faster plans. None without such a plan.
        states: number of expanded states.
    """

    def __init__(self, incumbent: Incumbent, limits: Limits) -> None:
        """Lay out the problem of `incumbent`."""
        self.incumbent = incumbent
        self.limits = limits
        self.better_than: int | None = None
        self.states = 0
        graph = incumbent.problem.graph
        self._space = StateSpace(graph, incumbent.problem.budget.device_bytes - graph.fixed_bytes)
        start = DeviceState(0, 0)
        self._time = {start: 0}  # time of the fastest known path to each state
        self._came_from: dict[
            DeviceState, tuple[DeviceState, int]
        ] = {}  # the state before on that path, and the op that ran
        self._fronts: dict[int, StateFront] = {}  # expanded states, by the ops that have run
        # Lower bound on the time of plans through a state, a number that falls with each push, and the state. Of equal
        # bounds the newest state comes first: with ample memory, that leads straight to the end.
        self._queue = [(graph.total_time, 0, start)]
        self._pushed = 0

    def run(self) -> None:
        """Search until the best plan is proven, or a limit is reached."""
        while self._queue and not self._is_too_long(self._queue[0][0]):
            if self.limits.is_over or self._queue[0][0] > _LONGEST:
                return
            least, _, state = heapq.heappop(self._queue)
            self.incumbent.prove(least, Scope.ANY_ORDER)
            if self._space.is_end(state):
                self.incumbent.offer(RematSequence.of(self.incumbent.problem.graph, self._path_to(state)))
                self.better_than = least
            elif self._fronts.setdefault(state.done, StateFront()).add(state.live, self._time[state]):
                self._go_on_from(state)
        if self.better_than is not None:
            self.incumbent.prove(self.better_than, Scope.ANY_ORDER)
        else:
            self.incumbent.prove_that_none_fits(Scope.ANY_ORDER, NONE_FITS)

    def _is_too_long(self, time: int) -> bool:
        return self.better_than is not None and time >= self.better_than

    def _go_on_from(self, state: DeviceState) -> None:
        self.states += 1
        self.limits.spend(1)
        for op, took, after in self._space.moves(state):
            time = self._time[state] + took
            if time >= self._time.get(after, time + 1):
                continue
            left = self._space.least_time_left(after)
            if left is None or self._is_too_long(time + left):
                continue
            self._time[after] = time
            self._came_from[after] = (state, op)
            self._pushed += 1
            heapq.heappush(self._queue, (time + left, -self._pushed, after))

    def _path_to(self, state: DeviceState) -> list[int]:
        """Return the ops on the path to a state, in order."""
        ops = []
        while state in self._came_from:
            state, op = self._came_from[state]
            ops.append(op)
        return ops[::-1]


class StateFront:
    """The expanded states with the same ops run, by tensors and time.

    A state is dominated by a state with all its tensors in memory after no more time. States in which more ops have run
    do not dominate: some of these ops may not run again.
    """

    def __init__(self) -> None:
        self._live = np.zeros(4, dtype=np.uint64)
        self._time = np.zeros(4, dtype=np.int64)
        self._count = 0

    def add(self, live: int, time: int) -> bool:
        """Add a state unless it is dominated; tell whether it was added."""
        count, tensors = self._count, np.uint64(live)
        holds = self._live[:count] & tensors == tensors
        if (holds & (self._time[:count] <= time)).any():
            return False
        if count == len(self._live):
            self._live = np.concatenate([self._live, self._live])
            self._time = np.concatenate([self._time, self._time])
        self._live[count], self._time[count] = tensors, time
        self._count += 1
        return True
