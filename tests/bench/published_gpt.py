"""The models of litgpt's tables, as its code keeps tensors: `tests.bench.published` says of which table and version.

Written anew from what each layer computes: what it saves, and in which element type, is what counts here.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes and kinds of a model's layers.

    Attributes:
        vocab: rows of the embedding, padded.
        layers: number of blocks.
        heads: number of heads of queries.
        width: size of the hidden state.
        groups: number of heads of keys and values; None: as many as of queries.
        rotary: share of a head that is rotated.
        hidden: width within the feed-forward part.
        gated: that part multiplies by a gate; otherwise it has a GELU.
        rms: norms are RMS norms; otherwise layer norms.
        is_parallel: attention and feed-forward part read the same state.
        shares_norm: both have one norm.
        biased: linear layers have a bias.
        head_biased: the head has a bias.
        gelu_gate: the gate has a GELU in place of SiLU, and norms have an offset of one, as in Gemma.
    """

    vocab: int
    layers: int
    heads: int
    width: int
    hidden: int
    groups: int | None = None
    rotary: float = 1.0
    gated: bool = True
    rms: bool = True
    is_parallel: bool = False
    shares_norm: bool = False
    biased: bool = False
    head_biased: bool = False
    gelu_gate: bool = False

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.groups or self.heads

    @property
    def head(self) -> int:
        """Size of a head."""
        return self.width // self.heads


@dataclass(frozen=True)
class Adapters:
    """LoRA: rank, dropout, and the parts that have it, of "q", "k", "v", "projection", "mlp", "head"."""

    rank: int
    parts: Collection[str]
    dropout: float = 0.05


class AdaptedLinear(nn.Linear):
    """A linear layer that is frozen where it has an adapter."""

    def __init__(self, inner: int, outer: int, adapters: Adapters | None, *, bias: bool) -> None:
        super().__init__(inner, outer, bias=bias)
        self.adapters = adapters
        if adapters is not None:
            self.down, self.up = (
                nn.Parameter(torch.empty(adapters.rank, inner)),
                nn.Parameter(torch.empty(outer, adapters.rank)),
            )

    def forward(self, x: torch.Tensor) -> Any:
        whole = super().forward(x)
        if self.adapters is None:
            return whole
        return whole + (functional.dropout(x, self.adapters.dropout) @ self.down.mT @ self.up.mT) * 2.0


