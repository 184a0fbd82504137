"""The memory of a step with a policy for selective checkpoints: which blocks are wrapped, and what they save.

A policy says for each kind of block which calls of which functions are saved. In a wrapped block, what these make stays
from the forward pass on. When the backward pass asks for the first thing that autograd would keep, the forward pass
runs again up to the last such thing, in order; a call that was saved is left out, and all others run. A checkpoint of a
whole module is a policy that saves nothing: there, a module's ops run again as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat_cli.pytorch.checkpoints.candidates import Candidate, Candidates

Call = tuple[str, int]
"""A call within a block's forward pass: the function of torch, and how many calls of it came before there."""
_WHOLE = "", 0  # stands for all calls of a module that saves nothing


@dataclass(frozen=True)
class Policy:
    """The wrapped blocks, and the calls they save.

    Attributes:
        blocks: paths of the modules that are wrapped, by the name of their class, in the order of their calls.
        saved: by the same name, the calls whose results are saved; empty for checkpoints of whole modules.
    """

    blocks: Mapping[str, tuple[str, ...]]
    saved: Mapping[str, frozenset[Call]]

    @property
    def paths(self) -> tuple[str, ...]:
        """All modules that are wrapped."""
        return tuple(path for paths in self.blocks.values() for path in paths)


@dataclass(frozen=True)
class RepeatedOp:
    """An op of a block that runs again unless its call is saved; or all ops of a module that saves nothing.

    Attributes:
        call: within the block.
        time: of one run.
        workspace: bytes in memory while it runs, beside what it makes and what was made before.
        makes: bytes of each storage that it makes.
        may_save: nothing writes into what it makes.
        is_random: it draws random numbers.
    """

    call: Call
    time: int
    workspace: int
    makes: Mapping[str, int]
    may_save: bool
    is_random: bool


@dataclass(frozen=True)
class SavingBlock:
    """A module that may be wrapped, with the ops that then run again."""

    candidate: Candidate
    reruns: tuple[RepeatedOp, ...]


@dataclass(frozen=True)
class Held:
    """A reason for a storage in memory at an op, beyond constant ones.

    Attributes:
        unless: groups of blocks; it is there where no block of one group is wrapped.
        where: blocks; it is there where one of them is wrapped.
        saved: blocks and calls; it is there where the block is wrapped and the call saved.
    """

    unless: frozenset[tuple[str, ...]]
    where: frozenset[str]
    saved: frozenset[tuple[str, Call]]


@dataclass(frozen=True)
class Place:
    """Where memory is counted: an op of the step, or the second run of a block, before or after one of its ops.

    Attributes:
        at: position of the op that runs, or before which the block runs again.
        block: path of the block that runs again; None for an op of the step.
        rerun: number of the op within the block; the number of ops there stands for the end.
    """

    at: int
    block: str | None = None
    rerun: int = 0


@dataclass
class BytesAt:
    """Bytes at one place as a sum over all policies.

    Attributes:
        constant: bytes under every policy; of a second run, under every policy that wraps the block.
        held: bytes that are there where a reason holds.
        rerun: bytes that are there where a block is wrapped and a call of it not saved.
        saved: bytes that are there beyond the others where a call of the block that runs again is saved; below 0.
    """

    constant: int
    held: dict[Held, int]
    rerun: dict[tuple[str, Call], int]
    saved: dict[Call, int]


