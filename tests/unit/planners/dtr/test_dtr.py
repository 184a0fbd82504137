"""DTR: what its costs are, whom it evicts, and that its own count of memory is one from above."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.config import GraphOptions
from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Problem, Status
from remat_cli.core.schedule import input_order, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import UsageError
from remat_cli.planners.dtr.costs import ClassCosts, NeighbourhoodCosts, RegionCosts
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.dtr.run import EvictingDevice, RunLimits
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.prepare import prepare
from tests.graphs import chain, graph_of, in_place, multi_output, op, small_graphs, training_chain, training_unet
from tests.places import GRAPHS
from tests.seeds import seeds

NO_LIMIT = 10**9


def greedy(
    graph: Graph, size: int, heuristic: Heuristic = Heuristic.LOCAL, *, time: int = NO_LIMIT, runs: int = NO_LIMIT
) -> tuple[str, ...] | None:
    """The ops in the order in which a run with `size` bytes runs them; None where it is given up."""
    limits = RunLimits(bytes=size - graph.fixed_bytes, time=time, runs=runs, deadline=float("inf"))
    ops = EvictingDevice(graph, heuristic, limits).computes()
    return None if ops is None else tuple(graph.ops[number].name for number in ops)


class Relations:
    """A random DAG of tensors: what each is made from and used for, and the cost of each."""

    def __init__(self, seed: int, size: int = 12) -> None:
        self.rng = random.Random(seed)
        density = self.rng.choice([0.1, 0.2, 0.4])
        self.made_from = [[u for u in range(v) if self.rng.random() < density] for v in range(size)]
        self.used_for = [[v for v in range(size) if u in self.made_from[v]] for u in range(size)]
        self.own = np.array([self.rng.choice([0, 1, 2, 10]) for _ in range(size)], dtype=np.float64)

    def closure(self, start: int, neighbours: Sequence[Sequence[int]], lost: set[int]) -> set[int]:
        found: set[int] = set()
        while (new := {n for t in (start, *found) for n in neighbours[t] if n in lost} - found) != set():
            found |= new
        return found

    def cost(self, tensors: set[int]) -> float:
        return float(sum(self.own[t] for t in tensors))


def settled(costs: NeighbourhoodCosts, tensor: int) -> float:
    """Ask until the value is exact; on the way it only rises."""
    before = costs.values[tensor]
    while costs.settle(tensor):
        assert costs.values[tensor] >= before
        before = costs.values[tensor]
    return float(costs.values[tensor])


def walk(relations: Relations, costs: NeighbourhoodCosts, check: Callable[[set[int]], None], steps: int = 40) -> None:
    """Lose and find tensors at random, and check in between."""
    lost: set[int] = set()
    for _ in range(steps):
        tensor = relations.rng.randrange(len(relations.own))
        if tensor in lost:
            lost.remove(tensor)
            costs.found(tensor)
        else:
            lost.add(tensor)
            costs.lost(tensor)
        if relations.rng.random() < 0.5:
            check(lost)


@pytest.mark.parametrize("seed", seeds(40))
def test_h_dtr_counts_what_is_reached_through_lost_tensors_downwards_and_upwards(seed: int) -> None:
    graph = Relations(seed)
    costs = RegionCosts(graph.own, (graph.made_from, graph.used_for), (graph.used_for, graph.made_from))

    def check(lost: set[int]) -> None:
        for t in set(range(len(graph.own))) - lost:
            around = graph.closure(t, graph.made_from, lost) | graph.closure(t, graph.used_for, lost)
            assert settled(costs, t) == graph.own[t] + graph.cost(around)

    walk(graph, costs, check)


@pytest.mark.parametrize("seed", seeds(40))
def test_msps_counts_what_a_tensor_is_made_from(seed: int) -> None:
    graph = Relations(seed, size=150 if seed % 10 == 0 else 12)  # large ones are forgotten all at once
    costs = RegionCosts(graph.own, (graph.made_from,), (graph.used_for,))

    def check(lost: set[int]) -> None:
        for t in set(range(len(graph.own))) - lost:
            assert settled(costs, t) == graph.own[t] + graph.cost(graph.closure(t, graph.made_from, lost))

    walk(graph, costs, check)


@pytest.mark.parametrize("seed", seeds(40))
def test_eq_counts_the_classes_around(seed: int) -> None:
    graph = Relations(seed)
    near = [[*above, *below] for above, below in zip(graph.made_from, graph.used_for, strict=True)]
    classes: list[set[int]] = []  # of lost tensors; they unite, and never come apart

    def check(lost: set[int]) -> None:
        for t in set(range(len(graph.own))) - lost:
            expected = graph.own[t] + sum(graph.cost(each) for each in classes if each & set(near[t]))
            assert settled(costs, t) == expected

    class Followed(ClassCosts):
        def lost(self, tensor: int) -> None:
            super().lost(tensor)
            joined = [each for each in classes if each & set(near[tensor])]
            classes[:] = [each for each in classes if each not in joined] + [{tensor}.union(*joined)]

        def found(self, tensor: int) -> None:
            super().found(tensor)
            for each in classes:
                each.discard(tensor)

    costs = Followed(graph.own, near)
    walk(graph, costs, check)


@given(graph=small_graphs(), heuristic=st.sampled_from(Heuristic.ALL.single), data=st.data())
def test_a_run_stays_within_what_it_was_given(graph: Graph, heuristic: Heuristic, data: st.DataObject) -> None:
    plain = simulate(graph, plain_run(graph))
    size = data.draw(st.integers(largest_working_set(graph).bytes, plain.peak_bytes))
    computes = greedy(graph, size, heuristic, runs=100)
    if computes is not None:
        assert simulate(graph, with_frees(graph, computes)).peak_bytes <= size
        assert RematSequence.of_names(graph, computes).without_useless_runs().peak <= size


@pytest.mark.parametrize("heuristic", Heuristic.ALL.single)
def test_nothing_is_evicted_as_long_as_all_fits(heuristic: Heuristic) -> None:
    graph = training_unet(3)
    assert greedy(graph, sum(tensor.bytes for tensor in graph.tensors.values()), heuristic) == input_order(graph)


@pytest.mark.parametrize(
    ("heuristic", "big_time", "small_time", "evicted"),
    [
        (Heuristic.SIZE, 99, 1, "big"),
        (Heuristic.LRU, 99, 1, "big"),
        (Heuristic.LOCAL, 1, 9, "big"),
        (Heuristic.LOCAL, 99, 1, "small"),
        (Heuristic.EQ, 99, 1, "small"),
        (Heuristic.H_DTR, 99, 1, "small"),
        (Heuristic.MSPS, 1, 9, "big"),
        (Heuristic.MSPS, 9, 1, "small"),
    ],
)
def test_who_is_evicted(heuristic: Heuristic, big_time: int, small_time: int, evicted: str) -> None:
    # Of 9 bytes, `big` and `small` hold 4 and 2 when `press` makes another 4: one of them goes, and comes back.
    graph = graph_of(
        *(op("big", "", "b", time=big_time), op("small", "", "s", time=small_time), op("wait", "", "w", time=100)),
        *(op("press", "", "p"), op("pass", "p", "q"), op("end", "b s q w", "z")),
        sizes={"b": 4, "s": 2, "w": 0, "p": 4, "q": 0, "z": 1},
    )
    assert greedy(graph, 9, heuristic) == ("big", "small", "wait", "press", "pass", evicted, "end")


def test_h_dtr_sees_who_was_evicted_around() -> None:
    # `near` alone is cheap to make, but what it is made from has been evicted.
    graph = graph_of(
        *(op("far", "", "f", time=50), op("near", "f", "n", time=1), op("other", "", "o", time=9)),
        *(op("wait", "", "w", time=100), op("press", "", "p"), op("pass", "p", "q"), op("end", "n o q w", "z")),
        sizes={"f": 1, "n": 4, "o": 4, "w": 0, "p": 4, "q": 0, "z": 1},
    )
    first_runs = ("far", "near", "other", "wait", "press", "pass")
    assert greedy(graph, 11, Heuristic.LOCAL) == (*first_runs, "far", "near", "end")
    assert greedy(graph, 11, Heuristic.H_DTR) == (*first_runs, "other", "end")
    assert greedy(graph, 11, Heuristic.EQ) == (*first_runs, "other", "end")
    assert greedy(graph, 11, Heuristic.MSPS) == (*first_runs, "other", "end")


def test_recomputes_what_was_evicted_when_it_is_needed() -> None:
    graph = training_chain(6)
    peak = baseline_of(graph).peak_bytes
    computes = greedy(graph, peak - 2)
    assert computes is not None
    assert len(computes) > len(graph.ops)


def test_what_must_run_once_stays_as_long_as_it_may_be_needed() -> None:
    graph = graph_of(
        *(op("random", "", "r", recomputable=False), op("use", "r", "x")),
        *(op("press", "", "p"), op("pass", "p", "q"), op("end", "x q", "z")),
        sizes={"r": 1, "x": 4, "p": 4, "q": 0, "z": 0},
    )
    assert greedy(graph, 8) == ("random", "use", "press", "pass", "use", "end")


def test_takes_over_storage_where_nothing_else_waits_for_it() -> None:
    # Without working in place, `relu` would need 8 bytes.
    assert greedy(in_place(), 5) == ("make", "relu", "use")


def test_does_not_take_over_the_storage_of_an_output() -> None:
    graph = graph_of(op("make", "", "x"), op("relu", "x", "y", inplace="x"), sizes={"x": 4, "y": 4}, outputs=["x", "y"])
    assert greedy(graph, 7) is None
    assert greedy(graph, 8) == ("make", "relu")


def test_gives_up_where_one_op_is_too_large() -> None:
    assert greedy(chain(2, 3), 4) is None


def test_gives_up_beyond_its_time_and_its_runs() -> None:
    graph = training_chain(12)
    size = largest_working_set(graph).bytes + 2
    computes = greedy(graph, size)
    assert computes is not None
    time = sum(graph.op[name].time for name in computes)
    assert greedy(graph, size, time=time, runs=len(computes)) == computes
    assert greedy(graph, size, time=time - 1) is None
    assert greedy(graph, size, runs=len(computes) - 1) is None


def test_one_output_of_several_is_evicted_and_both_come_back() -> None:
    graph = multi_output()
    computes = greedy(graph, 9, Heuristic.SIZE)
    assert computes is None or simulate(graph, with_frees(graph, computes)).peak_bytes <= 9


def test_makes_a_long_chain_again_without_recursion() -> None:
    # Everything between the start and the end is released, and the end needs the start's neighbour once more.
    length = 5000
    links = [op(f"f{i}", f"t{i - 1}" if i else "", f"t{i}") for i in range(length)]
    graph = graph_of(*links, op("big", f"t{length - 1}", "b"), op("late", f"b t{length // 2}", "z"), sizes={"b": 3})
    computes = greedy(graph, 5, runs=10 * length)
    assert computes is not None
    assert simulate(graph, with_frees(graph, computes)).peak_bytes <= 5


@pytest.mark.parametrize("heuristic", Heuristic)
def test_plans_with_each_heuristic(heuristic: Heuristic) -> None:
    graph = training_unet(4)
    budget = baseline_of(graph).peak_bytes * 8 // 10
    solution = solve(Problem(graph, Budget(budget)), DTR(heuristic=heuristic))
    assert solution.status is Status.FEASIBLE


def test_all_is_no_worse_than_each() -> None:
    graph = training_chain(20, size=10)
    problem = Problem(graph, Budget(baseline_of(graph).peak_bytes * 4 // 10))
    each = [solve(problem, DTR(heuristic=heuristic)).trace for heuristic in Heuristic.ALL.single]
    best = solve(problem, DTR()).trace
    assert best is not None
    assert best.time == min(trace.time for trace in each if trace is not None)


def test_a_run_with_more_memory_than_the_budget_may_give_the_better_plan() -> None:
    graph = prepare(GRAPHS / "unet.json", GraphOptions(mode="training")).graph
    problem = Problem(graph, Budget(baseline_of(graph).peak_bytes // 2))
    once, more = (solve(problem, DTR(Heuristic.LOCAL, candidates=candidates)).trace for candidates in (1, 4))
    assert once is not None
    assert more is not None
    assert more.time < once.time


def test_takes_ten_thousand_ops() -> None:
    graph = training_chain(5000)
    problem = Problem(graph, Budget(baseline_of(graph).peak_bytes // 2))
    assert solve(problem, DTR(Heuristic.EQ, candidates=1)).status is Status.FEASIBLE


def test_refuses_options_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="candidates"):
        DTR(candidates=-1)
    with pytest.raises(UsageError, match="limit"):
        DTR(limit=0.5)
    with pytest.raises(UsageError, match="time_limit"):
        DTR(time_limit=-1)
