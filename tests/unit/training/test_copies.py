"""Which operands of matrix products PyTorch copies: held against what its own `reshape` does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from remat_cli.operators import Operand
from remat_cli.training.copies import copied_operands
from tests.operators import Model, value, weight

Step = tuple[str, tuple[int, ...]]


def stepped(tensor: torch.Tensor, step: Step) -> torch.Tensor:
    type_, sizes = step
    match type_:
        case "Transpose":
            return tensor.permute(sizes)
        case "Expand":
            return tensor.expand(sizes)
        case "Slice":
            return tensor[tuple(slice(size) for size in sizes)]
        case "Gather":
            return tensor.select(sizes[0], 0)
        case _:
            return tensor.view(sizes)


# Views of a tensor of [2, 6, 12].
STEPS: list[list[Step]] = [
    [("Reshape", (2, 6, 4, 3))],
    [("Reshape", (2, 6, 4, 3)), ("Transpose", (0, 2, 1, 3))],
    [("Reshape", (2, 6, 4, 3)), ("Transpose", (0, 2, 3, 1))],
    [("Reshape", (12, 4, 1, 3)), ("Transpose", (1, 0, 2, 3))],
    [("Reshape", (1, 12, 4, 3)), ("Transpose", (0, 2, 1, 3))],
    [("Transpose", (0, 2, 1))],
    [("Transpose", (1, 0, 2))],
    [("Transpose", (1, 0, 2)), ("Reshape", (6, 2, 4, 3)), ("Transpose", (1, 2, 0, 3))],
    [("Slice", (2, 4, 12))],
    [("Slice", (1, 4, 12))],
    [("Slice", (2, 6, 4)), ("Reshape", (2, 6, 2, 2))],
    [("Reshape", (2, 6, 1, 12)), ("Expand", (2, 6, 5, 12))],
    [("Reshape", (2, 1, 6, 12)), ("Expand", (2, 5, 6, 12))],
    [("Reshape", (2, 6, 3, 4)), ("Transpose", (2, 0, 1, 3)), ("Gather", (0,))],
    [("Reshape", (2, 6, 3, 2, 2)), ("Transpose", (2, 0, 3, 1, 4)), ("Gather", (0,))],
]


def viewed(model: Model, steps: Sequence[Step]) -> tuple[Operand, torch.Tensor]:
    """Add views of an activation to a model; return the last, and what PyTorch makes of it."""
    tensor = torch.zeros(2, 6, 12)
    base = made = model.add("MatMul", [value("in", 2, 6, 12), weight("w", 12, 12)], value("base", 2, 6, 12))
    for number, step in enumerate(steps):
        tensor = stepped(tensor, step)
        attributes = {"perm": step[1]} if step[0] == "Transpose" else {"axis": step[1][0]}
        shape = tuple(tensor.shape)
        made = model.add(step[0], [made], value(f"step{number}", *shape), view_of=base, attributes=attributes)
    return made, tensor


@pytest.mark.parametrize("steps", STEPS)
def test_heads_that_are_no_stack_in_memory_are_copied(steps: Sequence[Step]) -> None:
    model = Model()
    made, tensor = viewed(model, steps)
    y = value("y", *tensor.shape[:-1], tensor.shape[-2])
    model.add("MatMul", [made, value("other", *tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2])], y)
    stack = tensor.reshape(-1, *tensor.shape[-2:])
    copied = stack.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    found = copied_operands(model.graph(), model.operators)
    assert {name: list(copies) for name, copies in found.items()} == ({"MatMul.y": [made.name]} if copied else {})


@pytest.mark.parametrize("steps", STEPS)
def test_each_linear_layer_keeps_a_copy_of_what_is_no_matrix_in_memory(steps: Sequence[Step]) -> None:
    model = Model()
    made, tensor = viewed(model, steps)
    storages: set[int] = set()
    linear = torch.nn.Linear(tensor.shape[-1], 3)
    own = {one.untyped_storage().data_ptr() for one in (tensor, *linear.parameters())}

    def pack(kept: torch.Tensor) -> torch.Tensor:
        storages.add(kept.untyped_storage().data_ptr())
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        held = linear(tensor), linear(tensor)
    del held
    layers = [model.add("MatMul", [made, weight(f"v{n}", tensor.shape[-1], 3)], value(f"y{n}", *tensor.shape[:-1], 3))
              for n in range(2)]  # fmt: skip
    found = copied_operands(model.graph(), model.operators)
    assert {name: list(copies) for name, copies in found.items()} == {
        f"MatMul.{layer.name}": [made.name] for layer in layers if storages - own
    }
    assert len(storages - own) == sum(map(len, found.values()))


def test_a_single_matrix_is_not_copied() -> None:
    model = Model()
    x = model.add("MatMul", [value("in", 6, 2), weight("w", 2, 4)], value("x", 6, 4))
    turned = model.add("Transpose", [x], value("turned", 4, 6), view_of=x, attributes={"perm": (1, 0)})
    model.add("MatMul", [turned, weight("v", 6, 3)], value("y", 4, 3))
    assert copied_operands(model.graph(), model.operators) == {}
