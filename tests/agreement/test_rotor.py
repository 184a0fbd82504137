"""rotor's dynamic program against every persistent schedule of small chains, each replayed by the chain model's rules.

And on graphs: what it promises of a plan against the judge. The replay is written apart from the planner: it knows what
is stored, by name, and nothing of the recurrence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.schedule import with_frees
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.rotor.dp import RotorTable
from remat_cli.planners.rotor.needs import RotorNeeds
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.chain.linearisation import linearise
from remat_cli.planners.shared.chain.model import ChainStep, Operation
from remat_cli.prepare import prepare
from remat_cli.training import training_graph
from tests.graphs import graph_of, op, problems, training_graphs
from tests.paper_chains import Chain, rotor_needs
from tests.places import GRAPHS
from tests.seeds import seeds


@dataclass(frozen=True)
class Structure:
    """A persistent schedule of layers `first` to `last`: F_all and B around the rest, or a block run without grad.

    Attributes:
        first: layer.
        last: layer.
        middle: last layer of the block; None where it begins with F_all.
        rest: what comes next: layers first + 1 or middle + 1 to last; None for a single layer.
        again: the block, from its input; None where there is none.
    """

    first: int
    last: int
    middle: int | None
    rest: Structure | None
    again: Structure | None

    def steps(self) -> Iterator[ChainStep]:
        """Yield what is done, in order."""
        if self.middle is None:
            yield ChainStep(Operation.FORWARD_ALL, self.first)
        else:
            yield ChainStep(Operation.FORWARD_CHECK, self.first)
            for layer in range(self.first + 1, self.middle + 1):
                yield ChainStep(Operation.FORWARD_NONE, layer)
        if self.rest is not None:
            yield from self.rest.steps()
        if self.again is not None:
            yield from self.again.steps()
        if self.middle is None:
            yield ChainStep(Operation.BACKWARD, self.first)


def structures(first: int, last: int) -> Iterator[Structure]:
    """Every persistent schedule of some layers."""
    if first == last:
        yield Structure(first, last, None, None, None)
        return
    for rest in structures(first + 1, last):
        yield Structure(first, last, None, rest, None)
    for middle in range(first, last):
        for rest in structures(middle + 1, last):
            for again in structures(first, middle):
                yield Structure(first, last, middle, rest, again)


def structure_of(steps: Sequence[ChainStep]) -> Structure:
    """The structure that some steps are the steps of."""
    opening, first, last = steps[0].kind, steps[0].layer, max(step.layer for step in steps)
    if opening is Operation.FORWARD_ALL:
        assert steps[-1] == ChainStep(Operation.BACKWARD, first)
        return Structure(first, last, None, structure_of(steps[1:-1]) if first < last else None, None)
    begin = next(i for i, step in enumerate(steps) if i and step.kind is not Operation.FORWARD_NONE)
    # Of the block, the last step of what follows it is the backward of its first layer.
    end = steps.index(ChainStep(Operation.BACKWARD, steps[begin].layer)) + 1
    return Structure(first, last, first + begin - 1, structure_of(steps[begin:end]), structure_of(steps[end:]))


@dataclass(frozen=True)
class Cost:
    peak: int
    time: int


def replayed(chain: Chain, steps: Iterator[ChainStep]) -> Cost:
    """Carry out steps by the rules of the chain model; the chain's input is not counted."""
    sizes = {"a": chain.activation, "abar": chain.saved, "delta": chain.gradient}
    stored: set[tuple[str, int]] = {("a", 0), ("delta", len(chain))}
    peak = time = 0

    def memory(items: set[tuple[str, int]]) -> int:
        return sum(int(sizes[kind][layer]) for kind, layer in items if (kind, layer) != ("a", 0))

    for step in steps:
        layer = step.layer
        given = ("abar", layer - 1) if ("abar", layer - 1) in stored else ("a", layer - 1)
        assert given in stored, f"{step} does not find its input"
        before = set(stored)
        match step.kind:
            case Operation.FORWARD_ALL:
                is_closing = ("delta", layer) in stored and layer < len(chain)
                made = {("abar", layer)}
                extra = chain.block_end_need if is_closing else chain.saved + chain.forward_all_overhead
                overhead = int(extra[layer] - chain.saved[layer])
                spent = chain.block_end_time if is_closing else chain.forward_time
                gone: set[tuple[str, int]] = set()
            case Operation.FORWARD_CHECK | Operation.FORWARD_NONE:
                made, overhead = {("a", layer)}, int(chain.forward_none_overhead[layer])
                spent = chain.no_grad_time
                gone = {given} if step.kind is Operation.FORWARD_NONE else set()
                assert not gone or given[0] == "a"
            case Operation.BACKWARD:
                assert {("delta", layer), ("abar", layer)} <= stored, f"{step} does not find what it reads"
                made, overhead = {("delta", layer - 1)}, int(chain.backward_overhead[layer])
                spent = chain.backward_time
                gone = {("delta", layer), ("abar", layer)} | ({given} if given[0] == "a" else set())
        peak = max(peak, memory(before | made) + overhead)
        time += int(spent[layer])
        stored = (before | made) - gone
    assert stored == {("delta", 0)} | ({("a", 0)} & stored)
    return Cost(peak, time)


