"""Updates of a few parameters at a time, with state on the host in between, have the bits of eager's steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

from remat_cli.errors import UsageError
from remat_cli.pytorch.update.costs import update_costs
from remat_cli.pytorch.update.first_step import FirstStep
from remat_cli.pytorch.update.hosted_state import is_on_host
from remat_cli.pytorch.update.partial_steps import check_owned, check_partial_steps
from remat_cli.pytorch.update.updates import Updates, check_one_owner

Model = nn.Sequential
Make = Callable[[Any], optim.Optimizer]


class Lion(optim.Optimizer):
    """Written by a user: one moment, and the sign of the update."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    moment = self.state[parameter].setdefault("moment", torch.zeros_like(parameter))
                    parameter.sub_(moment.mul(0.9).add_(parameter.grad, alpha=0.1).sign_(), alpha=group["lr"])
                    moment.mul_(0.99).add_(parameter.grad, alpha=0.01)
        return loss


class Counting(optim.SGD):
    """Counts steps among the options of a group, and calls the step of its base."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            if any(parameter.grad is not None for parameter in group["params"]):
                group["count"] = group.get("count", 0) + 1
                group["lr"] = 0.1 / group["count"]
        return super().step(closure)


class OfOneNorm(optim.SGD):
    """Divides each update by the norm of all gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        trained = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        norm = sum((each.grad.norm() for each in trained), torch.zeros(()))
        for parameter in trained:
            parameter.sub_(parameter.grad / (norm + 1))


OPTIMIZERS: tuple[Make, ...] = (
    optim.AdamW,
    optim.Adafactor,
    optim.Adagrad,
    optim.NAdam,
    optim.RMSprop,
    partial(optim.Adam, amsgrad=True, foreach=True),
    partial(optim.AdamW, fused=True),
    partial(optim.SGD, lr=0.1, momentum=0.9),
    Lion,
    partial(Counting, lr=0.1),
)


def name_of(make: Any) -> str:
    return f"{make.func.__name__} {make.keywords}" if isinstance(make, partial) else make.__name__


def model() -> Model:
    torch.manual_seed(0)
    return Model(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))


def in_groups(of: nn.Module) -> list[dict[str, Any]]:
    parameters = list(of.parameters())
    matrices = [each for each in parameters if each.dim() > 1]
    return [{"params": matrices}, {"params": [each for each in parameters if each.dim() < 2], "lr": 0.01}]


def inputs(steps: int = 6) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(4, 8, generator=generator) for _ in range(steps))


def state_of(optimizer: optim.Optimizer) -> dict[tuple[int, str], torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {(number, name): torch.as_tensor(value) for number, of in state.items() for name, value in of.items()}


def assert_same(one: nn.Module, its: optim.Optimizer, other: nn.Module, others: optim.Optimizer) -> None:
    for (name, value), again in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(value, again), name
    state, again_state = state_of(its), state_of(others)
    assert state.keys() == again_state.keys()
    for key, value in state.items():
        assert torch.equal(value, again_state[key]), key
    assert its.state_dict()["param_groups"] == others.state_dict()["param_groups"]


def hosted_bytes(optimizer: optim.Optimizer) -> int:
    tensors = (value for of in optimizer.state.values() for value in of.values() if isinstance(value, torch.Tensor))
    return sum(tensor.nbytes for tensor in tensors if is_on_host(tensor))


def step(optimizer: optim.Optimizer, scaler: torch.amp.GradScaler | None) -> None:
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def loop(of: nn.Module, optimizer: optim.Optimizer, kind: str = "") -> None:
    """Train in one of the ways in which people write loops."""
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0) if "scaler" in kind else None
    schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    average = optim.swa_utils.AveragedModel(of) if kind == "ema" else None
    for number, given in enumerate(inputs()):

        def passes(given: torch.Tensor = given) -> Any:
            optimizer.zero_grad(set_to_none=kind != "zeros")
            for _ in range(2 if kind == "accumulated" else 1):
                loss: torch.Tensor = of(given).square().mean()
                torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
            if kind == "clipped":
                nn.utils.clip_grad_norm_(of.parameters(), 0.1)
            return loss

        if kind == "frozen in mid-run":
            of.get_submodule("0").requires_grad_(number not in (2, 3))
        if kind == "loaded in mid-run" and number == 3:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            of.load_state_dict(copy.deepcopy(of.state_dict()))
        if kind == "closure":
            optimizer.step(passes)
        else:
            passes()
            if kind != "skipped" or number != 2:
                step(optimizer, scaler)
        if average is not None:
            average.update_parameters(of)
        schedule.step()


@pytest.mark.parametrize("make", OPTIMIZERS, ids=name_of)
def test_steps_of_a_few_parameters_have_the_bits_of_whole_steps(make: Make) -> None:
    eager, planned = model(), model()
    its, others = make(in_groups(eager)), make(in_groups(planned))
    check_partial_steps(others)
    updates = Updates(others)
    hosted = [parameter for parameter in list(planned.parameters())[:3] if updates.costs[parameter].movable_bytes]
    updates.settle(hosted, room_bytes=700)
    loop(eager, its)
    loop(planned, others)
    assert_same(eager, its, planned, others)
    assert hosted_bytes(others) == sum(updates.costs[parameter].movable_bytes for parameter in hosted)


