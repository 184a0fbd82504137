"""What `remat planners` says comes from the classes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners import PLANNERS
from remat_cli.reports.terminal.planner_cards import Option, planner_cards


class Order(StrEnum):
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class Example:
    """Does nothing, and takes
    two lines to say so.

    Source: Nobody et al., a title
    over two lines: a subtitle, 2020.
    Takes: any graph.

    Attributes:
        order: where to start:
            first or last.
        rounds: how many.
    """

    order: Order = Order.LAST
    rounds: int = 1
    limit: float | None = None
    careful: bool = False

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        raise NotImplementedError


@dataclass(frozen=True)
class Bare:
    rounds: int

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        raise NotImplementedError


def test_a_card_is_read_from_the_docstring_and_the_fields() -> None:
    (card,) = planner_cards({"example": Example})
    assert card.name == "example"
    assert card.summary == "Does nothing, and takes two lines to say so."
    assert card.facts == {
        "Source": "Nobody et al., a title over two lines: a subtitle, 2020.",
        "Takes": "any graph.",
    }
    assert card.options == (
        Option("order", "last", "where to start: first or last."),
        Option("rounds", "1", "how many."),
        Option("limit", "null", ""),
        Option("careful", "false", ""),
    )


def test_an_option_without_default_is_required() -> None:
    (card,) = planner_cards({"bare": Bare})
    assert card.options == (Option("rounds", "required", ""),)


def test_every_planner_says_what_it_does_where_it_is_from_and_what_each_option_means() -> None:
    for card in planner_cards():
        assert card.summary
        assert {"Source", "Takes", "Searches", "Complexity"} <= set(card.facts), card.name
        assert all(option.meaning for option in card.options), card.name
    assert [card.name for card in planner_cards()] == list(PLANNERS)