class PolicyMemory:
    """The memory of a step under any policy. Positions count its ops."""

    def __init__(self, candidates: Candidates, *, saves: bool = True) -> None:
        """Compute the kept, saved and rerun tensors of each block.

        Args:
            candidates: modules of the step that may be wrapped.
            saves: blocks may save results of calls; without that, all candidates come into question.
        """
        self._step = step = candidates.step
        self._graph, self._saves = (graph := candidates.graph), saves
        self._workspace = [op.workspace_bytes for op in graph.ops]
        self._fixed = graph.fixed_bytes
        self._born = {name: at for at, op in enumerate(step.ops) for name in op.makes}
        self._written = {name for op in step.ops for name in op.writes}
        turns = {call.path: call.turns for call in step.calls}
        self.blocks = {
            path: SavingBlock(item := candidates.by_path[path], self._reruns(item, turns[path]))
            for path in (repeated_paths(candidates) if saves else candidates.by_path)
        }
        self.nested = tuple(pair for pair in candidates.nested if set(pair) <= self.blocks.keys())
        # By storage: groups of blocks that would drop it, each with the last op that needs it.
        self._kept: dict[str, list[tuple[tuple[str, ...], int]]] = defaultdict(list)
        for kept in step.kept:
            if kept.storage in self._born:
                paths = tuple(path for path in kept.modules if path in self.blocks)
                self._kept[kept.storage].append((paths, kept.until))
        self._given_to: dict[str, list[str]] = defaultdict(list)
        self._rerun_in: dict[str, list[tuple[str, RepeatedOp]]] = defaultdict(list)
        for path, block in self.blocks.items():
            for name in block.candidate.given:
                self._given_to[name].append(path)
            for rerun in block.reruns if saves else ():
                for name in rerun.makes:
                    self._rerun_in[name].append((path, rerun))

    def _reruns(self, candidate: Candidate, turns: Mapping[str, int]) -> tuple[RepeatedOp, ...]:
        if not self._saves:
            makes = {name: self._step.bytes[name] for name in candidate.kept}
            beside = candidate.peak - sum(makes.values())
            return (RepeatedOp(_WHOLE, candidate.time, beside, makes, may_save=False, is_random=False),)
        reruns = []
        for at in range(*candidate.ops):
            op = self._step.ops[at]
            makes = {name: self._step.bytes[name] for name in op.makes}
            call = op.overload, op.turn - turns.get(op.overload, 0)
            may_save = bool(makes) and self._written.isdisjoint(makes)
            node = self._graph.ops[at]
            reruns.append(RepeatedOp(call, node.time, node.workspace_bytes, makes, may_save, op.is_random))
        return tuple(reruns)

    @cached_property
    def calls(self) -> Mapping[str, tuple[Call, ...]]:
        """By kind of block: the calls that may be saved, in order of their first block."""
        if not self._saves:
            return {}
        barred: dict[str, set[Call]] = defaultdict(set)
        calls_of: dict[str, dict[Call, None]] = defaultdict(dict)
        for block in self.blocks.values():
            calls = calls_of[block.candidate.kind]
            calls.update(dict.fromkeys(rerun.call for rerun in block.reruns))
            barred[block.candidate.kind].update(rerun.call for rerun in block.reruns if not rerun.may_save)
        return {kind: tuple(call for call in calls if call not in barred[kind]) for kind, calls in calls_of.items()}

    def wrapping(self, paths: Iterable[str]) -> Policy:
        """Return the policy that wraps whole modules."""
        blocks: dict[str, tuple[str, ...]] = {}
        for path in paths:
            kind = self.blocks[path].candidate.kind
            blocks[kind] = (*blocks.get(kind, ()), path)
        return Policy(blocks, {})

    def _hold_until(self, path: str, name: str) -> int:
        """Return the last op that runs with a saved storage in memory: the second run of its block takes it."""
        candidate = self.blocks[path].candidate
        return max(candidate.kept.get(name, 0), candidate.asked - 1)

    def time(self, policy: Policy) -> int:
        """Return the rerun time."""
        return sum(
            rerun.time
            for path in policy.paths
            for rerun in self.blocks[path].reruns
            if not self._is_saved(policy, path, rerun)
        )

    def _is_saved(self, policy: Policy, path: str, rerun: RepeatedOp) -> bool:
        return rerun.call in policy.saved.get(self.blocks[path].candidate.kind, ())

    def peaks(self, policy: Policy) -> Mapping[Place, int]:
        """Return the bytes in use at each op, and at each op of each second run."""
        wrapped = frozenset(policy.paths)
        last = {name: self._let_go(name, wrapped, policy) for name in self._born}
        copies = {path: self._copies(path, policy) for path in wrapped}
        change = np.zeros(len(self._step.ops) + 2, np.int64)
        for name, born in self._born.items():
            change[born] += self._step.bytes[name]
            change[last[name] + 1] -= self._step.bytes[name]
        for path, again in copies.items():
            for name in again:
                change[self.blocks[path].candidate.asked] += self._step.bytes[name]
                change[self.blocks[path].candidate.kept[name] + 1] -= self._step.bytes[name]
        levels = np.cumsum(change)[: len(self._step.ops)] + self._fixed
        memory = {Place(at): int(level) + self._workspace[at] for at, level in enumerate(levels)}
        for path in wrapped:
            asked = self.blocks[path].candidate.asked
            # What the op that asks makes is not there yet; what the second run takes of the first one is there still.
            there = (name for name in self._taken(path, policy) if last[name] == asked - 1)
            gone = (name for name in (*self._step.ops[asked].makes, *copies[path]))
            before = int(levels[asked]) + sum(map(self._step.bytes.__getitem__, there))
            memory |= self._second_run(path, policy, before - sum(map(self._step.bytes.__getitem__, gone)))
        return memory

    def _copies(self, path: str, policy: Policy) -> list[str]:
        """Return the storages that a second run makes again and autograd keeps."""
        block = self.blocks[path]
        again = (rerun for rerun in block.reruns if not self._is_saved(policy, path, rerun))
        return [name for rerun in again for name in rerun.makes if name in block.candidate.kept]

    def _taken(self, path: str, policy: Policy) -> set[str]:
        """Return the storages that a second run takes, as the first run of the block saved them."""
        saved = (rerun for rerun in self.blocks[path].reruns if self._is_saved(policy, path, rerun))
        return {name for rerun in saved for name in rerun.makes}

    def _second_run(self, path: str, policy: Policy, before: int) -> dict[Place, int]:
        block = self.blocks[path]
        levels = {}
        for number in range(len(block.reruns) + 1):
            level = before
            for (_, call), size in self._rerun_terms(path, number).items():
                level += size if call not in policy.saved.get(block.candidate.kind, ()) else 0
            for call, size in self._saved_terms(path, number).items():
                level += size if call in policy.saved.get(block.candidate.kind, ()) else 0
            levels[Place(block.candidate.asked, path, number)] = level
        return levels

    def peak(self, policy: Policy) -> int:
        """Return the peak of a policy, in bytes."""
        return max(self.peaks(policy).values())

    def _let_go(self, name: str, wrapped: frozenset[str], policy: Policy) -> int:
        last = self._step.until[name]
        for group, until in self._kept.get(name, ()):
            if wrapped.isdisjoint(group):
                last = max(last, until)
        for path in self._given_to.get(name, ()):
            if path in wrapped:
                last = max(last, self.blocks[path].candidate.until)
        for path, rerun in self._rerun_in.get(name, ()):
            if path in wrapped and self._is_saved(policy, path, rerun):
                last = max(last, self._hold_until(path, name))
        return last

    def _rerun_terms(self, path: str, number: int) -> dict[tuple[str, Call], int]:
        """Return the bytes at one op of a second run by the call that makes them again."""
        block = self.blocks[path]
        first, last = block.candidate.ops
        sizes: dict[tuple[str, Call], int] = defaultdict(int)
        for rerun in block.reruns[: number + 1]:
            for name, size in rerun.makes.items():
                if name in block.candidate.kept or self._end(name, last) > first + number:
                    sizes[path, rerun.call] += size
        if number < len(block.reruns):
            sizes[path, block.reruns[number].call] += block.reruns[number].workspace
        return {call: size for call, size in sizes.items() if size}

    def _saved_terms(self, path: str, number: int) -> dict[Call, int]:
        """Return the bytes, below 0, that a second run has let go of before one of its ops, by the call saved."""
        block = self.blocks[path]
        first, last = block.candidate.ops
        sizes: dict[Call, int] = defaultdict(int)
        for rerun in block.reruns[:number]:
            for name, size in rerun.makes.items():
                if self._end(name, last) <= first + number and self._is_only_saved(path, name):
                    sizes[rerun.call] -= size
        return {call: size for call, size in sizes.items() if size}

    def _end(self, name: str, last: int) -> int:
        """Return the op before which a second run that ends before `last` has let go of a storage."""
        return min(last, self._step.until[name] + 1)

    def _is_only_saved(self, path: str, name: str) -> bool:
        """Return whether the rerun is the last holder of a saved storage."""
        asked = self.blocks[path].candidate.asked
        others = [until for group, until in self._kept.get(name, ()) if path not in group]
        others += [self.blocks[other].candidate.until for other in self._given_to.get(name, ())]
        others += [self._hold_until(other, name) for other, _ in self._rerun_in.get(name, ()) if other != path]
        return max(self._hold_until(path, name), self._step.until[name], *others, 0) < asked

    def terms(self, place: Place) -> BytesAt:
        """Return the bytes in memory at a place, as a sum for all policies."""
        terms = BytesAt(self._fixed, defaultdict(int), self._copy_terms(place), {})
        # A second run comes before its op: what that op makes is not there yet.
        now = place.at if place.block is None else place.at - 1
        for name in (name for name, born in self._born.items() if born <= now):
            held = self._why_held(name, place.at, place.block)
            if held is None:
                terms.constant += self._step.bytes[name]
            elif held.unless or held.where or held.saved:
                terms.held[held] += self._step.bytes[name]
        if place.block is None:
            terms.constant += self._workspace[place.at]
            return terms
        for key, size in self._rerun_terms(place.block, place.rerun).items():
            terms.rerun[key] += size
        terms.saved = self._saved_terms(place.block, place.rerun)
        return terms

    def _copy_terms(self, place: Place) -> dict[tuple[str, Call], int]:
        """Return the bytes at a place from earlier reruns of other blocks, by call."""
        sizes: dict[tuple[str, Call], int] = defaultdict(int)
        for path, block in self.blocks.items():
            if block.candidate.asked <= place.at and path != place.block:
                for rerun in block.reruns:
                    kept = (name for name in rerun.makes if block.candidate.kept.get(name, -1) >= place.at)
                    sizes[path, rerun.call] += sum(self._step.bytes[name] for name in kept)
        return defaultdict(int, {call: size for call, size in sizes.items() if size})

    def _why_held(self, name: str, at: int, second_run: str | None) -> Held | None:
        """Return the reasons for a storage at an op, or None for a constant storage."""
        if self._step.until[name] >= at:
            return None
        unless = frozenset(group for group, until in self._kept.get(name, ()) if until >= at)
        if () in unless:
            return None
        where = frozenset(path for path in self._given_to.get(name, ()) if self.blocks[path].candidate.until >= at)
        saved = frozenset(
            (path, rerun.call)
            for path, rerun in self._rerun_in.get(name, ())
            if self._hold_until(path, name) >= (at - 1 if path == second_run else at)
        )
        return Held(unless, where, saved)


def repeated_paths(candidates: Candidates) -> tuple[str, ...]:
    """Return the modules that a policy may be for: repeated blocks; without any, all that may be wrapped."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in candidates.candidates:
        parent, _, last = item.path.rpartition(".")
        if last.isdecimal():
            groups[parent, item.kind].append(item.path)
    repeated = {path for group in groups.values() if len(group) > 1 for path in group}
    return tuple(item.path for item in candidates.candidates if not repeated or item.path in repeated)
