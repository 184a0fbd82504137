"""Six models in plain torch, sized for a GPU (eager takes 8 to 20 GB) or, in small, for a test on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Sizes = Mapping[str, int]


class RootMeanSquareNorm(nn.Module):
    """Divides by the root of the mean square; written out, as most models of transformers have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Attention(nn.Module):
    """Attention of some heads; `turns`: queries and keys are turned by their position; else any may look at any."""

    def __init__(self, width: int, heads: int, *, turns: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.turns, self.causal = heads, turns, causal
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if self.turns:
            query, key = _turned(query), _turned(key)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        made: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(x.shape))
        return made


def _turned(x: torch.Tensor) -> torch.Tensor:
    length, half = x.shape[-2], x.shape[-1] // 2
    speeds = 10_000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(length, device=x.device)[:, None] * speeds
    left, right = x.float().chunk(2, -1)
    turned = [left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()]
    return torch.cat(turned, -1).to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        inner = 11 * width // 4
        self.norm, self.norm2 = RootMeanSquareNorm(width), RootMeanSquareNorm(width)
        self.attention = Attention(width, heads, turns=True, causal=True)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Returns the loss and the logits."""

    def __init__(self, depth: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads) for _ in range(depth))
        self.norm, self.head = RootMeanSquareNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()), logits


class Block(nn.Module):
    """A block of a GPT or a ViT, with dropout."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, turns=False, causal=causal)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attention(self.norm(x)))
        made: torch.Tensor = x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))
        return made


class GPT(nn.Module):
    """The embedding's weight is that of the head."""

    def __init__(self, depth: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), targets.flatten())


class ViT(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(Block(width, heads, causal=False) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x).mean(1)).float(), labels)


def _convolved(given: int, made: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(made), nn.ReLU())


class UNet(nn.Module):
    """Segmentation with skips, transposed convolutions and batch norm."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            nn.Sequential(_convolved(a, b), _convolved(b, b)) for a, b in zip([3, *sizes], sizes, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.merge = nn.ModuleList(
            nn.Sequential(_convolved(2 * size, size), _convolved(size, size)) for size in sizes[:-1]
        )
        self.head = nn.Conv2d(width, 5, 1)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        x = images
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for up, merge, skip in zip(self.up[::-1], self.merge[::-1], skips[-2::-1], strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return F.cross_entropy(self.head(x).float(), labels)


class Bottleneck(nn.Module):
    def __init__(self, given: int, inner: int, stride: int) -> None:
        super().__init__()
        made = 4 * inner
        self.body = nn.Sequential(
            _convolved(given, inner, 1),
            _convolved(inner, inner, 3, stride),
            nn.Conv2d(inner, made, 1, bias=False),
            nn.BatchNorm2d(made),
        )
        self.short = nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))
        self.is_same = given == made and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + (x if self.is_same else self.short(x)))


class ResNet(nn.Module):
    """ResNet-50 of He et al. (2015), where `blocks` is 3463."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [_convolved(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
        given = width
        for level, count in enumerate(map(int, str(blocks))):
            for number in range(count):
                parts.append(Bottleneck(given, width << level, 2 if level and not number else 1))
                given = 4 * (width << level)
        self.blocks, self.head = nn.Sequential(*parts), nn.Linear(given, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.blocks(images).mean((2, 3))).float(), labels)


class LSTM(nn.Module):
    """Layers that predict the next token, with dropout between them."""

    def __init__(self, depth: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.blocks = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(depth))
        self.drop = nn.Dropout(0.1)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.drop(block(x)[0])
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Kind:
    """A model of the trial.

    Attributes:
        build: makes it, of what `sizes` and `small` have beside the sizes of its input.
        sizes: for a GPU: those of the input (batch, and length or image), and those of the model.
        small: the same for a test.
        narrow: it trains in bfloat16 autocast.
        options: of `planned`.
    """

    build: Callable[..., nn.Module]
    sizes: Sizes
    small: Sizes
    narrow: bool = True
    options: Mapping[str, Any] | None = None


_GPT_SIZES = {"batch": 8, "length": 1024, "depth": 16, "width": 1024, "heads": 16, "vocabulary": 50304}
_SMALL_TEXT = {"batch": 16, "length": 32, "depth": 2, "width": 32, "heads": 2, "vocabulary": 64}
KINDS = {
    "llama": Kind(
        Llama,
        {"batch": 4, "length": 2048, "depth": 12, "width": 1024, "heads": 16, "vocabulary": 32000},
        _SMALL_TEXT,
    ),
    "vit": Kind(
        ViT,
        {"batch": 128, "image": 224, "depth": 12, "width": 768, "heads": 12, "patch": 16},
        {"batch": 32, "image": 16, "depth": 2, "width": 32, "heads": 2, "patch": 4},
    ),
    "unet": Kind(
        UNet, {"batch": 64, "image": 256, "width": 64, "depth": 4}, {"batch": 4, "image": 32, "width": 8, "depth": 2}
    ),
    "resnet": Kind(
        ResNet,
        {"batch": 224, "image": 224, "width": 64, "blocks": 3463},
        {"batch": 8, "image": 32, "width": 8, "blocks": 11},
    ),
    # Under autocast a plan has recurrent layers written out step by step.
    "lstm": Kind(
        LSTM,
        {"batch": 160, "length": 256, "depth": 4, "width": 1024, "vocabulary": 8000},
        {"batch": 32, "length": 16, "depth": 4, "width": 32, "vocabulary": 64},
        narrow=False,
    ),
    "gpt": Kind(GPT, _GPT_SIZES, _SMALL_TEXT),
    "gpt by blocks": Kind(GPT, _GPT_SIZES, _SMALL_TEXT, options={"regions": "blocks.*"}),
}


def inputs_of(sizes: Sizes, device: str, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random inputs and targets for a kind of model.

    Args:
        sizes: of its input, and of the model.
        device: on which they are to be.
        seed: of the numbers.
    """
    draws = torch.Generator(device).manual_seed(seed)
    batch = sizes["batch"]

    def drawn(most: int, *shape: int) -> torch.Tensor:
        return torch.randint(most, shape, device=device, generator=draws)

    if "image" not in sizes:
        shape = (batch, sizes["length"])
        return drawn(sizes["vocabulary"], *shape), drawn(sizes["vocabulary"], *shape)
    side = sizes["image"]
    images = torch.randn(batch, 3, side, side, device=device, generator=draws)
    is_segmented = "blocks" not in sizes and "patch" not in sizes
    return images, drawn(5, batch, side, side) if is_segmented else drawn(10, batch)


def built(kind: Kind, sizes: Sizes, device: str) -> nn.Module:
    """Return a model with weights that are the same each time."""
    torch.manual_seed(0)
    of_model = {name: size for name, size in sizes.items() if name not in ("batch", "length", "image")}
    with torch.device(device):
        return kind.build(**of_model)
