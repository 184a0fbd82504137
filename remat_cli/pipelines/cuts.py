"""Choice of cuts: chunks of even work, with little sent between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.graph import Draft, Graph, Phase
from remat_cli.errors import UsageError
from remat_cli.pipelines.chunks import StageCuts, forward_ops

# Largest work of a chunk, as a multiple of the least possible: within it, the cuts that send least are taken.
_SLACK = (1.0, 1.05, 1.25)
_ROUNDS = 40  # of the bisection


def named_cuts(graph: Graph, names: Sequence[str]) -> StageCuts:
    """Return the cuts before these ops, or before the first op of modules that match these patterns.

    Raises:
        UsageError: nothing in the forward pass has the name.
    """
    ops = forward_ops(graph)
    known = {op.name for op in ops}
    first_ops = []
    for name in names:
        first = name if name in known else next((op.name for op in ops if _is_in(op.module, name)), None)
        if first is None:
            raise UsageError(
                f"{graph.name}: no forward op and no module is called {name!r}",
                hint="name the first op or module of each stage but the first one, or give --cuts auto",
            )
        first_ops.append(first)
    return StageCuts(tuple(first_ops))


def _is_in(module: str | None, pattern: str) -> bool:
    return module is not None and (fnmatchcase(module, pattern) or module.startswith(f"{pattern}."))


def even_cuts(graph: Graph, chunks: int) -> Iterator[StageCuts]:
    """Yield different cuts into chunks of nearly even work, the most even ones first.

    Work is the time of forward and backward ops. Of all cuts whose largest chunk is within a slack of the least
    possible, those are taken that send the fewest bytes.

    Raises:
        UsageError: the forward pass has fewer ops than chunks.
    """
    ops = forward_ops(graph)
    if len(ops) < chunks:
        raise UsageError(
            f"{graph.name}: {len(ops)} forward ops cannot be cut into {chunks} stages", hint="ask for fewer stages"
        )
    work, sent = _work(graph), _sent(graph)
    least = _least_largest(work, chunks)
    seen = set()
    for slack in _SLACK:
        places = _cheapest(work, sent, chunks, int(least * slack))
        if places not in seen:
            seen.add(places)
            yield StageCuts(tuple(ops[place].name for place in places))


def _work(graph: Draft) -> NDArray[np.int64]:
    """[forward ops + 1] time of all ops before each forward op, with their backward ops."""
    number = {op.name: index for index, op in enumerate(forward_ops(graph))}
    work = np.zeros(len(number) + 1, dtype=np.int64)
    for op in graph.ops:
        at = number.get(op.name if op.phase is Phase.FORWARD else op.grad_of or "", len(number) - 1)
        work[at + 1] += op.time
    return np.cumsum(work)


def _sent(graph: Draft) -> NDArray[np.int64]:
    """[forward ops] bytes that cross a cut before each forward op."""
    ops = forward_ops(graph)
    last_read: dict[str, int] = {}
    for index, op in enumerate(ops):
        last_read.update(dict.fromkeys(op.inputs, index))
    crossing = np.zeros(len(ops) + 1, dtype=np.int64)
    for index, op in enumerate(ops):
        for name in op.outputs:
            crossing[index + 1] += graph.tensors[name].bytes
            crossing[max(index, last_read.get(name, index)) + 1] -= graph.tensors[name].bytes
    return np.cumsum(crossing)[:-1]


def _least_largest(work: NDArray[np.int64], chunks: int) -> int:
    """Return the least work of the largest chunk, by bisection."""
    low, high = int(max(np.diff(work).max(), work[-1] // chunks)), int(work[-1])
    for _ in range(_ROUNDS):
        if low >= high:
            break
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(work, chunks, middle) else (middle + 1, high)
    return high


def _fits(work: NDArray[np.int64], chunks: int, most: int) -> bool:
    """Tell whether chunks of at most this work hold all ops."""
    place = 0
    for _ in range(chunks):
        place = int(np.searchsorted(work, work[place] + most, side="right")) - 1
        if place >= len(work) - 1:
            return True
    return False


def _cheapest(work: NDArray[np.int64], sent: NDArray[np.int64], chunks: int, most: int) -> tuple[int, ...]:
    """Return the places of the cuts that send the fewest bytes.

    Args:
        work: see `_work`.
        sent: see `_sent`.
        chunks: number of chunks, none of them empty.
        most: largest work of a chunk; where ops are too large for that, the last chunks may exceed it.
    """
    count = len(sent)
    unreachable = np.iinfo(np.int64).max // 4
    cost = np.full((chunks, count + 1), unreachable, dtype=np.int64)
    before = np.zeros((chunks, count + 1), dtype=np.int64)
    cost[0, 1:] = np.where(work[1:] <= most, 0, unreachable)
    for chunk in range(1, chunks):
        for end in range(chunk + 1, count + 1):
            begin = max(chunk, int(np.searchsorted(work, work[end] - most, side="left")))
            if begin < end:
                costs = cost[chunk - 1, begin:end] + sent[begin:end]
                best = int(np.argmin(costs))
                cost[chunk, end], before[chunk, end] = costs[best], begin + best
    if cost[-1, count] >= unreachable:  # every chunk needs an op of its own, which even work does not leave it
        return tuple(range(count - chunks + 1, count))
    places, end = [], count
    for chunk in range(chunks - 1, 0, -1):
        end = int(before[chunk, end])
        places.append(end)
    return tuple(reversed(places))
