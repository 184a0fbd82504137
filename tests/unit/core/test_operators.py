"""Operands know their number of elements, and operators their attributes."""

from __future__ import annotations

from remat_cli.core.operators import Operand, Operator, Role


def operand(shape: tuple[int, ...] | None) -> Operand:
    return Operand("x", Role.ACTIVATION, shape, "float32", 24)


def test_an_unknown_shape_has_no_elements_and_a_scalar_has_one() -> None:
    assert [operand(shape).elements for shape in (None, (), (2, 3), (2, 0))] == [0, 1, 6, 0]


def test_an_integer_attribute_is_read_or_replaced_by_the_default() -> None:
    operator = Operator("Conv", (), (), {"group": 4, "auto_pad": "SAME_UPPER"})
    assert [operator.integer(name, 7) for name in ("group", "auto_pad", "axis")] == [4, 7, 7]
