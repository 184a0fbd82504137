"""The loop of a batch, and Ctrl-C in it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from remat_cli.batch.job import Job, JobOutcome
from remat_cli.batch.loop import Interruption, run_jobs
from remat_cli.batch.result_lines import JobLine
from remat_cli.core.problem import Observer
from tests.plans import RecordingObserver
from tests.unit.batch.models import Here, jobs_on, write_graphs


class Slots(Here):
    """Takes two jobs at a time, which then end together, one told after the other."""

    @property
    def has_room(self) -> bool:
        return len(self._ended) < 2

    def finished(self, seconds: float) -> list[tuple[Job, JobOutcome]]:
        return [self._ended.pop(0)] if self._ended else []


def record(job: Job, outcome: JobOutcome) -> JobLine:
    return JobLine(**vars(outcome.ended), job=job.key, graph=job.graph.stem, budget="", config="", planner="")


def test_every_job_is_run_in_order_and_told(tmp_path: Path) -> None:
    jobs = jobs_on(*write_graphs(tmp_path, "a", "b", "c"))
    executor, observe = Slots(), RecordingObserver()
    with Interruption() as interruption:
        lines = run_jobs(jobs, executor, record, interruption, observe)
    assert [line.graph for line in lines] == ["a", "b", "c"]
    assert observe.phases == [
        "0 of 3 jobs done · 2 running",
        "1 of 3 jobs done · 2 running",
        "2 of 3 jobs done · 1 running",
    ]


def test_after_ctrl_c_nothing_is_started_and_what_has_ended_is_recorded(tmp_path: Path) -> None:
    jobs = jobs_on(*write_graphs(tmp_path, "a", "b", "c"))
    executor = Slots()

    def interrupted(job: Job, outcome: JobOutcome) -> JobLine:
        if job is jobs[0]:
            os.kill(os.getpid(), signal.SIGINT)
        return record(job, outcome)

    with Interruption() as interruption:
        lines = run_jobs(jobs, executor, interrupted, interruption, Observer())
    assert [line.graph for line in lines] == ["a", "b"]
    assert executor.ran == jobs[:2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_is_heeded_like_ctrl_c_and_repeating_it_changes_nothing(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interruption() as interruption:
        signal.raise_signal(number)
        assert interruption.wanted
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(number) is before


def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGHUP)
            assert not interruption.wanted
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_twice_is_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.wanted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
