"""The modules of a step that may be checkpointed, from one run of the step on tensors without data.

A wrapped module keeps its inputs and its output, and frees all other tensors that autograd would keep. Its forward pass
runs again, up to the last tensor that autograd keeps, when the backward pass asks for the first.
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
    from remat_cli.pytorch.capture.eager import EagerStep, ModuleCall


@dataclass(frozen=True)
class Candidate:
    """A module that may be wrapped.

    Attributes:
        path: path of the module.
        kind: name of its class.
        time: time of the ops that run again.
        asked: the op of the backward pass before which the module runs again.
        peak: peak of its second run without memory from before, in bytes.
        until: the last op before its inputs are freed.
        given: its inputs.
        ops: that run again: the first, and the one after the last.
        kept: the storages that the second run makes and autograd keeps, each with the last op that has it.
    """

    path: str
    kind: str
    time: int
    asked: int
    peak: int
    until: int
    given: frozenset[str]
    ops: tuple[int, int]
    kept: Mapping[str, int]


def candidate_paths(step: EagerStep) -> tuple[str, ...]:
    """Return the modules that may be wrapped.

    They are repeated blocks, the modules around these, and their children.

    A block is repeated if it has a neighbour of its class, and both are named by numbers. A module with several calls
    is left out, as each call would be a checkpoint of its own.
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


class Candidates:
    """The modules of a step that may be wrapped.

    Positions count the step's ops.

    Attributes:
        step: the step, observed while it ran.
        graph: the same step, with times and workspace.
        overwritten: modules that cannot run again, as an op has overwritten their input by then.
        left_out: these, and others that must not be wrapped.
        candidates: all others.
    """

    def __init__(self, step: EagerStep, graph: Graph, left_out: Iterable[str] = ()) -> None:
        """Compute the tensors that each module keeps.

        Args:
            step: see the attribute.
            graph: see the attribute.
            left_out: paths of modules that must not be wrapped.
        """
        self.step, self.graph = step, graph
        self._workspace = np.fromiter((op.workspace_bytes for op in graph.ops), np.int64, len(step.ops))
        self._times = [op.time for op in graph.ops]
        self._born = {name: at for at, op in enumerate(step.ops) for name in op.makes}
        self._writes = [(at, name) for at, op in enumerate(step.ops) for name in op.writes]
        candidates = self._candidates()
        asked = {candidate.path: candidate.asked for candidate in candidates}
        self.overwritten = tuple(
            call.path for call in step.calls if call.path in asked and self._is_overwritten(call, asked[call.path])
        )
        self.left_out = (*self.overwritten, *left_out)
        self.candidates = tuple(item for item in candidates if item.path not in self.left_out)

    @cached_property
    def by_path(self) -> Mapping[str, Candidate]:
        """The candidates by path."""
        return {candidate.path: candidate for candidate in self.candidates}

    @cached_property
    def nested(self) -> tuple[tuple[str, str], ...]:
        """Pairs of nested candidates, the outer one first."""
        pairs = combinations(sorted(self.by_path), 2)
        return tuple((one, other) for one, other in pairs if other.startswith(f"{one}."))

    def _candidates(self) -> tuple[Candidate, ...]:
        wanted = set(candidate_paths(self.step))
        kept_in: dict[str, list[tuple[str, int, int | None, int]]] = defaultdict(list)
        for kept in self.step.kept:
            for path in wanted.intersection(kept.modules):
                kept_in[path].append((kept.storage, kept.at, kept.asked, kept.until))
        candidates = []
        for call in sorted(self.step.calls, key=lambda call: call.ops):
            asked = [at for *_, at, _ in kept_in.get(call.path, ()) if at is not None]
            if not asked:
                continue
            first, after = call.ops
            last = max(at for _, at, _, _ in kept_in[call.path])
            until: dict[str, int] = {}
            for storage, _, _, let_go in kept_in[call.path]:
                if first <= self._born.get(storage, -1) < after:
                    until[storage] = max(until.get(storage, 0), let_go)
            candidates.append(
                Candidate(
                    path=call.path,
                    kind=call.kind,
                    time=sum(self._times[first:last]),
                    asked=min(asked),
                    peak=self._peak_again(first, last, until),
                    until=max(let_go for *_, let_go in kept_in[call.path]),
                    given=frozenset(name for name in call.given if name in self._born),
                    ops=(first, last),
                    kept=until,
                )
            )
        return tuple(candidates)

    def _is_overwritten(self, call: ModuleCall, asked: int) -> bool:
        """Return whether an op overwrites a module's input before its rerun.

        Inputs are the module's arguments, and other tensors that it reads from outside.

        The second run would read other values, which torch refuses. A tensor from before the step that is no argument
        is the module's own state, such as running statistics.
        """
        first, after = call.ops
        read = {name for op in self.step.ops[first:after] for name in op.reads}
        outside = {name for name in read if self._born.get(name, after) < first}.union(call.given)
        return any(first <= at < asked and name in outside for at, name in self._writes)

    def _peak_again(self, first: int, last: int, kept: Mapping[str, int]) -> int:
        """Return the peak of the rerun ops from `first` to before `last`."""
        change = np.zeros(max(last - first, 0) + 1, np.int64)
        for at in range(first, last):
            for name in self.step.ops[at].makes:
                change[at - first] += self.step.bytes[name]
                end = last if name in kept else min(last, self.step.until[name] + 1)
                change[end - first] -= self.step.bytes[name]
        there = np.cumsum(change)[:-1] + self._workspace[first:last]
        kept_after = sum(self.step.bytes[name] for name in kept if self._born[name] < last)
        return max(int(there.max(initial=0)), kept_after)
