"""Problems on which solvers go wrong: sizes of gigabytes, equal or nearly so, beside single bytes; long times."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

from hypothesis import strategies as st

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph, Kind, Phase, Tensor
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.solve import baseline_of
from tests.graphs import graph_of, op, small_graphs, training_chain, training_graphs, training_unet
from tests.oracle import least_peak
from tests.second_judge import built

# Together the times of a graph stay below the 2^60 that the format allows.
_LONGEST = 2**53
# Of graphs with more ops, nobody knows the least peak.
_OPS_OF_ORACLE = 7
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

    return built(
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


def varied(graph: Graph, seed: int) -> Graph:
    """Return the graph with what ready-made families lack, now and then.

    That is: zero sizes and times, workspace and resident bytes as large as tensors, ops of several outputs, views, and
    outputs in the midst.
    """
    rng = random.Random(seed)
    sizes = [tensor.bytes for tensor in graph.tensors.values()] or [0]
    tensors = {
        name: replace(tensor, bytes=rng.choice([0, *9 * [tensor.bytes]])) for name, tensor in graph.tensors.items()
    }
    renamed: dict[tuple[str, str], str] = {}  # what an op reads instead
    ops = []
    for op_ in graph.ops:
        inputs = [renamed.get((op_.name, name), name) for name in op_.inputs]
        made = list(op_.outputs)
        if made and rng.random() < 0.2:
            other = Tensor(f"{op_.name}.other", rng.choice([0, *sizes]))
            tensors[other.name] = other
            made.append(other.name)
        readers = [reader for name in op_.outputs for reader in graph.consumers[name] if reader.inplace != name]
        if readers and rng.random() < 0.2:
            reader = rng.choice(readers)
            base = rng.choice([name for name in op_.outputs if name in reader.inputs])
            view = Tensor(f"{base}.view", 0, view_of=base)
            tensors[view.name] = view
            made.append(view.name)
            renamed[reader.name, base] = view.name
        ops.append(
            replace(
                op_,
                inputs=tuple(inputs),
                outputs=tuple(made),
                time=rng.choice([0, *6 * [op_.time]]),
                workspace_bytes=rng.choice([op_.workspace_bytes, op_.workspace_bytes, 0, *sizes[:1], max(sizes)]),
            )
        )
    also = rng.sample(sorted(tensors), k=min(len(tensors), rng.choice([0, 0, 1, 2])))
    return built(
        name=graph.name,
        kind=graph.kind,
        time_unit=graph.time_unit,
        resident_bytes=rng.choice([graph.resident_bytes, 1, max(sizes)]),
        tensors=tensors.values(),
        ops=ops,
        outputs=tuple(dict.fromkeys((*graph.outputs, *also))),
    )


def with_exact_budget(graph: Graph, seed: int) -> Problem:
    """Return the problem of a budget that is the memory at some step of the plain run or a peak, or one beside it."""
    rng = random.Random(seed)
    least = largest_working_set(graph).bytes
    peaks = [least, baseline_of(graph).peak_bytes]
    if len(graph.ops) <= _OPS_OF_ORACLE:
        peaks.append(least_peak(graph).peak_bytes)
    levels = [level for level in baseline_of(graph).memory_bytes if level > least]
    budget = rng.choice(peaks if rng.random() < 0.6 or not levels else levels) + rng.choice([-1, 0, 0, 1])
    return Problem(graph, Budget(max(0, budget)))


def with_link(problem: Problem, seed: int) -> Problem:
    """Return the problem with a link about as fast as the ops: half or full duplex, to be used or not."""
    rng = random.Random(seed)
    graph = problem.graph
    size = sum(tensor.bytes for tensor in graph.tensors.values())
    rate = Fraction(max(1, size), max(1, graph.total_time)) * rng.choice(
        [Fraction(1, 4), Fraction(1), Fraction(3), Fraction(50)]
    )
    return replace(problem, link=Link(rate, rng.choice(list(Duplex))), offload=rng.random() < 0.8)


def moved_chain(seed: int) -> Problem:
    """Return a problem in which transfers decide: a chain that is read backwards, little room, and a link at its pace.

    Running ops again is forbidden, long, or as cheap as the link, so that the best plans move, wait, or do both.
    """
    rng = random.Random(seed)
    length = rng.choice([2, 2, 2, 3])
    sizes = {f"{letter}{i}": rng.randrange(1, 7) for letter in "ag" for i in range(length + 1)}
    slow = rng.choice([1, 1, 10])
    ops = []
    for each in training_chain(length).ops:
        again = each.phase is not Phase.FORWARD or rng.random() < 0.4
        ops.append(replace(each, time=rng.randrange(1, 6) * (slow if again else 1), recomputable=again))
    graph = graph_of(*ops, sizes=sizes, kind=Kind.TRAINING)
    least, most = largest_working_set(graph).bytes, baseline_of(graph).peak_bytes
    budget = Budget(rng.randrange(least, max(most, least + 1)))
    link = Link(Fraction(rng.choice([1, 2, 3, 4, 6]), rng.choice([1, 2, 3])), rng.choice(list(Duplex)))
    return Problem(graph, budget, link=link, offload=True)


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
# As many as the search with transfers settles in moments.
TINY = small_graphs(max_ops=4)
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


def varied_problems(graphs: st.SearchStrategy[Graph], times: str | None = None) -> st.SearchStrategy[Problem]:
    """Draw problems as `problems` does, and with all that graphs can have, and budgets that just fit or just do not."""
    of_sizes = st.builds(resized, graphs, _SEEDS, st.none(), st.just(times))
    drawn = of_sizes | st.builds(varied, of_sizes, _SEEDS)
    return st.builds(with_budget, drawn, _SEEDS) | st.builds(with_exact_budget, drawn, _SEEDS)


def problems_with_link(graphs: st.SearchStrategy[Graph]) -> st.SearchStrategy[Problem]:
    """Draw problems, and links to the host."""
    return st.builds(with_link, varied_problems(graphs, times="as drawn"), _SEEDS)


def moved_problems() -> st.SearchStrategy[Problem]:
    """Draw problems that only plans with transfers, and waits for them, solve best."""
    return st.builds(moved_chain, _SEEDS)
