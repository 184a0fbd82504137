"""The optimal combination of recomputation and offloading on a chain, by the dynamic program of POFO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.option_checks import check_least
from remat_cli.problem import Observer, PlanResult, Problem


class Rounding(StrEnum):
    """How memory states are rounded to slots."""

    UP = "up"  # as in the paper: what the table says is never too little
    NEAREST = "nearest"  # errors even out over many layers; a plan may turn out not to fit
    BOTH = "both"

    @property
    def each(self) -> tuple[Rounding, ...]:
        """The single ways that this one stands for."""
        return (Rounding.UP, Rounding.NEAREST) if self is Rounding.BOTH else (self,)


@dataclass(frozen=True)
class Pofo:
    """Cuts the graph into a chain of layers; keeps, recomputes or moves to the host and back what each has to keep.

    Needs the bandwidth of the link to the host. The paper's model moves data in drops; the plan moves whole tensors,
    one at a time, and its time is that of this replay. The model's link is half duplex. On one that is full duplex the
    same plan runs, in the same memory and never slower; the model says too much time then.

    Source: Beaumont, Eyraud-Dubois, Shilova, Efficient Combination of Rematerialization and Offloading for Training
    DNNs, NeurIPS 2021 (POFO), appendix B of its supplement, errata put right.
    Takes: training graphs whose forward pass can be cut into at least two layers.
    Searches: persistent schedules of the chain, in which the input of a block of layers may go to the host before the
        loss and come back after it; optimal in the paper's model but for rounding.
    Proves: nothing: what is optimal for the chain, in drops and whole slots, need not be for the graph.
    Complexity: O(L^2 S^3 + L^3 S^2) for L layers and S slots, for each rounding.

    Attributes:
        cuts: single: where one tensor is handed on, as in the paper; several: also where several are, if the backward
            reads most of them anyway; every: after every op that hands on anything new.
        segments: how many layers the forward pass is cut into at most; of more, small neighbours are joined.
        memory_slots: into how many parts the memory is divided that the budget leaves to the layers.
        rounding: how the states that the dynamic program goes through are rounded to slots. up: as in the paper, never
            too little; nearest: closer where there are many layers, and what does not fit is sorted out; both.
        candidates: how many amounts of memory each table is asked for; the plans are replayed on the graph, and the
            best that fits is kept.
        improve: try the plans of rotor as well, let any tensor go to the host where that helps, and leave out what is
            run again where memory and link have room; not in the paper.
        time_limit: seconds; nothing further is tried after it.
    """

    cuts: Cuts = Cuts.EVERY
    segments: int = 50
    memory_slots: int = 50
    rounding: Rounding = Rounding.BOTH
    candidates: int = 16
    improve: bool = True
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, segments=2, memory_slots=1, candidates=0, time_limit=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or cannot be cut; or the link's bandwidth is
                not known.
            UsageError: the options ask for a table that is too large.
        """
        # numpy comes with these; the options must be readable without it.
        from remat_cli.planners.pofo.search import PofoSearch

        return PofoSearch(problem, self, observe).run()
