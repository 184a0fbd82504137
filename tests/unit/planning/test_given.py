"""Files of schedules that no planner made are proven, and keep to their budget."""

from __future__ import annotations

import json

import pytest

from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import UsageError
from remat_cli.planning.given import file_of_block, file_of_given
from remat_cli.splitting import Split
from tests.graphs import training_chain
from tests.plans import prepared

GRAPH = training_chain(3)
PLAIN = plain_run(GRAPH)
PEAK = simulate(GRAPH, PLAIN).peak_bytes


@pytest.mark.parametrize("budget", [PEAK, PEAK + 1])
def test_a_schedule_within_its_budget_is_written(budget: int) -> None:
    file = json.loads(file_of_given(prepared(GRAPH), PLAIN, budget, "checkpoints"))
    assert (file["planner"]["name"], file["budget_bytes"]) == ("checkpoints", budget)


def test_a_schedule_above_its_budget_is_refused() -> None:
    with pytest.raises(UsageError, match=f"peaks at {PEAK} B when remat runs it, above the budget of {PEAK - 1} B"):
        file_of_given(prepared(GRAPH), PLAIN, PEAK - 1, "checkpoints")


def test_a_block_is_written_with_its_cuts_where_it_was_planned_with_split() -> None:
    whole, in_parts = (json.loads(file_of_block(GRAPH, PLAIN, cuts)) for cuts in (None, {"f1": Split(3)}))
    assert "parts" not in whole["graph"]["options"]
    assert in_parts["graph"]["options"]["parts"] == {"f1": "3"}
