"""Whatever order and repeats a valid schedule has, the graphs that it is written as compute the same bits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from operator import itemgetter
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Step, Wait, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import solve
from remat_cli.planners import PLANNERS
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint import BOUNDARY, Joint
from remat_cli.pytorch.capture.joint_capture import compiled, seen_by
from remat_cli.pytorch.capture.reader import callable_of
from remat_cli.pytorch.capture.step import as_step
from remat_cli.pytorch.memory import transfers
from remat_cli.pytorch.programs.program import divided
from remat_cli.pytorch.unstable.front_end import forgetting
from tests.streams import LateCopies, RecordedCopies
from tests.torch_steps import Case, changing_buffer, gpt

Values = tuple[torch.Tensor | None, ...]


@cache
def captured(case: Case) -> tuple[Joint, Graph, tuple[torch.Tensor, ...]]:
    """Return the joint graph of a case, its graph, and the values of its primals."""
    torch.manual_seed(0)
    step = as_step(case(), "case")
    with forgetting():
        seen = seen_by(lambda look: compiled(callable_of(step.model), look)(*step.inputs, **step.keyword_inputs))
    assert seen is not None
    joint = Joint.of(seen)
    values = [primal.value for primal in seen.primals]
    assert all(value is not None for value in values)
    return joint, graph_of(joint, "case"), tuple(value.detach() for value in values if value is not None)


def run(case: Case, schedule: Schedule, recorded: RecordedCopies | None = None) -> Values:
    """Return forward outputs, gradients, and all primals after the step."""
    joint, graph, values = captured(case)
    simulate(graph, schedule, link=Link(Fraction(1)))
    forward, backward = divided(joint, schedule, None if recorded is None else recorded.computed)
    primals = [value.clone() for value in values]
    torch.manual_seed(1)
    with torch.no_grad():
        made = forward(*primals)
        outputs, saved = made[: len(joint.forward_outputs)], made[len(joint.forward_outputs) :]
        tangents = [torch.ones(tangent.meta["val"].shape) for tangent in joint.tangents]
        if recorded is not None:
            recorded.given(joint.tangents, tangents)
        gradients = backward(*saved, *tangents)
    return (*outputs, *gradients, *primals)


@cache
def plain(case: Case) -> Values:
    return run(case, plain_run(captured(case)[1]))


def valid_order(graph: Graph, seed: int) -> list[str]:
    """Draw an order in which every op runs once or more: any that can run next, whether it has run before or not."""
    random = Random(seed)
    order: list[str] = []
    there = set(graph.inputs)
    left = {op.name for op in graph.ops}
    while left:
        can_run = [op for op in graph.ops if there.issuperset(op.inputs)]
        new = [op for op in can_run if op.name in left]
        repeated = [op for op in can_run if op.name not in left and op.recomputable]
        # Mostly something new, else it takes long to end.
        op = random.choice(repeated if repeated and random.random() < 0.4 else new)
        order.append(op.name)
        there.update(op.outputs)
        left.discard(op.name)
    return order


def with_transfers(joint: Joint, graph: Graph, order: list[str], seed: int) -> Schedule:
    """Return a sequence of computes with frees, in which tensors go to the host between two uses, now and then."""
    random = Random(seed)
    steps = with_frees(graph, order).steps
    placed: list[tuple[float, Step]] = [(float(place), step) for place, step in enumerate(steps)]
    used_at: dict[str, int] = {}
    returned = {storage.name for storage in joint.returned}
    for place, step in enumerate(steps):
        if not isinstance(step, Compute):
            continue
        op = graph.op[step.op]
        for name in op.inputs:
            if name in used_at and name not in returned and random.random() < 0.5:
                moments = sorted(random.uniform(used_at[name], place) for _ in range(5))
                moved: tuple[Step, ...] = (Offload(name), Wait(name), Free(name), Prefetch(name), Wait(name))
                placed += zip(moments, moved, strict=True)
        used_at.update((name, place) for name in (*op.inputs, *op.outputs) if name in graph.producer)
    return Schedule(tuple(step for _, step in sorted(placed, key=itemgetter(0))))


def same(one: Values, other: Values) -> bool:
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("case", [gpt, changing_buffer], ids=lambda case: case.__name__)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_any_valid_order_computes_the_same_bits(case: Case, seed: int) -> None:
    graph = captured(case)[1]
    assert same(run(case, with_frees(graph, valid_order(graph, seed))), plain(case))


@pytest.mark.parametrize("case", [gpt, changing_buffer], ids=lambda case: case.__name__)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_any_transfers_leave_the_bits_alone(case: Case, seed: int) -> None:
    expected, before = plain(case), transfers.COPIES["cpu"]
    joint, graph, _ = captured(case)
    schedule = with_transfers(joint, graph, valid_order(graph, seed), seed)
    transfers.COPIES["cpu"] = LateCopies()
    try:
        assert same(run(case, schedule), expected)
    finally:
        transfers.COPIES["cpu"] = before


@pytest.mark.parametrize("case", [gpt, changing_buffer], ids=lambda case: case.__name__)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_what_is_issued_is_the_schedule_in_its_order(case: Case, seed: int) -> None:
    """All that it computes, and those of its copies that something reads afterwards."""
    before = transfers.COPIES["cpu"]
    joint, graph, _ = captured(case)
    schedule = with_transfers(joint, graph, valid_order(graph, seed), seed)
    recorded = transfers.COPIES["cpu"] = RecordedCopies(joint)
    try:
        run(case, schedule, recorded)
    finally:
        transfers.COPIES["cpu"] = before
    planned = iter(schedule.steps)
    assert all(step in planned for step in recorded.steps)  # takes what it looks past
    computed = [step for step in schedule.steps if isinstance(step, Compute) and step.op != BOUNDARY]
    assert [step for step in recorded.steps if isinstance(step, Compute)] == computed
    read = {step.tensor for step in recorded.steps if isinstance(step, Wait)}
    assert read == {step.tensor for step in recorded.steps if isinstance(step, Offload | Prefetch)}


def test_what_a_planner_offloads_is_issued_as_planned() -> None:
    before = transfers.COPIES["cpu"]
    joint, graph, _ = captured(gpt)
    graph = replace(graph, ops=tuple(replace(op, time=1000) for op in graph.ops))  # to run again is dear
    budget = Budget(19 * simulate(graph, plain_run(graph)).peak_bytes // 20)
    plan = solve(Problem(graph, budget, Link(Fraction(10**9)), offload=True), PLANNERS["pofo"]())
    assert plan.result.schedule is not None
    recorded = transfers.COPIES["cpu"] = RecordedCopies(joint)
    try:
        run(gpt, plan.result.schedule, recorded)
    finally:
        transfers.COPIES["cpu"] = before
    assert any(isinstance(step, Offload) for step in recorded.steps)
    issued = [step for step in plan.result.schedule.steps if not isinstance(step, Free) and step != Compute(BOUNDARY)]
    assert recorded.steps == issued
