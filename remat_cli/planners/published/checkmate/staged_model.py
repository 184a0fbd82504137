"""Checkmate's integer program, sparse and with exact memory.

Source: Jain et al. 2020, sections 4.1 to 4.7. The variables R (op i is recomputed in stage t) and S (a tensor is held
from before stage t) are the paper's, but over tensors, because an op may have several outputs. FREE and U are not
needed: whether a tensor is in memory while an op runs comes down, in staged plans, to three cases that are linear in R
and S.

- It is produced at or before that op's turn in the stage, or held from before: it is alive if it is needed from that
  turn on, by an op of the stage or by a later stage (`_needed`).
- Its own turn comes later in the stage: it is alive if it is held from before.
- It is an output of the op: it is alive while the op runs, needed or not.

So only live tensors are freed, a needed tensor is never freed, and any other is freed at once: both sides of the
paper's FREE, without its products.

Memory while op t runs for the first time depends on S alone. Memory while a stage recomputes is limited on demand,
where a plan was seen to exceed it (`limit_memory`). Without these limits, or with those that hold `in_any_sequence`,
the proofs hold for staged plans and for all others with this order of first runs, whose stages recompute any ops, any
number of times, in any sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.problem import Status
from remat_cli.planners.published.checkmate.mip import MipOutcome, ZeroOneProgram
from remat_cli.planners.published.checkmate.mip_solvers import Floats, MipRows
from remat_cli.planners.published.checkmate.options import SolverName
from remat_cli.planners.published.checkmate.staged_choices import StagedChoices, readers_of
from remat_cli.planners.published.checkmate.staged_variables import ALWAYS, NEVER, StagedVariables
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools, Ints


@dataclass(frozen=True, eq=False)
class StagedRelaxation:
    """The result of solving the program's relaxation.

    Attributes:
        status: optimal, infeasible, or unknown if time ran out.
        held: [T, N + 1] the fraction of each tensor held from before each stage; None without a solution.
        bound: lower bound on the extra time; None without a solution.
        bound_if_run: [N, N + 1] lower bound on the extra time of solutions with this recomputation, as object array of
            int; None without a solution.
    """

    status: Status
    held: Floats | None = None
    bound: int | None = None
    bound_if_run: NDArray[np.object_] | None = None


class StagedModel:
    """The program over some choices, with extra time as cost.

    Attributes:
        choices: the choices to decide on.
        in_any_sequence: whether limits on memory within stages must hold for every sequence of a stage's
            recomputations.
    """

    def __init__(self, choices: StagedChoices, *, in_any_sequence: bool = False, may_exceed: bool = False) -> None:
        """Write the program, without limits on memory within stages.

        Args:
            choices: the choices to decide on.
            in_any_sequence: as in the attributes.
            may_exceed: let solutions exceed the memory at a cost of 1, the only cost: the optimum is 0 if there is a
                plan.
        """
        self.choices = choices
        self.in_any_sequence = in_any_sequence
        self._program = ZeroOneProgram()
        self._is_contradictory = False  # whether the rows alone show that there is no solution
        self._variables = StagedVariables(choices)
        self._hold, self._run = self._variables.hold, self._variables.run
        stages = choices.stages
        # Sizes are counted in their largest common unit; the rest of the room is useless.
        sizes = np.concatenate([stages.bytes, stages.workspace, stages.shared_bytes])
        self._byte_unit = max(1, int(np.gcd.reduce(sizes)))
        self._bytes: Ints = stages.bytes // self._byte_unit
        self._room = choices.room // self._byte_unit
        times = stages.time[self._variables.run_op]
        self._time_unit = max(1, int(np.gcd.reduce(times)))
        # Derived variables by meaning; and the rules for their values, in the order of creation.
        self._derived: dict[tuple[int, ...], int] = {}
        self._definitions: list[tuple[int, Callable[[int, int], int], int, int]] = []
        self._memory_rows: dict[tuple[int, int], tuple[dict[int, int], int]] = {}
        costs = np.zeros(self._variables.hold_count + len(times), dtype=np.int64)
        if not may_exceed:
            costs[self._variables.hold_count :] = times // self._time_unit
        self._program.add_variables(costs)
        self._excess = self._program.add_variables(np.ones(int(may_exceed), dtype=np.int64)).tolist()
        self._add_supplies()
        self._add_continuity()
        for stage in np.flatnonzero(~choices.is_loose[:-1]).tolist():
            self._limit_first_run(stage)

    @property
    def size(self) -> int:
        """Number of variables."""
        return self._program.size

    def runs(self, values: Ints) -> Bools:
        """Return [N, N + 1] the recomputations of a solution."""
        return self._variables.runs(values)

    def solve(
        self,
        solver: SolverName,
        limits: Limits,
        *,
        gap: float = 0.0,
        known: Bools | None = None,
        on_solution: Callable[[Ints], None] = lambda values: None,
    ) -> MipOutcome:
        """Search for the recomputations of least time.

        Args:
            solver: an installed solver.
            limits: limits of the search.
            gap: share of the bound within which a solution ends the search.
            known: [N, N + 1] recomputations of a plan that fits, to start from if the choices admit it.
            on_solution: receives each better solution.

        Raises:
            KeyboardInterrupt: Ctrl-C; the search was stopped after passing on every solution found until then.
        """
        if self._is_contradictory:
            return MipOutcome(Status.INFEASIBLE)
        start = None if known is None else self._start(known)
        outcome = self._program.solve(solver, limits, gap=gap, start=start, on_solution=on_solution)
        return replace(outcome, bound=None if outcome.bound is None else outcome.bound * self._time_unit)

    def relax(self, solver: SolverName, limits: Limits) -> StagedRelaxation:
        """Solve the linear relaxation.

        Raises:
            KeyboardInterrupt: Ctrl-C; the solver was stopped.
        """
        if self._is_contradictory:
            return StagedRelaxation(Status.INFEASIBLE)
        relaxation = self._program.relax(solver, limits)
        if relaxation.values is None or relaxation.bound is None or relaxation.bound_if_one is None:
            return StagedRelaxation(relaxation.status)
        variables = self._variables
        bound_if_run = np.zeros(self._run.shape, dtype=object)
        at = (variables.run_op, variables.run_stage)
        bound_if_run[at] = relaxation.bound_if_one[self._run[at]] * self._time_unit
        held = np.append(relaxation.values[: variables.hold_count], (1.0, 0.0))  # ALWAYS and NEVER
        return StagedRelaxation(relaxation.status, held[self._hold], relaxation.bound * self._time_unit, bound_if_run)

    def limit_memory(self, stage: int, op: int, values: Ints | None = None) -> bool:
        """Limit the memory while an op runs in a stage.

        Returns whether the program changed.

        Args:
            stage: 0 to N.
            op: an op that may be recomputed there, or that the stage runs for the first time.
            values: a solution; if it breaks an existing limit by the solver's tolerance, a row of small numbers forbids
                it.
        """
        if (stage, op) not in self._memory_rows:
            self._limit_rerun(stage, op)
            return True
        return values is not None and self._forbid_cover(*self._memory_rows[stage, op], values)

    def _start(self, runs: Bools) -> Ints | None:
        """Return the solution with these recomputations, or None."""
        decided = self._variables.values(runs)
        if decided is None:
            return None
        values = np.append(decided, np.zeros(self._program.size - len(decided), dtype=np.int64))
        known = {ALWAYS: 1, NEVER: 0}
        for variable, rule, one, other in self._definitions:
            values[variable] = rule(*(known.get(each, int(values[each])) for each in (one, other)))
        return values

    def _add_supplies(self) -> None:
        """Add the constraint that a read tensor is held or recomputed in the stage."""
        stages = self.choices.stages
        produced_at = stages.produced_at
        tensor, stage = stages.read_tensor, stages.read_stage
        self._add(np.stack([self._hold[tensor, stage], self._run[produced_at[tensor], stage]], axis=1), (1, 1), 1)
        which, tensor = stages.inputs.expand(self._variables.run_op)
        op, stage = self._variables.run_op[which], self._variables.run_stage[which]
        columns = (self._run[op, stage], self._hold[tensor, stage], self._run[produced_at[tensor], stage])
        self._add(np.stack(columns, axis=1), (-1, 1, 1), 0)

    def _add_continuity(self) -> None:
        """Add the constraint that a tensor held after a stage comes from somewhere.

        It was held before the stage, or recomputed in the stage. In passing stages the converse holds, too.
        """
        produced_at = self.choices.stages.produced_at
        is_held = self._hold != NEVER
        tensor, stage = np.nonzero(self._variables.is_split & is_held[:, :-1] & is_held[:, 1:])
        before, after = self._hold[tensor, stage], self._hold[tensor, stage + 1]
        remade = self._run[produced_at[tensor], stage]
        self._add(np.stack([before, remade, after], axis=1), (1, 1, -1), 0)
        kept = self.choices.is_passing[stage]
        for there in (before, remade):
            self._add(np.stack([after, there], axis=1)[kept], (1, -1), 0)

    def _limit_first_run(self, stage: int) -> None:
        """Limit the memory while a stage's own op runs.

        The op's inputs and outputs count, and the tensors held after the stage.
        """
        stages = self.choices.stages
        weights = self._bytes.copy()
        own = np.concatenate([stages.inputs[stage], stages.outputs[stage]])
        weights[own] = 0
        constant = int(stages.own_bytes[stage]) // self._byte_unit
        shared = int(stages.shared_input[stage])
        if shared >= 0:  # the op works in place unless its input is held
            weights[shared] = int(stages.shared_bytes[stage]) // self._byte_unit
            constant -= int(weights[shared])
        held = self._hold[:, stage + 1]
        constant += int(weights[held == ALWAYS].sum())
        counts = (held >= 0) & (weights > 0)
        terms = dict(zip(held[counts].tolist(), weights[counts].tolist(), strict=True))
        self._limit(stage, stage, terms, self._room - constant)

    def _limit_rerun(self, stage: int, op: int) -> None:
        """Limit the memory while an op is recomputed in a stage."""
        stages = self.choices.stages
        terms: dict[int, int] = {}
        constant = 0

        def count(variable: int, size: int) -> None:
            nonlocal constant
            if variable == ALWAYS:
                constant += size
            elif variable != NEVER and size:
                terms[variable] = terms.get(variable, 0) + size

        for tensor in range(int(np.searchsorted(stages.produced_at, stage))):
            count(self._is_there(stage, op, tensor), int(self._bytes[tensor]))
        count(int(self._run[op, stage]), int(stages.workspace[op]) // self._byte_unit)
        saved = int(stages.shared_bytes[op]) // self._byte_unit
        if saved:
            count(self._works_in_place(stage, op), -saved)
        self._limit(stage, op, terms, self._room - constant)

    def _is_there(self, stage: int, op: int, tensor: int) -> int:
        """Return the variable for a tensor being in memory during a rerun.

        The rerun is that of `op` in the stage.
        """
        stages = self.choices.stages
        if self.in_any_sequence:
            needed = self._all_along(stage, tensor)
            touched = tensor in stages.inputs[op] or tensor in stages.outputs[op]
        elif stages.produced_at[tensor] > op:
            return int(self._hold[tensor, stage])
        else:
            needed = self._needed(stage, tensor, op)
            touched = bool(stages.produced_at[tensor] == op)
        return self._run_or(stage, op, tensor, needed) if touched else needed

    def _needed(self, stage: int, tensor: int, turn: int) -> int:
        """Return the variable for a tensor being needed from an op's turn on.

        The stage or a later one may need the tensor.
        """
        choices = self.choices
        if choices.is_read[tensor, stage]:
            return ALWAYS
        readers = readers_of(choices.stages, tensor)
        readers = readers[(readers >= turn) & (readers < stage)]
        readers = readers[choices.may_run[readers, stage]]
        if not len(readers):
            return self._needed_after(stage, tensor)
        reader = int(readers[0])
        return self._run_or(stage, reader, tensor, self._needed(stage, tensor, reader + 1))

    def _needed_after(self, stage: int, tensor: int) -> int:
        """Return the variable for a tensor being in memory at a stage's end.

        The stage's own op or later stages need the tensor.
        """
        if self.choices.is_read[tensor, stage]:
            return ALWAYS
        return int(self._hold[tensor, stage + 1]) if stage < len(self.choices.stages) else NEVER

    def _all_along(self, stage: int, tensor: int) -> int:
        """Return the variable for a tensor being in memory throughout a stage.

        It is needed after the stage, and not recomputed in the stage.
        """
        needed = self._needed_after(stage, tensor)
        remade = int(self._run[self.choices.stages.produced_at[tensor], stage])
        if NEVER in (needed, remade):
            return needed
        key = (stage, tensor)
        if key not in self._derived:
            variable = self._derive(key, _but_not, needed, remade)
            self._add(np.array([[variable, remade, needed]]), (1, 1, -1), 0)
        return self._derived[key]

    def _run_or(self, stage: int, op: int, tensor: int, other: int) -> int:
        """Return the variable "op recomputed in the stage, or `other`".

        The key includes the tensor on whose behalf this is asked.
        """
        if other == ALWAYS:
            return ALWAYS
        key = (stage, op, tensor)
        if key not in self._derived:
            run = int(self._run[op, stage])
            variable = self._derive(key, max, run, other)
            for implied_by in (run, other):
                self._add(np.array([[variable, implied_by]]), (1, -1), 0)
        return self._derived[key]

    def _works_in_place(self, stage: int, op: int) -> int:
        """Return a variable that is 1 only if the op can work in place.

        The op is recomputed in the stage, and its input is not needed afterwards.
        """
        shared, run = int(self.choices.stages.shared_input[op]), int(self._run[op, stage])
        needed = self._all_along(stage, shared) if self.in_any_sequence else self._needed(stage, shared, op + 1)
        variable = self._derive((stage, op, shared, 1), _but_not, run, needed)
        self._add(np.array([[run, variable]]), (1, -1), 0)
        self._add(np.array([[variable, needed]]), (-1, -1), -1)
        return variable

    def _derive(self, key: tuple[int, ...], rule: Callable[[int, int], int], one: int, other: int) -> int:
        """Add a variable whose value follows from two others."""
        variable = int(self._program.add_variables(np.zeros(1, dtype=np.int64))[0])
        self._derived[key] = variable
        self._definitions.append((variable, rule, one, other))
        return variable

    def _limit(self, stage: int, op: int, terms: dict[int, int], room: int) -> None:
        self._memory_rows[stage, op] = (terms, room)
        most = sum(size for size in terms.values() if size > 0)
        if most > room:
            terms.update((variable, room - most) for variable in self._excess)
            self._add_row({variable: -size for variable, size in terms.items()}, -room)

    def _forbid_cover(self, terms: dict[int, int], room: int, values: Ints) -> bool:
        """Add a cover inequality against a solution that exceeds the limit.

        Some literals are all 1 and together exceed the limit: one of these must be 0. Returns whether the solution
        exceeds the limit.
        """
        if sum(size for variable, size in terms.items() if values[variable]) <= room:
            return False
        literals = [(size, variable) for variable, size in terms.items() if size > 0 and values[variable]]
        unshared = [(-size, variable) for variable, size in terms.items() if size < 0]  # 1 - variable counts
        literals += [(size, ~variable) for size, variable in unshared if not values[variable]]
        left = room + sum(size for size, _ in unshared)
        cover: dict[int, int] = {}
        at_least = 1
        for size, literal in sorted(literals, reverse=True):
            if left < 0:
                break
            left -= size
            cover[max(literal, ~literal)] = -1 if literal >= 0 else 1
            at_least -= literal >= 0
        self._add_row(cover, at_least)
        return True

    def _add(self, columns: Ints, coefficients: tuple[int, ...], at_least: int) -> None:
        """Add the rows sum(coefficient * column) >= at_least.

        Rows that no solution can break are left out.
        """
        factors = np.array(coefficients)
        needed = at_least - (columns == ALWAYS) @ factors
        is_entry = columns >= 0
        least = is_entry @ np.minimum(factors, 0)
        breakable = needed > least
        most = is_entry @ np.maximum(factors, 0)
        self._is_contradictory |= bool((needed > most).any())
        is_entry &= breakable[:, None]
        row, column = np.nonzero(is_entry)
        lengths = is_entry.sum(axis=1)[breakable]
        self._program.add_rows(
            MipRows(
                start=np.concatenate([[0], np.cumsum(lengths)]),
                variable=columns[row, column],
                coefficient=factors[column],
                at_least=needed[breakable],
            )
        )

    def _add_row(self, terms: dict[int, int], at_least: int) -> None:
        most = sum(max(0, coefficient) for coefficient in terms.values())
        self._is_contradictory |= at_least > most
        self._program.add_rows(MipRows.one(terms, at_least))


def _but_not(one: int, other: int) -> int:
    return int(one and not other)
