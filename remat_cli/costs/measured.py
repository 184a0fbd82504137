"""Times that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.graph import Graph, Op


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

    def time(self, graph: Graph, op: Op) -> int | None:
        """Return the measured time of `op` in ns."""
        return self.times_ns.get(op.name, self.times_ns.get(op.type))

    def grad_time(self, graph: Graph, op: Op) -> int | None:
        """Return the measured time of the backward of `op` in ns."""
        return self.times_ns.get(f"{op.name}.backward", self.times_ns.get(f"{op.type}Grad"))