KINDS = (
    *("accumulated", "clipped", "closure", "ema", "frozen in mid-run", "loaded in mid-run", "scaler", "skipped"),
    "zeros",
)


@pytest.mark.parametrize("kind", KINDS)
def test_loops_as_people_write_them_have_eagers_bits(kind: str) -> None:
    eager, planned = model(), model()
    its, others = optim.AdamW(in_groups(eager)), optim.AdamW(in_groups(planned))
    updates = Updates(others)
    updates.settle(list(planned.parameters()), room_bytes=0)
    loop(eager, its, kind)
    loop(planned, others, kind)
    assert_same(eager, its, planned, others)
    assert hosted_bytes(others) == sum(cost.state_bytes for cost in updates.costs.values())


@pytest.mark.parametrize("kind", ["", "ema", "frozen in mid-run", "loaded in mid-run", "zeros", "closure"])
@pytest.mark.parametrize("make", [optim.AdamW, Lion, partial(optim.SGD, lr=0.1, momentum=0.9)], ids=name_of)
def test_updates_in_the_backward_pass_have_eagers_bits(make: Make, kind: str) -> None:
    eager, planned = model(), model()
    its, others = make(in_groups(eager)), make(in_groups(planned))
    updates = Updates(others)
    updates.settle(list(planned.parameters())[1:], room_bytes=0, by_hooks=True)
    loop(eager, its, kind)
    loop(planned, others, kind)
    assert_same(eager, its, planned, others)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("clipped", "reads a gradient that is gone"),
        ("accumulated", "added to one that is gone"),
        ("scaler", "reads a gradient that is gone"),
        ("skipped", r"no optimizer\.step\(\) came after it"),
    ],
)
def test_updates_in_the_backward_pass_refuse_who_needs_gradients(kind: str, words: str) -> None:
    planned = model()
    optimizer = optim.AdamW(planned.parameters())
    updates = Updates(optimizer)
    updates.settle((), room_bytes=0, by_hooks=True)
    with pytest.raises(UsageError, match=words):
        loop(planned, optimizer, kind)


@pytest.mark.parametrize(
    ("kind", "obstacle"),
    [
        ("", ""),
        ("zeros", ""),
        ("closure", ""),
        ("clipped", "gradients are read"),
        ("accumulated", "several backward passes"),
        ("scaler", "gradients are read"),
    ],
)
def test_first_step_shows_who_needs_gradients(kind: str, obstacle: str) -> None:
    planned = model()
    optimizer = optim.AdamW(planned.parameters())
    updates = Updates(optimizer)
    first = FirstStep(updates)
    first.begin()
    planned.register_forward_pre_hook(lambda *_: first.end() if first.is_over else None)  # as the next planned call
    loop(planned, optimizer, kind)
    assert first.is_over
    assert [each for each in first.obstacles if obstacle in each] if obstacle else first.obstacles == []
    assert all(type(parameter.grad) is torch.Tensor for parameter in planned.parameters())


def test_first_step_shows_hooks_and_options_that_change() -> None:
    planned = model()
    weight: Any = planned.get_parameter("0.weight")
    weight.register_hook(lambda gradient: gradient * 2)
    optimizer = optim.AdamW(planned.parameters())
    first = FirstStep(Updates(optimizer))
    first.begin()
    planned(torch.ones(4, 8)).sum().backward()
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert [text.split()[0] for text in first.obstacles] == ["hooks", "options"]


@pytest.mark.parametrize(
    "make", [optim.LBFGS, optim.SparseAdam, partial(OfOneNorm, lr=0.1)], ids=["LBFGS", "SparseAdam", "OfOneNorm"]
)
def test_optimizers_that_need_all_gradients_are_refused(make: Make) -> None:
    with pytest.raises(UsageError, match="cannot update its parameters one at a time"):
        check_partial_steps(make(list(model().parameters())))


def test_trial_of_an_optimizer_leaves_nothing_behind() -> None:
    planned = model()
    optimizer, before, drawn = optim.AdamW(planned.parameters()), copy.deepcopy(planned), torch.get_rng_state()
    optimizer.register_step_post_hook(lambda *_: pytest.fail("the user's step ran"))
    check_partial_steps(optimizer)
    update_costs(optimizer)
    assert torch.equal(drawn, torch.get_rng_state())
    assert not optimizer.state
    assert all(map(torch.equal, planned.parameters(), before.parameters()))
    assert all(parameter.grad is None for parameter in planned.parameters())


