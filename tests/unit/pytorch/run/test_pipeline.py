"""Planned pipelines within torch's pipelining: bits of the unplanned step, and the planned peak of each rank."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu

from remat_cli.config import GraphOptions, Request
from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.reader import ReadOptions
from remat_cli.pipelines import PipelineRequest, StageCuts, cut_graph, plan_pipeline
from remat_cli.pipelines.cuts import named_cuts
from remat_cli.pipelines.file import pipeline_bytes
from remat_cli.pipelines.planner import residents_of
from remat_cli.pipelines.request import ChunkOrder, parse_rank_budgets
from remat_cli.prepare import prepare_reading, read
from remat_cli.pytorch.capture.reader import take_step
from remat_cli.pytorch.memory.memory import allocations_of
from remat_cli.pytorch.programs.stages import crossings
from remat_cli.pytorch.unstable import pipelining
from remat_cli.torch import PlannedPipeline
from tests.ranks import train_on_two_ranks

STEP = f"{__file__}:step"
TIED = f"{__file__}:tied"
MICROBATCHES = 4
BATCH, WIDTH = 64, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(gelu(self.up(self.norm(x))))
        return out


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        loss: torch.Tensor = cross_entropy(self.head(x), labels)
        return loss


class Tied(nn.Module):
    """The last layer has the weights of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.middle:
            x = layer(x)
        loss: torch.Tensor = self.first(x).square().mean()
        return loss


def step() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Classifier(), (torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,)))


def tied() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Tied(), (torch.randn(BATCH, WIDTH),)


def plan_of_step(path: Path, budget: str, **more: object) -> Path:
    options = GraphOptions()
    reading = read(Path(STEP), options)
    prepared = prepare_reading(reading, STEP, options)
    request = PipelineRequest(2, MICROBATCHES, parse_rank_budgets(budget), **more)  # type: ignore[arg-type]
    planning = plan_pipeline(prepared, residents_of(prepared.graph, reading), request, Request())
    path.write_bytes(pipeline_bytes(planning))
    return path


def train(plan: Path, rank: int, folder: Path) -> None:
    """Run two steps as planned; leave a line of what differs from one process, and the peak beside the planned one."""
    torch.manual_seed(0)
    model = Classifier()
    alone = copy.deepcopy(model)
    data = [(torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,))) for _ in range(MICROBATCHES)]
    pipeline = PlannedPipeline(model, STEP, plan)
    pipeline.step(*data)
    for parameter in pipeline.parameters:
        assert parameter.grad is not None
        parameter.grad.zero_()
    losses: list[torch.Tensor] = []
    allocations = allocations_of(lambda: losses.extend(pipeline.step(*data)))
    expected = [alone(*each) for each in data]
    for loss in expected:
        loss.backward()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    own = {id(parameter) for parameter in pipeline.parameters}
    wrong = [
        tuple(one.shape)
        for one, other in pairs
        if id(one) in own and not torch.equal(one.grad, other.grad / MICROBATCHES)  # type: ignore[arg-type,operator]
    ]
    fixed = 2 * sum(parameter.nbytes for parameter in pipeline.parameters)
    fixed += sum(each[rank].nbytes for each in data) + pipeline.received_bytes
    outcome = {
        "wrong": wrong,
        "parameters": len(own),
        "losses": len(losses) == MICROBATCHES * rank and all(map(torch.equal, losses, expected)),
        "peak": (allocations.peak + fixed) / pipeline.peak_bytes,
    }
    (folder / f"{rank}.json").write_text(json.dumps(outcome))


@pytest.mark.parametrize(
    ("budget", "more"),
    [("80%", {}), ("110%", {"split_backward": True}), ("90%", {"chunks": 2})],
    ids=["recomputes", "splits the backward pass", "has two chunks a rank"],
)
def test_ranks_have_the_bits_of_one_process_and_the_planned_peak(
    budget: str, more: dict[str, object], tmp_path: Path
) -> None:
    plan = plan_of_step(tmp_path / "pipeline.json", budget, **more)
    train_on_two_ranks(partial(train, plan), tmp_path)
    outcomes = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [outcome["wrong"] for outcome in outcomes] == [[], []]
    assert sum(outcome["parameters"] for outcome in outcomes) == len(list(Classifier().parameters()))
    assert all(outcome["losses"] for outcome in outcomes)
    assert [outcome["peak"] for outcome in outcomes] == pytest.approx([1, 1], abs=0.03)


def test_chunks_that_follow_on_one_rank_have_the_bits_of_one_process(tmp_path: Path) -> None:
    plan = plan_of_step(tmp_path / "pipeline.json", "90%", chunks=2, chunk_order=ChunkOrder.V, split_backward=True)
    train_on_two_ranks(partial(train_v, plan), tmp_path)
    assert [json.loads((tmp_path / f"{rank}.json").read_text())["wrong"] for rank in range(2)] == [[], []]


def train_v(plan: Path, rank: int, folder: Path) -> None:
    """Run a step in which the first rank has the last stage, too."""
    torch.manual_seed(0)
    model = Classifier()
    alone = copy.deepcopy(model)
    data = [(torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,))) for _ in range(MICROBATCHES)]
    pipeline = PlannedPipeline(model, STEP, plan)
    losses = pipeline.step(*data)
    for each in data:
        alone(*each).backward()
    own = {id(parameter) for parameter in pipeline.parameters}
    wrong = [
        tuple(one.shape)
        for one, other in zip(model.parameters(), alone.parameters(), strict=True)
        if id(one) in own and not torch.equal(one.grad, other.grad / MICROBATCHES)  # type: ignore[arg-type,operator]
    ]
    assert len(losses) == (MICROBATCHES if rank == 0 else 0)
    (folder / f"{rank}.json").write_text(json.dumps({"wrong": wrong}))


@pytest.fixture
def alone(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_plan_for_other_ranks_is_refused(tmp_path: Path) -> None:
    plan = plan_of_step(tmp_path / "pipeline.json", "100%")
    with pytest.raises(UsageError, match="for 2 ranks, and here are 1"):
        PlannedPipeline(Classifier(), STEP, plan)


def test_stages_that_are_no_neighbours_cannot_hand_on() -> None:
    taken = take_step(TIED, ReadOptions())
    graph = taken.reading().graph
    cuts = named_cuts(graph, ("middle.0", "middle.1"))
    chunks = cut_graph(graph, StageCuts(cuts.first_ops), residents_of(graph, taken.reading()))
    with pytest.raises(GraphError, match="between neighbours alone"):
        crossings(taken.joint, chunks)


def test_torch_that_reads_jobs_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pipelining.check_jobs_are_read()
    monkeypatch.setattr("torch.distributed.pipelining.schedules._Action.from_str", lambda _: None)
    with pytest.raises(UsageError, match="reads jobs otherwise"):
        pipelining.check_jobs_are_read()
