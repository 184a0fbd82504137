"""Code for CUDA without a GPU: a step's graphs on tensors that claim to be there, measuring by a fake allocator.

What torch captures on a GPU cannot be captured without one, so this is the graph of the CPU's kernels, moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from remat_cli.core.schedule import Compute, Offload, Prefetch, Schedule, Wait, plain_run
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint import BOUNDARY, Joint
from remat_cli.pytorch.capture.joint_capture import Captured, compiled, seen_by
from remat_cli.pytorch.memory import transfers
from remat_cli.pytorch.memory.live import LiveOnCuda
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.memory.transfers import HostMemory
from remat_cli.pytorch.programs.program import halves
from remat_cli.pytorch.unstable.front_end import forgetting
from tests.torch_steps import MLP

MODE = FakeTensorMode(allow_non_fake_inputs=True)


class Copies:
    """Copies of tensors without data, which have no addresses; written down by the device that each comes from."""

    def __init__(self) -> None:
        self.memory = HostMemory(lambda size: numpy.empty(size, numpy.uint8))
        self.log: list[str] = []

    def out(self, source: torch.Tensor) -> torch.Tensor:
        self.log.append(f"out of {source.device}")
        return torch.empty_like(source, device="cpu")

    def back(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.log.append(f"{host.device} to {device}")
        return torch.empty_like(host, device=device)

    def wait(self, host: torch.Tensor, device: torch.device) -> None:
        self.log.append(f"{device} waits for {host.device}")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    made = Copies()
    monkeypatch.setitem(transfers.COPIES, "cuda", made)
    return made


def captured() -> Captured:
    """Return the joint graph of a small step, with all its tensors on a GPU."""
    model = MLP(depth=3)
    with forgetting():
        seen = seen_by(lambda look: compiled(model._call_impl, look)(torch.ones(8, 16)))
    assert seen is not None
    storages: dict[int, torch.UntypedStorage] = {}

    def moved(value: FakeTensor) -> torch.Tensor:
        whole = value.untyped_storage()
        with MODE:
            if whole._cdata not in storages:
                there = torch.empty(whole.nbytes(), dtype=torch.uint8, device="cuda")
                storages[whole._cdata] = there.untyped_storage()
            fake = torch.empty(0, dtype=value.dtype, device="cuda")
            return fake.set_(storages[whole._cdata], value.storage_offset(), value.size(), value.stride())

    for node in seen.module.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map_only(FakeTensor, moved, node.meta["val"])
    return seen


def placed(graph: fx.GraphModule) -> Iterator[tuple[str, str]]:
    for node in graph.graph.find_nodes(op="placeholder"):
        if isinstance(node.meta.get("val"), torch.Tensor):
            yield node.name, node.meta["val"].device.type


def test_the_graphs_of_a_step_run_on_a_gpu(copies: Copies) -> None:
    joint = Joint.of(captured())
    assert joint.device == "cuda"
    steps = list(plain_run(graph_of(joint, "step")).steps)
    boundary = steps.index(Compute(BOUNDARY))
    moved = "addmm"
    out = (Offload(moved), Wait(moved))
    back = (Prefetch(moved), Wait(moved))
    divided = halves(joint, Schedule((*steps[:boundary], *out, steps[boundary], *back, *steps[boundary + 1 :])))
    places = [*placed(divided.forward), *placed(divided.backward)]
    assert {place for name, place in places if name.endswith("_on_host")} == {"cpu"}
    assert {place for name, place in places if not name.endswith("_on_host")} == {"cuda"}

    def given(graph: fx.GraphModule) -> list[Any]:
        return [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]

    with MODE, torch.no_grad():
        made = divided.forward(*given(divided.forward))
        saved = made[len(joint.forward_outputs) :]
        assert [value.device.type for value in saved] == ["cpu"] + ["cuda"] * (len(saved) - 1)
        gradients = divided.backward(*saved, *(tangent.meta["val"] for tangent in joint.tangents))
    assert {value.device.type for value in gradients if value is not None} == {"cuda"}
    waits = "cuda:0 waits for cpu"
    assert copies.log == ["out of cuda:0", waits, "cpu to cuda:0", waits]


class Allocator:
    """What CUDA's allocator tells."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.there = self.most = 1000  # of others
        patch.setattr(torch.cuda, "synchronize", lambda: None)
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: self.take(0, anew=True))
        patch.setattr(torch.cuda, "memory_allocated", lambda: self.there)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda: self.most)
        kinds = {"requested_bytes.all.current": "there", "requested_bytes.all.peak": "most"}
        patch.setattr(torch.cuda, "memory_stats", lambda: {key: getattr(self, name) for key, name in kinds.items()})

    def take(self, size: int, *, anew: bool = False) -> None:
        self.there += size
        self.most = max(0 if anew else self.most, self.there)


def test_the_peak_of_a_call_is_what_it_takes_beside_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch)
    allocator.take(500)
    allocator.take(-500)

    def call() -> None:
        allocator.take(70)
        allocator.take(-30)

    assert peak_of(call, "cuda") == 70
    assert peak_of(call, "cuda") == 70
    assert allocator.there == 1080


def test_steps_are_followed_by_what_the_allocator_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that the next one ends, one with an optimizer, and one after both are forgotten."""
    allocator, live = Allocator(monkeypatch), LiveOnCuda()
    weights = [torch.empty(25)]  # 100 bytes
    live.begin(weights)
    allocator.take(60)
    allocator.take(-40)
    assert live.end() == (160, 0)
    live.begin(weights)  # 20 bytes are left of the last step
    allocator.take(30)
    live.mark()
    allocator.take(-30)
    allocator.take(50)
    allocator.take(-50)
    assert live.end() == (150, 170)
    live.forget()
    live.begin(weights)
    allocator.take(10)
    assert live.end() == (110, 0)
