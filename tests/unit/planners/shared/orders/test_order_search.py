"""Orders of first runs: that moves are measured right, and that the search finds what trying everything finds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer
from remat_cli.core.schedule import Compute, Inplace, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.generate.layered import Layered
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.orders.greedy import greedy_order
from remat_cli.planners.shared.orders.moves import Dependencies, Layout
from remat_cli.planners.shared.orders.search import Cooling, Order, anneal, search_orders
from remat_cli.planners.shared.stages import Stages
from tests.graphs import chain, diamond, graph_of, in_place, op, scaled, small_graphs, training_chain, training_graphs
from tests.plans import RecordingObserver

NO_CLOCK = float("inf")


def search(graph: Graph, room: int, work: int | None = 20_000, *, seed: int = 0, jobs: int = 1) -> list[Order]:
    return search_orders(graph, room, Limits.of(NO_CLOCK, work, seed=seed, cores=jobs), Observer())


def judged(graph: Graph, order: Sequence[int]) -> list[int]:
    """Memory while each op runs, without the fixed bytes, as the judge measures it."""
    schedule = with_frees(graph, [graph.ops[number].name for number in order])
    memory = simulate(graph, schedule).memory_bytes[1:]
    return [
        used - graph.fixed_bytes
        for step, used in zip(schedule.steps, memory, strict=True)
        if isinstance(step, Compute | Inplace)
    ]


def excess_of(graph: Graph, order: Sequence[int], room: int) -> int:
    return sum(max(0, used - room) for used in judged(graph, order))


def plain_peak(graph: Graph) -> int:
    return max(judged(graph, range(len(graph.ops))))


def needs(graph: Graph) -> list[set[int]]:
    """For each op, the numbers of the ops that must run before it."""
    number = {each.name: i for i, each in enumerate(graph.ops)}
    return [{number[graph.producer[name].name] for name in each.inputs if name in graph.producer} for each in graph.ops]


def random_order(graph: Graph, rng: random.Random) -> list[int]:
    before = needs(graph)
    order: list[int] = []
    while len(order) < len(before):
        ready = [number for number, needed in enumerate(before) if number not in order and needed <= set(order)]
        order.append(rng.choice(ready))
    return order


def layered(seed: int, layers: int = 4, width: int = 4) -> Graph:
    """A graph of random layers, of which an op reads one to three ops of the two layers before; two are kept."""
    rng = random.Random(seed)
    rows: list[list[str]] = [["t0"]]
    ops = [op("f0", "", "t0")]
    for _ in range(layers):
        near = [name for row in rows[-2:] for name in row]
        row = []
        for _ in range(rng.randint(1, width)):
            reads = rng.sample(near, min(len(near), rng.randint(1, 3)))
            name = f"t{len(ops)}"
            shared = reads[0] if rng.random() < 0.3 else None
            ops.append(op(f"f{len(ops)}", " ".join(reads), name, inplace=shared))
            row.append(name)
        rows.append(row)
    read = {name for each in ops for name in each.inputs}
    ends = [name for each in ops for name in each.outputs if name not in read]
    ops.append(op("end", " ".join(ends), "result"))
    return graph_of(
        *ops,
        sizes={name: rng.randint(0, 9) for each in ops for name in each.outputs},
        outputs=["result", *rng.sample([name for row in rows for name in row], 2)],
    )


def layout_of(graph: Graph, order: Sequence[int], room: int) -> Layout:
    return Layout(Dependencies.of(graph), Stages.of(graph, np.array(order, dtype=np.int64)), room)


@st.composite
def any_graphs(draw: st.DrawFn) -> Graph:
    return draw(st.one_of(small_graphs(), training_graphs(), st.integers(0, 999).map(layered)))


class TestLayout:
    @given(any_graphs(), st.integers(0, 20), st.randoms(use_true_random=False))
    def test_every_place_of_every_op_is_measured_as_the_judge_does(
        self, graph: Graph, room: int, rng: random.Random
    ) -> None:
        layout = layout_of(graph, random_order(graph, rng), room)
        before = needs(graph)
        for number in rng.sample(range(len(graph.ops)), min(len(graph.ops), 4)):
            others = [each for each in layout.order.tolist() if each != number]
            first = 1 + max((others.index(each) for each in before[number]), default=-1)
            readers = [others.index(each) for each, needed in enumerate(before) if number in needed]
            last = min(readers, default=len(others))
            places = layout.places(number)
            if places is None:
                assert first == last
                continue
            assert (places.first, len(places.cost)) == (first, last - first + 1)
            moved = [[*others[:at], number, *others[at:]] for at in range(first, last + 1)]
            truth = np.array([excess_of(graph, each, room) for each in moved])
            assert (places.cost - places.cost[places.now] == truth - truth[places.now]).all()
            place = rng.randrange(len(moved))
            layout.move(places, place)
            assert layout.order.tolist() == moved[place]
            assert layout.order[layout.position].tolist() == list(range(len(graph.ops)))
            assert layout.excess.tolist() == [used - room for used in judged(graph, moved[place])]
            assert (layout.between == layout_of(graph, moved[place], room).between).all()

    def test_an_op_with_one_place_has_none_to_choose_from(self) -> None:
        layout = layout_of(chain(3, 1, 2), [0, 1, 2], 0)
        assert layout.loose().tolist() == []
        assert [layout.places(number) for number in range(3)] == [None] * 3


class TestAnneal:
    def test_it_returns_the_best_order_that_it_came_across(self) -> None:
        graph = layered(1)
        room = plain_peak(graph) // 2
        start = layout_of(graph, range(len(graph.ops)), room)
        annealed = anneal(start, Cooling(heat=4.0, moves=500, seconds=NO_CLOCK, seed=(0,)))
        assert annealed.moves == 500
        assert excess_of(graph, annealed.order.tolist(), room) < start.total_excess
        assert start.order.tolist() == list(range(len(graph.ops)))

    def test_it_stops_with_the_clock(self) -> None:
        graph = layered(1)
        start = layout_of(graph, range(len(graph.ops)), 0)
        annealed = anneal(start, Cooling(heat=4.0, moves=10**9, seconds=0.0, seed=(0,)))
        assert (annealed.moves, annealed.order.tolist()) == (0, start.order.tolist())

    def test_ops_that_pass_no_stage_short_of_memory_stay(self) -> None:
        graph = diamond()
        start = layout_of(graph, range(4), plain_peak(graph))
        assert start.loose().tolist() == [1, 2]
        assert start.restless().tolist() == []
        assert anneal(start, Cooling(heat=4.0, moves=100, seconds=NO_CLOCK, seed=(0,))).moves == 0


class TestGreedyOrder:
    @given(any_graphs())
    def test_the_next_op_adds_the_least_to_memory(self, graph: Graph) -> None:
        before = needs(graph)
        done: list[int] = []
        for number in greedy_order(graph).tolist():
            ready = [each for each, needed in enumerate(before) if each not in done and needed <= set(done)]
            held = [live_bytes(graph, frozenset([*done, each])) for each in ready]
            assert number == ready[held.index(min(held))]
            done.append(number)
        assert len(done) == len(graph.ops)


def live_bytes(graph: Graph, done: frozenset[int]) -> int:
    """Bytes of the tensors that are made and still needed, once some ops have run."""
    made = {name for number in done for name in graph.ops[number].outputs}
    to_read = {name for number, each in enumerate(graph.ops) if number not in done for name in each.inputs}
    return sum(graph.tensors[name].bytes for name in made & (to_read | set(graph.outputs)))


def least_excess(graph: Graph, room: int) -> int:
    """The least excess of any order, over all sets of ops that can have run."""
    before = needs(graph)

    @cache
    def to_come(done: frozenset[int]) -> int:
        ready = [each for each, needed in enumerate(before) if each not in done and needed <= done]
        return min((max(0, used(done, each) - room) + to_come(done | {each}) for each in ready), default=0)

    def used(done: frozenset[int], number: int) -> int:
        each = graph.ops[number]
        makes = sum(graph.tensors[name].bytes for name in each.outputs)
        total = live_bytes(graph, done) + makes + each.workspace_bytes
        if each.inplace is None or each.inplace not in graph.producer or each.inplace in graph.outputs:
            return total
        readers = {reader for reader, op_ in enumerate(graph.ops) if each.inplace in op_.inputs}
        if not readers <= done | {number}:
            return total
        return total - min(graph.tensors[each.inplace].bytes, graph.tensors[each.outputs[0]].bytes)

    return to_come(frozenset())


class TestSearchOrders:
    @given(any_graphs(), st.integers(0, 30))
    def test_orders_are_what_they_are_said_to_be(self, graph: Graph, room: int) -> None:
        found = search(graph, room, work=500)
        orders = [each.order.tolist() for each in found]
        assert list(range(len(graph.ops))) in orders
        assert len({tuple(order) for order in orders}) == len(orders)
        for each, order in zip(found, orders, strict=True):
            assert sorted(order) == list(range(len(graph.ops)))
            memory = judged(graph, order)  # which fails where an input is not there
            assert (each.peak_bytes, each.excess) == (max(memory), sum(max(0, used - room) for used in memory))
        assert found == sorted(found, key=lambda each: (each.excess, each.peak_bytes))

    @given(small_graphs(), st.integers(0, 20))
    def test_no_order_has_less_excess_than_the_best_of_all(self, graph: Graph, room: int) -> None:
        assert search(graph, room, work=500)[0].excess >= least_excess(graph, room)

    @pytest.mark.parametrize("seed", range(12))
    @pytest.mark.parametrize("share", [0.5, 0.8])
    def test_it_finds_the_least_excess_of_small_graphs(self, seed: int, share: float) -> None:
        graph = layered(seed)
        room = int(share * plain_peak(graph))
        assert search(graph, room)[0].excess == least_excess(graph, room)

    @pytest.mark.parametrize("seed", range(12))
    def test_it_finds_an_order_of_the_least_peak(self, seed: int) -> None:
        graph = layered(seed)
        least_peak = next(room for room in range(plain_peak(graph) + 1) if least_excess(graph, room) == 0)
        best = search(graph, least_peak)[0]
        assert (best.peak_bytes, best.excess) == (least_peak, 0)

    def test_the_same_call_finds_the_same_orders(self) -> None:
        graph = layered(3, layers=6, width=6)
        room = plain_peak(graph) // 2
        first, again, other = (search(graph, room, seed=seed) for seed in (0, 0, 1))
        assert [each.order.tolist() for each in first] == [each.order.tolist() for each in again]
        assert [each.order.tolist() for each in first] != [each.order.tolist() for each in other]

    def test_processes_find_what_one_finds(self) -> None:
        graph = layered(3, layers=8, width=8)
        room = plain_peak(graph) // 2
        alone, together = (search(graph, room, jobs=jobs) for jobs in (1, 2))
        assert len(alone) > 3
        assert [each.order.tolist() for each in alone] == [each.order.tolist() for each in together]

    def test_sizes_of_petabytes_are_counted_exactly(self) -> None:
        graph = scaled(layered(3), 2**49 + 1)
        room = plain_peak(graph) // 2
        for each in search(graph, room):
            assert each.excess == excess_of(graph, each.order.tolist(), room)

    def test_ops_that_can_run_only_once_may_run_elsewhere(self) -> None:
        graph = graph_of(
            op("a", "", "ta", recomputable=False),
            op("b", "", "tb", recomputable=False),
            op("c", "ta", "tc"),
            op("d", "tc tb", "td"),
            sizes={"ta": 5, "tb": 1, "tc": 1, "td": 1},
        )
        assert plain_peak(graph) == 7
        best = search(graph, 6)[0]
        assert (best.peak_bytes, best.order.tolist()) == (6, [0, 2, 1, 3])


class TestWhenThereIsNothingToSearch:
    @pytest.mark.parametrize(
        ("graph", "room", "limits"),
        [
            (diamond(), 8, Limits.of(1e5)),
            (diamond(), 0, Limits.of(0.0)),
            (diamond(), 0, Limits.of(1e5, 0)),
        ],
        ids=["it fits", "no time", "no work"],
    )
    def test_the_input_order_is_returned_at_once(self, graph: Graph, room: int, limits: Limits) -> None:
        phases = RecordingObserver()
        found = search_orders(graph, room, limits, phases)
        assert [each.order.tolist() for each in found] == [list(range(len(graph.ops)))]
        assert phases.phases == []

    @pytest.mark.parametrize("graph", [chain(3, 1, 2), training_chain(20), in_place()])
    def test_an_only_order_is_the_only_one(self, graph: Graph) -> None:
        found = search(graph, 0, work=None)
        assert [each.order.tolist() for each in found] == [list(range(len(graph.ops)))]

    def test_the_search_ends_where_nothing_is_gained(self) -> None:
        # Without limits: what ends it is that all orders are alike.
        graph = graph_of(op("a", "", "x"), *(op(f"b{i}", "x", f"y{i}") for i in range(8)))
        assert {each.excess for each in search(graph, 0, work=None)} == {sum(range(1, 9)) + 9}

    def test_readers_of_what_very_many_read_stay_and_others_move(self) -> None:
        many = [op(f"b{i}", "x", f"y{i}") for i in range(300)]
        late = op("late", "", "z")
        graph = graph_of(op("a", "", "x"), late, *many, op("end", "z", "w"), sizes={"z": 50})
        layout = layout_of(graph, range(len(graph.ops)), 0)
        assert {graph.ops[number].name for number in layout.loose().tolist()} == {"a", "late", "end"}
        best = search(graph, 0, work=2000)[0]
        assert best.excess == excess_of(graph, best.order.tolist(), 0)
        assert best.excess < excess_of(graph, range(len(graph.ops)), 0)


@pytest.mark.parametrize(("nodes", "width"), [(100, 0.27), (250, 0.43)])
@pytest.mark.parametrize("percent", [90, 80])
def test_layered_graphs_fit_without_recomputation(nodes: int, width: float, percent: int) -> None:
    graph = Layered(nodes, width).generate().graph
    room = (plain_peak(graph) + graph.fixed_bytes) * percent // 100 - graph.fixed_bytes
    best = search(graph, room, work=100_000)[0]
    assert max(judged(graph, best.order.tolist())) == best.peak_bytes <= room
