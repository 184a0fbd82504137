"""Chains."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from random import Random
from typing import ClassVar

from remat_cli.core.graph import Kind, Op, Tensor, build_graph
from remat_cli.generate.generator import Generated, check_range


@dataclass(frozen=True)
class Chain:
    """A chain of ops: each reads the previous op's output.

    Source: the setting of Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, where all ops are equal;
    and of Beaumont et al., Optimal Checkpointing for Heterogeneous Chains, 2019, where they differ.
    Makes: forward graphs, from which training graphs are derived; the backward of an op reads the op's input.
    Size: `length` ops, and in training one more than twice as many.

    Attributes:
        length: number of ops.
        bytes: size of each op's output, and of the input.
        time: time of each op; its backward takes twice as long.
        spread: 1: all ops are equal; more: each size and time is multiplied by a random factor between 1 / spread and
            spread, as likely above 1 as below.
        seed: seed of the random factors.
    """

    grows_by: ClassVar[str] = "length"

    length: int = 100
    bytes: int = 1_000_000
    time: int = 1_000
    spread: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_range(self, length=(1, inf), bytes=(0, inf), time=(0, inf), spread=(1, 1e6))

    def generate(self) -> Generated:
        """Generate the graph."""
        random = Random(self.seed)

        def drawn(value: int) -> int:
            factor: float = self.spread ** random.uniform(-1, 1)
            return round(value * factor)

        names = [f"x{number}" for number in range(self.length + 1)]
        tensors = [Tensor(name, drawn(self.bytes)) for name in names]
        ops = [
            Op(
                f"f{number}",
                "Layer",
                (names[number - 1],),
                (names[number],),
                drawn(self.time),
                saves=(names[number - 1],),
            )
            for number in range(1, self.length + 1)
        ]
        drawn_with = f"_spread{self.spread:g}_seed{self.seed}" if self.spread > 1 else ""
        graph = build_graph(
            name=f"chain_n{self.length}{drawn_with}",
            kind=Kind.FORWARD,
            time_unit="unit",
            resident_bytes=0,
            tensors=tensors,
            ops=ops,
        )
        return Generated(graph)
