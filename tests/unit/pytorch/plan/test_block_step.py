"""The choice among plans of regions, with inputs on the host, held against the judge and against all choices."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Kind, Op, Tensor, build_graph
from remat_cli.core.link import Duplex, Link
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.pytorch.plan.block_step import ALL_INPUTS, ANYTHING, NOTHING, BlockStep, ChosenPlans, CurvePoint
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.rehearsal import Moment
from tests.bench.torch_hosted import LINKS, compared, llama_curve, llama_step

_ANY = build_graph(
    name="any",
    kind=Kind.TRAINING,
    time_unit="ns",
    resident_bytes=0,
    tensors=[Tensor("t", 1)],
    ops=[Op("op", "Op", (), ("t",), 1)],
    outputs=["t"],
)
PLANNED = GraphRecord.of(_ANY, plain_run(_ANY), simulate(_ANY, plain_run(_ANY)))


def point(kept: int, forward: int, backward: int, forward_time: int, backward_time: int) -> CurvePoint:
    return CurvePoint(PLANNED, kept, kept + forward, kept + backward, forward_time + backward_time, forward_time, 0)


@st.composite
def steps(draw: st.DrawFn) -> BlockStep:
    """Draw a step of a few regions in a row, with two plans each, and a link."""
    count = draw(st.integers(1, 3))
    numbers = st.integers(0, 30)
    inputs = [draw(numbers) for _ in range(count)]
    curves = []
    for _ in range(count):
        forward_time, backward_time = draw(st.integers(1, 20)), draw(st.integers(1, 20))
        plain = point(draw(numbers) + 10, draw(numbers), draw(numbers), forward_time, backward_time)
        tight = point(draw(st.integers(0, 10)), draw(numbers), draw(numbers), forward_time, 2 * backward_time)
        curves.append((plain, tight))
    moments: dict[Moment, int] = {Moment(frozenset()): draw(numbers)}
    held: frozenset[int] = frozenset()
    for place in range(count):
        # While it runs, what it is given is there.
        moments[Moment(held, (place, "forward"))] = inputs[place] + draw(numbers)
        held |= {place}
        moments[Moment(held)] = draw(numbers)
    moments[Moment(held, None, True)] = draw(numbers)
    for place in reversed(range(count)):
        held -= {place}
        moments[Moment(held, (place, "backward"), True)] = draw(numbers)
        moments[Moment(held, None, True)] = draw(numbers)
    duplex = draw(st.sampled_from(Duplex))
    link = Link(Fraction(draw(st.integers(1, 8)), draw(st.integers(1, 4))), duplex)
    names = [f"region {place}" for place in range(count)]
    others = {"calls": draw(st.integers(1, 3)), "kept_outside": draw(numbers), "gradients": draw(numbers)}
    return BlockStep(draw(numbers), moments, names, curves, inputs=inputs, link=link, **others)


Choice = tuple[tuple[int, ...], frozenset[int], frozenset[int]]


def subsets(places: list[int]) -> list[frozenset[int]]:
    flags = product((False, True), repeat=len(places))
    return [frozenset(place for place, is_in in zip(places, each, strict=True) if is_in) for each in flags]


def all_choices(step: BlockStep) -> list[Choice]:
    """Return all choices: plans, inputs on the host, and calls whose saved tensors are."""
    places = product(*(range(len(curve)) for curve in step.curves))
    inputs = subsets([place for place, size in enumerate(step.inputs) if size])
    saved = subsets(list(range(len(step.curves) - 1)))  # the last call's come right back
    return [
        (taken, away, gone)
        for taken, away, gone in product(places, inputs, saved)
        if all(point.kept for place, point in enumerate(step.at(taken)) if place in gone)
    ]


def used_at_most(step: BlockStep, points: tuple[CurvePoint, ...], away: frozenset[int], gone: frozenset[int]) -> int:
    """Return the peak as the integer program counts it."""
    flags = {place: int(place in away) for place, size in enumerate(step.inputs) if size}
    peaks: list[int] = []
    for moment, level in step._levels:
        there = [place for place in moment.holding if place not in gone or step._is_there(place, moment)]
        used = step.always + level + sum(points[place].kept for place in there)
        if moment.running is not None:
            used += points[moment.running[0]].most(moment.running[1])
        peaks.append(used + step._inputs_at(moment, flags))
    others: int = max(step._others(sum(point.kept for point in points)))
    return max(peaks) + others


@given(steps())
def test_the_program_counts_the_peak_that_the_judge_finds(step: BlockStep) -> None:
    for places, away, gone in all_choices(step):
        points = step.at(places)
        assert step.judged(points, 0, away, gone).peak_bytes == used_at_most(step, points, away, gone)


@given(steps(), st.floats(0.3, 1))
def test_a_choice_is_within_the_budget_and_its_bound_holds(step: BlockStep, share: float) -> None:
    budget = int(share * step.judged(step.plain, 0).peak_bytes)
    traces = [step.judged(step.at(places), 0, *moved) for places, *moved in all_choices(step)]
    fitting = [trace.time for trace in traces if trace.peak_bytes <= budget]
    choice = step.within(budget, 0)
    assert (choice is not None) == bool(fitting)
    if choice is not None:
        trace = step.replay(choice, 0)
        assert trace.peak_bytes <= budget
        assert choice.least <= min(fitting) <= trace.time
        assert trace.time == min(fitting)  # the program knows how long passes wait for copies


@given(steps(), st.floats(0.3, 1))
def test_inputs_on_the_host_never_make_it_worse(step: BlockStep, share: float) -> None:
    budget = int(share * step.judged(step.plain, 0).peak_bytes)
    choice = step.within(budget, 0)
    times = {
        (places, away, gone): trace.time
        for places, away, gone in all_choices(step)
        if (trace := step.judged(step.at(places), 0, away, gone)).peak_bytes <= budget
    }
    all_inputs = frozenset(place for place, size in enumerate(step.inputs) if size)
    alone = [time for (_, away, gone), time in times.items() if not gone and away in (frozenset(), all_inputs)]
    if alone:
        assert choice is not None
        assert step.replay(choice, 0).time <= min(alone)


def chain(rate: int) -> BlockStep:
    """Return three equal regions in a row, with plans that keep all or nothing."""
    kept, forward = point(100, 0, 0, 10, 10), point(0, 0, 0, 10, 20)
    curves = [(kept, forward)] * 3
    moments: dict[Moment, int] = {}
    held: frozenset[int] = frozenset()
    for place in range(3):
        moments[Moment(held, (place, "forward"))] = 100
        held |= {place}
    for place in reversed(range(3)):
        held -= {place}
        moments[Moment(held, (place, "backward"), True)] = 0
    return BlockStep(0, moments, ["a", "b", "c"], curves, inputs=[100] * 3, link=Link(Fraction(rate)))


def test_simple_choices_are_tried_where_the_solver_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    step = chain(1000)
    solved = BlockStep._solved
    plain = ChosenPlans((1, 1, 1), 7)

    def poor(self: BlockStep, free: int, budget: int | None, moves: str = ANYTHING) -> Any:
        proven = solved(self, free, budget, moves)
        return proven._replace(choice=plain, is_proven=False, least=7) if moves == ANYTHING else proven

    best = {moves: step.within(600, 0, moves) for moves in (NOTHING, ALL_INPUTS)}
    monkeypatch.setattr(BlockStep, "_solved", poor)
    choice = step.within(600, 0)
    assert choice is not None
    assert choice.least == 7
    times = [step.replay(each, 0).time for each in best.values() if each is not None]
    assert step.replay(choice, 0).time == min(times) < step.replay(plain, 0).time


@pytest.mark.parametrize("rate", [1, 1000])
def test_a_fast_link_is_used_and_a_slow_one_is_not(rate: int) -> None:
    step = chain(rate)
    choice = step.within(500, 0)
    assert choice is not None
    assert bool(choice.away) == (rate == 1000)


def test_blocks_of_a_llama_of_8_billion_parameters_are_never_worse_than_by_one_way_alone() -> None:
    tokens = 32_768
    curve = llama_curve(tokens, seconds=0.1)
    for rate in (LINKS["PCIe 3"], LINKS["PCIe 5"]):
        step = llama_step(curve, tokens, rate)
        least, plain = step.least(0), step.judged(step.plain, 0).peak_bytes
        for share in (0.05, 0.4):
            recomputed, offloaded, chosen = compared(step, least + int(share * (plain - least)))
            assert chosen.time is not None
            alone = [way.time for way in (recomputed, offloaded) if way.time is not None]
            assert alone
            assert chosen.time <= min(alone)
            assert chosen.inputs + chosen.saved > 0
