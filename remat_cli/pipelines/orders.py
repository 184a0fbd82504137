"""Orders of jobs: the published families, and orders made for the times and memory of given chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from remat_cli.pipelines.chunks import JobKind
from remat_cli.pipelines.curve import ChunkPoint
from remat_cli.pipelines.jobs import RankJob, Room

Order = tuple[tuple[RankJob, ...], ...]


def gpipe(rank_of: Sequence[int], microbatches: int) -> Order:
    """Return GPipe's order: all forward passes, then all backward passes (Huang et al. 2019)."""
    forward = [RankJob(chunk, i, JobKind.FORWARD) for chunk in range(len(rank_of)) for i in range(microbatches)]
    backward = [
        RankJob(chunk, i, JobKind.BACKWARD) for chunk in reversed(range(len(rank_of))) for i in range(microbatches)
    ]
    ranks = range(max(rank_of) + 1)
    return tuple(tuple(job for job in (*forward, *backward) if rank_of[job.chunk] == rank) for rank in ranks)


def one_at_a_time(rank_of: Sequence[int], microbatches: int) -> Order:
    """Return the order that keeps least: a rank ends a microbatch before it begins the next one."""
    ranks = []
    for rank in range(max(rank_of) + 1):
        own = [chunk for chunk, of in enumerate(rank_of) if of == rank]
        ranks.append(tuple(
            job for i in range(microbatches)
            for job in (*(RankJob(chunk, i, JobKind.FORWARD) for chunk in own),
                        *(RankJob(chunk, i, JobKind.BACKWARD) for chunk in reversed(own)))
        ))  # fmt: skip
    return tuple(ranks)


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
        forward = [RankJob(rank, i, JobKind.FORWARD) for i in range(microbatches)]
        backward = [RankJob(rank, i, JobKind.BACKWARD) for i in range(microbatches)]
        order.append(_alternating(forward, backward, warmup))
    return tuple(order)


def interleaved(ranks: int, chunks: int, microbatches: int) -> Order:
    """Return interleaved 1F1B (Narayanan et al. 2021).

    Args:
        ranks: number of ranks; it divides the number of microbatches.
        chunks: chunks of each rank.
        microbatches: number of microbatches.
    """
    # Microbatches go in groups, one for each rank; a group passes all chunks of a rank before the next one comes.
    turns = [
        (row, i)
        for start in range(0, microbatches, ranks)
        for row in range(chunks)
        for i in range(start, start + ranks)
    ]
    order = []
    for rank in range(ranks):
        forward = [RankJob(row * ranks + rank, i, JobKind.FORWARD) for row, i in turns]
        backward = [RankJob((chunks - 1 - row) * ranks + rank, i, JobKind.BACKWARD) for row, i in turns]
        warmup = min(len(turns), 2 * (ranks - rank - 1) + (chunks - 1) * ranks)
        order.append(_alternating(forward, backward, warmup))
    return tuple(order)


def _alternating(forward: Sequence[RankJob], backward: Sequence[RankJob], warmup: int) -> tuple[RankJob, ...]:
    jobs = [*forward[:warmup]]
    for i, job in enumerate(backward):
        jobs += [*forward[warmup + i : warmup + i + 1], job]
    return tuple(jobs)


def with_weights_apart(order: Order, delays: Sequence[int]) -> Order:
    """Return an order with each backward pass as two jobs.

    1F1B with delays of 0, 1, 2, ... is ZB-H1 (Qi et al. 2024), with more forward passes ahead ZB-H2.

    Args:
        order: order of whole backward passes.
        delays: [ranks] passes of inputs between a microbatch's pass of inputs and that of weights.
    """
    ranks = []
    for jobs, delay in zip(order, delays, strict=True):
        split: list[RankJob] = []
        waiting: list[RankJob] = []
        for job in jobs:
            if job.kind is not JobKind.BACKWARD:
                split.append(job)
                continue
            split.append(job._replace(kind=JobKind.INPUTS))
            waiting.append(job._replace(kind=JobKind.WEIGHTS))
            if len(waiting) > delay:
                split.append(waiting.pop(0))
        ranks.append((*split, *waiting))
    return tuple(ranks)


