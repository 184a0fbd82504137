"""Jobs in processes of this machine.

Each job has a process of its own, so that jobs share no state.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic, sleep

from remat_cli.batch.job import Job, JobLimits, JobOutcome, failure, out_of_memory, refusal
from remat_cli.batch.process_trees import kill_tree
from remat_cli.batch.result_lines import Ending
from remat_cli.machine.system_limits import refusal_in, refusal_of, says_out_of_memory
from remat_cli.settings import Setting

# Arguments of the interpreter for a job.
CHILD: tuple[str, ...] = ("-P", "-m", "remat_cli.batch.job_process")
# Seconds that a late job has to hand over its best plan.
GRACE = 5.0
# Seconds in which a process has to end after it closed its output.
_TO_LEAVE = 5.0
_CHUNK = 65536
# Bytes kept of a process's stderr: the end, with the error.
_TAIL = 8192
# Files that this process has open for each job: stdin, stdout and stderr.
FILES_EACH = 3


@dataclass(eq=False)
class _Child:
    """A process and its output so far."""

    job: Job
    process: subprocess.Popen[bytes]
    started: float
    deadline: float | None
    stopped: bool = False
    outcome: bytearray = field(default_factory=bytearray)
    printed: bytearray = field(default_factory=bytearray)


class ProcessExecutor:
    """Executes jobs in at most `slots` processes at a time.

    Args:
        slots: largest number of processes.
        limits: limits of each job.
    """

    def __init__(self, slots: int, limits: JobLimits) -> None:
        self._slots = slots
        self._limits = limits
        self._children: list[_Child] = []
        self._postponed: list[Job] = []
        self._selector = selectors.DefaultSelector()

    @property
    def has_room(self) -> bool:
        """Whether a process is free."""
        return not self._postponed and len(self._children) < self._slots

    @property
    def trouble(self) -> str:
        """Empty: no trouble here passes by itself."""
        return ""

    def submit(self, job: Job) -> None:
        """Start the process of a job, as soon as the system allows one more.

        Raises:
            SystemRefuses: the system allows none, and no process of a job runs that could end.
        """
        try:
            self._start(job)
        except OSError as error:
            if (refused := refusal_of(error)) is None:
                raise
            if not self._children:
                raise refused from None
            self._postponed.append(job)
            self._slots = len(self._children)

    def _start(self, job: Job) -> None:
        # One thread a process: the cores are for the jobs. A session of its own: Ctrl-C is for this process.
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        process = subprocess.Popen(
            [sys.executable, *CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        started = monotonic()
        deadline = None if self._limits.seconds is None else started + self._limits.seconds
        child = _Child(job, process, started, deadline)
        self._children.append(child)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, child)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the process has died already: its missing outcome shows that
            process.stdin.write(pickle.dumps((job, self._limits)))
            process.stdin.flush()

    def finished(self, seconds: float) -> list[tuple[Job, JobOutcome]]:
        """Wait for a job to end, and return ended jobs.

        After `seconds` without any, the list is empty.
        """
        if self._postponed and len(self._children) < self._slots:
            self.submit(self._postponed.pop())
        end = monotonic() + seconds
        while True:
            self._stop_late_ones()
            ended = []
            for key, _ in self._selector.select(self._patience(end)):
                if self._is_over(key):
                    ended.append(key.data)
            if ended or monotonic() >= end:
                return [(child.job, self._end(child)) for child in ended]

    def close(self) -> None:
        """Kill every process."""
        for child in self._children:
            kill_tree(child.process.pid)
        for child in list(self._children):
            self._end(child)
        self._selector.close()

    def _patience(self, end: float) -> float:
        deadlines = [child.deadline for child in self._children if child.deadline is not None]
        return max(0.0, min([end, *deadlines]) - monotonic())

    def _stop_late_ones(self) -> None:
        """Ask late jobs for their best plan; kill jobs asked before."""
        now = monotonic()
        for child in self._children:
            if child.deadline is not None and now >= child.deadline:
                if child.stopped:
                    child.deadline = None
                    kill_tree(child.process.pid)
                else:
                    child.stopped, child.deadline = True, now + GRACE
                    child.process.send_signal(signal.SIGINT)

    def _is_over(self, key: selectors.SelectorKey) -> bool:
        """Read the output of a process; return whether its outcome is complete."""
        child: _Child = key.data
        is_outcome = key.fileobj is child.process.stdout
        said = os.read(key.fd, _CHUNK)
        if not said:
            self._selector.unregister(key.fileobj)
            return is_outcome
        if is_outcome:
            child.outcome += said
        else:
            child.printed = (child.printed + said)[-_TAIL:]
        return False

    def _end(self, child: _Child) -> JobOutcome:
        """Return the outcome of a job without a running process.

        The process has closed its output, or was killed.
        """
        process = child.process
        if not child.outcome:
            _wait_for_end(process.pid)
        kill_tree(process.pid)
        process.wait()
        self._children.remove(child)
        self._read_rest(child)
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            if stream in self._selector.get_map():
                self._selector.unregister(stream)
            with suppress(BrokenPipeError):
                stream.close()
        outcome = self._outcome(child)
        seconds = round(monotonic() - child.started, 3)
        return replace(outcome, ended=replace(outcome.ended, seconds=seconds))

    def _read_rest(self, child: _Child) -> None:
        assert child.process.stderr is not None
        with suppress(BlockingIOError):  # a descendant that got away has it open
            while said := os.read(child.process.stderr.fileno(), _CHUNK):
                child.printed = (child.printed + said)[-_TAIL:]

    def _outcome(self, child: _Child) -> JobOutcome:
        code, seconds = child.process.returncode, self._limits.seconds
        if child.outcome:
            try:
                outcome = pickle.loads(child.outcome)
            except (EOFError, pickle.UnpicklingError):
                pass  # the process was killed while it wrote the outcome
            else:
                assert isinstance(outcome, JobOutcome)
                return outcome
        if child.stopped:
            hint = ("allow more with ", Setting("job_timeout"), ", or give the planner a time_limit below it")
            return failure(Ending.TIMED_OUT, f"no plan was found in {seconds:g} s", hint)
        printed = child.printed.decode(errors="replace")
        if says_out_of_memory(printed):
            return out_of_memory(self._limits)
        if code > 0 and (refused := refusal_in(printed)):
            return refusal(refused)
        return _crash(code, printed)


def _wait_for_end(process: int) -> None:
    """Wait a short time for a process to end by itself.

    Its id stays taken.
    """
    end = monotonic() + _TO_LEAVE
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and monotonic() < end:
        sleep(0.01)


def _crash(code: int, printed: str) -> JobOutcome:
    """Return the outcome of a job whose process crashed."""
    lines = printed.strip().splitlines()
    said = f": {lines[-1].strip()}" if lines else ""
    if code < 0:
        name = signal.Signals(-code).name
        hint = (
            "the system kills where memory runs out: use fewer ",
            Setting("jobs"),
            ", or a ",
            Setting("memory_limit"),
        )
        return failure(
            Ending.CRASHED, f"the job's process died of {name}{said}", hint if code == -signal.SIGKILL else ""
        )
    return failure(Ending.CRASHED, f"the job's process ended with {code}{said}", "a bug in remat; please report it")
