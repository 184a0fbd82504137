"""Errors that a user can act on, each with its exit code.

An error says what is wrong, where, and what to do.
"""

from __future__ import annotations

from enum import IntEnum

from remat_cli.settings import Wording, as_text, on_command_line


class ExitCode(IntEnum):
    """The exit codes of remat.

    Attributes:
        meaning: the meaning in words.
    """

    meaning: str

    DONE = 0, "done: a verified plan, or the check holds"
    BUG = 1, "a bug in remat"
    USAGE = 2, "a wrong call or config"
    NO_FIT = 3, "proven not to fit, or a check that fails"
    NO_PLAN = 4, "stopped without a plan"
    FALSE_SCHEDULE = 5, "a schedule failed verification"
    BAD_FILE = 6, "the graph or file is bad"
    INTERRUPTED = 130, "interrupted"

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """Create the number with its meaning."""
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code


class RematError(Exception):
    """An error shown as a message and a hint, without a traceback.

    Attributes:
        wording: the fault and its place, with the settings involved.
        message: the wording as text for the command line.
        remedy: the remedy, with the settings involved; empty if the message says it all.
        exit_code: exit code of the process.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, message: Wording, *, hint: Wording = "") -> None:
        self.wording = message
        self.message = as_text(message, on_command_line)
        self.remedy = hint
        super().__init__(self.message)

    @property
    def hint(self) -> str:
        """The remedy as text for the command line."""
        return as_text(self.remedy, on_command_line)

    def name_file(self, name: str) -> None:
        """Put the file's name before the message, unless it is in the message."""
        if name not in self.message:
            parts = (self.wording,) if isinstance(self.wording, str) else self.wording
            self.wording, self.message = (f"{name}: ", *parts), f"{name}: {self.message}"
            self.args = (self.message,)


class UsageError(RematError):
    """A call or a configuration that cannot be carried out."""

    exit_code = ExitCode.USAGE


class PlannerRefuses(RematError):
    """A planner cannot take this graph; the hint names another planner."""

    exit_code = ExitCode.USAGE


class InvalidSchedule(RematError):
    """A schedule breaks a rule of the simulator.

    Attributes:
        step: index of the first broken step; None if the schedule as a whole breaks a rule.
    """

    exit_code = ExitCode.FALSE_SCHEDULE

    def __init__(self, message: Wording, *, step: int | None = None, hint: Wording = "") -> None:
        super().__init__(message, hint=hint)
        self.step = step


class FalseClaim(RematError):
    """A planner's claim that the simulator does not confirm.

    It is a fault in the planner, and never shown as a result.
    """

    exit_code = ExitCode.FALSE_SCHEDULE


class DoesNotFit(RematError):
    """No plan fits the budget, or none was found."""

    exit_code = ExitCode.NO_FIT


class ClusterLost(RematError):
    """The machines of a cluster cannot be reached any more."""

    exit_code = ExitCode.NO_PLAN


class SystemRefuses(RematError):
    """The system refuses more threads, processes, open files or memory."""

    exit_code = ExitCode.NO_PLAN


class OutOfMemory(SystemRefuses):
    """There is not enough memory."""


class GraphError(RematError):
    """A graph, or the file it comes from, is bad."""

    exit_code = ExitCode.BAD_FILE


class ScheduleFileError(RematError):
    """A schedule file cannot be read."""

    exit_code = ExitCode.BAD_FILE
