"""What an optimizer is said to keep before its first step is what it keeps after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.testing._internal.two_tensor import TwoTensor

from remat_cli.errors import UsageError
from remat_cli.pytorch.capture.optimizer import checked_optimizer, kept_state, optimizer_state_bytes
from remat_cli.torch import plan_of, planned
from remat_cli.training import OPTIMIZERS
from tests.torch_steps import MLP

Make = Callable[[Sequence[nn.Parameter]], optim.Optimizer]

OF_TORCH: tuple[Any, ...] = (
    optim.ASGD,
    optim.Adadelta,
    optim.Adafactor,
    optim.Adagrad,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.Muon,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.SGD,
    partial(optim.AdamW, fused=True),
    partial(optim.Adam, foreach=True, amsgrad=True),
    partial(optim.SGD, momentum=0.9, fused=True),
    partial(optim.RMSprop, momentum=0.9, centered=True),
)


def name_of(make: Any) -> str:
    return f"{make.func.__name__} {make.keywords}" if isinstance(make, partial) else make.__name__


def kept_bytes(optimizer: optim.Optimizer) -> int:
    """The bytes of all in an optimizer's state but single numbers, counted another way than remat counts them."""
    tensors = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.dim())


@pytest.mark.parametrize("make", OF_TORCH, ids=name_of)
def test_state_before_the_first_step_is_that_after_it(make: Make) -> None:
    parameters = [nn.Parameter(torch.ones(6, 5)), nn.Parameter(torch.ones(3, 4).t())]
    optimizer = make(parameters)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.register_step_post_hook(lambda *_: pytest.fail("the step was taken by the optimizer itself"))
    before = optimizer_state_bytes(optimizer)
    assert all(torch.equal(parameter, torch.ones_like(parameter)) for parameter in parameters)
    assert [parameter.grad for parameter in parameters] == [None, None]
    assert schedule.get_last_lr() == [optimizer.param_groups[0]["lr"]]
    optimizer._optimizer_step_post_hooks.clear()
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.1)
    optimizer.step()
    assert before == kept_bytes(optimizer)
    assert optimizer_state_bytes(optimizer) == before


def test_all_optimizers_of_torch_are_tried() -> None:
    classes = {value for value in vars(optim).values() if isinstance(value, type) and value is not optim.Optimizer}
    tried = {getattr(make, "func", make) for make in OF_TORCH} | {optim.LBFGS, optim.SparseAdam}
    assert {each for each in classes if issubclass(each, optim.Optimizer)} == tried


def test_frozen_parameters_have_no_state() -> None:
    layer = nn.Linear(4, 4)
    layer.weight.requires_grad_(False)
    assert optimizer_state_bytes(optim.Adam(layer.parameters())) == 2 * 4 * 4


def test_sparse_adam_keeps_two_copies() -> None:
    layer = nn.Embedding(10, 4, sparse=True)
    optimizer = optim.SparseAdam(list(layer.parameters()))
    before = optimizer_state_bytes(optimizer)
    layer(torch.tensor([1, 2])).sum().backward()
    optimizer.step()  # type: ignore[no-untyped-call]
    assert before == kept_bytes(optimizer)


def test_history_of_lbfgs_is_counted_full() -> None:
    layer = nn.Linear(3, 2)
    optimizer = optim.LBFGS(layer.parameters(), history_size=3)
    x = torch.randn(5, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (torch.sin(layer(x)) - x[:, :2]).square().sum()
        torch.autograd.backward(loss)
        return loss

    before = optimizer_state_bytes(optimizer)
    for _ in range(5):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    (state,) = optimizer.state.values()
    vectors = [state["d"], state["prev_flat_grad"], *state["old_dirs"], *state["old_stps"]]
    assert len(vectors) == 8
    assert before == sum(vector.numel() * 4 for vector in vectors)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
def test_sharded_state_is_that_of_this_process() -> None:
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    layer = nn.Linear(4, 4)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        optimizer = checked_optimizer(ZeroRedundancyOptimizer(layer.parameters(), optim.Adam))
    finally:
        dist.destroy_process_group()
    assert type(optimizer) is optim.Adam
    assert optimizer_state_bytes(optimizer) == 2 * 20 * 4


def test_state_of_a_class_that_holds_tensors_is_all_of_them() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], 0.1)
    parts = torch.zeros(4), torch.ones(4)
    both: Any = TwoTensor(*parts)  # type: ignore[no-untyped-call]
    optimizer.state[parameter] = {"average": both, "step": torch.tensor(1.0)}
    assert [tensor is part for tensor, part in zip(kept_state(optimizer), parts, strict=True)] == [True, True]


