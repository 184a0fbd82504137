"""Plans are kept in a folder, found again by all that they depend on, and judged before they run."""

from __future__ import annotations

import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remat_cli.config import GraphOptions, Request
from remat_cli.errors import DoesNotFit, UsageError
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.plan import budget_source
from remat_cli.pytorch.plan.budget_source import BudgetSource
from remat_cli.pytorch.plan.plan_folder import PlanFolder
from remat_cli.pytorch.plan.refusals import larger_share
from remat_cli.pytorch.plan.waiting import MEASURING
from remat_cli.pytorch.run.planned import source_within
from remat_cli.settings import setting
from remat_cli.torch import plan_of, planned
from tests.graphs import training_chain
from tests.plans import prepared
from tests.torch_steps import MLP

BATCH = torch.ones(64, 16)


@pytest.fixture
def plannings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of what was planned, not read from a folder."""
    keys: list[str] = []
    new_plan = BudgetSource.new_plan

    def listed(self: BudgetSource, key: str, *args: Any) -> Any:
        keys.append(key)
        return new_plan(self, key, *args)

    monkeypatch.setattr(BudgetSource, "new_plan", listed)
    return keys


def train(folder: Path, **asked: Any) -> MLP:
    torch.manual_seed(0)
    model = planned(MLP(depth=4), plans=folder, **{"budget": "80%", "device": "a100", "planner": "rotor", **asked})
    model(BATCH).backward()
    return model


def test_a_plan_is_made_once_and_its_folder_too(tmp_path: Path, plannings: list[str]) -> None:
    folder = tmp_path / "of" / "plans"
    train(folder)
    (kept,) = folder.glob("plan-*")
    before = kept.read_bytes()
    train(folder)
    assert len(plannings) == 1
    assert [path.read_bytes() for path in folder.glob("plan-*")] == [before]


@pytest.mark.parametrize(
    "other",
    [
        {"budget": "81%"},
        {"budget": "min"},
        {"planner": "dtr"},
        {"options": {"slots": 77}},
        {"planner": "pofo", "offload": True},
        {"device": "v100"},
        {"link_bandwidth": "1MB/s"},
        {"optimizer": "adam"},
        {"accumulate": True},
    ],
    ids=str,
)
def test_a_plan_is_kept_for_what_it_was_made_for_only(
    other: dict[str, Any], tmp_path: Path, plannings: list[str]
) -> None:
    train(tmp_path)
    train(tmp_path, **other)
    assert len(plannings) == len([*tmp_path.glob("plan-*")]) == 2


@pytest.mark.parametrize("budget", ["60%", "min"])
def test_a_plan_for_several_calls_is_kept(budget: str, tmp_path: Path, plannings: list[str]) -> None:
    (first,) = plan_of(train(tmp_path, budget=budget, calls=3)).graphs
    made = len(plannings)
    (again,) = plan_of(train(tmp_path, budget=budget, calls=3)).graphs
    assert len(plannings) == made, "a kept plan is not made again"
    assert again.predicted_peak_bytes == first.predicted_peak_bytes
    assert again.budget_bytes == first.budget_bytes
    train(tmp_path, budget=budget, calls=2)
    assert len(plannings) > made, "a plan for three calls is none for two"


def test_budgets_that_read_alike_are_two(tmp_path: Path, plannings: list[str]) -> None:
    for budget in (1_000_000, 1_000_400):  # both are 1.000 MB
        train(tmp_path, budget=budget)
    assert len(plannings) == 2


def cut_short(content: bytes) -> bytes:
    return content[: len(content) // 2]


def of_another_graph(content: bytes) -> bytes:
    return content.replace(b"mm", b"nn")


def above_the_budget(content: bytes) -> bytes:
    """Each op once, and nothing freed."""
    document = json.loads(content)
    steps = document["steps"]
    document["steps"] = [["compute", op] for op in dict.fromkeys(op for kind, op in steps if kind == "compute")]
    return json.dumps(document).encode()


@pytest.mark.parametrize("damage", [lambda _: b"", cut_short, of_another_graph, above_the_budget])
def test_a_kept_plan_that_does_not_hold_is_made_again(
    damage: Any, tmp_path: Path, plannings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path)
    (kept,) = tmp_path.glob("plan-*")
    before = kept.read_bytes()
    kept.write_bytes(damage(before))
    assert kept.read_bytes() != before
    train(tmp_path)
    assert len(plannings) == 2
    assert "does not hold, and is made anew" in caplog.text
    assert kept.read_bytes() == before


def test_a_plan_that_cannot_be_written_is_used_all_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("in the way")
    model = train(tmp_path / "file" / "plans")
    assert "nothing is kept for the next time" in caplog.text
    assert "file" in caplog.text
    with monkeypatch.context() as alone:  # nobody listens to the log: stderr is where it is read
        for logger in (logging.root, logging.getLogger("remat")):
            alone.setattr(logger, "handlers", [])
        train(tmp_path / "file" / "plans")
    assert "remat: nothing is kept for the next time" in capsys.readouterr().err
    assert model.layers[0].weight.grad is not None


def test_plans_must_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UsageError, match=r"plan\.json is a file"):
        planned(MLP(), budget="80%", plans=tmp_path / "plan.json")


class Mixer(nn.Module):
    """Depthwise convolutions and batch norms: their kernels on the CPU take as much for themselves as their outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(16, 16, 5, padding=2, groups=16), nn.GELU(), nn.BatchNorm2d(16))
                for _ in range(4)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.dropout(self.layers(x), 0.2, True)
        return x.square().mean()


