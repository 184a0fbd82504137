"""FLOPs of PyTorch's ops, held against its own counter where that has a formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.costs import annotate_work, apply_costs
from remat_cli.costs.aten import aten_flops
from remat_cli.costs.model import Flops
from remat_cli.pytorch.capture.convert import graph_of, operators_of
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.reader import capture
from remat_cli.pytorch.capture.step import as_step
from remat_cli.pytorch.capture.weightless import Weightless
from tests.torch_steps import CASES, gpt

COUNTED = ("aten.mm", "aten.addmm", "aten.bmm", "aten.convolution", "aten.convolution_backward")


def operands(*shapes: tuple[int, ...] | None) -> tuple[Operand | None, ...]:
    sizes = enumerate(shapes)
    return tuple(None if size is None else Operand(f"t{n}", Role.ACTIVATION, size, "float32", 0) for n, size in sizes)


def worked(case: Callable[[], Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the graph of a case with the work of its ops, and the names of those without a formula."""
    with Weightless():
        step = as_step(case(), "case")
    joint = Joint.of(capture(step, "cpu", "case")[1])
    return annotate_work(graph_of(joint, "case"), operators_of(joint))


def convolutions() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.Conv2d(8, 8, 3, padding=1, dilation=2),
        nn.ConvTranspose2d(8, 6, 2, stride=2),
        nn.Flatten(),
        nn.Linear(6 * 10 * 10, 5),
    )

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(x).sum()
        return result

    return loss, (model, torch.randn(2, 3, 15, 15))


@pytest.mark.parametrize("case", [convolutions, gpt])
def test_contractions_are_those_of_pytorchs_counter(case: Callable[[], Any]) -> None:
    step = as_step(case(), "case")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(step.model(*step.inputs, **step.keyword_inputs))
    graph, _ = worked(case)
    ours = sum(op.flops or 0 for op in graph.ops if op.type in COUNTED)
    assert ours == counter.get_total_flops()


def test_attention_counts_on_the_cpu_too() -> None:
    graph, unknown = worked(gpt)
    products = 2 * 2 * 2 * 6 * 6 * 8  # multiply-adds of two products: batch 2, heads 2, 6 x 6 weights, size 8
    flops = {op.type: op.flops for op in graph.ops if "attention" in op.type}
    assert flops == {
        "aten._scaled_dot_product_flash_attention_for_cpu": 2 * products,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward": 5 * products,
    }
    assert unknown == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_op_of_the_cases_has_a_formula(case: Callable[[], Any]) -> None:
    graph, unknown = worked(case)
    assert unknown == ()
    assert all(op.moved_bytes is not None for op in graph.ops)
    assert apply_costs(graph, Flops()).total_time > 0


def test_embedding_reads_what_it_writes() -> None:
    def case() -> Any:
        return (lambda table, x: F.embedding(x, table.weight).sum()), (
            nn.Embedding(1000, 4),
            torch.zeros(3, dtype=torch.long),
        )

    graph, _ = worked(case)
    assert graph.op["embedding"].moved_bytes == 2 * 3 * 4 * 4 + 3 * 8


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "attributes", "flops"),
    [
        ("mm", ((2, 3), (3, 4)), ((2, 4),), {}, 48),
        ("addmm", ((4,), (2, 3), (3, 4)), ((2, 4),), {}, 48),
        ("bmm", ((5, 2, 3), (5, 3, 4)), ((5, 2, 4),), {}, 240),
        ("convolution", ((1, 2, 8, 8), (4, 2, 3, 3), None), ((1, 4, 6, 6),), {}, 2 * 144 * 18),
        ("max_pool2d_with_indices", ((1, 1, 4, 4),), ((1, 1, 2, 2), (1, 1, 2, 2)), {"kernel_size": (2, 2)}, 16),
        ("avg_pool2d", ((1, 1, 4, 4),), ((1, 1, 2, 2),), {"kernel_size": (2,)}, 16),
        ("relu", ((7,),), ((7,),), {}, 7),
        ("sum", ((7, 2),), ((2,),), {}, 14),
        ("clone", ((7,),), ((7,),), {}, 0),
        ("no_such_op", ((7,),), ((7,),), {}, None),
    ],
)
def test_formula(kind: str, inputs: Any, outputs: Any, attributes: Any, flops: int | None) -> None:
    assert aten_flops(Operator(f"aten.{kind}", operands(*inputs), operands(*outputs), attributes)) == flops
