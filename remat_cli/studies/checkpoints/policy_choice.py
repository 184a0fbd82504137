"""Which blocks to wrap and which calls to save: an integer program that gains constraints where answers break them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from remat_cli.planners.shared.cp_model import INFEASIBLE, OPTIMAL, UNKNOWN, CpModel, CpSolver, IntVar, LinearExpr
from remat_cli.studies.checkpoints.policy_memory import Call, Held, Place, Policy, PolicyMemory

_SECONDS = 5.0  # for one integer program
_MOST_NEW = 12  # constraints that one answer adds
_NEIGHBOURS = 4  # ops that are this close to each other need one constraint


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

    Of policies that take the same time, the one that wraps and saves least is taken.

    Args:
        memory: of the step.
        budget: in bytes; None asks for the least peak.
    """
    program = _Program.of(memory)
    limit, proven = (-1 if budget is None else budget), True
    policy = Policy({}, {})
    peak: IntVar | int = budget if budget is not None else program.minimise_peak(memory.peak(policy))
    if budget is not None:
        program.minimise_time()
    constrained: set[Place] = set()
    least = 0
    while True:
        peaks = memory.peaks(policy)
        over = [place for place, used in peaks.items() if used > limit and place not in constrained]
        if not over:
            return PolicyChoice(policy, proven, max(peaks.values()), least)
        for place in _worst(over, peaks):
            constrained.add(place)
            program.keep_within(place, peak)
        solver = CpSolver()
        solver.parameters.max_time_in_seconds = _SECONDS
        solver.parameters.num_workers = 1
        status = solver.solve(program.model)
        if status in (INFEASIBLE, UNKNOWN):
            return PolicyChoice(None, status == INFEASIBLE)
        # Of fewer constraints: what holds for them holds for all.
        proven = status == OPTIMAL
        policy = program.policy(solver)
        if budget is None:
            limit = solver.value(peak)
        else:
            least = int(max(0.0, solver.best_objective_bound)) // program.unit


@dataclass
class _Program:
    """The integer program.

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
    held: dict[Held, IntVar] = field(default_factory=dict)

    @classmethod
    def of(cls, memory: PolicyMemory) -> _Program:
        """Build the program without constraints on memory."""
        model = CpModel()
        wrapped = {path: model.new_bool_var(path) for path in memory.blocks}
        saved = {(kind, call): model.new_bool_var("") for kind, calls in memory.calls.items() for call in calls}
        for one, other in memory.nested:
            model.add_at_most_one(wrapped[one], wrapped[other])
        program = cls(model, memory, wrapped, saved)
        for path, block in memory.blocks.items():
            drawing = [rerun.call for rerun in block.reruns if rerun.is_random]
            # A call that is left out draws nothing: what draws after it would draw other numbers.
            for earlier, later in pairwise(drawing):
                first, second = (saved.get((block.candidate.kind, call)) for call in (earlier, later))
                if first is not None:
                    model.add_implication(first, second if second is not None else first.negated())
            for rerun in block.reruns:
                program.reruns[path, rerun.call] = program._rerun(path, rerun.call)
        return program

    def _rerun(self, path: str, call: Call) -> IntVar:
        saved = self.saved.get((self.memory.blocks[path].candidate.kind, call))
        if saved is None:
            return self.wrapped[path]
        literal = self.model.new_bool_var("")
        self.model.add_bool_or(literal, self.wrapped[path].negated(), saved)
        self.model.add_implication(literal, self.wrapped[path])
        return literal

    @property
    def unit(self) -> int:
        """The price of one unit of time: more than of wrapping and saving everything."""
        return 1 + (len(self.wrapped) + 1) ** 2 * (len(self.saved) + 1)

    def minimise_time(self) -> None:
        """Ask for the least time; then for few blocks, the first ones, and few saved calls."""
        unit = self.unit
        time = sum(
            rerun.time * self.reruns[path, rerun.call]
            for path, block in self.memory.blocks.items()
            for rerun in block.reruns
        )
        self.model.minimize(unit * time + sum(self.wrapped.values()) + sum(self.saved.values()))

    def minimise_peak(self, most: int) -> IntVar:
        """Ask for the least peak; return it."""
        peak = self.model.new_int_var(0, 2 * most, "peak")
        few = sum(self.wrapped.values()) + sum(self.saved.values())
        self.model.minimize(peak * (len(self.wrapped) + len(self.saved) + 1) + few)
        return peak

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

    def _held(self, held: Held) -> IntVar:
        if held not in self.held:
            literal = self.held[held] = self.model.new_bool_var("")
            for group in held.unless:
                self.model.add_bool_or(literal, *(self.wrapped[path] for path in group))
            for path in held.where:
                self.model.add_implication(self.wrapped[path], literal)
            for path, call in held.saved:
                saved = self.saved.get((self.memory.blocks[path].candidate.kind, call))
                if saved is not None:
                    self.model.add_bool_or(literal, self.wrapped[path].negated(), saved.negated())
        return self.held[held]

    def policy(self, solver: CpSolver) -> Policy:
        """Return the policy of a solution, without calls of kinds that are not wrapped."""
        blocks: dict[str, tuple[str, ...]] = {}
        for path, literal in self.wrapped.items():
            if solver.boolean_value(literal):
                kind = self.memory.blocks[path].candidate.kind
                blocks[kind] = (*blocks.get(kind, ()), path)
        saved: Mapping[str, frozenset[Call]] = {
            kind: frozenset(call for call in self.memory.calls[kind] if solver.boolean_value(self.saved[kind, call]))
            for kind in blocks
        }
        return Policy(blocks, saved)


def _worst(over: Sequence[Place], peaks: Mapping[Place, int]) -> list[Place]:
    """Return where memory is most above the limit: of neighbouring ops one, and of all no more than a few."""
    found: list[Place] = []
    for place in sorted(over, key=lambda place: (-peaks[place], place.at, place.block or "", place.rerun)):
        near = any(
            other.block == place.block
            and abs(other.at - place.at) < _NEIGHBOURS
            and abs(other.rerun - place.rerun) < _NEIGHBOURS
            for other in found
        )
        if not near:
            found.append(place)
        if len(found) == _MOST_NEW:
            break
    return found
