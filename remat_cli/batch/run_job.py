"""One job carried out in this process."""

from __future__ import annotations

from hashlib import file_digest
from pathlib import Path

from remat_cli.batch.job import Job, Outcome, refusal
from remat_cli.batch.result_lines import EXIT_CODES, Ended, Ending
from remat_cli.errors import GraphError, RematError
from remat_cli.formats.schedule_json import schedule_bytes, scope_columns
from remat_cli.prepare import prepare
from remat_cli.settings import Setting
from remat_cli.solve import Solution
from remat_cli.studies.budget_search import plan_at
from remat_cli.units import format_bytes


def carry_out(job: Job) -> Outcome:
    """Plan the graph of a job.

    Raises:
        KeyboardInterrupt: interrupted before any plan was found.
        MemoryError: the memory did not suffice.
    """
    try:
        check_unchanged(job)
        prepared = prepare(job.graph, job.options)
        solution = plan_at(
            prepared.graph,
            job.budget,
            job.planner.planner(),
            link=prepared.link,
            offload=prepared.options.offload,
            max_overhead=job.max_overhead,
        )
    except RematError as error:
        return refusal(error)
    if solution.trace is None:
        return Outcome(_figures(solution))
    options, read_with = job.planner.all_options(), prepared.options.recorded
    schedule = schedule_bytes(solution, prepared.mode, job.planner.name, options, read_with)
    return Outcome(_figures(solution), schedule)


def check_unchanged(job: Job) -> None:
    """Raise a GraphError where the file of a job is not the one that its identity was made from."""
    if job.sha256 and sha256_of(job.graph) != job.sha256:
        raise GraphError(
            f"{job.graph} has changed since the batch began", hint=("run it again with ", Setting("resume"))
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError:
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
        overhead=solution.overhead,
        bound_overhead=solution.bound_overhead,
        **scope_columns(solution.scope),
        interrupted=solution.interrupted,
        error=None if trace is not None else result.reason or "no plan was found within the limits",
        hint=None if trace is not None else _hint(solution),
    )


def _hint(solution: Solution) -> str | None:
    """Return what budget to ask for instead, where something is known of that."""
    least = solution.working_set.bytes
    if solution.problem.budget.device_bytes < least:
        return f"the least that any plan needs is {format_bytes(least)}"
    if solution.closest is not None:
        return f"the closest plan that was found peaks at {format_bytes(solution.closest.peak_bytes)}"
    return None
