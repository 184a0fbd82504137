"""A step's choice of plans: one for each call of a region, and what goes to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from remat_cli.pytorch.memory.shards import Ranks
from remat_cli.pytorch.plan.block_step import BlockStep, CurvePoint
from remat_cli.pytorch.plan.described import Dimension, Inputs
from remat_cli.pytorch.plan.region_kinds import RegionKind
from remat_cli.pytorch.plan.rehearsal import Moment
from remat_cli.pytorch.plan.rehearsed_updates import RehearsedUpdates


@dataclass(eq=False)
class PlannedStep:
    """The plans of a step's regions, and their choice.

    Attributes:
        inputs: inputs of the step.
        dimensions: dimensions of the inputs that may be smaller.
        step: facts about the step for the choice.
        plain: the plain plan of each region, before anything is compiled.
        kinds: kinds of the regions' calls.
        untrained: names of calls without any gradient.
        standing: bytes of gradients and buckets during the rehearsal.
        is_common: all ranks have the same plans, and the same choice.
        inputs_of: places of the inputs of each call that may be on the host between its passes.
        chosen: kind of each call, and the number of its plan, by name.
        away: names of the calls whose inputs are on the host between their passes.
        saved_away: names of the calls whose saved tensors are.
        peak: predicted peak in bytes.
        budget: budget in bytes.
        overhead: extra time of the regions, as a share of their unplanned time.
        least_overhead: lower bound on the overhead of choices among these plans.
        other_bytes: bytes of the optimizer's state and of free memory within the peak.
        updates: memory between regions if parameters are updated in the backward pass; None where that is not known.
        whole_step: facts about the step with all state on the device, and updates at the optimizer's step.
        update: where the optimizer's updates run, in words; empty where they are no part of the plan.
    """

    inputs: Inputs
    dimensions: frozenset[Dimension]
    step: BlockStep
    plain: Sequence[CurvePoint]
    kinds: Sequence[RegionKind]
    untrained: frozenset[str]
    standing: int
    is_common: bool = False
    inputs_of: Sequence[tuple[int, ...]] = ()
    chosen: Mapping[str, tuple[RegionKind, int]] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    saved_away: frozenset[str] = frozenset()
    peak: int = 0
    budget: int = 0
    overhead: float = 0.0
    least_overhead: float = 0.0
    other_bytes: int = 0
    updates: RehearsedUpdates[Moment] | None = None
    whole_step: BlockStep | None = None
    update: str = ""


def agreed(plan: PlannedStep, ranks: Ranks) -> PlannedStep:
    """Return a plan that all ranks share, if their captures are equal.

    Args:
        plan: the plan of this rank.
        ranks: all ranks.
    """
    if not ranks.groups:
        return plan
    order = list(dict.fromkeys(plan.kinds))
    structures = [(kind.values, [op.signature for op in kind.points[0].planned.graph.ops]) for kind in order]
    places = [order.index(kind) for kind in plan.kinds]
    schedules = [[(point.planned.schedule, point.cuts) for point in kind.points] for kind in order]
    moved = plan.step.inputs, plan.inputs_of
    levels = list(plan.step.moments.items())
    offers = ranks.all(((structures, moved), places, levels, plan.step.always, schedules, plan.step.kept_outside))
    same = all(offer[:2] == offers[0][:2] for offer in offers)
    if not same or any([at for at, _ in offer[2]] != [at for at, _ in offers[0][2]] for offer in offers):
        return plan
    for kind, taken in zip(order, offers[0][4], strict=True):
        kind.take_schedules(taken)
    moments = {at: max(dict(offer[2])[at] for offer in offers) for at in plan.step.moments}
    always = max(offer[3] for offer in offers)
    kept = max(offer[5] for offer in offers)
    curves = [kind.points for kind in plan.kinds]
    step = replace(plan.step, always=always, moments=moments, curves=curves, kept_outside=kept)
    return replace(plan, step=step, plain=step.plain, is_common=True)