def random_chain(seed: int, layers: int) -> Chain:
    """A chain as the paper has it: overheads of F_all and F_none alike, abar no less than a, a loss that is last."""
    rng = random.Random(seed)

    def numbers(low: int, high: int) -> NDArray[np.int64]:
        return np.array([0, *(rng.randint(low, high) for _ in range(layers))], dtype=np.int64)

    activation = numbers(0, 4)
    activation[-1] = 0
    gradient = activation.copy() if rng.random() < 0.3 else numbers(0, 9)
    gradient[0], gradient[-1] = rng.randint(0, 2), 0
    overhead = numbers(0, rng.choice([3, 9]))
    forward_time = numbers(0, 4)
    chain = Chain(
        activation=activation,
        saved=activation + numbers(0, 4),
        gradient=gradient,
        forward_time=forward_time,
        no_grad_time=forward_time if rng.random() < 0.5 else np.maximum(forward_time - numbers(0, 2), 0),
        backward_time=numbers(0, 4),
        forward_all_overhead=overhead,
        forward_none_overhead=overhead,
        backward_overhead=numbers(-1, 3),
    )
    if rng.random() < 0.5:
        return chain
    closing_need = np.maximum(chain.all_need - numbers(0, 2), 0)
    closing_time = np.maximum(forward_time - numbers(0, 2), 0)
    closing_need[-1], closing_time[-1] = chain.all_need[-1], forward_time[-1]
    return replace(chain, closing_need=closing_need, closing_time=closing_time)


def needed(needs: RotorNeeds, structure: Structure, *, again: bool = False) -> int:
    """The least m for which the recurrence admits a structure, whose input is made for it or was there already."""
    first, last = structure.first, structure.last
    held = int(needs.gradient[last])
    if structure.rest is None:
        return max(int(needs.closing_need[first]) + held, int(needs.backward_need[first]), 0)
    rest = needed(needs, structure.rest)
    if structure.middle is None:
        around = max(int(needs.all_need[first]) + held, int(needs.backward_need[first]), 0)
        return max(around, rest + int(needs.saved[first]))
    assert structure.again is not None
    checked = max(int(needs.check_need[first, last - 1]) + held, 0)
    inside = max(checked, rest + int(needs.kept[first, structure.middle]), needed(needs, structure.again, again=True))
    return inside if again else inside + int(needs.passing[first - 1])


def predicted_time(needs: RotorNeeds, structure: Structure) -> int:
    """The time of a structure by the recurrence."""
    first, middle = structure.first, structure.middle
    backward = int(needs.backward_time[first])
    if structure.rest is None:
        return int(needs.closing_time[first]) + backward
    rest = predicted_time(needs, structure.rest)
    if middle is None:
        return int(needs.forward_time[first]) + rest + backward
    assert structure.again is not None
    return int(needs.no_grad_time[first : middle + 1].sum()) + rest + predicted_time(needs, structure.again)


