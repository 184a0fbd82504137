"""What is asked for when a plan is wanted: one type for command line, config files, API, checks, batch and PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from remat_cli.config.document import Document, placed
from remat_cli.config.planner_choice import PlannerChoice, planner_section
from remat_cli.core.arena import USUAL_ALIGNMENT
from remat_cli.core.graph import Graph
from remat_cli.core.solve import bytes_of_budget
from remat_cli.errors import UsageError
from remat_cli.settings import Setting, setting
from remat_cli.units import BudgetSpec, parse_budget, parse_share


@dataclass(frozen=True)
class Request:
    """A request for a plan; None stands for what is left open. It can be sent to another process.

    Attributes:
        budget: memory that the plan may take.
        planner: the planner and its options.
        max_overhead: only plans of at most this overhead count, as a share of the plain run's time.
        offload: plans may move tensors to the host and back.
        arena: everything in a plan gets an address. The budget is then that of the arena: resident bytes lie beside it.
        alignment: of addresses and of the size of an arena, in bytes.
    """

    budget: BudgetSpec | None = None
    planner: PlannerChoice | None = None
    max_overhead: Fraction | None = None
    offload: bool = setting(False, "Plans may move tensors to the host and back.")
    arena: bool = setting(
        False,
        "Give everything an address in one block; a budget is then the block's, and resident bytes lie beside it.",
    )
    alignment: int = setting(
        USUAL_ALIGNMENT, "With addresses: they are multiples of it. [default: 64]", metavar="BYTES"
    )

    @property
    def chosen(self) -> PlannerChoice:
        """The planner that is asked: the one that was named, or the default."""
        return self.planner or PlannerChoice()

    def under(self, above: Request) -> Request:
        """Merge another request into this one; `above` wins."""
        return Request(
            budget=self.budget if above.budget is None else above.budget,
            planner=self.planner if above.planner is None else above.planner,
            max_overhead=self.max_overhead if above.max_overhead is None else above.max_overhead,
            offload=self.offload or above.offload,
            arena=self.arena or above.arena,
            alignment=self.alignment if above.alignment == USUAL_ALIGNMENT else above.alignment,
        )

    def at(self, budget_bytes: int) -> Request:
        """Return the same request at a budget of this size."""
        return replace(self, budget=BudgetSpec(device_bytes=budget_bytes))

    def budget_bytes(self, graph: Graph) -> int | None:
        """Return the budget for a graph, resident bytes included; None where it is the smallest that is found.

        Raises:
            UsageError: no budget is named.
        """
        if self.budget is None:
            raise UsageError(
                "a plan needs a budget", hint=("give ", Setting("budget", "8GB"), ", 80% (of the plain peak) or min")
            )
        if self.budget.smallest:
            return None
        return self.beside(graph) + bytes_of_budget(self.budget, graph, self.beside(graph))

    def beside(self, graph: Graph) -> int:
        """Return the resident bytes that the budget leaves out because they lie beside an arena."""
        return graph.resident_bytes if self.arena else 0

    def check(self, place: str = "") -> None:
        """Check what can be checked before there is a graph.

        Args:
            place: where it was asked for, for messages.

        Raises:
            UsageError: the planner does not have an option, or a value is wrong; or plans may offload, and the planner
                moves nothing to the host.
        """
        chosen = self.chosen
        _ = chosen.built
        if self.alignment < 1:
            raise UsageError(
                f"{place}an alignment of {self.alignment} bytes is not possible", hint="give 64, or 1 for any address"
            )
        if self.offload:
            chosen.check_can_offload(place)


@dataclass(frozen=True)
class RequestKeys:
    """The keys of a file that make up a request, as YAML gives them."""

    planner: str | dict[str, Any] | None = None
    budget: str | int | None = None
    max_overhead: str | float | None = None
    offload: bool = False
    arena: bool = False
    alignment: int = USUAL_ALIGNMENT

    def request(self, document: Document) -> Request:
        """Return the request; `document` is the section of the file in which the keys stand.

        Raises:
            UsageError: there is no such planner or option, or a value is wrong.
        """
        budget = self.budget
        return Request(
            budget=None if budget is None else placed(document, ("budget",), lambda: parse_budget(str(budget))),
            planner=planner_section(self.planner, document),
            max_overhead=placed_share(self.max_overhead, document),
            offload=self.offload,
            arena=self.arena,
            alignment=self.alignment,
        )


def placed_share(max_overhead: str | float | None, document: Document) -> Fraction | None:
    """Return the share that the key `max_overhead` of a section gives; None where it is not there.

    Raises:
        UsageError: it is no share.
    """
    if max_overhead is None:
        return None
    return placed(document, ("max_overhead",), lambda: parse_share(str(max_overhead)))
