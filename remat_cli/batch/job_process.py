"""The process of one job, which comes pickled on stdin; its outcome goes pickled to stdout.

`python -m remat_cli.batch.job_process`. A fault here, even a crash of a solver, ends no other process. Stdin stays open
as long as the process that wants the outcome lives; when it closes, this process ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from threading import Thread

from remat_cli.batch.job import Job, JobLimits, JobOutcome, out_of_memory, refusal
from remat_cli.batch.process_trees import kill_tree
from remat_cli.errors import OutOfMemory
from remat_cli.interruption import heed_ctrl_c, pass_over_requests
from remat_cli.system_limits import refusal_of, start_if_allowed


def main() -> None:
    """Carry out the job on stdin."""
    # What a solver prints must not mix with the outcome.
    with os.fdopen(os.dup(1), "wb") as outcomes:
        os.dup2(2, 1)
        # Whoever started it may have been told to take no notice of Ctrl-C; of other requests, it ends this process.
        heed_ctrl_c()
        pass_over_requests()
        job, limits = pickle.load(sys.stdin.buffer)
        start_if_allowed(Thread(target=_leave_with_parent, daemon=True))
        outcomes.write(pickle.dumps(_outcome(job, limits)))


def _outcome(job: Job, limits: JobLimits) -> JobOutcome:
    try:
        _limit_memory(limits.memory_bytes)
        # As in cli.main: a large graph is a million objects and no cycles.
        gc.set_threshold(100_000, 50, 100)
        from remat_cli.batch.run_job import carry_out

        return carry_out(job)
    except (MemoryError, OSError, ImportError, RuntimeError) as error:
        refused = refusal_of(error)
        if refused is None:
            raise
        return out_of_memory(limits) if isinstance(refused, OutOfMemory) else refusal(refused)


def _limit_memory(memory_bytes: int | None) -> None:
    if memory_bytes is None:
        return
    import resource

    # Memory that is written to, where the system counts it; without libraries and reserved address space.
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        memory_bytes = min(memory_bytes, most)
    resource.setrlimit(kind, (memory_bytes, most))


def _leave_with_parent() -> None:
    # Not sys.stdin, whose lock would be held when this process ends.
    while os.read(0, 1):
        pass
    kill_tree(os.getpid())


if __name__ == "__main__":
    main()
