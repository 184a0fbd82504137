"""The difference between two versions of a graph: what fills their plain peaks, and which ops came and went."""

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
    """What is in memory at the peak of a graph's plain run; everything adds up to the peak.

    Attributes:
        tensors: bytes of each that an op made; views left out.
        others: bytes that are always in memory, and the workspace of the op at the peak, less what that op takes over
            from an input.
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
    """A tensor, or another part of the peak, whose bytes differ between the old peak and the new one.

    Attributes:
        name: in the new graph if that has it, else in the old one.
        old_bytes: at the old peak; 0 where it was not in memory then.
        new_bytes: at the new peak; 0 where it is not.
        reason: why, in two or three words.
    """

    name: str
    old_bytes: int
    new_bytes: int
    reason: str

    @property
    def bytes(self) -> int:
        """The part of the growth of the peak that comes from it."""
        return self.new_bytes - self.old_bytes


@dataclass(frozen=True, eq=False)
class Difference:
    """Two versions of a graph, their ops matched by name and by shape.

    Attributes:
        old: one version.
        new: the other one.
    """

    old: Graph
    new: Graph

    @cached_property
    def _names(self) -> dict[str, str]:
        """The names in the old graph of the new graph's ops that it has, too."""
        return matched({op.name: _likeness(self.old, op) for op in self.old.ops},
                       {op.name: _likeness(self.new, op) for op in self.new.ops},
                       {op.name: op.type for op in self.old.ops},
                       {op.name: op.type for op in self.new.ops})  # fmt: skip

    @cached_property
    def added(self) -> tuple[Op, ...]:
        """Ops that only the new graph has."""
        return tuple(op for op in self.new.ops if op.name not in self._names)

    @cached_property
    def gone(self) -> tuple[Op, ...]:
        """Ops that only the old graph has."""
        found = set(self._names.values())
        return tuple(op for op in self.old.ops if op.name not in found)

    @cached_property
    def resized(self) -> tuple[tuple[Op, Op], ...]:
        """Ops of the same name and type whose outputs are of other shapes: old and new."""
        pairs = ((self.old.op[old], self.new.op[new]) for new, old in self._names.items())
        return tuple((old, new) for old, new in pairs if _likeness(self.old, old) != _likeness(self.new, new))

    @cached_property
    def renamed(self) -> int:
        """How many ops have another name, and are otherwise alike."""
        return sum(1 for new, old in self._names.items() if new != old)

    @cached_property
    def at_peak(self) -> tuple[PeakChange, ...]:
        """All changes between the two peaks, the largest first; they add up to the byte."""
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


def _likeness(graph: Graph, op: Op) -> Hashable:
    """Return a key that two ops share if they compute the same on tensors of the same shapes."""
    outputs = (graph.tensors[name] for name in op.outputs)
    return op.type, op.phase, tuple((tensor.bytes, tensor.shape, tensor.dtype) for tensor in outputs)


def matched(
    old: Mapping[str, Hashable],
    new: Mapping[str, Hashable],
    old_types: Mapping[str, Hashable] | None = None,
    new_types: Mapping[str, Hashable] | None = None,
) -> dict[str, str]:
    """Match new things to old ones; return the old names by the new ones.

    First come pairs that agree in name and likeness, then, in their order, pairs that agree in likeness alone, and then
    pairs that agree in name and, where types are given, in type.

    Args:
        old: the likeness of each old thing, by name.
        new: the likeness of each new thing, by name.
        old_types: of the old ones, by name.
        new_types: of the new ones, by name.
    """
    same = {name: name for name, likeness in new.items() if name in old and old[name] == likeness}
    left: dict[Hashable, list[str]] = {}
    for name in reversed(tuple(old)):
        if name not in same:
            left.setdefault(old[name], []).append(name)
    for name, likeness in new.items():
        if name not in same and left.get(likeness):
            same[name] = left[likeness].pop()
    rest = {name for names in left.values() for name in names}
    for name in new:
        if name not in same and name in rest and (old_types or {}).get(name) == (new_types or {}).get(name):
            same[name] = name
    return same
