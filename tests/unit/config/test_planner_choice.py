"""Planners by name: options, what is built, what is refused."""

from __future__ import annotations

import pytest

from remat_cli.config import PlannerChoice, named_planner
from remat_cli.errors import UsageError


def test_a_name_that_no_planner_has_is_refused() -> None:
    with pytest.raises(UsageError, match="neighbourhoods") as caught:
        named_planner("neighbourhoods")
    assert "retention" in str(caught.value.remedy)


def test_an_option_that_the_planner_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="threads"):
        _ = PlannerChoice("dtr", {"threads": 2}).built


def test_all_options_are_told_as_json_values() -> None:
    told = PlannerChoice("dtr", {"candidates": 3}).all_options()
    assert told["candidates"] == 3
    assert all(isinstance(value, str | int | float | None) for value in told.values())
