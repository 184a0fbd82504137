"""`planned(..., update=True)`: the optimizer's step keeps within the budget, with eager's bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from remat_cli.errors import DoesNotFit, RematError, UsageError
from remat_cli.torch import plan_of, planned

LINK = "20GB/s"


class Layers(nn.Module):
    """Parameters of four times the activations, in equal blocks."""

    def __init__(self, width: int = 96, depth: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            given = given + layer(given)
        return given.square().mean()


def batches(steps: int = 6, rows: int = 24) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(rows, 96, generator=generator) for _ in range(steps)]


def train(model: nn.Module, optimizer: optim.Optimizer, *, clip: bool = False) -> None:
    for given in batches():
        model(given).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


def pair() -> tuple[Layers, Layers]:
    torch.manual_seed(0)
    model = Layers()
    return model, copy.deepcopy(model)


def assert_same(one: nn.Module, its: optim.Optimizer, other: nn.Module, others: optim.Optimizer) -> None:
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    state, again = its.state_dict()["state"], others.state_dict()["state"]
    assert state.keys() == again.keys()
    assert all(torch.equal(state[key][name], again[key][name]) for key in state for name in state[key])


def figures(model: nn.Module) -> tuple[int, list[int]]:
    record: Any = plan_of(model)
    record = record if hasattr(record, "predicted_peak_bytes") else record.last
    return record.predicted_peak_bytes, record.measured_peak_bytes


CASES = [
    ("layers.*", "70%", {"offload": True, "link_bandwidth": LINK}, "in the backward pass"),
    ("layers.*", "min", {"offload": True, "link_bandwidth": LINK}, "in the backward pass"),
    ("layers.*", "1GB", {}, "at optimizer.step()"),
    ("layers.*", "min", {"update": "step", "offload": True, "link_bandwidth": LINK}, "at optimizer.step()"),
    (None, "70%", {"offload": True, "link_bandwidth": LINK, "update": "step"}, "at optimizer.step()"),
    (None, "60%", {"offload": True, "link_bandwidth": LINK}, "in the backward pass"),
    (None, "min", {"offload": True, "link_bandwidth": LINK, "update": "backward"}, "in the backward pass"),
    (None, "1GB", {}, "at optimizer.step()"),
]


@pytest.mark.parametrize(("regions", "budget", "options", "where"), CASES)
def test_steps_have_eagers_bits_and_the_predicted_peak(
    regions: str | None, budget: str, options: dict[str, Any], where: str
) -> None:
    eager, model = pair()
    its, others = optim.AdamW(eager.parameters()), optim.AdamW(model.parameters())
    planned(model, budget=budget, optimizer=others, regions=regions, **{"update": True, **options})
    train(eager, its)
    train(model, others)
    assert_same(eager, its, model, others)
    predicted, measured = figures(model)
    assert measured[-1] == pytest.approx(predicted, rel=0.03)
    assert f"updates {where}" in str(plan_of(model))
    if budget != "1GB":
        assert predicted < 0.85 * (4 * sum(parameter.nbytes for parameter in model.parameters()))
    assert ("on the host" in str(plan_of(model))) == bool(options.get("offload"))


@pytest.mark.parametrize("regions", [None, "layers.*"])
def test_sizes_that_change_and_layers_that_are_frozen_have_eagers_bits(regions: str | None) -> None:
    eager, model = pair()
    its, others = optim.AdamW(eager.parameters()), optim.AdamW(model.parameters())
    options: dict[str, Any] = {"offload": True, "link_bandwidth": LINK}
    planned(model, budget="3MB", optimizer=others, regions=regions, update="backward", **options)
    for number, rows in enumerate((24, 24, 12, 18, 24, 12)):
        for one, optimizer in ((eager, its), (model, others)):
            one.layers[4].requires_grad_(number != 3)
            one(batches(1, rows)[0]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=number != 1)
    assert_same(eager, its, model, others)


def test_updates_wait_for_the_step_where_gradients_are_clipped() -> None:
    eager, model = pair()
    its, others = optim.AdamW(eager.parameters()), optim.AdamW(model.parameters())
    planned(model, budget="70%", optimizer=others, regions="layers.*", update=True, offload=True, link_bandwidth=LINK)
    train(eager, its, clip=True)
    train(model, others, clip=True)
    assert_same(eager, its, model, others)
    assert "updates at optimizer.step(), state" in str(plan_of(model))


def test_a_budget_below_the_optimizers_step_is_refused_with_the_least() -> None:
    _, model = pair()
    optimizer = optim.AdamW(model.parameters())
    planned(model, budget="1MB", optimizer=optimizer, regions=None, update="step")
    with pytest.raises(DoesNotFit, match=r"below .* which the optimizer's step takes"):
        model(batches(1)[0])


def of_another(model: nn.Module) -> optim.Optimizer:
    del model
    return optim.AdamW(pair()[0].parameters())


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (of_another, {}, "updates no parameter of this model"),
        (lambda model: optim.LBFGS(model.parameters()), {}, "cannot update its parameters one at a time"),
        (lambda model: "adamw", {}, "needs the optimizer itself"),
        (lambda model: None, {}, "needs the optimizer itself"),
        (lambda model: optim.AdamW(model.parameters()), {"update": "later"}, "update is 'later'"),
        (lambda model: optim.AdamW(model.parameters()), {"calls": 2}, "leave the optimizer's step alone"),
        (
            lambda model: optim.AdamW(model.parameters()),
            {"update": "backward", "accumulate": True},
            "needs the gradients of all passes",
        ),
    ],
)
def test_bad_input_is_refused_in_words(make: Callable[[nn.Module], Any], options: dict[str, Any], words: str) -> None:
    _, model = pair()
    with pytest.raises(UsageError, match=words):
        planned(model, budget="1GB", optimizer=make(model), **{"update": True, **options})


def test_updates_in_the_backward_pass_are_refused_within_data_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = pair()
    optimizer = optim.AdamW(model.parameters())
    planned(model, budget="1GB", optimizer=optimizer, update="backward")
    monkeypatch.setattr("remat_cli.pytorch.plan.updating_source.enclosing_parallel", lambda: model)
    with pytest.raises(UsageError, match="DistributedDataParallel reduces gradients"):
        model(batches(1)[0])


def test_hooks_on_gradients_are_refused_where_no_gradient_comes() -> None:
    _, model = pair()
    optimizer = optim.AdamW(model.parameters())
    planned(model, budget="1GB", optimizer=optimizer, regions=None, update="backward")
    weight: Any = model.get_parameter("layers.0.1.weight")
    weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(UsageError, match="a hook is registered on a gradient"):
        model(batches(1)[0]).backward()


def test_a_skipped_step_is_an_error_where_parameters_were_updated() -> None:
    _, model = pair()
    optimizer = optim.AdamW(model.parameters())
    planned(model, budget="1GB", optimizer=optimizer, regions="layers.*", update="backward")
    given = batches(1)[0]
    model(given).backward()
    with pytest.raises(RematError, match=r"no optimizer.step\(\) came after it"):
        model(given)


@pytest.mark.parametrize("optional", [True, "backward"])
def test_a_loss_that_reads_weights_of_the_whole_keeps_eagers_bits_or_is_refused(optional: bool | str) -> None:
    eager, model = pair()
    its, others = optim.AdamW(eager.parameters()), optim.AdamW(model.parameters())
    planned(model, budget="70%", optimizer=others, regions=None, update=optional, offload=True, link_bandwidth=LINK)

    def run() -> None:
        for given in batches():
            for one, optimizer in ((eager, its), (model, others)):
                loss = one(given) + one.get_parameter("layers.0.1.weight").square().sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    if optional == "backward":
        with pytest.raises(RematError, match="no loss outside of the planned model used the parameter"):
            run()
        return
    run()
    assert_same(eager, its, model, others)
    assert "updates at optimizer.step()" in str(plan_of(model))


def test_another_optimizer_keeps_updates_at_the_step_with_eagers_bits() -> None:
    eager, model = pair()
    its, others = optim.AdamW(eager.parameters()), optim.AdamW(model.parameters())
    second, seconds = (optim.SGD(each.parameters(), lr=0.01) for each in (eager, model))
    planned(model, budget="70%", optimizer=others, regions="layers.*", update=True, offload=True, link_bandwidth=LINK)
    for given in batches():
        for one, optimizers in ((eager, (its, second)), (model, (others, seconds))):
            one(given).backward()
            for optimizer in optimizers:
                optimizer.step()
            optimizers[0].zero_grad()
    assert_same(eager, its, model, others)
    assert "updates at optimizer.step()" in str(plan_of(model))


def test_the_first_step_may_need_updates_in_the_backward_pass_of_the_whole() -> None:
    eager, model = pair()
    its, others = optim.AdamW(eager.parameters()), optim.AdamW(model.parameters())
    planned(model, budget="min", optimizer=others, regions=None, update="backward", offload=True, link_bandwidth=LINK)
    model(batches(1)[0])
    least = figures(model)[0]
    _, model = pair()
    others = optim.AdamW(model.parameters())
    planned(
        model,
        budget=f"{least + 40_000}B",
        optimizer=others,
        regions=None,
        update=True,
        offload=True,
        link_bandwidth=LINK,
    )
    train(eager, its)
    train(model, others)
    assert_same(eager, its, model, others)
    assert "updates in the backward pass" in str(plan_of(model))
