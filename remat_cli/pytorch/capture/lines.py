"""The reading of a model with many blocks, extrapolated from three readings with few.

A *reading* is a nest of lists. One more block makes each list longer by one stretch, and changes the numbers in names
("mm_27", "model.layers.5.mlp"). A number is on a line if it grows by the same amount from block to block, and from
model to model. Two readings give the lines, and the third must agree exactly.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.graph import Phase, Tensor
from remat_cli.formats.reader import Reading

# Numbers in texts; those that begin with 0, or are long, belong to fractions and addresses, and stay as they are.
_NUMBER = re.compile(r"(?<!\d)(0|[1-9]\d{0,8})(?!\d)")


@dataclass(frozen=True, eq=False)
class _List:
    """One of the lists that a reading consists of.

    Attributes:
        items: tensors, ops with their operators, or names.
        forms: each item without the numbers in its texts.
        counts: for each item, how many numbers its texts have.
        numbers: these numbers, of all items one after the other.
    """

    items: tuple[Any, ...]
    forms: tuple[Hashable, ...]
    counts: tuple[int, ...]
    numbers: NDArray[np.int64]

    @classmethod
    def of(cls, items: Iterable[Any]) -> _List:
        items = tuple(items)
        taken = [form_and_numbers(item) for item in items]
        numbers = np.array([number for _, of in taken for number in of], dtype=np.int64)
        return cls(items, tuple(form for form, _ in taken), tuple(len(of) for _, of in taken), numbers)

    def equals(self, other: _List) -> bool:
        return np.array_equal(self.numbers, other.numbers) and self.forms == other.forms

    def renumbered(self) -> tuple[Any, ...]:
        """Return the items with these numbers in their texts."""
        numbers = iter(self.numbers.tolist())
        return tuple(_renumbered(item, numbers) for item in self.items)


def followed(readings: Sequence[Reading], more: int) -> Reading | None:
    """Return the reading of a model with more blocks, or None.

    None if three readings do not determine it.

    Args:
        readings: of the model with a number of blocks, with one more, and with two more. What is hashed otherwise (the
            signatures of ops) is written out in them: a hash is on no line.
        more: how many blocks more than the first of these the model has.

    Raises:
        GraphError: the lines do not lead to a graph.
    """
    tables: list[tuple[Any, ...]] = []
    for lists in zip(*map(_tables, readings), strict=True):
        if len({len(of) for of in lists}) != 1:
            return None
        followed = [_list_followed(more, *map(_List.of, same)) for same in zip(*lists, strict=True)]
        tables.append(tuple(item for of in followed if of is not None for item in of.renumbered()))
        if None in followed:
            return None
    tensors, ops, outputs, parameters, gradients, frozen = tables
    graph = replace(
        readings[0].graph,
        tensors={tensor.name: tensor for tensor in tensors},
        ops=tuple(op for op, _ in ops),
        outputs=outputs,
    )
    return replace(
        readings[0],
        graph=graph,
        operators={op.name: operator for op, operator in ops},
        parameters=parameters,
        gradients=gradients,
        frozen=frozen,
    )


def _tables(reading: Reading) -> Iterator[list[tuple[Any, ...]]]:
    """Yield tensors, ops, and names, as lists for extrapolation.

    A block makes each list longer in at most one place.
    """
    graph = reading.graph
    phase: Phase | None = None
    tensors: list[tuple[Phase | None, Tensor]] = []
    for tensor in graph.tensors.values():
        if tensor.name in graph.producer:  # constants, which nothing produces, stand among what the phase makes
            phase = graph.producer[tensor.name].phase
        tensors.append((phase, tensor))
    yield _by_phase(tensors)
    yield _by_phase((op.phase, (op, reading.operators[op.name])) for op in graph.ops)
    yield [graph.outputs]
    yield [reading.parameters]
    yield [reading.gradients]
    yield [reading.frozen]


def _by_phase(items: Iterable[tuple[Phase | None, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(item for _, item in run) for _, run in groupby(items, itemgetter(0))]


def _list_followed(more: int, short: _List, longer: _List, longest: _List) -> _List | None:
    cuts = (cut for cut in _cuts(short, longer) if _cut_followed(short, longer, cut, 2).equals(longest))
    cut = next(cuts, None)
    whole = None if cut is None else _cut_followed(short, longer, cut, more)
    return None if whole is None or (whole.numbers < 0).any() else whole


def _cuts(short: _List, longer: _List) -> Iterator[int]:
    """Yield the places where a block may have been put into a list: behind one of the same form."""
    one, other = short.forms, longer.forms
    length = len(other) - len(one)
    for cut in range(max(length, len(one) - _equal(one[::-1], other[::-1])), _equal(one, other) + 1):
        if length >= 0 and other[cut - length : cut] == other[cut : cut + length]:
            yield cut


def _equal(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return how many items at their beginning two lists have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _cut_followed(short: _List, longer: _List, cut: int, more: int) -> _List:
    """Return the list of a model with more blocks.

    The list of one more block must have its addition at a cut of the shorter list.
    """
    block = slice(cut, cut + len(longer.items) - len(short.items))
    begin, size = sum(longer.counts[:cut]), sum(longer.counts[block])
    before = slice(begin - size, begin)
    added = longer.numbers[begin : begin + size]
    step = np.delete(longer.numbers, np.arange(begin, begin + size)) - short.numbers
    moved = short.numbers + more * step
    new = moved[before] + np.outer(np.arange(1, more + 1), added - longer.numbers[before])

    def joined(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*one[:cut], *other[block] * more, *one[cut:])

    return _List(
        joined(short.items, longer.items),
        joined(short.forms, longer.forms),
        joined(short.counts, longer.counts),
        np.concatenate((moved[:begin], new.ravel(), moved[begin:])),
    )


def form_and_numbers(value: Any) -> tuple[Hashable, list[int]]:
    """Return a value without the numbers in its texts, and these numbers in order."""
    numbers: list[int] = []
    return _form(value, numbers), numbers


def _form(value: Any, numbers: list[int]) -> Hashable:
    """Return all of a value but the numbers in its texts, which are appended to `numbers`."""
    if type(value) is str:
        pieces = _NUMBER.split(value)
        numbers.extend(map(int, pieces[1::2]))
        return tuple(pieces[::2])
    if is_dataclass(value):
        return type(value), *(_form(getattr(value, name), numbers) for name in _names(value.__class__))
    if isinstance(value, tuple):
        return tuple, *(_form(item, numbers) for item in value)
    if isinstance(value, Mapping):
        return tuple(value), *(_form(item, numbers) for item in value.values())
    return type(value), repr(value)  # 1, 1.0 and True are equal, and are not the same


def _renumbered(value: Any, numbers: Iterator[int]) -> Any:
    """Return a value with other numbers in its texts, which come in the same order."""
    if type(value) is str:
        return _NUMBER.sub(lambda _: str(next(numbers)), value)
    if is_dataclass(value):
        return value.__class__(*(_renumbered(getattr(value, name), numbers) for name in _names(value.__class__)))
    if isinstance(value, tuple):
        return tuple(_renumbered(item, numbers) for item in value)
    if isinstance(value, Mapping):
        return {name: _renumbered(item, numbers) for name, item in value.items()}
    return value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
