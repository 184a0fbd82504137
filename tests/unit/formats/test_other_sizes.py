"""What lies on lines and parabolas through readings is told of other sizes; nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from remat_cli.core.graph import Graph, Kind, Op, Tensor
from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.formats.other_sizes import SizeCurves, agrees_with_prediction
from remat_cli.formats.reader import Reading


def reading(size: int, *, weight: int = 64, attention: int = 0, dtype: str = "float32", note: str = "") -> Reading:
    """A product of a batch by a weight, and of a sequence by itself."""
    shape = (size, 4)
    tensors = {
        "w": Tensor("w", weight),
        "y": Tensor("y", 16 * size, shape, dtype),
        "s": Tensor("s", attention * size * size),
    }
    op = Op("mm", "mm", ("w",), ("y", "s"), 0, signature=f"of {shape}")
    graph = Graph("product", Kind.TRAINING, "unit", 3, tensors, (op,), ("y",))
    made = Operand("y", Role.ACTIVATION, shape, dtype, 16 * size)
    operator = Operator("mm", (made, None), (made,), {"sizes": shape, "transposed": 1, "eps": 0.5})
    return Reading(graph, {"mm": operator}, notes=(note,))


def reading_at(size: int, readings: Mapping[int, Reading]) -> Reading | None:
    curves = SizeCurves.through(readings)
    return None if curves is None else curves.at(size)


def unsigned(of: Reading) -> Reading:
    ops = tuple(replace(op, signature=None) for op in of.graph.ops)
    return replace(of, graph=replace(of.graph, ops=ops))


def same(one: Reading | None, other: Reading) -> bool:
    """Equal to the last field."""
    graphs = [vars(each.graph) for each in (one, other) if each is not None]
    return one is not None and graphs[0] == graphs[1] and replace(one, graph=other.graph) == other


def test_a_line_through_two_that_meets_the_third_is_followed() -> None:
    readings = {size: reading(size) for size in (1, 2, 8, 32)}
    assert same(reading_at(1000, readings), unsigned(reading(1000)))


def test_a_parabola_through_three_that_meets_the_fourth_is_followed() -> None:
    readings = {size: reading(size, attention=3) for size in (2, 8, 32, 128)}
    assert same(reading_at(1000, readings), unsigned(reading(1000, attention=3)))
    del readings[8]
    assert reading_at(1000, readings) is None, "three are on many parabolas"


def test_a_size_of_one_and_two_readings_tell_nothing() -> None:
    assert reading_at(1000, {size: reading(size) for size in (1, 2, 8)}) is None


@pytest.mark.parametrize(
    "other",
    [reading(32, weight=65), reading(32, dtype="float16"), reading(32, note="an estimate"), reading(33)],
    ids=["a number", "a type", "a note", "another size"],
)
def test_what_is_on_no_line_is_not_told(other: Reading) -> None:
    assert reading_at(1000, {2: reading(2), 8: reading(8), 32: other}) is None


def test_what_would_be_no_whole_number_is_not_told() -> None:
    """Of pairs, each of which needs 3 more than the last one."""
    readings = {size: reading(size, weight=size // 2 * 3) for size in (2, 8, 32)}
    assert same(reading_at(1000, readings), unsigned(reading(1000, weight=1500)))
    assert reading_at(1001, readings) is None


def test_only_signatures_may_differ_from_what_was_told() -> None:
    assert agrees_with_prediction(unsigned(reading(4)), reading(4))
    assert not agrees_with_prediction(unsigned(reading(4)), reading(4, weight=65))
    assert not agrees_with_prediction(unsigned(reading(4)), reading(4, dtype="float16"))
