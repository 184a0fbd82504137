"""A backward pass does no work for gradients that have not arrived."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from remat_cli.pytorch.capture.joint_capture import outputs_of
from remat_cli.pytorch.capture.pruning import without_gradients


def backward(saved: torch.Tensor, tangents_1: torch.Tensor, tangents_2: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the gradients of x, and of a weight of the second head alone."""
    first, second = tangents_1 * saved, tangents_2 * saved
    return (first + second).cos(), second.sum()


def traced() -> fx.GraphModule:
    module: fx.GraphModule = make_fx(backward)(*torch.ones(3, 2, 3))
    inputs = module.graph.find_nodes(op="placeholder")
    for node, name in zip(inputs, ("saved", "tangents_1", "tangents_2"), strict=True):
        node.target = node.name = name
    module.recompile()
    return module


def ops(module: fx.GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_a_sum_with_a_missing_gradient_is_the_other_summand() -> None:
    pruned = without_gradients(traced(), {"tangents_2"})
    assert ops(pruned) == [torch.ops.aten.mul.Tensor, torch.ops.aten.cos.default]
    saved, gradient = torch.randn(2, 3), torch.randn(2, 3)
    found, missing = pruned(saved, gradient, None)
    assert missing is None
    assert torch.equal(found, backward(saved, gradient, torch.zeros(2, 3))[0])


def test_what_has_an_effect_stays() -> None:
    module = traced()
    (cosine,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default)
    with module.graph.inserting_after(cosine):
        module.graph.call_function(torch.ops.aten.add_.Tensor, (next(iter(module.graph.nodes)), 1))
    pruned = without_gradients(module, {"tangents_1", "tangents_2"})
    assert [value for value in outputs_of(pruned.graph) if value is not None] == []
    assert ops(pruned) == [torch.ops.aten.add_.Tensor]
