"""From tables of structures to a plan that fits; tests/agreement holds the tables against every structure."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from remat_cli.core.link import Link
from remat_cli.core.problem import Budget, Observer, Problem, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners.pofo import dp
from remat_cli.planners.pofo.dp import PofoTable
from remat_cli.planners.pofo.model import FluidCosts, FluidNeeds
from remat_cli.planners.pofo.options import StateRounding
from remat_cli.planners.pofo.planner import Pofo
from remat_cli.planners.pofo.search import PofoSearch
from remat_cli.planners.pofo.structure import Block, Checkpoint, KeepFirst, Structure, fluid_time, recomputed
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.chain.linearisation import linearise
from remat_cli.planners.shared.chain.model import ChainStep, Operation
from tests.graphs import training_chain

GRAPH = training_chain(6)
PLAIN = baseline_of(GRAPH).peak_bytes
LINKED = Problem(GRAPH, Budget(PLAIN - 2), link=Link(Fraction(1)))


def test_recomputing_in_two_parts_goes_to_the_checkpoint_and_back() -> None:
    part = Checkpoint(again=KeepFirst(1, None), rest=KeepFirst(2, KeepFirst(3, None)))
    assert part.first == 1
    assert list(map(str, recomputed(part))) == [
        "F_ck(1)",
        "F_all(2)",
        "F_all(3)",
        "B(3)",
        "B(2)",
        "F_all(1)",
        "B(1)",
    ]


def test_without_recomputation_the_fluid_time_is_that_of_all_operations() -> None:
    gauge = linearise(GRAPH, "a test", Cuts.EVERY, 100).gauge
    model = FluidCosts(FluidNeeds.measured(gauge), memory=1000, rate=Fraction(1))
    layers = len(FluidNeeds.measured(gauge))
    blocks = tuple(Block(layer, layer, offloaded=False, recomputation=None) for layer in range(1, layers))
    structure = Structure(blocks, layers)
    assert fluid_time(model, structure) + gauge.base_time == GRAPH.total_time
    kinds = [step.kind for step in structure.steps()]
    assert kinds.count(Operation.BACKWARD) == kinds.count(Operation.FORWARD_ALL) == layers
    assert structure.steps()[0] == ChainStep(Operation.FORWARD_ALL, 1)


def test_the_table_of_ample_memory_recomputes_nothing() -> None:
    needs = FluidNeeds.measured(linearise(GRAPH, "a test", Cuts.EVERY, 100).gauge)
    ample, short = (PofoTable(needs, memory, 0.01, 100, StateRounding.UP) for memory in (1000, 4))
    assert np.isclose(ample.time(), GRAPH.total_time)
    assert short.time() > ample.time()
    assert fluid_time(FluidCosts(needs, 1000, Fraction(1)), ample.structure()) == GRAPH.total_time


def test_a_table_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp, "_MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="table"):
        PofoSearch(LINKED, Pofo(), Observer()).run()


def test_a_plan_that_fits_may_move_tensors() -> None:
    result = PofoSearch(LINKED, Pofo(), Observer()).run()
    assert result.schedule is not None
    trace = simulate(GRAPH, result.schedule, link=Link(Fraction(1)))
    assert trace.peak_bytes <= PLAIN - 2
    assert result.model_figures


def test_without_a_link_it_refuses_and_names_rotor() -> None:
    with pytest.raises(PlannerRefuses) as refused:
        PofoSearch(Problem(GRAPH, Budget(PLAIN - 2)), Pofo(), Observer()).run()
    assert "rotor" in refused.value.hint


def test_a_plain_run_that_fits_is_the_plan() -> None:
    result = PofoSearch(Problem(GRAPH, Budget(PLAIN), link=Link(Fraction(1))), Pofo(), Observer()).run()
    assert result.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert result.schedule == plain_run(GRAPH)
