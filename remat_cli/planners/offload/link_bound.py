"""The link bound: the least loss of any plan with transfers.

The bound comes from one cut, with prices of memory and link. Take a moment: an op's first run. Call the time that a
plan takes beyond the plain run its loss. Let B be the loss that comes before the moment's end, reruns and idle time,
and A the loss after it. Ops that run after the moment find each tensor that they read in one of four ways. The tensor
was on the device at the moment: such tensors have K bytes, and K <= room. It is first produced after the moment, which
costs nothing. It is recomputed, and such runs take R <= A. Or it was on the host, has come back and was not recomputed.

Let O be the tensors of the last kind. Their ways out ended before the moment, and their ways back begin after it. The
link takes one transfer at a time each way, full duplex or half. A *window* of the way out is the time between the end
of an op p's first run and the moment: no output of p or its descendants starts earlier. A window of the way back lies
between the moment and the first run of an op q: no tensor that q or one of its ancestors reads after the moment comes
back later. Let T be the time of all ops that can run for the first time in a window, and O(w) the bytes of those
tensors of O that have to pass in it:

    O(w) <= rate * (T + B) on the way out,    O(w) <= rate * (T + A) on the way back.

With prices l >= 0 of memory, u >= 0 of windows of the way out and v >= 0 of the way back, where the sums U of all u and
V of all v are at most 1, the loss is

    B + A >= B + A + l (K - room) + sum of u (O(w) / rate - T - B) + sum of v (O(w) / rate - T - A)
          >= (1 - V) R + l K + sum over O of (its u and v) * bytes / rate - l * room - sum of u T - sum of v T.

Over all plans the last line is least at a minimum cut: a needed tensor is recomputed, at (1 - V) of its time, or
available, at the cheaper of both prices for each byte. So every choice of prices gives a bound, on plans in any order
and with any transfers (Lagrangian duality). The best prices are found by cutting planes (Kelley, The Cutting-Plane
Method for Solving Convex Programs, 1960). The bound at these prices is counted in whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from itertools import chain
from math import ceil, floor, log2
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from ortools.math_opt.python import mathopt

from remat_cli.core.graph import Graph
from remat_cli.planners.min_cut.priced_cut import scaled_down, worth_of_flow
from remat_cli.planners.retention.any_order_bound import Ancestry, ancestors_and_descendants, cut_point_of
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools, GraphReads, Ints
from remat_cli.planners.shared.stages import Stages

# The largest number of windows each way, and of the time of each as a share of the one before. More or closer windows
# raise bounds by less than 0.1 points (U-Net and ResNet-50 at `a100`, links of full speed and a sixteenth of it).
_WINDOWS, _RATIO = 8, 0.6
# The largest number of prices to try at a moment; 20 did on all graphs of `make bench`.
_MOST_PRICES = 60
# A moment is finished if no prices can raise its bound by more than this share of the plain run's time.
_SLACK = 1e-7
# The number of units in the plain run's time for the solver, whose rows may be wrong by a millionth of a unit.
_UNITS = 1000
# Times and bytes are scaled to whole numbers that add up to about this, far below 2^63.
_TOTAL = 2**44
# Binary digits of a price where a bound is counted in whole numbers.
_DIGITS = 30
# The number of moments, and of ops times moments: larger graphs have fewer moments.
_MOMENTS, _OPS_FOR_MOMENTS = 6, 100_000
# A program for prices takes milliseconds.
_PARAMETERS = mathopt.SolveParameters(time_limit=timedelta(seconds=2))

_Price = TypeVar("_Price", float, Fraction)


@dataclass(frozen=True, eq=False)
class _LinkWindow:
    """A span of time in which some tensors must pass one way.

    Attributes:
        time: total time of the ops that can run for the first time in the window.
        passes: [instances] for instances produced before the moment: whether each would have to pass in the window.
    """

    time: int
    passes: Bools


@dataclass(frozen=True)
class _LinkPrices:
    """Prices of memory and link.

    Attributes:
        memory: price of a byte on the device at the moment, in units of a byte's time on the link one way.
        out: price of each window of the way out; at most 1 in total.
        back: price of each window of the way back; at most 1 in total.
    """

    memory: float
    out: tuple[float, ...]
    back: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class LinkChoice:
    """The best choice at given prices.

    Attributes:
        value: approximate bound at these prices, in the graph's time unit.
        rerun_time: time of the recomputed runs.
        excess: bytes kept beyond the room, as time on the link; negative if bytes are left.
        late_out: for each window of the way out, the link time of the tensors that must pass, minus the window's time.
        late_back: the same for the way back.
        is_had: [instances] whether each is kept on the device or on the host.
    """

    value: float
    rerun_time: float
    excess: float
    late_out: tuple[float, ...]
    late_back: tuple[float, ...]
    is_had: Bools


class LinkCut:
    """The cut at the first run of one op.

    Attributes:
        choices: the best choice at each price tried.
    """

    def __init__(self, graph: Graph, op: int, budget_bytes: int, bytes_per_time: Fraction) -> None:
        """Prepare the cut.

        Args:
            graph: the graph to plan.
            op: op whose first run is the moment.
            budget_bytes: device memory.
            bytes_per_time: rate of the link, one way.
        """
        self.choices: list[LinkChoice] = []
        self._graph, self._op = graph, op
        self._is_before, self._is_after = ancestors_and_descendants(graph, op)
        self._point = cut_point_of(GraphReads.of(graph), op, self._is_before, self._is_after)
        self._room = budget_bytes - self._point.least_own_bytes
        self._rate = bytes_per_time
        self._time = graph.arrays.op_time
        sequence = self._point.sequence
        self._count = len(self._point.is_needed)
        self._sizes = np.where(self._point.is_here, 0, sequence.bytes[: self._count])
        self._link_time = self._sizes / float(bytes_per_time)
        self._out = tuple(self._windows_out())
        self._back = tuple(self._windows_back())

    # Windows

    def _windows_out(self) -> Iterator[_LinkWindow]:
        """Yield windows that end at the moment, longest first."""
        sequence, at = self._point.sequence, self._point.at
        makers = sequence.ops[sequence.instances[0][: self._count]]
        is_late = self._is_after.copy()
        is_late[self._op] = True
        longest = int(self._time[~is_late].sum())
        yield _LinkWindow(longest, np.ones(self._count, dtype=np.bool_))
        end = np.cumsum(sequence.run_time[:at])
        path = np.sort(sequence.ops.argsort(kind="stable")[self._path_back()])
        for position in _shrinking(path, end[-1:] - end[path], longest):
            op = int(sequence.ops[position])
            is_earlier, comes_from = ancestors_and_descendants(self._graph, op)
            is_earlier[op] = comes_from[op] = True
            yield _LinkWindow(int(self._time[~is_late & ~is_earlier].sum()), comes_from[makers])

    def _windows_back(self) -> Iterator[_LinkWindow]:
        """Yield windows that begin at the moment, longest first."""
        sequence, at = self._point.sequence, self._point.at
        read_at, instance = sequence.read
        is_later = (read_at > at) & (read_at < len(sequence)) & (instance < self._count)
        reader, read = sequence.ops[read_at[is_later]], instance[is_later]
        is_early = self._is_before.copy()
        is_early[self._op] = True
        longest = int(self._time[~is_early].sum())
        yield _LinkWindow(longest, np.ones(self._count, dtype=np.bool_))
        end = np.cumsum(sequence.run_time[at:])
        path = np.sort(sequence.ops.argsort(kind="stable")[self._path_forward()])
        for position in _shrinking(path[::-1], end[path[::-1] - at - 1] - end[0], longest):
            op = int(sequence.ops[position])
            leads_to, is_then = ancestors_and_descendants(self._graph, op)
            leads_to[op] = is_then[op] = True
            passes = np.zeros(self._count, dtype=np.bool_)
            passes[read[leads_to[reader]]] = True
            yield _LinkWindow(int(self._time[~is_early & ~is_then].sum()), passes)

    def _path_back(self) -> list[int]:
        """Return a chain of ancestors, from the moment's op backwards."""
        arrays = self._graph.arrays
        producer = arrays.producer
        path: list[int] = []
        op = self._op
        while makers := [int(producer[tensor]) for tensor in arrays.inputs[op] if producer[tensor] >= 0]:
            op = max(makers)
            path.append(op)
        return path

    def _path_forward(self) -> list[int]:
        """Return a chain of descendants, from the moment's op forwards."""
        inputs = self._graph.arrays.inputs
        readers: dict[int, list[int]] = {}
        for op in np.flatnonzero(self._is_after).tolist():
            for tensor in inputs[op]:
                readers.setdefault(tensor, []).append(op)
        path: list[int] = []
        op = self._op
        while after := [reader for tensor in self._graph.arrays.outputs[op] for reader in readers.get(tensor, ())]:
            op = min(after)
            path.append(op)
        return path

    # The best prices

    def bound(self, limits: Limits) -> int:
        """Return the largest bound found on the loss of any plan.

        The loss is the time beyond the plain run.
        """
        planes = _Planes(len(self._out), len(self._back))
        prices = _LinkPrices(0.5, (0.0,) * len(self._out), (0.0,) * len(self._back))
        unit = max(1.0, float(self._time.sum())) / _UNITS
        best, best_prices = 0.0, None
        for _ in range(_MOST_PRICES):
            choice = self._choose(prices)
            self.choices.append(choice)
            if choice.value > best:
                best, best_prices = choice.value, prices
            planes.add(choice, unit)
            highest = planes.highest()
            if highest is None or highest[0] * unit - best <= _SLACK * _UNITS * unit or limits.is_over:
                break
            prices = highest[1]
        return 0 if best_prices is None else self.counted(best_prices)

    def _price_of_moving(self, prices: _LinkPrices) -> NDArray[np.float64]:
        """[instances] price of a byte on the host.

        The unit is a byte's time on the link one way.
        """
        total = np.zeros(self._count)
        for price, window in self._priced(prices.out, prices.back):
            total += price * window.passes
        return total

    def _priced(self, out: Sequence[_Price], back: Sequence[_Price]) -> list[tuple[_Price, _LinkWindow]]:
        return list(zip(chain(out, back), chain(self._out, self._back), strict=True))

    def _choose(self, prices: _LinkPrices) -> LinkChoice:
        point = self._point
        moving = self._price_of_moving(prices)
        having = np.minimum(prices.memory, moving) * self._link_time
        running = (1 - min(1.0, sum(prices.back))) * point.sequence.run_time[point.may_run_again]
        scale = _TOTAL / max(1.0, float(running.sum()), float(having.sum()))
        again, is_had, worth = point.minimum_cut(_floor(scale * running), _floor(scale * having))
        is_moved = is_had & (moving < prices.memory)
        room = self._room / float(self._rate)
        fixed = prices.memory * room + sum(
            price * window.time for price, window in self._priced(prices.out, prices.back)
        )
        return LinkChoice(
            value=worth / scale - fixed,
            rerun_time=float(point.sequence.run_time[: point.at][again].sum()),
            excess=float(self._link_time[is_had & ~is_moved].sum()) - room,
            late_out=self._late(self._out, is_moved),
            late_back=self._late(self._back, is_moved),
            is_had=is_had,
        )

    def _late(self, windows: Sequence[_LinkWindow], is_moved: Bools) -> tuple[float, ...]:
        return tuple(float(self._link_time[is_moved & each.passes].sum()) - each.time for each in windows)

    def moved(self, choice: LinkChoice | None = None) -> Bools:
        """[T] Return whether each tensor goes to the host, so that the rest fits.

        Near the best prices, keeping and moving cost about the same for many tensors, so the choice does not decide
        between them. Tensors go in the order of their production, as long as the tensors of each window can pass in its
        time.

        Args:
            choice: the tensors that are kept on the device or on the host; None for all needed tensors.
        """
        is_had = self._point.is_needed if choice is None else choice.is_had
        windows = (*self._out, *self._back)
        passes = np.array([window.passes for window in windows]).T
        left = np.array([window.time for window in windows], dtype=np.float64)
        excess = float(self._link_time[is_had].sum()) - self._room / float(self._rate)
        moved = np.zeros(len(self._graph.tensors), dtype=np.bool_)
        tensors = self._point.sequence.instances[1]
        for instance in np.flatnonzero(is_had & (self._sizes > 0)).tolist():
            if excess <= 0:
                break
            after = left - passes[instance] * self._link_time[instance]
            if (after >= 0).all():
                left = after
                excess -= float(self._link_time[instance])
                moved[tensors[instance]] = True
        return moved

    def counted(self, prices: _LinkPrices) -> int:
        """Return the bound at these prices, counted in whole numbers.

        No cut has less capacity than the value of any flow. Capacities are rounded down, and prices to 30 binary
        digits, down where their sum must not exceed 1. The flow is checked arc by arc.
        """
        point = self._point
        out, back = _rounded(prices.out), _rounded(prices.back)
        memory = _digits_of(Fraction(prices.memory) / self._rate)
        sizes, times = self._sizes, point.sequence.run_time[point.may_run_again]
        # Instances that pass in the same windows have the same price.
        windows = self._priced(out, back)
        kinds, kind = np.unique(np.array([each.passes for _, each in windows]), axis=1, return_inverse=True)
        moving = (
            sum((price for (price, _), passes in zip(windows, row, strict=True) if passes), Fraction(0))
            for row in kinds.T.tolist()
        )
        of_kind = [min(memory, _digits_of(price / self._rate)) for price in moving]
        running = _digits_of(1 - sum(back, Fraction(0)))
        total = max(Fraction(1), running * int(times.sum()), max(of_kind, default=Fraction(0)) * int(sizes.sum()))
        scale = Fraction(2) ** floor(log2(_TOTAL / total))
        again = scaled_down(times, running * scale) if running else np.zeros_like(times)
        having = np.zeros_like(sizes)
        for number, price in enumerate(of_kind):
            if price:
                having = np.where(kind.ravel() == number, scaled_down(sizes, price * scale), having)
        flow, capacities = point.maximum_flow(again, having)
        tails, heads = point.arcs
        worth = worth_of_flow(tails, heads, capacities, flow.flows(np.arange(len(tails))))
        fixed = memory * self._room + sum((price * each.time for price, each in windows), Fraction(0))
        return max(0, ceil(worth / scale - fixed))


