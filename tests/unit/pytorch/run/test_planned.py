"""Steps that run as planned have the gradients of eager; done naively, they would not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remat_cli.errors import DoesNotFit, GraphError, InvalidSchedule, UsageError
from remat_cli.pytorch.capture import joint, joint_capture
from remat_cli.pytorch.plan.region_record import RegionsRecord
from remat_cli.pytorch.programs import self_test as self_test_module
from remat_cli.pytorch.run.call import PlannedCall
from remat_cli.torch import plan_of, planned
from tests.ranks import train_on_two_ranks
from tests.torch_steps import (
    CASES,
    MLP,
    Again,
    Case,
    ChangingBuffer,
    ManyOutputs,
    Plain,
    attention_dropout,
    changing_buffer,
    conv,
    gpt,
    outcome,
)


def again(model: Callable[..., Any]) -> PlannedCall:
    """Return a model's call with all that may run again run again."""
    return PlannedCall(model, Again())


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def twins(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    one = make()
    torch.manual_seed(0)
    return one, make()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_all_that_may_run_again_changes_no_bit(case: Case) -> None:
    assert outcome(case, Again()).differences(outcome(case)) == []


class NormedViews(nn.Module):
    """Normalizes a view through another order of dimensions: of one sample, its strides are not those traced."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(16, 16), nn.GroupNorm(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.mix(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)
        return self.norm(mixed + x).square().square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("samples", [1, 2])
def test_group_norm_of_views_changes_no_bit(samples: int) -> None:
    model, twin = twins(NormedViews)
    x = torch.randn(samples, 16, 4, 4)
    again(model)(x).backward()
    twin(x).backward()
    assert same(gradients(model), gradients(twin))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_keep_the_dropout_between_them(kind: Callable[..., nn.Module]) -> None:
    one, other = twins(lambda: kind(4, 4, 2, dropout=0.5, batch_first=True, bidirectional=True))
    x = torch.randn(2, 3, 4)
    for call in (one, PlannedCall(other, Plain())):
        torch.manual_seed(1)
        call(x)[0].square().sum().backward()
    for expected, found in zip(gradients(one), gradients(other), strict=True):
        torch.testing.assert_close(found, expected)


@torch.library.custom_op("remat_tests::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    x.mul_(2)


class Doubled(MLP):
    """Calls an op of the user's own that changes what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh().detach()
        double_(y)
        return super().forward(x + y)


class Conditional(MLP):
    """Chooses between two functions by data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            x = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return x.square().mean()


class Halved(MLP):
    """Reads its input only before the first product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * 0.5)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_an_input_may_change_before_the_backward_pass_where_only_recomputed_ops_read_it(needs_gradient: bool) -> None:
    twin, model = twins(Halved)
    _, plain = twins(Halved)
    weight = torch.ones(16, requires_grad=needs_gradient)
    for call in (twin, PlannedCall(plain, Plain()), again(model)):
        for _ in range(4):
            loss = call(x := torch.ones(4, 16) * weight)
            with torch.no_grad():
                x.div_(2)
            loss.backward()
    assert same(gradients(plain), gradients(twin))
    assert same(gradients(model), gradients(twin))


def test_an_input_that_changes_only_later_is_refused_in_words() -> None:
    _, model = twins(Halved)
    call, x = again(model), torch.ones(4, 16)
    for _ in range(2):
        call(x).backward()
    loss = call(x)
    x.div_(2)
    with pytest.raises(UsageError, match="an input of a planned call was changed in place"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("kind", [Doubled, Conditional])
def test_ops_of_higher_order_run_as_planned(kind: type[nn.Module]) -> None:
    twin, model = twins(kind)
    _, other = twins(kind)
    planned(other, budget="100%")
    x = torch.randn(4, 16)
    for call in (twin, other, again(model)):
        for _ in range(2):  # the second step is looked at from its beginning
            torch.autograd.backward(call(x))
    assert same(gradients(other), gradients(twin))
    assert same(gradients(model), gradients(twin))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_ops_of_higher_order_run_between_a_planned_call_and_its_backward_pass() -> None:
    twin, model = twins(lambda: nn.Linear(4, 4))
    planned(model, budget="100%")
    for each in (twin, model):
        for _ in range(2):
            y = each(torch.ones(3, 4))
            torch.autograd.backward(torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)).sum())
    assert same(gradients(model), gradients(twin))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("p", [0.1, 0.15, 1.0])
