"""Which Einsums are one product of matrices; what is copied for it is held against PyTorch in `test_copies`."""

from __future__ import annotations

import pytest

from remat_cli.core.operators import Operator
from remat_cli.training.einsum_product import product_of
from tests.operators import value


def einsum(equation: str, *shapes: tuple[int, ...]) -> Operator:
    operands = tuple(value(f"x{position}", *shape) for position, shape in enumerate(shapes))
    return Operator("Einsum", operands, (value("y"),), {"equation": equation}, 20)


def test_operands_become_stacks_of_matrices() -> None:
    product = product_of(einsum("bhqk, bkhd -> bqhd", (2, 4, 5, 6), (2, 6, 4, 7)))
    assert product is not None
    assert [factor.form for factor in product.factors] == [(8, 5, 6), (8, 6, 7)]
    assert [factor.axes for factor in product.factors] == [(0, 1, 2, 3), (0, 2, 1, 3)]
    assert (product.shape, product.axes) == ((2, 4, 5, 7), (0, 2, 1, 3))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij->ji", [(2, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("..ij,..jk->..ik", [(2, 3), (3, 4)]),
        ("...ij,...jk->...ik", [(3,), (3, 4)]),
        ("iij,jk->ik", [(2, 2, 3), (3, 4)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij,jk->iz", [(2, 3), (3, 4)]),
        ("ij,jk->ik", [(2, 3, 4), (3, 4)]),
    ],
)
def test_other_forms_are_left_alone(equation: str, shapes: list[tuple[int, ...]]) -> None:
    assert product_of(einsum(equation, *shapes)) is None
