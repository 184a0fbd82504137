"""Generators: what they are, and what they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from remat_cli.core.graph import Graph
from remat_cli.core.operators import Operand, Operator
from remat_cli.errors import UsageError


@dataclass(frozen=True)
class Generated:
    """A graph and, where its ops are operators of a neural network, what a file of them would say of each.

    Attributes:
        graph: of kind inference; or of kind forward, from which a training graph is derived. With operators, its
            times are 0 until a cost model gives them, and `saves` and `grad_inputs` are not set.
        operators: by op name; empty for a graph that has its times.
        parameters: the trainable weights, each once.
    """

    graph: Graph
    operators: Mapping[str, Operator] = field(default_factory=dict)
    parameters: tuple[Operand, ...] = ()


class Generator(Protocol):
    """A frozen dataclass whose fields are its options; the same options always make the same graph.

    Its class docstring gives source and what it makes; `remat generate --list` prints it.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    # The option that makes the graph longer: the number of ops grows in proportion to it.
    grows_by: ClassVar[str]

    def generate(self) -> Generated:
        """Make the graph."""
        ...


def check_range(generator: Generator, **ranges: tuple[float, float]) -> None:
    """Check that options lie within the smallest and the largest value that make sense.

    Raises:
        UsageError: one does not; it is named.
    """
    for name, (smallest, largest) in ranges.items():
        value = getattr(generator, name)
        if not smallest <= value <= largest:
            wanted = f"{smallest:g} or more" if largest == float("inf") else f"{smallest:g} to {largest:g}"
            raise UsageError(f"{name} is {value}", hint=f"give {wanted}")
