"""The cut model: the least recomputation with memory counted at a few moments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat_cli.planners.retention.any_order_bound import ancestors_and_descendants
from remat_cli.planners.retention.model import Terms, add_rows
from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.cp_sat import Values, add_choices, minimise
from remat_cli.planners.shared.numbering import Bools, Ints
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages

# means no literal
_NONE = -(2**62)


@dataclass(frozen=True, eq=False)
class CutModel:
    """A model of plans by the tensors in memory at a few cuts.

    The cuts are first runs of ops, in a certain order. Interval k holds the ops that run after cut k - 1, up to and
    including cut k; the last interval holds the ops after the last cut. An op counts once in an interval. Each op needs
    its inputs, in memory at the previous cut or produced since; their producers need inputs in turn. So, unlike the
    cover bound, this model also pays for inputs that have been freed. More cuts give a better bound and a larger model.

    Variables, all boolean: `present[x, k]`, tensor x is in memory at cut k; `run[q, k]`, op q runs in interval k;
    `after[q, k]`, it runs after cut k. If the interval of an op's first run is certain, neither `run` nor `after`
    counts that run. `after` follows from `run`, but strengthens the linear relaxation, which is then as good as the
    minimum cut at each cut.

    Attributes:
        stages: the graph.
        room: bytes for outputs of ops: the budget without the fixed bytes.
        cuts: stages in whose first runs memory is counted.
        first: [N] the earliest interval of each op's first run.
        latest: [N] the latest interval of each op's first run.
    """

    stages: Stages
    room: int
    cuts: Ints
    first: Ints
    latest: Ints

    @classmethod
    def in_fixed_order(cls, stages: Stages, room: int, cuts: Ints) -> CutModel:
        """Return the model of plans in the order of the stages.

        That is the order of their first runs.
        """
        interval = np.searchsorted(cuts, np.arange(len(stages)))
        return cls(stages, room, cuts, interval, interval)

    @classmethod
    def in_any_order(cls, stages: Stages, room: int, cuts: Ints) -> CutModel:
        """Return the model of all plans.

        Each cut must run before the next one, in whatever order.
        """
        first = np.zeros(len(stages), dtype=np.int64)
        latest = np.full(len(stages), len(cuts))
        for cut in cuts.tolist():
            is_before, is_after = ancestors_and_descendants(stages.graph, cut)
            first += is_after
            latest -= is_before
            latest[cut] -= 1
        return cls(stages, room, cuts, first, latest)

    @property
    def counted(self) -> int:
        """Time of the first runs in the objective.

        These are the first runs among the variables.
        """
        return int(self.stages.time[~self._is_sure].sum())

    def sequence(self, values: Values) -> RematSequence:
        """Return the sequence of runs of a solution.

        Ops run for the first time in the order of the stages. In each interval an op is recomputed right before its
        reader, or right before the cut.
        """
        stages, run = self.stages, self._run
        begins, ends = np.append(0, self.cuts + 1), np.append(self.cuts, len(stages))
        start = np.searchsorted(stages.read_tensor, np.arange(len(stages.bytes) + 1))
        at: dict[tuple[int, int], int] = {}
        for place in np.flatnonzero(values[run.first : run.end])[::-1].tolist():  # readers before producers
            op, k = int(run.member[place]), int(run.interval[place])
            if op >= begins[k] or not stages.recomputable[op]:
                continue  # The op runs here for the first time, or later in an order other than this.
            readers = [r for x in stages.outputs[op] for r in stages.read_stage[start[x] : start[x + 1]].tolist()]
            first = [r for r in readers if begins[k] <= r < ends[k]]
            at[op, k] = min([*first, *(at[r, k] for r in readers if (r, k) in at)], default=int(ends[k]))
        reruns = np.array([op for op, _ in at], dtype=np.int64)
        return RematSequence.of_stages(
            stages, reruns, np.array([*at.values()], dtype=np.int64)
        ).without_useless_reruns()

    # The variables

    @cached_property
    def _produced(self) -> Ints:
        """[T] the earliest interval of each tensor."""
        return self.first[self.stages.produced_at]

    @cached_property
    def _is_sure(self) -> Bools:
        """[N] whether the interval of each op's first run is certain."""
        return np.equal(self.first, self.latest)

    @cached_property
    def _last_use(self) -> Ints:
        """[T] interval of each tensor's last possible use.

        First runs and recomputations use tensors.
        """
        stages = self.stages
        last = self._produced.copy()
        np.maximum.at(last, stages.read_tensor, np.append(self.latest, len(self.cuts))[stages.read_stage])
        op_last = self.latest.copy()
        for op in range(len(stages) - 1, -1, -1):
            if stages.recomputable[op]:
                op_last[op] = max(op_last[op], last[stages.outputs[op]].max(initial=0))
            inputs = stages.inputs[op]
            last[inputs] = np.maximum(last[inputs], op_last[op])
        return last

    @cached_property
    def _last_run(self) -> Ints:
        """[N] the last interval in which each op may run."""
        last = self.latest.copy()
        again = self.stages.recomputable[self.stages.produced_at]
        np.maximum.at(last, self.stages.produced_at[again], self._last_use[again])
        return last

    @cached_property
    def _present(self) -> _Family:
        return _Family.of(self._produced, self._last_use, 0)

    @cached_property
    def _run(self) -> _Family:
        return _Family.of(self.first + self._is_sure, self._last_run + 1, self._present.end)

    @cached_property
    def _after(self) -> _Family:
        return _Family.of(self.first, self._last_run, self._run.end)

    # The constraints

    def build(self, *, has_objective: bool = True) -> CpModel:
        """Return the model, which minimises the time of reruns plus `counted`.

        Args:
            has_objective: false if any solution will do.
        """
        model = CpModel()
        add_choices(model, self._after.end)
        self._add_needs(model)
        self._add_runs_after_cuts(model)
        self._add_first_runs(model)
        self._add_memory(model)
        if has_objective:
            minimise(model, self.stages.time[self._run.member], self._run.first)
        return model

    def _add_needs(self, model: CpModel) -> None:
        """Add the constraint that every tensor is in memory when read."""
        stages, present, run, after = self.stages, self._present, self._run, self._after
        is_sure = np.append(self._is_sure, True)[stages.read_stage]
        tensor = stages.read_tensor[is_sure]
        interval = np.append(self.first, len(self.cuts))[stages.read_stage[is_sure]]
        self._add_need(model, tensor, interval - 1, run, interval, np.full(len(tensor), _NONE))
        # A tensor in memory at a cut was in memory at the cut before, or was produced since.
        self._add_need(model, present.member, present.interval - 1, run, present.interval, present.negated)
        which, tensors = stages.inputs.expand(run.member)
        k = run.interval[which]
        self._add_need(model, tensors, k - 1, run, k, run.negated[which])
        last = self._produced.copy()
        np.maximum.at(last, tensor, interval)
        through = _Family.of(
            self._produced, last, 0
        )  # the cuts between a tensor's production and its last certain read
        self._add_need(model, through.member, through.interval, after, through.interval, np.full(through.end, _NONE))
        which, tensors = stages.inputs.expand(after.member)
        k = after.interval[which]
        self._add_need(model, tensors, k, after, k, after.negated[which])

    def _add_need(
        self, model: CpModel, tensor: Ints, cut: Ints, again: _Family, interval: Ints, alternative: Ints
    ) -> None:
        """Add the constraint that a tensor is in memory or recomputed.

        It is in memory at the cut, or recomputed in the interval, or another literal is true. A tensor that is
        certainly first produced after the cut adds nothing.
        """
        maker = self.stages.produced_at[tensor]
        open_ = again.begin[maker] <= interval
        tensor, cut, maker, interval, alternative = (
            each[open_] for each in (tensor, cut, maker, interval, alternative)
        )
        _add_clauses(model, self._present.variable(tensor, cut), again.variable(maker, interval), alternative)

    def _add_runs_after_cuts(self, model: CpModel) -> None:
        """Define `after`: an op runs in the next interval or after the next cut."""
        run, after = self._run, self._after
        op, cut = after.member, after.interval
        _add_clauses(model, run.variable(op, cut + 1), after.variable(op, cut + 1), after.negated)
        for family in (run, after):
            before = after.variable(family.member, family.interval - 1)
            exists = before != _NONE
            _add_clauses(model, before[exists], family.negated[exists])

    def _add_first_runs(self, model: CpModel) -> None:
        """Add the constraint that each op runs by its latest interval.

        Ops with a certain first interval need none.
        """
        for op in np.flatnonzero(~self._is_sure).tolist():
            intervals = np.arange(self.first[op], self.latest[op] + 1)
            literals = self._run.variable(np.full(len(intervals), op), intervals)
            model.proto.constraints.add().bool_or.literals.extend(literals.tolist())

    def _add_memory(self, model: CpModel) -> None:
        stages, present = self.stages, self._present
        variables = present.first + np.arange(len(present.member))
        shared = np.append(stages.shared_input, -1)[self.cuts]
        at_cut = present.interval
        factor = np.where(self._belongs_to_op(present), 0, stages.bytes[present.member])
        # An op that takes over an input's storage saves bytes if that input is not needed afterwards.
        taken = shared[at_cut] == present.member
        factor = np.where(taken, stages.shared_bytes[self.cuts][at_cut], factor)
        own = stages.own_bytes[self.cuts] - np.where(shared >= 0, stages.shared_bytes[self.cuts], 0)
        kept = factor > 0
        add_rows(model, Terms(at_cut[kept], variables[kept], factor[kept]), own, self.room)

    def _belongs_to_op(self, present: _Family) -> Bools:
        """[variables] whether the op at the cut reads or produces the tensor."""
        stages = self.stages
        size = len(stages.bytes)
        read_at, read = stages.inputs.expand(self.cuts)
        produced_at, produced = stages.outputs.expand(self.cuts)
        own = np.concatenate([read_at * size + read, produced_at * size + produced])
        return np.isin(present.interval * size + present.member, own)


