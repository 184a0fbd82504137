"""Times and needs of a training graph's layers, for rotor's recurrence.

A graph has details that the chain model omits. A part of an activation *passes*: no backward op reads it, so it need
not be kept if its reader begins with F_all. The rest is *kept* until its last backward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.shared.chain.measures import Gauge, array_of


@dataclass(frozen=True, eq=False)
class RotorNeeds:
    """The times and needs of layers, in bytes or slots.

    Arrays are [N + 1] by layer, or [N + 1, N + 1] by layers s and k. Needs leave out the gradient held meanwhile, the
    kept part of the input of F_all, and all of the input of F_ck. They include the passing part of the input of F_all.

    Attributes:
        forward_time: time of F_all.
        closing_time: time of F_all(l) after B(l + 1).
        no_grad_time: time of F_ck and F_none.
        backward_time: time of B.
        gradient: gradient held while layers up to this one are recomputed.
        all_need: least memory for F_all.
        closing_need: least memory for F_all(l) after B(l + 1).
        backward_need: least memory for B, with all gradients.
        check_need: least memory for F_ck(s), F_none(s + 1 .. k).
        saved: bytes that F_all keeps until B, beyond its input.
        kept: kept bytes of the activation of k, beyond the input of s.
        passing: passing part of a layer's activation.
    """

    forward_time: NDArray[np.int64]
    closing_time: NDArray[np.int64]
    no_grad_time: NDArray[np.int64]
    backward_time: NDArray[np.int64]
    gradient: NDArray[np.int64]
    all_need: NDArray[np.int64]
    closing_need: NDArray[np.int64]
    backward_need: NDArray[np.int64]
    check_need: NDArray[np.int64]
    saved: NDArray[np.int64]
    kept: NDArray[np.int64]
    passing: NDArray[np.int64]

    def __len__(self) -> int:
        """Return N, the number of layers."""
        return len(self.saved) - 1

    @classmethod
    def measured(cls, gauge: Gauge) -> RotorNeeds:
        """Measure the layers of a training graph."""
        read = gauge.read_by_backward
        kept = [layer.activation & read for layer in gauge.layers]
        given = [frozenset[int](), *kept[:-1]]
        whole, saved = [], []
        for layer, those in zip(gauge.layers, given, strict=True):
            needed = layer.activation | layer.saved
            whole.append(gauge.run(layer.forward, needed, those, always=layer.forward))
            saved.append(gauge.bytes((needed & read) - those))
        closing = gauge.closing_runs(given)
        kept_bytes = array_of(map(gauge.bytes, kept))
        return cls(
            forward_time=gauge.rerun_times(run.ops for run in whole),
            closing_time=gauge.rerun_times(run.ops for run in closing),
            no_grad_time=gauge.rerun_times(run.ops for run in gauge.no_grad_runs),
            backward_time=gauge.backward_time,
            gradient=gauge.gradient,
            all_need=array_of(run.peak for run in whole),
            closing_need=array_of(run.peak for run in closing),
            backward_need=gauge.backward_need,
            check_need=_measured_check_need(gauge),
            saved=array_of(saved),
            kept=kept_bytes - _one_layer_on(gauge.carried(kept)),
            passing=array_of(gauge.bytes(layer.activation - read) for layer in gauge.layers),
        )


def _measured_check_need(gauge: Gauge) -> NDArray[np.int64]:
    """Return `RotorNeeds.check_need`, the smaller of two upper bounds.

    F_none discards its input as it proceeds; the part that was in memory before the block stays, and is not counted.
    One bound assumes that the whole input stays, the other that no part of it was in memory before.
    """
    layers = gauge.layers
    checking = array_of(run.peak for run in gauge.no_grad_runs)
    handed_on = [layer.activation | layer.pinned for layer in layers]
    discarding = array_of(
        gauge.run(layer.forward, those, given=frozenset()).peak for layer, those in zip(layers, handed_on, strict=True)
    )
    activation = array_of(gauge.bytes(layer.activation) for layer in layers)
    # by s and k: bytes of the input of k beyond the input of s
    new_input = np.roll(activation - _one_layer_on(gauge.carried([layer.activation for layer in layers])), 1, axis=1)
    need = np.minimum(new_input + checking, discarding)
    np.fill_diagonal(need, checking)
    return np.maximum.accumulate(np.triu(need), axis=1)


def _one_layer_on(carried: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return by s and k the bytes shared by a of s - 1 and a of k."""
    return np.roll(carried, 1, axis=0)
