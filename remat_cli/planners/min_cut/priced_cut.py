"""Priced cuts: the tensors to keep at a moment, at a price per byte.

During one run (the *moment*), memory holds the tensors that later runs read, or from which these are recomputed. The
choice of ops to recompute after the moment, and hence of tensors to keep, is a closure problem: a recomputed op needs
its inputs, kept or recomputed too. With a price for each byte kept its optimum is a minimum cut, in any graph; over all
prices these optima are the lower hull of time against bytes, and give a bound that holds whatever other choices a plan
makes (Lagrangian duality).

PyTorch's AOTAutograd chooses saved tensors by such cuts (He, min-cut partitioner, 2022), with memory traffic in place
of prices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, frexp, log2
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools, Ints
from remat_cli.planners.shared.sequence import RematSequence

if TYPE_CHECKING:
    from ortools.graph.python.max_flow import SimpleMaxFlow

# Times and prices of bytes are scaled to whole numbers that add up to about this, far below 2^63.
_TOTAL = 2**44
_NEVER = 8 * _TOTAL
# The number of binary digits of a price for bounds in whole numbers; rounding costs 10^-9 of the overhead.
_DIGITS = 30
_SOURCE, _SINK = 0, 1
# The first prices, until a choice fits, as multiples of the price at which all bytes are worth the time of all runs.
# The highest are for budgets that just fit; a maximum flow takes a thousand times as long at them, on a chain of
# 100,000 ops.
_FIRST_PRICES = (2.0**2, 2.0**8, 2.0**14, 2.0**20)
_MOST_PRICES = 40
# Sums of floats may be off by a smaller share than this.
_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class CutChoice:
    """The choice of kept and recomputed tensors at a moment.

    Attributes:
        again: [moment] whether each earlier run is repeated later.
        bytes: bytes kept through the moment, without inputs and outputs of its own run.
        weighted_bytes: the same bytes, each tensor's times its weight.
        time: time of the reruns.
    """

    again: Bools
    bytes: int
    weighted_bytes: float
    time: int


class CutPoint:
    """A moment of a sequence, during one run, to be decided by a cut.

    Attributes:
        sequence: the runs.
        at: position of the moment's run.
        own_bytes: fixed bytes, and the run's inputs, outputs and workspace.
        least_own_bytes: the same bytes if the run works in place, if its op can.
    """

    def __init__(self, sequence: RematSequence, at: int) -> None:
        self.sequence, self.at = sequence, at
        produced_at = sequence.instances[0]
        self._count = count = int(np.searchsorted(produced_at, at))  # number of instances produced before
        read_at, instance = sequence.read
        needed = np.zeros(len(produced_at), dtype=np.bool_)
        needed[instance[np.searchsorted(read_at, at, side="right") :]] = True
        self.is_needed = needed[:count]
        here = sequence.inputs[at]
        self.is_here = np.zeros(count, dtype=np.bool_)
        self.is_here[here] = True
        self.is_here[sequence.away_at(at)] = True
        outputs = slice(count, int(np.searchsorted(produced_at, at, side="right")))
        graph = sequence.reads.graph
        needed_here = (
            sequence.bytes[here].sum() + sequence.bytes[outputs].sum() + graph.arrays.workspace_bytes[sequence.ops[at]]
        )
        self.own_bytes = int(graph.fixed_bytes + needed_here - sequence.shared_bytes[at])
        self.least_own_bytes = int(graph.fixed_bytes + needed_here - graph.arrays.inplace_bytes[sequence.ops[at]])

    @cached_property
    def may_run_again(self) -> Ints:
        """Positions of the runs before the moment whose ops are recomputable."""
        return np.flatnonzero(self.sequence.reads.recomputable[self.sequence.ops[: self.at]])

    @cached_property
    def arcs(self) -> tuple[Ints, Ints]:
        """Tails and heads of the arcs.

        The three groups are arcs to recompute, arcs to keep, and arcs from recomputed runs to their inputs. A run on
        the source's side is repeated, an instance there is needed after the moment. A needed instance that is not
        recomputed is kept.
        """
        sequence, at, count = self.sequence, self.at, self._count
        runs = np.full(at, _SINK)
        runs[self.may_run_again] = np.arange(len(self.may_run_again)) + 2
        instances = np.full(count, _SOURCE)
        inner = np.flatnonzero(~self.is_needed)
        instances[inner] = np.arange(len(inner)) + 2 + len(self.may_run_again)
        self._run_node, self._instance_node = runs, instances
        reader, read = sequence.inputs.expand(self.may_run_again)
        tails = np.concatenate([runs[self.may_run_again], instances, runs[self.may_run_again[reader]]])
        heads = np.concatenate(
            [np.full(len(self.may_run_again), _SINK), runs[sequence.instances[0][:count]], instances[read]]
        )
        return tails, heads

    def choose(self, price: float, weighted: NDArray[np.float64]) -> tuple[CutChoice, float]:
        """Return the best choice at a price, and its approximate cost.

        The cost is time + price * weighted bytes.

        Args:
            price: price of keeping a byte, in units of time.
            weighted: [kept] bytes of each instance produced before the moment, times their weight.
        """
        scale = _TOTAL / max(1.0, float(self.sequence.time), price * float(weighted.sum()))
        keeping = np.floor(price * scale * np.where(self.is_here, 0.0, weighted)).astype(np.int64)
        again = np.floor(scale * self.sequence.run_time[self.may_run_again]).astype(np.int64)
        is_again, is_kept, worth = self.minimum_cut(again, keeping)
        return self._choice(is_again, is_kept, weighted), worth / scale

    def minimum_cut(self, again: Ints, keeping: Ints) -> tuple[Bools, Bools, int]:
        """Return the repeated runs, the kept instances, and the cost.

        The first two are [moment] and [kept] bool.

        Args:
            again: [may run again] cost of each rerun.
            keeping: [kept] cost of each instance produced before the moment.
        """
        flow, _ = self.maximum_flow(again, keeping)
        is_source = np.zeros(2 + len(self.may_run_again) + len(keeping), dtype=np.bool_)
        is_source[flow.get_source_side_min_cut()] = True
        is_again, is_needed = is_source[self._run_node], is_source[self._instance_node]
        is_kept = is_needed & ~is_again[self.sequence.instances[0][: self._count]] & ~self.is_here
        return is_again, is_kept, flow.optimal_flow()

    def maximum_flow(self, again: Ints, keeping: Ints) -> tuple[SimpleMaxFlow, Ints]:
        """Solve the cut; return the solver and the capacities of the arcs.

        Args:
            again: [may run again] capacities of arcs to recompute.
            keeping: [kept] capacities of arcs to keep.
        """
        from ortools.graph.python.max_flow import SimpleMaxFlow

        tails, heads = self.arcs
        never = np.full(len(tails) - len(again) - len(keeping), _NEVER)
        capacities = np.concatenate([again, keeping, never])
        flow = SimpleMaxFlow()
        flow.add_arcs_with_capacity(tails, heads, capacities)
        status = flow.solve(_SOURCE, _SINK)
        if status != SimpleMaxFlow.OPTIMAL:
            raise AssertionError(f"the maximum flow ended with status {status}")
        return flow, capacities

    def _choice(self, again: Bools, kept: Bools, weighted: NDArray[np.float64]) -> CutChoice:
        return CutChoice(
            again=again,
            bytes=int(self.sequence.bytes[: self._count][kept].sum()),
            weighted_bytes=float(weighted[kept].sum()),
            time=int(self.sequence.run_time[: self.at][again].sum()),
        )

    def cheapest(self, room: int, weights: NDArray[np.float64], limits: Limits) -> CutChoice | None:
        """Return the fastest choice that fits and is best at some price.

        None if no such choice fits.

        Args:
            room: bytes for kept tensors, without those of the moment's own run.
            weights: [T] factors on the price of the bytes of each tensor.
            limits: limits after which no further price is tried.
        """
        weighted = self.sequence.bytes[: self._count] * weights[self.sequence.instances[1][: self._count]]
        best = None
        for _, choice, _ in self._choices(room, weighted):
            if choice.bytes <= room and (best is None or choice.time < best.time):
                best = choice
            if limits.is_over:
                break
        return best

    def bound(self, room: int, limits: Limits | None = None) -> int:
        """Return a lower bound on the time of reruns after the moment.

        The best price is found in floating-point numbers; its bound is counted in whole ones (see `counted_bound`), so
        it holds for every choice, whatever errors the flow solver makes.

        Args:
            room: bytes for kept tensors, without the least that the moment's own run needs.
            limits: limits after which the best price so far is taken.
        """
        best, best_price = 0.0, 0.0
        weighted = self.sequence.bytes[: self._count].astype(np.float64)
        for price, _, value in self._choices(room, weighted):
            if value - price * room > best:
                best, best_price = value - price * room, price
            if limits is not None and limits.is_over:
                break
        return self.counted_bound(room, best_price) if best_price else 0

    def counted_bound(self, room: int, price: float) -> int:
        """Count the bound at a price in whole numbers.

        Take a flow through the network whose arcs to recompute have A times their time as capacity, and whose arcs to
        keep B times their bytes. No cut has less capacity than the value of the flow (weak duality), so for any choice
        A * time + B * bytes kept >= flow, and with bytes kept <= room: time >= (flow - B * room) / A. The bound is on
        the time of reruns. The flow is checked arc by arc; it need not be a maximum.

        Args:
            room: bytes for kept tensors.
            price: price of keeping a byte, in units of time; rounded to 30 binary digits.
        """
        mantissa, exponent = frexp(price)
        numerator = round(mantissa * 2**_DIGITS)
        price_exact = Fraction(numerator) * Fraction(2) ** (exponent - _DIGITS)
        sizes = np.where(self.is_here, 0, self.sequence.bytes[: self._count])
        times = self.sequence.run_time[self.may_run_again]
        total = max(Fraction(1), Fraction(int(times.sum())), price_exact * int(sizes.sum()))
        scale = Fraction(2) ** floor(log2(_TOTAL / total))
        again, keeping = scaled_down(times, scale), scaled_down(sizes, price_exact * scale)
        flow, capacities = self.maximum_flow(again, keeping)
        tails, heads = self.arcs
        worth = worth_of_flow(tails, heads, capacities, flow.flows(np.arange(len(tails))))
        return max(0, ceil(worth / scale - price_exact * room))

    def _choices(self, room: int, weighted: NDArray[np.float64]) -> Iterator[tuple[float, CutChoice, float]]:
        """Yield prices with their best choices and costs.

        They approach the choice that just fits. In time against bytes, the best choices at all prices are the corners
        of a convex line. Between a choice that fits and one that does not, the next price is the slope of the line
        through both; if no choice lies below that line, the two are neighbours.
        """
        never = np.zeros(self.at, dtype=np.bool_)
        above = self._choice(never, self.is_needed & ~self.is_here, weighted)
        usual = max(self.sequence.time, 1) / max(float(weighted.sum()), 1.0)
        for factor in _FIRST_PRICES:
            price = factor * usual
            below, value = self.choose(price, weighted)
            yield price, below, value
            if below.bytes <= room:
                break
            above = below
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


def worth_of_flow(tails: Ints, heads: Ints, capacities: Ints, flows: Ints) -> int:
    """Return the value of a flow from the source to the sink.

    Args:
        tails: [arcs] nodes; node 0 is the source, node 1 the sink.
        heads: [arcs] nodes.
        capacities: [arcs] int64.
        flows: [arcs] int64.

    Raises:
        AssertionError: the flow is invalid: an arc carries a negative amount or more than its capacity, or a node does
            not pass on what it receives.
    """
    if (flows < 0).any() or (flows > capacities).any():
        raise AssertionError("the solver's flow exceeds a capacity")
    left = np.zeros(int(max(tails.max(initial=1), heads.max(initial=1))) + 1, dtype=np.int64)
    np.add.at(left, tails, flows)
    np.subtract.at(left, heads, flows)
    if left[2:].any() or left[_SOURCE] != -left[_SINK]:
        raise AssertionError("the solver's flow does not add up at a node")
    return int(left[_SOURCE])


def scaled_down(values: Ints, factor: Fraction) -> Ints:
    """Multiply by a factor, rounding down to whole numbers.

    The results are less than 2 below the exact products, if those are below 2^44.

    Args:
        values: [entries] from 0 to 2^60.
        factor: a number above 0 with a power of two as denominator; its numerator has up to 31 binary digits, not
            counting final zeros.
    """
    zeros = (factor.numerator & -factor.numerator).bit_length() - 1
    odd, exponent = factor.numerator >> zeros, zeros - (factor.denominator.bit_length() - 1)
    if exponent >= 0:
        return (values * odd) << exponent
    # In two parts, each rounded down, if the product would not fit 64 bits.
    low_bits = max(0, int(values.max(initial=0)).bit_length() + odd.bit_length() - 62)
    high, low = values >> low_bits, values & ((1 << low_bits) - 1)
    return ((high * odd) >> (-exponent - low_bits)) + ((low * odd) >> -exponent)
