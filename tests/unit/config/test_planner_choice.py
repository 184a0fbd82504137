"""Planners by name: former names, options, what is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.config import PlannerChoice, load_config, named_planner, option_name
from remat_cli.errors import UsageError
from remat_cli.planners.retention.planner import Retention


def test_a_former_name_is_that_of_the_planner_of_today() -> None:
    assert named_planner("neighbourhoods") == PlannerChoice("min_cut")
    assert load_config(Path("neighbourhoods")).planner == load_config(Path("min_cut")).planner


@pytest.mark.parametrize("former", ["workers", "jobs", "threads"])
def test_a_former_option_is_that_of_today(tmp_path: Path, former: str) -> None:
    assert option_name("retention", former) == "cores"
    path = tmp_path / "c.yaml"
    path.write_text(f"planner: {{name: retention, {former}: 2}}\n")
    choice = load_config(path).planner
    assert choice is not None
    assert choice.planner() == Retention(cores=2)


def test_an_option_that_never_was_is_refused() -> None:
    assert option_name("dtr", "threads") == "threads"
    with pytest.raises(UsageError, match="threads"):
        PlannerChoice("dtr", {"threads": 2}).planner()


def test_all_options_are_told_as_json_values() -> None:
    told = PlannerChoice("dtr", {"candidates": 3}).all_options()
    assert told["candidates"] == 3
    assert all(isinstance(value, str | int | float | None) for value in told.values())
