"""The results of a batch while they are written.

One process owns the file, and no finished job is lost.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from io import FileIO
from os.path import exists, isfile, samestat  # unlike those of Path, false for a name that no file can have
from pathlib import Path
from types import TracebackType
from typing import Self

from remat_cli.batch.job import Job, JobOutcome
from remat_cli.batch.requests import schedule_name
from remat_cli.batch.result_lines import Content, JobLine, line_bytes, read_content
from remat_cli.errors import UsageError
from remat_cli.formats.writing import check_writes, write_faults, write_file
from remat_cli.settings import Setting

_ELSEWHERE = "choose another place with -o"


class Records:
    """The lines of ended jobs, in memory and in the results file.

    Schedules are written into a folder.

    Args:
        results: file that gets a line as each job ends; None writes no file.
        schedules: folder, made if missing; None writes no schedules.
        jobs: all jobs of the batch.
        resume: begin with the file's lines of these jobs whose schedules exist; otherwise the file must be new or
            empty.
        retry: with `resume`, run jobs again that failed, or ran out of time.

    Raises:
        UsageError: a file or folder cannot be written, is written by another process, or has other content.

    Attributes:
        lines: lines of ended jobs, by the jobs' keys.
        notes: notes on unreadable lines of the file.
    """

    def __init__(
        self, results: Path | None, schedules: Path | None, jobs: Sequence[Job], *, resume: bool, retry: bool
    ) -> None:
        self._schedules = schedules
        if results is not None and schedules is not None and results.absolute() == schedules.absolute():
            raise UsageError(
                f"{results} is to be the file of results and the folder of schedules",
                hint=("name another folder with ", Setting("schedules")),
            )
        if schedules is not None:
            _make_folder(schedules)
        self._file = None if results is None else _ResultsFile(results, resume=resume)
        self.notes = () if self._file is None else self._file.notes
        earlier = {} if self._file is None else {line.job: line for line in self._file.lines}
        asked = {job.key for job in jobs}
        self.lines = {
            key: line
            for key, line in earlier.items()
            if key in asked and not (retry and line.can_differ) and self._has_schedule(line)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, job: Job, outcome: JobOutcome) -> JobLine:
        """Write a job's schedule and then its line.

        A line means that the schedule was written.

        Raises:
            UsageError: a file cannot be written.
        """
        path = digest = None
        if outcome.schedule is not None and self._schedules is not None:
            digest = sha256(outcome.schedule).hexdigest()
            path = self._schedules / schedule_name(job, digest)
            with write_faults(self._schedules, ("choose another place with ", Setting("schedules"))):
                self._schedules.mkdir(parents=True, exist_ok=True)  # it may have been deleted meanwhile
            write_file(path, outcome.schedule)
        said = {"mode": job.options.mode, "dims": dict(job.options.dims)}
        line = JobLine(
            **(vars(outcome.ended) if outcome.ended.mode else vars(outcome.ended) | said),
            job=job.key,
            graph=str(job.graph),
            budget=str(job.request.budget),
            config=job.config,
            planner=job.request.chosen.name,
            schedule=None if path is None else str(path),
            schedule_sha256=digest,
        )
        if self._file is not None:
            self._file.add(line)
        self.lines[job.key] = line
        return line

    def _has_schedule(self, line: JobLine) -> bool:
        """Return whether the schedule of an earlier run's line is unchanged in its place."""
        if self._schedules is None or line.peak_bytes is None:
            return True
        if line.schedule is None:
            return False
        try:
            # By its name: the folder may have another path, seen from this directory.
            content = (self._schedules / Path(line.schedule).name).read_bytes()
        except OSError:
            return False
        return sha256(content).hexdigest() == line.schedule_sha256


