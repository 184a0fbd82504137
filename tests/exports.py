"""Small networks, and the ONNX models that PyTorch's older exporter makes of them: it needs no further package."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


class ConvNet(nn.Module):
    """Convolutions, batch norms, pooling, a skip and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        result: torch.Tensor = self.head(torch.cat([skip, self.up(self.inner(functional.max_pool2d(skip, 2)))], 1))
        return result


class Block(nn.Module):
    """A layer of a transformer, with attention spelled out, relative positions that are gathered, and a GELU."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.table = nn.Embedding(32, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-1, -2) * 0.5
        places = torch.arange(length - 1, -1, -1).expand(batch, self.heads, length, length)
        weights = (scores + torch.gather(scores, -1, places)).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        result: torch.Tensor = x + self.mlp(self.second(x))
        return result


class Experts(nn.Module):
    """A mixture of experts, which sees each token by all of them, in products of `torch.einsum`."""

    def __init__(self, width: int = 12, inner: int = 20, experts: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.first = nn.Parameter(torch.randn(experts, width, inner))
        self.second = nn.Parameter(torch.randn(experts, inner, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.gate(x).mean(-1, keepdim=True)
        inner = torch.einsum("bsd,edf->bsef", x, self.first).relu()
        each = torch.einsum("bsef,efd->bsed", inner, self.second)
        return torch.einsum("bsed,bse->bsd", each, self.gate(x).softmax(-1))


# Each with its input for a batch of this size.
NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "ConvNet": (ConvNet, lambda batch: torch.randn(batch, 3, 16, 16)),
    "Block": (Block, lambda batch: torch.randint(32, (batch, 8))),
    "Experts": (Experts, lambda batch: torch.randn(batch, 8, 12)),
}


def exported(name: str, folder: Path, *, training: bool = True) -> Path:
    """Export a network with a symbolic batch, and return the file."""
    make, inputs = NETWORKS[name]
    path = folder / f"{name}.onnx"
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            make().train(training),
            (inputs(2),),
            str(path),
            dynamo=False,
            training=mode,
            do_constant_folding=not training,
            opset_version=17,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
    return path
