"""What the model does not see is measured in the first steps, and left free in the plans that follow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_post_hooks as optimizer_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

from remat_cli.errors import UsageError
from remat_cli.pytorch.memory.live import LiveOnCpu, bytes_in
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.memory.watch import StepWatch
from remat_cli.pytorch.plan.record import PlanRecord
from remat_cli.torch import plan_of, planned
from tests.torch_steps import MLP

BATCH, CLASSES = 256, 300


class Classifier(nn.Module):
    """Returns logits, which the caller makes a loss of."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(F.gelu(layer(x)))
        logits: torch.Tensor = self.head(x)
        return logits


def train(model: nn.Module, steps: int = 6, optimizer: torch.optim.Optimizer | None = None) -> list[torch.Tensor]:
    """Train with the loss outside the model; return the losses."""
    torch.manual_seed(1)
    x, y = torch.randn(BATCH, 32), torch.randint(CLASSES, (BATCH,))
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        torch.autograd.backward(loss)
        losses.append(loss.detach())
        if optimizer is not None:
            optimizer.step()
        model.zero_grad()
    return losses


def made(make: Callable[[], nn.Module] = Classifier, **asked: Any) -> nn.Module:
    torch.manual_seed(0)
    model = make()
    return planned(model, planner="dtr", **asked) if asked else model


def whole_step(model: nn.Module) -> int:
    fixed = sum(parameter.nbytes for parameter in model.parameters())
    return fixed + peak_of(lambda: train(model, 1), "cpu")


BUDGET = 1_300_000


def modes() -> list[object]:
    return list(_get_current_dispatch_mode_stack())


def test_a_loss_outside_the_model_is_measured_and_planned_for(caplog: pytest.LogCaptureFixture) -> None:
    model = made(budget=BUDGET)
    losses = train(model)
    record = plan_of(model)
    first, second = record.graphs
    assert first.predicted_peak_bytes <= BUDGET < first.measured_peak_bytes[0]
    assert len(second.measured_peak_bytes) == 3
    assert max(second.measured_peak_bytes) <= BUDGET
    assert whole_step(model) <= BUDGET
    assert [line.levelname for line in caplog.records if "planned again" in line.message] == ["WARNING"]
    assert all(map(torch.equal, losses, train(made())))


def test_what_is_said_to_be_reserved_is_left_free_from_the_start() -> None:
    model = made(budget=BUDGET, reserve="310kB")
    train(model)
    (plan,) = plan_of(model).graphs
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert plan.fixed_bytes == parameters + BATCH * 32 * 4 + 310_000
    assert BUDGET - 310_000 < whole_step(model) <= BUDGET


@pytest.mark.parametrize("wrong", [None, True, 2.5, "lots", [1]])
def test_a_reserve_that_is_no_size_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"reserve.*size"):
        planned(MLP(), budget="80%", reserve=wrong)


def test_a_reserve_of_the_whole_budget_is_refused() -> None:
    with pytest.raises(UsageError, match=r"2.000 GB leave nothing of a budget of 2.000 GB"):
        planned(MLP(), budget="2GB", reserve="2GB")


def test_a_step_that_no_plan_can_bring_below_the_budget_goes_on_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = made(budget=900_000)
    losses = train(model)
    assert caplog.text.count("No plan fits the budget of 900.0 kB here: the one of the least peak runs") == 1
    assert "planned again" not in caplog.text
    assert plan_of(model).calls == 6
    assert all(map(torch.equal, losses, train(made())))


def test_what_was_left_free_at_one_size_does_not_refuse_another(caplog: pytest.LogCaptureFixture) -> None:
    model = made(budget=620_000)
    for rows, beside in ((64, 30_000), (64, 30_000), (144, 0)):
        loss = model(torch.randn(rows, 32)).square().mean()
        (loss * torch.ones(beside)).mean().backward() if beside else loss.backward()
        model.zero_grad()
    assert [call.calls for call in plan_of(model).graphs] == [1, 1, 1]
    assert caplog.text.count("no plan that leaves that much free") == 1
    assert "235.4 kB are left free for what the model does not see" in caplog.text


