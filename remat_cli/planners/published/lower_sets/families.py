"""Families of lower sets of a forward graph.

A lower set L contains, with each vertex, all vertices that it is computed from. Its boundary dL are the vertices in L
with a reader outside. Source: Kusumoto et al. 2019, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remat_cli.errors import PlannerRefuses
from remat_cli.planners.shared.forward_part import ForwardPart

# The largest number of vertices. The steps of the dynamic program, and its time, grow with the square.
_MOST_VERTICES = 6000


@dataclass(frozen=True, eq=False)
class LowerSets:
    """A family of lower sets in ascending size, from {} to V.

    Attributes:
        forward: the graph.
        members: [L, V] bool.
        boundary: [L, V] bool, the boundary of each set.
        bytes: [L] int64, M(L).
        tail_bytes: [L] int64, M(d+(L) \\ L) + M(d-(d+(L)) \\ L): gradients of the readers of L, and forward values that
            those readers also read (the last two terms of equation 2).
    """

    forward: ForwardPart
    members: NDArray[np.bool_]
    boundary: NDArray[np.bool_]
    bytes: NDArray[np.int64]
    tail_bytes: NDArray[np.int64]

    @classmethod
    def of(cls, forward: ForwardPart, members: NDArray[np.bool_]) -> LowerSets:
        """Complete a family: sort by size, drop duplicates, add {} and V.

        The family is given by its [L, V] members. Duplicates would give empty blocks in the traceback (a family of
        ancestors holds V twice where the sink is unique).
        """
        count = len(forward)
        ends = np.vstack([np.zeros(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)])
        members = _distinct(np.vstack([members, ends]))
        members = members[np.argsort(members.sum(axis=1), kind="stable")]
        outside = ~members
        reads, is_read = forward.edges[:, 1], forward.edges[:, 0]
        readers = _any_neighbour(members, is_read, reads) & outside
        co_parents = _any_neighbour(readers, reads, is_read) & outside
        return cls(
            forward=forward,
            members=members,
            boundary=_any_neighbour(outside, reads, is_read) & members,
            bytes=members @ forward.bytes,
            tail_bytes=readers @ forward.bytes + co_parents @ forward.bytes,
        )

    def __len__(self) -> int:
        return len(self.members)

    def numbers(self, sets: Iterable[Collection[int]]) -> list[int]:
        """Return the numbers of sets that are given by their vertices."""
        return [self._number[frozenset(members)] for members in sets]

    @cached_property
    def _number(self) -> dict[frozenset[int], int]:
        return {frozenset(np.flatnonzero(row).tolist()): number for number, row in enumerate(self.members)}


def _distinct(members: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the distinct rows, in lexicographic order."""
    packed = np.ascontiguousarray(np.packbits(members, axis=1))
    rows = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first = np.unique(rows, return_index=True)
    return members[first]


def _any_neighbour(flags: NDArray[np.bool_], source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell for each row and vertex whether a neighbour is flagged.

    The neighbours of vertex v are the sources u of edges (u, v).
    """
    flagged = np.zeros_like(flags)
    order = np.argsort(target, kind="stable")
    targets, starts = np.unique(target[order], return_index=True)
    if len(targets):
        flagged[:, targets] = np.logical_or.reduceat(flags[:, source[order]], starts, axis=1)
    return flagged


def pruned_family(forward: ForwardPart) -> LowerSets:
    """Return the family of the approximate DP: the ancestors of each vertex.

    Each set includes the vertex itself. Source: Kusumoto et al. 2019, section 4.3. At most V + 2 sets.

    Raises:
        PlannerRefuses: the graph is too large.
    """
    _check_size(forward)
    members = np.eye(len(forward), dtype=np.bool_)
    for u, v in forward.edges[np.argsort(forward.edges[:, 1], kind="stable")]:
        members[v] |= members[u]
    return LowerSets.of(forward, members)


def prefix_family(forward: ForwardPart, order: NDArray[np.int64], lengths: Sequence[int]) -> LowerSets:
    """Return the prefixes of a topological order of these lengths.

    Raises:
        PlannerRefuses: the graph is too large.
    """
    _check_size(forward)
    place = np.empty(len(forward), dtype=np.int64)
    place[order] = np.arange(len(forward))
    return LowerSets.of(forward, place < np.array(lengths, dtype=np.int64)[:, None])


def _check_size(forward: ForwardPart) -> None:
    if len(forward) > _MOST_VERTICES:
        raise PlannerRefuses(
            f"{forward.graph.name!r} has {len(forward)} forward ops; the memory and time of lower-set planners grow "
            f"with the square of that, and they take at most {_MOST_VERTICES}",
            hint="use a planner for large graphs: dtr",
        )


def all_lower_sets(forward: ForwardPart, most: int) -> LowerSets:
    """Return the family of the exact DP: every lower set.

    Source: Kusumoto et al. 2019, section 4.2. Between V + 1 sets (a chain) and 2^V (no edges).

    Raises:
        PlannerRefuses: there are more than `most` sets, or the graph is too large.
    """
    _check_size(forward)
    bitsets: list[int] = []
    for layer in _layers(forward, most):
        bitsets += layer
        if len(bitsets) > most:
            raise PlannerRefuses(
                f"{forward.graph.name!r} has too many lower sets to try them all: {len(bitsets)} were found with up "
                f"to {layer[0].bit_count()} of {len(forward)} forward ops, and at most {most} are taken",
                hint="use approx_dp, which takes one set for each forward op; or raise max_lower_sets",
            )
    width = -(-len(forward) // 8)
    packed = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in bitsets), dtype=np.uint8)
    members = np.unpackbits(packed.reshape(len(bitsets), width), axis=1, count=len(forward), bitorder="little")
    return LowerSets.of(forward, members.astype(np.bool_))


def _layers(forward: ForwardPart, most: int) -> Iterator[list[int]]:
    """Yield the lower sets of 0, 1, 2, ... vertices, as bitsets.

    A layer of more than `most` sets is incomplete.
    """
    reads, readers = [0] * len(forward), [0] * len(forward)
    for u, v in forward.edges.tolist():
        reads[v] |= 1 << u
        readers[u] |= 1 << v
    # The value of each set is the vertices that can be added.
    layer = {0: sum(1 << v for v, sources in enumerate(reads) if not sources)}
    while layer:
        yield list(layer)
        grown: dict[int, int] = {}
        for members, ready in layer.items():
            if len(grown) > most:
                break
            for v in _bits(ready):
                larger = members | 1 << v
                if larger not in grown:
                    freed = (w for w in _bits(readers[v]) if not reads[w] & ~larger)
                    grown[larger] = (ready ^ 1 << v) | sum(1 << w for w in freed)
        layer = grown


def _bits(bitset: int) -> Iterator[int]:
    while bitset:
        lowest = bitset & -bitset
        yield lowest.bit_length() - 1
        bitset ^= lowest
