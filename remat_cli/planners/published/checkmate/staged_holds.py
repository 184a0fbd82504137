"""Retentions of a staged plan from its recomputations, and vice versa.

Stages are numbered 0 to N, N being the end, where the graph's outputs are read; ops and tensors as in `Stages`.
"""

from __future__ import annotations

import numpy as np

from remat_cli.planners.shared.numbering import Bools, Ints
from remat_cli.planners.shared.stages import Stages


def reads(stages: Stages, runs: Bools) -> Bools:
    """Return [T, N + 1] whether each tensor is read in each stage.

    Args:
        stages: the graph in its order.
        runs: [N, N + 1] whether each op is recomputed in each stage.
    """
    is_read = first_reads(stages)
    inside = stages.read_stage < len(stages)
    for tensor, reader in zip(stages.read_tensor[inside].tolist(), stages.read_stage[inside].tolist(), strict=True):
        is_read[tensor] |= runs[reader]
    return is_read


def first_reads(stages: Stages) -> Bools:
    """Return [T, N + 1] the tensors that each stage's own op reads.

    At the end, these are the outputs.
    """
    is_read = np.zeros((len(stages.bytes), len(stages) + 1), dtype=np.bool_)
    is_read[stages.read_tensor, stages.read_stage] = True
    return is_read


def least_holds(stages: Stages, runs: Bools) -> Bools:
    """Return [T, N + 1] the least retentions of a plan that recomputes `runs`.

    A tensor counts as held from before the stage.
    """
    produced_at = stages.produced_at
    is_remade = runs[produced_at]
    holds = reads(stages, runs) & ~is_remade & (np.arange(len(stages) + 1) > produced_at[:, None])
    for stage in range(len(stages) - 1, -1, -1):
        holds[:, stage] |= holds[:, stage + 1] & ~is_remade[:, stage] & (produced_at < stage)
    return holds


def least_runs(stages: Stages, holds: Bools) -> Bools:
    """Return [N, N + 1] the least recomputations of a plan that holds `holds`.

    Memory does not count. A tensor that cannot be recomputed is held from its production on. Source: Jain et al. 2020,
    section 5.
    """
    holds = holds.copy()
    runs = np.zeros((len(stages), len(stages) + 1), dtype=np.bool_)
    produced_at, recomputable = stages.produced_at.tolist(), stages.recomputable.tolist()
    own = [stages.inputs[op].tolist() for op in range(len(stages))]
    own.append(stages.read_tensor[stages.read_stage == len(stages)].tolist())
    for stage in range(len(stages), -1, -1):
        needed: list[int] = list(own[stage])
        if stage < len(stages):
            needed += np.flatnonzero(holds[:, stage + 1] & (stages.produced_at < stage)).tolist()
        missing = [tensor for tensor in needed if not holds[tensor, stage]]
        while missing:
            tensor = missing.pop()
            op = produced_at[tensor]
            if not recomputable[op]:
                holds[tensor, op + 1 : stage + 1] = True
            elif not runs[op, stage]:
                runs[op, stage] = True
                missing += [each for each in own[op] if not holds[each, stage]]
    return runs


def gap(holds: Bools, is_read: Bools, tensor: int, stage: int) -> tuple[int, int]:
    """Return the stages around a stage's end between which a tensor is held.

    The tensor is held from before the first stage until its next reader in the last stage.

    Args:
        holds: [T, N + 1] whether each tensor is held.
        is_read: [T, N + 1] whether each tensor is read in each stage.
        tensor: a tensor held from before the stage after `stage`.
        stage: 0 to N - 1.
    """
    first = stage + 1
    while holds[tensor, first - 1] and not is_read[tensor, first - 1]:
        first -= 1
    last = stage + 1 + int(np.argmax(is_read[tensor, stage + 1 :]))
    return first, last


def rerun_time(stages: Stages, holds: Bools, runs: Bools, op: int, stage: int) -> int | None:
    """Return the time of recomputing an op and its missing inputs in a stage.

    None if that is impossible.
    """
    time = 0
    waiting, seen = [op], {op}
    while waiting:
        op = waiting.pop()
        if runs[op, stage]:
            continue
        if not stages.recomputable[op]:
            return None
        time += int(stages.time[op])
        missing: Ints = stages.inputs[op]
        makers = set(stages.produced_at[missing[~holds[missing, stage]]].tolist()) - seen
        waiting += makers
        seen |= makers
    return time