def test_state_of_an_optimizer_that_was_not_named_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    for named in (False, True):
        model = made(lambda: nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)))
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        planned(model, budget="100%", optimizer=optimizer if named else None, planner="dtr")
        for _ in range(4):
            model(torch.randn(64, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        state = 2 * sum(parameter.nbytes for parameter in model.parameters())
        told = f"for the optimizer's state, {state / 1000:.1f} kB, which planned(..., optimizer=...) counts"
        assert (told in caplog.text) is not named
        caplog.clear()


def test_gradients_that_are_there_at_the_call_are_counted() -> None:
    peaks = []
    for kept in (False, True):
        torch.manual_seed(0)
        model = made(budget="100%")
        if kept:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        model(torch.randn(BATCH, 32))
        peaks.append(plan_of(model).graphs[0].plain_peak_bytes)
    assert peaks[1] - peaks[0] == sum(parameter.nbytes for parameter in Classifier().parameters())


def test_accumulated_gradients_are_seen_beside_the_optimizers_state() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 1)))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    planned(model, budget="100%", optimizer=optimizer)
    for _ in range(2):
        for _ in range(5):  # more than the first steps, before there is any state
            model(torch.randn(4, 300)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    first, last = plan_of(model).graphs
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert first.predicted_peak_bytes < 4.1 * parameters  # with one gradient, and the optimizer's state
    assert len(first.measured_peak_bytes) == 5
    assert first.measured_peak_bytes[-1] > 5 * parameters  # with one that is there before the call, too
    assert last.predicted_peak_bytes > 5 * parameters


def test_state_and_gradients_that_are_kept_are_both_left_free() -> None:
    """Two calls to a step: the state is missed in a first one, gradients are there at each second one."""
    model = made(lambda: MLP(depth=5, width=64), budget="80%")
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(6):
        for _ in range(2):
            model(torch.randn(256, 64)).backward()
        optimizer.step()
        optimizer.zero_grad()
    last = plan_of(model).graphs[-1]
    assert max(last.measured_peak_bytes) <= (last.budget_bytes or 0)


def test_a_watch_that_no_optimizer_ends_goes_with_its_model() -> None:
    before = len(optimizer_hooks)
    watch = StepWatch()
    watch.begin("cpu", [nn.Linear(2, 2)], ())
    watch.end()
    assert len(optimizer_hooks) == before + 1
    del watch
    assert len(optimizer_hooks) == before


def test_buckets_of_data_parallel_are_counted() -> None:
    import torch.distributed as dist

    def plain_peak(model: nn.Module, call: Callable[[torch.Tensor], Any]) -> int:
        call(torch.randn(BATCH, 32)).sum().backward()
        return plan_of(model).graphs[0].plain_peak_bytes

    alone = made(budget="100%")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        model = made(budget="100%")
        with_buckets = plain_peak(model, nn.parallel.DistributedDataParallel(model))
    finally:
        dist.destroy_process_group()
    assert with_buckets - plain_peak(alone, alone) == sum(parameter.nbytes for parameter in alone.parameters())


def test_the_optimizers_own_memory_is_told_where_it_is_above_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    model = made(lambda: nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 1)))
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    budget = 9 * sum(parameter.nbytes for parameter in model.parameters()) // 2
    planned(model, budget=budget, optimizer=optimizer)
    for _ in range(4):
        model(torch.randn(4, 300)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert caplog.text.count("in the optimizer's step") == 1


def test_after_the_first_steps_nothing_is_measured() -> None:
    model = made(budget="10MB")
    optimizer = torch.optim.SGD(model.parameters())
    train(model, 3, optimizer)
    call: Any = model._compiled_call_impl
    assert not call._watch.left
    before = torch.profiler.profile
    torch.profiler.profile = None  # type: ignore[assignment, misc]
    try:
        train(model, 2, optimizer)
    finally:
        torch.profiler.profile = before  # type: ignore[misc]
    record: PlanRecord = plan_of(model)
    assert len(record.graphs[0].measured_peak_bytes) == 3
    assert not call._watch._hooks


def test_a_profiler_of_the_user_is_left_alone() -> None:
    model = made(budget="100%")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        train(model, 2)
    assert any("addmm" in event.key for event in profile.key_averages())
    assert plan_of(model).graphs[0].measured_peak_bytes == []


def test_what_is_measured_is_what_the_profiler_sees() -> None:
    model = made(budget="10MB")
    train(model, 4)
    assert plan_of(model).graphs[0].measured_peak_bytes[-1] == pytest.approx(whole_step(model), rel=0.01)


def test_what_a_recurrent_layer_holds_is_seen() -> None:
    layer, live = nn.LSTM(4, 8), LiveOnCpu()
    x, state = torch.randn(10, 2, 4), torch.zeros(1, 2, 8)
    given = [x, state, *layer.parameters()]
    live.begin(given)
    made = torch.ops.remat.recurrent("lstm", x, [state, state], list(layer.parameters()), True, False)
    most, _ = live.end()
    results = bytes_in(made)
    del made
    assert most > bytes_in(given) + 2 * results
    assert live.bytes == bytes_in(given)


def test_two_models_in_turns_are_measured_side_by_side() -> None:
    models = [made(budget="10MB") for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters()) for model in models]
    before = modes()
    for _ in range(5):
        logits = [model(torch.randn(BATCH, 32)) for model in models]
        for each, optimizer in zip(logits, optimizers, strict=True):
            torch.autograd.backward(each.sum())
            optimizer.step()
    assert [len(plan_of(model).graphs[0].measured_peak_bytes) for model in models] == [3, 3]
    assert modes() == before


