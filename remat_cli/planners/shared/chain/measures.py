"""Measures of a chain's layers: sizes, times and needs.

Each tensor counts until its last use, and an op works in place if its input ends with the op, as for the judge. So a
chain model never predicts less memory than the judge measures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.shared.chain.layers import Layer, Layers


@dataclass(frozen=True)
class MeasuredRun:
    """A sequence of ops that was measured.

    Attributes:
        peak: peak in bytes.
        ops: numbers of the ops that ran.
    """

    peak: int
    ops: tuple[int, ...]


class Gauge:
    """Measures the layers of one graph.

    Pinned tensors and graph inputs count 0 bytes.

    Attributes:
        layers: [N + 1] the layers to measure.
        pairs: [N + 1] pairs of the layer before and the layer.
        base_bytes: bytes outside the layers: resident bytes, graph inputs, pinned tensors.
        base_time: time of the ops that run once, which no layer's times include.
    """

    def __init__(self, cut: Layers) -> None:
        arrays = cut.graph.arrays
        self.layers = cut.layers
        self.pairs = tuple(pairwise((Layer(), *cut.layers)))
        self._once = cut.once
        self._arrays = arrays
        self._time: list[int] = arrays.op_time.tolist()
        self._workspace: list[int] = arrays.workspace_bytes.tolist()
        size = np.where(arrays.producer >= 0, arrays.tensor_bytes, 0)
        self._pinned = {t: int(size[t]) for t in sorted(cut.pinned)}
        size[list(self._pinned)] = 0
        self._size: list[int] = size.tolist()
        self.base_bytes = cut.graph.fixed_bytes + sum(self._pinned.values())
        self.base_time: int = sum(self._time[op] for op in cut.once)

    def bytes(self, tensors: Iterable[int]) -> int:
        """Return the bytes of these tensors."""
        return sum(self._size[t] for t in tensors)

    def run(self, ops: Sequence[int], kept: Set[int], given: Set[int], always: Collection[int] = ()) -> MeasuredRun:
        """Run ops whose inputs are in memory, freeing tensors at their last use.

        Args:
            ops: numbers of the ops.
            kept: tensors that must be in memory afterwards.
            given: tensors that stay in memory throughout and are not counted.
            always: ops that run even if no kept tensor depends on them.
        """
        arrays, size = self._arrays, self._size
        needed = set(kept | given)
        live_after = peak = self.bytes(kept - given)
        run = []
        for op in reversed(ops):
            outputs = arrays.outputs[op]
            if needed.isdisjoint(outputs) and op not in always:
                continue
            run.append(op)
            written = self.bytes(t for t in outputs if t in needed)
            needed.difference_update(outputs)
            new = [t for t in arrays.inputs[op] if t not in needed]  # this is their last use
            needed.update(new)
            taken = arrays.inplace[op]
            shared = min(size[taken], size[outputs[0]]) if taken in new else 0
            live_before = live_after - written + self.bytes(new)
            peak = max(peak, live_before + self.bytes(outputs) + self._workspace[op] - shared)
            live_after = live_before
        return MeasuredRun(peak, tuple(reversed(run)))

    @cached_property
    def no_grad_runs(self) -> tuple[MeasuredRun, ...]:
        """[N + 1] first F_ck of each layer; bytes beyond its input."""
        return tuple(
            self.run(layer.forward, layer.activation | layer.pinned, before.activation) for before, layer in self.pairs
        )

    def closing_runs(self, given: Iterable[Set[int]]) -> list[MeasuredRun]:
        """Return [N + 1] F_all of each layer after B of the next layer.

        Bytes are those beyond the given part of its input. Ops that run once run here if the layer's F_ck does not need
        them.
        """
        runs = []
        for layer, bare, those in zip(self.layers, self.no_grad_runs, given, strict=True):
            done = self._once.intersection(bare.ops)
            ops = [op for op in layer.forward if op not in done]
            runs.append(self.run(ops, layer.saved, those, always=self._once))
        return runs

    def rerun_times(self, runs: Iterable[Sequence[int]]) -> NDArray[np.int64]:
        """Return [N + 1] time of each layer's ops, without those that run once."""
        return array_of(sum(self._time[op] for op in ops if op not in self._once) for ops in runs)

    @cached_property
    def read_by_backward(self) -> frozenset[int]:
        """Tensors that a backward op reads."""
        return frozenset(t for layer in self.layers for op in layer.backward for t in self._arrays.inputs[op])

    @cached_property
    def backward_time(self) -> NDArray[np.int64]:
        """[N + 1] time of B."""
        return array_of(sum(self._time[op] for op in layer.backward) for layer in self.layers)

    @cached_property
    def gradient(self) -> NDArray[np.int64]:
        """[N + 1] bytes that the backward of later layers leaves in memory.

        Pinned tensors that have ended by then are subtracted.
        """
        return array_of(map(self.bytes, self._gradients)) - self._released_bytes

    @cached_property
    def backward_need(self) -> NDArray[np.int64]:
        """[N + 1] bytes of B beyond its input, with all gradients in memory."""
        peaks = [0]
        for after, (before, layer) in zip(self._gradients, self.pairs[1:], strict=False):
            peaks.append(self.run(layer.backward, after, before.activation, always=layer.backward).peak)
        need: NDArray[np.int64] = array_of(peaks) - self._released_bytes
        need[0] = 0
        return need

    def carried(self, activations: Sequence[Set[int]]) -> NDArray[np.int64]:
        """Return [N + 1, N + 1] bytes common to the activations of two layers.

        Only pairs i < j are filled.
        """
        spans: dict[int, tuple[int, int]] = {}  # by tensor: the first and the last layer whose activation contains it
        for number, tensors in enumerate(activations):
            spans.update((t, (spans.get(t, (number,))[0], number)) for t in tensors)
        carried = np.zeros((len(activations), len(activations)), dtype=np.int64)
        for tensor, (first, last) in spans.items():
            carried[first : last + 1, first : last + 1] += self._size[tensor]
        return np.triu(carried, k=1)

    @cached_property
    def _gradients(self) -> list[frozenset[int]]:
        """[N + 1] outputs of later layers' backward that are still needed."""
        last_use = self._last_use(layer.backward for layer in self.layers)
        between: list[list[int]] = [[] for _ in self.layers]
        for number, layer in enumerate(self.layers):
            for tensor in (t for op in layer.backward for t in self._arrays.outputs[op] if self._size[t]):
                until = 0 if self._arrays.is_output[tensor] else last_use.get(tensor, number)
                for waiting in range(until, number):
                    between[waiting].append(tensor)
        return [frozenset(tensors) for tensors in between]

    @cached_property
    def _released_bytes(self) -> NDArray[np.int64]:
        """[N + 1] bytes of pinned tensors that end with later layers' backward."""
        last_use = self._last_use((*layer.forward, *layer.backward) for layer in self.layers)
        released = np.zeros(len(self.layers), dtype=np.int64)
        for tensor, size in self._pinned.items():
            if not self._arrays.is_output[tensor]:
                released[: last_use[tensor]] += size
        return released

    def _last_use(self, ops: Iterable[Iterable[int]]) -> dict[int, int]:
        """Return the lowest layer that reads each tensor.

        This is the last use, because the backward goes down.
        """
        last_use: dict[int, int] = {}
        for number, those in reversed(list(enumerate(ops))):
            last_use.update((t, number) for op in those for t in self._arrays.inputs[op])
        return last_use


def array_of(values: Iterable[int]) -> NDArray[np.int64]:
    """Return whole numbers as an array."""
    return np.array(list(values), dtype=np.int64)
