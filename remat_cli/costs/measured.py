"""Measurements of ops: times, and the workspace of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.core.graph import Draft, Graph, Op
from remat_cli.errors import UsageError

_AGAIN = "measure again, with the sizes that are planned: remat measure GRAPH --dim ... -o FILE"


@dataclass(frozen=True)
class Measurements:
    """A table of what was measured, by the name of an op or, where every op of a type is alike, by its type.

    Attributes:
        times_ns: time of one run, in nanoseconds.
        workspace_bytes: memory that the op takes while it runs, beside its inputs and outputs; as far as it is known.
        signatures: of the ops that were measured, where they have one.
        dims: sizes with which the graph was read, by name; empty where that is not known.
        machine: what it was measured on, for people.
    """

    times_ns: Mapping[str, int]
    workspace_bytes: Mapping[str, int] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    machine: str = ""

    def check(self, graph: Draft, dims: Mapping[str, int], where: str) -> None:
        """Check that this was measured of the same ops, at the same sizes.

        Args:
            graph: what it is for.
            dims: with which that was read.
            where: the table comes from, for messages.

        Raises:
            UsageError: it was not.
        """
        for name, size in dims.items():
            if self.dims.get(name, size) != size:
                raise UsageError(f"{where} was measured with {name}={self.dims[name]}, not {name}={size}", hint=_AGAIN)
        for op in graph.ops:
            measured = self.signatures.get(op.name)
            if measured is not None and op.signature is not None and measured != op.signature:
                raise UsageError(
                    f"{where} was measured of another graph: op {op.name!r} had other inputs, shapes or constants",
                    hint=_AGAIN,
                )

    def missing(self, graph: Graph) -> dict[str, int]:
        """Return the times that a graph has for ops which were not measured, by their names."""
        return {op.name: op.time for op in graph.ops if op.name not in self.times_ns and op.time}

    def with_workspace(self, graph: Draft) -> Draft:
        """Return the graph with the workspace that was measured, where there is one, instead of an estimated one."""
        known = self.workspace_bytes
        ops = (op.edited(workspace_bytes=known.get(op.name, op.workspace_bytes)) for op in graph.ops)
        return graph.edited(ops=tuple(ops)) if known else graph


@dataclass(frozen=True, slots=True)
class Measured:
    """An op takes the time that a table gives for its name or, failing that, for its type.

    The backward of a forward op is looked up as `<name>.backward` and `<type>Grad`, as the training graph calls it;
    where the table has neither, it takes twice the time of the forward op.

    Attributes:
        times_ns: time of one run in ns, by name or type of op.
    """

    time_unit: ClassVar[str] = "ns"
    remedy: ClassVar[str] = "add their names or types to the table of measured times"

    times_ns: Mapping[str, int]

    def time(self, graph: Draft, op: Op) -> int | None:
        """Return the measured time of `op` in ns."""
        return self.times_ns.get(op.name, self.times_ns.get(op.type))

    def grad_time(self, graph: Draft, op: Op) -> int | None:
        """Return the measured time of the backward of `op` in ns."""
        return self.times_ns.get(f"{op.name}.backward", self.times_ns.get(f"{op.type}Grad"))
