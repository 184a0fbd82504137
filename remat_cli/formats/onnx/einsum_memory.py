"""The workspace of onnxruntime's Einsum: reordered operands and product.

The rules follow core/providers/cpu/math/einsum_utils of version 1.31. Dimensions have the order of their labels' first
appearance. Each operand is brought into that order, then into the order for a batched matrix product; the product is
copied to the result at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod


def einsum_elements(equation: str, shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the most elements that an Einsum holds in workspace.

    Args:
        equation: such as `bij,bjk->bik`.
        shapes: shapes of the operands.

    Raises:
        ValueError: labels repeat within an operand, mean several dimensions (`...`), or do not match the shapes.
    """
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise ValueError("an equation of another form")
    sizes = {
        label: size for term, shape in zip(terms, shapes, strict=True) for label, size in zip(term, shape, strict=True)
    }
    order = "".join(dict.fromkeys("".join(terms)))
    if not arrow:
        result = "".join(sorted(label for label in order if inputs.count(label) == 1))
    if not set(result) <= set(order):
        raise ValueError("a label of the result is in no operand")
    kept = _reordered(terms, order, sizes)
    left = "".join(label for label in terms[0] if _is_read_later(label, terms[1:], result))
    held = 0 if len(left) == len(terms[0]) else _elements(left, sizes)
    if len(terms) == 1:
        in_order = "".join(label for label in order if label in left)
        return kept + held + (_elements(left, sizes) if in_order != result else 0)
    most = 0
    for number, right in enumerate(terms[1:], start=2):
        stays = {label for label in order if _is_read_later(label, terms[number:], result)}
        product, copied = _product(left, right, stays, order, sizes)
        elements = _elements(product, sizes)
        in_other_order = number == len(terms) and "".join(product) != result
        most = max(most, held + copied + elements + (elements if in_other_order else 0))
        left, held = product, elements
    return kept + most


def _product(left: str, right: str, stays: Collection[str], order: str, sizes: Mapping[str, int]) -> tuple[str, int]:
    """Return the labels of a product, and its reordered elements.

    Args:
        left: labels of the left operand.
        right: labels of the right operand.
        stays: labels that are read later.
        order: order of all labels.
        sizes: sizes by label.
    """
    wide = {label for label in order if sizes[label] > 1}
    in_left, in_right = wide & set(left), wide & set(right)
    summed = [label for label in order if label in in_left & in_right and label not in stays]
    left_only = [label for label in order if label in in_left - in_right and label in stays]
    right_only = [label for label in order if label in in_right - in_left and label in stays]
    batch = [label for label in order if label not in (*summed, *left_only, *right_only)]
    copied = 0
    if [*batch, *left_only, *summed, *right_only] != list(order):
        copied += _elements(left, sizes)
    if [*batch, *summed, *right_only, *left_only] != list(order):
        copied += _elements(right, sizes)
    labels = (label for label in (*batch, *left_only, *right_only) if label in stays and label in left + right)
    return "".join(labels), copied


def _is_read_later(label: str, later: Iterable[str], result: str) -> bool:
    return label in result or any(label in term for term in later)


def _elements(labels: Iterable[str], sizes: Mapping[str, int]) -> int:
    return prod(sizes[label] for label in labels)


def _reordered(terms: Iterable[str], order: str, sizes: Mapping[str, int]) -> int:
    """Count the elements of operands whose labels are not in order of first appearance."""
    places = ([order.index(label) for label in term] for term in terms)
    return sum(_elements(term, sizes) for term, place in zip(terms, places, strict=True) if place != sorted(place))
