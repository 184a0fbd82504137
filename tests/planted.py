"""Tables of buffers with a known answer: a rectangle of time and memory that is cut into pieces."""

from __future__ import annotations

import random
from heapq import heappop, heappush

from remat_cli.core.buffers import Buffer

# Left, right, bottom, top.
Piece = tuple[int, int, int, int]
# How often a cut is a pinwheel of five pieces, which no straight cut through the whole leads back to.
_PINWHEELS = 0.3


def planted(count: int, capacity: int, seed: int, taken_out: float = 0.0) -> tuple[Buffer, ...]:
    """Return buffers that fit a capacity: without any taken out, they fill it at every moment.

    Args:
        count: of pieces, as nearly as pinwheels allow.
        capacity: of the arena.
        seed: of the cuts.
        taken_out: share of the buffers that are left out.
    """
    rng = random.Random(seed)
    whole = (0, 16 * count, 0, capacity)
    # The larger a piece, the sooner it is cut, but not always.
    pieces: list[tuple[float, int, Piece]] = [(0.0, 0, whole)]
    done: list[Piece] = []
    number = 0
    while pieces and len(pieces) + len(done) < count:
        _, _, piece = heappop(pieces)
        parts = _cut(piece, rng)
        if len(parts) == 1:
            done += parts
            continue
        for part in parts:
            number += 1
            heappush(pieces, (-_area(part) * rng.uniform(0.05, 1.0), number, part))
    buffers = [Buffer(left, right, top - bottom) for left, right, bottom, top in (*done, *(p for _, _, p in pieces))]
    rng.shuffle(buffers)
    return tuple(buffers[round(taken_out * len(buffers)) :])


def _area(piece: Piece) -> int:
    left, right, bottom, top = piece
    return (right - left) * (top - bottom)


def _cut(piece: Piece, rng: random.Random) -> list[Piece]:
    left, right, bottom, top = piece
    if right - left >= 3 and top - bottom >= 3 and rng.random() < _PINWHEELS:
        first, second = sorted(rng.sample(range(left + 1, right), 2))
        low, high = sorted(rng.sample(range(bottom + 1, top), 2))
        wheel = [
            (left, second, bottom, low),
            (second, right, bottom, high),
            (first, right, high, top),
            (left, first, low, top),
            (first, second, low, high),
        ]
        # As often as not it turns the other way.
        return wheel if rng.random() < 0.5 else [(left + right - b, left + right - a, c, d) for a, b, c, d in wheel]
    if right - left >= 2 and (top - bottom < 2 or rng.random() < 0.5):
        at = rng.randrange(left + 1, right)
        return [(left, at, bottom, top), (at, right, bottom, top)]
    if top - bottom >= 2:
        at = rng.randrange(bottom + 1, top)
        return [(left, right, bottom, at), (left, right, at, top)]
    return [piece]
