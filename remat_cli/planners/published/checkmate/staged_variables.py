"""The variables of Checkmate's program: recomputations and retentions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_cli.planners.published.checkmate.staged_choices import StagedChoices, readers_of
from remat_cli.planners.published.checkmate.staged_holds import least_holds
from remat_cli.planners.shared.numbering import Bools, Ints
from remat_cli.planners.shared.stages import Stages

# Stand for the constants 0 and 1 instead of a variable's number. As indices, they count from an array's end.
NEVER, ALWAYS = -1, -2
# Bytes that the solvers take, search tree included: measured on programs of 10^5 to 10^6 entries, rounded up twofold.
_BYTES_PER_VARIABLE, _BYTES_PER_ROW, _BYTES_PER_ENTRY = 3000, 4000, 400


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of a program.

    Attributes:
        variables: number of variables.
        rows: number of constraints.
        entries: number of coefficients in all rows.
    """

    variables: int
    rows: int
    entries: int

    @property
    def memory_bytes(self) -> int:
        """Approximate memory for building and solving the program."""
        return self.variables * _BYTES_PER_VARIABLE + self.rows * _BYTES_PER_ROW + self.entries * _BYTES_PER_ENTRY


def largest_size(stages: Stages) -> ModelSize:
    """Return the largest size of the program.

    It assumes that no stage is loose, and no limit on memory within stages.
    """
    last_read, last_run = stages.last_read.copy(), np.arange(len(stages))
    for op in range(len(stages) - 1, -1, -1):
        for tensor in stages.outputs[op].tolist():
            last_read[tensor] = max(int(last_read[tensor]), *last_run[readers_of(stages, tensor)].tolist(), op)
            if stages.recomputable[op]:
                last_run[op] = max(last_run[op], last_read[tensor])
    runs, holds = last_run - np.arange(len(stages)), int((last_read - stages.produced_at).sum())
    supplies = int(runs @ np.diff(stages.inputs.start)) + len(stages.read_stage)
    return ModelSize(
        variables=holds + int(runs.sum()), rows=supplies + holds + len(stages), entries=3 * supplies + 4 * holds
    )


class StagedVariables:
    """The variables of a program over some choices.

    Attributes:
        choices: the choices to decide on.
        hold: [T, N + 1] number of the variable "the tensor is held from before stage t until its start", or NEVER, or
            ALWAYS. Stages between which a tensor must be held all along or not at all share a variable.
        hold_count: number of variables in `hold`, the first ones.
        run_op: [R] op of each recomputation; these variables start at `hold_count`.
        run_stage: [R] stage of each recomputation.
        run: [N, N + 1] number of the variable "op i is recomputed in stage t", or NEVER.
        is_split: [T, N] whether a tensor can be held before a stage and not after it, or after it and not before.
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
        """Return [N, N + 1] the recomputations of a solution."""
        runs = np.zeros_like(self.choices.may_run)
        runs[self.run_op, self.run_stage] = values[self.run[self.run_op, self.run_stage]] == 1
        return runs

    def values(self, runs: Bools) -> Ints | None:
        """Return the solution that recomputes `runs` and holds the least.

        None if the choices rule it out.
        """
        if (runs & ~self.choices.may_run).any():
            return None
        values = np.zeros(self.hold_count + len(self.run_op), dtype=np.int64)
        values[self.run[self.run_op, self.run_stage]] = runs[self.run_op, self.run_stage]
        is_decided = self.hold >= 0
        values[self.hold[is_decided]] = self._holds(runs)[is_decided]
        return values

    def _holds(self, runs: Bools) -> Bools:
        """[T, N + 1] the retentions of a plan that recomputes `runs`.

        In passing stages everything is kept.
        """
        choices, produced_at = self.choices, self.choices.stages.produced_at
        is_remade, holds = runs[produced_at], least_holds(choices.stages, runs)
        for stage in np.flatnonzero(choices.is_passing[:-1]).tolist():
            is_there = holds[:, stage] | is_remade[:, stage] | (produced_at == stage)
            holds[:, stage + 1] |= is_there & (self.hold[:, stage + 1] != NEVER)
        return holds

    def _splits(self) -> Bools:
        """[T, N] whether a tensor can be held on only one side of a stage.

        It cannot if the stage neither reads nor recomputes the tensor, or if everything is kept.
        """
        choices = self.choices
        is_remade = choices.may_run[choices.stages.produced_at][:, :-1]
        is_decided = (choices.may_read | choices.is_loose) & ~choices.is_passing
        is_split: Bools = is_remade | is_decided[:, :-1]
        return is_split

    def _number_holds(self) -> Ints:
        """Return the numbers for `hold`."""
        choices, produced_at = self.choices, self.choices.stages.produced_at
        count = len(choices.stages)
        stage = np.arange(count + 1)
        is_read_later = np.logical_or.accumulate(choices.may_read[:, ::-1], axis=1)[:, ::-1]
        can_hold = (stage > produced_at[:, None]) & is_read_later
        is_held = self._surely_held(can_hold)
        is_new = can_hold & ~is_held
        is_new[:, 1:] &= self.is_split | (stage[1:] == produced_at[:, None] + 1)
        numbers = np.cumsum(is_new.ravel()).reshape(is_new.shape) - 1
        return np.where(can_hold, np.where(is_held, ALWAYS, numbers), NEVER)

    def _surely_held(self, can_hold: Bools) -> Bools:
        """[T, N + 1] whether the tensor must be held.

        Either no recomputation serves one of its readers, or everything is kept.
        """
        choices, produced_at = self.choices, self.choices.stages.produced_at
        may_remake = choices.may_run[produced_at]
        is_held = choices.is_read & ~may_remake & can_hold
        last = can_hold.shape[1] - 1
        for stage in range(last - 1, -1, -1):
            is_held[:, stage] |= is_held[:, stage + 1] & ~may_remake[:, stage] & can_hold[:, stage]
        for stage in np.flatnonzero(choices.is_passing[:-1]).tolist():
            is_there = is_held[:, stage] | (produced_at == stage)
            is_held[:, stage + 1] |= is_there & can_hold[:, stage + 1]
        return is_held
