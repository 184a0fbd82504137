"""Which operands of matrix products PyTorch copies: held against what its own `reshape` does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from remat_cli.core.operators import Operand
from remat_cli.training.copies import copied_operands
from tests.operators import Model, constant, value, weight

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


# Equations with the shapes of two operands, and for each the order in which its axes lie in memory.
EINSUMS = [
    ("bsd,edf->bsef", (2, 8, 6), (0, 1, 2), (4, 6, 10), (0, 1, 2)),
    ("bsec,bsd->becd", (2, 8, 4, 3), (0, 1, 2, 3), (2, 8, 6), (0, 1, 2)),
    ("bsec,becd->bsd", (2, 8, 4, 3), (0, 1, 2, 3), (2, 4, 3, 6), (0, 1, 2, 3)),
    ("bclhn,bcshn->bclsh", (2, 2, 4, 8, 3), (0, 1, 2, 3, 4), (2, 2, 4, 8, 3), (0, 1, 2, 3, 4)),
    ("bzch,bzhpn->bchpn", (2, 3, 5, 8), (0, 1, 2, 3), (2, 3, 8, 4, 6), (0, 1, 2, 3, 4)),
    ("bqhd,bkhd->bhqk", (2, 5, 4, 6), (0, 1, 2, 3), (2, 7, 4, 6), (0, 2, 1, 3)),
    ("bhqk,bkhd->bqhd", (2, 4, 5, 6), (0, 1, 2, 3), (2, 6, 4, 7), (0, 2, 1, 3)),
    ("bij,bjk", (2, 3, 4), (0, 1, 2), (2, 4, 5), (0, 1, 2)),
    ("abc,abd->bd", (2, 3, 4), (0, 1, 2), (2, 3, 5), (0, 1, 2)),
    ("ab,bc->abc", (2, 3), (0, 1), (3, 4), (0, 1)),
    ("abc,bcd->ad", (2, 3, 1), (0, 1, 2), (3, 1, 4), (1, 0, 2)),
    ("...qhd,...khd->...hqk", (2, 5, 4, 6), (0, 1, 2, 3), (2, 7, 4, 6), (0, 2, 1, 3)),
    ("...ij,...jk", (2, 3, 4), (0, 1, 2), (2, 4, 5), (1, 0, 2)),
    ("...ij,jk->...ik", (2, 3, 5, 4), (0, 2, 1, 3), (4, 6), (0, 1)),
    ("i...,i...j->...j", (3, 2), (0, 1), (3, 4, 2, 5), (0, 1, 2, 3)),
    ("a...,b...->ab", (3, 2), (1, 0), (4, 2), (0, 1)),
]


@pytest.mark.parametrize(("equation", "first", "first_order", "second", "second_order"), EINSUMS)
def test_einsum_keeps_the_copies_that_pytorch_makes(
    equation: str,
    first: tuple[int, ...],
    first_order: tuple[int, ...],
    second: tuple[int, ...],
    second_order: tuple[int, ...],
) -> None:
    model = Model()
    operands: list[Operand] = []
    tensors: list[torch.Tensor] = []
    for name, shape, order in (("a", first, first_order), ("b", second, second_order)):
        base = value(f"{name}_base", *(shape[axis] for axis in order))
        made = model.add("Relu", [value(f"{name}_in", *base.shape or ())], base)
        axes = tuple(order.index(axis) for axis in range(len(order)))
        attributes = {"perm": axes}
        operands.append(model.add("Transpose", [made], value(name, *shape), view_of=base, attributes=attributes))
        tensors.append(torch.zeros(base.shape or (), requires_grad=True).permute(axes))
    own = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that nothing else comes to lie there
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = torch.einsum(equation, *tensors)
    y = model.add("Einsum", operands, value("y", *result.shape), attributes={"equation": equation})
    # How the result lies in memory tells whether the next product copies it.
    columns = result.shape[-1]
    model.add("MatMul", [y, weight("w", columns, 3)], value("z", *result.shape[:-1], 3))
    found = copied_operands(model.graph(), model.operators)
    copies = [copy.bytes for copy in found.get("Einsum.y", {}).values()]
    assert sorted(copies) == sorted(kept[storage].untyped_storage().nbytes() for storage in kept.keys() - own)
    flat = result.reshape(-1, columns)
    is_copied = result.ndim > 2 and flat.untyped_storage().data_ptr() != result.untyped_storage().data_ptr()
    assert bool(found.get("MatMul.z")) == is_copied


@pytest.mark.parametrize("in_row_major_order", [True, False])
def test_the_result_of_attention_is_copied_where_its_queries_are_in_row_major_order(in_row_major_order: bool) -> None:
    model = Model()
    shape, turned = (2, 4, 6, 3), {"perm": (0, 2, 1, 3)}
    tensor = torch.zeros(shape if in_row_major_order else (2, 6, 4, 3))
    query = made = model.add("Relu", [value("in", *tensor.shape)], value("made", *tensor.shape))
    if not in_row_major_order:
        tensor = tensor.transpose(1, 2)
        query = model.add("Transpose", [made], value("turned", *shape), view_of=made, attributes=turned)
        query = model.add("Mul", [query, constant("scale")], value("scaled", *shape))
    y = model.add("Attention", [query, value("k", *shape), value("v", *shape)], value("y", *shape))
    back = model.add("Transpose", [y], value("back", 2, 6, 4, 3), view_of=y, attributes=turned)
    rows = model.add("Reshape", [back], value("rows", 2, 6, 12), view_of=y)
    for n in range(2):
        model.add("MatMul", [rows, weight(f"w{n}", 12, 3)], value(f"z{n}", 2, 6, 3))
    result = torch.nn.functional.scaled_dot_product_attention(tensor, torch.zeros(shape), torch.zeros(shape))
    reshaped = result.transpose(1, 2).reshape(2, 6, 12)
    assert (reshaped.untyped_storage().data_ptr() != result.untyped_storage().data_ptr()) is in_row_major_order
    # Both layers read one copy.
    expected = {"MatMul.z0": ["rows"]} if in_row_major_order else {}
    assert {op: list(copies) for op, copies in copied_operands(model.graph(), model.operators).items()} == expected


def test_a_single_matrix_is_not_copied() -> None:
    model = Model()
    x = model.add("MatMul", [value("in", 6, 2), weight("w", 2, 4)], value("x", 6, 4))
    turned = model.add("Transpose", [x], value("turned", 4, 6), view_of=x, attributes={"perm": (1, 0)})
    model.add("MatMul", [turned, weight("v", 6, 3)], value("y", 4, 3))
    assert copied_operands(model.graph(), model.operators) == {}
