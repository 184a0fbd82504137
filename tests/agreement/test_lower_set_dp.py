"""The dynamic program against every chain of its family, with equations 1 and 2 written out over plain sets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from remat_cli.core.graph import Graph, Kind, Op, Phase, Tensor, build_graph
from remat_cli.planners.published.lower_sets.dp import LowerSetDP
from remat_cli.planners.published.lower_sets.exhaustive import Chains
from remat_cli.planners.published.lower_sets.families import LowerSets, all_lower_sets, pruned_family
from remat_cli.planners.published.lower_sets.options import Strategy
from remat_cli.planners.published.lower_sets.transitions import Steps
from remat_cli.planners.shared.forward_part import ForwardPart
from tests.seeds import seeds

Set = frozenset[int]


@dataclass(frozen=True)
class Dag:
    """A forward graph as plain sets: sizes, times, and who reads whom."""

    sizes: list[int]
    times: list[int]
    reads: list[set[int]]

    def successors(self, members: Set) -> Set:
        return frozenset(v for v, sources in enumerate(self.reads) if sources & members)

    def predecessors(self, members: Set) -> Set:
        return frozenset(u for v in members for u in self.reads[v])

    def bytes(self, members: Set) -> int:
        return sum(self.sizes[v] for v in members)

    def boundary(self, members: Set) -> Set:
        return frozenset(u for u in members if self.successors(frozenset([u])) - members)

    @property
    def everything(self) -> Set:
        return frozenset(range(len(self.sizes)))


@dataclass(frozen=True)
class Chain:
    peak: int
    overhead: int


def random_dag(seed: int, size: int = 7) -> Dag:
    rng = random.Random(seed)
    density = rng.choice([0.2, 0.4, 0.6])
    return Dag(
        sizes=[rng.randint(1, 9) for _ in range(size)],
        times=[rng.choice([1, 1, 10]) for _ in range(size)],
        reads=[{u for u in range(v) if rng.random() < density} for v in range(size)],
    )


def training_graph_of(dag: Dag) -> Graph:
    """A graph whose forward part is the DAG; its backward plays no part in equations 1 and 2."""
    count = len(dag.sizes)
    forward = [
        Op(f"f{v}", "", tuple(f"y{u}" for u in sorted(dag.reads[v])), (f"y{v}",), dag.times[v]) for v in range(count)
    ]
    backward = [
        Op(f"b{v}", "", (f"y{v}",), (f"g{v}",), 1, phase=Phase.BACKWARD, grad_of=f"f{v}")
        for v in reversed(range(count))
    ]
    tensors = [Tensor(f"y{v}", dag.sizes[v]) for v in range(count)] + [Tensor(f"g{v}", 1) for v in range(count)]
    return build_graph(
        name="dag", kind=Kind.TRAINING, time_unit="unit", resident_bytes=0, tensors=tensors, ops=[*forward, *backward]
    )


def family_of(dag: Dag) -> list[Set]:
    """The pruned family: each vertex with all its ancestors, and V."""
    ancestors: list[Set] = []
    for v in range(len(dag.sizes)):
        ancestors.append(frozenset([v]).union(*(ancestors[u] for u in dag.reads[v])))
    return sorted({*ancestors, dag.everything}, key=len)


def chains(dag: Dag, family: list[Set]) -> Iterator[Chain]:
    """Every chain of the family from {} to V, with its peak by equation 2 and its overhead by equation 1."""

    def extend(last: Set, cached: Set, peak: int, overhead: int) -> Iterator[Chain]:
        if last == dag.everything:
            yield Chain(peak, overhead)
        for grown in family:
            if last < grown:
                block = grown - last
                after = dag.successors(grown)
                needed = (
                    dag.bytes(cached)
                    + 2 * dag.bytes(block)
                    + dag.bytes(after - grown)
                    + dag.bytes(dag.predecessors(after) - grown)
                )
                boundary = dag.boundary(grown)
                recomputed = sum(dag.times[v] for v in block - boundary)
                yield from extend(grown, cached | boundary, max(peak, needed), overhead + recomputed)

    yield from extend(frozenset(), frozenset(), 0, 0)


def every_lower_set_of(dag: Dag) -> list[Set]:
    """All of them, from all subsets of the vertices."""
    subsets = (frozenset(some) for size in range(1, len(dag.sizes) + 1) for some in combinations(dag.everything, size))
    return [members for members in subsets if dag.predecessors(members) <= members]


@dataclass(frozen=True)
class Family:
    """A family of lower sets, as the planners make it and as it is meant."""

    made: Callable[[ForwardPart], LowerSets]
    meant: Callable[[Dag], list[Set]]
    size: int  # of the DAGs that it is tried on


FAMILIES = {
    "pruned": Family(pruned_family, family_of, 7),
    "all": Family(lambda forward: all_lower_sets(forward, most=100), every_lower_set_of, 6),
}


def forward_part_of(dag: Dag) -> ForwardPart:
    return ForwardPart.of(training_graph_of(dag), "a test")


def dp_of(dag: Dag, family: str = "pruned", slots: int = 1000) -> LowerSetDP:
    return LowerSetDP(FAMILIES[family].made(forward_part_of(dag)), slots)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", seeds(60))
def test_family_is_what_it_is_meant_to_be(seed: int, family: str) -> None:
    dag = random_dag(seed, FAMILIES[family].size)
    sets = FAMILIES[family].made(forward_part_of(dag))
    made = [frozenset(row.nonzero()[0].tolist()) for row in sets.members]
    assert set(made) == {frozenset(), *FAMILIES[family].meant(dag)}
    assert len(made) == len(set(made))
    assert [len(members) for members in made] == sorted(len(members) for members in made)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", seeds(120))
def test_smallest_budget_and_both_strategies_agree_with_every_chain(seed: int, family: str) -> None:
    dag = random_dag(seed, FAMILIES[family].size)
    every = list(chains(dag, FAMILIES[family].meant(dag)))
    dp = dp_of(dag, family)
    smallest = min(chain.peak for chain in every)
    assert dp.smallest_budget() == smallest
    assert dp.smallest_budget(known=dp_of(dag).smallest_budget()) == smallest
    for budget in sorted({smallest, smallest + 3, max(chain.peak for chain in every)}):
        fitting = [chain.overhead for chain in every if chain.peak <= budget]
        for strategy, best in ((Strategy.TIME, min(fitting)), (Strategy.MEMORY, max(fitting))):
            chain = dp.chain(budget, strategy)
            assert chain is not None
            answer = replayed(dag, dp.sets, chain)
            assert answer.overhead == dp.overhead(chain) == best
            assert answer.peak <= budget


@pytest.mark.parametrize("seed", seeds(120))
def test_exhaustive_lists_every_chain(seed: int) -> None:
    dag = random_dag(seed, size=6)
    every = sorted((chain.peak, chain.overhead) for chain in chains(dag, every_lower_set_of(dag)))
    listed = Chains(forward_part_of(dag), None, most=100_000).all()
    assert sorted((chain.peak, chain.overhead) for chain in listed) == every
    budget = every[len(every) // 2][0]
    within = Chains(forward_part_of(dag), budget, most=100_000).all()
    assert sorted((chain.peak, chain.overhead) for chain in within) == [each for each in every if each[0] <= budget]


@pytest.mark.parametrize("seed", seeds(20))
def test_step_costs_are_those_of_sets(seed: int) -> None:
    # More vertices than bits in a word, and boundaries of more vertices than one look-up takes.
    rng = random.Random(seed)
    count = 80
    dag = Dag(
        sizes=[rng.randint(1, 10**10) for _ in range(count)],
        times=[rng.randint(0, 10**6) for _ in range(count)],
        reads=[{u for u in range(v) if rng.random() < 0.05} for v in range(count)],
    )
    sets = LowerSets.of(forward_part_of(dag), np.array([closed(dag, rng) for _ in range(25)]))
    steps = Steps.within(sets, sets.forward.time, budget=10**14)
    as_sets = [frozenset(row.nonzero()[0].tolist()) for row in sets.members]
    assert max(len(dag.boundary(members)) for members in as_sets) > 8
    for target, members in enumerate(as_sets):
        found = steps.into[target]
        assert found.source.tolist() == [source for source, other in enumerate(as_sets) if other < members]
        kept = [dag.boundary(members) - as_sets[source] for source in found.source]
        assert found.cached.tolist() == [dag.bytes(vertices) for vertices in kept]
        assert found.kept.tolist() == [sum(dag.times[v] for v in vertices) for vertices in kept]


def closed(dag: Dag, rng: random.Random) -> list[bool]:
    """A random lower set, as flags."""
    members = set(rng.sample(sorted(dag.everything), rng.randint(1, 40)))
    for v in reversed(range(len(dag.sizes))):
        members |= dag.reads[v] if v in members else set()
    return [v in members for v in range(len(dag.sizes))]


@pytest.mark.parametrize("seed", seeds(20))
def test_below_the_smallest_budget_there_is_no_chain(seed: int) -> None:
    dp = dp_of(random_dag(seed))
    below = dp.smallest_budget() - 1
    assert not dp.is_feasible(below)
    assert dp.chain(below, Strategy.TIME) is None
    assert dp.chain(below, Strategy.MEMORY) is None


def replayed(dag: Dag, sets: LowerSets, chain: list[int]) -> Chain:
    """Peak and overhead of one chain, given by the numbers of its sets."""
    steps = [frozenset(int(v) for v in sets.members[number].nonzero()[0]) for number in chain]
    return next(iter(chains(dag, steps)))


def test_replaying_takes_the_chain_step_by_step() -> None:
    # `chains` yields the longest chain of a totally ordered family first: the one that takes every step.
    dag = Dag(sizes=[1, 2], times=[3, 4], reads=[set(), {0}])
    assert next(iter(chains(dag, [frozenset([0]), frozenset([0, 1])]))) == Chain(peak=1 + 2 * 2, overhead=4)
