"""Sources of schedules for what torch captures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

from torch import nn

from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.errors import DoesNotFit
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.sized_memory import ResizedGraph
from remat_cli.pytorch.plan.waiting import Waiting

NAME = "the captured step"


class ScheduleSource(ABC):
    """A source of schedules for captured steps.

    Attributes:
        takes_sizes: its plans can be carried over to other sizes.
        has_room: it may plan for larger sizes than asked for, as the budget does not grow with them.
        is_smallest: the budget is the smallest that a plan is found for.
        is_given: the schedule is there already, and no other one is made.
        splits: regions run in parts where that is needed, or takes less time.
        calls: number of calls before a backward pass, as the user says.
        fused: inductor's kernels run the plans.
        strict: a later step without a plan that fits is refused.
        budget_text: the budget, or the file, as the user named it.
    """

    takes_sizes = False
    is_given = False
    has_room = False
    is_smallest = False
    splits = False
    calls = 1
    fused = False
    strict = False
    budget_text = "a schedule"

    @property
    def is_decomposed(self) -> bool:
        """Whether steps are captured as inductor decomposes them; parts are found among eager's ops."""
        return self.fused and not self.splits

    @property
    def has_reserved(self) -> bool:
        """Whether memory is left free for measured steps."""
        return False

    @property
    def counts_state(self) -> bool:
        """Whether plans count the optimizer's state, as far as known."""
        return True

    @cached_property
    def waiting(self) -> Waiting:
        """The times that calls have waited for plans and for torch."""
        return Waiting()

    @abstractmethod
    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        """Return a verified schedule of a piece, with its figures.

        Returns:
            The piece with those regions in parts that its plan has in parts, and the plan.
        """

    def begins_step(self) -> bool:
        """Note that a planned call comes; return whether steps are to be planned again.

        Raises:
            UsageError: the optimizer's step should have come before.
        """
        return False

    def ends_call(self, results: object) -> None:
        """Note the results of a planned call of the whole."""
        del results

    def graph(self, piece: Piece) -> Graph:
        """Return the graph of a piece, to be planned or replayed."""
        return graph_of(piece.joint, NAME)

    def explained(self, refusal: DoesNotFit, piece: Piece) -> DoesNotFit:
        """Return a refusal with a remedy."""
        del piece
        return refusal

    def within(self, budget_bytes: int) -> ScheduleSource:
        """Return a source of plans within another budget.

        A source without a budget ignores it.
        """
        del budget_bytes
        return self

    def least(self) -> ScheduleSource | None:
        """Return a source of plans of the least peak found.

        None for a source without a budget.
        """
        return None

    def staying(self) -> ScheduleSource | None:
        """Return a source of plans that move nothing to the host.

        None if these plans move nothing either, or are given.
        """
        return None

    def for_copy(self) -> ScheduleSource:
        """Return a source for a copy of the model; measurements and kept plans are shared."""
        return self

    def budget_bytes(self, graph: Graph) -> int | None:
        """Return the budget for a graph in bytes, if known before planning."""
        del graph
        return None

    def link(self, graph: Graph) -> Link | None:
        """Return the link to the host for a graph, if plans move tensors."""
        del graph
        return None

    def regrant(self) -> None:  # noqa: B027  # only a share has been granted
        """Grant later plans a new share.

        Earlier graphs held more than necessary.
        """

    def carried(self, there: GraphRecord, graph: ResizedGraph) -> GraphRecord | None:
        """Return a plan at other sizes with its budget; None above the budget.

        Args:
            there: the plan at these sizes, with the budget of its own sizes.
            graph: the graph at these sizes.
        """
        del there, graph
        return None

    def reserve(self, missing_bytes: int, gradient_bytes: int, modules: Sequence[nn.Module]) -> bool:
        """Leave memory free in later plans; return whether this is possible.

        Args:
            missing_bytes: memory of a measured step beyond the plan's peak.
            gradient_bytes: gradients in memory at the start of that step.
            modules: the called modules; nothing is reserved for their memory that is known by now.
        """
        del missing_bytes, gradient_bytes, modules
        return False

    def note_calls(self, calls: int, ran: GraphRecord) -> bool:
        """Note the number of calls before a backward pass; return whether plans count them.

        Args:
            calls: number of calls.
            ran: the plan that they ran by.
        """
        del calls, ran
        return False

    def release(self) -> None:  # noqa: B027  # where nothing is left free, there is nothing to take back
        """Take the last reserve back, as no plan fits."""