@pytest.mark.parametrize("seed", seeds(40))
def test_recurrence_and_replay_agree_on_every_structure(seed: int) -> None:
    chain = random_chain(seed, layers=3 + seed % 3)
    needs = rotor_needs(chain)
    for structure in structures(1, len(chain)):
        cost = replayed(chain, structure.steps())
        assert needed(needs, structure) == max(cost.peak, 0)
        assert predicted_time(needs, structure) == cost.time


@pytest.mark.parametrize("seed", seeds(240))
def test_least_time_in_every_amount_of_memory_is_that_of_the_best_structure(seed: int) -> None:
    chain = random_chain(1000 + seed, layers=(2, 3, 4, 5, 5, 5)[seed % 6])
    costs = [replayed(chain, structure.steps()) for structure in structures(1, len(chain))]
    most = max(cost.peak for cost in costs)
    table = RotorTable(rotor_needs(chain), unit=1, slots=max(most, 0))
    for m, time in enumerate(table.times):
        assert time == min((cost.time for cost in costs if cost.peak <= m), default=np.inf)
        if np.isfinite(time):
            cost = replayed(chain, iter(table.steps(m)))
            assert cost.time == time
            assert cost.peak <= m


@pytest.mark.parametrize("seed", seeds(40))
@pytest.mark.parametrize("unit", [2, 3])
def test_sizes_are_rounded_up(seed: int, unit: int) -> None:
    chain = random_chain(2000 + seed, layers=4)
    exact = RotorTable(rotor_needs(chain), unit=1, slots=60)
    coarse = RotorTable(rotor_needs(chain), unit=unit, slots=60 // unit)
    for m, time in enumerate(coarse.times):
        assert time >= exact.times[m * unit]
        if np.isfinite(time):
            assert replayed(chain, iter(coarse.steps(m))).peak <= m * unit


def trace_of(graph: Graph, computes: list[str]) -> Trace:
    return simulate(graph, with_frees(graph, computes))


@st.composite
def sparse_graphs(draw: st.DrawFn) -> Graph:
    """Training graphs that are nearly chains, whose backward reads little: much is only handed on."""
    length = draw(st.integers(3, 5))
    ops = []
    for number in range(length):
        skip = draw(st.integers(-1, number - 1))
        reads = f"t{number - 1}" if number else "x"
        reads += f" t{skip}" if 0 <= skip < number - 1 else ""
        kept = draw(st.sampled_from(["", "", f"t{number}", reads]))
        saves = tuple(kept.split())
        ops.append(op(f"f{number}", reads, f"t{number}", time=draw(st.integers(1, 4)), saves=saves, grad_time=1))
    sizes = {f"t{number}": draw(st.integers(1, 5)) for number in range(length)}
    forward = graph_of(*ops, sizes=sizes, kind=Kind.FORWARD, outputs=[f"t{length - 1}"])
    return training_graph(forward)


@st.composite
def graphs_by_value(draw: st.DrawFn) -> Graph:
    """Training graphs with one backward op a forward value: it reads what the value's readers made and their gradients.

    So it is in the public data sets of rematerialization: the backward of a value belongs to the op that reads it.
    """
    length = draw(st.integers(3, 5))
    readers = {number: [number + 1] for number in range(length - 1)}
    for number in range(length - 2):
        readers[number] += draw(st.lists(st.integers(number + 2, length - 1), unique=True, max_size=1))
    reads = {number: [source for source in readers if number in readers[source]] for number in range(length)}
    forward = [
        op(f"f{number}", " ".join(f"t{source}" for source in reads[number]), f"t{number}", time=draw(st.integers(1, 4)))
        for number in range(length)
    ]
    loss = op("loss", f"t{length - 1}", f"g{length - 1}", phase=Phase.BACKWARD)
    backward = [
        op(
            f"b{number}",
            " ".join([f"t{number}", *(f"t{reader} g{reader}" for reader in readers[number])]),
            f"g{number}",
            phase=Phase.BACKWARD,
            grad_of=draw(st.sampled_from([None, f"f{number}"])),
        )
        for number in reversed(range(length - 1))
    ]
    sizes = {f"{kind}{number}": draw(st.integers(1, 5)) for kind in "tg" for number in range(length)}
    return graph_of(*forward, loss, *backward, sizes=sizes, kind=Kind.TRAINING)


SMALL_GRAPHS = training_graphs(max_forward_ops=5) | sparse_graphs() | graphs_by_value()


@pytest.mark.parametrize("cuts", Cuts)
@given(graph=SMALL_GRAPHS)
def test_graphs_need_no_more_than_the_recurrence_says_of_any_structure(cuts: Cuts, graph: Graph) -> None:
    linearised = linearise(graph, "a test", cuts, 4)
    needs = RotorNeeds.measured(linearised.gauge)
    for structure in structures(1, len(linearised)):
        trace = trace_of(graph, linearised.computes(list(structure.steps())))
        assert trace.peak_bytes <= linearised.base_bytes + needed(needs, structure)
        assert trace.time <= linearised.base_time + predicted_time(needs, structure)


@pytest.mark.parametrize("cuts", Cuts)
@given(graph=SMALL_GRAPHS)
def test_table_of_a_graph_is_that_of_the_best_structure(cuts: Cuts, graph: Graph) -> None:
    linearised = linearise(graph, "a test", cuts, 4)
    needs = RotorNeeds.measured(linearised.gauge)
    costs = [Cost(needed(needs, each), predicted_time(needs, each)) for each in structures(1, len(linearised))]
    table = RotorTable(needs, unit=1, slots=max(cost.peak for cost in costs))
    for m, time in enumerate(table.times):
        assert time == min((cost.time for cost in costs if cost.peak <= m), default=np.inf)
        if np.isfinite(time):
            structure = structure_of(table.steps(m))
            assert needed(needs, structure) <= m
            assert predicted_time(needs, structure) == time


@pytest.mark.parametrize("cuts", Cuts)
@given(graph=training_graphs(max_forward_ops=7) | SMALL_GRAPHS, slots=st.sampled_from([9, 60]))
def test_graphs_need_no_more_than_the_table_says(cuts: Cuts, graph: Graph, slots: int) -> None:
    linearised = linearise(graph, "a test", cuts, 20)
    table = RotorTable.of(RotorNeeds.measured(linearised.gauge), slots)
    for m, time in enumerate(table.times):
        if np.isfinite(time) and (m == 0 or time < table.times[m - 1]):
            trace = trace_of(graph, linearised.computes(table.steps(m)))
            assert trace.peak_bytes <= linearised.base_bytes + m * table.unit
            assert trace.time <= linearised.base_time + time


VARIANTS = [
    Rotor(),
    Rotor(cuts=Cuts.SINGLE),
    Rotor(improve=False),
    Rotor(slots=7),
    Rotor(segments=2),
    Rotor(candidates=2),
]


@pytest.mark.parametrize("planner", VARIANTS, ids=str)
@given(problem=problems(training_graphs(max_forward_ops=7)))
def test_whatever_the_options_plans_fit(planner: Rotor, problem: Problem) -> None:
    with suppress(PlannerRefuses):
        solve(problem, planner)  # raises FalseClaim on a plan that does not


@pytest.fixture(scope="module", params=["resnet50", "gpt", "unet"])
def real_graph(request: pytest.FixtureRequest) -> Graph:
    return prepare(GRAPHS / f"{request.param}.json", GraphOptions()).graph


@pytest.mark.parametrize("percent", [90, 60])
@pytest.mark.parametrize("improve", [False, True])
def test_real_graphs_fit_with_little_overhead(real_graph: Graph, percent: int, improve: bool) -> None:
    budget = baseline_of(real_graph).peak_bytes * percent // 100
    solution = solve(Problem(real_graph, Budget(budget)), Rotor(improve=improve))
    assert solution.trace is not None
    assert solution.trace.peak_bytes <= budget
    assert solution.overhead is not None
    assert solution.overhead < (0.02 if percent == 90 else 0.16)
