"""The choice of modules to checkpoint, by an integer program.

Memory constraints are added at the ops where an answer breaks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from remat_cli.core.problem import Status
from remat_cli.planners.shared.cp_model import CpModel, IntVar
from remat_cli.planners.shared.cp_sat import solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.pytorch.checkpoints.memory import Candidate, Condition, Memory

_SECONDS = 5.0  # for one integer program; for equal blocks it takes far below a second
_MOST_NEW = 12  # number of constraints that one answer adds
NEIGHBOURS = 4  # ops this close to each other share one constraint
Where = TypeVar("Where")


@dataclass(frozen=True)
class Choice:
    """A choice of modules to wrap.

    Attributes:
        paths: paths of the modules, in the order of their calls; None without a choice.
        proven: no choice among the candidates is better, or none fits, by the memory of `Memory`.
        peak: peak by `Memory`, in bytes; 0 without modules.
        least_time: lower bound on the rerun time of choices that fit.
    """

    paths: tuple[str, ...] | None
    proven: bool
    peak: int = 0
    least_time: int = 0


def choose(memory: Memory, budget: int | None) -> Choice:
    """Return the modules to wrap within a budget, at least extra time.

    Of choices of equal time, the one with the fewest and the first modules wins.

    Args:
        memory: memory of the step.
        budget: budget in bytes; None asks for the least peak, and then for the fewest modules.
    """
    model = CpModel()
    wrapped = {candidate.path: model.new_bool_var(candidate.path) for candidate in memory.candidates}
    for one, other in memory.nested:
        model.add_at_most_one(wrapped[one], wrapped[other])
    most = memory.peak(())
    peak: IntVar | int = model.new_int_var(0, 2 * most, "peak") if budget is None else budget
    weights = _weights(memory.candidates)
    cost = sum(weights[path] * literal for path, literal in wrapped.items())
    model.minimize(cost if budget is not None else peak * (len(weights) + 1) + sum(wrapped.values()))
    met: dict[Condition, IntVar] = {}
    constrained: set[int | str] = set()
    chosen: tuple[str, ...] = ()
    limit, least, proven = (-1 if budget is None else budget), 0, True
    while True:
        peaks = memory.peaks(chosen)
        over = [where for where, used in peaks.items() if used > limit and where not in constrained]
        if not over:
            return Choice(chosen, proven, max(peaks.values()), least)
        worst = sorted(over, key=lambda where: (-peaks[where], str(where)))
        for where in spread_out(worst, _are_near):
            constrained.add(where)
            constant, when_chosen, conditions = memory.terms(where)
            total = constant + sum(size * wrapped[path] for path, size in when_chosen.items() if size)
            total += sum(size * _literal(condition, wrapped, met, model) for condition, size in conditions.items())
            constraint = model.add(total <= peak)
            if isinstance(where, str):
                constraint.only_enforce_if(wrapped[where])
        outcome = solve_model(model, Limits.of(_SECONDS), rounding=None)
        values = outcome.values
        if values is None:
            return Choice(None, outcome.status is Status.INFEASIBLE)
        # These bounds come from fewer constraints, so they hold for all.
        proven = outcome.status is Status.OPTIMAL
        chosen = tuple(path for path, literal in wrapped.items() if values[literal.index])
        if not isinstance(peak, int):
            limit = int(values[peak.index])
        else:
            least = max(0, outcome.bound or 0) // _unit(memory.candidates)


def _literal(
    condition: Condition, wrapped: Mapping[str, IntVar], met: dict[Condition, IntVar], model: CpModel
) -> IntVar:
    if condition not in met:
        literal = met[condition] = model.new_bool_var("")
        for group in condition.unless:
            model.add_bool_or(literal, *(wrapped[path] for path in group))
        for path in condition.where:
            model.add_implication(wrapped[path], literal)
    return met[condition]


def spread_out(places: Iterable[Where], are_near: Callable[[Where, Where], bool]) -> list[Where]:
    """Return the first few places of which none is near another.

    Args:
        places: that exceed the limit, the worst first.
        are_near: tells whether two places share one constraint.
    """
    spread: list[Where] = []
    for place in places:
        if not any(are_near(place, other) for other in spread):
            spread.append(place)
        if len(spread) == _MOST_NEW:
            break
    return spread


def _are_near(one: int | str, other: int | str) -> bool:
    return isinstance(one, int) and isinstance(other, int) and abs(one - other) < NEIGHBOURS


def _unit(candidates: Sequence[Candidate]) -> int:
    return 2 * (len(candidates) + 1) ** 2


def _weights(candidates: Sequence[Candidate]) -> Mapping[str, int]:
    """Return the weight of each candidate in the objective.

    Its time comes first, then the number of wrapped modules, then the order, earlier ones first.
    """
    count, unit = len(candidates) + 1, _unit(candidates)
    return {item.path: item.time * unit + count + place for place, item in enumerate(candidates)}
