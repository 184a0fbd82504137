"""A request for a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from remat_cli.errors import UsageError
from remat_cli.units import BudgetSpec, parse_budget


class ChunkOrder(StrEnum):
    """Which rank holds which chunk, with several chunks a rank."""

    INTERLEAVED = "interleaved"  # rank 0, 1, 2, 0, 1, 2: each pass goes round the ranks
    V = "v"  # rank 0, 1, 2, 2, 1, 0: the last chunk is on the first rank


@dataclass(frozen=True)
class PipelineRequest:
    """A request for a pipeline.

    Attributes:
        stages: number of ranks.
        microbatches: number of microbatches of a step; the graph is one of them.
        budgets: memory of each rank, or one for all. A share is one of the rank's peak under 1F1B without recomputation
            (GPipe with several chunks a rank); min is the least with which this rank runs one microbatch at a time.
        chunks: number of chunks of each rank.
        chunk_order: which rank holds which chunk.
        cuts: first ops of all chunks but the first, or patterns of their modules; None: chosen with the plan.
        bytes_per_time: rate between two ranks, in bytes per unit of the graph's time; None: transfers take no time.
        split_backward: whether gradients of weights are jobs of their own.

    Raises:
        UsageError: a number is below what a pipeline needs, or there are budgets for another number of ranks.
    """

    stages: int
    microbatches: int
    budgets: tuple[BudgetSpec, ...]
    chunks: int = 1
    chunk_order: ChunkOrder = ChunkOrder.INTERLEAVED
    cuts: tuple[str, ...] | None = None
    bytes_per_time: Fraction | None = None
    split_backward: bool = False

    def __post_init__(self) -> None:
        for name, number, least in (("stages", self.stages, 2), ("microbatches", self.microbatches, 1),
                                    ("chunks", self.chunks, 1)):  # fmt: skip
            if number < least:
                raise UsageError(f"a pipeline of {number} {name} is not possible", hint=f"give {least} or more")
        if len(self.budgets) not in (1, self.stages):
            raise UsageError(
                f"{len(self.budgets)} budgets do not fit {self.stages} ranks",
                hint=f"give one for all ranks, or {self.stages}: --budget 40GB,40GB,...",
            )
        if self.cuts is not None and len(self.cuts) != self.stages * self.chunks - 1:
            raise UsageError(
                f"{len(self.cuts)} cuts do not make {self.stages * self.chunks} chunks",
                hint=f"name the first op or module of {self.stages * self.chunks - 1} chunks, or give --cuts auto",
            )

    def at(self, bytes_per_time: Fraction | None) -> PipelineRequest:
        """Return the same request with this rate between ranks."""
        return replace(self, bytes_per_time=bytes_per_time)

    @property
    def rank_of(self) -> tuple[int, ...]:
        """[chunks] rank of each chunk."""
        ranks = range(self.stages)
        rows = [
            reversed(ranks) if self.chunk_order is ChunkOrder.V and row % 2 else ranks for row in range(self.chunks)
        ]
        return tuple(rank for row in rows for rank in row)

    def budget_of(self, rank: int) -> BudgetSpec:
        """Return the budget of a rank."""
        return self.budgets[rank if len(self.budgets) > 1 else 0]


def parse_rank_budgets(text: str) -> tuple[BudgetSpec, ...]:
    """Parse a budget for all ranks, or one for each, such as "40GB,40GB".

    Raises:
        UsageError: a budget is not understood.
    """
    return tuple(parse_budget(part.strip()) for part in text.split(","))
