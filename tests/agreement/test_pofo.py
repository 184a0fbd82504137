"""POFO's recurrences and dynamic program against every structure of small chains, each run by an event simulator.

The simulator moves data as the fluid model does, in exact numbers, and knows nothing of the recurrences: it walks the
operations of a structure, with the data that each reads, makes and frees, on a compute stream and a link.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import inf
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.solve import baseline_of
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.pofo.dp import PofoTable
from remat_cli.planners.pofo.model import FluidCosts, FluidNeeds
from remat_cli.planners.pofo.structure import (
    Block,
    Checkpoint,
    KeepFirst,
    Recomputation,
    Structure,
    fluid_time,
    recomputation_time,
    recomputed,
)
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.chain.linearisation import Linearised, linearise
from remat_cli.planners.shared.chain.model import ChainStep, Operation
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.transfers import OffloadSequence
from tests.graphs import graph_of, op, problems, training_graphs
from tests.paper_chains import Chain, fluid_needs
from tests.seeds import seeds

RATES = [Fraction(1), Fraction(2), Fraction(3, 7), Fraction(1, 6)]
Data = tuple[str, int]
Numbers: TypeAlias = NDArray[np.int64]


def random_chain(rng: random.Random, layers: int) -> Chain:
    """A chain of so many layers, the loss among them; small numbers, so that ties and exact fits are common."""

    def numbers(low: int, high: int, *zero: int) -> Numbers:
        drawn = [0 if i in zero else rng.randint(low, high) for i in range(layers + 1)]
        return np.array(drawn, dtype=np.int64)

    def overheads() -> Numbers:
        # Large ones now and then: a structure is told from another by an op in its middle only where that needs much.
        return np.array([0, *(rng.choice([0, 0, 1, 2, 7]) for _ in range(layers))], dtype=np.int64)

    activation = numbers(1, 4, layers)
    activation[0] = rng.choice([0, 0, 2])
    saved = (activation + numbers(0, 4)) * (np.arange(layers + 1) > 0)
    forward_overhead = overheads()
    return Chain(
        activation=activation,
        saved=saved,
        gradient=numbers(0, 3, layers),
        forward_time=numbers(0, 4, 0),
        no_grad_time=numbers(0, 4, 0),
        backward_time=numbers(0, 5, 0),
        forward_all_overhead=forward_overhead,
        forward_none_overhead=overheads(),
        backward_overhead=overheads(),
        closing_need=np.maximum(saved + forward_overhead - numbers(0, 2, layers), 0),
        closing_time=numbers(0, 4, 0),
    )


def recomputations(first: int, last: int) -> Iterator[Recomputation]:
    """Every way to recompute the layers `first` to `last`."""
    if first == last:
        yield KeepFirst(first, None)
        return
    for rest in recomputations(first + 1, last):
        yield KeepFirst(first, rest)
    for cut in range(first, last):
        for again in recomputations(first, cut):
            for rest in recomputations(cut + 1, last):
                yield Checkpoint(again, rest)


def structures(layers: int) -> Iterator[Structure]:
    """Every structure of a chain of so many layers, the last of which is the loss."""

    def blocks_from(first: int) -> Iterator[tuple[Block, ...]]:
        if first == layers:
            yield ()
            return
        for last in range(first, layers):
            ways: list[Recomputation | None] = [*recomputations(first, last)]
            if last == first:
                ways.append(None)
            for rest in blocks_from(last + 1):
                for way in ways:
                    for offloaded in (False, True) if first > 1 else (False,):
                        yield (Block(first, last, offloaded, way), *rest)

    for blocks in blocks_from(1):
        yield Structure(blocks, layers)


@cache
def all_structures(layers: int) -> Sequence[Structure]:
    return tuple(structures(layers))


@dataclass
class Device:
    """The data of a chain that is in memory, by what each operation reads, makes and frees."""

    chain: Chain
    stored: dict[Data, int]

    def bytes(self) -> int:
        return sum(self.stored.values())

    def size(self, data: Data) -> int:
        kind, layer = data
        sizes = {"a": self.chain.activation, "abar": self.chain.saved, "delta": self.chain.gradient}
        return int(sizes[kind][layer])

    def make(self, data: Data) -> None:
        assert data not in self.stored
        self.stored[data] = self.size(data)

    def input_of(self, layer: int) -> Data:
        (found,) = [data for data in (("a", layer - 1), ("abar", layer - 1)) if data in self.stored]
        return found

    def run(self, step: ChainStep) -> tuple[int, int]:
        """Carry out one operation; return its time and the bytes in memory meanwhile."""
        before, read = self.bytes(), self.input_of(step.layer)
        match step.kind:
            case Operation.FORWARD_ALL:
                time, overhead = self._run_all(step.layer, before)
            case Operation.BACKWARD:
                assert ("delta", step.layer) in self.stored
                self.make(("delta", step.layer - 1))
                time, overhead = self.chain.backward_time, self.chain.backward_overhead
            case _:
                self.make(("a", step.layer))
                time, overhead = self.chain.no_grad_time, self.chain.forward_none_overhead
        memory = self.bytes() + int(overhead[step.layer])
        if step.kind in (Operation.FORWARD_NONE, Operation.BACKWARD) and read[0] == "a":
            del self.stored[read]
        if step.kind is Operation.BACKWARD:
            del self.stored["delta", step.layer], self.stored["abar", step.layer]
        return int(time[step.layer]), memory

    def _run_all(self, layer: int, before: int) -> tuple[Numbers, Numbers]:
        self.make(("abar", layer))
        if ("delta", layer) not in self.stored:
            return self.chain.forward_time, self.chain.forward_all_overhead
        # The layers after it are done, so its activation is not needed as such.
        return self.chain.block_end_time, self.chain.block_end_need - (self.bytes() - before)


@dataclass
class Stream:
    """Operations and transfers one after the other, in either direction of time.

    Attributes:
        memory: M.
        rate: of the link.
        now: end of the last operation.
        link_free: when the last transfer that was asked for ends.
        leaving: bytes and start of each transfer.
    """

    memory: int
    rate: Fraction
    now: Fraction = Fraction(0)
    link_free: Fraction = Fraction(0)
    leaving: list[tuple[Fraction, Fraction]] = field(default_factory=list)

    def transfer(self, size: int, since: Fraction) -> None:
        """Let `size` bytes leave, one transfer after the other, which may have begun when they were made."""
        start = max(self.link_free, since)
        self.link_free = start + size / self.rate
        self.leaving.append((Fraction(size), start))

    def pending(self) -> Fraction:
        """Bytes that are in the way now."""
        total = Fraction(0)
        for size, start in self.leaving:
            gone = self.rate * max(self.now - start, Fraction(0))
            total += max(size - gone, Fraction(0))
        return total

    def run(self, time: int, memory: int) -> bool:
        """Run an operation as soon as there is room for it; tell whether there ever is."""
        if memory > self.memory:
            return False
        self.now += max(memory + self.pending() - self.memory, Fraction(0)) / self.rate + time
        return True


def simulated(chain: Chain, memory: int, rate: Fraction, structure: Structure) -> Fraction | float:
    """Time of one structure; infinite where it does not fit."""
    device = Device(chain, {})
    device.make(("a", 0))
    forward = Stream(memory, rate)
    items = structure.items()
    names = [("abar" if item.saved else "a", item.layer) for item in items]
    for block, item in zip(structure.blocks, names, strict=False):
        produced_at = forward.now
        kind = Operation.FORWARD_ALL if block.recomputation is None else Operation.FORWARD_CHECK
        steps = [ChainStep(kind, block.first)]
        steps += [ChainStep(Operation.FORWARD_NONE, layer) for layer in range(block.first + 1, block.last + 1)]
        for step in steps:
            if not forward.run(*device.run(step)):
                return inf
            if step.layer == block.first and block.offloaded:
                forward.transfer(device.stored.pop(item), produced_at)
    if not forward.run(*device.run(ChainStep(Operation.FORWARD_ALL, structure.loss))):
        return inf
    device.make(("delta", structure.loss))
    backward = [([device.run(ChainStep(Operation.BACKWARD, structure.loss))], 0)]
    for block, item in reversed([*zip(structure.blocks, names, strict=False)]):
        if block.offloaded:
            device.make(item)
        ops = [device.run(step) for step in backward_steps(block)]
        backward.append((ops, device.size(item) if block.offloaded else 0))
    assert device.stored.keys() == {("delta", 0)}
    # What comes back, seen from the end of time, leaves: it was not there before the block that wants it.
    reverse = Stream(memory, rate)
    for ops, size in reversed(backward):
        if not all(reverse.run(*op) for op in reversed(ops)):
            return inf
        reverse.transfer(size, reverse.now)
    return forward.now + forward.pending() / rate + reverse.pending() / rate + reverse.now


def backward_steps(block: Block) -> Sequence[ChainStep]:
    if block.recomputation is None:
        return [ChainStep(Operation.BACKWARD, block.first)]
    return [*recomputed(block.recomputation)]


@pytest.mark.parametrize("seed", seeds(60))
def test_recurrences_along_each_structure_are_its_simulated_time(seed: int) -> None:
    rng = random.Random(seed)
    layers = rng.randint(3, 4)
    chain, rate = random_chain(rng, layers), rng.choice(RATES)
    for memory in rng.sample(range(5, 30), 4):
        model = FluidCosts(fluid_needs(chain), memory, rate)
        for structure in all_structures(layers):
            assert fluid_time(model, structure) == simulated(chain, memory, rate, structure)


@pytest.mark.parametrize("seed", seeds(60))
def test_recompute_costs_of_each_tree_are_its_simulated_time(seed: int) -> None:
    rng = random.Random(seed)
    last = rng.choice([2, 3, 4, 4, 4])
    chain, rate = random_chain(rng, last + 1), rng.choice(RATES)
    pending = rng.randint(0, 25)
    for memory in rng.sample(range(5, 30), 4):
        model = FluidCosts(fluid_needs(chain), memory, rate)
        for first in range(1, last + 1):
            kept = int(chain.activation[first - 1])
            for part in recomputations(first, last):
                expected = simulated_recomputation(chain, memory, rate, part, last, pending)
                assert recomputation_time(model, part, last, kept, pending, reopened=True) == expected


def simulated_recomputation(
    chain: Chain, memory: int, rate: Fraction, part: Recomputation, last: int, pending: int
) -> Fraction | float:
    """Time of a recomputation at whose end `pending` bytes must be back; its input is a plain activation."""
    device = Device(chain, {})
    device.make(("a", part.first - 1))
    device.make(("delta", last))
    ops = [device.run(step) for step in recomputed(part)]
    reverse = Stream(memory, rate)
    reverse.transfer(pending, reverse.now)
    return reverse.now if all(reverse.run(*op) for op in reversed(ops)) else inf


@pytest.mark.parametrize("seed", seeds(60))
def test_dynamic_program_finds_the_best_structure(seed: int) -> None:
    """Whole rates and whole numbers lead to whole bytes, so that a grid of bytes is exact."""
    rng = random.Random(seed)
    layers = rng.choice([2, 3, 4, 4, 5])
    chain, rate = random_chain(rng, layers), rng.choice([1, 2, 3])
    for memory in rng.sample(range(5, 30), 3):
        table = PofoTable(fluid_needs(chain), memory, rate, slots=memory)
        for reserved in (0, 3):
            times = [simulated(chain, memory - reserved, Fraction(rate), each) for each in all_structures(layers)]
            assert table.time(reserved) == pytest.approx(float(min(times)))
            if min(times) < inf:
                model = FluidCosts(fluid_needs(chain), memory - reserved, Fraction(rate))
                assert fluid_time(model, table.structure(reserved)) == min(times)


@pytest.mark.parametrize("seed", seeds(20))
def test_structure_has_the_time_that_the_table_says(seed: int) -> None:
    rng = random.Random(seed)
    chain, rate, memory = random_chain(rng, rng.randint(5, 10)), rng.choice([1, 2, 3]), 50
    # A large loss leaves room for little, so that most is recomputed after it.
    chain.backward_overhead[-1] = rng.choice([0, 12, 24])
    table = PofoTable(fluid_needs(chain), memory, rate, slots=memory)
    fitting = [reserved for reserved in range(memory) if table.time(reserved) < inf]
    assert fitting
    for reserved in fitting:
        model = FluidCosts(fluid_needs(chain), memory - reserved, Fraction(rate))
        assert float(fluid_time(model, table.structure(reserved))) == pytest.approx(table.time(reserved))


@pytest.mark.parametrize("seed", seeds(100))
def test_on_a_coarse_grid_a_structure_is_no_slower_than_the_table_says(seed: int) -> None:
    rng = random.Random(seed)
    chain, rate = random_chain(rng, rng.randint(3, 6)), rng.choice(RATES)
    memory, slots = rng.randint(10, 30), rng.choice([8, 15, 30])
    table = PofoTable(fluid_needs(chain), memory, float(rate), slots)
    if table.time() < inf:
        time = simulated(chain, memory, rate, table.structure())
        assert float(time) <= table.time() + 1e-6
        assert time == fluid_time(FluidCosts(fluid_needs(chain), memory, rate), table.structure())


def deep_graph(rng: random.Random, length: int) -> Graph:
    """A training chain with skips over one op, whose backward reads some of what each op reads and makes."""
    forward, backward = [], [op("loss", f"t{length}", f"g{length}", time=0, phase=Phase.BACKWARD)]
    for i in range(1, length + 1):
        reads = [f"t{i - 1}"] if i > 1 else []
        if i > 2 and rng.random() < 0.3:
            reads.append(f"t{i - 2}")
        forward.append(op(f"f{i}", " ".join(reads), f"t{i}", time=rng.randint(1, 4)))
        saved = [name for name in (*reads, f"t{i}") if rng.random() < 0.5]
        made = f"g{i - 1}"
        backward.insert(1, op(f"b{i}", " ".join([f"g{i}", *saved]), made, time=rng.randint(1, 4), phase=Phase.BACKWARD))
    sizes = {f"{kind}{i}": rng.randint(1, most) for kind, most in (("t", 6), ("g", 2)) for i in range(length + 1)}
    return graph_of(*forward, *backward, sizes=sizes, kind=Kind.TRAINING)


@pytest.mark.parametrize("cuts", [Cuts.SINGLE, Cuts.EVERY])
@pytest.mark.parametrize("seed", range(12))
def test_structures_of_a_deep_graph_fit_as_whole_tensors(seed: int, cuts: Cuts) -> None:
    rng = random.Random(seed)
    graph = deep_graph(rng, length=9)
    check_that_structures_fit(Problem(graph, Budget(baseline_of(graph).peak_bytes - 1)), cuts, rng.choice(RATES))


@given(problem=problems(training_graphs(max_forward_ops=10)), cuts=st.sampled_from(Cuts), rate=st.sampled_from(RATES))
def test_structures_of_any_graph_fit_as_whole_tensors(problem: Problem, cuts: Cuts, rate: Fraction) -> None:
    with suppress(PlannerRefuses):
        check_that_structures_fit(problem, cuts, rate)


def check_that_structures_fit(problem: Problem, cuts: Cuts, rate: Fraction) -> None:
    """Check that what the model says of memory, in drops and for layers as measured, holds on the graph."""
    linearised = linearise(problem.graph, "a test", cuts, segments=50)
    memory = problem.budget.device_bytes - linearised.base_bytes
    if memory < 0:
        return
    needs = FluidNeeds.measured(linearised.gauge)
    # A slot is a byte.
    table = PofoTable(needs, memory, float(rate), slots=memory + 1)
    for reserved in range(memory):
        if table.time(reserved) == inf:
            break
        structure = table.structure(reserved)
        assert float(fluid_time(FluidCosts(needs, memory - reserved, rate), structure)) <= table.time(reserved) + 1e-6
        tensors = offloaded_tensors(linearised, structure)
        sequence = RematSequence.of_names(problem.graph, linearised.computes(structure.steps()))
        assert (
            OffloadSequence.moving_named(sequence, tensors, rate).least_bytes <= problem.budget.device_bytes - reserved
        )


def offloaded_tensors(linearised: Linearised, structure: Structure) -> set[str]:
    names = linearised.graph.arrays.tensor_names
    layers = linearised.cut.layers
    items = structure.offloaded()
    whole = {names[t] for item in items if item.saved for t in layers[item.layer].saved}
    return whole | {names[t] for item in items for t in layers[item.layer].activation}