def test_memory_of_kernels_is_in_the_budget_without_being_asked_for() -> None:
    x = torch.randn(4, 16, 24, 24)
    torch.manual_seed(0)
    model = planned(Mixer(), budget="80%", planner="rotor")
    torch.autograd.backward(model(x))
    (plan,) = plan_of(model).graphs
    model.zero_grad()
    measured = peak_of(lambda: torch.autograd.backward(model(x)), "cpu")
    assert measured == pytest.approx(plan.predicted_peak_bytes - plan.fixed_bytes, abs=4096)
    assert plan.budget_bytes is not None
    assert plan.fixed_bytes + measured <= plan.budget_bytes < plan.plain_peak_bytes


def test_measuring_changes_nothing_of_what_is_drawn() -> None:
    x = torch.randn(4, 16, 24, 24)
    losses = []
    for plan_it in (True, False):
        torch.manual_seed(0)
        model = planned(Mixer(), budget="100%", planner="rotor") if plan_it else Mixer()
        losses.append([model(x).item() for _ in range(2)])
        buffers = [*model.buffers()]
        losses[-1] += [float(buffer.double().sum()) for buffer in buffers]
    assert losses[0] == losses[1]


def test_what_measuring_took_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="remat"):
        model = planned(MLP(), budget="100%")
        model(torch.randn(4, 16))
    assert re.search(r"measured \d+ kernels in [\d.]+ .?s", caplog.text)
    assert plan_of(model).waited_ns[MEASURING] > 0
    assert re.search(r"measuring its kernels [\d.]+ .?s", str(plan_of(model)))


def test_kernels_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, device=None)
    (kept,) = tmp_path.glob("kernels-*")
    monkeypatch.setattr(budget_source, "measure_once", lambda *_: pytest.fail("measured again"))
    train(tmp_path, device=None)
    monkeypatch.undo()
    kept.write_text("{")
    train(tmp_path, device=None)
    assert json.loads(kept.read_text())["ops"]["addmm"]["time_ns"] > 0


def test_what_cannot_fit_for_its_kernel_is_named() -> None:
    with pytest.raises(
        DoesNotFit, match=r"op '\w+' .*alone needs that, of which [\d.]+ .?B are workspace of its kernel"
    ):
        planned(Mixer(), budget=1000)(torch.randn(4, 16, 24, 24))


def test_several_at_once_lose_nothing(tmp_path: Path) -> None:
    """Whoever reads meanwhile, reads a plan as somebody has written it."""
    folder = tmp_path / "plans"
    folders = [PlanFolder(folder) for _ in range(4)]
    plans = [letter * 100_000 for letter in (b"a", b"b", b"c", b"d")]

    def write(number: int) -> set[bytes]:
        found = set()
        for _ in range(20):
            folders[number].keep("plan", "key", plans[number])
            found |= {path.read_bytes() for path in folder.glob("*.json")}
        return found

    with ThreadPoolExecutor() as pool:
        found = set().union(*pool.map(write, range(4)))
    assert found <= set(plans)
    assert [path.name for path in folder.iterdir()] == ["plan-key.json"]


@pytest.mark.parametrize(
    ("peak", "other", "activations", "share"),
    [
        (130, 100, 40, 'budget="75% of activations", '),
        (140, 100, 40, 'budget="100% of activations", '),
        (100_001, 100_000, 3000, 'budget="0.1% of activations", '),
        (130, 100, 0, ""),
        (130, 30, 100, ""),
        (141, 100, 40, ""),
        (99, 100, 40, ""),
    ],
)
def test_a_larger_budget_is_told_in_activations_where_these_are_the_smaller_part(
    peak: int, other: int, activations: int, share: str
) -> None:
    assert larger_share(peak, other, activations) == share


@pytest.mark.parametrize("options", [{}, {"time_limit": 1.5}], ids=str)
def test_each_plan_that_min_asks_for_has_as_long_as_a_request(options: dict[str, float]) -> None:
    """With less, the smallest budget that is found is above budgets at which a request finds a plan."""
    limits = [
        source_within(budget, options=options).request_for(training_chain(8)).chosen.all_options()["time_limit"]
        for budget in ("min", "50%")
    ]
    assert limits == [options.get("time_limit", 3.0)] * 2


def test_the_plain_run_is_no_budget_to_ask_for_instead() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3)))
    with pytest.raises(DoesNotFit) as refused:
        planned(model, budget="20%")(torch.randn(2, 64))
    assert "the closest that was found" not in refused.value.message
    assert refused.value.hint.startswith('give a larger budget (budget="min" takes')


def test_a_new_field_of_the_request_is_in_the_key_of_a_kept_plan() -> None:
    @dataclass(frozen=True)
    class Wider(Request):
        other: int = setting(0, "A field that no plan was kept with.")

    graph = prepared(training_chain(4))
    source = source_within("50%")
    asked = Wider(source.request.budget, source.request.planner)
    keys = {replace(source, request=replace(asked, other=other)).key(graph) for other in (0, 1)}
    assert len(keys | {source.key(graph)}) == 3


def test_each_option_of_planned_is_a_setting_or_an_argument_of_its_source() -> None:
    settings = {item.name for options in (Request, GraphOptions) for item in fields(options)}
    asked = signature(planned).parameters.keys() - {"model", "schedule", "regions"}
    assert asked <= settings | signature(source_within).parameters.keys()
