"""The smallest budget depends on neither the clock nor measured times, and the plan at it has the measured times."""

from __future__ import annotations

import random
from itertools import count

import pytest

from remat_cli.core.graph import Graph
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.shared import limits
from remat_cli.planning import Planning
from remat_cli.pytorch.plan.smallest import plan_smallest
from remat_cli.units import BudgetSpec
from tests.graphs import training_unet
from tests.plans import asking, prepared

GRAPH = training_unet(6)
REQUEST = asking(Auto(time_limit=0.5), budget=BudgetSpec(smallest=True))


def smallest(graph: Graph, *, counts_work: bool = True) -> Planning:
    return plan_smallest(prepared(graph), REQUEST, counts_work=counts_work)


def timed_otherwise(seed: int) -> Graph:
    draw = random.Random(seed)
    return GRAPH.edited(ops=tuple(op.edited(time=draw.randint(1, 1000)) for op in GRAPH.ops)).checked()


def test_times_do_not_move_the_smallest_budget() -> None:
    found = [smallest(timed_otherwise(seed)) for seed in range(2)]
    assert len({planning.budget_bytes for planning in found}) == 1
    for planning, seed in zip(found, range(2), strict=True):
        assert planning.trace is not None
        assert planning.prepared.graph.total_time == timed_otherwise(seed).total_time
        assert planning.trace.time > planning.prepared.graph.total_time, "times are those of the step"
        assert planning.trace.peak_bytes <= planning.budget_bytes


def test_a_busy_machine_finds_the_same_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = smallest(GRAPH).budget_bytes
    ticks = count()
    monkeypatch.setattr(limits, "monotonic", lambda: next(ticks) * 0.02)  # each look at the clock takes 20 ms
    assert smallest(GRAPH).budget_bytes == idle
    by_clock = smallest(GRAPH, counts_work=False)
    assert by_clock.search is not None
    assert by_clock.budget_bytes > idle, "the clock alone ends searches early"
