"""Regions: connected ops that work on the same rows, so that parts of the rows can go through all of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from remat_cli.errors import UsageError
from remat_cli.splitting.cuts import Split
from remat_cli.splitting.rows import Axis, Part


@dataclass(frozen=True)
class RowOp:
    """An op, and the rows that it can work on.

    Attributes:
        name: of the op.
        reads: values that it reads.
        makes: values that it makes.
        axes: the rows that it can work on, one kind each; empty where every result depends on all of its operands.
        group: ops of one group run in one go, part by part; what another group makes is there before, or comes after.
    """

    name: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    axes: tuple[Axis, ...]
    group: int = 0


@dataclass(frozen=True)
class Region:
    """Ops that are run in parts.

    Attributes:
        rows: how many rows they work on.
        members: the ops by name, in their order, with the axis that each is cut along.
    """

    rows: int
    members: Mapping[str, Axis]

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The values that are made row by row."""
        of_axes = (item for axis in self.members.values() for item in axis.makes.items())
        return {name: part for name, part in of_axes if part is not None}


def region_of(
    ops: Sequence[RowOp], seed: str, sizes: Mapping[str, int], least_bytes: Callable[[int], int]
) -> Region | None:
    """Return the region around an op; None where the op works on no rows.

    Of several, it is the one that touches most bytes row by row.

    Args:
        ops: in the order in which they run.
        seed: name of the op.
        sizes: bytes of the values.
        least_bytes: gets the bytes of the seed's largest value; returns those from which on a value joins two ops.
    """
    graph = _Graph.of(ops)
    op = graph.op.get(seed)
    if op is None:
        return None
    largest = max((sizes[name] for name in (*op.reads, *op.makes)), default=0)
    big = {name for name, size in sizes.items() if size >= max(1, least_bytes(largest))}
    best: Region | None = None
    most = (-1, -1)
    for axis in _in_larger_rows(ops, op) if len(big) == sum(size > 0 for size in sizes.values()) else op.axes:
        region = _grown(graph, op, axis, big)
        touched = {*region.parts, *(name for axis in region.members.values() for name in axis.reads)}
        size = sum(sizes[name] for name in touched)
        if (size, region.rows) > most:
            best, most = region, (size, region.rows)
    return best


def region_to_split(
    ops: Sequence[RowOp], seed: str, sizes: Mapping[str, int], cut: Split, *, unsplittable: str, hint: str
) -> Region:
    """Return the region that a cut splits.

    Args:
        ops: in the order in which they run.
        seed: name of an op in the region.
        sizes: bytes of the values.
        cut: the cut.
        unsplittable: why an op may work on no rows, in words.
        hint: remedy for such an op.

    Raises:
        UsageError: the op does not exist, or has no rows that parts can share.
    """
    if seed not in {op.name for op in ops}:
        raise UsageError(f"there is no op {seed!r} to split", hint="name an op that 'remat inspect' or a refusal names")
    region = region_of(ops, seed, sizes, cut.least_bytes)
    if region is None:
        raise UsageError(f"op {seed!r} cannot be split: {unsplittable}", hint=hint)
    if cut.parts > region.rows:
        raise UsageError(
            f"op {seed!r} cannot be split in {cut.parts} parts: its region has {region.rows} rows",
            hint=f"give {region.rows} or less",
        )
    return region


def _in_larger_rows(ops: Sequence[RowOp], seed: RowOp) -> list[Axis]:
    """Return an op's axes, in its own rows and in larger rows of other ops."""
    counts = {axis.rows for op in ops for axis in op.axes}
    scaled = (axis.scaled(rows) for axis in seed.axes for rows in sorted(counts))
    return [axis for axis in scaled if axis is not None]


@dataclass(frozen=True)
class _Graph:
    ops: Sequence[RowOp]
    op: Mapping[str, RowOp]
    maker: Mapping[str, RowOp]
    readers: Mapping[str, list[RowOp]]
    position: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, ops: Sequence[RowOp]) -> _Graph:
        readers: dict[str, list[RowOp]] = {}
        for op in ops:
            for name in op.reads:
                readers.setdefault(name, []).append(op)
        maker = {name: op for op in ops for name in op.makes}
        position = {op.name: place for place, op in enumerate(ops)}
        return cls(ops, {op.name: op for op in ops}, maker, readers, position)


