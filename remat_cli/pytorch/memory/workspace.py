"""The workspace of the kernels of a step in eager mode: each kind of call is run alone on the CPU.

Calls on many images are run with fewer, as their workspace grows evenly with the number of images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from remat_cli.pytorch.capture.eager import KernelCall, TensorLayout
from remat_cli.pytorch.memory.measure import workspaces_of
from remat_cli.pytorch.unstable import pytree

# A call is run on operands up to this size. Larger ones take as long as a part of the step, and memory.
_MOST_BYTES = 1 << 23
# Two images of a convolution or norm may be larger, up to this size.
_MOST_IMAGES_BYTES = 1 << 27
_FEWEST_IMAGES = 2
# Positions of the operands whose first dimension counts images.
_BY_IMAGES: Mapping[Any, tuple[int, ...]] = {
    torch.ops.aten.convolution.default: (0,),
    torch.ops.aten.convolution_backward.default: (0, 1),
    torch.ops.aten.native_batch_norm_backward.default: (0, 1),
}
_known: dict[str, int] = {}  # by the kind of call


def kernel_workspace(calls: Mapping[str, KernelCall]) -> dict[str, int]:
    """Return the workspace of each call in bytes; calls that are too large to be run are left out.

    Args:
        calls: calls on the CPU, by the op's name.
    """
    parts = {call.kind: _parts(call) for call in calls.values() if call.kind not in _known}
    tried = {part.kind: part for several in parts.values() for part in several}
    taken = _taken(tried.values())
    # A first run may set up more than others.
    taken |= _taken(tried[kind] for kind, size in taken.items() if size)
    for kind, several in parts.items():
        sizes = [taken[part.kind] for part in several]
        if len(sizes) == 1:
            _known[kind] = sizes[0]
        elif sizes:
            (whole, *_), (small, large) = [_images(call) for call in _with_kind(calls, kind)], map(_images, several)
            _known[kind] = sizes[1] + (sizes[1] - sizes[0]) * (whole - large) // (large - small)
    return {name: _known[call.kind] for name, call in calls.items() if call.kind in _known}


def _with_kind(calls: Mapping[str, KernelCall], kind: str) -> Iterable[KernelCall]:
    return (call for call in calls.values() if call.kind == kind)


def _parts(call: KernelCall) -> Sequence[KernelCall]:
    """Return the calls to run: the call itself, or two with fewer images; none where these are too large."""
    size = _bytes(call)
    if size <= _MOST_BYTES:
        return (call,)
    if call.function not in _BY_IMAGES:
        return ()
    images = _images(call)
    large = max(_FEWEST_IMAGES + 1, images * _MOST_BYTES // size)
    if large >= images or size * large // images > _MOST_IMAGES_BYTES:
        return ()
    return tuple(_with_images(call, count) for count in (max(_FEWEST_IMAGES, large // 2), large))


def _bytes(call: KernelCall) -> int:
    leaves = pytree.tree_leaves((call.args, dict(call.kwargs)))
    return sum(prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves if isinstance(leaf, TensorLayout))


def _images(call: KernelCall) -> int:
    images: int = call.args[0].shape[0]
    return images


def _with_images(call: KernelCall, count: int) -> KernelCall:
    positions = _BY_IMAGES[call.function]
    args = tuple(
        replace(value, shape=(count, *value.shape[1:])) if position in positions else value
        for position, value in enumerate(call.args)
    )
    return KernelCall(call.function, args, call.kwargs, kind=f"{call.kind} of {count}")


def _taken(calls: Iterable[KernelCall]) -> dict[str, int]:
    return workspaces_of({call.kind: (call.function, *_on_meta(call)) for call in calls}, "cpu")


def _on_meta(call: KernelCall) -> Any:
    def tensor(layout: TensorLayout) -> torch.Tensor:
        return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="meta")

    return pytree.tree_map_only(TensorLayout, tensor, (call.args, dict(call.kwargs)))
