"""Random layered graphs after Gagrani et al. 2022."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, floor, inf, sqrt
from random import Random
from typing import ClassVar

from remat_cli.core.graph import Graph, Kind, Op, Tensor, build_graph
from remat_cli.generate.generator import Generated, check_range

# Sizes come from a mixture of normal distributions, with means and standard deviations in kB. It fits the 1850 sizes of
# the public files: chi-squared is 22.7 over 27 bins of 250 bytes.
_SIZES_KB = ((0.5, 0.5), (1.0, 1.0), (3.0, 1.0), (5.0, 1.0))
_WEIGHTS = (0.3, 0.3, 0.3, 0.1)
_LONGEST_TIME = 1000
# A skip ends at most this share of a layer's width to the right of where it begins.
_SKIP_DRIFT = 0.2


@dataclass(frozen=True)
class Layered:
    """Layers of random width, joined densely, with random skips.

    Source: Gagrani et al., Neural Topological Ordering for Computation Graphs, NeurIPS 2022, appendix A; sizes, times
    and the order of the ops follow the public files rl_n* of Bartan et al., Moccasin, ICML 2023.
    Makes: inference graphs, whose ops stand in a random order.
    Size: as many ops as nodes; about nodes ** 1.5 edges.

    Attributes:
        nodes: number of ops, with a source and a sink.
        width: shape of the graph between deep (near 0) and wide (near 1); the paper draws it from 0.25 to 0.5.
        variability: largest difference between a layer's width and the average, as a share of the average.
        edge_density: 0: each op of the wider of two neighbouring layers has one edge to the other layer; 1: it has all
            edges.
        skip_density: share of the edges that skip layers.
        seed: seed of all random choices.
    """

    grows_by: ClassVar[str] = "nodes"

    nodes: int = 100
    width: float = 0.35
    variability: float = 0.75
    edge_density: float = 0.2
    skip_density: float = 0.14
    seed: int = 0

    def __post_init__(self) -> None:
        check_range(
            self,
            nodes=(3, inf),
            width=(0.01, 0.99),
            variability=(0, 1),
            edge_density=(0, 1),
            skip_density=(0, 0.9),
        )

    def generate(self) -> Generated:
        """Generate the graph."""
        return Generated(_Drawing(self).graph())


class _Drawing:
    """A graph while it is drawn, with its ops numbered.

    Op 0 is the source, the last op is the sink; the layers lie between in order.

    Attributes:
        layers: the ops of each layer.
        readers: for each op, the ops that read it.
    """

    def __init__(self, options: Layered) -> None:
        self._options = options
        self._random = Random(options.seed)
        ends = accumulate([1, *self._widths(), 1])
        self.layers = [range(start, end) for start, end in pairwise([0, *ends])]
        self.readers: list[dict[int, None]] = [{} for _ in range(options.nodes)]
        for upper, lower in pairwise(self.layers):
            self._join(upper, lower)
        self._skip()

    def graph(self) -> Graph:
        """Return the graph with its ops in a random order."""
        options = self._options
        sizes = [self._bytes() for _ in range(options.nodes)]
        times = [0, *(self._random.randrange(1, _LONGEST_TIME) for _ in range(options.nodes - 2)), 0]
        reads: list[list[int]] = [[] for _ in range(options.nodes)]
        for op, readers in enumerate(self.readers):
            for reader in readers:
                reads[reader].append(op)
        return build_graph(
            name=f"random_layered_n{options.nodes}_w{options.width:g}_nlv{options.variability:g}"
            f"_ed{options.edge_density:g}_scd{options.skip_density:g}_seed{options.seed}",
            kind=Kind.INFERENCE,
            time_unit="unit",
            resident_bytes=0,
            tensors=[Tensor(str(number), size) for number, size in enumerate(sizes)],
            ops=[
                Op(str(op), "", tuple(map(str, sorted(reads[op]))), (str(op),), times[op])
                for op in _random_order(self.readers, self._random)
            ],
        )

    def _widths(self) -> Iterator[int]:
        """Yield the widths of the layers between source and sink.

        The last layer takes the remaining ops.
        """
        options = self._options
        left = options.nodes - 2
        depth = ceil(sqrt(left * (1 / options.width - 1)))
        average = left / depth
        narrowest = max(1, ceil(average * (1 - options.variability)))
        widest = max(narrowest, floor(average * (1 + options.variability)))
        while left:
            width = min(left, self._random.randint(narrowest, widest))
            left -= width
            yield width

    def _join(self, upper: Sequence[int], lower: Sequence[int]) -> None:
        """Join two neighbouring layers.

        Each op of the wider layer is joined to a run of ops of the other, centred at the same relative place. The runs'
        lengths differ by at most one.
        """
        wide, narrow = (upper, lower) if len(upper) > len(lower) else (lower, upper)
        density = self._options.edge_density
        edges = round(density * len(wide) * len(narrow) + (1 - density) * len(wide))
        shortest, longer = divmod(edges, len(wide))
        has_longer = set(self._random.sample(range(len(wide)), longer))
        scale = (len(narrow) - 1) / max(1, len(wide) - 1)
        for place, op in enumerate(wide):
            length = shortest + (place in has_longer)
            start = round(place * scale) - (length - 1) // 2
            start = min(max(0, start), len(narrow) - length)
            for other in narrow[start : start + length]:
                self.readers[min(op, other)][max(op, other)] = None

    def _skip(self) -> None:
        """Add edges that skip at least one layer.

        No edge is added twice.
        """
        between = self.layers[1:-1]
        density = self._options.skip_density
        if len(between) < 3:
            return
        edges = sum(map(len, self.readers))
        for _ in range(ceil(edges * density / (1 - density))):
            first = self._random.randrange(len(between) - 2)
            upper, lower = between[first], between[self._random.randrange(first + 2, len(between))]
            place = self._random.random()
            across = min(place + _SKIP_DRIFT * self._random.random(), 0.999)
            self.readers[upper[int(place * len(upper))]][lower[int(across * len(lower))]] = None

    def _bytes(self) -> int:
        """Draw a positive size, in tens of bytes.

        Other values are drawn again from the same distribution.
        """
        mean, deviation = self._random.choices(_SIZES_KB, _WEIGHTS)[0]
        while (size := 10 * round(100 * self._random.gauss(mean, deviation))) <= 0:
            pass
        return size


def _random_order(readers: Sequence[dict[int, None]], random: Random) -> list[int]:
    """Return a random topological order, by depth-first search.

    The search begins at random ops. Ops that it leaves last come first.

    Of the tried methods this one comes closest to the orders of the public files.
    """
    order: list[int] = []
    seen: set[int] = set()

    def enter(op: int) -> tuple[int, Iterator[int]]:
        seen.add(op)
        return op, iter(random.sample(list(readers[op]), len(readers[op])))

    for start in random.sample(range(len(readers)), len(readers)):
        path = [] if start in seen else [enter(start)]
        while path:
            op, waiting = path[-1]
            unseen = next((reader for reader in waiting if reader not in seen), None)
            if unseen is None:
                order.append(op)
                path.pop()
            else:
                path.append(enter(unseen))
    return order[::-1]