class _Planes:
    """The costs of the choices found, as functions of the prices.

    Each is an upper bound on the bound at any prices.
    """

    def __init__(self, ways_out: int, ways_back: int) -> None:
        self._model = model = mathopt.Model()
        self._value = model.add_variable(ub=1e6)
        # A byte never costs more than its ways out and back.
        self._memory = model.add_variable(lb=0.0, ub=2.0)
        self._out = [model.add_variable(lb=0.0, ub=1.0) for _ in range(ways_out)]
        self._back = [model.add_variable(lb=0.0, ub=1.0) for _ in range(ways_back)]
        model.add_linear_constraint(mathopt.fast_sum(self._out) <= 1)
        model.add_linear_constraint(mathopt.fast_sum(self._back) <= 1)
        model.maximize(self._value)

    def add(self, choice: LinkChoice, unit: float) -> None:
        """Add the cost of a choice, in units of time."""
        running = choice.rerun_time / unit
        terms = [choice.excess / unit * self._memory]
        terms += [late / unit * price for late, price in zip(choice.late_out, self._out, strict=True)]
        terms += [(late / unit - running) * price for late, price in zip(choice.late_back, self._back, strict=True)]
        self._model.add_linear_constraint(self._value - mathopt.fast_sum(terms) <= running)

    def highest(self) -> tuple[float, _LinkPrices] | None:
        """Return the highest possible bound and its prices.

        None if the solver does not finish.
        """
        # GLOP cycles forever on some of these programs, however small. HiGHS within OR-tools breaks down if the process
        # has loaded highspy, too.
        result = mathopt.solve(self._model, mathopt.SolverType.GSCIP, params=_PARAMETERS)
        if result.termination.reason is not mathopt.TerminationReason.OPTIMAL:
            return None
        values = result.variable_values()
        out = tuple(max(0.0, values[each]) for each in self._out)
        back = tuple(max(0.0, values[each]) for each in self._back)
        return result.objective_value(), _LinkPrices(max(0.0, values[self._memory]), out, back)