def _add_clauses(model: CpModel, *literals: Ints) -> None:
    """Add a clause from each position of the arrays of literals."""
    for clause in zip(*(each.tolist() for each in literals), strict=True):
        model.proto.constraints.add().bool_or.literals.extend(literal for literal in clause if literal != _NONE)


@dataclass(frozen=True, eq=False)
class _Family:
    """Variables for a range of intervals of each member.

    Attributes:
        first: index of the first variable.
        member: [variables] member of each variable.
        interval: [variables] interval of each variable.
        begin: [members] first interval of each member.
        offset: [members] position of each member's first variable.
        count: [members] number of each member's variables.
    """

    first: int
    member: Ints
    interval: Ints
    begin: Ints
    offset: Ints
    count: Ints

    @classmethod
    def of(cls, begin: Ints, end: Ints, first: int) -> _Family:
        count = np.maximum(end - begin, 0)
        offset = np.cumsum(count) - count
        member = np.repeat(np.arange(len(count)), count)
        interval = np.arange(len(member)) - offset[member] + begin[member]
        return cls(first, member, interval, begin, offset, count)

    @property
    def end(self) -> int:
        """Index after the last variable."""
        return self.first + len(self.member)

    @property
    def negated(self) -> Ints:
        """[variables] the negated literal of each variable."""
        return -self.first - np.arange(len(self.member)) - 1

    def variable(self, member: Ints, interval: Ints) -> Ints:
        """Return the variable of each (member, interval), or _NONE."""
        place = interval - self.begin[member]
        exists = (place >= 0) & (place < self.count[member])
        return np.where(exists, self.first + self.offset[member] + place, _NONE)
