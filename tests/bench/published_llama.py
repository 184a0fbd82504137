"""Llama 3 as torchtune and torchtitan train it: checkpoints of blocks, and parameters that FSDP2 gathers.

Written anew from what each layer computes: what it saves, and in which element type, is what counts here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

VOCAB = 128256
# Of torchtitan's selective checkpoints: results that are saved, but for every second product.
_SAVED = (torch.ops.aten._scaled_dot_product_flash_attention.default,)


@dataclass(frozen=True)
class Llama:
    """Sizes of a Llama 3, and how it is trained.

    Attributes:
        layers: number of blocks.
        width: size of the hidden state.
        heads: number of heads of queries.
        key_heads: number of heads of keys and values.
        hidden: width of the feed-forward part.
        tied: embedding and head are one.
        checkpoints: "none", "full" or "selective".
        ranks: FSDP2 shards parameters in float32 over so many; 1: parameters are whole, in bfloat16.
        chunks: of tokens, in which head and loss run.
        outputs_freed: the loop lets go of the logits before the backward pass.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    tied: bool = False
    checkpoints: str = "none"
    ranks: int = 1
    chunks: int = 1
    outputs_freed: bool = True


class _Gather(torch.autograd.Function):
    """A block's parameters from all ranks, in bfloat16; their gradients are scattered in float32."""

    @staticmethod
    def forward(ctx: Any, shapes: Sequence[torch.Size], *shards: torch.Tensor) -> Any:
        ctx.shapes = [shard.shape for shard in shards]
        together = shards[0].new_empty(sum(map(torch.Size.numel, shapes)), dtype=torch.bfloat16)
        return tuple(together.new_empty(shape) for shape in shapes)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        together = gradients[0].new_empty(sum(map(torch.Tensor.numel, gradients)), dtype=torch.float32)
        return None, *(together.new_empty(shape) for shape in ctx.shapes)


class Part(nn.Module):
    """A part of the model whose parameters are gathered before it runs."""

    def __init__(self, shapes: Sequence[Sequence[int]], ranks: int) -> None:
        super().__init__()
        self.shapes, self.ranks = [torch.Size(shape) for shape in shapes], ranks
        sizes = self.shapes if ranks == 1 else [torch.Size([-(-shape.numel() // ranks)]) for shape in self.shapes]
        dtype = torch.bfloat16 if ranks == 1 else torch.float32
        self.shards = nn.ParameterList(nn.Parameter(torch.empty(size, dtype=dtype)) for size in sizes)

    def gathered(self) -> Sequence[torch.Tensor]:
        if self.ranks == 1:
            return tuple(self.shards)
        return tuple(_Gather.apply(self.shapes, *self.shards))  # type: ignore[no-untyped-call]


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    high = x.float()
    return (high * torch.rsqrt(high.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * weight


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    one, other = pairs.unbind(-1)
    cos, sin = angles.unbind(-1)
    return torch.stack([one * cos - other * sin, other * cos + one * sin], -1).flatten(3).type_as(x)


class Block(Part):
    """Attention with grouped queries, then a gated part."""

    def __init__(self, of: Llama) -> None:
        keys = of.key_heads * of.width // of.heads
        shapes = [(of.width, of.width), (keys, of.width), (keys, of.width), (of.width, of.width)]
        shapes += [(of.hidden, of.width), (of.hidden, of.width), (of.width, of.hidden)]
        super().__init__([*shapes, (of.width,), (of.width,)], of.ranks)
        self.of = of

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        of = self.of
        query, key, value, out, gate, up, down, norm_1, norm_2 = self.gathered()
        batch, length, width = x.shape
        normed = _normed(x, norm_1)
        parts = [
            functional.linear(normed, weight).view(batch, length, -1, width // of.heads) for weight in (query, key)
        ]
        values = functional.linear(normed, value).view(batch, length, -1, width // of.heads)
        queries, keys = (_rotated(part, angles) for part in parts)
        each = of.heads // of.key_heads
        keys, values = (
            part.unsqueeze(3).expand(-1, -1, -1, each, -1).reshape(batch, length, of.heads, -1)
            for part in (keys, values)
        )
        mixed = functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
        )
        x = x + functional.linear(mixed.transpose(1, 2).contiguous().view(batch, length, -1), out)
        normed = _normed(x, norm_2)
        return x + functional.linear(
            functional.silu(functional.linear(normed, gate)) * functional.linear(normed, up), down
        )


class Model(Part):
    """Embedding, blocks, head and loss."""

    def __init__(self, of: Llama) -> None:
        table = [(VOCAB, of.width)]
        super().__init__([*table, (of.width,), *([] if of.tied else table)], of.ranks)
        self.of = of
        self.blocks = nn.ModuleList(Block(of) for _ in range(of.layers))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, angles: torch.Tensor) -> Any:
        embedding, norm, *rest = self.gathered()
        head = rest[0] if rest else embedding
        x = functional.embedding(tokens, embedding)
        for block in self.blocks:
            if self.of.checkpoints == "none":
                x = block(x, angles)
                continue
            contexts: dict[str, Any] = {} if self.of.checkpoints == "full" else {"context_fn": _contexts}
            x = checkpoint(block, x, angles, use_reentrant=False, preserve_rng_state=False, **contexts)
        x = _normed(x, norm)
        parts = [functional.linear(part, head) for part in x.chunk(self.of.chunks, 1)]
        wanted = targets.chunk(self.of.chunks, 1)
        losses = [
            functional.cross_entropy(part.flatten(0, 1).float(), of.flatten(), reduction="sum")
            for part, of in zip(parts, wanted, strict=True)
        ]
        return {"loss": torch.stack(losses).sum(), "logits": parts}


def _contexts() -> Any:
    products: Counter[bool] = Counter()

    def policy(context: Any, function: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        is_saved = function in _SAVED
        if function is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            is_saved = bool(products[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    make_contexts: Any = create_selective_checkpoint_contexts
    return make_contexts(policy)


def built(of: Llama, batch: int, seq: int) -> Any:
    """Return a step: the model and its inputs."""
    tokens = torch.zeros(batch, seq, dtype=torch.int64)
    return Model(of), (tokens, tokens.clone(), torch.zeros(seq, 1, of.width // of.heads // 2, 2))
