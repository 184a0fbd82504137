"""The loop of a batch: jobs go to an executor, lines come out."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Protocol, Self

from remat_cli.batch.job import Job, JobOutcome
from remat_cli.batch.result_lines import JobLine
from remat_cli.core.problem import Observer
from remat_cli.machine.interruption import REQUESTS_TO_END, heed_a_request_that_waits

# Seconds between two looks at whether Ctrl-C was pressed.
_LOOK = 0.1


class Executor(Protocol):
    """Runs jobs at the same time.

    `finished` returns every submitted job once.
    """

    @property
    def has_room(self) -> bool:
        """Whether one more job may be submitted now."""
        ...

    @property
    def trouble(self) -> str:
        """Why nothing can run at the moment; empty without trouble."""
        ...

    def submit(self, job: Job) -> None:
        """Start a job, or queue it where jobs run."""
        ...

    def finished(self, seconds: float) -> list[tuple[Job, JobOutcome]]:
        """Wait for a job to end, and return ended jobs.

        After about `seconds` without any, the list is empty.
        """
        ...

    def close(self) -> None:
        """End the running jobs; their outcomes are lost."""
        ...


class Interruption:
    """Ctrl-C, or a request to end, while jobs run.

    The loop heeds the first once ended jobs are recorded. A second Ctrl-C interrupts at once.
    """

    def __init__(self) -> None:
        self.wanted = False

    def __enter__(self) -> Self:
        heed_a_request_that_waits()
        numbers = (signal.SIGINT, *REQUESTS_TO_END)
        heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True


def run_jobs(
    jobs: Sequence[Job],
    executor: Executor,
    record: Callable[[Job, JobOutcome], JobLine],
    interruption: Interruption,
    observe: Observer,
) -> list[JobLine]:
    """Run jobs, and return the lines of ended jobs.

    All jobs end, unless the run is interrupted.

    Args:
        jobs: jobs, in their starting order.
        executor: runs the jobs; after an interruption some still run there.
        record: is called with each job as soon as the job ends.
        interruption: whether to go on.
        observe: is told the progress.
    """
    waiting = deque(jobs)
    running = 0
    lines: list[JobLine] = []
    shown = ""
    while (waiting or running) and not interruption.wanted:
        while waiting and not interruption.wanted and executor.has_room:
            executor.submit(waiting.popleft())
            running += 1
        if (how_far := _how_far(lines, running, len(jobs), executor.trouble)) != shown:
            observe.phase(shown := how_far)
        for job, outcome in executor.finished(_LOOK):
            running -= 1
            lines.append(record(job, outcome))
    while ended := executor.finished(0) if running else []:
        running -= len(ended)
        lines += [record(job, outcome) for job, outcome in ended]
    return lines


def _how_far(lines: Sequence[JobLine], running: int, jobs: int, trouble: str) -> str:
    without = sum(line.peak_bytes is None for line in lines)
    failed = f" · {without:,} without a plan" if without else ""
    return f"{len(lines):,} of {jobs:,} jobs done{failed} · {trouble or f'{running:,} running'}"
