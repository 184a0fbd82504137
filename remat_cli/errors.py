"""What can go wrong for a user: each error says what, where and what to do, and carries its exit code."""

from __future__ import annotations


class RematError(Exception):
    """An error that is shown to the user as a message and a hint, without a traceback.

    Attributes:
        message: what is wrong, and where.
        hint: what to do about it; empty where the message says it all.
        exit_code: the exit code of the process (the table is in the README).
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(RematError):
    """A call or a configuration that cannot be carried out."""

    exit_code = 2


class PlannerRefuses(RematError):
    """A planner cannot take this graph; the hint names one that can."""

    exit_code = 2


class InvalidSchedule(RematError):
    """A schedule breaks a rule of the simulator.

    Attributes:
        step: the index of the first broken step; None where the schedule as a whole breaks a rule.
    """

    exit_code = 5

    def __init__(self, message: str, *, step: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.step = step


class FalseClaim(RematError):
    """A planner claimed what the simulator does not confirm: a fault in the planner, never shown as a result."""

    exit_code = 5


class DoesNotFit(RematError):
    """No plan fits the budget, or none was found."""

    exit_code = 3


class ClusterLost(RematError):
    """The machines on which jobs run cannot be reached any more."""

    exit_code = 4


class GraphError(RematError):
    """A graph, or the file it comes from, is bad."""

    exit_code = 6


class ScheduleFileError(RematError):
    """A schedule file cannot be read."""

    exit_code = 6
