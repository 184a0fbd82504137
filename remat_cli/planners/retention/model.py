"""The sparse need-time model in CP-SAT, built in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat_cli.planners.retention.need_times import NeedTimes
from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.cp_sat import add_choices, minimise
from remat_cli.planners.shared.numbering import Bools, Ints, Ragged, sums
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages

# Linear relaxations find and prove optima of these models many times sooner than clause learning alone. The solver's
# own chaining of sums through auxiliary variables makes the relaxations weaker.
SETTINGS = {"linearization_level": 2, "find_big_linear_overlap": False}


@dataclass(frozen=True, eq=False)
class RetentionModel:
    """A model of tensors held from need to need, and of reruns.

    Variables, all boolean: `held[i]`, the tensor of need i is kept from the need before (or its production) until need
    i; `rerun[k]`, chance k of recomputing an op is taken. Variable k of the CP-SAT model is rerun k; held ones follow.

    Attributes:
        needs: times at which tensors may be needed.
        room: bytes for outputs of ops: the budget without the fixed bytes.
        exact_reruns: a memory constraint per rerun; otherwise one per stage, which assumes that all its reruns coexist.
            The second form excludes plans only under very tight budgets; the first takes several times as long to
            solve.
    """

    needs: NeedTimes
    room: int
    exact_reruns: bool = False

    @property
    def stages(self) -> Stages:
        """The graph in its order."""
        return self.needs.stages

    @cached_property
    def always_held(self) -> Bools:
        """[M] whether only holding the tensor can serve the need."""
        needs = self.needs
        must = needs.is_read & (needs.rerun < 0)
        # Within a tensor, a run of needs without a chance to recompute is held up to the last need that must be held.
        run = np.cumsum((np.diff(needs.tensor, prepend=-1) > 0) | (np.roll(needs.rerun, 1) >= 0) | (needs.rerun >= 0))
        if not len(run):
            return must
        index = np.arange(len(run))
        last = np.full(int(run[-1]) + 1, -1, dtype=np.int64)
        np.maximum.at(last, run[must], index[must])
        return (needs.rerun < 0) & (index <= last[run])

    @cached_property
    def _held_variable(self) -> Ints:
        """[M] index of each need's variable; -1 if always held."""
        free = ~self.always_held
        first = len(self.needs.rerun_stage)
        return np.where(free, first + np.cumsum(free) - 1, -1)

    def build(self) -> CpModel:
        """Return the CP-SAT model."""
        model = CpModel()
        count = len(self.needs.rerun_stage) + int((~self.always_held).sum())
        add_choices(model, count)
        self._add_clauses(model)
        self._add_memory(model)
        minimise(model, self.stages.time[self.needs.rerun_stage_of_op])
        return model

    def sequence(self, values: Ints) -> RematSequence:
        """Return the sequence of runs of a solution.

        Args:
            values: [variables] values in the solution.
        """
        needs, stages = self.needs, self.stages
        taken = np.flatnonzero(values[: len(needs.rerun_stage)])
        return RematSequence.of_stages(stages, needs.rerun_stage_of_op[taken], needs.rerun_stage[taken])

    def hint(self, model: CpModel, plan: RematSequence) -> None:
        """Start the search from a plan with first runs in the model's order.

        Recomputations without a chance in the model are left out: the hint is then incomplete.
        """
        needs = self.needs
        taken = self._chances_taken(plan)
        which, need = self._inputs_of_reruns
        wanted = needs.is_read.copy()
        wanted[need[taken[which]]] = True
        reran = np.append(taken, False)[needs.rerun]
        held = np.zeros(len(needs), dtype=np.bool_)
        is_held_on = False
        for i in range(len(needs) - 1, -1, -1):
            is_last = i + 1 == len(needs) or needs.tensor[i] != needs.tensor[i + 1]
            is_held_on = bool(wanted[i] or (is_held_on and not is_last)) and not reran[i]
            held[i] = is_held_on
        hint = model.proto.solution_hint
        free = self._held_variable >= 0
        hint.vars.extend([*range(len(taken)), *self._held_variable[free].tolist()])
        hint.values.extend([*taken.astype(int).tolist(), *held[free].astype(int).tolist()])

    def _chances_taken(self, plan: RematSequence) -> Bools:
        """[Q] whether the plan takes each chance of recomputation."""
        needs, stages = self.needs, self.stages
        count = len(stages) + 1
        stage_of_op = np.argsort(stages.order)
        ran = stage_of_op[plan.ops]
        stage = np.cumsum(~plan.is_rerun)
        return np.isin(needs.rerun_stage_of_op * count + needs.rerun_stage, (ran * count + stage)[plan.is_rerun])

    def _add_clauses(self, model: CpModel) -> None:
        needs, held = self.needs, self._held_variable
        free = held >= 0
        # Use: the tensor is held until its reader's stage, or recomputed there.
        used = np.flatnonzero(needs.is_read & free)
        _add_ors(model, zip(held[used].tolist(), needs.rerun[used].tolist(), strict=True))
        # Continuity: a tensor is held from one need to the next only if it is in memory at the first.
        has_before = np.append(False, needs.tensor[1:] == needs.tensor[:-1]) if len(needs) else free
        later = np.flatnonzero(has_before)
        later = later[free[later - 1]]
        for i, before in zip(later.tolist(), (later - 1).tolist(), strict=True):
            literals = [int(held[before])]
            if needs.rerun[before] >= 0:
                literals.append(int(needs.rerun[before]))
            if held[i] >= 0:
                literals.append(-int(held[i]) - 1)
            model.proto.constraints.add().bool_or.literals.extend(literals)
        self._add_inputs_of_reruns(model)

    def _add_inputs_of_reruns(self, model: CpModel) -> None:
        needs, held = self.needs, self._held_variable
        which, need = self._inputs_of_reruns
        literals = []
        for k, i in zip(which.tolist(), need.tolist(), strict=True):
            if held[i] < 0:
                continue
            clause = [-k - 1, int(held[i])]
            if needs.rerun[i] >= 0:
                clause.append(int(needs.rerun[i]))
            literals.append(clause)
        _add_ors(model, literals)

    @cached_property
    def _inputs_of_reruns(self) -> tuple[Ints, Ints]:
        """Return (chance, need) for each input of a recomputation."""
        needs = self.needs
        count = len(self.stages) + 1
        which, tensors = self.stages.inputs.expand(needs.rerun_stage_of_op)
        keys = needs.tensor * count + needs.stage
        return which, np.searchsorted(keys, tensors * count + needs.rerun_stage[which])

    def _add_memory(self, model: CpModel) -> None:
        """Add the constraints that every stage fits the room.

        Its own op and its reruns have constraints of their own.
        """
        needs, stages = self.needs, self.stages
        own = stages.own_bytes - np.where(self._input_ends, stages.shared_bytes, 0)
        terms = self._held_terms(needs.free_from, np.minimum(needs.stage, len(stages)))
        add_rows(model, terms, own, self.room)
        if self.exact_reruns:
            self._add_memory_of_each_rerun(model)
        else:
            self._add_memory_of_reruns(model)

    def _add_memory_of_reruns(self, model: CpModel) -> None:
        """Add the constraint that a stage's reruns fit the room together.

        This is an overestimate: tensors held into the stage count together with all outputs of its reruns.
        """
        needs, stages = self.needs, self.stages
        written = stages.outputs.sums(stages.bytes) + stages.workspace
        phase = self._held_terms(needs.before + 1, needs.stage + 1)
        with_reruns = np.zeros(len(stages) + 1, dtype=np.bool_)
        with_reruns[needs.rerun_stage] = True
        reruns = np.arange(len(needs.rerun_stage))
        phase = phase.of_rows(with_reruns).and_also(needs.rerun_stage, reruns, written[needs.rerun_stage_of_op])
        add_rows(model, phase, np.zeros(len(stages) + 1, dtype=np.int64), self.room)

    def _add_memory_of_each_rerun(self, model: CpModel) -> None:
        """Add the constraint that each rerun fits the room.

        All tensors that may still be needed count.
        """
        needs, stages, held = self.needs, self.stages, self._held_variable
        own = stages.own_bytes[needs.rerun_stage_of_op]
        crossing = self._held_terms(needs.before + 1, needs.stage).by_row(len(stages) + 1)
        by_stage = np.argsort(needs.stage, kind="stable")
        at = Ragged.of(needs.stage[by_stage], by_stage, len(stages) + 1)
        for k, (op, stage) in enumerate(zip(needs.rerun_stage_of_op.tolist(), needs.rerun_stage.tolist(), strict=True)):
            waiting, again, beyond = self._there_while(op, at[stage])
            through = crossing[stage]
            variable = np.concatenate([through.variable, held[waiting], needs.rerun[again], held[beyond]])
            sizes = stages.bytes[needs.tensor[np.concatenate([waiting, again, beyond])]]
            factor = np.concatenate([through.factor, sizes])
            is_free = variable >= 0
            left = self.room - int(own[k] + factor[~is_free].sum())
            if factor[is_free].sum() > left:
                constraint = model.proto.constraints.add()
                constraint.enforcement_literal.append(k)
                constraint.linear.vars.extend(variable[is_free].tolist())
                constraint.linear.coeffs.extend(factor[is_free].tolist())
                constraint.linear.domain.extend((-(2**62), left))

    def _there_while(self, op: int, needs_here: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the needs of a stage that keep tensors during the rerun of `op`.

        The op's own inputs and outputs are left out.

        Returns:
            Needs whose tensors are held into the stage and still wanted; needs whose tensors were recomputed earlier in
                the stage; and the next needs of tensors that the stage no longer wants, in case these are held for
                longer.
        """
        needs, stages = self.needs, self.stages
        tensor = needs.tensor[needs_here]
        others = ~(np.isin(tensor, stages.inputs[op]) | (stages.produced_at[tensor] == op))
        needs_here, tensor = needs_here[others], tensor[others]
        wanted = needs.is_read[needs_here] | (self._last_rerun_reader[needs_here] > op)
        again = needs_here[wanted & (needs.rerun[needs_here] >= 0) & (stages.produced_at[tensor] < op)]
        beyond = needs_here[~wanted] + 1
        beyond = beyond[beyond < len(needs)]
        return needs_here[wanted], again, beyond[needs.tensor[beyond] == needs.tensor[beyond - 1]]

    @cached_property
    def _last_rerun_reader(self) -> Ints:
        """[M] stage of the last op whose rerun at a need may read the tensor.

        The stage is that of the op's first run; -1 means none.
        """
        which, need = self._inputs_of_reruns
        last = np.full(len(self.needs), -1, dtype=np.int64)
        np.maximum.at(last, need, self.needs.rerun_stage_of_op[which])
        return last

    @cached_property
    def _input_ends(self) -> Bools:
        """[N] whether the op takes over an input that nothing needs afterwards."""
        stages, needs = self.stages, self.needs
        last = np.full(len(stages.bytes), -1, dtype=np.int64)
        np.maximum.at(last, needs.tensor, needs.stage)
        can = np.flatnonzero(stages.shared_input >= 0)
        ends = np.zeros(len(stages), dtype=np.bool_)
        ends[can] = last[stages.shared_input[can]] == can
        return ends

    def _held_terms(self, first: Ints, end: Ints) -> Terms:
        """Return the bytes of each need's tensor in stages `first` to before `end`."""
        return Terms.over(first, end, self._held_variable, self.stages.bytes[self.needs.tensor])


@dataclass(frozen=True, eq=False)
class Terms:
    """Entries of linear constraints: row, variable (-1 for a constant), factor."""

    row: Ints
    variable: Ints
    factor: Ints

    @classmethod
    def over(cls, first: Ints, end: Ints, variable: Ints, factor: Ints) -> Terms:
        """Return an entry of each variable for rows `first` to before `end`."""
        lengths = np.maximum(end - first, 0)
        which = np.repeat(np.arange(len(lengths)), lengths)
        row = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + first[which]
        return cls(row, variable[which], factor[which])

    def by_row(self, rows: int) -> list[Terms]:
        """Split the entries by row."""
        order = np.argsort(self.row, kind="stable")
        starts = np.searchsorted(self.row[order], np.arange(1, rows))
        columns = (np.split(column[order], starts) for column in (self.row, self.variable, self.factor))
        return [Terms(*parts) for parts in zip(*columns, strict=True)]

    def of_rows(self, wanted: Bools) -> Terms:
        """Return the entries of the wanted rows."""
        inside = wanted[self.row]
        return Terms(self.row[inside], self.variable[inside], self.factor[inside])

    def and_also(self, row: Ints, variable: Ints, factor: Ints) -> Terms:
        """Return these entries followed by others."""
        return Terms(
            np.concatenate([self.row, row]),
            np.concatenate([self.variable, variable]),
            np.concatenate([self.factor, factor]),
        )


def add_rows(model: CpModel, terms: Terms, constant: Ints, room: int) -> None:
    """Add constant[row] + sum(factor * variable) <= room for each row.

    Rows that no values can violate are left out.
    """
    rows = len(constant)
    is_constant = terms.variable < 0
    constant = constant + sums(terms.row[is_constant], terms.factor[is_constant], rows)
    row, variable, factor = (values[~is_constant] for values in (terms.row, terms.variable, terms.factor))
    order = np.argsort(row, kind="stable")
    row, variable, factor = row[order], variable[order], factor[order]
    most = constant + sums(row, np.maximum(factor, 0), rows)
    start = np.searchsorted(row, np.arange(rows + 1))
    for r in np.flatnonzero(most > room).tolist():
        here = slice(start[r], start[r + 1])
        linear = model.proto.constraints.add().linear
        linear.vars.extend(variable[here].tolist())
        linear.coeffs.extend(factor[here].tolist())
        linear.domain.extend((-(2**62), int(room - constant[r])))


def _add_ors(model: CpModel, clauses: Iterable[Sequence[int]]) -> None:
    for clause in clauses:
        model.proto.constraints.add().bool_or.literals.extend(clause)
