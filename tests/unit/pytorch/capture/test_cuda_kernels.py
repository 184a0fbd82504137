"""What CUDA's kernels save, on tensors without data; expected figures are those of torch's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from remat_cli.config import GraphOptions
from remat_cli.formats.reader import ReadOptions
from remat_cli.pytorch.capture.cuda_kernels import CudaKernels
from remat_cli.pytorch.capture.eager import EagerStep, run_eagerly
from remat_cli.studies.eager import kernels_of

AMPERE, HOPPER, VOLTA = CudaKernels((8, 0)), CudaKernels((9, 0)), CudaKernels((7, 0))
BATCH, HEADS, LENGTH, SIZE = 2, 4, 100, 64
CUBLAS, CUBLAS_OF_HOPPER = 8_519_680, 33_554_432  # as torch.cuda.memory_allocated shows them after a first product


class Called(nn.Module):
    """A step that calls one function."""

    def __init__(self, call: Callable[..., torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.call = call
        self.x = nn.Parameter(torch.empty(shape, dtype=dtype))

    def forward(self) -> torch.Tensor:
        return self.call(self.x).float().sum()


STEP: list[Called] = []


def step() -> Any:
    return STEP[-1], ()


def ran(
    call: Callable[..., torch.Tensor],
    kernels: CudaKernels | None = AMPERE,
    shape: tuple[int, ...] = (BATCH, HEADS, LENGTH, SIZE),
    dtype: torch.dtype = torch.bfloat16,
) -> EagerStep:
    STEP[:] = [Called(call, shape, dtype)]
    return run_eagerly(f"{__name__}:step", ReadOptions(), kernels=kernels)


def made(step: EagerStep, name: str) -> list[int]:
    """Return the bytes of all that an op made."""
    op = next(op for op in step.ops if op.overload.startswith(f"aten.{name}."))
    return [step.bytes[storage] for storage in op.makes]


def attention(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x, x, **options)


def test_flash_attention_saves_its_output_and_a_sum_for_each_row() -> None:
    step = ran(lambda x: attention(x, is_causal=True, dropout_p=0.1))
    output, sums, *random_state = made(step, "_scaled_dot_product_flash_attention")
    assert output == BATCH * HEADS * LENGTH * SIZE * 2
    assert sums == 3584  # 4 bytes of each of 800 rows: 3,200, in blocks of 512
    assert max(random_state) == 512
    matrix = BATCH * HEADS * LENGTH * LENGTH * 2
    assert not [name for name, size in step.bytes.items() if size == matrix]
    assert [name for name, size in ran(lambda x: attention(x, dropout_p=0.1), None).bytes.items() if size == matrix]


@pytest.mark.parametrize(
    ("kernels", "dtype", "size", "options", "expected"),
    [
        (AMPERE, torch.bfloat16, 64, {}, "flash"),
        (AMPERE, torch.float16, 256, {}, "flash"),
        (AMPERE, torch.bfloat16, 264, {}, "efficient"),
        (AMPERE, torch.float32, 64, {}, "efficient"),
        (AMPERE, torch.float32, 6, {}, "math"),
        (AMPERE, torch.float64, 64, {}, "math"),
        (AMPERE, torch.bfloat16, 64, {"masked": True}, "efficient"),
        (VOLTA, torch.float16, 64, {}, "efficient"),
        (VOLTA, torch.bfloat16, 64, {}, "math"),
        (VOLTA, torch.float32, 6, {}, "efficient"),
        (CudaKernels((8, 6)), torch.float16, 256, {"dropout": 0.1}, "efficient"),
        (CudaKernels((8, 6)), torch.float16, 192, {"dropout": 0.1}, "flash"),
    ],
)
def test_attention_kernel_depends_on_type_mask_and_size(
    kernels: CudaKernels, dtype: torch.dtype, size: int, options: dict[str, Any], expected: str
) -> None:
    x = torch.empty(1, 2, 8, size, dtype=dtype)
    given = {"masked": False, "causal": False, "dropout": 0.0, **options}
    assert kernels.attention_kernel(x, x, x, **given) == expected


def test_grouped_queries_need_flash_attention() -> None:
    query, key = torch.empty(1, 4, 8, 64, dtype=torch.bfloat16), torch.empty(1, 2, 8, 64, dtype=torch.bfloat16)
    assert AMPERE.attention_kernel(query, key, key, masked=False, causal=True, dropout=0.0) == "flash"
    assert AMPERE.attention_kernel(query, key, key, masked=True, causal=False, dropout=0.0) == "math"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert AMPERE.attention_kernel(query, key, key, masked=False, causal=True, dropout=0.0) == "math"


def test_memory_efficient_attention_pads_sums_and_masks() -> None:
    mask = torch.empty(1, 1, LENGTH, LENGTH, dtype=torch.bool)
    step = ran(lambda x: attention(x, attn_mask=mask), dtype=torch.float32)
    assert made(step, "_scaled_dot_product_efficient_attention")[1] == BATCH * HEADS * 128 * 4
    assert made(step, "constant_pad_nd") == [LENGTH * 104 * 4 // 512 * 512 + 512]


@pytest.mark.parametrize(("kernels", "item"), [(AMPERE, 1), (None, 2)])
def test_masks_of_dropout_are_bytes(kernels: CudaKernels | None, item: int) -> None:
    step = ran(lambda x: functional.dropout(x, 0.1).exp(), kernels, (64, 512))
    elements = 64 * 512
    kept = {kept.storage for kept in step.kept}
    assert sorted(step.bytes[name] for name in kept) == sorted([elements * item, elements * 2])
    assert not ran(lambda x: functional.dropout(x, 0.0), kernels, (64, 512)).bytes.keys() & {"native_dropout"}


def test_layer_norm_keeps_statistics_in_float32() -> None:
    step = ran(lambda x: functional.layer_norm(x, (512,)), shape=(256, 512))
    assert made(step, "native_layer_norm")[1:] == [256 * 4, 256 * 4]


def test_rms_norm_is_one_kernel() -> None:
    weight = torch.ones(512, dtype=torch.bfloat16)
    step = ran(lambda x: functional.rms_norm(x * 1, (512,), weight), shape=(256, 512))
    kept = {kept.storage for kept in step.kept if kept.storage.startswith(("mul", "_fused"))}
    assert sorted(step.bytes[name] for name in kept) == [256 * 4, 256 * 512 * 2]


def test_autocast_for_cuda_casts_as_cuda_does() -> None:
    weight = torch.empty(512, 512)

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return functional.softmax(x @ weight, -1)

    step = ran(call, shape=(256, 512), dtype=torch.float32)
    assert made(step, "mm") == [256 * 512 * 2]
    assert made(step, "_softmax") == [256 * 512 * 4]


def test_autocast_is_as_before_afterwards() -> None:
    ran(lambda x: x * 1)
    with pytest.warns(UserWarning, match="CUDA is not available"):
        torch.autocast("cuda")
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert functional.softmax(x, -1).dtype == torch.bfloat16


@pytest.mark.parametrize(("kernels", "size"), [(AMPERE, CUBLAS), (HOPPER, CUBLAS_OF_HOPPER), (None, 0)])
def test_each_pass_has_a_workspace_of_cublas(kernels: CudaKernels | None, size: int) -> None:
    weight = nn.Parameter(torch.empty(8, 8, dtype=torch.bfloat16))
    products, none = ran(lambda x: x @ weight, kernels, (8, 8)), ran(lambda x: x * 2, kernels, (8, 8))
    assert products.resident_bytes - none.resident_bytes == 2 * size


def test_backward_of_flash_attention_sums_in_float32() -> None:
    step = ran(lambda x: attention(x, is_causal=True))
    (taken,) = step.workspace_bytes.values()
    assert taken == BATCH * HEADS * 128 * 4 * (1 + SIZE)


def test_sizes_are_whole_blocks_and_kernels_are_named() -> None:
    step = ran(lambda x: functional.dropout(x, 0.1) @ x.T, shape=(10, 10))
    assert not [size for size in step.bytes.values() if size % 512]
    (note,) = step.kernels
    assert "CUDA 8.0" in note
    assert "dropout (1)" in note
    assert "17.04 MB of workspace of cuBLAS" in note
    assert ran(lambda x: x * 1, None).kernels == ()


@pytest.mark.parametrize(
    ("device", "expected"), [("a100", AMPERE), ("h100", HOPPER), ("laptop-cpu", None), (None, None)]
)
def test_device_profile_names_the_kernels(device: str | None, expected: CudaKernels | None) -> None:
    assert kernels_of(GraphOptions(device=device)) == expected
