"""The protocol of generators, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from remat_cli.core.graph import Graph
from remat_cli.core.operators import Operand, Operator
from remat_cli.errors import UsageError


@dataclass(frozen=True)
class Generated:
    """A graph and its operators.

    A graph of a neural network has the operators that a file would have.

    Attributes:
        graph: graph of kind inference, or of kind forward for a derived training graph. A graph with operators has
            times of 0 until a cost model sets them, and no `saves` and `grad_inputs`.
        operators: operators by op name; empty for a graph with times.
        parameters: the trainable weights, each once.
    """

    graph: Graph
    operators: Mapping[str, Operator] = field(default_factory=dict)
    parameters: tuple[Operand, ...] = ()


class Generator(Protocol):
    """A frozen dataclass whose fields are options of a graph.

    The same options always give the same graph.

    Its class docstring has the source and the kinds of graphs; `remat generate --list` prints it.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    # The option that makes the graph longer: the number of ops grows in proportion to it.
    grows_by: ClassVar[str]

    def generate(self) -> Generated:
        """Generate the graph."""
        ...


def check_range(generator: Generator, **ranges: tuple[float, float]) -> None:
    """Check that options lie within their ranges.

    Raises:
        UsageError: an option lies outside; the message names it.
    """
    for name, (smallest, largest) in ranges.items():
        value = getattr(generator, name)
        if not smallest <= value <= largest:
            wanted = f"{smallest:g} or more" if largest == float("inf") else f"{smallest:g} to {largest:g}"
            raise UsageError(f"{name} is {value}", hint=f"give {wanted}")
