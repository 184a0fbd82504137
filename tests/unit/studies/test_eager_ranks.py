"""What one rank of FSDP2 takes without a plan, beside what torch's profiler measures on two ranks of gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from remat_cli.config import GraphOptions
from remat_cli.errors import GraphError
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.studies.eager import EagerReplay, eager_run
from tests.ranks import train_on_two_ranks

RANKS = 2


class Part(nn.Module):
    def __init__(self, width: int, *, frozen: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.requires_grad_(not frozen)
        self.low = nn.Linear(width, width // 16, bias=False) if frozen else None
        self.high = nn.Linear(width // 16, width, bias=False) if frozen else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(F.gelu(self.up(x)))
        return result if self.low is None or self.high is None else result + self.high(self.low(x))


class Parts(nn.Module):
    """Embedding, parts, and a head."""

    def __init__(self, width: int, *, frozen: bool = False, words: int = 512, checkpoints: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.requires_grad_(not frozen)
        self.layers = nn.ModuleList(Part(width, frozen=frozen) for _ in range(6))
        self.checkpoints = checkpoints

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def long() -> Any:
    return Parts(64), (torch.zeros(16, 128, dtype=torch.int64),)


def wide() -> Any:
    return Parts(256), (torch.zeros(1, 16, dtype=torch.int64),)


def adapters() -> Any:
    return Parts(128, frozen=True), (torch.zeros(4, 64, dtype=torch.int64),)


def checkpoints() -> Any:
    return Parts(64, checkpoints=True), (torch.zeros(16, 128, dtype=torch.int64),)


class Borrowing(nn.Module):
    """Uses a block's parameters while the block does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.layers[0].weight).sum()  # type: ignore[arg-type]


def borrowing() -> Any:
    return Borrowing(), (torch.zeros(4, 64),)


BUILDS: tuple[Callable[[], Any], ...] = (long, wide, adapters, checkpoints)


def measure(rank: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    for build in BUILDS:
        model, inputs = build()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

        def once(model: nn.Module = model, inputs: Any = inputs) -> None:
            model(*inputs).backward()

        once()
        peaks = []
        for _ in range(3):  # gloo's thread may let go of a gathered block late
            model.zero_grad()
            peaks.append(peak_of(once, "cpu"))
        peak = min(peaks)
        if rank == 0:
            (folder / build.__name__).write_text(str(peak))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    folder = tmp_path_factory.mktemp("ranks")
    train_on_two_ranks(measure, folder)
    return {build.__name__: int((folder / build.__name__).read_text()) for build in BUILDS}


def sharded(build: Callable[[], Any], ranks: int | None = RANKS) -> EagerReplay:
    run = eager_run(Path(f"{build.__module__}:{build.__name__}"), GraphOptions(ranks=ranks))
    assert run is not None
    return run


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_the_peak_is_that_of_fully_shard(build: Callable[[], Any], measured: dict[str, int]) -> None:
    run = sharded(build)
    predicted = run.peak_bytes - run.graph.fixed_bytes
    # On the CPU a reduce-scatter copies what it is given; on GPUs it does not.
    copied = max((run.step.bytes[op.makes[0]] for op in run.step.ops if "reduce_scatter" in op.name), default=0)
    assert predicted * 0.99 <= measured[build.__name__] <= (predicted + copied) * 1.01


def test_parameters_and_gradients_are_shared_among_ranks() -> None:
    whole, two, eight = (sharded(wide, ranks) for ranks in (None, 2, 8))
    resident = whole.graph.fixed_bytes
    assert two.graph.fixed_bytes == pytest.approx(resident / 2, rel=0.01)
    assert eight.graph.fixed_bytes == pytest.approx(resident / 8, rel=0.01)
    assert eight.peak_bytes < two.peak_bytes < whole.peak_bytes
    assert "one of 8 ranks, as fully_shard of 6 blocks" in eight.step.notes[0]


def test_a_block_whose_parameters_are_used_outside_of_it_is_refused() -> None:
    with pytest.raises(GraphError, match=r"parameters of layers\.0 are used without a call"):
        sharded(borrowing)
