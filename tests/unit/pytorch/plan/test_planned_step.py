"""Ranks agree on the plans of a step's regions where their captures are equal."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from remat_cli.core.link import Link
from remat_cli.pytorch.memory.shards import Ranks
from remat_cli.pytorch.plan.block_step import BlockStep, CurvePoint
from remat_cli.pytorch.plan.described import Inputs
from remat_cli.pytorch.plan.planned_step import PlannedStep, agreed
from remat_cli.pytorch.plan.rehearsal import Moment
from tests.unit.pytorch.plan.test_block_step import point

REST, HELD = Moment(frozenset()), Moment(frozenset({0}))
PLAIN, TIGHT = point(20, 1, 1, 5, 5), point(3, 1, 1, 5, 9)


class Kind:
    """A kind of region whose plans are taken from another rank."""

    def __init__(self, *points: CurvePoint) -> None:
        self.values, self.points = (), points
        self.taken: Any = None

    def take_schedules(self, schedules: Any) -> None:
        self.taken, self.points = schedules, (PLAIN,)


class TwoRanks(Ranks):
    """This rank, the second, and a first one that differs in a part of its offer."""

    def __init__(self, **other: Any) -> None:
        super().__init__(groups=["of both"])
        self.other = other

    def all(self, value: Any) -> list[Any]:
        names = ("structures", "places", "moments", "always", "schedules", "kept_outside")
        return [tuple(self.other.get(name, own) for name, own in zip(names, value, strict=True)), value]


def choice(*kinds: Kind) -> PlannedStep:
    curves = [kind.points for kind in kinds]
    names = [f"region {place}" for place in range(len(kinds))]
    step = BlockStep(7, {REST: 10, HELD: 30}, names, curves, inputs=[4] * len(kinds), link=Link(Fraction(1)))
    return PlannedStep(
        inputs=Inputs.of((), {}, "cpu"),
        dimensions=frozenset(),
        step=step,
        plain=[curve[0] for curve in curves],
        kinds=kinds,  # type: ignore[arg-type]
        untrained=frozenset(),
        standing=0,
    )


def test_equal_captures_take_the_first_ranks_plans_and_the_largest_memory_of_any() -> None:
    kind = Kind(PLAIN, TIGHT)
    first: Any = [[("the first rank's", {})]]
    both = agreed(choice(kind, kind), TwoRanks(moments=[(REST, 12), (HELD, 20)], always=5, schedules=first))
    assert both.is_common
    assert kind.taken == first[0]
    assert both.step.moments == {REST: 12, HELD: 30}
    assert both.step.always == 7
    assert both.step.curves == [(PLAIN,), (PLAIN,)]
    assert tuple(both.plain) == (PLAIN, PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        {"structures": "other ops"},
        {"places": [0, 1]},
        {"moments": [(REST, 12)]},
        {"moments": [(HELD, 12), (REST, 12)]},
    ],
    ids=["structures", "places", "fewer moments", "order of moments"],
)
def test_ranks_whose_captures_differ_keep_their_own_plans(other: dict[str, Any]) -> None:
    kind = Kind(PLAIN, TIGHT)
    own = choice(kind, kind)
    assert agreed(own, TwoRanks(**other)) is own
    assert kind.taken is None


def test_one_rank_alone_asks_nobody() -> None:
    own = choice(Kind(PLAIN))
    assert agreed(own, Ranks()) is own
    assert not own.is_common
