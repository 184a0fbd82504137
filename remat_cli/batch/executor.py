"""Where jobs run: what the processes of this machine and a cluster have in common."""

from __future__ import annotations

from typing import Protocol

from remat_cli.batch.job import Job, Outcome


class Executor(Protocol):
    """Runs jobs beside each other. Every job that was submitted comes out of `finished` once."""

    @property
    def has_room(self) -> bool:
        """Whether one more job may be submitted now."""
        ...

    @property
    def trouble(self) -> str:
        """Why nothing can run at the moment; empty where it can."""
        ...

    def submit(self, job: Job) -> None:
        """Start a job, or queue it where jobs run."""
        ...

    def finished(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Return jobs that have ended, as soon as there is one, or nothing after about so many seconds."""
        ...

    def close(self) -> None:
        """End what still runs; what comes of it is lost."""
        ...
