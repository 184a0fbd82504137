"""Orders of jobs: the published families, and orders made for the times and memory of given chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from remat_cli.core.graph import Phase
from remat_cli.pipelines.curve import ChunkPoint
from remat_cli.pipelines.jobs import RankJob

Order = tuple[tuple[RankJob, ...], ...]


def gpipe(rank_of: Sequence[int], microbatches: int) -> Order:
    """Return GPipe's order: all forward passes, then all backward passes (Huang et al. 2019)."""
    forward = [RankJob(chunk, i, Phase.FORWARD) for chunk in range(len(rank_of)) for i in range(microbatches)]
    backward = [
        RankJob(chunk, i, Phase.BACKWARD) for chunk in reversed(range(len(rank_of))) for i in range(microbatches)
    ]
    ranks = range(max(rank_of) + 1)
    return tuple(tuple(job for job in (*forward, *backward) if rank_of[job.chunk] == rank) for rank in ranks)


def one_f_one_b(ranks: int, microbatches: int, *, ahead: int = 0) -> Order:
    """Return 1F1B with one chunk a rank (Narayanan et al. 2019).

    Args:
        ranks: number of ranks.
        microbatches: number of microbatches.
        ahead: forward passes that each rank runs ahead, beyond 1F1B's; negative: fewer, which keeps less in flight.
    """
    order = []
    for rank in range(ranks):
        warmup = min(microbatches, max(0, ranks - 1 - rank + ahead))
        forward = [RankJob(rank, i, Phase.FORWARD) for i in range(microbatches)]
        backward = [RankJob(rank, i, Phase.BACKWARD) for i in range(microbatches)]
        jobs = forward[:warmup]
        for i in range(microbatches):
            jobs += [*forward[warmup + i : warmup + i + 1], backward[i]]
        order.append(tuple(jobs))
    return tuple(order)


@dataclass(frozen=True)
class ListScheduler:
    """Makes an order by running jobs as soon as they can, backward passes first.

    A rank admits a microbatch if all its chunks on this rank, with what is in flight, fit its memory.

    Attributes:
        rank_of: [chunks] rank of each chunk.
        microbatches: number of microbatches.
        points: [chunks] plan of each chunk.
        memory: [ranks] bytes beside the fixed ones.
        transfers: [chunks - 1] time from each chunk to the next one.
        deepest_first: whether, among forward passes, that of the latest chunk comes first; otherwise the first chunk's.
    """

    rank_of: Sequence[int]
    microbatches: int
    points: Sequence[ChunkPoint]
    memory: Sequence[int]
    transfers: Sequence[int]
    deepest_first: bool = True

    def order(self) -> Order | None:
        """Return the order; None if jobs wait for each other, or a microbatch does not fit."""
        ranks, chunks = max(self.rank_of) + 1, len(self.rank_of)
        # Jobs whose inputs come, with the time at which they are there.
        ready: list[dict[RankJob, int]] = [{} for _ in range(ranks)]
        ready[self.rank_of[0]] = {RankJob(0, i, Phase.FORWARD): 0 for i in range(self.microbatches)}
        jobs: list[list[RankJob]] = [[] for _ in range(ranks)]
        admitted: list[set[int]] = [set() for _ in range(ranks)]
        moments = [(0, rank) for rank in range(ranks)]
        free_at = [0] * ranks
        while moments:
            time, rank = heappop(moments)
            if time < free_at[rank]:
                continue
            waiting = [
                job for job, since in ready[rank].items() if since <= time and self._may_run(job, admitted[rank])
            ]
            if not waiting:
                moments_to_come = [(since, rank) for since in ready[rank].values() if since > time]
                if moments_to_come:
                    heappush(moments, min(moments_to_come))
                continue
            job = min(waiting, key=self._priority)
            del ready[rank][job]
            jobs[rank].append(job)
            end = free_at[rank] = time + self.points[job.chunk].time(job.phase)
            admitted[rank].add(job.microbatch)
            if job.phase is Phase.BACKWARD and job.chunk == self.rank_of.index(rank):
                admitted[rank].discard(job.microbatch)
            heappush(moments, (end, rank))
            following = self._next(job)
            if following is not None:
                target = self.rank_of[following.chunk]
                arrival = end + (0 if target == rank else self.transfers[min(job.chunk, following.chunk)])
                ready[target][following] = arrival
                heappush(moments, (max(arrival, free_at[target]), target))
        return tuple(map(tuple, jobs)) if sum(map(len, jobs)) == 2 * chunks * self.microbatches else None

    def _priority(self, job: RankJob) -> tuple[int, int, int]:
        if job.phase is Phase.BACKWARD:
            return (0, job.microbatch, job.chunk)
        return (1, -job.chunk if self.deepest_first else job.chunk, job.microbatch)

    def _may_run(self, job: RankJob, admitted: set[int]) -> bool:
        if job.microbatch in admitted:
            return True
        rank = self.rank_of[job.chunk]
        own = [self.points[chunk] for chunk in range(len(self.rank_of)) if self.rank_of[chunk] == rank]
        kept = sum(point.kept_bytes for point in own)
        # While any job of a microbatch runs, the others keep all that they have on this rank.
        running = max(kept - point.kept_bytes + max(map(point.peak_bytes, Phase)) for point in own)
        return len(admitted) * kept + running <= self.memory[rank]

    def _next(self, job: RankJob) -> RankJob | None:
        if job.phase is Phase.FORWARD:
            if job.chunk == len(self.rank_of) - 1:
                return RankJob(job.chunk, job.microbatch, Phase.BACKWARD)
            return RankJob(job.chunk + 1, job.microbatch, Phase.FORWARD)
        return None if job.chunk == 0 else RankJob(job.chunk - 1, job.microbatch, Phase.BACKWARD)
