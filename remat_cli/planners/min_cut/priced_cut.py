"""What to keep and what to make again at one moment of a sequence, by minimum cuts under a price for each byte kept.

While one run is carried out (the *moment*), memory holds what later runs read, or what that is made again from. Which
ops to run again after the moment, and hence what to keep through it, is a closure problem: whoever runs an op again
needs its inputs, kept or made again too. With a price for each byte kept its optimum is a minimum cut, in any graph;
over all prices these optima are the lower hull of time against bytes, and give a bound that holds whatever else is
done (Lagrangian duality).

Cuts like this choose what is saved for the backward pass in PyTorch's AOTAutograd (He, min-cut partitioner, 2022),
there with memory traffic in place of prices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Bools, Ints

# Times and prices of bytes are scaled to whole numbers that add up to about this, far below 2^63.
_TOTAL = 2**44
_NEVER = 4 * _TOTAL
_SOURCE, _SINK = 0, 1
# At the highest price such a share of all bytes is worth the time of all runs.
_LEAST_SHARE = 2.0**-20
_MOST_PRICES = 40
# Sums of floats may be off by a smaller share.
_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Choice:
    """What to do at a cut_point.

    Attributes:
        again: [moment] whether each run before it is carried out again later.
        bytes: kept through the moment, what its own run reads and makes left out.
        weighted_bytes: the same, each tensor's by its weight.
        time: of what is run again.
    """

    again: Bools
    bytes: int
    weighted_bytes: float
    time: int


class CutPoint:
    """A moment of a sequence at which a cut decides what is kept: the position of one run.

    Attributes:
        sequence: the runs.
        at: position of the run that is carried out.
        own_bytes: fixed bytes, and what the run itself needs: inputs, outputs and workspace.
        least_own_bytes: the same, if it worked in place wherever its op can.
    """

    def __init__(self, sequence: RematSequence, at: int) -> None:
        self.sequence, self.at = sequence, at
        made_at = sequence.made[0]
        self._count = count = int(np.searchsorted(made_at, at))  # instances made before
        read_at, instance = sequence.read
        needed = np.zeros(len(made_at), dtype=np.bool_)
        needed[instance[np.searchsorted(read_at, at, side="right") :]] = True
        self.is_needed = needed[:count]
        here = sequence.inputs[at]
        self.is_here = np.zeros(count, dtype=np.bool_)
        self.is_here[here] = True
        outputs = slice(count, int(np.searchsorted(made_at, at, side="right")))
        graph = sequence.reads.graph
        needed_here = (
            sequence.bytes[here].sum() + sequence.bytes[outputs].sum() + graph.arrays.workspace_bytes[sequence.ops[at]]
        )
        self.own_bytes = int(graph.fixed_bytes + needed_here - sequence.shared_bytes[at])
        self.least_own_bytes = int(graph.fixed_bytes + needed_here - self._in_place())

    def _in_place(self) -> int:
        """Return the most that the moment's run can save by working in place, should its input end with it."""
        arrays = self.sequence.reads.graph.arrays
        op = int(self.sequence.ops[self.at])
        taken = arrays.inplace[op]
        if taken < 0 or arrays.producer[taken] < 0:
            return 0
        return int(min(arrays.tensor_bytes[taken], arrays.tensor_bytes[arrays.outputs[op][0]]))

    @cached_property
    def _may_run_again(self) -> Ints:
        return np.flatnonzero(self.sequence.reads.recomputable[self.sequence.ops[: self.at]])

    @cached_property
    def _arcs(self) -> tuple[Ints, Ints]:
        """Tails and heads of three groups of arcs: to run again, to keep, and inputs of what is run again.

        A run on the source's side is carried out again, an instance there is needed after the moment. Whoever needs an
        instance but does not make it again keeps it.
        """
        sequence, at, count = self.sequence, self.at, self._count
        runs = np.full(at, _SINK)
        runs[self._may_run_again] = np.arange(len(self._may_run_again)) + 2
        instances = np.full(count, _SOURCE)
        inner = np.flatnonzero(~self.is_needed)
        instances[inner] = np.arange(len(inner)) + 2 + len(self._may_run_again)
        self._run_node, self._instance_node = runs, instances
        reader, read = sequence.inputs.expand(self._may_run_again)
        tails = np.concatenate([runs[self._may_run_again], instances, runs[self._may_run_again[reader]]])
        heads = np.concatenate(
            [np.full(len(self._may_run_again), _SINK), runs[sequence.made[0][:count]], instances[read]]
        )
        return tails, heads

    def choose(self, price: float, weighted: NDArray[np.float64]) -> tuple[Choice, int]:
        """Return the best choice at a price, and a bound: no choice has less time + price * weighted bytes.

        Args:
            price: of keeping a byte, in units of time.
            weighted: [kept] bytes of each instance made before the moment, times their weight.
        """
        from ortools.graph.python.max_flow import SimpleMaxFlow

        tails, heads = self._arcs
        scale = self._scale(price, weighted)
        keeping = np.floor(price * scale * np.where(self.is_here, 0.0, weighted)).astype(np.int64)
        again = np.floor(scale * self.sequence.run_time[self._may_run_again]).astype(np.int64)
        never = np.full(len(tails) - len(again) - len(keeping), _NEVER)
        flow = SimpleMaxFlow()
        flow.add_arcs_with_capacity(tails, heads, np.concatenate([again, keeping, never]))
        status = flow.solve(_SOURCE, _SINK)
        if status != SimpleMaxFlow.OPTIMAL:
            raise AssertionError(f"the maximum flow ended with status {status}")
        is_source = np.zeros(2 + len(self._may_run_again) + len(keeping), dtype=np.bool_)
        is_source[flow.get_source_side_min_cut()] = True
        return self._choice(is_source[self._run_node], is_source[self._instance_node], weighted), flow.optimal_flow()

    def _choice(self, again: Bools, is_needed: Bools, weighted: NDArray[np.float64]) -> Choice:
        kept = is_needed & ~again[self.sequence.made[0][: self._count]] & ~self.is_here
        return Choice(
            again=again,
            bytes=int(self.sequence.bytes[: self._count][kept].sum()),
            weighted_bytes=float(weighted[kept].sum()),
            time=int(self.sequence.run_time[: self.at][again].sum()),
        )

    def _scale(self, price: float, weighted: NDArray[np.float64]) -> float:
        return _TOTAL / max(1.0, float(self.sequence.time), price * float(weighted.sum()))

    def cheapest(self, room: int, weights: NDArray[np.float64]) -> Choice | None:
        """Return the choice of the least time, of those that are the best at some price, that fits; None if none does.

        Args:
            room: bytes for what is kept, what the moment's run itself needs left out.
            weights: [T] factors on the price of the bytes of each tensor.
        """
        weighted = self.sequence.bytes[: self._count] * weights[self.sequence.made[1][: self._count]]
        choices = (choice for _, choice, _ in self._choices(room, weighted))
        return min((each for each in choices if each.bytes <= room), key=lambda each: each.time, default=None)

    def bound(self, room: int) -> int:
        """Return a lower bound on the time that is run again after the moment, whatever is kept and made again.

        Args:
            room: bytes for what is kept, what the moment's run needs at the least left out.
        """
        best = 0
        weighted = self.sequence.bytes[: self._count].astype(np.float64)
        for price, _, value in self._choices(room, weighted):
            cost, saved = value / self._scale(price, weighted), price * room
            # Floats may be off by a few parts in 2^53; the bound must not be.
            best = max(best, ceil(cost - saved - _SLACK * (cost + saved)))
        return best

    def _choices(self, room: int, weighted: NDArray[np.float64]) -> Iterator[tuple[float, Choice, int]]:
        """Yield prices, the best choices at them, and their bounds: ever closer to what just fits.

        Time against bytes, the best choices at all prices are the corners of a convex line. Between one that fits and
        one that does not, the next price is the slope of the line through both; where that finds nothing below it, the
        two are neighbours.
        """
        never = np.zeros(self.at, dtype=np.bool_)
        above = self._choice(never, self.is_needed, weighted)
        total = float(weighted.sum())
        price = max(self.sequence.time, 1) / (max(total, 1.0) * _LEAST_SHARE)
        below, value = self.choose(price, weighted)
        yield price, below, value
        for _ in range(_MOST_PRICES):
            bytes_less = above.weighted_bytes - below.weighted_bytes
            if below.bytes > room or bytes_less <= 0 or below.time <= above.time:
                return
            price = (below.time - above.time) / bytes_less
            choice, value = self.choose(price, weighted)
            yield price, choice, value
            least = above.time + price * above.weighted_bytes
            if choice.time + price * choice.weighted_bytes >= (1 - _SLACK) * least:
                return
            if choice.bytes <= room:
                below = choice
            else:
                above = choice
