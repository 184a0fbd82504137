"""The judge of pipelines: replays all ranks op by op, and measures memory, transfers and makespan.

It shares nothing with the search. Each chunk's schedule is replayed by `simulate`; this module adds what several ranks
have to each other: when a job may begin, and what lies in a rank's memory beside the running job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil

from remat_cli.core.schedule import Compute, Free, Inplace, Schedule
from remat_cli.core.simulate import simulate
from remat_cli.errors import InvalidSchedule
from remat_cli.pipelines.chunks import Chunk, JobKind
from remat_cli.pipelines.jobs import Pipeline, RankJob


@dataclass(frozen=True)
class Stretch:
    """One pass of a chunk's schedule, replayed.

    Attributes:
        levels: memory of this microbatch while each step runs, without the chunk's fixed bytes.
        times: [steps + 1] time at the start, and after each step, from the start of the pass.
        left_bytes: memory of this microbatch after the pass.
    """

    levels: tuple[int, ...]
    times: tuple[int, ...]
    left_bytes: int

    @property
    def time(self) -> int:
        """Time of the pass."""
        return self.times[-1]

    @cached_property
    def peak_bytes(self) -> int:
        """The largest memory of any step."""
        return max(self.levels, default=0)


def stretches(chunk: Chunk, schedule: Schedule) -> dict[JobKind, Stretch]:
    """Replay a chunk's schedule, and return its passes.

    They are divided by the turn and, if the backward pass is split, where gradients are sent. A sent gradient that the
    rest does not read is freed with the pass that sends it.

    Raises:
        InvalidSchedule: the schedule breaks a rule, or moves tensors to the host.
    """
    trace = simulate(chunk.graph, schedule)
    fixed = chunk.graph.fixed_bytes
    levels = [level - fixed for level in trace.memory_bytes]
    ends = [0]
    for index, step in enumerate(schedule.steps, start=1):
        if isinstance(step, Compute | Inplace) and step.op in (chunk.turn, chunk.sent):
            ends.append(index)
        elif isinstance(step, Free) and len(ends) == 3 and ends[2] == index - 1:
            ends[2] = index
    ends.append(len(schedule.steps))
    return {
        kind: Stretch(
            levels=tuple(levels[first + 1 : last + 1]),
            times=tuple(time - trace.times[first] for time in trace.times[first : last + 1]),
            left_bytes=0 if kind.is_last else levels[last],
        )
        for kind, first, last in zip(chunk.kinds, ends[:-1], ends[1:], strict=True)
    }


@dataclass(frozen=True)
class RanJob:
    """A job as it ran.

    Attributes:
        job: the job.
        start: time at which it begins.
        end: time at which it is done.
    """

    job: RankJob
    start: int
    end: int


@dataclass(frozen=True)
class Replay:
    """What the judge measured.

    Attributes:
        makespan: time at which the last job of any rank ends.
        ran: [ranks] the jobs of each rank as they ran.
        peaks: [ranks] largest memory of each rank, in bytes.
        peak_jobs: [ranks] the job that runs at that moment.
        memory: [ranks] for each rank (time, bytes) at each step.
        baseline: work of all ranks without recomputation, in the graph's time unit.
    """

    makespan: int
    ran: tuple[tuple[RanJob, ...], ...]
    peaks: tuple[int, ...]
    peak_jobs: tuple[RankJob, ...]
    memory: tuple[tuple[tuple[int, int], ...], ...]
    baseline: int

    @property
    def busy(self) -> tuple[int, ...]:
        """Time in which each rank runs jobs."""
        return tuple(sum(run.end - run.start for run in rank) for rank in self.ran)

    @property
    def idle_share(self) -> float:
        """Share of all ranks' time, from 0 to the makespan, in which they wait."""
        return 1 - sum(self.busy) / max(1, self.makespan * len(self.ran))

    @property
    def recomputing(self) -> int:
        """Time that all ranks spend on recomputation."""
        return sum(self.busy) - self.baseline