def test_what_is_around_an_optimizer_is_looked_through() -> None:
    inner = optim.Adam(nn.Linear(4, 4).parameters())
    of_accelerate = type("AcceleratedOptimizer", (optim.Optimizer,), {"__module__": "accelerate.optimizer"})
    wrapper: Any = object.__new__(of_accelerate)
    wrapper.optimizer = inner
    assert checked_optimizer(wrapper) is inner


class Nested(optim.Optimizer):
    """Takes its steps by another one, which must not be stepped to find out."""

    def __init__(self, inner: optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step(closure)


def test_an_optimizer_that_cannot_be_told_asks_to_say_so() -> None:
    layer = nn.Linear(4, 4)
    layer.weight.grad = torch.ones(4, 4)
    before = layer.weight.detach().clone()
    with pytest.raises(UsageError, match="state of optimizer Nested cannot be told") as caught:
        planned(layer, budget="80%", optimizer=Nested(optim.SGD(layer.parameters(), lr=1)))
    assert "such as adam" in caught.value.hint
    assert torch.equal(layer.weight, before)


class Asking(optim.Optimizer):
    """Keeps a copy of each parameter where gradients are not zero, and asks for their norm to find out."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad.norm().item() > 0:
                self.state[parameter].setdefault("copy", torch.zeros_like(parameter))


def test_state_is_told_while_torch_captures_too() -> None:
    model = MLP()
    optimizer, weights = Asking(list(model.parameters())), sum(parameter.nbytes for parameter in model.parameters())
    assert optimizer_state_bytes(optimizer) == weights
    alone = planned(deepcopy(model), budget="100%")
    both = planned(model, budget="100%", optimizer=optimizer)
    fixed = []
    for each in (alone, both):
        each(torch.randn(4, 16)).backward()
        fixed.append(plan_of(each).graphs[0].fixed_bytes)
    assert fixed[1] - fixed[0] == weights


@pytest.mark.parametrize(("wrong", "says"), [(optim.Adam, "the class Adam"), (3, "3"), ([], r"\[\]"), (MLP(), "MLP")])
def test_what_is_no_optimizer_is_refused_at_once(wrong: Any, says: str) -> None:
    with pytest.raises(UsageError, match=f"optimizer: {says}.* is no optimizer") as caught:
        planned(MLP(), budget="80%", optimizer=wrong)
    assert "Adam(model.parameters())" in caught.value.hint


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("bitsandbytes.optim", "AdamW8bit"),
        ("bitsandbytes.optim", "Lion8bit"),
        ("torchao.optim", "AdamW8bit"),
        ("torchao.optim", "AdamW4bit"),
        ("transformers", "Adafactor"),
    ],
)
def test_optimizers_of_libraries(library: str, name: str) -> None:
    """Optional: where the libraries are installed."""
    make = getattr(pytest.importorskip(library), name)
    parameters = [nn.Parameter(torch.ones(64, 128)), nn.Parameter(torch.ones(7))]
    optimizer = make(parameters)
    before = optimizer_state_bytes(optimizer)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.1)
    with torch.compiler.set_stance("force_eager"):  # torchao compiles its step, which takes a minute
        optimizer.step()
    assert 0 < before == optimizer_state_bytes(optimizer) < 2 * sum(parameter.nbytes for parameter in parameters)


@pytest.mark.parametrize(("name", "make"), [("adafactor", optim.Adafactor), ("adamw", optim.AdamW)])
def test_named_optimizer_has_the_state_of_torchs(name: str, make: Make) -> None:
    parameters = [nn.Parameter(torch.ones(*shape, dtype=torch.bfloat16)) for shape in ((6, 5), (2, 3, 4), (7,))]
    named = sum(OPTIMIZERS[name](tuple(each.shape), each.nbytes) for each in parameters)
    assert named == optimizer_state_bytes(make(parameters))
