"""Errors that a user can act on: each says what, where and what to do, and carries its exit code."""

from __future__ import annotations

from enum import IntEnum

from remat_cli.settings import Wording, as_text, on_command_line


class ExitCode(IntEnum):
    """How a process of remat ends.

    Attributes:
        meaning: in words.
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
        """Make the number, with its meaning."""
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code


class RematError(Exception):
    """An error that is shown to the user as a message and a hint, without a traceback.

    Attributes:
        wording: what is wrong, and where, with the settings that it speaks of.
        message: the same in words for the command line.
        remedy: what to do about it, with the settings that it speaks of; empty where the message says it all.
        exit_code: how the process ends.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, message: Wording, *, hint: Wording = "") -> None:
        self.wording = message
        self.message = as_text(message, on_command_line)
        self.remedy = hint
        super().__init__(self.message)

    @property
    def hint(self) -> str:
        """What to do about it, in words for the command line."""
        return as_text(self.remedy, on_command_line)

    def name_file(self, name: str) -> None:
        """Begin the message with the file that it is about, unless it names that already."""
        if name not in self.message:
            parts = (self.wording,) if isinstance(self.wording, str) else self.wording
            self.wording, self.message = (f"{name}: ", *parts), f"{name}: {self.message}"
            self.args = (self.message,)


class UsageError(RematError):
    """A call or a configuration that cannot be carried out."""

    exit_code = ExitCode.USAGE


class PlannerRefuses(RematError):
    """A planner cannot take this graph; the hint names one that can."""

    exit_code = ExitCode.USAGE


class InvalidSchedule(RematError):
    """A schedule breaks a rule of the simulator.

    Attributes:
        step: the index of the first broken step; None where the schedule as a whole breaks a rule.
    """

    exit_code = ExitCode.FALSE_SCHEDULE

    def __init__(self, message: Wording, *, step: int | None = None, hint: Wording = "") -> None:
        super().__init__(message, hint=hint)
        self.step = step


class FalseClaim(RematError):
    """A planner claimed what the simulator does not confirm: a fault in the planner, never shown as a result."""

    exit_code = ExitCode.FALSE_SCHEDULE


class DoesNotFit(RematError):
    """No plan fits the budget, or none was found."""

    exit_code = ExitCode.NO_FIT


class ClusterLost(RematError):
    """The machines on which jobs run cannot be reached any more."""

    exit_code = ExitCode.NO_PLAN


class SystemRefuses(RematError):
    """The system allows no more of what is needed: threads, processes, open files, memory."""

    exit_code = ExitCode.NO_PLAN


class OutOfMemory(SystemRefuses):
    """The memory does not suffice."""


class GraphError(RematError):
    """A graph, or the file it comes from, is bad."""

    exit_code = ExitCode.BAD_FILE


class ScheduleFileError(RematError):
    """A schedule file cannot be read."""

    exit_code = ExitCode.BAD_FILE