def test_a_mode_that_is_entered_in_the_midst_of_a_step_is_left_as_it_should_be() -> None:
    model, before = made(budget="10MB"), modes()
    for step in range(6):
        logits = model(torch.randn(BATCH, 32))
        with FlopCounterMode(display=False) if step < 2 else nullcontext():
            torch.autograd.backward(logits.sum())
    assert len(plan_of(model).graphs[0].measured_peak_bytes) == 3
    assert modes() == before


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_other_functions_are_compiled_while_a_step_is_measured() -> None:
    model, seen = made(budget="10MB"), []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        seen.append(graph)
        return graph.forward

    loss = torch.compile(lambda logits: F.cross_entropy(logits, torch.zeros(BATCH).long()), backend=backend)
    for _ in range(5):
        torch.autograd.backward(loss(model(torch.randn(BATCH, 32))))
    assert seen
    assert len(plan_of(model).graphs[0].measured_peak_bytes) == 3


def test_sparse_gradients_are_passed_over() -> None:
    model, table = made(budget="10MB"), nn.Embedding(300, 256, sparse=True)
    for _ in range(4):
        torch.autograd.backward(
            (model(torch.randn(BATCH, 32)) @ table(torch.arange(CLASSES)).detach()).sum() + table(torch.arange(3)).sum()
        )
    assert len(plan_of(model).graphs[0].measured_peak_bytes) == 3


def test_nothing_is_in_the_way_after_a_backward_pass_or_without_one() -> None:
    model = made(budget="10MB")
    before = modes()
    logits = model(torch.randn(BATCH, 32))
    assert modes() != before
    torch.autograd.backward(logits.sum())
    assert modes() == before
    logits = model(torch.randn(BATCH, 32))
    assert modes() != before
    del logits
    assert modes() == before


@dataclass
class Scored:
    loss: torch.Tensor
    logits: torch.Tensor


class WithLoss(Classifier):
    """Computes the loss after its layers."""

    def __init__(self, result: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.result = result

    def forward(self, x: torch.Tensor) -> Any:
        logits = super().forward(x)
        return self.result(logits.square().mean(), logits)


@pytest.mark.parametrize(
    ("result", "asked"),
    [(Scored, {}), (lambda *both: both, {}), (lambda *both: both, {"regions": "layers.*"})],
    ids=["object", "tuple", "regions"],
)
def test_a_result_that_is_dropped_without_a_backward_pass_ends_the_measuring(result: Any, asked: Any) -> None:
    model, before = made(lambda: WithLoss(result), budget="10MB", **asked), modes()
    for _ in range(2):
        scored = model(torch.randn(BATCH, 32))
        assert modes() != before
        loss = 2 * (scored.loss if isinstance(scored, Scored) else scored[0])
        del scored
        assert modes() != before  # the graph is there still
        del loss
        assert modes() == before
