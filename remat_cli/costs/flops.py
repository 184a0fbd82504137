"""Time counted in floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.graph import Graph, Op

_BYTES_PER_OPERATION = 4


@dataclass(frozen=True, slots=True)
class Flops:
    """An op takes as long as it has FLOPs: data movement is free, and no device is needed.

    An op of which only the bytes are known counts as one operation for each 4 bytes that it moves.
    """

    time_unit: ClassVar[str] = "flop"
    remedy: ClassVar[str] = "give these ops 'flops' in the file, or keep the times that the file has (cost model given)"

    def time(self, graph: Graph, op: Op) -> int | None:
        """Return the FLOPs of `op`."""
        if op.flops is not None:
            return op.flops
        return None if op.moved_bytes is None else op.moved_bytes // _BYTES_PER_OPERATION

    def grad_time(self, graph: Graph, op: Op) -> int | None:
        """Return the FLOPs of the backward of `op`."""
        return op.grad_flops
