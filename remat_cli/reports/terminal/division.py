"""The division tree of a graph (Feng & Huang), as text and JSON.

The planner `acg` works on this tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from remat_cli.core.graph import Graph, Phase
from remat_cli.planners.published.acg.division_tree import ComputationGraph, DivisionTree, Segment, SegmentKind
from remat_cli.reports.safe_text import shorten
from remat_cli.reports.terminal.layout import QUIET_STYLE, section
from remat_cli.units import format_bytes

# The number of parts shown of a segment, by its depth; deeper ones are left out.
_MOST_PARTS = (40, 8, 4)
_LONGEST_NAME = 30


@dataclass(frozen=True, eq=False)
class Division:
    """The division of a graph's forward part, or of all its ops.

    All ops are divided if the graph has no backward.

    Attributes:
        graph: the divided graph.
        ops: number of each vertex's op in the graph; the last two vertices stand for graph inputs and results.
        tree: division tree, with bytes of the ops' outputs as costs.
    """

    graph: Graph
    ops: Sequence[int]
    tree: DivisionTree

    @classmethod
    def of(cls, graph: Graph) -> Division:
        """Divide `graph`."""
        arrays = graph.arrays
        ops = [number for number, op in enumerate(graph.ops) if op.phase is Phase.FORWARD] or [*range(len(graph.ops))]
        vertex = {number: v for v, number in enumerate(ops)}
        costs = [sum(int(arrays.tensor_bytes[tensor]) for tensor in arrays.outputs[number]) for number in ops]
        reads = [(int(arrays.producer[tensor]), number) for number in ops for tensor in arrays.inputs[number]]
        edges = sorted({(vertex[source], vertex[number]) for source, number in reads if source in vertex})
        return cls(graph, ops, DivisionTree.of(ComputationGraph.with_ends(costs, edges)))

    def name(self, v: int) -> str | None:
        """Return the name of a vertex's op; None for the ends of the graph."""
        return self.graph.ops[self.ops[v]].name if v < len(self.ops) else None


def division_summary(graph: Graph) -> dict[str, Any]:
    """Return the division tree for `--json`.

    Members are numbers of segments, which come before the segment that they form.
    """
    division = Division.of(graph)
    return {
        "ops": len(division.ops),
        "counts": {kind.value: count for kind, count in division.tree.counts.items()},
        "root": len(division.tree.segments) - 1,
        "segments": [
            {
                "kind": segment.kind.value,
                "source": division.name(segment.source),
                "target": division.name(segment.target),
                "members": list(segment.members),
                "joints": [division.name(joint) for joint in segment.joints],
                "ops": segment.size,
                "bytes": segment.cost,
            }
            for segment in division.tree.segments
        ],
    }


def division_report(graph: Graph) -> RenderableType:
    """Return the division tree as a section of a report.

    Long and deep trees are cut short.
    """
    division = Division.of(graph)
    root = division.tree.root
    what = "all ops" if len(division.ops) == len(graph.ops) else "the forward ops"
    counts = ", ".join(
        f"{count:,} {kind.value}" for kind, count in division.tree.counts.items() if kind is not SegmentKind.EDGE
    )
    tree = Tree(Text(_title(division, root)), guide_style=QUIET_STYLE)
    _grow(tree, division, root, depth=0)
    return section("Division tree", Text(f"Segments of {what}: {counts}.", QUIET_STYLE), tree)


def _grow(tree: Tree, division: Division, segment: Segment, depth: int) -> None:
    """Add the parts of a segment below its title.

    The limits keep the recursion shallow.
    """
    parts = _parts(division, segment)
    for part in islice(parts, _MOST_PARTS[depth]):
        if isinstance(part, str):
            tree.add(Text(part))
            continue
        branch = tree.add(Text(_title(division, part)))
        if depth + 1 < len(_MOST_PARTS):
            _grow(branch, division, part, depth + 1)
        elif not _is_chain(part):
            branch.add(Text("…", QUIET_STYLE))
    left = Counter("ops" if isinstance(part, str) else part.kind.value for part in parts)
    if left:
        counted = ", ".join(f"{count:,} {kind}" for kind, count in left.items())
        tree.add(Text(f"… {left.total():,} more parts: {counted}", QUIET_STYLE))


def _parts(division: Division, segment: Segment) -> Iterator[Segment | str]:
    """Yield the parts of a segment.

    They are segments, and words on the ops and edges between them.
    """
    members = [division.tree.segments[member] for member in segment.members]
    if segment.kind is SegmentKind.LINEAR:
        if not _is_chain(segment):
            yield from _along(division, segment, members)
        return
    edges = sum(1 for member in members if member.kind is SegmentKind.EDGE)
    if segment.joints:
        cost = sum(division.tree.graph.costs[joint] for joint in segment.joints)
        yield f"{len(segment.joints):,} connecting ops · {format_bytes(cost)}"
    if edges:
        yield f"{edges:,} direct edges" if edges > 1 else "a direct edge"
    yield from (member for member in members if member.kind is not SegmentKind.EDGE)


def _along(division: Division, segment: Segment, members: Sequence[Segment]) -> Iterator[Segment | str]:
    """Yield the parts of a linear segment in order.

    Splitting vertices in a row are merged.
    """
    in_a_row: list[int] = []
    for number, member in enumerate(members):
        if member.kind is not SegmentKind.EDGE:
            if in_a_row:
                yield _in_a_row(division, in_a_row)
                in_a_row = []
            yield member
        in_a_row += segment.joints[number : number + 1]
    if in_a_row:
        yield _in_a_row(division, in_a_row)


def _in_a_row(division: Division, joints: Sequence[int]) -> str:
    cost = format_bytes(sum(division.tree.graph.costs[joint] for joint in joints))
    if len(joints) == 1:
        return f"{_shown(division, joints[0])} · {cost}"
    return f"{_shown(division, joints[0])} … {_shown(division, joints[-1])} · {len(joints):,} ops in a row · {cost}"


def _is_chain(segment: Segment) -> bool:
    """Whether a segment is a plain chain of ops."""
    return segment.kind is SegmentKind.LINEAR and segment.size == len(segment.joints)


def _title(division: Division, segment: Segment) -> str:
    if _is_chain(segment):
        return f"linear: {_in_a_row(division, segment.joints)}"
    ends = f"{_shown(division, segment.source, 'graph inputs')} to {_shown(division, segment.target, 'results')}"
    ops = f"{segment.size:,} ops" if segment.size != 1 else "1 op"
    return f"{segment.kind.value}: {ends} · {ops} · {format_bytes(segment.cost)}"


def _shown(division: Division, v: int, end: str = "") -> str:
    name = division.name(v)
    return end if name is None else shorten(name, _LONGEST_NAME)