def test_dropout_has_eagers_bits(p: float, dtype: torch.dtype) -> None:
    twin, model = twins(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(p), nn.Linear(8, 8)).to(dtype))
    x = torch.randn(64, 8, dtype=dtype)
    losses = []
    for call in (twin, again(model)):
        torch.manual_seed(1)
        losses.append(call(x).float().square().mean())
        torch.autograd.backward(losses[-1])
    assert torch.equal(*losses)
    assert same(gradients(model), gradients(twin))


@pytest.mark.parametrize("case", [gpt, attention_dropout])
def test_random_ops_that_run_again_would_give_wrong_gradients(case: Case) -> None:
    assert outcome(case, Again(naive=True)).differences(outcome(case)) != []


def test_reading_a_changed_buffer_again_would_give_wrong_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "keep_old_values", lambda graph: None)
    assert "inner.weight" in outcome(changing_buffer, Again(naive=True)).differences(outcome(changing_buffer))


def test_writing_statistics_again_would_give_wrong_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_writes(graph: Any) -> list[str]:
        writes = [op.name for op in graph.ops if op.type == "aten.copy_"]
        norm = next(op.name for op in graph.ops if "batch_norm_legit" in op.type)
        names = [op.name for op in graph.ops]
        return [*names, norm, *writes]

    monkeypatch.setattr("tests.torch_steps.run_again", lambda graph, naive: with_writes(graph))
    assert "norm.running_mean" in outcome(conv, Again(naive=True)).differences(outcome(conv))
    with pytest.raises(InvalidSchedule, match="exactly once"):
        outcome(conv, Again())


def test_several_forward_passes_before_their_backward_passes() -> None:
    model, twin = twins(ChangingBuffer)
    batches = [torch.randn(8, 16) for _ in range(3)]
    call = again(model)
    (call(batches[0]) + 2 * call(batches[1]) + call(batches[2])).backward()
    (twin(batches[0]) + 2 * twin(batches[1]) + twin(batches[2])).backward()
    assert same(gradients(model), gradients(twin))
    assert same([*model.buffers()], [*twin.buffers()])


def test_backward_twice_and_accumulated() -> None:
    model, twin = twins(MLP)
    x = torch.randn(4, 16)
    for module, call in ((model, again(model)), (twin, twin)):
        call(x).backward()
        loss = call(x)
        loss.backward(retain_graph=True)
        loss.backward()
        assert module.training
    assert same(gradients(model), gradients(twin))


def test_outputs_that_are_inputs_views_and_numbers() -> None:
    model, twin = twins(ManyOutputs)
    x = torch.randn(3, 6)
    found, expected = again(model)(x), twin(x)
    assert found[0] is x
    assert found[1].data_ptr() == x[1:].data_ptr()
    assert found[4] == 7
    assert same([v for v in found if v is not found[4]], [v for v in expected if v is not expected[4]])
    assert found[5].data_ptr() == model.layer.weight.data_ptr()  # type: ignore[union-attr, operator]
    for outputs in (found, expected):
        (outputs[2].sum() + (outputs[3] * 3).sum() + outputs[5].square().sum()).backward()
    assert same(gradients(model), gradients(twin))


def test_input_that_is_changed_in_place_and_one_that_needs_a_gradient() -> None:
    def step(model: nn.Module, x: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(model(x)) * (counter + 1)
        counter.add_(1)
        result: torch.Tensor = (torch.tanh(y) * y).sum()
        return result

    model, twin = twins(lambda: nn.Linear(4, 4))
    results = []
    for module, call in ((model, again(step)), (twin, step)):
        x, counter = torch.ones(2, 4, requires_grad=True), torch.full((4,), 2.0)
        call(module, x, counter).backward()
        results.append((x.grad, counter, *gradients(module)))
    assert same(*results)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_input_with_gradient_that_is_changed_in_place() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x * 2)
        x.mul_(3)
        return (y * y).sum() + x.sum()

    results = []
    for call in (again(step), step):
        leaf = torch.linspace(-1, 1, 5, requires_grad=True)
        x = leaf.clone()
        call(x).backward()
        results.append((leaf.grad, x.detach()))
    assert same(*results)


