"""The results of a batch while they are written: one process has them, and nothing that was finished is lost."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from hashlib import sha256
from os.path import exists, isfile  # unlike those of Path, false for a name that no file can have
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from remat_cli.batch.job import Job, Outcome
from remat_cli.batch.requests import schedule_names
from remat_cli.batch.result_lines import JobLine, line_bytes, read_lines
from remat_cli.errors import UsageError
from remat_cli.formats.writing import write_file


class Records:
    """The lines of the jobs that have ended, by the jobs' keys; their file, and the folder of their schedules.

    Args:
        results: file to which lines are added as jobs end; None: none.
        schedules: folder, made if it is not there; None: schedules are not written.
        jobs: all that are asked for.
        resume: begin with the lines in the file that are of these jobs and whose schedules are there; else the file
            must be new or empty.
        retry: but not with those that failed, or ran out of time.

    Raises:
        UsageError: a file or folder cannot be written, is written by another process, or holds something else.
    """

    def __init__(
        self, results: Path | None, schedules: Path | None, jobs: Sequence[Job], *, resume: bool, retry: bool
    ) -> None:
        self._schedules = schedules
        self._names = schedule_names(jobs)
        if schedules is not None:
            _make_folder(schedules)
        self._file = None if results is None else _ResultsFile(results, resume=resume)
        earlier = {} if self._file is None else {line.job: line for line in self._file.lines}
        self.lines = {
            key: line
            for key, line in earlier.items()
            if key in self._names and not (retry and line.can_differ) and self._has_schedule(line)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, job: Job, outcome: Outcome) -> JobLine:
        """Write the schedule of a job, if there is one, and then its line: what has a line is there in full.

        Raises:
            UsageError: a file cannot be written.
        """
        path = digest = None
        if outcome.schedule is not None and self._schedules is not None:
            path = self._schedules / self._names[job.key]
            write_file(path, outcome.schedule)
            digest = sha256(outcome.schedule).hexdigest()
        line = JobLine(
            **vars(outcome.ended),
            job=job.key,
            graph=str(job.graph),
            budget=str(job.budget),
            config=job.config,
            planner=job.planner,
            schedule=None if path is None else str(path),
            schedule_sha256=digest,
        )
        if self._file is not None:
            self._file.add(line)
        self.lines[job.key] = line
        return line

    def _has_schedule(self, line: JobLine) -> bool:
        """Tell whether the schedule of an earlier run's line is where it should be, as it was written."""
        if self._schedules is None or line.peak_bytes is None:
            return True
        if line.schedule is None:
            return False
        try:
            # By its name: the folder may be called something else from where we are now.
            content = (self._schedules / Path(line.schedule).name).read_bytes()
        except OSError:
            return False
        return sha256(content).hexdigest() == line.schedule_sha256


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UsageError(f"{folder}: cannot be made: {reason}", hint="choose another place with --schedules") from None


class _ResultsFile:
    """The file, held by this process alone."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        if exists(path) and not isfile(path):
            raise UsageError(f"{path} is no regular file", hint="name a file with -o, or - for stdout")
        try:
            # Not buffered: what is added is there, whatever becomes of this process.
            self._file = path.open("a+b", buffering=0)
        except (OSError, ValueError) as problem:
            raise self._unwritable(problem) from None
        try:
            _lock(self._file, path)
            content = self._whole_lines()
            if content and not resume:
                raise UsageError(
                    f"{path} holds results already", hint="go on with them with --resume, or name another file with -o"
                )
            self.lines = read_lines(path, content)
            # Half a line is what is left where a process was killed as it wrote.
            self._file.truncate(len(content))
        except OSError as problem:
            self._file.close()
            raise self._unwritable(problem) from None
        except BaseException:
            self._file.close()
            raise

    def _unwritable(self, problem: OSError | ValueError) -> UsageError:
        reason = getattr(problem, "strerror", None) or str(problem)
        return UsageError(f"{self._path}: cannot be written: {reason}", hint="choose another place with -o")

    def _whole_lines(self) -> bytes:
        self._file.seek(0)
        content = self._file.read()
        return content[: content.rfind(b"\n") + 1]

    def add(self, line: JobLine) -> None:
        rest = memoryview(line_bytes(line))
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as problem:
            raise self._unwritable(problem) from None

    def close(self) -> None:
        self._file.close()


def _lock(file: BinaryIO, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        # Some file systems of clusters know no locks: then the user has to take care.
        if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise UsageError(
                f"{path} is being written by another 'remat batch'", hint="wait for its end, or name another file"
            ) from None
