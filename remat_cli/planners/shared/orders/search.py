"""The search for orders of first runs that need little memory.

If data dependencies leave a choice, the order decides a lot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import NamedTuple

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer
from remat_cli.machine.cores import process_pool, run_in
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.orders.greedy import greedy_order
from remat_cli.planners.shared.orders.moves import Dependencies, Layout, Places
from remat_cli.planners.shared.stages import Stages

# Numbers of moves, for each movable op. First a descent, then annealing from these temperatures in turn; the first
# anneal has the first number of moves, the last number serves all further anneals.
_DESCENT = 10
_COLD = 0.04
_HEATS = (4.0, 1.0)
_MOVES = (50, 100, 200)
# With fewer moves, an anneal loses more while it is hot than it gains while it cools.
_FEWEST = 20
# The search ends after this many runs in a row that do not lower the least excess by this factor.
_PATIENCE = 2
_PAYS = 0.995


# The last temperature as a share of the first.
_COLDEST = 0.01
# Moves between two looks at the clock.
_LOOK = 64
# The number of ops for the scale of the costs.
_SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Cooling:
    """The parameters of a run of annealing.

    Attributes:
        heat: first temperature, in units of the spread of the cost over an op's places at the start.
        moves: number of moves to try.
        seconds: limit in seconds; if they are too few for the moves, cooling is faster.
        seed: seed of the random choices.
    """

    heat: float
    moves: int
    seconds: float
    seed: tuple[int, ...]


class Annealed(NamedTuple):
    """The order of least excess found, and the number of moves tried."""

    order: Ints
    moves: int


def anneal(layout: Layout, cooling: Cooling) -> Annealed:
    """Search for an order of little excess.

    The search ends at an order without excess, or at the end of the temperatures. An op is moved as in Gibbs sampling:
    one of its places is drawn with weights exp(-cost / temperature), and no move is rejected. Only ops that can pass a
    stage that lacks memory take part: other ops would move at random.

    Args:
        layout: the order to start from.
        cooling: temperatures and limits.
    """
    layout = layout.copy()
    rng = np.random.default_rng(cooling.seed)
    started = monotonic()
    hottest = cooling.heat * _scale(layout)
    temperature = hottest
    excess = least = layout.total_excess
    best = layout.order.copy()
    moves = 0
    while least > 0 and len(ops := layout.restless()):
        rng.shuffle(ops)
        for op, draw in zip(ops.tolist(), rng.random(len(ops)).tolist(), strict=True):
            if moves % _LOOK == 0 or moves == cooling.moves:
                progress = max(moves / cooling.moves, (monotonic() - started) / max(cooling.seconds, 1e-9))
                if progress >= 1:
                    return Annealed(best, moves)
                temperature = hottest * _COLDEST**progress
            moves += 1
            places = layout.places(op)
            if places is None:
                continue
            place = _draw(places, temperature, draw)
            layout.move(places, place)
            excess += float(places.cost[place] - places.cost[places.now])
            if excess < least:
                least, best = excess, layout.order.copy()
    return Annealed(best, moves)


def _draw(places: Places, temperature: float, draw: float) -> int:
    cost = places.cost
    weights = np.cumsum(np.exp((np.minimum.reduce(cost) - cost) / temperature))
    return int(np.searchsorted(weights, draw * weights[-1], side="right"))


def _scale(layout: Layout) -> float:
    """Return the mean spread of the cost over an op's places.

    The mean is over some of the ops with a spread.
    """
    ops = layout.restless()
    sample = (layout.places(op) for op in ops[:: -(-len(ops) // _SAMPLE) or 1].tolist())
    spreads = [spread for places in sample if places is not None and (spread := np.ptp(places.cost)) > 0]
    return float(np.mean(spreads)) if spreads else 1.0


@dataclass(frozen=True, eq=False)
class Order:
    """An order of first runs, and its memory without recomputation.

    Attributes:
        order: [N] numbers of the graph's ops, each after those whose outputs it reads.
        peak_bytes: the largest memory of any stage, without the graph's fixed bytes.
        excess: memory above the room, summed over the stages, in bytes; 0 if the order fits.
    """

    order: Ints
    peak_bytes: int
    excess: int

    @classmethod
    def of(cls, graph: Graph, order: Ints, room: int) -> Order:
        """Measure an order of the ops of `graph`."""
        plain = Stages.of(graph, order).plain_bytes
        return cls(order, int(plain.max()), sum((plain[plain > room] - room).tolist()))


def search_orders(graph: Graph, room: int, limits: Limits, observe: Observer) -> list[Order]:
    """Return orders that need little memory, least excess first.

    The input order is always among them. The others differ from each other, so that a planner can try several: the
    excess alone does not decide which order needs the least recomputation. There is no proof.

    Args:
        graph: the graph to plan.
        room: bytes for outputs of ops: the budget without the graph's fixed bytes.
        limits: limits of the search, which ends sooner if an order fits or if more search does not pay. Work is counted
            in moves of one op. Under a work limit alone, the orders do not depend on the number of cores.
        observe: receives the phase of the search.
    """
    given = Order.of(graph, np.arange(len(graph.ops)), room)
    if given.excess == 0 or limits.is_over:
        return [given]
    observe.phase("searching orders")
    search = _OrderSearch(graph, room, limits, given)
    search.run()
    return search.found()


class _OrderSearch:
    """A descent, then runs of annealing until they do not pay.

    The descent starts from the better of the input order and a greedy order.
    """

    def __init__(self, graph: Graph, room: int, limits: Limits, given: Order) -> None:
        self._graph, self._room, self._limits = graph, room, limits
        self._moves_left = limits.work
        self._seconds_a_move = 0.0
        self._hot_runs = 0
        self._given = self._best = given
        self._found = {given.order.tobytes(): given}
        self._keep(greedy_order(graph))
        self._dependencies = Dependencies.of(graph)

    def found(self) -> list[Order]:
        """Return the orders found so far, best first."""
        return sorted(self._found.values(), key=_rank)

    def run(self) -> None:
        """Search until an order fits, or more search does not pay.

        The limits end the search, too.
        """
        start = self._layout()
        loose = len(start.loose())
        if not loose or not self._descend(_DESCENT * loose):
            return
        fewest = _FEWEST * loose
        if self._affordable() < fewest:
            self._descend(self._affordable())
        else:
            self._anneal(start, loose, fewest)

    def _descend(self, moves: float) -> bool:
        """Improve the best order with cold annealing; tell whether to go on."""
        cooling = self._cooling(_COLD, moves)
        if cooling.moves == 0:
            return False
        began = monotonic()
        annealed = anneal(self._layout(), cooling)
        self._seconds_a_move = (monotonic() - began) / max(annealed.moves, 1)
        self._keep(annealed.order)
        return annealed.moves > 0 and self._best.excess > 0

    def _anneal(self, start: Layout, loose: int, fewest: int) -> None:
        # Until there is a gain, one anneal decides: in most training graphs the input order is as good as any.
        fruitless = 0 if self._pays(self._given) else _PATIENCE - 1
        with process_pool(self._limits.cores) as pool:
            while fruitless < _PATIENCE and (coolings := self._coolings(loose, fewest)):
                for annealed in run_in(pool, partial(anneal, start), coolings):
                    fruitless = 0 if self._keep(annealed.order) else fruitless + 1
                    if self._best.excess == 0 or fruitless == _PATIENCE:
                        return

    def _coolings(self, loose: int, fewest: int) -> list[Cooling]:
        """Return the next runs, in parallel; none if the limits are too tight."""
        coolings: list[Cooling] = []
        while len(coolings) < self._limits.cores and self._affordable() >= fewest:
            heat = _HEATS[self._hot_runs % len(_HEATS)]
            moves = _MOVES[min(self._hot_runs, len(_MOVES) - 1)] * loose
            self._hot_runs += 1
            coolings.append(self._cooling(heat, moves))
        return coolings

    def _cooling(self, heat: float, moves: float) -> Cooling:
        """Reserve moves for a run."""
        moves = int(min(moves, self._moves_left))
        self._moves_left -= moves
        return Cooling(heat, moves, self._limits.seconds, seed=(self._limits.seed, self._hot_runs))

    def _affordable(self) -> float:
        """Number of moves that the limits leave."""
        return min(self._moves_left, (self._limits.seconds) / max(self._seconds_a_move, 1e-9))

    def _layout(self) -> Layout:
        return Layout(self._dependencies, Stages.of(self._graph, self._best.order), self._room)

    def _keep(self, order: Ints) -> bool:
        """Add an order; tell whether the gain is worth more search."""
        before = self._best
        new = Order.of(self._graph, order, self._room)
        self._found.setdefault(order.tobytes(), new)
        self._best = min(before, new, key=_rank)
        return self._pays(before)

    def _pays(self, before: Order) -> bool:
        return self._best.excess < _PAYS * before.excess


def _rank(order: Order) -> tuple[int, int]:
    return order.excess, order.peak_bytes
