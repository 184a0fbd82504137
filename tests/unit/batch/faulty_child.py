"""A job's process in which things go wrong, in the way that the name of the graph says."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from remat_cli.batch import run_job
from remat_cli.batch.job import Job, JobOutcome
from remat_cli.batch.job_process import main
from remat_cli.planning import Planning, Request, plan
from remat_cli.prepare import Prepared

_CARRY_OUT = run_job.carry_out


def _segfault() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)


def _bug() -> None:
    raise ZeroDivisionError("by design")


def _hoard() -> None:
    _ = [bytearray(2**24) for _ in range(2**10)]


def _library_without_memory() -> None:
    print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr)
    os._exit(134)


def _no_threads() -> None:
    raise RuntimeError("can't start new thread")


def _stubborn() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_a_stray()
    time.sleep(600)


def _leave_a_stray() -> None:
    """Start what solvers are: a program of another session. Its id goes to a file beside the graph."""
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(os.environ["STRAY"]).write_text(str(stray.pid))


def _noise() -> None:
    print("a solver's banner " * 10_000, flush=True)
    subprocess.run(["echo", "and its program's"], check=True)


FAULTS: Mapping[str, Callable[[], None]] = {
    "segfault": _segfault,
    "exit": lambda: os._exit(7),
    "bug": _bug,
    "hoard": _hoard,
    "no_threads": _no_threads,
    "bad_alloc": _library_without_memory,
    "slow": lambda: time.sleep(600),
    "stubborn": _stubborn,
    "noise": _noise,
}


def carry_out(job: Job) -> JobOutcome:
    """Do what the name of the graph says, then the job."""
    FAULTS.get(job.graph.stem, lambda: None)()
    return _CARRY_OUT(job)


def plan_at_leisure(prepared: Prepared, request: Request) -> Planning:
    """Plan, and then be interrupted, as a planner with a plan is that would search on."""
    planning = plan(prepared, request)
    try:
        Path(os.environ["AT_LEISURE"]).write_text("planned")
        time.sleep(600)
    except KeyboardInterrupt:
        return replace(planning, solution=replace(planning.solution, interrupted=True))
    return planning


if __name__ == "__main__":
    run_job.carry_out = carry_out
    if os.environ.get("AT_LEISURE"):
        vars(run_job)["plan"] = plan_at_leisure
    main()
