"""Small PyTorch models that are hard to run again, and ways to run them.

A *case* is a function that returns a model and its inputs, as `remat plan FILE.py:NAME` calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from remat_cli.core.graph import Graph, Phase
from remat_cli.core.link import Link
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Step, Wait, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint import BOUNDARY
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.step import as_step
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.pytorch.run.call import PlannedCall

Case = Callable[[], Any]

# Tests run side by side on few cores: more threads than these would wait for each other.
torch.set_num_threads(1)


class MLP(nn.Module):
    def __init__(self, depth: int = 2, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x.square().mean()


class ConvNet(nn.Module):
    """Batch norm, whose statistics change; pooling, which has two results; a view of it all at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        logits: torch.Tensor = self.head(x.flatten(1))
        return logits.square().sum()


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(x.shape)), self.dropout)
        hidden: torch.Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + F.dropout(hidden, self.dropout)


class GPT(nn.Module):
    """Dropout, and an embedding whose weight is that of the head."""

    def __init__(self, depth: int = 1, width: int = 16, vocabulary: int = 20, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, 2, dropout) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class ChangingBuffer(nn.Module):
    """A buffer that is read, as it is and by a view, changed in place, and read again.

    What was read first is needed for the gradients.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.inner(x)))
        old = self.scale + self.scale[None]
        hidden = hidden * old
        self.scale.mul_(0.9)
        return (torch.tanh(self.outer(hidden) + self.scale) * old).sum()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.lstm(x)[0]
        return states.square().mean()


class Cube(torch.autograd.Function):
    """A function with a backward of its own, whose ops torch does not mark as such."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.pow(3)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = ctx.saved_tensors[0]
        return 3 * x * x * gradients[0]


class Awkward(nn.Module):
    """In-place ops, an unused and a frozen parameter, a constant, splits, a list that is stacked again, `Cube`."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.frozen, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.used(x)
        hidden.mul_(2).add_(1)
        left, right = self.frozen(hidden).chunk(2, dim=-1)
        weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
        stacked = torch.stack([left.exp() * weights, right, left], dim=0)
        first, *rest = stacked.unbind(0)
        cubed: torch.Tensor = Cube.apply(first)  # type: ignore[no-untyped-call]
        return (cubed * rest[0].t().contiguous().t()).sum() + rest[1].flatten()[::2].sum()


class Repetitive(nn.Module):
    """Makes the same mask and the same exponential twice, of the mask another view each time, and draws twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layer(x)
        for parts in (2, 4):
            mask = (torch.arange(8) < 5).view(parts, -1).unbind(0)
            hidden = hidden * torch.where(torch.cat(mask), x.exp(), 0.5)
            hidden = hidden + F.dropout(x, 0.5)
        return hidden.square().sum()


class ManyOutputs(nn.Module):
    """Returns an input, a view of an input, a view of what it made, what it made, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        hidden = torch.tanh(self.layer(x))
        return x, x[1:].t(), hidden.view(-1), hidden * 2, 7, self.layer.weight.t()


def mlp(batch: int = 8) -> Any:
    return MLP(), torch.randn(batch, 16)


def conv(batch: int = 4) -> Any:
    return ConvNet(), (torch.randn(batch, 2, 4, 4),)


def gpt(batch: int = 2) -> Any:
    return GPT(), {"tokens": torch.randint(20, (batch, 6)), "targets": torch.randint(20, (batch, 6))}


def deep_gpt(batch: int = 8, depth: int = 4) -> Any:
    """Large enough that what it keeps outweighs the states of random generators, which checkpoints keep."""
    return GPT(depth, 32, 50), {"tokens": torch.randint(50, (batch, 64)), "targets": torch.randint(50, (batch, 64))}


class Stages(nn.Module):
    """Blocks of a few modules, with dropout, whose output is kept by those after them."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32), nn.ReLU())
            for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = x + stage(x)
        return x.square().mean()


def stages(batch: int = 256, depth: int = 2) -> Any:
    return Stages(depth), torch.randn(batch, 32)


