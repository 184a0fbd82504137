"""Descriptions of tensors and inputs that are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from remat_cli.pytorch.capture.weightless import split_tensor
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.ranks import part_of
from remat_cli.pytorch.unstable.tensors import contiguous_strides

# A dimension of an input: the place of the input, and that of the dimension.
Dimension = tuple[int, int]


@dataclass(frozen=True)
class Described:
    """The description of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def without_data(self) -> torch.Tensor:
        """Return such a tensor without data."""
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        return tensor.requires_grad_(self.requires_grad)

    @property
    def is_contiguous(self) -> bool:
        """Whether the tensor is contiguous."""
        strides = contiguous_strides(self.shape)
        return all(size == 1 or own == one for size, own, one in zip(self.shape, self.stride, strides, strict=True))

    def is_like(self, other: Described) -> bool:
        """Return whether another tensor differs in sizes alone."""
        same = (self.dtype, self.requires_grad, len(self.shape)) == (other.dtype, other.requires_grad, len(other.shape))
        return same and (self.stride == other.stride or (self.is_contiguous and other.is_contiguous))


@dataclass(frozen=True)
class DescribedShard:
    """The description of a DTensor.

    Attributes:
        local: description of this rank's part.
        mesh: the ranks.
        placements: split among the ranks, for each dimension of the mesh.
        shape: shape of the whole.
        stride: strides of the whole.
        requires_grad: whether it needs a gradient.
    """

    local: Described
    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]
    requires_grad: bool

    def without_data(self) -> torch.Tensor:
        """Return such a tensor without data."""
        whole = self.shape, self.stride
        return split_tensor(self.local.without_data(), self.mesh, self.placements, *whole).requires_grad_(
            self.requires_grad
        )


def described(value: Any) -> Any:
    """Return the description of a tensor; other values unchanged."""
    if isinstance(value, DTensor):
        whole = value.shape, value.stride(), value.requires_grad
        return DescribedShard(described(part_of(value)), value.device_mesh, value.placements, *whole)
    if isinstance(value, torch.Tensor):
        return Described(tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    return value


@dataclass(frozen=True)
class Inputs:
    """The described arguments of a model's call.

    Numbers are described by their type alone, as they may count steps.

    Attributes:
        leaves: the inputs.
        structure: structure of the arguments.
        autocast: whether autocast is on, and its element type.
    """

    leaves: tuple[Any, ...]
    structure: str
    autocast: tuple[bool, torch.dtype]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str) -> Inputs:
        """Return the description of arguments.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            device: kind of their device.
        """
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        return cls(tuple(map(_by_kind, leaves)), str(structure), autocast)

    @property
    def numel(self) -> int:
        """The number of elements of all inputs."""
        return sum(prod(leaf.shape) for leaf in self.leaves if isinstance(leaf, Described))

    def differing(self, other: Inputs) -> frozenset[Dimension] | None:
        """Return the dimensions in which other inputs have other sizes.

        None if they differ in more than sizes.
        """
        if (self.structure, self.autocast) != (other.structure, other.autocast):
            return None
        dimensions: set[Dimension] = set()
        for place, (one, another) in enumerate(zip(self.leaves, other.leaves, strict=True)):
            if one == another:
                continue
            if not (isinstance(one, Described) and isinstance(another, Described) and one.is_like(another)):
                return None
            sizes = enumerate(zip(one.shape, another.shape, strict=True))
            dimensions |= {(place, dimension) for dimension, (a, b) in sizes if a != b}
        return frozenset(dimensions)

    def is_within(self, other: Inputs, dimensions: frozenset[Dimension]) -> bool:
        """Return whether other inputs differ only by larger sizes.

        Only these dimensions may be larger. Torch captures sizes of 0 and 1 separately.
        """
        differing = self.differing(other)
        if differing is None or not differing <= dimensions:
            return False
        return all(2 <= self.leaves[at].shape[of] < other.leaves[at].shape[of] for at, of in differing)


def _by_kind(value: Any) -> Any:
    value = described(value)
    return (
        value if value is None or isinstance(value, Described | DescribedShard | bool | str) else type(value).__name__
    )
