"""Once its first steps are measured, nothing in a planned step waits for the device: no value is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from remat_cli.torch import plan_of, planned
from tests.torch_steps import MLP

aten = torch.ops.aten
# Ops whose results depend on values, or hand one to Python: on a GPU, each waits until all before it is done.
_WAITING = {
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
}
# These count what is true in a mask.
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
# What takes values to the CPU without an op that a mode sees there. (`numpy()` is refused by tensors on a GPU.)
_METHODS = ("cpu", "tolist", "item", "__bool__", "__int__", "__float__", "__index__")


class _Waits(AssertionError):
    """Something waits for the device."""


class _NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        masks = (
            [index for index in args[1] if index is not None and index.dtype == torch.bool] if func in _INDEXING else []
        )
        if func in _WAITING or masks:
            raise _Waits(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def no_waiting() -> Iterator[None]:
    """While it is entered, have all that would wait for a GPU raise."""

    def raising(name: str) -> Callable[..., Any]:
        def method(*_: Any, **__: Any) -> Any:
            raise _Waits(name)

        return method

    with pytest.MonkeyPatch.context() as patch, _NoWaiting():  # type: ignore[no-untyped-call]
        for name in _METHODS:
            patch.setattr(torch.Tensor, name, raising(name))
        patch.setattr(torch.cuda, "synchronize", raising("torch.cuda.synchronize"))
        yield


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
        lambda _: torch.cuda.synchronize(),
    ],
    ids=["item", "bool", "cpu", "tolist", "nonzero", "mask", "equal", "synchronize"],
)
def test_what_waits_is_seen(wait: Callable[[torch.Tensor], object]) -> None:
    with no_waiting(), pytest.raises(_Waits):
        wait(torch.ones(2))


class Blocks(nn.Module):
    """Blocks with dropout and batch norm, and a branch between them that torch cannot capture."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (lambda: MLP(depth=4), {"budget": "80%"}),
        (lambda: MLP(depth=8), {"budget": "60%", "offload": True, "planner": "pofo"}),
        (lambda: MLP(depth=4), {"budget": "80%", "accumulate": True}),
        (Blocks, {"budget": "100%"}),
        (Blocks, {"budget": "90%", "regions": "blocks.*"}),
    ],
    ids=["whole", "offloading", "accumulated", "with buffers", "by regions"],
)
@pytest.mark.parametrize("sizes", [(64,), (64, 48)], ids=["one size", "two sizes"])
def test_a_planned_step_waits_for_nothing(
    model: Callable[[], nn.Module], options: Mapping[str, Any], sizes: tuple[int, ...]
) -> None:
    trained = planned(
        model(), device="a100", options={"time_limit": 0.3} if "planner" not in options else None, **options
    )
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    inputs = [torch.randn(size, 16) for size in sizes]

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=not options.get("accumulate"))
        trained(x).backward()
        optimizer.step()

    for _ in range(7):  # the first steps of each plan are measured
        for x in inputs:
            step(x)
    calls = plan_of(trained).calls
    with no_waiting():
        for x in inputs:
            step(x)
    assert plan_of(trained).calls == calls + len(sizes)
