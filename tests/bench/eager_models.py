"""Training steps whose eager peak is held against a loop, by the functions that GRAPH names: kinds of loops and layers.

Each returns outputs without a loss of its own, or trains a part alone, or in another element type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.bench.torch_models import Step


class Recurrent(nn.Module):
    def __init__(self, words: int = 500) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, 128), nn.Linear(256, words)
        self.body = nn.GRU(128, 256, 2, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> Any:
        logits = self.head(self.body(self.embedding(tokens))[0])
        return {"loss": F.cross_entropy(logits.flatten(0, 1), tokens.flatten()), "logits": logits}


class ClassToken(nn.Module):
    """A vision transformer that classifies by a token of its own."""

    def __init__(self, width: int = 128, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, width, 8, 8), nn.Linear(width, 100)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, F.gelu, batch_first=True, norm_first=True)
            for _ in range(4)
        )
        self.checkpoints = checkpoints

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        result: torch.Tensor = self.head(x[:, 0])
        return result


class SeveralHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1))
        self.kind, self.box = nn.Linear(64, 10), nn.Conv2d(64, 4, 1)
        self.mask = nn.ConvTranspose2d(64, 2, 4, 4)

    def forward(self, images: torch.Tensor) -> Any:
        made = self.body(images)
        return {"kind": self.kind(made.mean((2, 3))), "box": self.box(made), "mask": self.mask(made)}


def gru() -> Step:
    return Recurrent(), (torch.zeros(16, 64, dtype=torch.int64),)


def class_token() -> Step:
    return ClassToken(), (torch.zeros(8, 3, 64, 64),)


def class_token_bfloat16() -> Step:
    return ClassToken().bfloat16(), (torch.zeros(8, 3, 64, 64, dtype=torch.bfloat16),)


def class_token_frozen() -> Step:
    """All but head and last block."""
    model = ClassToken().requires_grad_(False)
    model.head.requires_grad_(True)
    model.blocks[-1].requires_grad_(True)
    return model, (torch.zeros(8, 3, 64, 64),)


def class_token_checkpoints() -> Step:
    return ClassToken(checkpoints=True), (torch.zeros(8, 3, 64, 64),)


def several_heads() -> Step:
    return SeveralHeads(), (torch.zeros(4, 3, 96, 96),)
