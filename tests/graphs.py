"""Graphs for tests: builders named for their shape, and hypothesis strategies for random ones.

Those on which the contract of planners is tried stand in `remat_cli/testing/graphs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from remat_cli.core.graph import Graph, Kind, Op, Phase
from remat_cli.testing import graphs
from remat_cli.testing.graphs import (
    diamond,
    forward_graphs,
    graph_of,
    in_place,
    op,
    problems,
    training_chain,
    training_graphs,
    training_unet,
    updating_chain,
    updating_graphs,
)
from remat_cli.training import training_graph
from tests.second_judge import built

__all__ = [
    "chain",
    "compute_sequences",
    "diamond",
    "forward_graphs",
    "graph_of",
    "in_place",
    "layered_step",
    "multi_output",
    "op",
    "problems",
    "renamed",
    "residual_step",
    "scaled",
    "small_graphs",
    "topological_orders",
    "training_chain",
    "training_graphs",
    "training_unet",
    "updating_chain",
    "updating_graphs",
    "with_view",
    "with_workspace",
]

# Here the views of every graph are checked, too.
small_graphs = partial(graphs.small_graphs, build=built)


def chain(*sizes: int) -> Graph:
    """t1 -> t2 -> ...: op `f2` reads `t1` and makes `t2`, of the second size; `f1` reads nothing."""
    ops = [op(f"f{i}", f"t{i - 1}" if i > 1 else "", f"t{i}") for i in range(1, len(sizes) + 1)]
    return graph_of(*ops, sizes={f"t{i}": size for i, size in enumerate(sizes, start=1)})


def residual_step(blocks: int) -> Graph:
    """The training step of a ResNet, each block as two convolutions, a narrow tensor between them, and a sum."""
    ops = [op("stem", "", "x0", time=320, saves=(), grad_time=320)]
    sizes = {"x0": 100}
    for number in range(1, blocks + 1):
        last, narrow, wide, new = f"x{number - 1}", f"h{number}", f"y{number}", f"x{number}"
        sizes |= {narrow: 25, wide: 100, new: 100}
        ops += [
            op(f"c{number}", last, narrow, time=142, saves=(last,)),
            op(f"d{number}", narrow, wide, time=529, saves=(narrow,)),
            op(f"r{number}", f"{last} {wide}", new, time=330, saves=(new,), grad_time=330),
        ]
    return training_graph(graph_of(*ops, sizes=sizes, outputs=[new], kind=Kind.FORWARD))


def layered_step(layers: int, *, times: tuple[int, int, int] = (1, 1, 1)) -> Graph:
    """A training step of equal layers: `f2` makes `x2` and `s2`; `b2` makes `g1`; `w2` makes `dw2`, of the weights.

    Args:
        layers: number of layers.
        times: of forward op, gradient of the input, and gradient of the weights.
    """
    forward, inputs, weights = times
    ops = [op(f"f{i}", f"x{i - 1}" if i > 1 else "", f"x{i} s{i}", time=forward) for i in range(1, layers + 1)]
    ops.append(op("loss", f"x{layers}", f"g{layers}", time=0, phase=Phase.BACKWARD))
    for i in range(layers, 0, -1):
        grad = {"phase": Phase.BACKWARD, "grad_of": f"f{i}"}
        ops.append(op(f"b{i}", f"g{i} s{i}", f"g{i - 1}", time=inputs, **grad))
        ops.append(op(f"w{i}", f"g{i} x{i - 1}" if i > 1 else f"g{i}", f"dw{i}", time=weights, **grad))
    sizes = {name: 2 if name[0] == "s" else 1 for each in ops for name in each.outputs}
    outputs = [f"dw{i}" for i in range(1, layers + 1)]
    return graph_of(*ops, sizes=sizes, outputs=outputs, kind=Kind.TRAINING)


def multi_output() -> Graph:
    """`split` makes `left` (3 bytes) and `right` (5 bytes), which are read one after the other."""
    return graph_of(
        op("split", "", "left right"),
        op("use_left", "left", "l"),
        op("use_right", "right", "r"),
        sizes={"left": 3, "right": 5},
    )


def with_workspace() -> Graph:
    """`b` needs 7 bytes of its own while it runs."""
    return graph_of(op("a", "", "x"), op("b", "x", "y", workspace_bytes=7), sizes={"x": 2, "y": 3})


def with_view() -> Graph:
    """`flatten` makes `v`, a view of `x`, which `use` reads."""
    return graph_of(op("make", "", "x"), op("flatten", "x", "v"), op("use", "v", "y"), sizes={"x": 6}, views={"v": "x"})


def renamed(graph: Graph) -> Graph:
    """Return the same graph under other names, whose alphabetical order is the reverse."""
    ops = {each.name: f"op{len(graph.ops) - i:03}" for i, each in enumerate(graph.ops)}
    names = {name: f"tensor{len(graph.tensors) - i:03}" for i, name in enumerate(graph.tensors)}

    def of(old: Sequence[str]) -> tuple[str, ...]:
        return tuple(names[name] for name in old)

    return Graph(
        name=graph.name,
        kind=graph.kind,
        time_unit=graph.time_unit,
        resident_bytes=graph.resident_bytes,
        tensors={
            names[t.name]: replace(t, name=names[t.name], view_of=None if t.view_of is None else names[t.view_of])
            for t in graph.tensors.values()
        },
        ops=tuple(
            replace(
                each,
                name=ops[each.name],
                inputs=of(each.inputs),
                outputs=of(each.outputs),
                inplace=None if each.inplace is None else names[each.inplace],
                grad_of=None if each.grad_of is None else ops[each.grad_of],
                saves=None if each.saves is None else of(each.saves),
                grad_inputs=None if each.grad_inputs is None else of(each.grad_inputs),
            )
            for each in graph.ops
        ),
        outputs=of(graph.outputs),
    )


def scaled(graph: Graph, factor: int) -> Graph:
    """Return the same graph with every size in bytes multiplied by `factor`."""
    return replace(
        graph,
        resident_bytes=factor * graph.resident_bytes,
        tensors={name: replace(tensor, bytes=factor * tensor.bytes) for name, tensor in graph.tensors.items()},
        ops=tuple(replace(each, workspace_bytes=factor * each.workspace_bytes) for each in graph.ops),
    )


def topological_orders(draw: st.DrawFn, graph: Graph) -> Iterator[Op]:
    """Yield the ops in a random order that can be executed."""
    done: set[str] = set()
    waiting = list(graph.ops)
    while waiting:
        ready = [
            each
            for each in waiting
            if all(name not in graph.producer or graph.producer[name].name in done for name in each.inputs)
        ]
        chosen = draw(st.sampled_from(ready))
        waiting.remove(chosen)
        done.add(chosen.name)
        yield chosen


@st.composite
def compute_sequences(draw: st.DrawFn, graph: Graph) -> tuple[str, ...]:
    """A random executable order of the ops of `graph` with up to four recomputations anywhere after the first run."""
    computes = [each.name for each in topological_orders(draw, graph)]
    again = [name for name in computes if graph.op[name].recomputable]
    for name in draw(st.lists(st.sampled_from(again), max_size=4)) if again else ():
        computes.insert(draw(st.integers(computes.index(name) + 1, len(computes))), name)
    return tuple(computes)
