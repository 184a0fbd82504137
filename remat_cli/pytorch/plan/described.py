"""What stands for tensors that are gone, and for what a model was called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement
from torch.utils import _pytree as pytree

from remat_cli.pytorch.capture.weightless import split_tensor

# A dimension of an input: the place of the input, and that of the dimension.
Dimension = tuple[int, int]


@dataclass(frozen=True)
class Described:
    """What stands for a tensor once it is gone."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def made(self) -> torch.Tensor:
        """Return such a tensor without data."""
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        return tensor.requires_grad_(self.requires_grad)

    @property
    def is_contiguous(self) -> bool:
        """Whether it has its numbers one after another."""
        strides = make_contiguous_strides_for(self.shape)
        return all(size == 1 or own == one for size, own, one in zip(self.shape, self.stride, strides, strict=True))

    def is_like(self, other: Described) -> bool:
        """Tell whether another tensor differs in sizes alone."""
        same = (self.dtype, self.requires_grad, len(self.shape)) == (other.dtype, other.requires_grad, len(other.shape))
        return same and (self.stride == other.stride or (self.is_contiguous and other.is_contiguous))


@dataclass(frozen=True)
class DescribedShard:
    """What stands for a DTensor once it is gone.

    Attributes:
        local: what this rank holds of it.
        mesh: the ranks.
        placements: how it is split among them, for each dimension of the mesh.
        shape: of the whole.
        stride: of the whole.
        requires_grad: whether it needs a gradient.
    """

    local: Described
    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]
    requires_grad: bool

    def made(self) -> torch.Tensor:
        """Return such a tensor without data."""
        whole = self.shape, self.stride
        return split_tensor(self.local.made(), self.mesh, self.placements, *whole).requires_grad_(self.requires_grad)


def described(value: Any) -> Any:
    """Return what stands for a tensor; any other value as it is."""
    if isinstance(value, DTensor):
        whole = value.shape, value.stride(), value.requires_grad
        return DescribedShard(described(value._local_tensor), value.device_mesh, value.placements, *whole)
    if isinstance(value, torch.Tensor):
        return Described(tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    return value


@dataclass(frozen=True)
class Inputs:
    """What a model is called with, described; of a number only that it is one, as it may count steps.

    Attributes:
        leaves: the inputs.
        structure: what they are in.
        autocast: whether it is on, and its element type.
    """

    leaves: tuple[Any, ...]
    structure: str
    autocast: tuple[bool, torch.dtype]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str) -> Inputs:
        """Return what stands for inputs.

        Args:
            args: by position.
            kwargs: by name.
            device: kind of device that they are on.
        """
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        return cls(tuple(map(_by_kind, leaves)), str(structure), autocast)

    @property
    def numel(self) -> int:
        """How many numbers the inputs have together."""
        return sum(prod(leaf.shape) for leaf in self.leaves if isinstance(leaf, Described))

    def differing(self, other: Inputs) -> frozenset[Dimension] | None:
        """Return the dimensions in which others have other sizes; None where they differ in more than that."""
        if (self.structure, self.autocast) != (other.structure, other.autocast):
            return None
        found: set[Dimension] = set()
        for place, (one, another) in enumerate(zip(self.leaves, other.leaves, strict=True)):
            if one == another:
                continue
            if not (isinstance(one, Described) and isinstance(another, Described) and one.is_like(another)):
                return None
            sizes = enumerate(zip(one.shape, another.shape, strict=True))
            found |= {(place, dimension) for dimension, (a, b) in sizes if a != b}
        return frozenset(found)

    def is_within(self, other: Inputs, dimensions: frozenset[Dimension]) -> bool:
        """Tell whether others are the same but for larger sizes in some dimensions.

        Torch captures sizes of 0 and 1 by themselves.
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