def _grown(graph: _Graph, seed: RowOp, axis: Axis, big: Collection[str]) -> Region:
    """Grow a region from the seed through big values with the same rows."""
    members = {seed.name: axis}
    front = [seed.name]
    while front:
        name = front.pop(0)
        for other, reached in _neighbours(graph, members[name], axis.rows, big):
            if other.name not in members and _agrees(graph, members, other, reached):
                members[other.name] = reached
                front.append(other.name)
    members = _in_one_go(graph, members, seed.name)
    return Region(axis.rows, {op.name: members[op.name] for op in graph.ops if op.name in members})


def _neighbours(graph: _Graph, axis: Axis, rows: int, big: Collection[str]) -> list[tuple[RowOp, Axis]]:
    neighbours: list[tuple[RowOp, Axis]] = []
    for value, part in axis.makes.items():
        if part is not None and value in big:
            for reader in graph.readers.get(value, ()):
                matching = (other for other in _scaled(reader, rows) if other.reads.get(value) == part)
                neighbours += [(reader, other) for other in matching][:1]
    for value, part in axis.reads.items():
        if value in big and value in graph.maker:
            maker = graph.maker[value]
            matching = (other for other in _scaled(maker, rows) if other.makes.get(value) == part)
            neighbours += [(maker, other) for other in matching][:1]
    return neighbours


def _scaled(op: RowOp, rows: int) -> list[Axis]:
    scaled = (axis.scaled(rows) for axis in op.axes)
    return [axis for axis in scaled if axis is not None]


def _agrees(graph: _Graph, members: Mapping[str, Axis], op: RowOp, axis: Axis) -> bool:
    """Return whether an op works on the same rows as the members."""
    for value in op.reads:
        maker = graph.maker.get(value)
        inside = maker is not None and maker.name in members and maker.group == op.group
        if inside and maker and not _same(members[maker.name].makes.get(value), axis.reads.get(value)):
            return False
    for value in op.makes:
        for reader in graph.readers.get(value, ()):
            inside = reader.name in members and reader.group == op.group
            if inside and not _same(axis.makes.get(value), members[reader.name].reads.get(value)):
                return False
    return True


def _same(written: Part | None, read: Part | None) -> bool:
    return written is not None and written == read


def _in_one_go(graph: _Graph, members: dict[str, Axis], seed: str) -> dict[str, Axis]:
    """Drop members that need all rows of another member first."""
    while True:
        broken = _first_broken(graph, members)
        if not broken:
            return _connected(graph, members, seed)
        later = {name for name in members if graph.position[name] >= graph.position[broken]}
        same = {name for name in members if graph.op[name].group == graph.op[broken].group}
        gone = (same - later) if seed in later & same else (later & same)
        members = {name: axis for name, axis in members.items() if name not in gone}


def _first_broken(graph: _Graph, members: Mapping[str, Axis]) -> str:
    """Return the first member that needs all rows of its group; empty where there is none."""
    waits: dict[str, set[int]] = {}  # values that depend on members of these groups through an op that is no member
    for op in graph.ops:
        depends = set[int]().union(*(waits.get(value, ()) for value in op.reads))
        if op.name in members and op.group in depends:
            return op.name
        if op.name not in members:
            makers = (graph.maker[value] for value in op.reads if value in graph.maker)
            depends |= {maker.group for maker in makers if maker.name in members}
        if depends:
            waits.update(dict.fromkeys(op.makes, depends))
    return ""


def _connected(graph: _Graph, members: dict[str, Axis], seed: str) -> dict[str, Axis]:
    """Return the members that the seed reaches over values with the rows."""
    reached, front = {seed}, [seed]
    while front:
        op = graph.op[front.pop()]
        neighbours = [*(graph.maker[value] for value in op.reads if value in graph.maker)]
        neighbours += [reader for value in op.makes for reader in graph.readers.get(value, ())]
        for other in neighbours:
            if other.name in members and other.name not in reached:
                reached.add(other.name)
                front.append(other.name)
    return {name: axis for name, axis in members.items() if name in reached}


def runs_in_one_go(ops: Sequence[RowOp], region: Region) -> bool:
    """Tell whether all members of a region can run part by part, as if they were of one group.

    Args:
        ops: all ops, of one group.
        region: some of them.
    """
    graph = _Graph.of(ops)
    agree = all(_agrees(graph, region.members, graph.op[name], axis) for name, axis in region.members.items())
    return agree and not _first_broken(graph, region.members)
