"""Regions inside FSDP2: the bits of unplanned ranks, one plan for all of them, and the peak of each."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from remat_cli.errors import GraphError, UsageError
from remat_cli.pytorch.memory.live import LiveOnCpu, bytes_in
from remat_cli.pytorch.memory.shards import (
    Ranks,
    _device_to_ask_on,
    arrived,
    gathered_parameters,
    parameters_at_rest,
)
from remat_cli.pytorch.plan.rehearsal import Rehearsal
from remat_cli.torch import plan_of, planned
from tests.ranks import train_on_two_ranks
from tests.unit.pytorch.run.test_planned import same


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(nn.functional.gelu(self.inner(x).sin()).exp())  # type: ignore[no-any-return]


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()  # type: ignore[no-any-return]


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    for block in model.get_submodule("blocks").children():
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def parallel(model: nn.Module) -> nn.Module:
    """Split each block among two ranks, which FSDP2 has as one."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    for block in model.get_submodule("blocks").children():
        parallelize_module(block, mesh["tensor"], {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    return sharded(model, mesh=mesh["data"])


def by_blocks(model: nn.Module, budget: str) -> nn.Module:
    return planned(model, budget=budget, regions="blocks.*", optimizer="momentum", options={"time_limit": 0.3})


# How a model is sharded and planned on a rank, and how many samples each rank has in each step.
WAYS: dict[str, Any] = {
    "planned first, with less memory on one rank": (
        lambda model, rank: sharded(by_blocks(model, ("219kB", "216kB")[rank])),
        ((64, 64), (64, 64)),
    ),
    "sharded first, gathered once": (
        lambda model, rank: by_blocks(sharded(model, reshard_after_forward=False), "90%"),
        ((64, 64), (64, 64)),
    ),
    "tensor parallel": (lambda model, rank: by_blocks(parallel(model), "80%"), ((64, 64), (64, 64))),
    "other sizes on one rank": (
        lambda model, rank: by_blocks(sharded(model), "100%"),
        ((64, 64), (64, 48), (48, 48), (40, 36)),
    ),
    "no plan": (lambda model, rank: by_blocks(sharded(model), "10%"), ((64, 64),)),
}
# A rehearsal and a step differ by what one block gathers, as gloo's threads let go of a buffer sooner or later.
GATHERED_BYTES = sum(parameter.nbytes for parameter in Block().parameters())


def _gather(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.unshard()


def _train(names: Sequence[str], rank: int, folder: Path) -> None:
    """Train models in ways, as one of two processes, beside unplanned ones; leave what came of it in the folder."""
    found: dict[str, Any] = {}
    for name in names:
        way, sizes = WAYS[name]
        torch.manual_seed(0)
        model = Stack()
        is_parallel, plain = name == "tensor parallel", copy.deepcopy(model)
        twin = parallel(plain) if is_parallel else sharded(plain, reshard_after_forward="once" not in name)
        model = way(model, rank)
        equal = []
        models = {each: torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in (model, twin)}
        if "once" in name:  # before the first call, too
            _gather(model)
        try:
            for step, samples in enumerate(sizes):
                given = torch.randn(
                    samples[rank], 16, generator=torch.Generator().manual_seed(2 * step + rank * (not is_parallel))
                )
                for micro in range(2):  # the second one adds to gradients that are not reduced yet
                    for each in models:
                        each.set_requires_gradient_sync(micro == 1)  # type: ignore[operator]
                    model(given).backward(), twin(given).backward()
                pairs = zip(model.parameters(), twin.parameters(), strict=True)
                equal.append(all(torch.equal(a.grad.to_local(), b.grad.to_local()) for a, b in pairs))  # type: ignore
                for optimizer in models.values():
                    optimizer.step()
                    optimizer.zero_grad()
        except Exception as error:
            found[name] = type(error).__name__
        else:
            record: Any = plan_of(model)
            plans = [(path, point.planned.schedule) for path, point in record.points.items()]
            peaks = record.predicted_peak_bytes, record.measured_peak_bytes
            found[name] = equal, *peaks, dict(record.unplanned), record.plans, plans
        if is_parallel:
            ops = record.points["blocks.1"].planned.graph.ops
            found["order"] = [(op.inputs, op.outputs) for op in ops if "c10d" in op.type]
    torch.save(found, folder / f"{rank}.pt")


@pytest.mark.parametrize(
    "names",
    [
        ("planned first, with less memory on one rank", "other sizes on one rank"),
        ("sharded first, gathered once", "tensor parallel", "no plan"),
    ],
    ids=", ".join,
)
def test_two_ranks_train_as_unplanned_by_one_plan(names: Sequence[str], tmp_path: Path) -> None:
    train_on_two_ranks(partial(_train, names), tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    for found in ranks:
        assert found.pop("no plan", "DoesNotFit") == "DoesNotFit"
        if "order" in found:  # of a sum over ranks in the forward pass, and one in the backward
            (_, given), (needed, _) = found.pop("order")
            assert set(given) & set(needed)
        for name, (equal, predicted, measured, unplanned, made, plans) in found.items():
            assert all(equal), name
            assert not unplanned
            assert len(plans) == 3
            assert made == (3 if name == "other sizes on one rank" else 1), "a plan runs smaller inputs, too"
            # Gradients that are kept from one call to the next are left free once a step has shown them.
            if name != "other sizes on one rank":  # where the last plan is not that of all measured steps
                assert 0.97 * predicted - GATHERED_BYTES <= measured[-1] <= predicted + 16_384
    for name in {*names} - {"other sizes on one rank", "no plan"}:
        assert ranks[0][name][-1] == ranks[1][name][-1]


@pytest.fixture
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_what_does_not_go_with_shards_is_refused_in_words() -> None:
    x = torch.randn(8, 16)
    with pytest.raises(GraphError, match="sharded by fully_shard") as refusal:
        planned(sharded(Stack()), budget="90%", regions=None)(x)
    assert 'regions="auto"' in str(refusal.value.hint)
    model = Stack()
    fully_shard(model.blocks[1].get_submodule("inner"))
    with pytest.raises(UsageError, match=r"'blocks\.1' has a part of its own, 'inner'"):
        by_blocks(sharded(model), "100%")(x)


@pytest.mark.usefixtures("_alone")
def test_blocks_in_tensor_parallelism_are_planned() -> None:
    mesh = init_device_mesh("cpu", (1,))
    models: list[Any] = [Stack(), Stack()]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        for block in model.blocks:
            into = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
            ways = {"": into, "inner": ColwiseParallel(), "outer": RowwiseParallel(use_local_output=False)}
            parallelize_module(block, mesh, ways)
        parallelize_module(model.head, mesh, RowwiseParallel(input_layouts=Replicate()))
    whole = copy.deepcopy(models[0])
    planned(models[0], budget="min", regions="auto", options={"time_limit": 0.3})
    x = torch.randn(64, 16)
    for model in models:
        for _ in range(2):
            model(x).backward()
    gradients = [[part.grad.to_local() for part in model.parameters()] for model in models]
    assert same(*gradients)
    record: Any = plan_of(models[0])
    assert len(record.points) == 3
    assert not record.unplanned
    with pytest.raises(GraphError, match="DTensors") as refusal:
        planned(whole, budget="90%", regions=None)(x)
    assert 'regions="auto"' in str(refusal.value.hint)


def test_memory_that_dtensors_take_is_seen() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    rehearsal, live = Rehearsal(), LiveOnCpu()
    try:
        tensor = DTensor.from_local(torch.ones(1000), init_device_mesh("cpu", (2,)), [Shard(0)])  # half of the whole
        with rehearsal:
            held = [tensor + 1]
            assert rehearsal.level == 4000
        live.begin(())
        held.append(tensor + 1)
        assert live.end() == (4000, 0)
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_tensors_on_their_way_from_other_ranks_have_arrived() -> None:
    mesh = init_device_mesh("cpu", (1,))
    under_way = all_reduce(torch.ones(4), "sum", mesh).requires_grad_()
    assert type(under_way) is AsyncCollectiveTensor
    here = arrived(under_way)
    assert type(here) is torch.Tensor
    torch.autograd.backward((here * 3).sum())
    assert same([here, under_way.grad], [torch.ones(4), torch.full((4,), 3.0)])
    shard = DTensor.from_local(all_reduce(torch.ones(4), "sum", mesh), mesh, [Replicate()], run_check=False)
    assert type(arrived(shard)._local_tensor) is torch.Tensor


def test_region_that_is_compiled_is_refused() -> None:
    model: Any = Stack()
    model.blocks[1].compile(backend="eager")
    with pytest.raises(UsageError, match=r"'blocks\.1' was compiled"):
        by_blocks(model, "100%")(torch.randn(8, 16))


@pytest.mark.usefixtures("_alone")
def test_rehearsal_leaves_gradients_and_hooks_alone() -> None:
    model = Stack()
    twin = copy.deepcopy(model)
    by_blocks(sharded(model), "100%")
    calls: list[int] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: calls.append(0))  # type: ignore[no-untyped-call]
    x = torch.randn(8, 16)
    for size in (8, 5):  # each is rehearsed
        for each in (model, twin):
            torch.autograd.backward(each(x[:size]))
    assert len(calls) == 2 * len(list(model.parameters()))
    gradients: Any = [parameter.grad for parameter in model.parameters()]
    assert same([gradient.to_local() for gradient in gradients], [parameter.grad for parameter in twin.parameters()])


@pytest.mark.usefixtures("_alone")
def test_gathered_parameters_are_in_memory_beside_their_shards() -> None:
    model: Any = sharded(Stack())
    shards = list(model.parameters())
    whole = bytes_in(shards)
    _gather(model)
    gathered = gathered_parameters(model)
    assert list(map(id, gathered)) == list(map(id, model.parameters()))
    assert {id(part) for part in parameters_at_rest(model)} == set(map(id, shards))
    assert bytes_in([*shards, *gathered]) == 2 * whole
    rehearsal = Rehearsal()
    with rehearsal:
        rehearsal.follow(gathered)
        assert rehearsal.level == whole
        model.blocks[0].reshard()
        assert rehearsal.level == whole - GATHERED_BYTES


@pytest.mark.usefixtures("_alone")
def test_ranks_ask_over_the_host_where_they_can() -> None:
    gloo: Any = dist.group.WORLD
    nccl = SimpleNamespace(_device_types=[torch.device("cuda")])  # which communicates on CUDA alone
    assert [_device_to_ask_on(groups, "cuda") for groups in ([gloo], [gloo, nccl])] == ["cpu", "cuda"]


def test_one_process_alone_asks_nobody() -> None:
    ranks = Ranks()
    ranks.meet(Stack())
    assert (ranks.most(1, 2), ranks.all("x")) == ([1, 2], ["x"])
    with pytest.raises(UsageError, match="mine"):
        ranks.all_or_none(UsageError("mine"))
