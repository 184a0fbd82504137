"""Jobs in processes of this machine, whatever becomes of them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from remat_cli.batch import processes
from remat_cli.batch.job import Job, JobLimits, JobOutcome
from remat_cli.batch.processes import ProcessExecutor
from remat_cli.batch.result_lines import Ending
from remat_cli.errors import SystemRefuses
from tests.places import ROOT
from tests.unit.batch import faulty_child
from tests.unit.batch.models import jobs_on, needs_proc, write_graphs


@pytest.fixture(autouse=True)
def _faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CHILD", (faulty_child.__file__,))
    monkeypatch.setattr(processes, "GRACE", 0.3)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def stray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "stray"
    monkeypatch.setenv("STRAY", str(path))
    yield path
    if path.exists() and is_alive(int(path.read_text())):
        os.kill(int(path.read_text()), signal.SIGKILL)


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def dies(process: int, within: float = 10) -> bool:
    end = monotonic() + within
    while is_alive(process) and monotonic() < end:
        sleep(0.02)
    return not is_alive(process)


def wait_for(file: Path, executor: ProcessExecutor) -> None:
    """Let jobs run until one of them has written this file."""
    while not file.exists() or not file.read_text():
        executor.finished(0.02)


def run_all(jobs: Sequence[Job], limits: JobLimits | None = None, slots: int = 2) -> dict[str, JobOutcome]:
    """The outcomes by the names of the graphs."""
    executor = ProcessExecutor(slots, limits or JobLimits())
    waiting = list(jobs)
    outcomes: dict[str, JobOutcome] = {}
    try:
        while len(outcomes) < len(jobs):
            while waiting and executor.has_room:
                executor.submit(waiting.pop(0))
            for job, outcome in executor.finished(5):
                assert job.graph.stem not in outcomes
                outcomes[job.graph.stem] = outcome
    finally:
        executor.close()
    return outcomes


def test_what_goes_wrong_with_one_job_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    graphs = write_graphs(tmp_path, "segfault", "well", "exit", "bug", "bad_alloc", "noise")
    (tmp_path / "broken.json").write_text("{")
    outcomes = run_all(jobs_on(*graphs, tmp_path / "broken.json"))
    ended = {name: (outcome.ended.status, outcome.ended.exit_code) for name, outcome in outcomes.items()}
    assert ended == {
        "segfault": (Ending.CRASHED, 1),
        "well": (Ending.OPTIMAL, 0),
        "exit": (Ending.CRASHED, 1),
        "bug": (Ending.CRASHED, 1),
        "bad_alloc": (Ending.OUT_OF_MEMORY, 4),
        "noise": (Ending.OPTIMAL, 0),
        "broken": (Ending.ERROR, 6),
    }
    errors = {name: outcome.ended.error or "" for name, outcome in outcomes.items()}
    assert "SIGSEGV" in errors["segfault"]
    assert "ended with 7" in errors["exit"]
    assert "ZeroDivisionError: by design" in errors["bug"]
    assert "the JSON ends too early" in errors["broken"]
    assert all(outcome.ended.seconds > 0 for outcome in outcomes.values())
    assert outcomes["noise"].schedule == outcomes["well"].schedule is not None


def test_memory_is_limited(tmp_path: Path) -> None:
    outcomes = run_all(jobs_on(*write_graphs(tmp_path, "hoard", "well")), JobLimits(memory_bytes=4 * 10**8))
    assert outcomes["hoard"].ended.status is Ending.OUT_OF_MEMORY
    assert outcomes["hoard"].ended.error == "out of memory: it may take 400.0 MB"
    assert outcomes["well"].ended.status is Ending.OPTIMAL


def test_time_is_limited(tmp_path: Path) -> None:
    ended = run_all(jobs_on(*write_graphs(tmp_path, "slow")), JobLimits(seconds=0.5))["slow"].ended
    assert (ended.status, ended.exit_code) == (Ending.TIMED_OUT, 4)
    assert ended.error == "no plan was found in 0.5 s"


def let_time_be_up(executor: ProcessExecutor) -> JobOutcome:
    """Let the time of the only job be up now."""
    executor._children[0].deadline = monotonic()
    outcomes: list[tuple[Job, JobOutcome]] = []
    while not outcomes:
        outcomes = executor.finished(5)
    executor.close()
    return outcomes[0][1]


@needs_proc
def test_a_job_whose_time_is_up_and_that_does_not_listen_is_killed(tmp_path: Path, stray: Path) -> None:
    executor = ProcessExecutor(1, JobLimits(seconds=3600))
    executor.submit(jobs_on(*write_graphs(tmp_path, "stubborn"))[0])
    wait_for(stray, executor)
    assert let_time_be_up(executor).ended.status is Ending.TIMED_OUT
    assert dies(int(stray.read_text())), "what a job starts ends with it"


def test_a_job_whose_time_is_up_hands_over_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = tmp_path / "planned"
    monkeypatch.setattr(processes, "GRACE", 30)
    monkeypatch.setenv("AT_LEISURE", str(planned))
    executor = ProcessExecutor(1, JobLimits(seconds=3600))
    executor.submit(jobs_on(*write_graphs(tmp_path, "well"))[0])
    wait_for(planned, executor)
    outcome = let_time_be_up(executor)
    assert outcome.ended.interrupted
    assert outcome.ended.status is Ending.OPTIMAL
    assert outcome.schedule is not None


def test_a_job_leaves_requests_to_end_to_the_process_that_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm sends them to all processes: no job may end as if it had crashed, and be recorded."""
    planned = tmp_path / "planned"
    monkeypatch.setattr(processes, "GRACE", 30)
    monkeypatch.setenv("AT_LEISURE", str(planned))
    executor = ProcessExecutor(1, JobLimits(seconds=3600))
    executor.submit(jobs_on(*write_graphs(tmp_path, "well"))[0])
    wait_for(planned, executor)
    for number in (signal.SIGTERM, signal.SIGHUP):
        executor._children[0].process.send_signal(number)
    assert executor.finished(0.3) == []
    assert let_time_be_up(executor).ended.status is Ending.OPTIMAL


