"""Peak and time of a sequence of computes, counted on integer arrays.

The planners' own quick count of what the judge measures: the schedule of `schedule.with_frees`, without building its
steps. A property test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.graph import Graph


def peak_of(graph: Graph, sequence: Sequence[int]) -> int:
    """Return the peak in bytes of running the ops of these numbers in this order, each tensor freed at its last use.

    Every op must find its inputs; that is not checked here.
    """
    arrays = graph.arrays
    inputs, outputs, inplace = arrays.inputs, arrays.outputs, arrays.inplace
    size = arrays.tensor_bytes.tolist()
    workspace = arrays.workspace_bytes.tolist()
    produced = (arrays.producer >= 0).tolist()
    # Walking backwards: `needed` tells whether a tensor is read again before it is made again, and `live_after` is
    # the bytes of the tensors for which it does.
    needed = arrays.is_output.tolist()
    live_after = sum(size[t] for t, kept in enumerate(needed) if kept and produced[t])
    peak = 0
    for op in reversed(sequence):
        made_in_vain = 0
        for t in outputs[op]:
            if needed[t]:
                needed[t] = False
            else:
                made_in_vain += size[t]
        running = live_after + made_in_vain + workspace[op]
        live_after = running - workspace[op] - sum(size[t] for t in outputs[op])
        taken = inplace[op]
        for t in inputs[op]:
            if produced[t] and not needed[t]:
                needed[t] = True
                live_after += size[t]
                running += size[t]
                if t == taken:
                    running -= min(size[t], size[outputs[op][0]])
        peak = max(peak, running)
    return graph.fixed_bytes + peak
