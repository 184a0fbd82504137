"""The cut bound: a fixed order of first runs, with memory counted in a few stages only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat_cli.planners.retention.cover_bound import RerunBound
from remat_cli.planners.retention.model import SETTINGS, Terms, add_rows
from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.cp_sat import add_choices, minimise, prove
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.stages import Bools, Ints, Stages


def cut_bound(stages: Stages, room: int, cuts: Ints, limits: Limits, known: int = 0) -> RerunBound:
    """Return a lower bound on the time that recomputation takes in any plan with this order of first runs.

    A plan is reduced to what is in memory while the ops of a few stages, the cuts, run for the first time, and to which
    ops are recomputed between neighbouring cuts, each counted once. What is recomputed needs its inputs, from before
    the last cut or made since, and these in turn theirs; so, unlike the cover bound, this one pays for inputs that have
    died too. More cuts give a better bound and a larger model.

    Args:
        stages: the graph in its order.
        room: bytes for what ops make: the budget without the fixed bytes.
        cuts: ascending stages in which memory is counted.
        limits: of the search; cut short, its own bound holds.
        known: extra time that is proven otherwise.
    """
    return RerunBound.of(prove(_CutModel(stages, room, cuts).build(), limits, known=known, settings=SETTINGS))


def tightest_cuts(stages: Stages, room: int, count: int) -> Ints:
    """Return up to `count` stages that lack memory: the one that lacks the most in each part of the order."""
    lacking = stages.plain_bytes - room
    tight = np.flatnonzero(lacking > 0)
    if len(tight) <= count:
        return tight
    parts = np.array_split(tight, count)
    return np.array([part[np.argmax(lacking[part])] for part in parts])


@dataclass(frozen=True, eq=False)
class _CutModel:
    """Interval k holds the stages after cut k - 1, up to and with cut k; the last one those after the last cut.

    Variables, all boolean: `present[x, k]`, tensor x is in memory at cut k; `rerun[q, k]`, op q, which ran for the
    first time in an earlier interval, is recomputed in interval k.
    """

    stages: Stages
    room: int
    cuts: Ints

    @cached_property
    def _interval(self) -> Ints:
        """[N + 1] interval of each stage."""
        return np.searchsorted(self.cuts, np.arange(len(self.stages) + 1))

    @cached_property
    def _made(self) -> Ints:
        """[T] interval in which each tensor is first made."""
        return self._interval[self.stages.made_at]

    @cached_property
    def _last_use(self) -> Ints:
        """[T] interval of the last possible use of each tensor, by a first run or a recomputation."""
        stages = self.stages
        last = self._interval[stages.last_read]
        op_last = np.zeros(len(stages), dtype=np.int64)
        for op in range(len(stages) - 1, -1, -1):
            outputs = stages.outputs[op]
            if len(outputs):
                op_last[op] = last[outputs].max()
            if stages.recomputable[op]:
                inputs = stages.inputs[op]
                last[inputs] = np.maximum(last[inputs], op_last[op])
        return last

    @cached_property
    def _present(self) -> _Family:
        return _Family.of(self._made, self._last_use, 0)

    @cached_property
    def _rerun(self) -> _Family:
        stages = self.stages
        last = np.zeros(len(stages), dtype=np.int64)
        np.maximum.at(last, stages.made_at, self._last_use)
        first = self._interval[: len(stages)] + 1
        return _Family.of(first, np.where(stages.recomputable, last + 1, first), self._present.end)

    def build(self) -> CpModel:
        model = CpModel()
        add_choices(model, self._rerun.end)
        stages, present, rerun = self.stages, self._present, self._rerun
        tensor, k = stages.read_tensor, self._interval[stages.read_stage]
        self._add_needs(model, tensor, k, np.full(len(k), -1))
        # What is there at a cut was there at the one before, or made since.
        later = self._made[present.member] < present.interval
        self._add_needs(model, present.member[later], present.interval[later], present.first + np.flatnonzero(later))
        which, tensors = stages.inputs.expand(rerun.member)
        self._add_needs(model, tensors, rerun.interval[which], rerun.first + which)
        self._add_memory(model)
        minimise(model, stages.time[rerun.member], rerun.first)
        return model

    def _add_needs(self, model: CpModel, tensor: Ints, k: Ints, condition: Ints) -> None:
        """Add: where the condition's variable (-1: always) is true, the tensor is there in interval k."""
        early = self._made[tensor] < k
        tensor, k, condition = tensor[early], k[early], condition[early]
        before = self._present.variable(tensor, k - 1)
        again = self._rerun.variable(self.stages.made_at[tensor], k)
        for literals in zip(before.tolist(), again.tolist(), condition.tolist(), strict=True):
            held, made, if_ = literals
            clause = [held] if made < 0 else [held, made]
            model.proto.constraints.add().bool_or.literals.extend(clause if if_ < 0 else [*clause, -if_ - 1])

    def _add_memory(self, model: CpModel) -> None:
        stages, present = self.stages, self._present
        variables = present.first + np.arange(len(present.member))
        shared = np.append(stages.shared_input, -1)[self.cuts]
        at_cut = present.interval
        factor = np.where(self._belongs_to_op(present), 0, stages.bytes[present.member])
        # An op that takes over an input's storage saves bytes if that input is gone afterwards.
        taken = shared[at_cut] == present.member
        factor = np.where(taken, stages.shared_bytes[self.cuts][at_cut], factor)
        own = stages.own_bytes[self.cuts] - np.where(shared >= 0, stages.shared_bytes[self.cuts], 0)
        kept = factor > 0
        add_rows(model, Terms(at_cut[kept], variables[kept], factor[kept]), own, self.room)

    def _belongs_to_op(self, present: _Family) -> Bools:
        """[variables] whether the tensor is an input or output of the op at the cut."""
        stages = self.stages
        size = len(stages.bytes)
        read_at, read = stages.inputs.expand(self.cuts)
        made_at, made = stages.outputs.expand(self.cuts)
        own = np.concatenate([read_at * size + read, made_at * size + made])
        return np.isin(present.interval * size + present.member, own)


@dataclass(frozen=True, eq=False)
class _Family:
    """Variables for every interval from a first to before an end, for each member.

    Attributes:
        first: index of the first variable.
        member: [variables] whose each is.
        interval: [variables] and of which interval.
        begin: [members] first interval of each member.
        offset: [members] where each member's variables start.
        count: [members] how many each has.
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

    def variable(self, member: Ints, interval: Ints) -> Ints:
        """Return the variable of each (member, interval), -1 where there is none."""
        place = interval - self.begin[member]
        exists = (place >= 0) & (place < self.count[member])
        return np.where(exists, self.first + self.offset[member] + place, -1)
