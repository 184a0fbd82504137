"""The matrix product of `torch.einsum` with two operands.

Written after `einsum` and `sumproduct_pair` of PyTorch 2.13: result dimensions come first, then summed dimensions, by
their labels; each operand is permuted into the order of its matrices, and reshaped into a stack of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from remat_cli.core.operators import Operand, Operator


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand of a matrix product.

    Attributes:
        value: the operand; its shape is known.
        axes: its axes in the order of its matrices, without those of size 1.
        form: the stack of matrices, [stack, rows, columns].
    """

    value: Operand
    axes: tuple[int, ...]
    form: tuple[int, int, int]

    @property
    def summed_first(self) -> bool:
        """Whether dimensions of this operand alone are summed first.

        Neither the result nor the other operand has these dimensions.
        """
        return prod(self.form) < self.value.elements


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product with its result's axes.

    Attributes:
        factors: the two operands.
        shape: shape of the result, in the order of the matrix product's dimensions.
        axes: for each dimension of the result its place in `shape`.
    """

    factors: tuple[Factor, Factor]
    shape: tuple[int, ...]
    axes: tuple[int, ...]


# Stands for all dimensions without a label; their labels begin here, after all letters.
_OTHERS = "..."
_FIRST_OTHER = 0x100


def product_of(operator: Operator) -> Product | None:
    """Return the matrix product of an Einsum; None for another form.

    The other forms have one operand, more than two, or a label twice in an operand.
    """
    inputs, arrow, result = str(operator.attributes.get("equation", "")).replace(" ", "").partition("->")
    shapes = [value.shape for value in operator.inputs if value is not None and value.shape is not None]
    terms, others = _written_out(inputs.split(","), [len(shape) for shape in shapes])
    result = result.replace(_OTHERS, others)
    if len(terms) != 2 or [len(set(term)) for term in terms] != [len(shape) for shape in shapes]:
        return None
    left, right = (dict(zip(term, shape, strict=True)) for term, shape in zip(terms, shapes, strict=True))
    if not arrow:
        result = others + "".join(sorted((left.keys() ^ right.keys()).difference(others)))
    wide_left, wide_right = ({label for label, size in own.items() if size > 1} for own in (left, right))
    summed = "".join(sorted((wide_left & wide_right).difference(result)))
    if not summed or not left.keys() | right.keys() >= set(result):
        return None
    stack = "".join(label for label in result if label in wide_left & wide_right)
    rows = "".join(label for label in result if label in wide_left - wide_right)
    columns = "".join(label for label in result if label not in wide_left)
    sizes = {label: max(left.get(label, 1), right.get(label, 1)) for label in left | right}

    def factor(position: int, *groups: str) -> Factor:
        value = operator.inputs[position]
        assert value is not None
        axes = tuple(terms[position].index(label) for label in "".join(groups))
        stacks, high, wide = (prod(sizes[label] for label in group) for group in groups)
        return Factor(value, axes, (stacks, high, wide))

    dims = stack + rows + columns
    return Product(
        (
            factor(0, stack, rows, summed),
            factor(1, stack, summed, "".join(label for label in columns if label in wide_right)),
        ),
        tuple(sizes[label] for label in dims),
        tuple(dims.index(label) for label in result),
    )


def _written_out(terms: Sequence[str], ranks: Sequence[int]) -> tuple[list[str], str]:
    """Replace `...` in terms by labels; return terms and new labels.

    Operands share the last labels.

    Args:
        terms: labels of each operand.
        ranks: number of dimensions of each operand.
    """
    letters = [len(term.replace(_OTHERS, "")) for term in terms]
    counts = [max(0, rank - n) if _OTHERS in t else 0 for t, n, rank in zip(terms, letters, ranks, strict=False)]
    most = max(counts, default=0)
    others = "".join(chr(_FIRST_OTHER + number) for number in range(most))
    return [term.replace(_OTHERS, others[most - n :]) for term, n in zip(terms, counts, strict=False)], others
