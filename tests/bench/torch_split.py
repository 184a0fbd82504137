"""Steps in parts beside plans without, a loss head that is written in chunks by hand, and checkpoints of blocks."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from remat_cli.errors import RematError
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.torch import plan_of, planned
from remat_cli.units import format_bytes
from tests.bench.torch_models import UNet
from tests.torch_steps import Block

Step = tuple[nn.Module, tuple[torch.Tensor, ...]]
_RUNS = 5
_WARM = 2  # the first step tells which outputs are let go of


class ChunkedHead(torch.autograd.Function):
    """Cross entropy of a linear head, its logits and gradients made chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, chunks: int) -> torch.Tensor:
        loss, dx, dw = x.new_zeros(()), torch.empty_like(x), torch.zeros_like(weight)
        for part in torch.arange(len(x)).chunk(chunks):
            span = slice(int(part[0]), int(part[-1]) + 1)
            scores = x[span] @ weight.t()
            total = scores.logsumexp(1)
            loss += (total - scores.gather(1, labels[span, None])[:, 0]).sum()
            scores.sub_(total[:, None]).exp_()
            scores[torch.arange(len(part)), labels[span]] -= 1
            scores /= len(x)
            torch.mm(scores, weight, out=dx[span])
            dw.addmm_(scores.t(), x[span])
        ctx.save_for_backward(dx, dw)
        return loss / len(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        dx, dw = ctx.saved_tensors
        return dx * gradient, dw * gradient, None, None


class Language(nn.Module):
    """A GPT; `chunks`: its head is written by hand; `logits`: it returns them, too, as transformers does."""

    def __init__(self, vocabulary: int, width: int = 64, depth: int = 4, *, logits: bool = False) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocabulary, width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, 4, 0.0) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.logits, self.chunks, self.checkpoints = logits, 0, False

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        x = self.norm(x)
        if self.chunks:
            return ChunkedHead.apply(x.flatten(0, 1), self.head.weight, labels.flatten(), self.chunks)  # type: ignore[no-untyped-call]
        scores = self.head(x)
        if not self.logits:
            return F.cross_entropy(scores.flatten(0, 1), labels.flatten())
        moved = F.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
        return F.cross_entropy(scores.float().flatten(0, 1), moved.flatten()), scores


class Images(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(images), labels)


