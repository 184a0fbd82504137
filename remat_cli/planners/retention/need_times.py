"""Need times: the stages at which each tensor may be required.

They are the skeleton of the sparse model of `retention`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_cli.planners.shared.numbering import Bools, Ints
from remat_cli.planners.shared.stages import Stages


@dataclass(frozen=True, eq=False)
class NeedTimes:
    """The stages in which tensors may be required or ops recomputed.

    A tensor's *need times* are the stages of its readers and those in which a reader may be recomputed. A *gap* lies
    between two neighbouring need times, or between the tensor's production and the first need. Need i ends gap i.

    Attributes:
        stages: the graph in its order.
        tensor: [M] tensor of each need; needs are sorted by tensor, then by stage.
        stage: [M] its stage, up to N for the end.
        is_read: [M] whether a reader runs there for the first time (or the end, for an output).
        before: [M] stage of the need before, or of the tensor's production.
        free_from: [M] the first stage of the gap in which the tensor need not be in memory.
        rerun_stage_of_op: [Q] for each chance to recompute an op, the stage of its first run.
        rerun_stage: [Q] the stage of the recomputation; chances are sorted by (rerun_stage_of_op, rerun_stage).
        rerun: [M] the chance that recomputes the need's tensor at that time; -1 for none.
    """

    stages: Stages
    tensor: Ints
    stage: Ints
    is_read: Bools
    before: Ints
    free_from: Ints
    rerun_stage_of_op: Ints
    rerun_stage: Ints
    rerun: Ints

    @classmethod
    def of(cls, stages: Stages, is_tight: Bools, depth: int) -> NeedTimes:
        """Find the needs up to a depth of recomputation.

        An op may be recomputed at the end of a gap that contains a tight stage. At depth 1 these are gaps between first
        runs; at depth d also gaps that end where a reader may be recomputed at depth d - 1.

        Args:
            stages: the graph in its order.
            is_tight: [N] stages in which memory is short, so that dropping a tensor there may pay.
            depth: depth of recomputation; growth stops when there are no new needs.
        """
        count = len(stages) + 1
        tight_before = np.concatenate([[0], np.cumsum(is_tight), [int(is_tight.sum())]])
        reads = stages.read_tensor * count + stages.read_stage
        needs, reruns = reads, np.empty(0, dtype=np.int64)
        for _ in range(depth):
            tensor, stage, before, free_from = _gaps(stages, reads, needs)
            del before
            makers = stages.produced_at[tensor]
            may = stages.recomputable[makers] & (tight_before[stage] > tight_before[free_from])
            grown = np.union1d(reruns, makers[may] * count + stage[may])
            if len(grown) == len(reruns):
                break
            reruns = grown
            needs = np.union1d(reads, _needs_of(stages, reruns))
        tensor, stage, before, free_from = _gaps(stages, reads, needs)
        wanted = stages.produced_at[tensor] * count + stage
        position = np.searchsorted(reruns, wanted)
        has_rerun = np.append(reruns, -1)[position] == wanted
        return cls(
            stages=stages,
            tensor=tensor,
            stage=stage,
            is_read=np.isin(needs, reads, assume_unique=True),
            before=before,
            free_from=free_from,
            rerun_stage_of_op=reruns // count,
            rerun_stage=reruns % count,
            rerun=np.where(has_rerun, position, -1),
        )

    def __len__(self) -> int:
        return len(self.tensor)


def _gaps(stages: Stages, reads: Ints, needs: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the gap before each need, in which its tensor may be dropped.

    A need is a tensor that must be in memory at a stage.

    Args:
        stages: the graph in its order.
        reads: needs of first runs, as tensor * (stages + 1) + stage.
        needs: all needs, in the same form, ascending.

    Returns:
        For each need: tensor, stage, the stage of the tensor's need before (or of its producer), and the first stage
        of the gap, which can do without the tensor.
    """
    count = len(stages) + 1
    tensor, stage = needs // count, needs % count
    is_first = np.diff(tensor, prepend=-1) > 0
    before = np.where(is_first, stages.produced_at[tensor], np.roll(stage, 1))
    # If the need before is only that of a recomputation, the tensor can be dropped before that stage's own op runs.
    was_read = np.roll(np.isin(needs, reads, assume_unique=True), 1)
    return tensor, stage, before, before + (is_first | was_read)


def _needs_of(stages: Stages, reruns: Ints) -> Ints:
    """Return the needs that recomputations add.

    These are needs of inputs, and of the op's other outputs that are still wanted.
    """
    count = len(stages) + 1
    op, at = reruns // count, reruns % count
    which, tensors = stages.inputs.expand(op)
    inputs = tensors * count + at[which]
    which, tensors = stages.outputs.expand(op)
    still_wanted = at[which] < stages.last_read[tensors]
    outputs = tensors[still_wanted] * count + at[which][still_wanted]
    return np.union1d(inputs, outputs)
