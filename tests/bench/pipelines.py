"""Pipelines beside the orders of zero-bubble's schedulers, replayed by the same judge at equal memory.

Stages are equal, or the first one has an embedding, and the last one a head and a loss. A budget is a share of what
1F1B takes at most beside parameters and buffers. Of the schedulers, the fastest order that fits counts; they recompute
nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import process_time

from rich.console import Console
from rich.table import Table

from remat_cli.config import Request
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import plain_run
from remat_cli.pipelines import Pipeline, PipelinePlanning, PipelineRequest, StageCuts, plan_pipeline, replay_pipeline
from remat_cli.pipelines.chunks import Chunk, Residents, cut_graph
from remat_cli.pipelines.orders import one_f_one_b, with_weights_apart
from remat_cli.pipelines.request import ChunkOrder
from remat_cli.units import parse_budget
from tests.graphs import layered_step
from tests.places import ROOT
from tests.plans import prepared

THEIRS = ROOT / "tests" / "bench" / "results" / "zero_bubble_orders.csv"
SHARES = (1.0, 0.5, 1 / 3)
_TIMES = (10, 12, 8)
# Work of an embedding in the first layer, and of a head and a loss in the last one.
_MORE = {"f": (3, 6), "b": (0, 6), "w": (3, 6)}
_LOGITS = 4  # bytes that the loss keeps
NOBODY = Residents({}, {})


@dataclass(frozen=True)
class Case:
    """A pipeline to plan.

    Attributes:
        stages: "equal" or "real".
        ranks: number of ranks; each has two layers.
        microbatches: number of microbatches.
    """

    stages: str
    ranks: int
    microbatches: int

    def graph(self) -> Graph:
        """Return the step of one microbatch."""
        layers = 2 * self.ranks
        graph = layered_step(layers, times=_TIMES)
        if self.stages == "equal":
            return graph
        more = {f"{kind}{layer}": time for kind, times in _MORE.items()
                for layer, time in zip((1, layers), times, strict=True)}  # fmt: skip
        ops = tuple(op.edited(time=op.time + more.get(op.name, 0)) for op in graph.ops)
        last = f"s{layers}"
        tensors = {**graph.tensors, last: replace(graph.tensors[last], bytes=graph.tensors[last].bytes + _LOGITS)}
        return graph.edited(ops=ops, tensors=tensors).checked()

    def cuts(self, chunks: int) -> StageCuts:
        """Return cuts into equally many layers, with some chunks a rank."""
        layers = 2 // chunks
        return StageCuts(tuple(f"f{1 + index * layers}" for index in range(1, self.ranks * chunks)), True)

    def rank_of(self, chunks: int) -> tuple[int, ...]:
        """[chunks] rank of each chunk; two chunks a rank as a V."""
        ranks = tuple(range(self.ranks))
        return ranks if chunks == 1 else (*ranks, *reversed(ranks))

    def fixed(self, chunks: int) -> list[int]:
        """[ranks] bytes of gradients and buffers, with those of sent gradients."""
        return [
            sum(chunk.fixed_bytes(self.microbatches) for chunk in own)
            + self.microbatches * sum(_sent(chunk, self._chunks(chunks), self.rank_of(chunks)) for chunk in own)
            for own in (
                [chunk for chunk in self._chunks(chunks) if self.rank_of(chunks)[chunk.index] == rank]
                for rank in range(self.ranks)
            )
        ]

    def _chunks(self, chunks: int) -> tuple[Chunk, ...]:
        return cut_graph(self.graph(), self.cuts(chunks), NOBODY)

    def replayed(self, chunks: int, order: tuple[tuple[object, ...], ...]) -> tuple[int, int]:
        """Return the makespan of an order without recomputation, and the most bytes of a rank beside the fixed ones."""
        cut = self._chunks(chunks)
        runs = {chunk.index: plain_run(chunk.graph) for chunk in cut}
        schedules = {(chunk.index, i): runs[chunk.index] for chunk in cut for i in range(self.microbatches)}
        replay = replay_pipeline(
            Pipeline(cut, self.rank_of(chunks), self.microbatches, order, schedules)  # type: ignore[arg-type]
        )
        return replay.makespan, max(peak - fixed for peak, fixed in zip(replay.peaks, self.fixed(chunks), strict=True))

    def budget(self, share: float) -> int:
        """Return a share of what 1F1B takes beside the fixed bytes."""
        order = with_weights_apart(one_f_one_b(self.ranks, self.microbatches), [0] * self.ranks)
        return int(share * self.replayed(1, order)[1])

    def planned(self, chunks: int, beside: int) -> PipelinePlanning:
        """Plan within this memory beside the fixed bytes."""
        budgets = tuple(parse_budget(str(fixed + beside)) for fixed in self.fixed(chunks))
        request = PipelineRequest(
            stages=self.ranks,
            microbatches=self.microbatches,
            budgets=budgets,
            chunks=chunks,
            chunk_order=ChunkOrder.V,
            cuts=self.cuts(chunks).first_ops,
            split_backward=True,
        )
        return plan_pipeline(prepared(self.graph()), NOBODY, request, Request())


def _sent(chunk: Chunk, chunks: tuple[Chunk, ...], rank_of: tuple[int, ...]) -> int:
    return sum(
        other.backward_from.get(chunk.index, 0) for other in chunks if rank_of[other.index] != rank_of[chunk.index]
    )


def theirs() -> dict[tuple[Case, int], list[tuple[str, int, int]]]:
    """Return scheduler, bytes beside the fixed ones, and makespan of all orders, by case and chunks a rank."""
    found: dict[tuple[Case, int], list[tuple[str, int, int]]] = {}
    with THEIRS.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            case = Case(row["stages"], int(row["ranks"]), int(row["microbatches"]))
            found.setdefault((case, int(row["chunks"])), []).append(
                (row["scheduler"], int(row["bytes"]), int(row["makespan"]))
            )
    return found


HEAD = ("stages", "ranks", "microbatches", "chunks", "budget", "zero-bubble", "by", "remat", "bound", "seconds")


def rows(most_ranks: int = 4) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table.

    Args:
        most_ranks: cases with more ranks are left out.
    """
    for (case, chunks), orders in theirs().items():
        if case.ranks > most_ranks:
            continue
        for share in SHARES:
            beside = case.budget(share)
            began = process_time()
            planning = case.planned(chunks, beside)
            seconds = process_time() - began
            best = min(((time, name) for name, size, time in orders if size <= beside), default=None)
            ours = "none" if planning.replay is None else str(planning.replay.makespan)
            yield (case.stages, str(case.ranks), str(case.microbatches), str(chunks), f"{share:.0%}",
                   *(("none", "") if best is None else (str(best[0]), best[1])),
                   ours, str(planning.bound), f"{seconds:.1f}")  # fmt: skip


def pipelines(console: Console) -> None:
    """Print the table, up to four ranks; some minutes."""
    table = Table(*HEAD, title="Makespans at equal memory")
    for row in rows():
        table.add_row(*row)
    console.print(table)
