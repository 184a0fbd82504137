"""A request for a plan.

Command line, config files, API, checks, batch and PyTorch use this one type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from typing import Any

from remat_cli.config.banks import bank_entry, banks_section
from remat_cli.config.planner_choice import DEFAULT_PLANNER, PlannerChoice, named_planner, planner_section
from remat_cli.core.allocator import CudaAllocator, parse_allocator
from remat_cli.core.arena import USUAL_ALIGNMENT, Bank
from remat_cli.core.graph import Graph
from remat_cli.core.solve import bytes_of_budget
from remat_cli.errors import UsageError
from remat_cli.planners import PLANNERS
from remat_cli.settings import Setting, Settings, setting
from remat_cli.units import BudgetSpec, parse_budget, parse_share

_LARGEST_ALIGNMENT = 1 << 40


def _alignment(text: str) -> int:
    if not text.isdecimal() or len(text) > 13 or not 1 <= int(text) <= _LARGEST_ALIGNMENT:
        raise UsageError(
            f"an alignment of {text} bytes is not possible", hint="give 64, or 1 for any address, up to 2^40"
        )
    return int(text)


@dataclass(frozen=True)
class Request(Settings):
    """A request for a plan; None leaves a setting open.

    A request can be pickled, and sent to another process.

    Attributes:
        budget: memory that the plan may use.
        planner: the planner and its options.
        max_overhead: largest overhead of a plan, as a share of the plain run's time.
        offload: plans may move tensors to the host and back.
        arena: all tensors of a plan get an address in an arena. The budget is then that of the arena: resident bytes
            lie outside.
        alignment: alignment of addresses and of an arena's size, in bytes.
        banks: memories for the addresses, by name. The budget is then that of their sum: at most, and by default, their
            size.
        allocator: the allocator that serves the plan. The budget then covers what it reserves.
        split: regions of a PyTorch step, or of an ONNX model for inference, may run in parts.
    """

    budget: BudgetSpec | None = setting(
        None, "Total device memory, such as 8GB.", metavar="SIZE", parse=parse_budget, written=str | int
    )
    planner: PlannerChoice | None = setting(
        None,
        f"One of {', '.join(PLANNERS)}. [default: {DEFAULT_PLANNER}]",
        metavar="NAME",
        parse=named_planner,
        written=str | dict[str, Any],
        read=planner_section,
    )
    max_overhead: Fraction | None = setting(
        None,
        "Take only plans of at most this overhead, such as 10%.",
        metavar="SHARE",
        parse=parse_share,
        written=str | float,
    )
    offload: bool = setting(False, "Plans may move tensors to the host and back.")
    arena: bool = setting(
        False,
        "Give everything an address in one block; a budget is then the block's, and resident bytes lie beside it.",
        flag="--addresses",
    )
    alignment: int = setting(
        USUAL_ALIGNMENT,
        f"With addresses: they are multiples of it. [default: {USUAL_ALIGNMENT}]",
        metavar="BYTES",
        parse=_alignment,
        written=int,
        needs="arena",
    )
    banks: Mapping[str, Bank] = setting(
        dict,
        "With addresses: a memory of its own, with its speed beside the first. Repeatable.",
        metavar="NAME=SIZE[:SPEED]",
        parse=bank_entry,
        written=dict[str, str | int],
        read=banks_section,
        flag="--bank",
        needs="arena",
    )
    allocator: CudaAllocator | None = setting(
        None,
        "Hold the budget against what PyTorch's caching allocator reserves, too; CONF as in PYTORCH_CUDA_ALLOC_CONF.",
        metavar="cuda[:CONF]",
        parse=parse_allocator,
        written=str,
    )
    split: bool = setting(
        False,
        "Run regions of a PyTorch step, or of an ONNX model for inference, part after part where the budget needs it.",
    )

    @property
    def holds_more_than_peak(self) -> bool:
        """Whether a plan with a fitting peak may still exceed the budget: it has addresses, or an allocator."""
        return self.arena or self.allocator is not None

    @property
    def chosen(self) -> PlannerChoice:
        """The chosen planner: the named one, or the default."""
        return self.planner or PlannerChoice()

    def at(self, budget_bytes: int) -> Request:
        """Return the same request at a budget of this size."""
        return replace(self, budget=BudgetSpec(device_bytes=budget_bytes))

    def in_time(self, share: float = 1.0, *, usual: float = inf, most: float = inf) -> Request:
        """Return the same request in a share of its time limit.

        A planner without a time limit stays as it is.

        Args:
            share: of the time limit.
            usual: largest time limit, in seconds, where the user gives none.
            most: largest time limit, in seconds, in any case.
        """
        chosen = self.chosen
        if not chosen.has("time_limit"):
            return self
        limit = chosen.all_options()["time_limit"]
        seconds = min(limit, most if "time_limit" in chosen.options else min(usual, most)) * share
        return replace(self, planner=chosen.with_options({"time_limit": seconds}))

    def budget_bytes(self, graph: Graph) -> int | None:
        """Return the budget for a graph, with resident bytes.

        None stands for the smallest budget that can be found.

        Raises:
            UsageError: no budget is given, or banks are to have the smallest.
        """
        held = self.outside_arena(graph) + sum(bank.bytes for bank in self.banks.values())
        if self.budget is None and self.banks:
            return held
        if self.budget is None:
            raise UsageError(
                "a plan needs a budget", hint=("give ", Setting("budget", "8GB"), ", 80% (of the plain peak) or min")
            )
        if self.budget.smallest and self.banks:
            raise UsageError("banks have sizes of their own: there is no smallest budget", hint="leave the banks out")
        if self.budget.smallest:
            return None
        asked = self.outside_arena(graph) + bytes_of_budget(self.budget, graph, self.outside_arena(graph))
        return min(asked, held) if self.banks else asked

    def outside_arena(self, graph: Graph) -> int:
        """Return resident bytes outside the arena; 0 without an arena."""
        return graph.resident_bytes if self.arena else 0

    def check(self, place: str = "") -> None:
        """Check planner, options and offloading without a graph.

        Args:
            place: origin of the request, for messages.

        Raises:
            UsageError: the planner does not have an option, or a value is wrong; or plans may offload, and the planner
                moves nothing to the host. Or addresses are asked for together with an allocator or with parts.
        """
        chosen = self.chosen
        _ = chosen.built
        if self.arena and self.allocator is not None:
            raise UsageError(
                (place, Setting("arena"), " and ", Setting("allocator"), " do not go together"),
                hint="a plan with addresses lies in one block, of which no allocator knows; leave one of them out",
            )
        if self.split and (self.arena or self.banks):
            raise UsageError(
                (place, Setting("split"), " tries one graph after another, and no addresses for each"),
                hint=("plan with ", Setting("split"), ", then give the parts that its notes name with addresses"),
            )
        if self.offload:
            chosen.check_can_offload(place)