def moments(graph: Graph, room: int) -> Ints:
    """Return the ops at whose first runs to search for the bound.

    The most promising op comes first.

    Args:
        graph: the graph to plan.
        room: bytes for outputs of ops: the budget without the graph's fixed bytes.
    """
    count = max(1, min(_MOMENTS, _OPS_FOR_MOMENTS // len(graph.ops)))
    return Ancestry(Stages.of(graph), room).worst_moments()[:count]


def _shrinking(positions: Ints, times: Ints, longest: int) -> list[int]:
    """Choose positions whose times shrink by `_RATIO`, and the last.

    `times` descends; the first chosen time is at most that share of `longest`.
    """
    chosen: list[int] = []
    most = longest * _RATIO
    for position, time in zip(positions.tolist(), times.tolist(), strict=True):
        if time <= most and len(chosen) < _WINDOWS - 2:
            chosen.append(position)
            most = time * _RATIO
    return list(dict.fromkeys([*chosen, *positions[-1:].tolist()]))


def _floor(values: NDArray[np.floating[Any]]) -> Ints:
    whole: Ints = np.floor(values).astype(np.int64)
    return whole


def _rounded(prices: Sequence[float]) -> list[Fraction]:
    """Round prices down to 30 binary digits, with a sum of at most 1."""
    exact = [Fraction(price) for price in prices]
    total = max(Fraction(1), sum(exact, Fraction(0)))
    return [_digits_of(price / total) for price in exact]


def _digits_of(price: Fraction) -> Fraction:
    """Return the first 30 binary digits of a price."""
    if not price:
        return price
    unit = Fraction(2) ** (floor(log2(price)) + 1 - _DIGITS)
    return floor(price / unit) * unit
