"""Reruns that recompute a tensor before a read.

The tensor need not be kept through the pause before that read.
"""

from __future__ import annotations

from math import inf

import numpy as np

from remat_cli.planners.annealing.runs import Remake, RunLine
from remat_cli.planners.shared.orders.moves import Bytes, above

# The depth of recursive reruns, and the number of tensors with a price.
_DEPTH = 8
_MOST_PRICED = 200
# Keep the tensor if its reruns seem to cost this many times their gain. The estimate counts work twice that two reruns
# share.
_MOST_COST = 1.2


class Remaking:
    """The reruns that recompute a tensor at the end of a pause.

    Each input of a rerun is kept until then, or recomputed in turn, whichever costs less. A tensor that several reruns
    read is counted for each of them when reruns are chosen, and once when the result is measured.
    """

    def __init__(self, runs: RunLine, instance: int, begin: int, end: int, price: float, loss: float) -> None:
        """Prepare the search for one pause.

        Args:
            runs: the sequence.
            instance: the instance that no run reads during the pause.
            begin: position of the last use before the pause.
            end: position of the first use after the pause, before which the tensor is recomputed.
            price: price of a byte above the room during one run, in time.
            loss: time by which the cost may exceed the gain.
        """
        self._runs, self._lists = runs, runs.lists
        self._instance, self._begin, self._end = instance, begin, end
        self._price, self._loss = price, loss
        self._tensor = runs.tensor[instance]
        self._size = self._lists.size[self._tensor]
        self._costs: dict[int, tuple[float, bool]] = {}
        self._latest: dict[int, tuple[int, int] | None] = {}
        # Memory minus the room at each stage, at most 0: first with the tensor kept, then without it during the pause.
        self._spare = np.minimum(runs.excess[:end], 0.0)
        self._spare_without = np.minimum(runs.excess[begin + 1 : end] - self._size, 0.0)

    def remake(self) -> Remake | None:
        """Return the reruns; None if they cannot pay."""
        most = _MOST_COST * self._price * self._growth(self._spare_without, self._size) + self._loss
        op = self._lists.producer[self._tensor]
        cost = float(self._lists.time[op])
        for tensor in self._lists.reads[op]:
            if cost > most:
                return None
            cost += self._cost(tensor, _DEPTH, most - cost)
        if cost > most:
            return None
        ops = self._ops(op)
        recomputed: set[int] = set()
        kept: dict[int, tuple[int, int]] = {}
        for again in ops:
            for tensor in self._lists.reads[again]:
                if tensor not in recomputed and tensor not in kept:
                    latest = self._latest_of(tensor)
                    if latest is None:
                        return None
                    kept[tensor] = latest
            recomputed.update(self._lists.makes[again])
        return self._measured(ops, kept)

    def _latest_of(self, tensor: int) -> tuple[int, int] | None:
        """Return a tensor's latest instance and the position of its last read.

        None if that instance is the one that is dropped.
        """
        if tensor not in self._latest:
            instance = self._runs.latest(tensor, self._end)
            if instance is None or instance == self._instance:
                self._latest[tensor] = None
            else:
                self._latest[tensor] = instance, self._runs.last_read(instance)
        return self._latest[tensor]

    @staticmethod
    def _growth(spare: Bytes, size: int) -> float:
        """Return the growth of the bytes above the room.

        It is the growth if `size` bytes are added to each stage.
        """
        return size * len(spare) + float(np.add.reduce(np.maximum(spare, -size)))

    def _cost(self, tensor: int, depth: int, most: float) -> float:
        """Return the cost of an input at the end of the pause.

        The result notes whether keeping or recomputing the tensor is cheaper. Costs above `most` are not computed.
        """
        known = self._costs.get(tensor)
        if known is not None:
            return known[0]
        keep = self._cost_of_keeping(tensor)
        op = self._lists.producer[tensor]
        again = float(self._lists.time[op]) if self._lists.can_rerun[op] and depth else inf
        most = min(most, keep)
        if again < most and len(self._costs) < _MOST_PRICED:
            for read in self._lists.reads[op]:
                again += self._cost(read, depth - 1, most - again)
                if again >= most:
                    break
        if again >= most:
            again = inf
        self._costs[tensor] = min(keep, again), again < keep
        return min(keep, again)

    def _cost_of_keeping(self, tensor: int) -> float:
        latest = self._latest_of(tensor)
        if latest is None:
            return inf
        last = latest[1]
        spare = self._spare_without[last - self._begin :] if last >= self._begin else self._spare[last + 1 :]
        return self._price * self._growth(spare, self._lists.size[tensor])

    def _ops(self, op: int) -> list[int]:
        """Return `op` after the ops that recompute its inputs, in order."""
        ops: dict[int, None] = {}
        stack = [op]
        while stack:
            reads = self._lists.reads[stack[-1]]
            again = (self._lists.producer[tensor] for tensor in reads if self._costs.get(tensor, (0.0, False))[1])
            due = next((each for each in again if each not in ops), None)
            if due is None:
                ops[stack.pop()] = None
            else:
                stack.append(due)
        return list(ops)

    def _measured(self, ops: list[int], kept: dict[int, tuple[int, int]]) -> Remake:
        runs, end = self._runs, self._end
        late = {tensor: last for tensor, (_, last) in kept.items() if last < end}
        start = min([self._begin, *late.values()])
        change = np.zeros(end - start)
        for tensor, at in late.items():
            change[at - start] += self._lists.size[tensor]
        change[self._begin - start] -= self._size
        change = np.cumsum(change)
        before = runs.excess[start + 1 : end]
        between, own = self._levels(ops, set(late), runs.between.item(end) + change.item(-1))
        excess = np.concatenate([before + change[:-1], own])
        return Remake(
            instance=self._instance,
            end=end,
            ops=ops,
            kept={tensor: instance for tensor, (instance, _) in kept.items()},
            start=start,
            change=change,
            excess=excess,
            between=between,
            lacking=above(excess) - above(before),
            time=sum(self._lists.time[op] for op in ops),
        )

    def _levels(self, ops: list[int], late: set[int], level: float) -> tuple[list[float], list[float]]:
        """Return memory minus the room before and during each new run.

        Args:
            ops: ops of the new runs, in order.
            late: tensors kept for the new runs only.
            level: memory minus the room before the first new run.
        """
        lists = self._lists
        last_use = {tensor: number for number, op in enumerate(ops) for tensor in lists.reads[op]}
        last_use[self._tensor] = len(ops)
        between, own = [], []
        for number, op in enumerate(ops):
            between.append(level)
            own.append(level + lists.own_bytes[op])
            late |= {tensor for tensor in lists.makes[op] if last_use.get(tensor, -1) > number}
            level += sum(lists.size[tensor] for tensor in lists.makes[op] if tensor in late)
            ended = {tensor for tensor in lists.reads[op] if tensor in late and last_use[tensor] == number}
            level -= sum(lists.size[tensor] for tensor in ended)
            late -= ended
        return between, own
