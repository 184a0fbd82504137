"""A job (one graph, one budget, one config) and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remat_cli.batch.result_lines import EXIT_CODES, Ended, Ending
from remat_cli.config import GraphOptions, Request
from remat_cli.errors import RematError
from remat_cli.settings import Setting, Wording, as_text, on_command_line
from remat_cli.units import format_bytes


@dataclass(frozen=True)
class Job:
    """A graph to plan under one budget and config.

    A job can be pickled, and sent to another process.

    Attributes:
        key: identity: jobs with the same key have the same result.
        graph: the file, as the user named it.
        sha256: SHA-256 of the file's bytes; empty for an unreadable file, whose job will fail.
        options: options of reading the file as a graph.
        config: name of the config, as the user gave it.
        request: the wanted plan.
        optional_dims: dims of `options` that the graph may lack.
    """

    key: str
    graph: Path
    sha256: str
    options: GraphOptions
    config: str
    request: Request
    optional_dims: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JobLimits:
    """Limits on a job's time and memory.

    Attributes:
        seconds: time after which the job is asked for its best plan, and ended soon after; None without limit.
        memory_bytes: memory that its process may allocate; None without limit.
    """

    seconds: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job.

    Attributes:
        ended: figures of the outcome.
        schedule: content of the schedule file; None without a plan.
    """

    ended: Ended
    schedule: bytes | None = None


def failure(status: Ending, error: str, hint: Wording = "", *, exit_code: int | None = None) -> JobOutcome:
    """Return the outcome of a job that ended without an answer."""
    code = EXIT_CODES[status] if exit_code is None else exit_code
    return JobOutcome(Ended(status=status, exit_code=code, error=error, hint=as_text(hint, on_command_line) or None))


def refusal(error: RematError) -> JobOutcome:
    """Return the outcome of a job that ended with an error."""
    return failure(Ending.ERROR, error.message, error.remedy, exit_code=error.exit_code)


def out_of_memory(limits: JobLimits) -> JobOutcome:
    """Return the outcome of a job that ran out of memory."""
    allowed = "" if limits.memory_bytes is None else f": it may take {format_bytes(limits.memory_bytes)}"
    fewer, larger = Setting("jobs"), Setting("memory_limit")
    hint = ("use fewer ", fewer, ", a larger ", larger, ", or a planner for large graphs: dtr")
    return failure(Ending.OUT_OF_MEMORY, f"out of memory{allowed}", hint)
