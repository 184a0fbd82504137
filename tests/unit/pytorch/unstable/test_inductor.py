"""What the compiler of an old release cannot do is refused before anything is compiled."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.torch_version import TorchVersion

from remat_cli.errors import GraphError, UsageError
from remat_cli.pytorch.unstable.inductor import _check_attention, needing_compiler
from remat_cli.torch import planned

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@pytest.mark.parametrize(("dtype", "of_sums"), [(torch.float64, torch.float32), (torch.float64, torch.float64)])
def test_attention_whose_rule_tells_another_type_than_its_kernel_has(dtype: torch.dtype, of_sums: torch.dtype) -> None:
    operand = torch.ones(1, 2, 4, 4, dtype=dtype)
    graph = make_fx(lambda query: ATTENTION(query, query, query))(operand).graph
    (node,) = graph.find_nodes(op="call_function", target=ATTENTION)
    node.meta["val"] = (operand, torch.ones(1, 4, 2, dtype=of_sums))
    if of_sums == dtype:
        _check_attention(graph)
        return
    with pytest.raises(GraphError, match="attention in float64") as refused:
        _check_attention(graph)
    assert "torch 2.13" in str(refused.value.hint)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.layer(x).view(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(query, key, value).sum()


@pytest.mark.skipif(TorchVersion(torch.__version__) >= "2.13", reason="this release compiles it")
def test_an_old_release_refuses_to_compile_attention_in_float64() -> None:
    model = planned(Attention().double(), budget="100%", fused=True)
    with pytest.raises(GraphError, match="attention in float64"):
        model(torch.randn(2, 16, 8, dtype=torch.float64))


@pytest.mark.parametrize(
    ("kind", "missing"), [("InvalidCxxCompiler", r"a C\+\+ compiler"), ("TritonMissing", "Triton")]
)
def test_a_missing_compiler_is_named(kind: str, missing: str) -> None:
    cause = type(kind, (RuntimeError,), {})("no such program: cc\nmore")
    told = f"fused kernels need {missing}, and none is found here: no such program: cc$"
    with pytest.raises(UsageError, match=told), needing_compiler():
        raise RuntimeError("inductor fails") from cause


def test_other_faults_of_the_compiler_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="inductor fails"), needing_compiler():
        raise RuntimeError("inductor fails") from ValueError("of another kind")