def replay_pipeline(pipeline: Pipeline) -> Replay:
    """Replay a pipeline on all its ranks.

    A rank runs its jobs one after the other. A forward pass begins when all that it reads of other chunks has arrived;
    a backward pass needs its own forward pass, too, and a pass of weights that of inputs. What a job sends leaves when
    the job ends; two ranks have a link for each direction, which makes one transfer at a time. Between chunks of one
    rank nothing is sent.

    Memory of a rank: the fixed bytes of its chunks, what each microbatch in flight keeps, the running job step by step,
    and gradients that went to other ranks: torch's pipelining lets go of them when all jobs are done.

    Raises:
        InvalidSchedule: a schedule breaks a rule; a job is missing, runs twice, or on another rank; or jobs wait for
            each other.
    """
    _check_jobs(pipeline)
    passes = {
        RankJob(chunk, microbatch, kind): stretch
        for (chunk, microbatch), by_kind in _replayed(pipeline).items()
        for kind, stretch in by_kind.items()
    }
    clock = _Clock.of(pipeline, passes)
    clock.run()
    ran = clock.ran
    memory = [_memory(pipeline, rank, ran[rank], passes) for rank in range(pipeline.ranks)]
    return Replay(
        makespan=max((run.end for rank in ran for run in rank), default=0),
        ran=tuple(map(tuple, ran)),
        peaks=tuple(max(level for _, level, _ in levels) for levels in memory),
        peak_jobs=tuple(max(levels, key=lambda moment: moment[1])[2] for levels in memory),
        memory=tuple(tuple((time, level) for time, level, _ in levels) for levels in memory),
        baseline=pipeline.microbatches * sum(chunk.graph.total_time for chunk in pipeline.chunks),
    )


def _check_jobs(pipeline: Pipeline) -> None:
    """Check that each job runs once, on the rank of its chunk."""
    wanted = {
        RankJob(chunk.index, microbatch, kind)
        for chunk in pipeline.chunks
        for microbatch in range(pipeline.microbatches)
        for kind in chunk.kinds
    }
    seen: set[RankJob] = set()
    for rank, order in enumerate(pipeline.orders):
        for job in order:
            if job not in wanted:
                raise InvalidSchedule(f"rank {rank}: the pipeline has no job {job.text}", hint="count from 0")
            if pipeline.rank_of[job.chunk] != rank:
                raise InvalidSchedule(
                    f"rank {rank}: job {job.text} belongs to rank {pipeline.rank_of[job.chunk]}", hint="move it there"
                )
            if job in seen:
                raise InvalidSchedule(f"rank {rank}: job {job.text} runs twice", hint="run each job once")
            seen.add(job)
    missing = sorted(wanted - seen)
    if missing:
        raise InvalidSchedule(f"job {missing[0].text} never runs", hint="run each job once")


def _replayed(pipeline: Pipeline) -> dict[tuple[int, int], dict[JobKind, Stretch]]:
    """Replay each chunk's schedules, each once."""
    known: dict[tuple[int, int], dict[JobKind, Stretch]] = {}
    replayed = {}
    for (index, microbatch), schedule in pipeline.schedules.items():
        key = (index, id(schedule))
        if key not in known:
            known[key] = stretches(pipeline.chunks[index], schedule)
        replayed[index, microbatch] = known[key]
    return replayed


def _needs(chunk: Chunk, job: RankJob) -> list[tuple[RankJob, int]]:
    """Return the jobs whose results a job reads, with the bytes that come from each."""
    if job.kind is JobKind.WEIGHTS:
        return [(RankJob(job.chunk, job.microbatch, JobKind.INPUTS), 0)]
    received = chunk.forward_from if job.kind is JobKind.FORWARD else chunk.backward_from
    needs = [(RankJob(origin, job.microbatch, job.kind), size) for origin, size in received.items()]
    if job.kind is JobKind.FORWARD:
        return needs
    return [(RankJob(job.chunk, job.microbatch, JobKind.FORWARD), 0), *needs]


