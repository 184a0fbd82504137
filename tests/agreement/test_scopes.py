"""All planners on one problem: nothing that they claim is false. `make hunt` goes on from here for as long as wished.

Small graphs are held against the oracle. Where there are too many states for it, what one planner proves holds for the
plans of all others, as far as its scope goes.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.config import GraphOptions
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.solve import baseline_of
from remat_cli.prepare import prepare
from tests.graphs import training_chain
from tests.hunt.claims import QUICK, check_by_each_other, check_by_oracle
from tests.hunt.problems import SIZES, SMALL, TIMES, problems, resized, tangled, with_budget
from tests.places import GRAPHS


@pytest.mark.parametrize(("sizes", "times"), [*itertools.product(SIZES, TIMES)])
@settings(max_examples=10)
@given(data=st.data())
def test_no_claim_of_any_planner_is_false(sizes: str, times: str, data: st.DataObject) -> None:
    check_by_oracle(data.draw(problems(SMALL, sizes, times)))


@pytest.mark.parametrize("budget", [3, 4, 5])
def test_times_that_add_up_to_nearly_all_that_the_format_allows(budget: int) -> None:
    graph = training_chain(4, time=2**56)
    assert 2**59 < graph.total_time < 2**60
    check_by_oracle(Problem(graph, Budget(budget)))


# On the first one CP-SAT, left to itself, proves too much (see tests/unit/planners/shared/test_cp_sat.py).
@pytest.mark.parametrize("seed", [74, *range(1, 3)])
def test_no_plan_refutes_what_another_planner_proves(seed: int) -> None:
    graph = resized(tangled(seed), seed, "nearly equal", "as drawn")
    check_by_each_other(with_budget(graph, seed), QUICK)


@pytest.mark.parametrize(
    ("name", "dims", "share", "planners"),
    [
        ("unet.onnx", {"batch": 8}, 0.6, ()),
        ("resnet50.onnx", {"batch": 32}, 0.8, QUICK),
        ("gpt.onnx", {"batch": 8, "seq": 512}, 0.7, QUICK),
        ("skip_chain.json", {}, 0.7, ()),
    ],
)
def test_on_networks(name: str, dims: dict[str, int], share: float, planners: tuple[str, ...]) -> None:
    graph = prepare(GRAPHS / name, GraphOptions(dims=dims)).graph
    # How far each comes in that time depends on the machine; what it then claims must hold all the same.
    check_by_each_other(Problem(graph, Budget(int(share * baseline_of(graph).peak_bytes))), planners, time_limit=0.3)
