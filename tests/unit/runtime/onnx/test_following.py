"""Random models and random schedules: the same bits, in the scheduled order, in the predicted memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Compute, Inplace, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.runtime.onnx.node_order import without_dead_ops
from tests.unit.formats.onnx.models import Model, float_input, integers, node, value, weight
from tests.unit.runtime.onnx.memory import memory_bytes
from tests.unit.runtime.onnx.rewriting import assert_follows, planned, rewritten

UNARY = ("Neg", "Exp", "Relu", "Sigmoid", "Identity", "HardSwish", "Mish", "Softplus")
KINDS = (*UNARY, "Add", "Split", "Flat", "Sized")
ROWS, COLUMNS = 4, 64


@st.composite
def models(draw: st.DrawFn) -> Model:
    """A model whose values are all [4, 64] or their flat views; some of the values are outputs."""
    nodes: list[onnx.NodeProto] = []
    full = ["x"]
    for number in range(draw(st.integers(3, 9))):
        kind = draw(st.sampled_from(KINDS))
        source = draw(st.sampled_from(full[-4:]))
        made = f"v{number}"
        if kind in UNARY:
            nodes.append(node(kind, [source], [made], f"{kind}{number}"))
        elif kind == "Add":
            nodes.append(node("Add", [source, draw(st.sampled_from(full))], [made], f"Add{number}"))
        elif kind == "Split":
            halves = [f"h{number}", f"k{number}"]
            nodes.append(node("Split", [source], halves, f"Split{number}", axis=1, num_outputs=2))
            nodes.append(node("Concat", draw(st.permutations(halves)), [made], f"Join{number}", axis=1))
        elif kind == "Flat":
            nodes.append(node("Reshape", [source, "flat"], [f"f{number}"], f"Flat{number}"))
            inner = draw(st.sampled_from(["Neg", "Relu", "Identity"]))
            nodes.append(node(inner, [f"f{number}"], [f"g{number}"], f"{inner}{number}"))
            nodes.append(node("Reshape", [f"g{number}", "dims"], [made], f"Back{number}"))
        else:
            nodes.append(node("Shape", [source], [f"s{number}"], f"Shape{number}"))
            nodes.append(node("Expand", ["row", f"s{number}"], [made], f"Expand{number}"))
        full.append(made)
    read = {name for one in nodes for name in one.input}
    ends = [name for one in nodes for name in one.output if name not in read]
    outputs = sorted({*ends[-2:], *draw(st.lists(st.sampled_from(full[1:]), max_size=1))})
    return Model(
        nodes,
        inputs=[float_input("x", ROWS, COLUMNS)],
        outputs=outputs,
        stored=[integers("flat", -1), integers("dims", ROWS, COLUMNS), weight("row", 1, COLUMNS)],
    )


@st.composite
def schedules(draw: st.DrawFn, graph: Graph) -> list[str]:
    """A random order of the ops, some of them run again later."""
    made = set(graph.inputs)
    left = list(graph.ops)
    computes: list[str] = []
    while left:
        ready = [one for one in left if set(one.inputs) <= made]
        op = draw(st.sampled_from(ready))
        left.remove(op)
        made |= set(op.outputs)
        computes.append(op.name)
        for _ in range(draw(st.integers(0, 2)) if len(computes) < 25 else 0):
            computes.append(draw(st.sampled_from(computes)))
    return computes


@given(st.data())
def test_random_schedules_of_random_models(data: st.DataObject) -> None:
    model = data.draw(models())
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = model.save(folder)
        graph = planned(path)
        computes = data.draw(schedules(graph))
        result = rewritten(path, computes)
        assert_follows(result, model.proto(), folder)
        graph = without_dead_ops(graph)
        computes = [name for name in computes if name in graph.op]
        schedule = with_frees(graph, computes)
        steps = zip(schedule.steps, simulate(graph, schedule).memory_bytes[1:], strict=True)
        predicted = [size - graph.fixed_bytes for step, size in steps if isinstance(step, Compute | Inplace)]
        memory = memory_bytes(result.proto)
        names = [one.name for one in result.proto.graph.node]
        found = [memory[name] for name, place in zip(names, result.positions, strict=True) if place is not None]
        if _makes_an_output_again(graph, computes):
            # An instance that is not handed out may be a view, or overwrite another.
            assert all(one <= other for one, other in zip(found, predicted, strict=True))
        else:
            assert found == predicted


def _makes_an_output_again(graph: Graph, computes: Sequence[str]) -> bool:
    makers = {graph.producer[name].name for name in graph.outputs if name in graph.producer}
    return any(computes.count(name) > 1 for name in makers)


def test_the_oracle_knows_that_unread_values_stay(tmp_path: Path) -> None:
    split = node("Split", ["x"], ["a", "b"], "split", axis=1, num_outputs=2)
    model = Model(
        [split, node("Concat", ["a", "a", "a"], ["y"], "join", axis=1), node("Neg", ["y"], ["z"], "neg")],
        inputs=[float_input("x", 1, 8)],
        outputs=["z"],
        declared=[value("a", [1, 4]), value("b", [1, 4]), value("y", [1, 12])],
    ).proto()
    model.graph.output[0].CopyFrom(value("z", [1, 12]))
    assert memory_bytes(model) == {"split": 32, "join": 16 + 16 + 48, "neg": 16 + 48 + 48}