@dataclass(eq=False)
class _Clock:
    """All ranks while they run their jobs.

    Attributes:
        ran: [ranks] jobs done.
        readers: jobs that read a job's result, with the bytes that each reads.
        arrived: for a job and one that reads its result, when that is there.
        link_free: for two ranks, when the link from the first to the second is free.
    """

    pipeline: Pipeline
    passes: Mapping[RankJob, Stretch]
    ran: list[list[RanJob]]
    readers: dict[RankJob, list[tuple[RankJob, int]]]
    arrived: dict[tuple[RankJob, RankJob], int] = field(default_factory=dict)
    link_free: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, pipeline: Pipeline, passes: Mapping[RankJob, Stretch]) -> _Clock:
        """Return the ranks before their first job."""
        readers: dict[RankJob, list[tuple[RankJob, int]]] = {}
        for order in pipeline.orders:
            for job in order:
                for need, size in _needs(pipeline.chunks[job.chunk], job):
                    readers.setdefault(need, []).append((job, size))
        return cls(pipeline, passes, [[] for _ in pipeline.orders], readers)

    def run(self) -> None:
        """Run all jobs.

        Raises:
            InvalidSchedule: jobs wait for each other.
        """
        while any(self._run_next(rank) for rank in range(self.pipeline.ranks)):
            pass
        for rank, order in enumerate(self.pipeline.orders):
            if len(self.ran[rank]) < len(order):
                job = order[len(self.ran[rank])]
                raise InvalidSchedule(
                    f"rank {rank}: job {job.text} waits for ever: what it reads comes after it",
                    hint="put each backward pass after its forward pass, and keep the order of the stages",
                )

    def _run_next(self, rank: int) -> bool:
        """Run the next job of a rank if all that it reads has a time of arrival; tell whether it ran."""
        order, ran = self.pipeline.orders[rank], self.ran[rank]
        if len(ran) == len(order):
            return False
        job = order[len(ran)]
        needs = [(need, job) for need, _ in _needs(self.pipeline.chunks[job.chunk], job)]
        if any(need not in self.arrived for need in needs):
            return False
        start = max([ran[-1].end if ran else 0, *(self.arrived[need] for need in needs)])
        ran.append(RanJob(job, start, start + self.passes[job].time))
        for reader, size in sorted(self.readers.get(job, ())):
            self.arrived[job, reader] = self._send(job, self.pipeline.rank_of[reader.chunk], size, ran[-1].end)
        return True

    def _send(self, job: RankJob, target: int, size: int, time: int) -> int:
        """Send the result of a job that ends at this time; return when it arrives."""
        rank = self.pipeline.rank_of[job.chunk]
        if target == rank or self.pipeline.bytes_per_time is None:
            return time
        begin = max(time, self.link_free.get((rank, target), 0))
        self.link_free[rank, target] = begin + ceil(size / self.pipeline.bytes_per_time)
        return self.link_free[rank, target]


def _sent_bytes(pipeline: Pipeline, chunk: Chunk) -> int:
    """Return the bytes of gradients that a chunk sends to other ranks for a microbatch."""
    rank_of = pipeline.rank_of
    return sum(
        other.backward_from.get(chunk.index, 0)
        for other in pipeline.chunks
        if rank_of[other.index] != rank_of[chunk.index]
    )


def _memory(
    pipeline: Pipeline,
    rank: int,
    ran: list[RanJob],
    passes: Mapping[RankJob, Stretch],
) -> list[tuple[int, int, RankJob]]:
    """Return a rank's memory at each step: (time, bytes, job)."""
    fixed = sum(
        chunk.fixed_bytes(pipeline.microbatches) for chunk in pipeline.chunks if pipeline.rank_of[chunk.index] == rank
    )
    sent = {chunk.index: _sent_bytes(pipeline, chunk) for chunk in pipeline.chunks}
    in_flight: dict[tuple[int, int], int] = {}
    moments: list[tuple[int, int, RankJob]] = []
    for run in ran:
        job, stretch = run.job, passes[run.job]
        own = (job.chunk, job.microbatch)
        beside = fixed + sum(kept for other, kept in in_flight.items() if other != own)
        for index, level in enumerate(stretch.levels):
            moments.append((run.start + stretch.times[index], beside + level, job))
        in_flight[own] = stretch.left_bytes
        if job.kind.sends_gradients:
            fixed += sent[job.chunk]
        moments.append((run.end, fixed + sum(in_flight.values()), job))
        if job.kind.is_last:
            del in_flight[own]
    return moments
