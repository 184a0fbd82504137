"""The recomputations and retentions that can matter under a budget.

A staged plan (Jain et al. 2020, section 4) keeps the input order: stage t recomputes some earlier ops, in that order
and each at most once, and then runs op t for the first time. One more stage stands for the end, where dropped outputs
are recomputed. The published model decides on every pair of an op and a stage. Most pairs cannot matter, and are left
out here without loss, by the arguments given at each step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from remat_cli.planners.published.checkmate.staged_holds import first_reads, reads
from remat_cli.planners.shared.numbering import Bools, Ints
from remat_cli.planners.shared.stages import Stages

_NEVER = np.int16(2**14)


@dataclass(frozen=True, eq=False)
class StagedChoices:
    """The recomputations to decide on, and the possible reads of tensors.

    Stages are numbered 0 to N, N being the end; ops and tensors as in `Stages`.

    Attributes:
        stages: the graph in its order.
        room: bytes for outputs of ops: the budget without the fixed bytes.
        may_run: [N, N + 1] whether op i may be recomputed in stage t.
        may_read: [T, N + 1] whether a run may read the tensor in stage t.
        is_read: [T, N + 1] whether the op that stage t runs for the first time reads the tensor; at N: whether it is an
            output.
        last_read: [T] the last stage in which a run may read the tensor; its producer's stage if none does.
        is_loose: [N + 1] whether all tensors that may be alive in stage t fit together.
    """

    stages: Stages
    room: int
    may_run: Bools
    may_read: Bools
    is_read: Bools
    last_read: Ints
    is_loose: Bools

    @classmethod
    def of(cls, stages: Stages, room: int, can_run: Bools, depth: int | None = None) -> StagedChoices:
        """Find the choices of all staged plans that recompute allowed ops only.

        Args:
            stages: the graph in its order.
            room: as in the attributes.
            can_run: [N] the ops that may be recomputed at all.
            depth: leave only recomputations for a reader's first run (1), those for the inputs of these (2), and so on:
                a restriction, which loses plans. None: no restriction.
        """
        choices = _with_loose(stages, room, can_run, depth, np.zeros(len(stages) + 1, dtype=np.bool_))
        while True:
            # The tensors that can be alive depend on the ops that may be recomputed, and vice versa.
            is_loose = choices._fits_whatever_is_kept()
            if (is_loose == choices.is_loose).all():
                return choices
            choices = _with_loose(stages, room, can_run, depth, is_loose)

    @property
    def is_passing(self) -> Bools:
        """[N + 1] stages without a decision.

        The stage and the next one are loose, so everything in memory is kept.
        """
        return _passing(self.is_loose)

    def connected(self) -> StagedChoices:
        """Drop recomputations that a plan of least time does not need.

        Without the limits on that memory, a set of recomputations of one stage that are connected through tensors can
        be moved to the stage before, or to the one after, where one of the two relieves the first runs in between,
        unless the set touches a tensor that op t or op t - 1 reads or produces. So there remains a plan of least time
        in which every set in a tight stage touches such a tensor. (Loose stages have an argument of their own, which
        would collide with this one.)
        """
        return self.only(self.is_loose | self._touching())

    def only(self, may_run: Bools) -> StagedChoices:
        """Drop the recomputations outside `may_run`."""
        may_run = self.may_run & may_run
        return replace(self, may_run=may_run, may_read=reads(self.stages, may_run))

    def _fits_whatever_is_kept(self) -> Bools:
        """[N + 1] whether all tensors that may be alive in a stage fit."""
        stages = self.stages
        stage = np.arange(len(stages) + 1)
        alive = (stage >= stages.produced_at[:, None]) & (stage <= self.last_read[:, None])
        alive |= self.may_run[stages.produced_at]
        workspace = (self.may_run * stages.workspace[:, None]).max(axis=0)
        workspace[:-1] = np.maximum(workspace[:-1], stages.workspace)
        fits: Bools = stages.bytes @ alive + workspace <= self.room
        return fits

    def _touching(self) -> Bools:
        """[N, N + 1] recomputations connected to their stage's op or the one before.

        They are connected through tensors that these two ops read or produce.
        """
        stages = self.stages
        count = len(stages)
        reached = np.zeros((len(stages.bytes), count + 1), dtype=np.bool_)
        near = [np.concatenate([stages.inputs[op], stages.outputs[op]]) for op in range(count)]
        for op, tensors in enumerate(near):
            reached[tensors, op : op + 2] = True
        reached[stages.read_tensor[stages.read_stage == count], count] = True
        touching = np.zeros_like(self.may_run)
        # Up and down the order, all stages at once: most chains of recomputations are followed in one pass.
        while True:
            before = np.count_nonzero(touching)
            for op in (*range(count), *range(count - 1, -1, -1)):
                touching[op] = self.may_run[op] & reached[near[op]].any(axis=0)
                reached[near[op]] |= touching[op]
            if np.count_nonzero(touching) == before:
                return touching


def _with_loose(stages: Stages, room: int, can_run: Bools, depth: int | None, is_loose: Bools) -> StagedChoices:
    """Find the choices when some stages are known to be loose.

    If everything fits, everything is kept: nothing is recomputed before the first tight stage, nor in it, as its inputs
    are in memory. In a passing stage, an op is recomputed only for a reader in that stage: any other recomputation can
    wait for the next stage, until which its inputs are kept.
    """
    count = len(stages)
    is_read = first_reads(stages)
    is_passing = _passing(is_loose)
    first_tight = int(np.argmin(is_loose)) if not is_loose.all() else count
    stage = np.arange(count + 1)
    # The depth of the chain of recomputations that reads each tensor, or contains each op, in each stage.
    read_depth = np.where(is_read, np.int16(1), _NEVER)
    run_depth = np.full((count, count + 1), _NEVER, dtype=np.int16)
    last_read = stages.produced_at.copy()
    for op in range(count - 1, -1, -1):
        outputs = stages.outputs[op]
        for tensor in outputs.tolist():
            for reader in readers_of(stages, tensor):
                np.minimum(read_depth[tensor], run_depth[reader] + np.int16(1), out=read_depth[tensor])
            last_read[tensor] = max([op, *np.flatnonzero(read_depth[tensor] < _NEVER)[-1:].tolist()])
        if can_run[op] and len(outputs):
            direct = read_depth[outputs].min(axis=0)
            if depth is None:
                run_depth[op] = np.where((direct < _NEVER) | ~is_passing, 1, _NEVER)
            else:
                run_depth[op] = np.where(direct <= depth, direct, _NEVER)
            run_depth[op, (stage <= max(op, first_tight)) | (stage > last_read[outputs].max())] = _NEVER
    return StagedChoices(
        stages=stages,
        room=room,
        may_run=run_depth < _NEVER,
        may_read=read_depth < _NEVER,
        is_read=is_read,
        last_read=last_read,
        is_loose=is_loose,
    )


def readers_of(stages: Stages, tensor: int) -> Ints:
    """Return the ops that read a tensor, ascending, without the end."""
    start, end = np.searchsorted(stages.read_tensor, (tensor, tensor + 1))
    readers: Ints = stages.read_stage[start:end]
    return readers[readers < len(stages)]


def _passing(is_loose: Bools) -> Bools:
    is_passing: Bools = is_loose & np.append(is_loose[1:], True)
    return is_passing
