"""The process of one job: `python -m remat_cli.batch.job_process`.

The job comes pickled on stdin, the outcome goes pickled to stdout. A fault here, even a crash of a solver, ends no
other process. Stdin stays open as long as the parent process lives; this process ends when stdin closes.
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
from remat_cli.machine.interruption import heed_ctrl_c, pass_over_requests
from remat_cli.machine.system_limits import refusal_of, start_if_allowed


def main() -> None:
    """Carry out the job from stdin."""
    # Solvers print; their output must not mix with the outcome.
    with os.fdopen(os.dup(1), "wb") as outcomes:
        os.dup2(2, 1)
        # The parent may have been started with Ctrl-C ignored. It answers other requests to end by ending this process.
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
