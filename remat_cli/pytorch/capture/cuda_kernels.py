"""The kernels of CUDA on tensors without data: what each saves, by torch's rules.

Torch runs a step on fake tensors of CUDA only if it was built for CUDA. So the step runs on those of the CPU, and ops
that are other kernels on CUDA are called in their place: torch knows what they return and save on any device.
The rules are those of ATen: native/transformers/cuda/sdp_utils.cpp and attention.cpp, native/Dropout.cpp,
native/cuda/layer_norm_kernel.cu, autocast_mode.h, cuda/CUDABlas.cpp; flash_api.cpp for the backward pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from remat_cli.core.allocator import rounded
from remat_cli.pytorch.unstable.ops import name_of
from remat_cli.pytorch.unstable.overrides import (
    EFFICIENT_ATTENTION,
    FLASH_ATTENTION,
    FLASH_ATTENTION_BACKWARD,
    MATH_ATTENTION,
    RMS_NORM,
    RMS_NORM_BACKWARD,
    autocast_of_cuda_on_cpu,
    below_autograd,
    overridden,
)
from remat_cli.units import format_bytes

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_AMPERE, _HOPPER, _BLACKWELL = 8, 9, 10
_MOST_OF_HEAD = 256  # flash attention takes no larger heads
_MASK_ALIGNMENT = 8  # in elements, of a mask's rows
# Workspace of a handle of cuBLAS, by torch's default. One thread runs the forward pass, another the backward pass, and
# each has a handle.
_CUBLAS_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
_CUBLAS_BYTES_FROM_HOPPER = 4096 * 8 * 1024
_BY_CUBLAS = frozenset({"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"})
# Kernels that are other ones on CUDA, and are counted as the CPU's.
_AS_ON_CPU = ("mkldnn_rnn_layer", "convolution")
# Ops that autocast for CUDA runs in float32: those of its table that models have in training.
_IN_FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh"),
    *("tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm"),
    *("group_norm", "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss"),
    *("nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss"),
    *("binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d"),
    *("upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
    *("upsample_bicubic2d", "upsample_nearest2d.vec", "upsample_bilinear2d.vec", "upsample_bicubic2d.vec"),
)
# Of these it sets the result's element type, unless the caller does.
_WITH_DTYPE = ("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList")


@dataclass(frozen=True)
class CudaKernels:
    """The kernels that torch runs on NVIDIA's GPUs.

    Attributes:
        capability: compute capability of the GPU, major and minor.
    """

    capability: tuple[int, int]

    @classmethod
    def of(cls, compute_capability: float) -> CudaKernels | None:
        """Return the kernels for a capability such as 9.0; None for 0, which is no GPU of NVIDIA."""
        if not compute_capability:
            return None
        major = int(compute_capability)
        return cls((major, round((compute_capability - major) * 10)))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Have torch call CUDA's kernels for tensors of the CPU."""
        functions: dict[str, Callable[..., Any]] = {
            "dropout": _dropout,
            "scaled_dot_product_attention": self._attention,
            "_fused_rms_norm": _RmsNorm.applied,
        }
        casts: dict[str, Callable[..., Any]] = {
            **{name: partial(_cast_to_float32, _overload(name)) for name in _IN_FLOAT32},
            **{name: partial(_returned_in_float32, _overload(name)) for name in _WITH_DTYPE},
        }
        with (
            overridden(functions, "AutogradCPU"),
            overridden(casts, "AutocastCPU"),
            autocast_of_cuda_on_cpu(),
        ):
            yield

    def attention_kernel(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        masked: bool,
        causal: bool,
        dropout: float,
    ) -> str:
        """Return the implementation that torch chooses for attention: "flash", "efficient" or "math".

        cuDNN's, which newer GPUs prefer, saves what flash attention saves, and is called "flash".
        """
        given = (query, key, value)
        backends = torch.backends.cuda
        if any(item.dim() != len("NHLE") or not item.numel() or item.stride(-1) != 1 for item in given):
            return "math"
        if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
            return "math"
        sizes = {item.shape[-1] for item in given}
        half = query.dtype in _HALF and (query.dtype == torch.float16 or self.capability[0] >= _AMPERE)
        lengths = query.shape[-2], key.shape[-2]
        if (
            (backends.flash_sdp_enabled() or backends.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]
            and self.capability[0] >= _AMPERE
            and half
            and not masked
            and len(sizes) == 1
            and max(sizes) <= self._most_of_head(dropout)
            and query.shape[1] % key.shape[1] == 0
            and (not causal or lengths[0] == lengths[1])
        ):
            return "flash"
        alignment = self._alignment(query.dtype)
        if (
            backends.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
            and (half or query.dtype == torch.float32)
            and query.shape[1] == key.shape[1]
            and query.shape[-1] == key.shape[-1]
            and not any(size % alignment for size in sizes)
        ):
            return "efficient"
        return "math"

    def _most_of_head(self, dropout: float) -> int:
        """Return the largest heads that flash attention trains."""
        if self.capability in ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1)) and dropout:
            return 192
        return _MOST_OF_HEAD

    def _alignment(self, dtype: torch.dtype) -> int:
        """Return what memory-efficient attention wants heads to be a multiple of."""
        if dtype in _HALF:
            return 8
        return 4 if self.capability[0] >= _AMPERE else 1

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        kernel = self.attention_kernel(
            query, key, value, masked=attn_mask is not None, causal=is_causal, dropout=dropout_p
        )
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = zeros.masked_fill_(attn_mask.logical_not(), -math.inf)
        if kernel == "flash":
            size = query.shape[-1]
            scale = scale or 1 / math.sqrt(size)
            padded = [functional.pad(item, (0, -size % 8)) if size % 8 else item for item in (query, key, value)]
            return FLASH_ATTENTION(*padded, dropout_p, is_causal, False, scale=scale)[0][..., :size]
        if kernel == "efficient":
            saves = any(item.requires_grad for item in (query, key, value))
            mask = None if attn_mask is None else _aligned(attn_mask, query, key)
            return EFFICIENT_ATTENTION(query, key, value, mask, saves, dropout_p, is_causal, scale=scale)[0]
        return MATH_ATTENTION(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]

    def bytes_of(self, func: Any, results: Sequence[torch.Tensor]) -> Mapping[int, int]:
        """Return the bytes of results whose size is another one on the CPU, by place among the results."""
        if func is aten.native_layer_norm.default:
            return {place: results[place].numel() * torch.float32.itemsize for place in (1, 2)}
        return {}

    def workspace_of(self, func: Any, args: Sequence[Any]) -> int:
        """Return the bytes that a kernel allocates while it runs, as far as they are known."""
        if func is not FLASH_ATTENTION_BACKWARD:
            return 0
        query, key = args[1], args[2]
        batch, heads, length, size = query.shape
        rows = rounded(length, 128)
        sums: int = batch * heads * rows * torch.float32.itemsize
        gradient = sums * rounded(size, 32 if size <= 128 else 64)
        shared: int = 2 * key.numel() // key.shape[1] * heads * key.element_size() if key.shape[1] != heads else 0
        return sums + gradient + shared

    def cublas_bytes(self, names: Counter[str]) -> int:
        """Return the workspace of a handle of cuBLAS; 0 if none of these ops needs one."""
        if not _BY_CUBLAS & names.keys():
            return 0
        return _CUBLAS_BYTES_FROM_HOPPER if self.capability[0] in (_HOPPER, _BLACKWELL) else _CUBLAS_BYTES

    def note(self, names: Counter[str], cublas_bytes: int) -> str:
        """Return a note on the ops that are other ones on CUDA.

        Args:
            names: how often each op ran.
            cublas_bytes: workspace of all handles.
        """
        there = {
            "flash attention": names[name_of(FLASH_ATTENTION)],
            "memory-efficient attention": names[name_of(EFFICIENT_ATTENTION)],
            "dropout": names["native_dropout"],
            "RMS norm": names[name_of(RMS_NORM)],
        }
        parts = [f"{name} ({count})" for name, count in there.items() if count]
        if cublas_bytes:
            parts.append(f"{format_bytes(cublas_bytes)} of workspace of cuBLAS")
        left = [name for name in _AS_ON_CPU if names[name]]
        generation = ".".join(map(str, self.capability))
        said = f"eager's kernels are those of CUDA {generation}: {', '.join(parts) or 'as on the CPU'}"
        return f"{said}; workspace is not known of {', '.join(left)}" if left else said


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _dropout(x: torch.Tensor, p: float, train: bool) -> Any:
    if not train or not 0 < p < 1 or not x.numel():
        return torch.mul(x, 0) if train and p == 1 else x
    return aten.native_dropout(x, p, True)[0]


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the mask in rows whose length is a multiple of the alignment, for all heads."""
    columns = mask.shape[-1]
    if any(stride % _MASK_ALIGNMENT for stride in mask.stride()[:-1]):
        mask = functional.pad(mask, (0, -columns % _MASK_ALIGNMENT))[..., :columns]
    return mask.expand(*query.shape[:3], key.shape[2])


class _RmsNorm(torch.autograd.Function):
    """RMS norm in one kernel: it saves its input and a factor for each row."""

    @classmethod
    def applied(cls, *args: Any) -> Any:
        return cls.apply(*args)  # type: ignore[no-untyped-call]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float | None) -> Any:
        result, factors = below_autograd(RMS_NORM, x, shape, weight, eps)
        ctx.save_for_backward(x, weight, factors)
        ctx.shape = shape
        ctx.mark_non_differentiable(factors)
        return result, factors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight, factors = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_x, of_weight = RMS_NORM_BACKWARD(gradients[0], x, ctx.shape, factors, weight, wanted)
        return of_x, None, of_weight, None


def _cast_to_float32(op: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return op(*map(_in_float32, args), **{name: _in_float32(value) for name, value in kwargs.items()})


def _in_float32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALF else value


def _returned_in_float32(op: Any, x: torch.Tensor, *args: Any, dtype: torch.dtype | None = None) -> Any:
    wanted = torch.float32 if dtype is None and x.dtype in _HALF else dtype
    with torch.autocast("cpu", enabled=False):
        return op(x, *args, dtype=wanted)