class AdaptedProjections(nn.Linear):
    """Queries, keys and values in one layer: the adapters of some of them are one convolution."""

    def __init__(self, shape: Shape, adapters: Adapters | None) -> None:
        super().__init__(shape.width, (shape.heads + 2 * shape.key_heads) * shape.head, bias=shape.biased)
        self.grouped = shape.heads != shape.key_heads
        sizes = {"q": shape.width, "k": shape.key_heads * shape.head, "v": shape.key_heads * shape.head}
        self.sizes = [] if adapters is None else [size for part, size in sizes.items() if part in adapters.parts]
        self.is_whole = len(self.sizes) == len(sizes)
        if adapters is not None and self.sizes:
            self.dropout = adapters.dropout
            self.down = nn.Parameter(torch.empty(adapters.rank * len(self.sizes), shape.width))
            self.up = nn.Parameter(torch.empty(sum(self.sizes), adapters.rank))

    def forward(self, x: torch.Tensor) -> Any:
        whole = super().forward(x)
        if not self.sizes:
            return whole
        low = functional.linear(functional.dropout(x, self.dropout), self.down).mT
        kernel = self.up.unsqueeze(-1)
        if self.grouped:
            parts = zip(low.chunk(len(self.sizes), 1), torch.split(kernel, self.sizes), strict=True)
            high = torch.cat([functional.conv1d(part, weight) for part, weight in parts], 1).mT
        else:
            high = functional.conv1d(low, kernel, groups=len(self.sizes)).mT
        return whole + self._in_place(high) * 2.0

    def _in_place(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_whole:
            return x
        x = x.transpose(0, 1)
        where = torch.arange(sum(self.sizes), device=x.device)
        padded = x.new_zeros(*x.shape[:-1], self.out_features).view(-1, self.out_features)
        padded = padded.index_copy(1, where, x.reshape(-1, x.shape[-1]))
        return padded.view(*x.shape[:-1], self.out_features).transpose(0, 1)


class RmsNorm(nn.Module):
    """RMS norm from small ops, in float32."""

    def __init__(self, size: int, *, has_offset: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.has_offset = has_offset

    def forward(self, x: torch.Tensor) -> Any:
        high = x.float()
        normed = (high * torch.rsqrt(torch.mean(high * high, -1, keepdim=True) + 1e-5)).type_as(x)
        return normed * (1 + self.weight) if self.has_offset else normed * self.weight


class Attention(nn.Module):
    """Causal attention with rotated queries and keys."""

    def __init__(self, shape: Shape, adapters: Adapters | None) -> None:
        super().__init__()
        self.shape = shape
        self.qkv = AdaptedProjections(shape, adapters)
        self.out = AdaptedLinear(shape.width, shape.width, _for(adapters, "projection"), bias=shape.biased)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        batch, length, width = x.shape
        heads, each = self.shape.key_heads, self.shape.heads // self.shape.key_heads
        qkv = self.qkv(x).view(batch, length, heads, each + 2, self.shape.head).permute(0, 2, 3, 1, 4)
        parts = list(torch.split(qkv, [each, 1, 1], dim=2))
        if heads != self.shape.heads:
            parts[1:] = [part.expand(batch, heads, each, length, self.shape.head) for part in parts[1:]]
        query, key, value = (part.reshape(batch, -1, length, self.shape.head) for part in parts)
        query, key = (_rotated(part, cos, sin) for part in (query, key))
        mixed = functional.scaled_dot_product_attention(
            query, key, value, scale=1 / math.sqrt(self.shape.head), is_causal=True
        ).transpose(1, 2)
        return self.out(mixed.reshape(batch, length, width))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turned = x[..., : cos.shape[-1]]
    half = turned.shape[-1] // 2
    other = torch.cat((-turned[..., half:], turned[..., :half]), -1)
    rotated = ((turned * cos) + (other * sin)).to(x.dtype)
    return torch.cat((rotated, x[..., cos.shape[-1] :]), -1)


def _for(adapters: Adapters | None, part: str) -> Adapters | None:
    return adapters if adapters is not None and part in adapters.parts else None


class FeedForward(nn.Module):
    """A gated part, or one with a GELU."""

    def __init__(self, shape: Shape, adapters: Adapters | None) -> None:
        super().__init__()
        self.shape, mine = shape, _for(adapters, "mlp")
        self.up = AdaptedLinear(shape.width, shape.hidden, mine, bias=shape.biased)
        self.gate = AdaptedLinear(shape.width, shape.hidden, mine, bias=shape.biased) if shape.gated else None
        self.down = AdaptedLinear(shape.hidden, shape.width, mine, bias=shape.biased)

    def forward(self, x: torch.Tensor) -> Any:
        up = self.up(x)
        if self.gate is None:
            up = functional.gelu(up, approximate="tanh")
            return self.down(up)
        gate = self.gate(x)
        up = (functional.gelu(up, approximate="tanh") if self.shape.gelu_gate else functional.silu(up)) * gate
        return self.down(up)


class Block(nn.Module):
    """Attention and feed-forward part, one after the other or side by side."""

    def __init__(self, shape: Shape, adapters: Adapters | None) -> None:
        super().__init__()
        self.shape = shape
        self.norm_1 = _norm(shape)
        self.attention = Attention(shape, adapters)
        self.norm_2 = None if shape.shares_norm else _norm(shape)
        self.feed_forward = FeedForward(shape, adapters)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        normed = self.norm_1(x)
        mixed = self.attention(normed, cos, sin)
        if self.shape.is_parallel:
            normed = normed if self.norm_2 is None else self.norm_2(x)
            return self.feed_forward(normed) + mixed + x
        x = mixed + x
        assert self.norm_2 is not None
        return self.feed_forward(self.norm_2(x)) + x


def _norm(shape: Shape) -> nn.Module:
    if shape.rms:
        return RmsNorm(shape.width, has_offset=shape.gelu_gate)
    return nn.LayerNorm(shape.width)


class Gpt(nn.Module):
    """The model with its loss, which runs in chunks of 128 tokens.

    Lightning's Fabric hands logits over in float32.
    """

    CHUNK = 128

    def __init__(self, shape: Shape, adapters: Adapters | None) -> None:
        super().__init__()
        self.chunked = adapters is not None
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape, adapters) for _ in range(shape.layers))
        self.norm = _norm(shape)
        self.head = AdaptedLinear(shape.width, shape.vocab, _for(adapters, "head"), bias=shape.head_biased)
        self.rotated, self.is_scaled = int(shape.rotary * shape.head), shape.gelu_gate
        if adapters is not None:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(name.endswith((".down", ".up")))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        x = self.embedding(tokens)
        if self.is_scaled:
            x = x * x.shape[-1] ** 0.5
        for block in self.blocks:
            x = block(x, cos, sin)
        x = self.norm(x)
        if self.chunked:
            logits = [self.head(part) for part in torch.split(x, self.CHUNK, 1)]
            logits = [part.float() for part in logits]
            logits[-1] = logits[-1][:, :-1]
            rows = [part.reshape(-1, part.shape[-1]) for part in logits]
            wanted = [part.reshape(-1) for part in torch.split(targets[:, 1:], self.CHUNK, 1)]
        else:
            logits = self.head(x).float()
            whole = logits[:, :-1].reshape(-1, logits.shape[-1])
            rows, wanted = (
                list(torch.split(whole, self.CHUNK)),
                list(torch.split(targets[:, 1:].reshape(-1), self.CHUNK)),
            )
        losses = [functional.cross_entropy(*pair, reduction="none") for pair in zip(rows, wanted, strict=True)]
        return {"loss": torch.cat(losses).mean(), "logits": logits}


def built(shape: Shape, batch: int, seq: int, adapters: Adapters | None = None) -> Any:
    """Return a step in bfloat16: the model and its inputs."""
    model = Gpt(shape, adapters).to(torch.bfloat16)
    tokens = torch.zeros(batch, seq, dtype=torch.int64)
    angles = torch.zeros(seq, model.rotated)
    return model, (tokens, tokens.clone(), angles, angles.clone())
