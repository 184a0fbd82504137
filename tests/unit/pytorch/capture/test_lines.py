"""Three readings on one line are followed to the model with more blocks; three that are not tell nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from remat_cli.core.graph import Graph, Kind, Op, Phase, Tensor, build_graph
from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.formats.reader import Reading
from remat_cli.pytorch.capture.lines import followed


def counted(kind: str, number: int) -> str:
    return f"{kind}_{number}" if number else kind


def reading(blocks: int, name: Callable[[int], str] = lambda block: f"layers.{block}.weight") -> Reading:
    """Return what is read of a chain of products: in each block one forward, and two backward in the other order."""
    weights = [Tensor(name(block), 7) for block in range(blocks)]
    products = [counted("mm", number) for number in range(3 * blocks)]
    forward, backward = ["x", *products[:blocks]], products[blocks:]
    ops = [
        Op(forward[n + 1], "mm", (forward[n], name(n)), (forward[n + 1],), 0, module=f"layers.{n}")
        for n in range(blocks)
    ]
    ops.append(Op("boundary", "Boundary", (forward[-1],), ("tangents_1",), 0, phase=Phase.BACKWARD))
    gradient = "tangents_1"
    for number, block in enumerate(reversed(range(blocks))):
        of_weight, of_input = backward[2 * number : 2 * number + 2]
        for own, read in ((of_weight, forward[block]), (of_input, name(block))):
            ops.append(Op(own, "mm", (gradient, read), (own,), 0, phase=Phase.BACKWARD, grad_of=forward[block + 1]))
        gradient = of_input
    made = [Tensor(of.outputs[0], 5) for of in ops]
    graph = build_graph(
        name="chain",
        kind=Kind.TRAINING,
        time_unit="unit",
        resident_bytes=0,
        tensors=(*weights, Tensor("x", 3), *made),
        ops=ops,
        outputs=[forward[-1], *reversed(backward[::2])],
    )
    operators = {
        op.name: Operator(op.type, (operand(op.inputs[0]),), (operand(op.name),), {"scale": 0.5}) for op in ops
    }
    return Reading(graph, operators, tuple(operand(weight.name) for weight in weights))


def operand(name: str) -> Operand:
    return Operand(name, Role.ACTIVATION, (1, 5), "bfloat16", 5)


def contents(graph: Graph) -> tuple[object, ...]:
    return graph.ops, [*graph.tensors.items()], graph.outputs


@pytest.mark.parametrize("blocks", [4, 5, 9, 120])
def test_lines_are_followed(blocks: int) -> None:
    found, whole = followed([reading(4), reading(5), reading(6)], blocks - 4), reading(blocks)
    assert found is not None
    assert contents(found.graph) == contents(whole.graph)
    assert found.operators == whole.operators
    assert found.parameters == whole.parameters
    assert found.gradients == whole.gradients


def test_model_that_does_not_grow_stays_as_it_is() -> None:
    found = followed([reading(4)] * 3, 50)
    assert found is not None
    assert contents(found.graph) == contents(reading(4).graph)


@pytest.mark.parametrize(
    "name",
    [lambda block: f"layers.{block * block}.weight", lambda block: f"layers.{'odd' if block % 2 else 'even'}{block}"],
    ids=["on a parabola", "not of one form"],
)
def test_names_on_no_line_are_not_followed(name: Callable[[int], str]) -> None:
    assert followed([reading(blocks, name) for blocks in (4, 5, 6)], 10) is None


def test_third_reading_must_meet_the_line() -> None:
    last = reading(6)
    another = replace(last.graph.ops[-1], recomputable=False)
    other = replace(last, graph=replace(last.graph, ops=(*last.graph.ops[:-1], another)))
    assert followed([reading(4), reading(5), other], 10) is None
    assert followed([reading(4), reading(6), reading(7)], 10) is None
    assert followed([reading(6), reading(5), reading(4)], 10) is None
