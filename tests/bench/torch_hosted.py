"""Blocks of a Llama of 8 billion parameters: keep, recompute or offload, by the judge at real link rates.

One block is captured in bfloat16 without data (with the kernels of the CPU) and planned several times, as
`planned(..., regions="layers.*")` does.
The step has 32 of them; times are those of a device profile. `python -m tests.bench.torch_hosted` prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from remat_cli.core.link import Duplex, Link
from remat_cli.pytorch.capture.outputs import KnownGradients
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.plan.block_step import ALL_INPUTS, NOTHING, BlockStep, CurvePoint
from remat_cli.pytorch.plan.budget_source import BudgetSource
from remat_cli.pytorch.plan.described import described
from remat_cli.pytorch.plan.region_curve import RegionGraphs
from remat_cli.pytorch.plan.region_kinds import Captures
from remat_cli.pytorch.plan.rehearsal import Moment, RegionCall
from remat_cli.pytorch.run.planned import source_within
from remat_cli.units import format_bytes, format_share

LAYERS, WIDTH, INNER, HEADS, GROUPS, HEAD = 32, 4096, 14336, 32, 8, 128
PARAMETERS = 8_030_261_248
TOKENS = 32_768
# Bytes per second one way.
LINKS = {"PCIe 3": 12e9, "PCIe 4": 25e9, "PCIe 5": 50e9, "NVLink-C2C": 400e9}


class LlamaBlock(nn.Module):
    """A decoder block of Llama 3 8B."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.out = nn.Linear(WIDTH, HEADS * HEAD, bias=False), nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, GROUPS * HEAD, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        y = self.before(x)
        q, k, v = (
            part(y).view(rows, length, heads, HEAD).transpose(1, 2)
            for part, heads in ((self.q, HEADS), (self.k, GROUPS), (self.v, GROUPS))
        )
        q, k = (each * cos + _turned(each) * sin for each in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, HEADS * HEAD))
        y = self.between(x)
        made: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return made


def _turned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), -1)


def llama_curve(tokens: int, device: str = "h100", seconds: float = 0.5) -> tuple[CurvePoint, ...]:
    """Return the plans of a block, the plain one first, each planned with work of so many seconds."""
    with torch.device("meta"):
        block = LlamaBlock().bfloat16()
        x = torch.empty(1, tokens, WIDTH, dtype=torch.bfloat16, requires_grad=True)
        cos, sin = (torch.empty(tokens, HEAD, dtype=torch.bfloat16) for _ in range(2))
    call = RegionCall(
        path="layers.0",
        name="layers.0",
        module=block,
        args=tuple(map(described, (x, cos, sin))),
        kwargs={},
        parameters={name: described(part) for name, part in block.named_parameters()},
        device="cpu",
        autocast=(torch.bfloat16, False),
        gradients=KnownGradients("region 'layers.0'", ((3, torch.bfloat16, True),)),
    )
    (group,), refused = Captures(takes_sizes=False).groups([call])
    assert not refused
    limits = {"work_limit": seconds, "time_limit": 60}
    source: BudgetSource = source_within("min", device=device, options=limits)
    alone = replace(source, measures=False)
    return tuple(RegionGraphs(alone, Piece.of(group.captured)).curve())


def llama_step(curve: tuple[CurvePoint, ...], tokens: int, rate: float, ranks: int = 8) -> BlockStep:
    """Return a step of all blocks on one of several ranks, which share parameters, gradients and Adam's state.

    Between the blocks are the parameters of two gathered blocks, and the loss over parts of the vocabulary.
    """
    size = 2 * tokens * WIDTH
    gathered = 2 * 2 * (2 * WIDTH * HEADS * HEAD + 2 * WIDTH * GROUPS * HEAD + 3 * WIDTH * INNER)
    moments: dict[Moment, int] = {}
    held: frozenset[int] = frozenset()
    for place in range(LAYERS):
        moments[Moment(held, (place, "forward"))] = gathered + size
        held |= {place}
        moments[Moment(held)] = gathered + size
    moments[Moment(held, None, True)] = gathered + 4 * size
    for place in reversed(range(LAYERS)):
        held -= {place}
        moments[Moment(held, (place, "backward"), True)] = gathered + size
        moments[Moment(held, None, True)] = gathered + size
    names = [f"layers.{place}" for place in range(LAYERS)]
    always = PARAMETERS * (2 + 2 + 12) // ranks
    link = Link(Fraction(int(rate), 10**9), Duplex.FULL)
    return BlockStep(always, moments, names, [curve] * LAYERS, inputs=[size] * LAYERS, link=link)


class Way(NamedTuple):
    """A way to keep a step within a budget.

    Attributes:
        time: time of the step, waits for copies among it; None if it does not fit.
        inputs: number of blocks whose inputs are on the host.
        saved: number of blocks whose saved tensors are.
    """

    time: int | None
    inputs: int = 0
    saved: int = 0


def compared(step: BlockStep, budget: int) -> Iterator[Way]:
    """Yield three ways as the judge replays them: recompute alone, offload all inputs, and the choice."""
    found = [step.within(budget, 0, moves) for moves in (NOTHING, ALL_INPUTS)]
    for choice in (*found, step.within(budget, 0)):
        if choice is None:
            yield Way(None)
            continue
        trace = step.replay(choice, 0)
        assert trace.peak_bytes <= budget
        yield Way(trace.time, len(choice.away), len(choice.saved_away))


def torch_hosted(console: Console, tokens: int = TOKENS) -> None:
    """Print the table."""
    curve = llama_curve(tokens)
    table = Table("link", "budget", "recompute alone", "offload all inputs", "choice", "on the host", box=MARKDOWN)
    for name, rate in LINKS.items():
        step = llama_step(curve, tokens, rate)
        least = step.least(0)
        plain = step.judged(step.plain, 0)
        for share in (0.05, 0.2, 0.4, 0.7):
            budget = least + int(share * (plain.peak_bytes - least))
            ways = list(compared(step, budget))
            times = ["does not fit" if way.time is None else format_share(way.time / plain.time - 1) for way in ways]
            hosted = f"{ways[-1].inputs} inputs, saved tensors of {ways[-1].saved} blocks"
            table.add_row(name, format_bytes(budget), *times, hosted)
    console.print(table)


if __name__ == "__main__":
    torch_hosted(Console(width=160))
