"""Calls as loops make them: as planned, or with a word about what is not; hooks and errors of the user stay theirs."""

from __future__ import annotations

import copy
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils.flop_counter import FlopCounterMode

import remat_cli
from remat_cli.errors import GraphError, UsageError
from remat_cli.torch import plan_of, planned
from tests.torch_steps import MLP
from tests.unit.pytorch.run.test_planned import gradients, same, twins


class Trained(MLP):
    """With a method that trains, as Lightning's modules have."""

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x).sum() if isinstance(self.layers, nn.Sequential) else self(x)
        return result


class Unplanned(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # of its own: torch.compile counts captures by code
        return super().forward(x)

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def batch() -> torch.Tensor:
    return torch.randn(8, 16)


def backward(loss: torch.Tensor) -> None:
    torch.autograd.backward(loss)


@contextmanager
def silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize(
    "train",
    [
        lambda model: model.forward(batch()),
        lambda model: model.training_step(batch()),
        lambda model: model.layers[1](batch()).sum(),
        lambda model: (model.compile(backend="eager"), model(batch()))[1],
    ],
    ids=["forward", "method", "part", "compile"],
)
def test_training_past_the_plan_is_warned_of_once(train: Callable[[nn.Module], torch.Tensor]) -> None:
    model = planned(Unplanned(), budget="100%")
    with pytest.warns(UserWarning, match="at a planned Unplanned, and no call of it ran as planned"):
        backward(train(model))
    with silence():
        backward(train(model))
    assert "gradients arrived that no planned backward pass had made" in str(plan_of(model))


@pytest.mark.parametrize("train", [lambda model: model.forward(batch()), lambda model: model.eval()(batch())])
def test_call_past_the_plan_is_warned_of_after_planned_ones_too(train: Callable[[nn.Module], torch.Tensor]) -> None:
    model = planned(Unplanned(), budget="100%")
    with silence():
        backward(model(batch()))
    with pytest.warns(UserWarning, match="at a planned Unplanned that no planned call of it has made"):
        backward(train(model))
    with silence():
        backward(train(model))


def test_method_that_calls_the_module_trains_as_planned() -> None:
    model = planned(Trained(), budget="100%")
    with silence():
        backward(model.training_step(batch()))
    assert plan_of(model).calls == 1


def test_backward_twice_planned_anew_and_part_of_another_are_no_reason_to_warn() -> None:
    model = planned(MLP(), budget="100%")
    with silence():
        loss = model(batch())
        torch.autograd.backward(loss, retain_graph=True)
        backward(loss)
        planned(model, budget="100%", planner="dtr")
        backward(model(batch()))
        whole = planned(nn.Sequential(nn.Linear(16, 16), model), budget="100%")
        backward(whole(batch()))
    assert (plan_of(model).calls, plan_of(whole).calls) == (1, 1)


@pytest.mark.parametrize("called_before", [False, True])
def test_copy_of_a_planned_module_runs_by_plans_of_its_own(called_before: bool) -> None:
    model = planned(MLP(), budget="100%")
    if called_before:
        backward(model(batch()))
    model.zero_grad()
    twin = copy.deepcopy(model)
    with silence():
        backward(twin(batch()))
    assert (plan_of(twin).calls, plan_of(model).calls) == (1, int(called_before))
    assert all(gradient is None for gradient in gradients(model))
    assert all(gradient is not None for gradient in gradients(twin))
    with pytest.warns(UserWarning, match="at a planned MLP that no planned call"):
        backward(twin.forward(batch()))


@pytest.mark.parametrize("regions", ["auto", "layers.*"])
def test_copies_have_a_budget_of_their_own_and_are_as_strict(regions: str) -> None:
    model = planned(MLP(depth=4), budget="100%", regions=regions, strict=True)
    twin = copy.deepcopy(model)
    of_twin = copy.deepcopy(twin)
    granted = []
    for rows, each in ((64, model), (512, of_twin), (256, twin), (64, model)):
        backward(each(torch.randn(rows, 16)))
        call: Any = each._compiled_call_impl
        keeper = call._keeper if regions == "auto" else call._plans._keeper
        assert keeper.source.strict
        granted.append(keeper.source.own.granted)
    assert granted[0] == granted[3] < granted[2] < granted[1]


def test_copy_of_a_model_with_fused_kernels_is_fused() -> None:
    copied: Any = copy.deepcopy(planned(MLP(), budget="100%", fused=True))._compiled_call_impl
    assert copied.source.fused


def in_sequence() -> nn.Module:
    """A model whose forward method is torch's own, which torch.compile treats in a way of its own."""
    return nn.Sequential(MLP())


@pytest.mark.parametrize("build", [MLP, in_sequence])
def test_saved_module_has_nothing_of_the_plan_in_it(build: Callable[[], nn.Module]) -> None:
    model = planned(build(), budget="100%")
    backward(model(batch()))
    file = io.BytesIO()
    torch.save(model, file)
    assert remat_cli.__name__.encode() not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    with silence():
        backward(loaded(batch()))
    with pytest.raises(UsageError, match="nothing is planned"):
        plan_of(loaded)


@pytest.mark.parametrize("build", [MLP, in_sequence])
def test_compiled_around_a_planned_module_leaves_it_to_the_plan(build: Callable[[], nn.Module]) -> None:
    model, twin = twins(build)
    compiled = torch.compile(planned(model, budget="100%"), backend="eager")
    x = batch()
    for _ in range(2):
        backward(compiled(x))
        backward(twin(x))
    assert plan_of(compiled) is plan_of(model)
    assert plan_of(model).calls == 2
    assert same(gradients(model), gradients(twin))


def test_gradients_that_are_to_have_gradients_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    model, x = planned(MLP(), budget="100%"), batch().requires_grad_()
    backward(model(x))
    assert "create_graph" not in caplog.text
    for _ in range(2):
        torch.autograd.grad(model(x), x, create_graph=True)
    assert caplog.text.count("create_graph=True") == 1


def doubled(output: Any) -> Any:
    return tuple(value * 2 for value in output) if isinstance(output, tuple) else output * 2


@pytest.mark.parametrize(
    "register",
    [
        lambda model: model.layers[0].register_forward_pre_hook(lambda _, inputs: doubled(inputs)),
        lambda model: model.layers[0].register_forward_hook(lambda _, inputs, output: doubled(output)),
        lambda model: model.register_forward_pre_hook(lambda _, inputs: doubled(inputs)),
        lambda model: model.register_forward_hook(lambda _, inputs, output: doubled(output)),
        lambda model: module_hooks.register_module_forward_pre_hook(lambda _, inputs: doubled(inputs)),
        lambda model: module_hooks.register_module_forward_hook(lambda _, inputs, output: doubled(output)),
    ],
    ids=["pre", "forward", "root-pre", "root-forward", "global-pre", "global-forward"],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_hook_that_is_added_or_taken_off_later_counts(register: Callable[[nn.Module], Any]) -> None:
    model, twin = twins(MLP)
    planned(model, budget="100%")
    x = batch()
    for module in (model, twin):
        backward(module(x))
        handle = register(module)
        try:
            backward(module(x))
        finally:
            handle.remove()
        backward(module(x))
    assert same(gradients(model), gradients(twin))


@pytest.mark.parametrize(
    "register",
    [
        lambda model, hook: model.layers[1].register_full_backward_hook(hook),
        lambda model, hook: module_hooks.register_module_full_backward_hook(hook),
    ],
    ids=["module", "global"],
)
def test_backward_hook_that_is_added_later_is_refused(register: Callable[..., Any]) -> None:
    model = planned(MLP(), budget="100%")
    backward(model(batch()))
    handle = register(model, lambda module, incoming, outgoing: None)
    try:
        with pytest.raises(GraphError, match="backwards hooks") as caught:
            model(batch())
        assert "take it off" in caught.value.hint
    finally:
        handle.remove()
    backward(model(batch()))


def test_what_the_models_code_raises_stays_what_it_is() -> None:
    class Picky(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 8:
                raise ValueError("at most 8")
            return super().forward(x)

    model = planned(Picky(), budget="100%")
    for size in (9, 10):
        with pytest.raises(ValueError, match="at most 8"):
            model(torch.randn(size, 16))
        backward(model(torch.randn(size - 5, 16)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(4, 15))


def test_what_a_first_call_sets_up_is_set_up_without_data() -> None:
    class Lazy(MLP):
        calls = 0
        lock = threading.Lock()
        ready = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                with self.lock:
                    self.data_given = type(x) is torch.Tensor
                    self.ready = True
            return super().forward(x)

    model, twin = twins(Lazy)
    planned(model, budget="100%")
    x = batch()
    for module in (model, twin):
        backward(module(x))
    assert (model.data_given, twin.data_given) == (False, True)  # type: ignore[comparison-overlap]
    assert same(gradients(model), gradients(twin))


def test_call_without_data_leaves_buffers_as_they_are() -> None:
    class Counting(MLP):
        lock = threading.Lock()

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.tensor(0))
            self.register_buffer("mean", torch.ones(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.get_buffer("calls").add_(1)
            self.get_buffer("mean").mul_(0.5)
            with self.lock:
                return super().forward(x)

    model = planned(Counting(), budget="100%", regions=None)
    with pytest.raises(GraphError, match="cannot be captured"):
        model(batch())
    assert model.get_buffer("calls") == 0
    assert same([model.get_buffer("mean")], [torch.ones(16)])


def test_what_only_tensors_without_data_are_refused_for_is_called_with_data() -> None:
    class Lazy(MLP):
        lock = threading.Lock()
        ready = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                with self.lock:
                    if type(x) is not torch.Tensor:
                        raise RuntimeError("Expected inputs of BF16 type")  # as the rule of a grouped matmul says
                    self.ready = True
            return super().forward(x)

    model, twin = twins(Lazy)
    planned(model, budget="100%")
    x = batch()
    for module in (model, twin):
        backward(module(x))
    assert same(gradients(model), gradients(twin))


def test_mode_that_watches_each_op_is_refused_in_words() -> None:
    model = planned(MLP(), budget="100%")
    for _ in range(2):  # before the capture and after it
        with FlopCounterMode(display=False), pytest.raises(UsageError, match="called within FlopCounterMode"):
            model(batch())
        backward(model(batch()))


def test_a_step_that_copies_real_tensors_while_it_is_called_without_data_is_refused_in_words() -> None:
    class Logging(MLP):
        """Copies a tensor of its own where torch cannot capture, as `self.log` of Lightning's modules does."""

        lock = threading.Lock()
        kept = torch.zeros(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with self.lock:
                copy.deepcopy(self.kept)
            return super().forward(x)

    model = Logging()
    backward(model(batch()))
    with pytest.raises(GraphError, match=r"cannot be captured at .*test_call\.py"):
        planned(model, budget="100%", regions=None)(batch())


def test_functional_call_runs_as_planned_and_transforms_are_refused() -> None:
    model = planned(MLP(), budget="100%")
    x, weights = batch(), {name: value.detach().requires_grad_() for name, value in model.named_parameters()}
    backward(torch.func.functional_call(model, weights, (x,)))
    assert all(value.grad is not None for value in weights.values())
    plain = {name: value.detach() for name, value in weights.items()}
    with pytest.raises(UsageError, match=r"within a transform of torch\.func"):
        torch.func.grad(lambda given: torch.func.functional_call(model, given, (x,)))(plain)


def test_module_that_fsdp_manages_is_refused_as_such() -> None:
    model = planned(MLP(), budget="100%")
    vars(model.layers[0])["_is_fsdp_managed_module"] = True
    with pytest.raises(UsageError, match="sharded by FSDP"):
        model(batch())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "no-such-device"}, "no-such-device"),
        ({"measurements": "no-such-file.json"}, r"no-such-file\.json"),
        ({"link_bandwidth": "fast"}, "fast"),
        ({"options": {"no_such_option": 1}}, "no_such_option"),
    ],
)
def test_wrong_arguments_are_told_of_before_the_first_call(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(MLP(), budget="80%", **arguments)
    with pytest.raises(UsageError, match="was given a str"):
        planned("model.pt", budget="80%")  # type: ignore[type-var]


def test_torch_logs_no_error_of_what_it_is_given(caplog: pytest.LogCaptureFixture) -> None:
    """torch 2.11 writes its settings as JSON, sets among them, which it sorts."""
    torch._dynamo.reset()
    backward(planned(MLP(), budget="100%")(batch()))
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_layer_that_is_thawed_after_some_steps_gets_gradients() -> None:
    """torch 2.11 looks at tensors no more once a module has stayed as it is for two calls."""
    model = planned(MLP(), budget="100%")
    for number in range(5):
        model.layers[0].requires_grad_(number >= 3)
        model.zero_grad(set_to_none=True)
        backward(model(batch()))
        assert (model.layers[0].weight.grad is not None) is (number >= 3)


def test_class_whose_code_torch_passes_over_is_planned_all_the_same() -> None:
    """What torch runs of it before that leaves no trace: no statistics, no numbers drawn."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm, self.drop = MLP(), nn.BatchNorm1d(16), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.inner(self.drop(self.norm(x)))
            return loss

    backward(planned(Own(), budget="100%")(batch()))
    with torch._dynamo.config.patch(recompile_limit=1):
        other = Own()
        other.compile(backend="eager")
        other(batch())  # one capture of this code is there already, so torch passes over it from now on
    model, twin = twins(Own)
    planned(model, budget="100%")
    x = batch()
    for module in (model, twin):
        torch.manual_seed(0)
        backward(module(x))
    assert plan_of(model).calls == 1
    assert same(gradients(model), gradients(twin))
    assert same(list(model.buffers()), list(twin.buffers()))
