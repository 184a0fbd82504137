"""Descriptions of inputs tell which calls may share a capture."""

from __future__ import annotations

from itertools import permutations

import torch

from remat_cli.pytorch.plan.described import Inputs, described


def test_tensors_are_alike_that_differ_in_sizes_alone() -> None:
    x = described(torch.ones(4, 6))
    assert x.is_like(described(torch.ones(8, 3)))
    assert x.is_like(described(torch.ones(4, 12)[:, :6].clone()))
    for other in (
        torch.ones(4, 12)[:, :6],
        torch.ones(6, 4).t(),
        torch.ones(4, 6, dtype=torch.float64),
        torch.ones(4, 6, requires_grad=True),
        torch.ones(4, 6, 1),
    ):
        assert not x.is_like(described(other))
    assert described(torch.ones(4, 12)[:, :6]).is_like(described(torch.ones(7, 12)[:, :6]))


def test_dimensions_of_one_may_have_any_stride() -> None:
    assert described(torch.ones(3, 4)[:, :1].as_strided((1, 4), (9, 1))).is_contiguous
    assert not described(torch.ones(3, 8).as_strided((2, 4), (9, 1))).is_contiguous


def test_sizes_of_two_are_within_larger_ones_and_sizes_of_one_are_not() -> None:
    sizes = {size: Inputs.of((torch.ones(size, 3),), {}, "cpu") for size in (1, 2, 9)}
    rows = frozenset({(0, 0)})
    assert [size for size in sizes if sizes[size].is_within(sizes[9], rows)] == [2, 9]
    assert not sizes[2].is_within(sizes[9], frozenset())
    assert sizes[2].is_within(sizes[2], frozenset())


def test_other_arguments_and_another_autocast_are_another_capture() -> None:
    x = torch.ones(4, 6)
    plain = Inputs.of((x,), {}, "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = Inputs.of((x,), {}, "cpu")
    for one, other in permutations((plain, cast, Inputs.of((), {"x": x}, "cpu"), Inputs.of((x, x), {}, "cpu")), 2):
        assert one.differing(other) is None
    assert plain.differing(Inputs.of((torch.ones(4, 7),), {}, "cpu")) == frozenset({(0, 1)})


def test_a_description_makes_a_tensor_without_data_and_leaves_numbers_alone() -> None:
    tensor = torch.ones(4, 6, requires_grad=True)[:, ::2].detach().requires_grad_()
    again = described(tensor).without_data()
    assert (again.shape, again.stride(), again.dtype, again.requires_grad) == (
        tensor.shape, tensor.stride(), tensor.dtype, True,
    )  # fmt: skip
    assert again.device.type == "meta"
    assert described(3) == 3
