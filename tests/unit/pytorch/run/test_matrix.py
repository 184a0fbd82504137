"""Every pair of what users choose goes together, or is refused in words.

Each row is one choice of all properties. Rows are few: together they hold every pair. A row trains beside the unplanned
model: with its bits where eager's kernels run whole ops, else to rounding; and its measured peak is the predicted one.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

from remat_cli.cli import cli
from remat_cli.errors import RematError
from remat_cli.pytorch.unstable.tensors import local_part
from remat_cli.torch import plan_of, planned
from tests.places import ROOT
from tests.ranks import train_on_two_ranks
from tests.selection import ALWAYS

PROPERTIES = {
    "extent": ("whole", "blocks"),
    "kernels": ("eager", "compiled"),
    "moves": ("recompute", "offload", "split"),
    "ranks": ("one", "ddp", "fsdp2", "tensor"),
    "sizes": ("fixed", "changing"),
    "source": ("budget", "file"),
    "update": ("unplanned", "planned"),
}
Pair = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """One value of each property, by the order of `PROPERTIES`."""

    extent: str
    kernels: str
    moves: str
    ranks: str
    sizes: str
    source: str
    precision: str = "float32"
    update: str = "unplanned"

    @property
    def pairs(self) -> Iterator[frozenset[Pair]]:
        values = [(name, getattr(self, name)) for name in PROPERTIES]
        yield from map(frozenset, itertools.combinations(values, 2))

    def __str__(self) -> str:
        return " ".join(str(getattr(self, each.name)) for each in fields(self))


def rows(text: str) -> list[Row]:
    return [Row(*line.split()) for line in text.splitlines() if line.strip()]


# Rows that train in one process, and rows that two processes train.
ALONE = rows("""
    whole  eager    recompute one changing budget
    whole  eager    offload   one fixed    file
    whole  eager    split     one fixed    file
    whole  compiled recompute one fixed    file
    blocks eager    offload   one changing budget
    blocks eager    recompute one fixed    file
    whole  eager    offload   one changing budget float32 planned
    whole  eager    offload   one fixed    budget float32 planned
    whole  eager    split     one changing budget
    whole  compiled offload   one changing budget float32 planned
    whole  compiled split     one fixed    budget
    blocks compiled recompute one changing budget
    blocks compiled offload   one fixed    budget float32 planned
    blocks eager    offload   one fixed    file
    blocks eager    offload   one fixed    budget float32 planned
    blocks eager    recompute one changing budget float32 planned
    blocks eager    split     one changing budget float32 planned
    blocks eager    split     one fixed    file
""")
TOGETHER = rows("""
    whole  eager    offload   ddp    changing budget float32 planned
    blocks eager    offload   fsdp2  changing budget bfloat16 planned
    blocks eager    recompute tensor changing budget
    whole  eager    split     ddp    fixed    file
    blocks compiled recompute ddp    fixed    budget float32 planned
    blocks compiled recompute fsdp2  fixed    budget
    blocks eager    split     fsdp2  fixed    file
    blocks compiled offload   tensor fixed    budget float32 planned
    blocks eager    split     tensor fixed    file
""")


@dataclass(frozen=True)
class Refusal:
    """What does not go together, and why.

    Attributes:
        row: a row that is refused.
        pairs: the pairs of values that no row can have.
        words: what the refusal says.
        why: the reason, which the page gives.
    """

    row: Row
    pairs: frozenset[frozenset[Pair]]
    words: str
    why: str


def refusal(row: str, pairs: str, words: str, why: str) -> Refusal:
    """Return what is refused; pairs are given as values with a "+" between."""
    owner = {value: name for name, values in PROPERTIES.items() for value in values}
    named = (frozenset((owner[value], value) for value in pair.split("+")) for pair in pairs.split())
    return Refusal(Row(*row.split()), frozenset(named), words, why)


REFUSED = {
    "a sharded model as a whole": refusal(
        "whole eager recompute fsdp2 fixed budget",
        "whole+fsdp2",
        "sharded by fully_shard",
        "torch captures no communication of FSDP2: it stands in hooks around modules",
    ),
    "a split model as a whole": refusal(
        "whole eager recompute tensor fixed budget",
        "whole+tensor",
        "DTensors",
        "a plan of the whole is that of one rank, and what ranks exchange must come in one order on all",
    ),
    "a file at other sizes": refusal(
        "whole eager recompute one changing file",
        "changing+file",
        "is for another graph",
        "a file is proven for the sizes that it was planned for",
    ),
    "a file with a planned update": refusal(
        "whole eager recompute one fixed file float32 planned",
        "file+planned",
        "a schedule from a file has no updates of this optimizer",
        "a file knows no optimizer whose step it could run",
    ),
}


class Block(nn.Module):
    """Wide inside, so that what it makes is worth making again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.outer(F.gelu(self.inner(self.norm(x))))
        return x + hidden


class Model(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), labels)