def absent_dims(jobs: Sequence[Job], lines: Mapping[str, JobLine]) -> dict[str, list[str]]:
    """Return optional dims that some graphs lack, with these graphs."""
    absent: dict[str, list[str]] = {}
    for job in jobs:
        line = lines.get(job.key)
        if line is None or line.mode is None:
            continue
        for dim in job.optional_dims & (job.options.dims.keys() - line.dims.keys()):
            graphs = absent.setdefault(dim, [])
            if line.graph not in graphs:
                graphs.append(line.graph)
    return dict(sorted(absent.items()))


def _make_folder(folder: Path) -> None:
    with write_faults(folder, ("choose another place with ", Setting("schedules"))):
        folder.mkdir(parents=True, exist_ok=True)
    check_writes({"--schedules": folder / "schedule.json"})


class _ResultsFile:
    """The results file, held by this process alone.

    Attributes:
        lines: lines of an earlier run.
        notes: notes on unreadable lines.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self.notes: tuple[str, ...] = ()
        if exists(path) and not isfile(path):
            raise UsageError(f"{path} is not a regular file", hint="name a file with -o, or - for stdout")
        with ExitStack() as opened, write_faults(path, _ELSEWHERE):
            self._file = opened.enter_context(_locked(path))
            self._file.seek(0)
            content = self._file.read()
            if content and not resume:
                hint = ("go on with the results in it with ", Setting("resume"), ", or name another file with -o")
                raise UsageError(f"{path} is not empty", hint=hint)
            earlier = read_content(path, content)
            if earlier.damaged:
                self._set_aside(earlier)
                self._file = opened.enter_context(_locked(path))
            self._file.truncate(len(earlier.kept))
            self.lines = earlier.lines
            self._earlier = {line.job for line in earlier.lines}
            self._opened = opened.pop_all()

    def _set_aside(self, content: Content) -> None:
        """Move unreadable lines from the results file to another file.

        The replaced file stays open and locked, so that a process which opened it meanwhile does not write to it.
        """
        aside = self._path.with_name(f"{self._path.name}.damaged")
        with aside.open("ab") as file:
            file.writelines(line.removesuffix(b"\n") + b"\n" for line in content.damaged.values())
        write_file(self._path, content.kept)
        numbers = ", ".join(map(str, content.damaged))
        self.notes = (f"{self._path}: cannot be read at line {numbers}: moved to {aside}, and done again",)

    def add(self, line: JobLine) -> None:
        """Add a line in place of an earlier run's line of the job.

        Raises:
            UsageError: the file cannot be written.
        """
        with write_faults(self._path, _ELSEWHERE):
            is_done_again = line.job in self._earlier
            if is_done_again or not self._is_there():
                self._earlier.discard(line.job)
                self._write_anew(line.job if is_done_again else None)
            rest = memoryview(line_bytes(line))
            while rest:
                rest = rest[self._file.write(rest) :]

    def _is_there(self) -> bool:
        """Return whether the file is still in its place.

        Raises:
            UsageError: another file has its name.
        """
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        if not samestat(there, os.fstat(self._file.fileno())):
            raise UsageError(
                f"{self._path} was replaced by another file while the batch ran",
                hint="name a file with -o that nothing else writes to",
            )
        return True

    def _write_anew(self, without: str | None) -> None:
        """Write the file again after its deletion, or without a job's line."""
        self._file.seek(0)
        kept = [line for line in self._file.readlines() if without is None or json.loads(line)["job"] != without]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self._path, b"".join(kept), force=True)
        if not samestat(self._path.stat(), os.fstat(self._file.fileno())):
            self._file = self._opened.enter_context(_locked(self._path))

    def close(self) -> None:
        self._opened.close()


def _locked(path: Path) -> FileIO:
    """Open and lock a file for reading and appending.

    The file is unbuffered: an added line is in the file even if this process dies.
    """
    file = FileIO(path, "a+")
    try:
        _lock(file, path)
    except BaseException:
        file.close()
        raise
    return file


def _lock(file: FileIO, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        # Some file systems of clusters know no locks: then the user has to take care.
        if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise UsageError(
                f"{path} is being written by another 'remat batch'", hint="wait for its end, or name another file"
            ) from None