def test_optimizers_of_other_models_and_parameters_twice_are_refused() -> None:
    planned, other = model(), model()
    with pytest.raises(UsageError, match="updates no parameter of this model"):
        check_owned(optim.AdamW(other.parameters()), list(planned.parameters()))
    twice = optim.AdamW(planned.parameters())
    twice.param_groups[0]["params"].append(twice.param_groups[0]["params"][0])
    with pytest.raises(UsageError, match="a parameter twice"):
        check_owned(twice, list(planned.parameters()))


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (optim.AdamW, (2, 2)),
        (partial(optim.SGD, lr=0.1), (0, 0)),
        (Lion, (1, 1)),
        (partial(optim.AdamW, fused=True), (2, 0)),
    ],
    ids=["AdamW", "SGD", "Lion", "fused"],
)
def test_memory_of_an_update_is_told_before_the_first_step(make: Make, copies: tuple[int, int]) -> None:
    parameter = nn.Parameter(torch.ones(30, 20))
    cost = update_costs(make([parameter]))[parameter]
    assert (cost.state_bytes, cost.temporary_bytes) == tuple(count * parameter.nbytes for count in copies)


def test_an_interrupted_update_leaves_state_where_state_dict_finds_it() -> None:
    class Interrupted(optim.AdamW):
        is_interrupted = False

        def step(self, closure: Any = None) -> Any:
            if self.is_interrupted:
                raise KeyboardInterrupt
            return super().step(closure)

    planned = model()
    optimizer = Interrupted(planned.parameters())
    updates = Updates(optimizer)
    updates.settle(list(planned.parameters()), room_bytes=0)
    loop(planned, optimizer)
    before = {key: value.clone() for key, value in state_of(optimizer).items()}
    planned(torch.ones(4, 8)).sum().backward()
    gradients = [each.grad for each in planned.parameters()]
    optimizer.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert [each.grad for each in planned.parameters()] == gradients
    after = state_of(optimizer)
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    optimizer.is_interrupted = False
    optimizer.step()
    assert not torch.equal(before[0, "exp_avg"], state_of(optimizer)[0, "exp_avg"])


def test_options_changed_between_backward_pass_and_step_are_refused() -> None:
    planned = model()
    optimizer = optim.AdamW(planned.parameters())
    updates = Updates(optimizer)
    updates.settle((), room_bytes=0, by_hooks=True)
    planned(torch.ones(4, 8)).sum().backward()
    assert updates.has_updated
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(UsageError, match="option 'lr' of group 0 of the optimizer was changed"):
        optimizer.step()


def test_a_model_that_is_planned_again_has_one_set_of_updates() -> None:
    eager, planned = model(), model()
    its, others = optim.AdamW(eager.parameters()), optim.AdamW(planned.parameters())
    former = Updates(others)
    latter = Updates(others)
    latter.settle(list(planned.parameters()), room_bytes=0)
    loop(eager, its)
    loop(planned, others)
    assert_same(eager, its, planned, others)
    assert not former.hosted


def test_a_parameter_of_two_planned_optimizers_is_refused() -> None:
    planned = model()
    first = Updates(optim.AdamW(planned.parameters()), "one model")
    other = optim.SGD(planned[0].parameters(), lr=0.1)
    with pytest.raises(UsageError, match="parameters of the SGD are updated by another planned step's AdamW, too"):
        check_one_owner(other, "another")
    check_one_owner(other, "one model")  # is planned again
    check_one_owner(optim.SGD(model().parameters(), lr=0.1), "another")
    Updates(other, "one model")
    check_one_owner(first.optimizer, "one model")
    del first
    check_one_owner(optim.AdamW(planned[3].parameters()), "another")


def test_a_second_optimizer_is_seen_in_the_first_step() -> None:
    planned = model()
    ones, others = optim.AdamW(planned.parameters()), optim.SGD(planned.parameters(), lr=0.1)
    first = FirstStep(Updates(ones))
    first.begin()
    planned(torch.ones(4, 8)).sum().backward()
    ones.step()
    others.step()
    first.end()
    assert [text.split(" (")[0] for text in first.obstacles] == ["gradients are read after the step"]


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_parameters_used_outside_of_the_whole_are_seen_in_the_first_step(*, is_used: bool, order: int) -> None:
    planned = model()
    first = FirstStep(Updates(optim.AdamW(planned.parameters())))
    first.begin()
    loss: torch.Tensor = planned(torch.ones(4, 8)).sum()
    first.follow([loss])
    terms = [loss, planned.get_parameter("3.weight").square().sum() if is_used else torch.zeros(())]
    torch.autograd.backward(sum(terms[::order], torch.zeros(())))
    assert bool(first.obstacles) == is_used
    assert not is_used or "used outside of the planned model" in first.obstacles[0]


def test_after_a_skipped_step_is_said_the_loop_may_end_it_and_go_on(caplog: pytest.LogCaptureFixture) -> None:
    eager, planned = model(), model()
    its, others = Counting(in_groups(eager), lr=0.1), Counting(in_groups(planned), lr=0.1)
    updates = Updates(others)
    updates.settle((), room_bytes=0, by_hooks=True)
    for number, given in enumerate(inputs()):
        for of, optimizer in ((eager, its), (planned, others)):
            of(given).square().mean().backward()
            if number == 2 and optimizer is others:
                others.state_dict()
                assert "save the model with it, and after the step" in caplog.text
                with pytest.raises(UsageError, match="has updated 6 parameters, and no"):
                    updates.check_stepped()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(eager, its, planned, others)
    assert caplog.text.count("state_dict") == 1
