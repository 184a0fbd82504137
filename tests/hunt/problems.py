"""Problems on which solvers go wrong: sizes of gigabytes, equal or nearly so, beside single bytes; long times."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import strategies as st

from remat_cli.bounds import largest_working_set
from remat_cli.graph import Graph, Tensor, build_graph
from remat_cli.problem import Budget, Problem
from remat_cli.solve import baseline_of
from tests.graphs import graph_of, op, small_graphs, training_chain, training_graphs, training_unet

# Together the times of a graph stay below the 2^60 that the format allows.
_LONGEST = 2**53
SIZES = ("as drawn", "equal", "nearly equal", "bytes beside terabytes", "any")
TIMES = ("as drawn", "nanoseconds", "the longest")


def resized(graph: Graph, seed: int, sizes: str | None = None, times: str | None = None) -> Graph:
    """Return the graph with other sizes and times; those that were 0 stay 0, as views must.

    Args:
        graph: of which all else is left as it is.
        seed: of what is drawn.
        sizes: of which kind; None to draw one.
        times: of which kind; None to draw one.
    """
    rng = random.Random(seed)
    sizes, times = sizes or rng.choice(SIZES), times or rng.choice(TIMES)
    base = rng.randrange(10**9, 10**10)

    def size(tensor: Tensor) -> int:
        if tensor.bytes == 0:
            return 0
        match sizes:
            case "equal":
                return base
            case "nearly equal":
                return rng.choice([base, base, base, base + 4, base - 4, 2 * base, base // 2, 1024, 4])
            case "bytes beside terabytes":
                return rng.choice([1, 2, rng.randrange(1, 4 * 10**12), 3_600_000_000_000])
            case "any":
                return rng.randrange(1, base)
        return tensor.bytes

    def time(drawn: int) -> int:
        match times:
            case "nanoseconds":
                return drawn and rng.choice([10**6, 10**6 + 1, rng.randrange(1, 10**9)])
            case "the longest":
                return drawn and rng.choice([_LONGEST, _LONGEST - 1, rng.randrange(1, _LONGEST)])
        return drawn

    return build_graph(
        name=graph.name,
        kind=graph.kind,
        time_unit=graph.time_unit,
        resident_bytes=graph.resident_bytes,
        tensors=[replace(tensor, bytes=size(tensor)) for tensor in graph.tensors.values()],
        ops=[
            replace(op, time=time(op.time), workspace_bytes=rng.choice([0, 0, op.workspace_bytes])) for op in graph.ops
        ],
        outputs=graph.outputs,
    )


def with_budget(graph: Graph, seed: int) -> Problem:
    """Return the problem of a budget from the largest working set to the plain peak; often one that sizes add up to."""
    rng = random.Random(seed)
    least, most = largest_working_set(graph).bytes, baseline_of(graph).peak_bytes
    budget = rng.randrange(least, most + 1)
    if rng.random() < 0.6:
        missing = rng.sample([tensor.bytes for tensor in graph.tensors.values()], k=min(3, len(graph.tensors)))
        budget = most - sum(missing[: rng.randrange(1, 4)]) + rng.choice([0, 0, 1, -1, -4])
    return Problem(graph, Budget(min(max(budget, least), most)))


def tangled(seed: int, count: int | None = None) -> Graph:
    """Return a graph of so many ops, or 12 to 40; each reads a few of those before it, most often recent ones."""
    rng = random.Random(seed)
    count = count or rng.randrange(12, 41)
    ops = []
    for number in range(count):
        reach = rng.choice([3, 8, number])
        earlier = range(max(0, number - reach), number)
        reads = rng.sample(earlier, k=min(len(earlier), rng.choice([1, 1, 2, 3])))
        ops.append(op(f"f{number}", " ".join(f"t{each}" for each in reads), f"t{number}", time=rng.randrange(1, 10)))
    return graph_of(*ops)


_SEEDS = st.integers(0, 2**32)
SMALL = training_graphs(max_forward_ops=3) | small_graphs(max_ops=7)
# Of too many states for the oracle: what planners claim is held against each other's plans.
LARGER = st.one_of(
    st.builds(training_chain, st.integers(8, 16)),
    st.builds(training_unet, st.integers(3, 6)),
    st.builds(tangled, _SEEDS),
)


def problems(
    graphs: st.SearchStrategy[Graph], sizes: str | None = None, times: str | None = None
) -> st.SearchStrategy[Problem]:
    """Draw graphs, then other sizes and times (of these kinds, or of any), then budgets."""
    return st.builds(with_budget, st.builds(resized, graphs, _SEEDS, st.just(sizes), st.just(times)), _SEEDS)
