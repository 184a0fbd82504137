"""The variables of Checkmate's program: the number of each recomputation, and of each retention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_cli.planners.checkmate.staged_choices import StagedChoices, readers_of
from remat_cli.planners.checkmate.staged_holds import least_holds
from remat_cli.planners.shared.numbering import Bools, Ints
from remat_cli.planners.shared.stages import Stages

# In place of a variable's number: a constant 0, or 1. As indices, they count from an array's end.
NEVER, ALWAYS = -1, -2
# Bytes that PuLP and the solvers take, search tree included: measured on programs of 10^5 to 10^6 entries, rounded up.
_BYTES_PER_VARIABLE, _BYTES_PER_ROW, _BYTES_PER_ENTRY = 3000, 4000, 400


@dataclass(frozen=True, slots=True)
class ModelSize:
    """How large a program is.

    Attributes:
        variables: how many.
        rows: how many constraints.
        entries: coefficients in all rows together.
    """

    variables: int
    rows: int
    entries: int

    @property
    def memory_bytes(self) -> int:
        """About what building and solving it takes."""
        return self.variables * _BYTES_PER_VARIABLE + self.rows * _BYTES_PER_ROW + self.entries * _BYTES_PER_ENTRY


def largest_size(stages: Stages) -> ModelSize:
    """Return how large the program is at the most: if no stage is loose, and memory within stages is not limited."""
    last_read, last_run = stages.last_read.copy(), np.arange(len(stages))
    for op in range(len(stages) - 1, -1, -1):
        for tensor in stages.outputs[op].tolist():
            last_read[tensor] = max(int(last_read[tensor]), *last_run[readers_of(stages, tensor)].tolist(), op)
            if stages.recomputable[op]:
                last_run[op] = max(last_run[op], last_read[tensor])
    runs, holds = last_run - np.arange(len(stages)), int((last_read - stages.made_at).sum())
    supplies = int(runs @ np.diff(stages.inputs.start)) + len(stages.read_stage)
    return ModelSize(
        variables=holds + int(runs.sum()), rows=supplies + holds + len(stages), entries=3 * supplies + 4 * holds
    )


class StagedVariables:
    """The variables of a program over some choices.

    Attributes:
        choices: what is decided.
        hold: [T, N + 1] number of the variable "the tensor is held from before stage t until its start", or NEVER, or
            ALWAYS. Stages between which a tensor is held all along or not at all share one.
        hold_count: the variables that `hold` has: 0 to this.
        run_op: [R] the op of each recomputation, which are the variables from `hold_count` on.
        run_stage: [R] its stage.
        run: [N, N + 1] number of the variable "op i is recomputed in stage t", or NEVER.
        is_split: [T, N] whether a tensor can be held before a stage and not after it, or the other way round.
    """

    def __init__(self, choices: StagedChoices) -> None:
        self.choices = choices
        self.is_split = self._splits()
        self.hold = self._number_holds()
        self.hold_count = int(self.hold.max(initial=-1)) + 1
        self.run_op, self.run_stage = np.nonzero(choices.may_run)
        self.run = np.full(choices.may_run.shape, NEVER)
        self.run[self.run_op, self.run_stage] = self.hold_count + np.arange(len(self.run_op))

    def runs(self, values: Ints) -> Bools:
        """Return [N, N + 1] what a solution recomputes in which stage."""
        runs = np.zeros_like(self.choices.may_run)
        runs[self.run_op, self.run_stage] = values[self.run[self.run_op, self.run_stage]] == 1
        return runs

    def values(self, runs: Bools) -> Ints | None:
        """Return the solution that recomputes `runs` and holds the least; None if the choices rule it out."""
        if (runs & ~self.choices.may_run).any():
            return None
        values = np.zeros(self.hold_count + len(self.run_op), dtype=np.int64)
        values[self.run[self.run_op, self.run_stage]] = runs[self.run_op, self.run_stage]
        is_decided = self.hold >= 0
        values[self.hold[is_decided]] = self._holds(runs)[is_decided]
        return values

    def _holds(self, runs: Bools) -> Bools:
        """[T, N + 1] what a plan holds, which recomputes `runs`, and everything where everything is kept."""
        choices, made_at = self.choices, self.choices.stages.made_at
        is_remade, holds = runs[made_at], least_holds(choices.stages, runs)
        for stage in np.flatnonzero(choices.is_passing[:-1]).tolist():
            is_there = holds[:, stage] | is_remade[:, stage] | (made_at == stage)
            holds[:, stage + 1] |= is_there & (self.hold[:, stage + 1] != NEVER)
        return holds

    def _splits(self) -> Bools:
        """[T, N] whether a tensor can be held before a stage and not after it, or the other way round.

        It cannot where the stage neither reads nor recomputes it, and where everything is kept.
        """
        choices = self.choices
        is_remade = choices.may_run[choices.stages.made_at][:, :-1]
        is_decided = (choices.may_read | choices.is_loose) & ~choices.is_passing
        is_split: Bools = is_remade | is_decided[:, :-1]
        return is_split

    def _number_holds(self) -> Ints:
        """Return `hold`."""
        choices, made_at = self.choices, self.choices.stages.made_at
        count = len(choices.stages)
        stage = np.arange(count + 1)
        is_read_later = np.logical_or.accumulate(choices.may_read[:, ::-1], axis=1)[:, ::-1]
        can_hold = (stage > made_at[:, None]) & is_read_later
        is_held = self._surely_held(can_hold)
        is_new = can_hold & ~is_held
        is_new[:, 1:] &= self.is_split | (stage[1:] == made_at[:, None] + 1)
        numbers = np.cumsum(is_new.ravel()).reshape(is_new.shape) - 1
        return np.where(can_hold, np.where(is_held, ALWAYS, numbers), NEVER)

    def _surely_held(self, can_hold: Bools) -> Bools:
        """[T, N + 1] what must be held: for a reader that no recomputation serves, or because everything is kept."""
        choices, made_at = self.choices, self.choices.stages.made_at
        may_remake = choices.may_run[made_at]
        is_held = choices.is_read & ~may_remake & can_hold
        last = can_hold.shape[1] - 1
        for stage in range(last - 1, -1, -1):
            is_held[:, stage] |= is_held[:, stage + 1] & ~may_remake[:, stage] & can_hold[:, stage]
        for stage in np.flatnonzero(choices.is_passing[:-1]).tolist():
            is_there = is_held[:, stage] | (made_at == stage)
            is_held[:, stage + 1] |= is_there & can_hold[:, stage + 1]
        return is_held