class PatchEncoder(nn.Sequential):
    """A ViT of 64 tokens to an image."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, F.gelu, batch_first=True) for _ in range(depth)]
        super().__init__(_Tokens(width), *layers, _Mean(), nn.Linear(width, 10))


class _Tokens(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens: torch.Tensor = self.patches(images).flatten(2).transpose(1, 2)
        return tokens


class _Mean(nn.Module):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.mean(1)


class LongMLP(nn.Module):
    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 8 * width), nn.GELU(), nn.Linear(8 * width, width))
            for _ in range(depth)
        )

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return F.mse_loss(x, wanted)


def _language(vocabulary: int, *, logits: bool = False, batch: int = 4, length: int = 64) -> Step:
    words = partial(torch.randint, vocabulary, (batch, length))
    return Language(vocabulary, logits=logits), (words(), words())


def _group_norm(width: int) -> nn.Module:
    return nn.GroupNorm(4, width)


def _convnet(norm: Callable[[int], nn.Module], width: int = 32, depth: int = 4, size: int = 32) -> Step:
    layers: list[nn.Module] = []
    for given in (3, *[width] * (depth - 1)):
        layers += [nn.Conv2d(given, width, 3, padding=1, bias=False), norm(width), nn.ReLU()]
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    return Images(body), (torch.randn(16, 3, size, size), torch.randint(10, (16,)))


# What each step is, and its budgets beside parameters and inputs, as shares of eager's peak.
_STEPS: Mapping[str, tuple[Callable[[], Step], tuple[float, ...]]] = {
    "GPT, vocabulary 50,304": (lambda: _language(50_304), (0.6, 0.283)),
    "GPT, vocabulary 32,000": (lambda: _language(32_000), (0.6, 0.3)),
    "GPT, vocabulary 128,000": (lambda: _language(128_000), (0.6, 0.3)),
    "GPT, vocabulary 50,304, logits returned": (lambda: _language(50_304, logits=True), (0.6, 0.45)),
    "MLP, 8,192 tokens": (
        lambda: (LongMLP(), (torch.randn(1, 8192, 64), torch.randn(1, 8192, 64))),
        (0.6, 0.3),
    ),
    "convolutions, group norm": (lambda: _convnet(_group_norm), (0.6, 0.4)),
    "convolutions, batch norm": (lambda: _convnet(nn.BatchNorm2d), (0.6,)),
    "ViT, 32 images": (
        lambda: (Images(PatchEncoder()), (torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))),
        (0.4, 0.2),
    ),
    "U-Net, group norm": (
        lambda: (UNet(norm=_group_norm), (torch.randn(8, 3, 64, 64), torch.randint(5, (8, 64, 64)))),
        (0.5, 0.3),
    ),
    "U-Net, batch norm": (
        lambda: (UNet(), (torch.randn(8, 3, 64, 64), torch.randint(5, (8, 64, 64)))),
        (0.5, 0.4),
    ),
}


@dataclass(frozen=True)
class _Measured:
    """A step as it ran.

    Attributes:
        peak_bytes: beside what is there before.
        seconds: of CPU time, the least of some runs.
        gradients: of the parameters.
    """

    peak_bytes: int
    seconds: float
    gradients: list[torch.Tensor]


def torch_split(console: Console) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = Table(title="A step beside parameters and inputs, one thread")
    for column in ("step", "way", "peak", "off the predicted", "CPU time", "gradients off by", "parts"):
        table.add_column(column, justify="left" if column in ("step", "way", "parts") else "right")
    for name, (make, shares) in _STEPS.items():
        _add_step(table, name, make, shares)
    console.print(table)


def _add_step(table: Table, name: str, make: Callable[[], Step], shares: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    model, given = make()
    eager = _measured(copy.deepcopy(model), given)
    _add(table, name, "eager", eager, eager)
    if isinstance(model, Language):
        wrapped = copy.deepcopy(model)
        wrapped.checkpoints = True
        _add(table, "", "checkpoints of blocks", _measured(wrapped, given), eager)
        if not model.logits:
            by_hand = copy.deepcopy(model)
            by_hand.chunks = 8
            _add(table, "", "by hand, 8 chunks", _measured(by_hand, given), eager)
    for share in shares:
        for splits in (False, True):
            _add_planned(table, f"{share:.0%}{', split' if splits else ''}", copy.deepcopy(model), given, eager, splits)


def _add_planned(
    table: Table, way: str, model: nn.Module, given: tuple[torch.Tensor, ...], eager: _Measured, splits: bool
) -> None:
    share = float(way.split("%")[0]) / 100
    there = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *given))
    planned(model, budget=there + int(share * eager.peak_bytes), split=splits)
    try:
        measured = _measured(model, given)
    except RematError as refusal:
        table.add_row("", way, "refused", "", "", "", refusal.message.partition(": ")[0])
        return
    plan = plan_of(model).last
    assert plan is not None
    off = measured.peak_bytes - (plan.predicted_peak_bytes - there)
    _add(table, "", way, measured, eager, f"{off:+,} B", plan.parts)


def _add(table: Table, name: str, way: str, made: _Measured, eager: _Measured, off: str = "", parts: str = "") -> None:
    # Of a bias before a batch norm, the gradient is zero but for rounding: only all of them together compare.
    one, other = (torch.cat([gradient.flatten() for gradient in of.gradients]) for of in (made, eager))
    apart = float((one - other).norm() / other.norm())
    seconds = f"{made.seconds * 1e3:.1f} ms ({made.seconds / eager.seconds - 1:+.0%})"
    table.add_row(name, way, format_bytes(made.peak_bytes), off, seconds, f"{apart:.1g}", parts)


def _measured(model: nn.Module, given: tuple[torch.Tensor, ...]) -> _Measured:
    def step() -> None:
        model.zero_grad()
        made = model(*given)
        loss = made if isinstance(made, torch.Tensor) else made[0]
        del made
        loss.backward()

    for _ in range(_WARM):
        step()
    model.zero_grad()
    peak, seconds = peak_of(step, "cpu"), []
    for _ in range(_RUNS):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return _Measured(peak, min(seconds), gradients)