@dataclass(frozen=True)
class Preference:
    """What a rank prefers while an order is made.

    Attributes:
        deepest_first: whether, among forward passes, that of the latest chunk comes first; otherwise the first chunk's.
        in_flight: most microbatches between the forward pass of a rank's first chunk and the end of its backward pass,
            beyond the number of ranks that follow; None: no limit but memory.
        patient: whether a rank with nothing else to do waits, rather than run a pass of weights that would delay a job
            known to come.
        cautious: whether a forward pass leaves room for what its microbatch needs later; otherwise the order may not
            fit, or not end.
    """

    deepest_first: bool = True
    in_flight: int | None = None
    patient: bool = True
    cautious: bool = True


@dataclass(frozen=True)
class ListScheduler:
    """Makes an order by running jobs as soon as they can.

    Backward passes come first, then forward passes that fit the rank's memory, then passes of weights, which also make
    room. A forward pass leaves room for what its microbatch still needs on the rank, so that it can end.

    Attributes:
        rank_of: [chunks] rank of each chunk.
        microbatches: number of microbatches.
        points: [chunks] plan of each chunk.
        room: memory of each rank.
        transfers: [chunks - 1] time from each chunk to the next one.
        preference: what a rank prefers.
    """

    rank_of: Sequence[int]
    microbatches: int
    points: Sequence[ChunkPoint]
    room: Room
    transfers: Sequence[int]
    preference: Preference = Preference()

    def order(self) -> Order | None:
        """Return the order; None if jobs wait for each other, or a microbatch does not fit."""
        state = _Ranks(self)
        state.run()
        jobs = sum(map(len, state.jobs))
        return tuple(map(tuple, state.jobs)) if jobs == self.microbatches * len(self._kinds) else None

    @property
    def _kinds(self) -> list[JobKind]:
        return [kind for point in self.points for kind in point.passes]


