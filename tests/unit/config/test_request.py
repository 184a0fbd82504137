"""Requests: what two sides say together, and what can be checked before there is a graph."""

from __future__ import annotations

import pickle
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from remat_cli.config import PlannerChoice, Request, load_config
from remat_cli.errors import UsageError
from remat_cli.units import BudgetSpec

BELOW = Request(BudgetSpec(share=Fraction(1, 2)), PlannerChoice("dtr", {"candidates": 3}), Fraction(1, 10))


def test_a_request_at_a_size_keeps_the_rest() -> None:
    assert BELOW.at(9) == Request(BudgetSpec(device_bytes=9), BELOW.planner, BELOW.max_overhead)


@pytest.mark.parametrize(
    ("options", "limits", "seconds"),
    [
        ({}, {}, 30.0),
        ({}, {"usual": 4.0}, 2.0),
        ({}, {"usual": 100.0}, 30.0),
        ({}, {"usual": 4.0, "most": 1.0}, 0.5),
        ({"time_limit": 8.0}, {"usual": 4.0}, 4.0),
        ({"time_limit": 8.0}, {"most": 4.0}, 2.0),
    ],
)
def test_a_request_in_half_its_time(options: dict[str, float], limits: dict[str, float], seconds: float) -> None:
    request = replace(BELOW, planner=PlannerChoice("dtr", options)).in_time(0.5, **limits)
    assert request == replace(BELOW, planner=PlannerChoice("dtr", {"time_limit": seconds}))


def test_a_planner_without_a_time_limit_gets_none() -> None:
    request = replace(BELOW, planner=PlannerChoice("chen"))
    assert request.in_time(0.5, usual=1.0) == request


def test_a_request_can_be_sent_to_another_process() -> None:
    assert BELOW.chosen.built
    assert pickle.loads(pickle.dumps(BELOW)) == BELOW


def test_the_planner_is_built_once() -> None:
    assert BELOW.chosen.built is BELOW.chosen.built
    assert BELOW.chosen.with_options({"candidates": 4}).built != BELOW.chosen.built


def test_wrong_options_and_planners_that_cannot_offload_are_found_before_there_is_a_graph() -> None:
    BELOW.check()
    Request(planner=PlannerChoice("rotor")).check()
    with pytest.raises(UsageError, match="options: heuristik"):
        Request(planner=PlannerChoice("dtr").with_options({"heuristik": "lru"}, "options")).check()
    with pytest.raises(UsageError, match="here: rotor moves nothing to the host"):
        Request(planner=PlannerChoice("rotor"), offload=True).check("here: ")


def test_a_config_file_makes_a_request(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("budget: 50%\nplanner: {name: dtr, candidates: 3}\nmax_overhead: 10%\noffload: true\n")
    assert load_config(path).request == replace(BELOW, offload=True)
