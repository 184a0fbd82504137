"""What a choice of modules to checkpoint does to the memory of a step, from one run of it on tensors without data.

A module that is wrapped keeps its inputs and its output; all else that autograd would keep of it is let go, and its
forward pass runs again, up to the last tensor that autograd keeps, when the backward pass asks for the first of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from remat_cli.core.graph import Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from remat_cli.pytorch.capture.eager import EagerStep, ModuleCall


@dataclass(frozen=True)
class Candidate:
    """A module that may be wrapped.

    Attributes:
        path: of the module.
        kind: name of its class.
        time: of what runs again.
        asked: the op of the backward pass before which it runs again.
        peak: the most that its second run has in memory at one time beside what was there before, in bytes.
        until: the last op before which its inputs are let go.
        given: its inputs.
        copies: what the second run makes and autograd keeps: bytes, and the last op that has it.
    """

    path: str
    kind: str
    time: int
    asked: int
    peak: int
    until: int
    given: frozenset[str]
    copies: tuple[tuple[int, int], ...]


def candidate_paths(step: EagerStep) -> tuple[str, ...]:
    """Return the modules that come into question: repeated blocks, all that they are in, and their children.

    A block is repeated where a module of its class stands beside it, both named by numbers. What is called several
    times is left out, as each call of it would be a checkpoint of its own.
    """
    times: dict[str, int] = defaultdict(int)
    for call in step.calls:
        times[call.path] += 1
    known = {call.path: call for call in step.calls if times[call.path] == 1 and call.path}
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for path, call in known.items():
        parent, _, last = path.rpartition(".")
        counts[parent, call.kind] += last.isdecimal()
    repeated = {
        path
        for path, call in known.items()
        if path.rpartition(".")[2].isdecimal() and counts[path.rpartition(".")[0], call.kind] > 1
    }

    def wanted(path: str) -> bool:
        above = [other for other in repeated if path.startswith(f"{other}.")]
        if not above:
            return True
        innermost = max(above, key=len)
        return path in repeated or "." not in path[len(innermost) + 1 :]

    return tuple(path for path in known if wanted(path))


@dataclass(frozen=True)
class Condition:
    """When something is in memory: where none of some modules is wrapped, for any of several groups, or one is.

    Attributes:
        unless: groups of modules, of which one at most can be wrapped; it is kept where none of one group is.
        where: modules that hold it where they are wrapped.
    """

    unless: frozenset[tuple[str, ...]]
    where: frozenset[str]


class Memory:
    """What any choice of modules does to the memory of a step. Positions count its ops."""

    def __init__(self, step: EagerStep, graph: Graph, left_out: Iterable[str] = ()) -> None:
        """Work out what each module keeps.

        Args:
            step: was looked at while it ran.
            graph: the same step, with times and workspace.
            left_out: paths of modules that are not to be wrapped.
        """
        self._step = step
        self._ops = len(step.ops)
        self._fixed = graph.fixed_bytes
        self._workspace = np.fromiter((op.workspace_bytes for op in graph.ops), np.int64, self._ops)
        self._times = [op.time for op in graph.ops]
        self._born = {name: at for at, op in enumerate(step.ops) for name in op.makes}
        self._writes = [(at, name) for at, op in enumerate(step.ops) for name in op.writes]
        found = self._candidates()
        asked = {candidate.path: candidate.asked for candidate in found}
        # Modules that cannot run again: by then, an op has written into what they read.
        self.overwritten = tuple(
            call.path for call in step.calls if call.path in asked and self._is_overwritten(call, asked[call.path])
        )
        self.left_out = (*self.overwritten, *left_out)
        self.candidates = tuple(item for item in found if item.path not in self.left_out)
        paths = {candidate.path for candidate in self.candidates}
        # By storage: the wrapped modules that would drop it (any of them), and the last op that needs it.
        self._held: dict[str, list[tuple[tuple[str, ...], int]]] = defaultdict(list)
        for kept in step.kept:
            if kept.storage in self._born:
                self._held[kept.storage].append((tuple(path for path in kept.modules if path in paths), kept.until))

    @cached_property
    def by_path(self) -> Mapping[str, Candidate]:
        """The candidates by path."""
        return {candidate.path: candidate for candidate in self.candidates}

    @cached_property
    def nested(self) -> tuple[tuple[str, str], ...]:
        """Pairs of candidates of which one is inside the other."""
        pairs = combinations(sorted(self.by_path), 2)
        return tuple((one, other) for one, other in pairs if other.startswith(f"{one}."))

    def _candidates(self) -> tuple[Candidate, ...]:
        wanted = set(candidate_paths(self._step))
        kept_in: dict[str, list[tuple[str, int, int | None, int]]] = defaultdict(list)
        for kept in self._step.kept:
            for path in wanted.intersection(kept.modules):
                kept_in[path].append((kept.storage, kept.at, kept.asked, kept.until))
        found = []
        for call in sorted(self._step.calls, key=lambda call: call.ops):
            asked = [at for *_, at, _ in kept_in.get(call.path, ()) if at is not None]
            if not asked:
                continue
            first, after = call.ops
            last = max(at for _, at, _, _ in kept_in[call.path])
            until: dict[str, int] = {}
            for storage, _, _, let_go in kept_in[call.path]:
                if first <= self._born.get(storage, -1) < after:
                    until[storage] = max(until.get(storage, 0), let_go)
            found.append(
                Candidate(
                    path=call.path,
                    kind=call.kind,
                    time=sum(self._times[first:last]),
                    asked=min(asked),
                    peak=self._peak_again(first, last, until),
                    until=max(let_go for *_, let_go in kept_in[call.path]),
                    given=frozenset(name for name in call.given if name in self._born),
                    copies=tuple((self._step.bytes[name], let_go) for name, let_go in until.items()),
                )
            )
        return tuple(found)

    def _is_overwritten(self, call: ModuleCall, asked: int) -> bool:
        """Tell whether an op writes into what a module was given or reads from outside before the module runs again.

        Its second run would read something else, which torch refuses. What was there before the step and is not given
        to the module is its own state, such as running statistics.
        """
        first, after = call.ops
        read = {name for op in self._step.ops[first:after] for name in op.reads}
        outside = {name for name in read if self._born.get(name, after) < first}.union(call.given)
        return any(first <= at < asked and name in outside for at, name in self._writes)

    def _peak_again(self, first: int, last: int, kept: Mapping[str, int]) -> int:
        """Return the most that the ops from `first` to before `last` have in memory at one time when they run again."""
        change = np.zeros(max(last - first, 0) + 1, np.int64)
        for at in range(first, last):
            for name in self._step.ops[at].makes:
                change[at - first] += self._step.bytes[name]
                end = last if name in kept else min(last, self._step.until[name] + 1)
                change[end - first] -= self._step.bytes[name]
        there = np.cumsum(change)[:-1] + self._workspace[first:last]
        kept_after = sum(self._step.bytes[name] for name in kept if self._born[name] < last)
        return max(int(there.max(initial=0)), kept_after)

    def _let_go(self, name: str, chosen: frozenset[str]) -> int:
        """Return the last op that runs while what a storage held in the first run is there."""
        last = self._step.until[name]
        for modules, until in self._held.get(name, ()):
            if until > last and chosen.isdisjoint(modules):
                last = until
        for path in self._given_to.get(name, ()):
            if path in chosen:
                last = max(last, self.by_path[path].until)
        return last

    @cached_property
    def _given_to(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = defaultdict(list)
        for candidate in self.candidates:
            for name in candidate.given:
                found[name].append(candidate.path)
        return {name: tuple(paths) for name, paths in found.items()}

    def _levels(self, chosen: frozenset[str]) -> NDArray[np.int64]:
        """Return the bytes that are there while each op runs, without its workspace."""
        change = np.zeros(self._ops + 2, np.int64)
        for name, at in self._born.items():
            size = self._step.bytes[name]
            change[at] += size
            change[self._let_go(name, chosen) + 1] -= size
        for path in chosen:
            candidate = self.by_path[path]
            for size, until in candidate.copies:
                change[candidate.asked] += size
                change[until + 1] -= size
        return np.cumsum(change)[: self._ops] + self._fixed

    def _new_at(self, at: int) -> int:
        return sum(self._step.bytes[name] for name in self._step.ops[at].makes)

    def peaks(self, chosen: Iterable[str]) -> Mapping[int | str, int]:
        """Return the bytes in use at each op and, by path, during each second run of a module's forward pass."""
        wrapped = frozenset(chosen)
        levels = self._levels(wrapped)
        at_ops: dict[int | str, int] = dict(enumerate(map(int, levels + self._workspace)))
        for path in wrapped:
            candidate = self.by_path[path]
            copies = sum(size for size, _ in candidate.copies)
            before = int(levels[candidate.asked]) - self._new_at(candidate.asked) - copies
            at_ops[path] = before + candidate.peak
        return at_ops

    def peak(self, chosen: Iterable[str]) -> int:
        """Return the peak of a choice, in bytes."""
        return max(self.peaks(chosen).values())

    def terms(self, where: int | str) -> tuple[int, Mapping[str, int], Mapping[Condition, int]]:
        """Return what is in memory at an op, or during the second run of a module, as a sum over all choices.

        Returns:
            Bytes that are there under every choice; bytes for each module where it is chosen; bytes that are there
            where a condition holds.
        """
        second_run = isinstance(where, str)
        at = self.by_path[where].asked if isinstance(where, str) else where
        constant = self._fixed + (self.by_path[where].peak if isinstance(where, str) else int(self._workspace[at]))
        chosen: dict[str, int] = defaultdict(int)
        conditions: dict[Condition, int] = defaultdict(int)
        for name, born in self._born.items():
            if born > at or (second_run and born == at):
                continue
            size = self._step.bytes[name]
            if self._step.until[name] >= at:
                constant += size
                continue
            drops = frozenset(modules for modules, until in self._held.get(name, ()) if until >= at)
            holds = frozenset(path for path in self._given_to.get(name, ()) if self.by_path[path].until >= at)
            if () in drops:
                constant += size
            elif drops or holds:
                conditions[Condition(drops, holds)] += size
        for candidate in self.candidates:
            if candidate.asked <= at and candidate.path != where:
                chosen[candidate.path] += sum(size for size, until in candidate.copies if until >= at)
        return constant, chosen, conditions