@dataclass(eq=False)
class _Ranks:
    """All ranks while an order is made.

    Attributes:
        jobs: [ranks] jobs so far.
        arrivals: for a chunk and a kind of pass, when what each microbatch's pass reads is there, in their order.
        done: for a chunk and a kind of pass, how many microbatches have passed.
        kept: [ranks] bytes of the microbatches in flight, and of sent gradients.
    """

    scheduler: ListScheduler
    jobs: list[list[RankJob]] = field(init=False)
    arrivals: dict[tuple[int, JobKind], list[int]] = field(init=False)
    done: dict[tuple[int, JobKind], int] = field(init=False)
    kept: list[int] = field(init=False)
    own: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with all microbatches before the first chunk."""
        scheduler = self.scheduler
        ranks = range(max(scheduler.rank_of) + 1)
        keys = [(chunk, kind) for chunk, point in enumerate(scheduler.points) for kind in point.passes]
        self.jobs, self.kept = [[] for _ in ranks], [0 for _ in ranks]
        self.arrivals = {key: [] for key in keys}
        self.arrivals[0, JobKind.FORWARD] = [0] * scheduler.microbatches
        self.done = dict.fromkeys(keys, 0)
        self.own = [[chunk for chunk, of in enumerate(scheduler.rank_of) if of == rank] for rank in ranks]

    def run(self) -> None:
        """Run jobs until none can."""
        moments = [(0, rank) for rank in range(len(self.jobs))]
        free_at = [0] * len(self.jobs)
        while moments:
            time, rank = heappop(moments)
            if time < free_at[rank]:
                continue
            chosen, later = self._choose(rank, time)
            if chosen is None:
                if later is not None:
                    heappush(moments, (later, rank))
                continue
            end = free_at[rank] = self._start(rank, chosen, time)
            heappush(moments, (end, rank))
            for target, arrival in self._finish(chosen, end):
                heappush(moments, (max(arrival, free_at[target]), target))

    def _choose(self, rank: int, time: int) -> tuple[tuple[int, JobKind] | None, int | None]:
        """Return the next pass of a rank; without one, the moment at which one may come."""
        ready: list[tuple[int, JobKind]] = []
        coming: list[int] = []
        for chunk in self.own[rank]:
            for kind in self.scheduler.points[chunk].passes:
                key = (chunk, kind)
                arrivals, place = self.arrivals[key], self.done[key]
                if place < len(arrivals):
                    if arrivals[place] <= time:
                        ready.append(key)
                    else:
                        coming.append(arrivals[place])
        wanted = [key for key in ready if key[1] is not JobKind.WEIGHTS and self._may_run(rank, *key)]
        if wanted:
            return min(wanted, key=self._priority), None
        weights = [key for key in ready if key[1] is JobKind.WEIGHTS]
        soonest = min(coming, default=None)
        if not weights:
            return None, soonest
        first = min(weights, key=lambda key: (self.done[key], -key[0]))
        lasts = self.scheduler.points[first[0]].time(first[1])
        if self.scheduler.preference.patient and soonest is not None and 2 * (soonest - time) < lasts:
            return None, soonest
        return first, None

    def _priority(self, key: tuple[int, JobKind]) -> tuple[int, int, int]:
        chunk, kind = key
        if kind.sends_gradients:
            return (0, self.done[key], chunk)
        return (1, -chunk if self.scheduler.preference.deepest_first else chunk, self.done[key])

    def _may_run(self, rank: int, chunk: int, kind: JobKind) -> bool:
        """Tell whether a pass fits; a forward pass with what its microbatch needs later on this rank."""
        points, limit = self.scheduler.points, self.scheduler.room.limits[rank]
        point = points[chunk]
        if kind.sends_gradients:
            others = self.kept[rank] - point.left_bytes(JobKind.FORWARD)
            # Without passes of weights that could make room, it has to run.
            return others + point.peak_bytes(kind) <= limit or not any(
                self.done[other, JobKind.INPUTS] > self.done[other, JobKind.WEIGHTS]
                for other in self.own[rank]
                if JobKind.WEIGHTS in points[other].passes
            )
        own = self.own[rank]
        later = own[own.index(chunk) :]
        if chunk == own[0] and self.scheduler.preference.in_flight is not None:
            flying = self.done[chunk, JobKind.FORWARD] - min(self.done[chunk, kind] for kind in point.passes)
            if flying >= max(1, self.scheduler.preference.in_flight + len(self.jobs) - rank):
                return False
        if not self.scheduler.preference.cautious:
            return self.kept[rank] + point.peak_bytes(kind) <= limit
        needs = sum(points[other].kept_bytes for other in later)
        running = max(
            max(points[other].peak_bytes(kind) for kind in points[other].passes) - points[other].kept_bytes
            for other in own
        )
        return self.kept[rank] + needs + max(0, running) <= limit

    def _start(self, rank: int, key: tuple[int, JobKind], time: int) -> int:
        """Run a pass, and return its end."""
        chunk, kind = key
        point = self.scheduler.points[chunk]
        self.jobs[rank].append(RankJob(chunk, self.done[key], kind))
        self.done[key] += 1
        kinds = list(point.passes)
        before = point.left_bytes(kinds[kinds.index(kind) - 1]) if kind is not JobKind.FORWARD else 0
        self.kept[rank] += point.left_bytes(kind) - before
        if kind.sends_gradients:
            self.kept[rank] += self.scheduler.room.sent[chunk]
        return time + point.time(kind)

    def _finish(self, key: tuple[int, JobKind], end: int) -> list[tuple[int, int]]:
        """Hand on the results of a pass; return the ranks that get one, and when."""
        chunk, kind = key
        rank_of = self.scheduler.rank_of
        targets: list[tuple[int, JobKind]] = []
        if kind is JobKind.FORWARD:
            last = chunk == len(rank_of) - 1
            backward = list(self.scheduler.points[chunk].passes)[1]
            targets.append((chunk, backward) if last else (chunk + 1, kind))
        elif kind.sends_gradients:
            if kind is JobKind.INPUTS:
                targets.append((chunk, JobKind.WEIGHTS))
            if chunk > 0:
                targets.append((chunk - 1, kind))
        moments = []
        for target, of in targets:
            away = rank_of[target] != rank_of[chunk]
            arrival = end + (self.scheduler.transfers[min(chunk, target)] if away else 0)
            self.arrivals[target, of].append(arrival)
            moments.append((rank_of[target], arrival))
        return moments
