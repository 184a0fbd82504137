"""The results file of `remat batch`: one JSON line for each job.

A line is written as its job ends. `--resume` reads the lines again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from io import BytesIO
from pathlib import Path

from remat_cli.config import Document, checked
from remat_cli.core.problem import Scope, Status
from remat_cli.errors import ExitCode, UsageError


class Ending(StrEnum):
    """The end of a job: a planner's status, or an end of its process."""

    OPTIMAL = Status.OPTIMAL
    FEASIBLE = Status.FEASIBLE
    INFEASIBLE = Status.INFEASIBLE
    UNKNOWN = Status.UNKNOWN
    ERROR = "error"  # of the call, the graph or the schedule; the exit code says which
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out-of-memory"
    TIMED_OUT = "timed-out"


# An error has the exit code of its own kind instead.
EXIT_CODES = {
    **{Ending(status): status.exit_code for status in Status},
    Ending.OUT_OF_MEMORY: ExitCode.NO_PLAN,
    Ending.TIMED_OUT: ExitCode.NO_PLAN,
    Ending.CRASHED: ExitCode.BUG,
}
_ANSWERS = tuple(map(Ending, Status))
# From the worst on: faults of remat first, then what is wrong with the input, then answers without a plan.
WORST_FIRST = (
    ExitCode.BUG,
    ExitCode.FALSE_SCHEDULE,
    ExitCode.BAD_FILE,
    ExitCode.USAGE,
    ExitCode.NO_PLAN,
    ExitCode.NO_FIT,
    ExitCode.DONE,
)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The figures of an ended job; a missing figure is None.

    Attributes:
        status: the ending.
        exit_code: exit code that `remat plan` would have.
        seconds: from the start of the job's process to its end.
        budget_bytes: the budget, in bytes.
        plain_peak_bytes: peak of the plain run.
        peak_bytes: peak of the plan.
        arena_bytes: size of the plan's arena, if the user wants addresses.
        overhead: overhead of the plan, as a share of the plain run's time.
        bound_overhead: lower bound on the overhead of plans in `scope`.
        scope: the plans for which the bound holds, or of which none fits; `ANY_PLAN` is written as any-order.
        scope_transfers: the scope includes plans with transfers to the host.
        estimated: whether sizes of the graph are estimates, so that peaks may be higher.
        interrupted: the job's time was up; the plan is the best one until then.
        error: why there is no plan.
        hint: what to do about it.
        mode: training or inference, as the graph was planned; None if it was not given and the graph could not be read.
        dims: dims of the graph as it was read; optional dims that it lacks are left out.
    """

    status: Ending
    exit_code: int
    seconds: float = 0.0
    budget_bytes: int | None = None
    plain_peak_bytes: int | None = None
    peak_bytes: int | None = None
    arena_bytes: int | None = None
    overhead: float | None = None
    bound_overhead: float | None = None
    scope: Scope | None = None
    scope_transfers: bool = False
    estimated: bool = False
    interrupted: bool = False
    error: str | None = None
    hint: str | None = None
    mode: str | None = None
    dims: dict[str, int] = field(default_factory=dict)

    @property
    def can_differ(self) -> bool:
        """Whether the job may end differently when run again.

        More time, more memory, or another version of a library can make the difference.
        """
        return self.interrupted or self.status not in _ANSWERS


@dataclass(frozen=True, kw_only=True)
class JobLine(Ended):
    """A job and its ending.

    Attributes:
        job: identity of the job, in hexadecimal digits.
        graph: file of the planned graph.
        budget: budget, as the user gave it.
        config: name of the config, as the user gave it.
        planner: name of the planner, as in PLANNERS.
        schedule: file of the schedule.
        schedule_sha256: SHA-256 of that file.
    """

    job: str
    graph: str
    budget: str
    config: str
    planner: str
    schedule: str | None = None
    schedule_sha256: str | None = None


def line_bytes(line: JobLine) -> bytes:
    """Return a line of the results file: ASCII, keys sorted.

    Bytes of a file's name that are no UTF-8 are escaped as text, such as \\\\udcff: JSON readers reject them otherwise.
    """
    values = {key: _readable(value) if isinstance(value, str) else value for key, value in asdict(line).items()}
    return json.dumps(values, sort_keys=True).encode() + b"\n"


def _readable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class Content:
    """The content of a results file.

    Attributes:
        lines: lines of jobs, in the order of the file.
        kept: the bytes of these lines.
        damaged: unreadable lines by number, from 1 on.
    """

    lines: tuple[JobLine, ...] = ()
    kept: bytes = b""
    damaged: Mapping[int, bytes] = field(default_factory=dict)


def read_content(path: Path, content: bytes) -> Content:
    """Read a results file without half a line at its end.

    Half a line means that a process was killed while it wrote.

    Args:
        path: name of the file in messages.
        content: bytes of the file.

    Raises:
        UsageError: the file is not empty, and has no line of `remat batch`.
    """
    lines: list[JobLine] = []
    kept: list[bytes] = []
    damaged: dict[int, bytes] = {}
    reason = ""
    for number, text in enumerate(BytesIO(content), 1):  # unlike splitlines, this ends no line at a carriage return
        try:
            line = _line(text, f"{path}:{number}")
        except UsageError as error:
            if text.endswith(b"\n") or not _is_begun(text):
                damaged[number] = text
                reason = reason or error.message
            continue
        if text.endswith(b"\n"):
            lines.append(line)
            kept.append(text)
    if damaged and not lines:
        hint = "name another file with -o; one of another version of remat cannot be gone on with"
        raise UsageError(f"{reason}; nor is any other", hint=hint)
    return Content(tuple(lines), b"".join(kept), damaged)


def _is_begun(text: bytes) -> bool:
    """Return whether a text may begin a line of the results file."""
    start = f'{{"{min(item.name for item in fields(JobLine))}": '.encode()
    return text.startswith(start) or start.startswith(text)


def _line(text: bytes, place: str) -> JobLine:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, more digits than Python converts, nested too deeply
        values = None
    if not isinstance(values, dict):
        raise UsageError(f"{place}: is no line of 'remat batch'")
    return checked(JobLine, Document(values, place))
