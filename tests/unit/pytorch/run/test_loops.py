"""Training loops as people write them, planned as a whole and by blocks: eager's bits, missing gradients, and peak."""

from __future__ import annotations

import copy
import gc
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from remat_cli.errors import UsageError
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.run.planned import plan_of, planned

Optimizer = torch.optim.Optimizer
STEPS = 12  # by then nothing is planned anew
# Of kernels' workspace, which differs where weights are cast or copied once more; and of scalars.
SLACK = 4096


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        y: torch.Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return y


class Model(nn.Module):
    """A language model in small; what it returns, and what its blocks do, is up to its classes."""

    block = Block

    def __init__(self, vocabulary: int = 400, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(self.block(width) for _ in range(2))
        self.head, self.other = nn.Linear(width, vocabulary), nn.Linear(width, 3)

    def trunk(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens: torch.Tensor) -> Any:
        logits = self.head(self.trunk(tokens))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten()), logits


class Named(Model):
    def forward(self, tokens: torch.Tensor) -> Any:
        loss, logits = super().forward(tokens)
        return {"loss": loss, "logits": logits}


class Heads(Model):
    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.trunk(tokens)
        return self.head(x), self.other(x)


class Masked(Model):
    """Makes a mask at first need, and branches on it."""

    mask: torch.Tensor | None = None

    def trunk(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embedding(tokens)
        if self.mask is None:
            self.mask = torch.ones(32)
        if self.mask.sum() > 3:
            x = x * self.mask
        for block in self.blocks:
            x = block(x)
        return x


class Popping(Block):
    def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        y: torch.Tensor = super().forward(x) + rest[0].pop()
        return y


class Lists(Model):
    """Hands its blocks a list from which each takes something."""

    block = Popping

    def trunk(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embedding(tokens)
        skips = [x, 2 * x]
        for block in self.blocks:
            x = block(x, skips)
        return x


class Edges(nn.Module):
    """A layer of a graph network: leaves out loops, so that a size depends on the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges[:, edges[0] != edges[1]]
        y: torch.Tensor = torch.zeros_like(x).index_add(0, target, self.linear(x)[source]).relu()
        return y


class GraphNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Edges(), Edges()])

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, edges)
        return x.square().mean()


class Potential(nn.Module):
    """Returns an energy and its forces, by a gradient within the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        energy = self.blocks[1](self.blocks[0](x)).square().mean()
        (forces,) = torch.autograd.grad(energy, x, create_graph=True)
        total: torch.Tensor = energy + forces.square().mean()
        return total


def tokens() -> torch.Tensor:
    return torch.randint(400, (4, 32))


def loss_alone(model: Any, optimizer: Optimizer, number: int) -> None:
    model(tokens())[0].backward()
    optimizer.step()
    optimizer.zero_grad()


def all_held(model: Any, optimizer: Optimizer, number: int) -> None:
    returned = model(tokens())
    returned["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    assert torch.isfinite(returned["logits"].sum())


def heads_by_turns(model: Any, optimizer: Optimizer, number: int) -> None:
    optimizer.zero_grad()
    model(tokens())[number % 2].square().mean().backward()
    optimizer.step()


def zeroed_between(model: Any, optimizer: Optimizer, number: int) -> None:
    loss = model(tokens())[0]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def logits_later(model: Any, optimizer: Optimizer, number: int) -> None:
    loss, logits = model(tokens())
    (loss + logits.square().mean() if number % 3 == 1 else loss).backward()
    optimizer.step()
    optimizer.zero_grad()


def thawed(model: Any, optimizer: Optimizer, number: int) -> None:
    model.embedding.requires_grad_(number >= 2)
    model.blocks.requires_grad_(number >= 2)
    loss_alone(model, optimizer, number)


def accumulated(model: Any, optimizer: Optimizer, number: int) -> None:
    for _ in range(2):
        (model(tokens())[0] / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(tokens())
    model.train()


def penalised(model: Any, optimizer: Optimizer, number: int) -> None:
    loss = model(tokens())[0]
    gradients = torch.autograd.grad(loss, list(model.head.parameters()), create_graph=True)
    (loss + sum(gradient.square().sum() for gradient in gradients)).backward()
    optimizer.step()
    optimizer.zero_grad()


def two_graphs(model: Any, optimizer: Optimizer, number: int) -> None:
    places = torch.arange(64)
    model(torch.randn(16, 32), torch.stack([places % 5, places % (6 + number % 2)])).backward()
    optimizer.step()
    optimizer.zero_grad()


def forces(model: Any, optimizer: Optimizer, number: int) -> None:
    model(torch.randn(4, 8, 32, requires_grad=True)).backward()
    optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True)
class Loop:
    """A training loop.

    Attributes:
        name: what it does.
        model: what it trains.
        step: makes a step.
        optimizer: makes the optimizer.
        whole: it can be planned as a whole.
        blocks: it can be planned by blocks.
        eager_steps: some of its steps run back as eager, from the inputs, which takes more.
        rounded: whole or blocks, where gradients of a tensor are added up in another order than eager's.
    """

    name: str
    model: Callable[[], nn.Module]
    step: Callable[[Any, Optimizer, int], None]
    optimizer: Callable[[Any], Optimizer] = lambda parameters: torch.optim.SGD(parameters, 0.1)
    whole: bool = True
    blocks: bool = True
    eager_steps: bool = False
    rounded: str = ""


LOOPS = [
    Loop("loss and logits", Model, loss_alone),
    Loop("loss and logits by name, held", Named, all_held),
    Loop(
        "heads by turns, SGD",
        Heads,
        heads_by_turns,
        lambda of: torch.optim.SGD(of, 0.1, momentum=0.9),
        eager_steps=True,
    ),
    Loop(
        "heads by turns, AdamW",
        Heads,
        heads_by_turns,
        lambda of: torch.optim.AdamW(of, 0.01, weight_decay=0.1),
        eager_steps=True,
    ),
    Loop("gradients zeroed between the passes", Model, zeroed_between),
    Loop("logits used now and then", Model, logits_later, eager_steps=True),
    Loop("a trunk that is thawed", Model, thawed),
    Loop("accumulation, clipping, evaluation", Model, accumulated),
    Loop("gradient penalty", Model, penalised, blocks=False, eager_steps=True, rounded="whole"),
    Loop("a mask made at first need", Masked, loss_alone, whole=False),
    Loop("a list that blocks change", Lists, loss_alone, rounded="blocks"),
    Loop("two graphs by turns", GraphNetwork, two_graphs, blocks=False),
    Loop("forces", Potential, forces, blocks=False),
]
# Each takes seconds: of loops that run both ways, these run by blocks, too.
BY_BLOCKS = ("loss and logits", "heads by turns, AdamW", "accumulation, clipping, evaluation", "a trunk that is thawed")
CASES = [
    pytest.param(loop, regions, id=f"{loop.name}, {'whole' if regions is None else 'blocks'}")
    for loop in LOOPS
    for regions, is_possible in ((None, loop.whole), ("blocks.*", loop.blocks))
    if is_possible and (regions is None or not loop.whole or loop.rounded == "blocks" or loop.name in BY_BLOCKS)
]


def there(model: nn.Module, optimizer: Optimizer) -> int:
    state = [value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, torch.Tensor)]
    return sum(value.nbytes for value in (*model.parameters(), *model.buffers(), *state))


def trained(model: nn.Module, loop: Loop) -> tuple[list[torch.Tensor], list[list[bool]], int]:
    """Run a loop; return the weights, which gradients there were after each step, and the peak of the last two."""
    torch.manual_seed(1)
    optimizer = loop.optimizer(model.parameters())
    given: list[list[bool]] = []
    optimizer.register_step_pre_hook(lambda *_: given.append([part.grad is not None for part in model.parameters()]))
    for number in range(STEPS):
        loop.step(model, optimizer, number)
    # Torch's profiler sees the end of those tensors alone whose beginning it has seen: gradients are made anew.
    optimizer.zero_grad()
    gc.collect()

    def last_two() -> None:
        for number in range(STEPS, STEPS + 2):
            loop.step(model, optimizer, number)

    peak = there(model, optimizer) + peak_of(last_two, "cpu")
    return [part.detach().clone() for part in model.parameters()], given, peak


@pytest.mark.parametrize(("loop", "regions"), CASES)
def test_loop_trains_as_eager_does_and_takes_no_more(loop: Loop, regions: str | None) -> None:
    torch.manual_seed(0)
    model = loop.model().train()
    plain = copy.deepcopy(model)
    planned(model, budget="100%", regions=regions, device="h100", options={"time_limit": 0.5})
    weights, given, peak = trained(model, loop)
    expected, expected_given, expected_peak = trained(plain, loop)
    assert given == expected_given
    is_rounded = loop.rounded == ("whole" if regions is None else "blocks")
    same: Callable[..., bool] = partial(torch.allclose, rtol=1e-5, atol=1e-6) if is_rounded else torch.equal
    assert all(map(same, weights, expected))
    if not loop.eager_steps:
        assert peak <= expected_peak + SLACK
    assert plan_of(model).calls >= STEPS


def test_nothing_holds_logits_that_the_caller_lets_go_of() -> None:
    given = {"regions": None, "device": "h100", "options": {"time_limit": 0.5}}
    first = planned(Model(), budget="min", **given)  # type: ignore[arg-type]
    for _ in range(2):
        first(tokens())[0].backward()
        first.zero_grad()
    held, released = (plan.predicted_peak_bytes for plan in plan_of(first).graphs)
    assert released < held
    # The plan for logits that are held is refused, and another one made.
    model = planned(Model(), budget=(2 * released + held) // 3, **given)  # type: ignore[arg-type]
    gc.disable()
    try:
        for _ in range(3):
            loss, logits = model(tokens())
            memory = weakref.ref(logits.untyped_storage())
            del logits
            assert memory() is None
            loss.backward()
    finally:
        gc.enable()


def test_a_graph_network_is_planned_as_a_whole_where_its_blocks_cannot_be(caplog: pytest.LogCaptureFixture) -> None:
    model = GraphNetwork()
    plain = copy.deepcopy(model)
    planned(model, budget="100%", device="h100", options={"time_limit": 0.5})
    loop = Loop("two graphs by turns", GraphNetwork, two_graphs)
    assert all(map(torch.equal, trained(model, loop)[0], trained(plain, loop)[0]))
    assert len(plan_of(model).graphs) == 2
    assert "planned as a whole after all, for these sizes of its data" in caplog.text


def test_gradients_of_gradients_of_blocks_are_refused_in_words() -> None:
    model = planned(Model(), budget="100%", regions="blocks.*", options={"time_limit": 0.5})
    loss = model(tokens())[0]
    with pytest.raises(UsageError, match=r"region 'blocks\.\d': gradients that have gradients of their own"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.other = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.tanh(self.trunk(x))
        return self.head(x), self.other(x)


def rows_by_turns(model: Any, optimizer: Optimizer, number: int) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 4))[number % 2].square().mean().backward()
    optimizer.step()


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_fused_kernels_leave_out_gradients_that_are_missing() -> None:
    torch.manual_seed(0)
    loop = Loop("heads by turns", TwoHeads, rows_by_turns)
    model = loop.model().train()
    plain = copy.deepcopy(model)
    planned(model, budget="1MB", regions=None, fused=True, options={"time_limit": 0.5})
    (weights, given, _), (expected, expected_given, _) = trained(model, loop), trained(plain, loop)
    assert given == expected_given
    assert all(map(partial(torch.allclose, rtol=1e-4, atol=1e-5), weights, expected))
