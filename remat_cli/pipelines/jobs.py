"""Jobs of a pipeline, and pipelines: an order of jobs for each rank, and a plan for each job's chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from remat_cli.core.schedule import Schedule
from remat_cli.pipelines.chunks import Chunk, JobKind


class RankJob(NamedTuple):
    """One pass of a chunk for one microbatch.

    Attributes:
        chunk: index of the chunk.
        microbatch: index of the microbatch.
        kind: which pass.
    """

    chunk: int
    microbatch: int
    kind: JobKind

    @property
    def text(self) -> str:
        """The job as torch's pipelining writes it, such as "1F0": chunk, pass, microbatch."""
        return f"{self.chunk}{self.kind}{self.microbatch}"


@dataclass(frozen=True)
class Room:
    """Memory for what plans choose.

    Attributes:
        limits: [ranks] bytes beside the fixed ones.
        sent: [chunks] bytes of gradients that go to other ranks, and stay on their own until the end.
    """

    limits: Sequence[int]
    sent: Sequence[int]

    def of(self, rank: int, jobs: Sequence[RankJob]) -> list[int]:
        """Return the bytes that are left at each job of a rank."""
        left, limits = self.limits[rank], []
        for job in jobs:
            limits.append(left)
            left -= self.sent[job.chunk] if job.kind.sends_gradients else 0
        return limits


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A plan for all ranks.

    Attributes:
        chunks: chunks of the graph, in the order of the forward pass.
        rank_of: [chunks] rank of each chunk.
        microbatches: number of microbatches.
        orders: [ranks] jobs of each rank, in the order in which it runs them.
        schedules: schedule of the chunk's graph for each chunk and microbatch.
        bytes_per_time: rate of the link between two ranks; None if transfers take no time.
    """

    chunks: tuple[Chunk, ...]
    rank_of: tuple[int, ...]
    microbatches: int
    orders: tuple[tuple[RankJob, ...], ...]
    schedules: Mapping[tuple[int, int], Schedule]
    bytes_per_time: Fraction | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.orders)