def test_autocast_in_bfloat16() -> None:
    model, twin = twins(MLP)
    x = torch.randn(4, 16)
    for call in (again(model), PlannedCall(twin, Plain())):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = call(x)
        loss.backward()
    assert same(gradients(model), gradients(twin))


def test_checkpoints_of_the_model_are_left_to_the_plan() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(lambda y, layer=layer: torch.dropout(layer(y).relu(), 0.3, True), x, use_reentrant=False)
            return x.square().mean()

    model, twin = twins(Checkpointed)
    x = torch.randn(4, 16)
    for call in (again(model), twin):
        torch.manual_seed(3)
        call(x).backward()
    assert same(gradients(model), gradients(twin))


def test_module_stays_itself_and_runs_unplanned_where_it_does_not_train() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    x, names = torch.ones(2, 4), list(model.state_dict())
    result = planned(model, budget="100%", device="generic")
    assert result is model
    assert list(result.state_dict()) == names
    call: Any = model._compiled_call_impl
    with torch.no_grad():
        model(x)
    model.eval()
    assert torch.equal(model(x), model[0](x))
    assert not call.record.graphs
    model.train()(x).sum().backward()
    assert len(call.record.graphs) == 1


def test_larger_shapes_are_planned_and_smaller_ones_may_use_as_much_memory(caplog: pytest.LogCaptureFixture) -> None:
    model, twin = twins(lambda: MLP(depth=4))
    planned(model, budget="70%", planner="rotor")
    with caplog.at_level(logging.INFO, logger="remat"):
        for batch in (64, 64, 96, 32):
            x = torch.randn(batch, 16)
            model.zero_grad()
            model(x).backward()
    twin(x).backward()  # not within the steps, which are measured as wholes
    assert same(gradients(model), gradients(twin))
    record = plan_of(model)
    told = [(line.msg.split()[0], line.levelno) for line in caplog.records if line.name == "remat"]
    assert told == [("measured", logging.INFO), ("planned", logging.INFO)] * 2
    assert all(graph.overhead > 0 for graph in record.graphs)
    (smaller,) = record.graphs[1].carried
    assert smaller.inputs == {"x": (32, 16)}
    assert (smaller.overhead, smaller.budget_bytes) == (0, record.graphs[1].budget_bytes)