@needs_proc
def test_close_ends_every_process_and_what_it_started(tmp_path: Path, stray: Path) -> None:
    executor = ProcessExecutor(2, JobLimits())
    for job in jobs_on(*write_graphs(tmp_path, "slow", "stubborn")):
        executor.submit(job)
    assert not executor.has_room
    wait_for(stray, executor)
    executor.close()
    assert executor.has_room
    assert dies(int(stray.read_text()))


@needs_proc
def test_a_job_ends_when_the_process_that_wants_it_is_killed(tmp_path: Path, stray: Path) -> None:
    graphs = write_graphs(tmp_path, "stubborn")
    script = f"""
import sys
from pathlib import Path
from remat_cli.batch import processes
from remat_cli.batch.job import JobLimits
from tests.unit.batch.models import jobs_on
processes.CHILD = ({faulty_child.__file__!r},)
executor = processes.ProcessExecutor(1, JobLimits())
executor.submit(jobs_on(Path({str(graphs[0])!r}))[0])
print(executor._children[0].process.pid, flush=True)
executor.finished(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    while not stray.exists() or not stray.read_text():
        sleep(0.02)
    parent.kill()
    parent.communicate()
    assert dies(child)
    assert dies(int(stray.read_text()))


def test_a_graph_that_changes_while_the_batch_runs_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    (path,) = write_graphs(tmp_path, "well")
    jobs = jobs_on(path)
    write_graphs(tmp_path, "well", size=101)
    ended = run_all(jobs)["well"].ended
    assert (ended.status, ended.exit_code) == (Ending.ERROR, 6)
    assert "has changed since the batch began" in (ended.error or "")


def test_where_the_system_allows_fewer_processes_jobs_wait_for_one_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = subprocess.Popen
    executor = ProcessExecutor(3, JobLimits())

    def refuse_the_second(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        if executor._children:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return started(*given, **more)

    monkeypatch.setattr(subprocess, "Popen", refuse_the_second)
    ended = dict[str, Ending]()
    waiting = jobs_on(*write_graphs(tmp_path, "one", "two", "three"))
    try:
        while len(ended) < 3:
            while waiting and executor.has_room:
                executor.submit(waiting.pop())
            ended |= {job.graph.stem: outcome.ended.status for job, outcome in executor.finished(5)}
    finally:
        executor.close()
    assert ended == dict.fromkeys(("one", "two", "three"), Ending.OPTIMAL)


def test_where_the_system_allows_no_process_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(SystemRefuses, match="no more open files"):
        run_all(jobs_on(*write_graphs(tmp_path, "well")))


def test_a_job_to_which_the_system_refuses_threads_is_no_bug(tmp_path: Path) -> None:
    ended = run_all(jobs_on(*write_graphs(tmp_path, "no_threads")))["no_threads"].ended
    assert (ended.status, ended.exit_code) == (Ending.ERROR, 4)
    assert ended.error == "the system allows no more threads or processes"
