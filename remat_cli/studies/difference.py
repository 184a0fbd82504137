"""The difference between two versions of a graph.

It has the parts of both plain peaks, and the added and removed ops.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from remat_cli.core.graph import Graph, Op
from remat_cli.core.schedule import live_at, plain_run
from remat_cli.core.solve import baseline_of

RESIDENT, INPUTS, WORKSPACE = "resident bytes", "graph inputs", "workspace"


@dataclass(frozen=True)
class PeakContents:
    """The tensors and other bytes at a plain run's peak.

    Together they add up to the peak.

    Attributes:
        tensors: bytes of each op output in memory, without views.
        others: bytes that are always in memory, and the workspace of the op at the peak, less bytes that this op reuses
            of an input.
    """

    tensors: Mapping[str, int]
    others: Mapping[str, int]

    @classmethod
    def of(cls, graph: Graph) -> PeakContents:
        """Replay the plain run up to its peak."""
        plain = baseline_of(graph)
        live = {name: graph.tensors[name].bytes for name in live_at(graph, plain_run(graph), plain.peak_step)}
        tensors = {name: size for name, size in live.items() if size > 0}
        others = {RESIDENT: graph.resident_bytes, INPUTS: graph.fixed_bytes - graph.resident_bytes}
        workspace = plain.peak_bytes - graph.fixed_bytes - sum(tensors.values())
        return cls(tensors, {**others, WORKSPACE: workspace})


@dataclass(frozen=True)
class PeakChange:
    """A part of the peak whose bytes differ between both versions.

    Parts are tensors, resident bytes, graph inputs and workspace.

    Attributes:
        name: name in the new graph, or in the old graph if the new one lacks the part.
        old_bytes: bytes at the old peak; 0 for a part that is not in memory there.
        new_bytes: bytes at the new peak; 0 for a part that is not in memory there.
        reason: reason of the change, in two or three words.
    """

    name: str
    old_bytes: int
    new_bytes: int
    reason: str

    @property
    def bytes(self) -> int:
        """Growth of the peak through this part."""
        return self.new_bytes - self.old_bytes


@dataclass(frozen=True, eq=False)
class Difference:
    """Two versions of a graph, their ops matched by name and by shape.

    Attributes:
        old: the old version.
        new: the new version.
    """

    old: Graph
    new: Graph

    @cached_property
    def _names(self) -> dict[str, str]:
        """The old names of ops that both graphs have, by new name."""
        return matched({op.name: _comparison_key(self.old, op) for op in self.old.ops},
                       {op.name: _comparison_key(self.new, op) for op in self.new.ops},
                       {op.name: op.type for op in self.old.ops},
                       {op.name: op.type for op in self.new.ops})  # fmt: skip

    @cached_property
    def added(self) -> tuple[Op, ...]:
        """Ops that only the new graph has."""
        return tuple(op for op in self.new.ops if op.name not in self._names)

    @cached_property
    def gone(self) -> tuple[Op, ...]:
        """Ops that only the old graph has."""
        matched_names = set(self._names.values())
        return tuple(op for op in self.old.ops if op.name not in matched_names)

    @cached_property
    def resized(self) -> tuple[tuple[Op, Op], ...]:
        """Pairs of an old and a new op with different output shapes.

        Their names and types are equal.
        """
        pairs = ((self.old.op[old], self.new.op[new]) for new, old in self._names.items())
        return tuple(
            (old, new) for old, new in pairs if _comparison_key(self.old, old) != _comparison_key(self.new, new)
        )

    @cached_property
    def renamed(self) -> int:
        """The number of ops that differ in nothing but their name."""
        return sum(1 for new, old in self._names.items() if new != old)

    @cached_property
    def at_peak(self) -> tuple[PeakChange, ...]:
        """All changes between the two peaks, the largest first.

        They add up to the change of the peak, to the byte.
        """
        before, now = PeakContents.of(self.old), PeakContents.of(self.new)
        changes = [*self._tensors(before, now), *_others(before, now)]
        return tuple(sorted((change for change in changes if change.bytes), key=lambda c: (-abs(c.bytes), c.name)))

    def _tensors(self, before: PeakContents, now: PeakContents) -> Iterator[PeakChange]:
        old_names = {
            of_new: of_old
            for new, old in self._names.items()
            for of_new, of_old in zip(self.new.op[new].outputs, self.old.op[old].outputs, strict=False)
        }
        for name, size in now.tensors.items():
            old = old_names.get(name)
            had = 0 if old is None else before.tensors.get(old, 0)
            reason = "new" if old is None else "was not there" if had == 0 else "has grown" if size > had else "shrank"
            yield PeakChange(name, had, size, reason)
        new_names = {old: new for new, old in old_names.items()}
        for name, had in before.tensors.items():
            new = new_names.get(name)
            if new is None or new not in now.tensors:
                yield PeakChange(new or name, had, 0, "gone" if new is None else "is not there")


def _others(before: PeakContents, now: PeakContents) -> Iterator[PeakChange]:
    for name, size in now.others.items():
        yield PeakChange(name, before.others[name], size, "has grown" if size > before.others[name] else "shrank")


def _comparison_key(graph: Graph, op: Op) -> Hashable:
    """Return a key that ops of the same type and output shapes share."""
    outputs = (graph.tensors[name] for name in op.outputs)
    return op.type, op.phase, tuple((tensor.bytes, tensor.shape, tensor.dtype) for tensor in outputs)


def matched(
    old: Mapping[str, Hashable],
    new: Mapping[str, Hashable],
    old_types: Mapping[str, Hashable] | None = None,
    new_types: Mapping[str, Hashable] | None = None,
) -> dict[str, str]:
    """Match new things to old ones; return old names by new names.

    First come pairs of equal name and key, then pairs of equal keys in their order, then pairs of equal name and type.
    Without types, equal names suffice.

    Args:
        old: key of each old thing, by name.
        new: key of each new thing, by name.
        old_types: types of the old things, by name.
        new_types: types of the new things, by name.
    """
    same = {name: name for name, key in new.items() if name in old and old[name] == key}
    left: dict[Hashable, list[str]] = {}
    for name in reversed(tuple(old)):
        if name not in same:
            left.setdefault(old[name], []).append(name)
    for name, key in new.items():
        if name not in same and left.get(key):
            same[name] = left[key].pop()
    rest = {name for names in left.values() for name in names}
    for name in new:
        if name not in same and name in rest and (old_types or {}).get(name) == (new_types or {}).get(name):
            same[name] = name
    return same