@pytest.mark.parametrize(("bandwidth", "moves"), [(None, True), ("1MB/s", False)])
def test_budget_is_planned_with_the_link(
    bandwidth: str | None, moves: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The device profile's link costs nothing, a slow one more than running again."""
    model, twin = twins(lambda: MLP(depth=4))
    x = torch.randn(64, 16)
    for _ in range(2):  # the second time, the plan comes from the folder
        model.zero_grad()
        twin.zero_grad()
        planned(
            model, budget="60%", offload=True, planner="pofo", device="a100", link_bandwidth=bandwidth, plans=tmp_path
        )
        model(x).backward()
        twin(x).backward()
        call: Any = model._compiled_call_impl
        assert [graph.schedule.has_transfers for graph in call.record.graphs] == [moves]
    assert ("saves no memory" in caplog.text) is moves
    assert same(gradients(model), gradients(twin))
    (kept,) = tmp_path.glob("plan-*")
    planned(model, kept)(x).backward()
    twin(x).backward()
    assert same(gradients(model), gradients(twin))


def test_copies_on_the_host_are_no_memory_of_the_device_in_measured_steps() -> None:
    """The second plan would leave that free, and be tighter than the budget."""
    model = MLP(depth=8)
    planned(model, budget="60%", offload=True, planner="pofo", device="a100")
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        model(torch.randn(256, 16)).backward()
    (plan,) = plan_of(model).graphs
    assert plan.schedule.has_transfers
    assert max(plan.measured_peak_bytes) == pytest.approx(plan.predicted_peak_bytes, abs=16)


def test_budget_below_the_floor_says_what_the_floor_is_and_why() -> None:
    model = planned(MLP(), budget=10_000)
    with pytest.raises(DoesNotFit, match=r"No plan that runs .* needs less than .* alone needs that") as caught:
        model(torch.ones(64, 16))
    assert "gradients" in caught.value.message
    assert "budget=" in caught.value.__notes__[0]


def test_optimizer_counts_against_the_budget() -> None:
    fixed = []
    for optimizer in (None, "adam", "itself"):
        model = MLP()
        given = torch.optim.Adam(model.parameters()) if optimizer == "itself" else optimizer
        planned(model, budget=1, optimizer=given, accumulate=optimizer == "itself")
        with pytest.raises(DoesNotFit) as caught:
            model(torch.ones(2, 16))
        fixed.append(caught.value.message.split("Always in memory are ")[1].split(" of")[0])
    # Parameters, 2.176 kB, and input; Adam keeps the former twice; accumulated gradients are there, too.
    assert fixed == ["2.304 kB", "6.656 kB", "8.832 kB"]


def test_function_with_the_loss_beside_the_model() -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Say so."""
        result: torch.Tensor = model(x).square().sum()
        return result

    model, twin = twins(lambda: nn.Linear(4, 4))
    step = planned(loss, budget="100%")
    for call, module in ((step, model), (loss, twin)):
        torch.autograd.backward(call(module, torch.ones(2, 4)))
    assert step.__doc__ == "Say so."
    assert same(gradients(model), gradients(twin))


def test_data_enclosing_parallel_a_planned_model() -> None:
    import torch.distributed as dist

    model, twin = twins(lambda: MLP(depth=2))
    x = torch.randn(8, 16)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        parallel = nn.parallel.DistributedDataParallel(planned(model, budget="100%"))
        parallel(x).backward()
        with pytest.raises(UsageError, match="cannot be captured") as raised:
            planned(lambda model, x: model(x) * 2, budget="100%")(parallel, x)
        assert "planned(ddp)" in str(raised.value.hint)
    finally:
        dist.destroy_process_group()
    twin(x).backward()
    assert same(gradients(model), gradients(twin))
    call: Any = model._compiled_call_impl
    assert len(call.record.graphs) == 1


def _trained_by_two(rank: int, folder: Path) -> None:
    """Train the same model in three ways, as one of two processes; leave weights and calls in the folder."""
    parallel = nn.parallel.DistributedDataParallel
    ways: dict[str, Callable[[nn.Module], nn.Module]] = {
        "eager": parallel,
        "inside": lambda model: parallel(planned(model, budget="90%"), static_graph=True),
        "outside": lambda model: planned(parallel(model), budget="90%"),
    }
    found: dict[str, Any] = {}
    for name, way in ways.items():
        torch.manual_seed(0)
        model = MLP(depth=4)
        trained = way(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            x = torch.randn(64, 16, generator=torch.Generator().manual_seed(2 * step + rank))
            trained(x).backward()
            optimizer.step()
            optimizer.zero_grad()
        calls = 0 if name == "eager" else plan_of(trained if name == "outside" else model).calls
        found[name] = (calls, [parameter.detach() for parameter in model.parameters()])
    torch.save(found, folder / f"{rank}.pt")


def test_data_parallel_both_ways_round_in_two_processes(tmp_path: Path) -> None:
    train_on_two_ranks(_trained_by_two, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert [calls for calls, _ in first.values()] == [0, 2, 2]
    for _, weights in [*first.values(), *second.values()]:
        assert same(weights, first["eager"][1])


def test_sharded_parameters_are_refused() -> None:
    class Sharded(nn.Parameter):
        pass

    model = nn.Linear(4, 4)
    model.weight = Sharded(model.weight)
    with pytest.raises(UsageError, match="'weight' is a Sharded"):
        planned(model, budget="80%")(torch.ones(2, 4))


def test_call_that_torch_does_not_hand_over_is_not_run_unplanned_in_silence() -> None:
    with torch.compiler.set_stance("force_eager"), pytest.raises(UsageError, match="switched off"):
        planned(MLP(), budget="80%")(torch.ones(2, 16))


def test_step_that_cannot_be_captured_says_where() -> None:
    class Branching(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y if y > 0 else -y

    with pytest.raises(GraphError, match=r"test_planned\.py:\d+: Data-dependent"):
        planned(Branching(), budget="80%", regions=None)(torch.ones(2, 16))


def test_gradient_asked_for_within_the_step_says_what_asks() -> None:
    model = MLP()
    layer: Any = model.layers
    layer[0].requires_grad_(False).register_forward_hook(lambda _, inputs, output: output.requires_grad_(True))
    with pytest.raises(GraphError, match="requires_grad_") as raised:
        planned(model, budget="80%", regions=None)(torch.ones(2, 16))
    assert "disable_input_require_grads()" in str(raised.value.hint)


def test_unsupported_torch_is_named_with_the_tested_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    joint_capture.check_supported.cache_clear()
    monkeypatch.setattr(joint_capture, "_source", lambda node: "")
    try:
        with pytest.raises(UsageError, match="does not work with this version of remat: its sources") as caught:
            joint_capture.check_supported()
        assert "2.13" in caught.value.hint
    finally:
        joint_capture.check_supported.cache_clear()


def test_self_test_sees_wrong_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    self_test_module.self_test.cache_clear()
    monkeypatch.setattr(joint, "keep_old_values", lambda graph: None)
    try:
        with pytest.raises(UsageError, match="other gradients than eager"):
            self_test_module.self_test()
    finally:
        self_test_module.self_test.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a schedule or a budget"),
        ({"schedule": "s.json", "budget": 1}, "needs a schedule or a budget"),
        ({"budget": "lots"}, "lots"),
        ({"budget": True}, "no size"),
        ({"budget": 1, "optimizer": "adamm"}, "unknown optimizer"),
        ({"budget": 1, "device": 3}, "device: 3 is no path"),
        ({"budget": 1, "measurements": 3}, "measurements: 3 is no path"),
        ({"budget": 1, "plans": 3}, "plans: 3 is no path"),
        ({"schedule": 3}, "schedule: 3 is no path"),
        ({"budget": 1, "options": "fast"}, "options: 'fast' is no mapping"),
        ({"budget": 1, "planner": None}, "there is no 'None'"),
        ({"budget": 1, "calls": 0}, "calls: 0 is no number of calls"),
        ({"budget": 1, "calls": 2, "split": True}, "recompute alone"),
        ({"budget": 1, "calls": 2, "fused": True}, "run eager's kernels"),
        ({"schedule": "s.json", "calls": 2}, "is for one call"),
        ({"budget": 1, "regions": []}, "regions: none is named"),
        ({"budget": 1, "regions": 3}, "regions: the model has no part 3"),
    ],
)
def test_wrong_call(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(MLP(), **arguments)


def test_plans_count_calls_that_come_before_a_backward_pass() -> None:
    model, twin = twins(lambda: nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))))
    budget = 4_000_000
    planned(model, budget=budget, planner="rotor")
    for _ in range(4):
        microbatches = [torch.randn(512, 64) for _ in range(3)]
        for each in (model, twin):
            each.zero_grad()
            for loss in [each(x).square().mean() for x in microbatches]:
                loss.backward()
        assert same(gradients(model), gradients(twin))
    plan = plan_of(model).last
    assert plan is not None
    assert plan.plain_peak_bytes > 6_000_000
    assert plan.measured_peak_bytes
    assert max(plan.measured_peak_bytes) <= plan.predicted_peak_bytes + 2 * 16_384 <= budget + 2 * 16_384


@pytest.mark.parametrize("regions", [None, "*"])
def test_several_calls_that_are_said_are_planned_for_at_once(regions: str | None) -> None:
    model, twin = twins(lambda: nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))))
    planned(model, budget="60%", planner="rotor", calls=3, regions=regions)
    microbatches = [torch.randn(512, 64) for _ in range(3)]
    for each in (model, twin):
        for loss in [each(x).square().mean() for x in microbatches]:
            loss.backward()
    assert same(gradients(model), gradients(twin))
    record = plan_of(model)
    planned_step = record if isinstance(record, RegionsRecord) else record.graphs[0]
    predicted = planned_step.predicted_peak_bytes
    model(microbatches[0])  # which ends the measured step
    unseen = 2 * microbatches[0].nbytes  # two tensors of the loss
    assert 0.9 * predicted < max(planned_step.measured_peak_bytes) <= predicted + unseen + 16_384


def test_the_smallest_budget_for_several_calls_holds_their_inputs() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))

    def mean_square(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()  # type: ignore[no-any-return]

    call = planned(mean_square, budget="min", planner="rotor", calls=3)
    for loss in [call(torch.randn(512, 64)) for _ in range(3)]:
        loss.backward()  # type: ignore[no-untyped-call]
    (planned_step,) = plan_of(call).graphs
    call(torch.randn(512, 64))  # which ends the measured step
    assert 0.98 * planned_step.predicted_peak_bytes < max(planned_step.measured_peak_bytes)
    assert max(planned_step.measured_peak_bytes) <= planned_step.predicted_peak_bytes + 64  # a number for each loss