def sharded(model: nn.Module, row: Row) -> nn.Module:
    """Return a model as the row's ranks have it."""
    if row.ranks == "tensor":
        mesh = init_device_mesh("cpu", (2,))
        for block in model.get_submodule("blocks").children():
            parallelize_module(block, mesh, {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    if row.ranks == "fsdp2":
        policy = MixedPrecisionPolicy(torch.bfloat16) if row.precision == "bfloat16" else MixedPrecisionPolicy()
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    return model


def options(row: Row) -> dict[str, Any]:
    chosen: dict[str, Any] = {"regions": "blocks.*" if row.extent == "blocks" else None}
    chosen |= {"fused": True} if row.kernels == "compiled" else {}
    if row.moves == "offload":
        chosen |= {"offload": True, "link_bandwidth": "12GB/s", "device": "h100"}
    return chosen | ({"split": True} if row.moves == "split" else {})


def planned_as(row: Row, model: nn.Module, files: Path, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
    """Plan a model as the row says."""
    seconds = 0.05 if (row.extent, row.moves) == ("blocks", "split") else 0.5  # cuts are searched for in 20 times that
    chosen = {**options(row), "optimizer": "momentum", "options": {"time_limit": seconds}}
    update: dict[str, Any] = {}
    if row.update == "planned":
        update = {"update": True, "optimizer": optimizer or momentum(model)}
    if row.source == "budget":
        return planned(model, budget=budget_of(row), **{**chosen, **update})
    return planned(model, schedule=file_of(row, files), fused=row.kernels == "compiled", **update)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def budget_of(row: Row) -> str:
    """Return a budget within which a row's moves are made."""
    if row.moves == "split":
        return "min" if row.extent == "blocks" else "50%" if is_cut(row) else "45%"
    return "65%" if is_cut(row) else "80%"


def is_cut(row: Row) -> bool:
    """Whether passes are compiled in pieces: one block and a tight budget then move tensors, or split, soon."""
    return (row.extent, row.kernels) == ("whole", "compiled") and row.moves != "recompute"


def file_of(row: Row, files: Path) -> Path:
    return files / f"{row.extent}-{row.kernels}-{row.moves}-{row.ranks}.json"


def whole_step() -> Any:
    """Return the step that `remat plan` reads."""
    return Model(), inputs(0, Row("whole", "eager", "recompute", "one", "fixed", "file"))


def write_blocks(row: Row, model: nn.Module, files: Path) -> None:
    """Plan a model by blocks for a row that runs by a file."""
    first = planned_as(replace(row, source="budget"), sharded(copy.deepcopy(model), row), files)
    step(first, *inputs(0, row))
    if row.ranks == "one" or dist.get_rank() == 0:
        plan_of(first).save(file_of(row, files))
    if row.ranks != "one":
        dist.barrier()


def write_file(row: Row, files: Path) -> None:
    """Plan the step on the command line for a row that runs by a file."""
    command = [
        "plan",
        f"{Path(__file__)}:whole_step",
        "--budget",
        budget_of(row),
        "--optimizer",
        "momentum",
        "--time-limit",
        "0.5",
    ]
    command += ["--fused"] if row.kernels == "compiled" else []
    command += ["--offload", "--link-bandwidth", "12GB/s", "--device", "h100"] if row.moves == "offload" else []
    command += ["--split"] if row.moves == "split" else []
    outcome = CliRunner().invoke(cli, [*command, "--output", str(file_of(row, files))])
    assert outcome.exit_code == 0, outcome.output


def inputs(number: int, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    count = (256, 192, 256)[number] if row.sizes == "changing" else 256
    generator = torch.Generator().manual_seed(number)
    return torch.randn(count, 32, generator=generator), torch.randint(64, (count,), generator=generator)


def step(model: nn.Module, *given: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(*given)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def trained(row: Row, files: Path) -> dict[str, Any]:
    """Train three steps as planned and unplanned; return what came of it."""
    torch.manual_seed(0)
    model: nn.Module = Model(1 if is_cut(row) else 3)
    if row.source == "file" and row.extent == "blocks":
        write_blocks(row, model, files)
    twin = sharded(copy.deepcopy(model), row)
    model = sharded(model, row)
    optimizers = [momentum(each) for each in (model, twin)]
    model = planned_as(row, model, files, optimizers[0])
    models = [nn.parallel.DistributedDataParallel(each) if row.ranks == "ddp" else each for each in (model, twin)]
    difference, predicted = 0.0, 0
    for number in range(3):
        losses = [step(each, *inputs(number, row)) for each in models]
        difference = max(difference, far(losses))
        if row.update != "planned":  # which uses up gradients
            difference = max(difference, *map(far, gradients_of(model, twin)))
        record: Any = plan_of(model)
        last = record if row.extent == "blocks" else record.last
        predicted = max(predicted, last.predicted_peak_bytes)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        difference = max(difference, *map(far, results_of(model, twin, *optimizers)))
    return {
        "difference": difference,
        "predicted": predicted,
        "measured": list(last.measured_peak_bytes),
        "unplanned": record.unplanned.total(),
        "parts": "parts" in str(record),
        "update": "updates " in str(record),
    }


def gradients_of(model: nn.Module, twin: nn.Module) -> Iterator[list[Any]]:
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        yield [one.grad, other.grad]


def results_of(
    model: nn.Module, twin: nn.Module, its: torch.optim.Optimizer, others: torch.optim.Optimizer
) -> Iterator[list[Any]]:
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        yield [one.detach(), other.detach()]
        yield [its.state[one]["momentum_buffer"], others.state[other]["momentum_buffer"]]


def far(values: list[Any]) -> float:
    """Return how far two tensors are apart, as a share of the largest value."""
    one, other = (local_part(value).double() for value in values)
    return float((one - other).abs().max() / other.abs().max().clamp_min(1e-30))


def check(row: Row, came: dict[str, Any]) -> None:
    """Hold a row against what it promises."""
    is_rounded = row.kernels == "compiled" or row.moves == "split"
    assert came["difference"] <= (1e-5 if is_rounded else 0), str(row)
    assert came["unplanned"] == 0, str(row)
    assert came["parts"] == (row.moves == "split"), str(row)
    assert came["update"] == (row.update == "planned"), str(row)
    # The optimizer's state is there from the second step on. What ranks
    # exchange differs between a rehearsal and a step by what a block gathers.
    if row.sizes == "fixed" and row.ranks == "one":
        assert max(came["measured"]) == pytest.approx(came["predicted"], abs=64), str(row)
    elif came["measured"]:
        assert max(came["measured"]) <= came["predicted"] + GATHERED_BYTES + 64, str(row)


GATHERED_BYTES = sum(parameter.nbytes for parameter in Block().parameters())


@pytest.mark.parametrize("row", ALONE, ids=str)
def test_a_row_trains_as_unplanned_at_its_peak(row: Row, tmp_path: Path) -> None:
    if row.source == "file" and row.extent == "whole":
        write_file(row, tmp_path)
    check(row, trained(row, tmp_path))


@pytest.mark.parametrize(
    "chosen",
    [TOGETHER[:3], TOGETHER[3:]],
    ids=["eager kernels, sizes that change", "the others"],
)
def test_rows_of_two_ranks_train_as_unplanned_at_their_peaks(chosen: list[Row], tmp_path: Path) -> None:
    for row in chosen:
        if row.source == "file" and row.extent == "whole":
            write_file(row, tmp_path)
    train_on_two_ranks(partial(_train_all, chosen), tmp_path)
    for rank in range(2):
        came = torch.load(tmp_path / f"rank{rank}.pt")
        assert came.keys() == set(map(str, chosen))
        for row in chosen:
            check(row, came[str(row)])


def _train_all(chosen: list[Row], rank: int, folder: Path) -> None:
    torch.save({str(row): trained(row, folder) for row in chosen}, folder / f"rank{rank}.pt")


@pytest.fixture
def one_of_two_ranks() -> Iterator[None]:
    """Be one of two ranks of which the other is not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused_in_words(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    refused = REFUSED[name]
    row = refused.row
    if row.ranks != "one":
        request.getfixturevalue("one_of_two_ranks")
    if row.source == "file":
        write_file(row, tmp_path)
    with pytest.raises(RematError, match=re.escape(refused.words)):
        run_twice(row, tmp_path)


def run_twice(row: Row, folder: Path) -> None:
    model = planned_as(row, sharded(Model(), row), folder)
    for number in range(2):
        step(model, *inputs(number, row))


def test_rows_of_every_run_hold_every_value() -> None:
    test = "tests/unit/pytorch/run/test_matrix.py::test_a_row_trains_as_unplanned_at_its_peak"
    always = [row for row in ALONE if f"{test}[{row}]".startswith(ALWAYS)] + TOGETHER[:3]
    assert {name: {getattr(row, name) for row in always} for name in PROPERTIES} == {
        name: set(values) for name, values in PROPERTIES.items()
    }


def test_every_pair_trains_or_is_refused() -> None:
    named = [(name, value) for name, values in PROPERTIES.items() for value in values]
    pairs = {frozenset(pair) for pair in itertools.combinations(named, 2) if pair[0][0] != pair[1][0]}
    trained_pairs = {pair for row in (*ALONE, *TOGETHER) for pair in row.pairs}
    refused_pairs = {pair for each in REFUSED.values() for pair in each.pairs}
    assert trained_pairs | refused_pairs == pairs
    assert trained_pairs & refused_pairs == set()


def test_the_page_gives_the_reason_of_each_refusal() -> None:
    page = " ".join((ROOT / "remat_cli/pytorch/README.md").read_text(encoding="utf-8").split())
    assert {name for name, each in REFUSED.items() if f"| {name} | {each.why} |" not in page} == set()
