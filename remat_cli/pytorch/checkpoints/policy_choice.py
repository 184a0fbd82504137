"""Which blocks to wrap and which calls to save: integer programs that gain constraints where answers break them.

There is one program for each number of wrapped blocks of each kind. Where that number is fixed, the blocks that run a
call again are as many as that, or none: so bounds are tight, and each program is solved in a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from time import monotonic

from remat_cli.core.problem import Status
from remat_cli.planners.shared.cp_model import CpModel, IntVar, LinearExpr
from remat_cli.planners.shared.cp_sat import Values, objective_of, solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.pytorch.checkpoints.policy_memory import Call, Held, Place, Policy, PolicyMemory

_SECONDS = 5.0  # for one integer program
_SECONDS_IN_ALL = 40.0  # for all of them; what is left then is not proven
_MOST_COUNTS = 128  # programs; with more combinations of numbers there is one program for all of them
_MOST_NEW = 12  # number of constraints that one answer adds
_NEIGHBOURS = 4  # ops this close to each other share one constraint
Counts = Mapping[str, int]


@dataclass(frozen=True)
class PolicyChoice:
    """A policy.

    Attributes:
        policy: None where there is none.
        proven: no other policy is better, or none fits, as far as `PolicyMemory` tells.
        peak: as `PolicyMemory` tells it, in bytes; 0 without a policy.
        least_time: no policy that fits runs less again.
    """

    policy: Policy | None
    proven: bool
    peak: int = 0
    least_time: int = 0


def choose_policy(memory: PolicyMemory, budget: int | None) -> PolicyChoice:
    """Return the policy at the least extra time within a budget.

    Of policies that take the same time, the one that wraps and saves least is taken; of checkpoints of whole modules,
    the first modules.

    Args:
        memory: of the step.
        budget: in bytes; None asks for the least peak.
    """
    return _PolicySearch(memory, budget).run()


class _PolicySearch:
    """One search."""

    def __init__(self, memory: PolicyMemory, budget: int | None) -> None:
        self._memory = memory
        self._budget = budget
        self._deadline = monotonic() + _SECONDS_IN_ALL
        self._places: dict[Place, None] = {}  # at which some answer was above the budget
        self._best: tuple[int, Policy] | None = None  # with the value of its program's objective
        self._bound: int | None = None  # on the objective of all policies
        self._proven = True

    def run(self) -> PolicyChoice:
        """Return the best of all programs."""
        for counts in _counts(self._memory):
            self._solve(counts)
        if self._best is None:
            return PolicyChoice(None, self._proven)
        _, policy = self._best
        unit = _PolicyModel.of(self._memory, {}).time_unit
        least = 0 if self._budget is None or self._bound is None else max(0, self._bound) // unit
        return PolicyChoice(policy, self._proven, self._memory.peak(policy), least)

    def _solve(self, counts: Counts) -> None:
        """Find the best policy that wraps so many blocks, unless it is no better than the best so far."""
        program = _PolicyModel.of(self._memory, counts)
        peak: IntVar | int = self._budget if self._budget is not None else program.peak(self._memory.peak(_NOTHING))
        objective = program.time_first() if self._budget is not None else program.peak_first(peak)
        if self._best is not None:
            program.model.add(objective <= self._best[0] - 1)
        program.model.minimize(objective)
        for place in self._places:
            program.keep_within(place, peak)
        constrained = set(self._places)
        while True:
            outcome = solve_model(program.model, Limits(min(monotonic() + _SECONDS, self._deadline)), rounding=None)
            if outcome.status is Status.INFEASIBLE:
                return
            bound, values = outcome.bound or 0, outcome.values
            if values is None:
                self._proven, self._bound = False, min(bound, self._bound or bound)
                return
            policy = program.policy(values)
            limit = peak if isinstance(peak, int) else int(values[peak.index])
            peaks = self._memory.peaks(policy)
            over = [place for place, used in peaks.items() if used > limit and place not in constrained]
            if not over:
                # Of fewer constraints: what holds for them holds for all.
                self._proven &= outcome.status is Status.OPTIMAL
                self._best = objective_of(program.model, values), policy
                self._bound = bound if self._bound is None else min(bound, self._bound)
                return
            worst = sorted(over, key=lambda place: (-peaks[place], place.at, place.block or "", place.rerun))
            for place in _spread_out(worst):
                constrained.add(place)
                self._places[place] = None
                program.keep_within(place, peak)


_NOTHING = Policy({}, {})


def _counts(memory: PolicyMemory) -> Iterator[Counts]:
    """Yield how many blocks of each kind are wrapped, in all combinations.

    Yield nothing once if there are many, or if all calls of a module run again together.
    """
    kinds: dict[str, int] = {}
    for block in memory.blocks.values():
        kinds[block.candidate.kind] = kinds.get(block.candidate.kind, 0) + 1
    if not memory.calls or prod(count + 1 for count in kinds.values()) > _MOST_COUNTS:
        yield {}
        return
    for numbers in product(*(range(count + 1) for count in kinds.values())):
        yield dict(zip(kinds, numbers, strict=True))


@dataclass
class _PolicyModel:
    """An integer program.

    Attributes:
        model: of CP-SAT.
        memory: of the step.
        wrapped: by path.
        saved: by kind of block and call.
        reruns: that the block is wrapped and the call not saved; by path and call.
        held: that a reason holds.
    """

    model: CpModel
    memory: PolicyMemory
    wrapped: dict[str, IntVar]
    saved: dict[tuple[str, Call], IntVar]
    reruns: dict[tuple[str, Call], IntVar] = field(default_factory=dict)
    held: dict[Held, LinearExpr] = field(default_factory=dict)

    @classmethod
    def of(cls, memory: PolicyMemory, counts: Counts) -> _PolicyModel:
        """Build the program for numbers of blocks of each kind, without constraints on memory."""
        model = CpModel()
        wrapped = {path: model.new_bool_var(path) for path in memory.blocks}
        saved = {(kind, call): model.new_bool_var("") for kind, calls in memory.calls.items() for call in calls}
        for one, other in memory.nested:
            model.add_at_most_one(wrapped[one], wrapped[other])
        program = cls(model, memory, wrapped, saved)
        for path, block in memory.blocks.items():
            for rerun in block.reruns:
                program.reruns[path, rerun.call] = program._rerun(path, rerun.call)
            program._draw_the_same(path)
        for kind, count in counts.items():
            program._wrap(kind, count)
        return program

    def _rerun(self, path: str, call: Call) -> IntVar:
        saved = self.saved.get((self.memory.blocks[path].candidate.kind, call))
        if saved is None:
            return self.wrapped[path]
        literal = self.model.new_bool_var("")
        self.model.add_bool_or(literal, self.wrapped[path].negated(), saved)
        self.model.add_implication(literal, self.wrapped[path])
        self.model.add_implication(literal, saved.negated())
        return literal

    def _draw_the_same(self, path: str) -> None:
        """Add that no draw is saved before one that runs again: what is left out draws nothing."""
        block = self.memory.blocks[path]
        drawing = [rerun.call for rerun in block.reruns if rerun.is_random]
        for earlier, later in pairwise(drawing):
            first, second = (self.saved.get((block.candidate.kind, call)) for call in (earlier, later))
            if first is not None:
                self.model.add_implication(first, second if second is not None else first.negated())

    def _wrap(self, kind: str, count: int) -> None:
        """Add how many blocks of a kind are wrapped: so many run a call again that is not saved."""
        paths = [path for path, block in self.memory.blocks.items() if block.candidate.kind == kind]
        self.model.add(sum(self.wrapped[path] for path in paths) == count)
        for call in self.memory.calls[kind]:
            again = [self.reruns[path, call] for path in paths if (path, call) in self.reruns]
            if len(again) == len(paths):
                self.model.add(sum(again) + count * self.saved[kind, call] == count)

    @property
    def _weights(self) -> Mapping[str, int]:
        """The weight of wrapping each block: of whole modules the first ones weigh less."""
        first, more = (1, 0) if self.memory.calls else (1 + len(self.wrapped), 1)
        return {path: first + more * place for place, path in enumerate(self.wrapped)}

    @property
    def time_unit(self) -> int:
        """The weight of one unit of time: more than that of wrapping and saving everything."""
        return 1 + sum(self._weights.values()) + len(self.saved)

    def time_first(self) -> LinearExpr | int:
        """Return an objective: time, then blocks that are wrapped and calls that are saved."""
        wrapped = sum(weight * self.wrapped[path] for path, weight in self._weights.items())
        time = sum(
            rerun.time * self.reruns[path, rerun.call]
            for path, block in self.memory.blocks.items()
            for rerun in block.reruns
        )
        return self.time_unit * time + wrapped + sum(self.saved.values())

    def peak(self, most: int) -> IntVar:
        """Return a peak of at most twice that size."""
        return self.model.new_int_var(0, 2 * most, "peak")

    def peak_first(self, peak: IntVar | int) -> LinearExpr | int:
        """Return an objective: the peak, then blocks that are wrapped and calls that are saved."""
        unit = 1 + len(self.wrapped) + len(self.saved)
        return peak * unit + sum(self.wrapped.values()) + sum(self.saved.values())

    def keep_within(self, place: Place, peak: IntVar | int) -> None:
        """Add that memory at a place is within a peak."""
        terms = self.memory.terms(place)
        total: LinearExpr | int = terms.constant
        total += sum(size * self._held(held) for held, size in terms.held.items() if size)
        total += sum(size * self.reruns[key] for key, size in terms.rerun.items())
        if place.block is None:
            self.model.add(total <= peak)
            return
        kind = self.memory.blocks[place.block].candidate.kind
        total += sum(size * self.saved[kind, call] for call, size in terms.saved.items() if (kind, call) in self.saved)
        self.model.add(total <= peak).only_enforce_if(self.wrapped[place.block])

    def _held(self, held: Held) -> LinearExpr:
        if held not in self.held:
            rerun = self._rerun_holding(held)
            self.held[held] = self._reason(held) if rerun is None else rerun.negated()
        return self.held[held]

    def _rerun_holding(self, held: Held) -> IntVar | None:
        """Return the variable of a rerun that alone replaces a saved result, or None."""
        if len(held.saved) != 1 or held.where:
            return None
        ((path, call),) = held.saved
        return self.reruns[path, call] if held.unless == {(path,)} else None

    def _reason(self, held: Held) -> IntVar:
        literal = self.model.new_bool_var("")
        for group in held.unless:
            self.model.add_bool_or(literal, *(self.wrapped[path] for path in group))
        for path in held.where:
            self.model.add_implication(self.wrapped[path], literal)
        for path, call in held.saved:
            saved = self.saved.get((self.memory.blocks[path].candidate.kind, call))
            if saved is not None:
                self.model.add_bool_or(literal, self.wrapped[path].negated(), saved.negated())
        return literal

    def policy(self, values: Values) -> Policy:
        """Return the policy of a solution, without calls of kinds that are not wrapped."""
        whole = self.memory.wrapping(path for path, literal in self.wrapped.items() if values[literal.index])
        saved: Mapping[str, frozenset[Call]] = {
            kind: frozenset(call for call in calls if values[self.saved[kind, call].index])
            for kind, calls in self.memory.calls.items()
            if kind in whole.blocks
        }
        return Policy(whole.blocks, saved)


def _spread_out(places: Iterable[Place]) -> list[Place]:
    """Return the first few places of which none is near another.

    Args:
        places: that exceed the limit, the worst first.
    """
    spread: list[Place] = []
    for place in places:
        if not any(_are_near(place, other) for other in spread):
            spread.append(place)
        if len(spread) == _MOST_NEW:
            break
    return spread


def _are_near(one: Place, other: Place) -> bool:
    is_close = abs(one.at - other.at) < _NEIGHBOURS and abs(one.rerun - other.rerun) < _NEIGHBOURS
    return one.block == other.block and is_close