class InPlace(nn.Module):
    """Blocks of a convolution, a norm and an activation that works in place; `first`: the activation begins them."""

    def __init__(self, activation: Callable[[], nn.Module], *, first: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential()
        for _ in range(4):
            parts = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)]
            parts.insert(0 if first else 2, activation())
            self.blocks.append(nn.Sequential(*parts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", self.blocks(self.stem(x)).square().mean())


class ChangesItsMind(nn.Module):
    """Keeps fewer tensors when it runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return x.sin().cos().sin() if self.runs == 1 else x.sin().cos()


def silu_in_place() -> Any:
    return InPlace(partial(nn.SiLU, inplace=True)), torch.randn(4, 3, 16, 16)


def hardswish_in_place() -> Any:
    return InPlace(partial(nn.Hardswish, inplace=True)), torch.randn(4, 3, 16, 16)


def relu_first_in_place() -> Any:
    return InPlace(partial(nn.ReLU, inplace=True), first=True), torch.randn(4, 3, 16, 16)


def changes_its_mind() -> Any:
    return InPlace(ChangesItsMind), torch.randn(4, 3, 16, 16)


def changing_buffer() -> Any:
    return ChangingBuffer(), (torch.randn(8, 16),)


def recurrent() -> Any:
    return Recurrent(), (torch.randn(2, 2, 4),)


def awkward() -> Any:
    return Awkward(), (torch.randn(4, 8),)


def repetitive() -> Any:
    return Repetitive(), (torch.randn(4, 8),)


def attention_dropout() -> Any:
    """Attention that drops out, written out by torch into single ops."""

    def loss(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x)[None]
        return F.scaled_dot_product_attention(y, y, y, dropout_p=0.3).square().sum()

    return loss, (nn.Linear(8, 8), torch.randn(5, 8))


CASES: tuple[Case, ...] = (mlp, conv, gpt, changing_buffer, recurrent, awkward, repetitive, attention_dropout)


class Plain(ScheduleSource):
    """The plain run: every op once, in the order of the joint graph."""

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        graph = graph_of(piece.joint, "step")
        return piece, GraphRecord.of(graph, plain_run(graph), simulate(graph, plain_run(graph)))


@dataclass(frozen=True)
class Again(ScheduleSource):
    """Runs again, before each backward op, all forward ops that it depends on and that may run again.

    Attributes:
        naive: take no notice of what may not run again, of inputs that change, and of the order of random ops.
    """

    naive: bool = False

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        graph = graph_of(piece.joint, "step")
        schedule = with_frees(graph, run_again(graph, naive=self.naive))
        judged = plain_run(graph) if self.naive else schedule
        return piece, GraphRecord.of(graph, schedule, simulate(graph, judged))


@dataclass(frozen=True)
class Moved(ScheduleSource):
    """Moves to the host, while nobody reads it, all that the forward pass makes and the backward pass reads."""

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        graph = graph_of(piece.joint, "step")
        schedule = moved(graph)
        return piece, GraphRecord.of(graph, schedule, simulate(graph, schedule, link=Link(Fraction(1))))


def moved(graph: Graph) -> Schedule:
    """Return the plain run with the transfers of `Moved`: out when made, back for each reader in the backward pass."""
    boundary = [op.name for op in graph.ops].index(BOUNDARY)
    forward, backward = graph.ops[:boundary], graph.ops[boundary + 1 :]
    read_later = {name for op in backward for name in op.inputs}
    movable = {name for op in forward for name in op.outputs if graph.tensors[name].bytes and name in read_later}
    movable -= {*graph.outputs, *graph.op[BOUNDARY].inputs}
    last_in_forward = {name: op.name for op in forward for name in (*op.outputs, *op.inputs)}
    steps: list[Step] = []
    for step in plain_run(graph).steps:
        if isinstance(step, Compute):
            op = graph.op[step.op]
            back = [name for name in op.inputs if name in movable] if op in backward else []
            steps += [Prefetch(name) for name in back] + [Wait(name) for name in back]
            steps += [step, *(Offload(name) for name in op.outputs if name in movable)]
            gone = [name for name in last_in_forward if name in movable and last_in_forward[name] == op.name]
            steps += [wait for name in gone for wait in (Wait(name), Free(name))]
            steps += [Free(name) for name in back]
        elif not (isinstance(step, Free) and step.tensor in movable):
            steps.append(step)
    return Schedule(tuple(steps))


def run_again(graph: Graph, *, naive: bool = False) -> list[str]:
    """Return the order of `Again`."""
    order: list[str] = []
    for op in graph.ops:
        if op.phase is Phase.BACKWARD and op.name != BOUNDARY:
            ancestors = forward_ancestors(graph, op.name)
            order += [name for name in ancestors if may_run_again(graph, name, naive=naive)]
        order.append(op.name)
    return order


def may_run_again(graph: Graph, name: str, *, naive: bool) -> bool:
    op = graph.op[name]
    # What has no results but tokens has effects only, and nobody would run that for its results.
    return op.recomputable or (naive and any(graph.tensors[made].shape is not None for made in op.outputs))


def forward_ancestors(graph: Graph, name: str) -> list[str]:
    """Return the forward ops that an op depends on, in order; dependence on tokens does not count."""
    needed: set[str] = {name}
    found: set[str] = set()
    while needed:
        op = graph.op[needed.pop()]
        made_by = {graph.producer[read].name for read in op.inputs if read in graph.producer and _is_value(graph, read)}
        new = {other for other in made_by if graph.op[other].phase is Phase.FORWARD} - found
        found |= new
        needed |= new
    return [op.name for op in graph.ops if op.name in found]


def _is_value(graph: Graph, tensor: str) -> bool:
    return graph.tensors[tensor].shape is not None


@dataclass(frozen=True)
class Outcome:
    """What a step came to.

    Attributes:
        loss: what it returned.
        gradients: of the parameters, by name; None where there is none.
        buffers: after the step, by name.
    """

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]

    def differences(self, other: Outcome) -> list[str]:
        """Return the names of what is not the same bit by bit."""
        names = [] if torch.equal(self.loss, other.loss) else ["loss"]
        for ours, theirs in ((self.gradients, other.gradients), (self.buffers, other.buffers)):
            assert ours.keys() == theirs.keys()
            for name, value in ours.items():
                if not _equal(value, theirs[name]):
                    names.append(name)
        return names


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def outcome(case: Case, source: Any = None, steps: int = 2) -> Outcome:
    """Return what `steps` steps of a case come to, gradients summed up; `source` plans them, None leaves them eager."""
    torch.manual_seed(0)
    step = as_step(case(), "case")
    modules = [value for value in (step.model, *step.inputs) if isinstance(value, nn.Module)]
    call = step.model if source is None else PlannedCall(step.model, source)
    loss = torch.zeros(())
    for seed in range(steps):
        torch.manual_seed(seed)
        loss = call(*step.inputs, **step.keyword_inputs)
        loss.backward()
    parameters = [pair for module in modules for pair in module.named_parameters()]
    return Outcome(
        loss.detach(),
        {name: parameter.grad for name, parameter in parameters},
        {name: buffer.clone() for module in modules for name, buffer in module.named_buffers()},
    )
