"""A job carried out in this process."""

from __future__ import annotations

from dataclasses import replace
from hashlib import file_digest
from pathlib import Path

from remat_cli.batch.job import Job, JobOutcome, refusal
from remat_cli.batch.result_lines import EXIT_CODES, Ended, Ending
from remat_cli.core.solve import Solution
from remat_cli.errors import GraphError, RematError
from remat_cli.formats.schedule_json import scope_columns
from remat_cli.formats.source import open_regular
from remat_cli.planning import plan
from remat_cli.prepare import prepare_without_absent_dims
from remat_cli.settings import Setting
from remat_cli.units import format_bytes


def carry_out(job: Job) -> JobOutcome:
    """Plan the graph of a job.

    Raises:
        KeyboardInterrupt: interrupted before any plan was found.
        MemoryError: out of memory.
    """
    try:
        check_unchanged(job)
        split = job.request.split
        prepared = prepare_without_absent_dims(job.graph, job.options, job.optional_dims, split=split)
        planning = plan(prepared, job.request)
    except RematError as error:
        return refusal(error)
    read = planning.prepared
    ended = _figures(planning.solution)
    ended = replace(ended, mode=read.mode, dims=dict(read.options.dims), estimated=read.is_estimated)
    return JobOutcome(ended, None if planning.schedule is None else planning.schedule_file)


def check_unchanged(job: Job) -> None:
    """Raise a GraphError if a job's graph file has changed.

    The job's identity has the digest of the file.
    """
    if job.sha256 and sha256_of(job.graph) != job.sha256:
        raise GraphError(
            f"{job.graph} has changed since the batch began", hint=("run it again with ", Setting("resume"))
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file; empty for an unreadable file."""
    try:
        with open_regular(path) as file:
            return file_digest(file, "sha256").hexdigest()
    except (OSError, GraphError):
        return ""


def _figures(solution: Solution) -> Ended:
    status = Ending(solution.status)
    trace, result = solution.trace, solution.result
    return Ended(
        status=status,
        exit_code=EXIT_CODES[status],
        budget_bytes=solution.problem.budget.device_bytes,
        plain_peak_bytes=solution.baseline.peak_bytes,
        peak_bytes=None if trace is None else trace.peak_bytes,
        arena_bytes=None if solution.arena is None else solution.arena.bytes,
        overhead=solution.overhead,
        bound_overhead=solution.bound_overhead,
        **scope_columns(solution.scope),
        interrupted=solution.interrupted,
        error=None if trace is not None else result.reason or "no plan was found within the limits",
        hint=None if trace is not None else _hint(solution),
    )


def _hint(solution: Solution) -> str | None:
    """Return a hint with a budget that would work, if known."""
    least = solution.working_set.bytes
    if solution.problem.budget.device_bytes < least:
        return f"the least that any plan needs is {format_bytes(least)}"
    if solution.closest is not None:
        return f"the closest plan that was found peaks at {format_bytes(solution.closest.peak_bytes)}"
    return None
