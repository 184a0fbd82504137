"""Measured times of ops, and measured workspace of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.core.graph import Draft, Graph, Op
from remat_cli.errors import UsageError

_AGAIN = "measure again, with the sizes that are planned: remat measure GRAPH --dim ... -o FILE"


@dataclass(frozen=True)
class Measurements:
    """A table of measurements, by an op's name or type.

    Attributes:
        times_ns: time of one run, in nanoseconds.
        workspace_bytes: known memory of the op while it runs, without its inputs and outputs.
        signatures: signatures of the measured ops that have one.
        dims: sizes of the measured graph's dims, by name; empty if unknown.
        machine: the machine of the measurement, for people.
    """

    times_ns: Mapping[str, int]
    workspace_bytes: Mapping[str, int] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    machine: str = ""

    def check(self, graph: Draft, dims: Mapping[str, int], where: str) -> None:
        """Check that the same ops were measured, at the same sizes.

        Args:
            graph: the graph to time.
            dims: sizes of that graph's dims.
            where: origin of the table, for messages.

        Raises:
            UsageError: ops or sizes differ.
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
        """Return the graph's own times of ops without a measurement, by name."""
        return {op.name: op.time for op in graph.ops if op.name not in self.times_ns and op.time}

    def with_workspace(self, graph: Draft) -> Draft:
        """Return the graph with measured workspace in place of estimates.

        Ops without a measurement keep their estimate.
        """
        known = self.workspace_bytes
        ops = (op.edited(workspace_bytes=known.get(op.name, op.workspace_bytes)) for op in graph.ops)
        return graph.edited(ops=tuple(ops)) if known else graph


@dataclass(frozen=True, slots=True)
class Measured:
    """The time of an op is the table's, by its name or type.

    The name is looked up first.

    The backward of a forward op is looked up as `<name>.backward` and `<type>Grad`, its name and type in the training
    graph. If the table has neither, the backward takes twice the op's time.

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
