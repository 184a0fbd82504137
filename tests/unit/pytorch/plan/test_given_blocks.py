"""Plans of blocks that go to a file and come back from it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from remat_cli.errors import DoesNotFit, RematError, UsageError
from remat_cli.pytorch.plan.budget_source import BudgetSource
from remat_cli.torch import plan_of, planned


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.outer(F.gelu(self.inner(x)))
        return made


class Model(nn.Module):
    def __init__(self, count: int = 3, width: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(count))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        made: torch.Tensor = self.head(x).square().mean()
        return made


def rows(count: int = 256, width: int = 16) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count))


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(x)
    loss.backward()
    return [loss.detach(), *(part.grad.clone() for part in model.parameters() if part.grad is not None)]


def by_blocks(model: nn.Module, **options: Any) -> nn.Module:
    return planned(model, budget="70%", regions="blocks.*", options={"time_limit": 0.5}, **options)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a step's plans within 70 %."""
    path = tmp_path_factory.mktemp("files") / "blocks.json"
    model = by_blocks(Model(), optimizer="adam")
    step(model, rows())
    plan_of(model).save(path)
    return path


def changed(file: Path, folder: Path, change: Any) -> Path:
    document = json.loads(file.read_text())
    change(document)
    path = folder / "changed.json"
    path.write_text(json.dumps(document))
    return path


def test_plans_from_a_file_run_without_new_ones(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a plan is made")

    monkeypatch.setattr(BudgetSource, "new_plan", fail)
    torch.manual_seed(0)
    model = Model()
    twin = copy.deepcopy(model)
    planned(model, file)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        assert all(map(torch.equal, step(model, rows()), step(twin, rows())))
        optimizer.step()
        twin.load_state_dict(model.state_dict())
    record: Any = plan_of(model)
    document = json.loads(file.read_text())
    assert record.budget == str(file)
    assert record.predicted_peak_bytes == document["peak_bytes"]
    assert max(record.measured_peak_bytes) == pytest.approx(document["peak_bytes"], abs=256)  # Adam counts its steps
    assert not record.unplanned
    again = tmp_path / "again.json"
    record.save(again)
    schedules = [json.loads(path.read_text())["schedules"] for path in (file, again)]
    assert [each["steps"] for each in schedules[0].values()] == [each["steps"] for each in schedules[1].values()]


def test_tensors_on_the_host_are_in_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path = Model(5), tmp_path / "blocks.json"
    twin, other = copy.deepcopy(model), copy.deepcopy(model)
    link: Any = {"offload": True, "link_bandwidth": "100TB/s", "device": "h100"}
    step(planned(other, budget="50%", regions="blocks.*", options={"time_limit": 0.5}, **link), rows(1024))
    before: Any = plan_of(other)
    assert before.away
    assert before.saved_away
    before.save(path)
    planned(model, path)
    for _ in range(3):
        assert all(map(torch.equal, step(model, rows(1024)), step(twin, rows(1024))))
    record: Any = plan_of(model)
    assert (record.away, record.saved_away) == (before.away, before.saved_away)
    assert set(record.measured_peak_bytes) == {record.predicted_peak_bytes} == {before.predicted_peak_bytes}


def test_equal_blocks_share_schedules(file: Path) -> None:
    document = json.loads(file.read_text())
    assert list(document["blocks"]) == ["blocks.0", "blocks.1", "blocks.2"]
    assert {plan["schedule"] for plan in document["blocks"].values()} == set(document["schedules"])
    # The input of the first block alone needs no gradient.
    assert len({json.dumps(each["graph"]["structure"]) for each in document["schedules"].values()}) == 2


def test_a_file_of_another_model_names_the_block(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has a plan for block 'blocks\.2', which the model lacks"):
        planned(Model(2), file)
    with pytest.raises(RematError, match=r"has no plan for block 'blocks\.3'"):
        step(planned(Model(4), file, regions="blocks.*"), rows())
    with pytest.raises(RematError, match=r"plan for block 'blocks\.2', which the training step does not run"):
        step(planned(Model(), file, regions=["blocks.0", "blocks.1"]), rows())
    with pytest.raises(RematError, match=r"block 'blocks\.0', is for another graph: op '.*' .* had other inputs"):
        step(planned(Model(width=8), file), rows(width=8))

    def lose_a_step(document: Any) -> None:
        document["schedules"]["0"]["steps"].pop(0)

    with pytest.raises(RematError, match=r"block 'blocks\.0', does not run: step"):
        step(planned(Model(), changed(file, tmp_path, lose_a_step)), rows())

    def move(document: Any) -> None:
        document["blocks"]["blocks.0"]["input_on_host"] = True

    with pytest.raises(RematError, match=r"has input of block 'blocks\.0' on the host, which cannot leave here"):
        step(planned(Model(), changed(file, tmp_path, move)), rows())


def test_other_sizes_are_refused_and_the_first_go_on(file: Path) -> None:
    model = planned(Model(), file)
    step(model, rows())
    with pytest.raises(RematError, match=r"block 'blocks\.0', is for another graph"):
        step(model, rows(128))
    step(model, rows())
    assert plan_of(model).calls == 2


def test_a_copy_of_the_model_runs_by_the_same_file(file: Path) -> None:
    model = planned(Model(), file)
    step(model, rows())
    other = copy.deepcopy(model)
    assert all(map(torch.equal, step(model, rows()), step(other, rows())))
    records: list[Any] = [plan_of(each) for each in (model, other)]
    assert records[0].predicted_peak_bytes == records[1].predicted_peak_bytes


def test_plans_above_their_budget_are_told(file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def tighten(document: Any) -> None:
        document["budget_bytes"] = 1000

    step(planned(Model(), changed(file, tmp_path, tighten)), rows())
    assert "above the budget of 1.000 kB that they were made for" in caplog.text


def test_wrong_calls_are_refused_in_words(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was planned for eager's kernels") as refused:
        planned(Model(), file, fused=True)
    assert refused.value.hint == "leave fused=True out, or plan with it"
    with pytest.raises(UsageError, match=r"was planned for the kernels of torch\.compile") as refused:
        planned(Model(), changed(file, tmp_path, lambda document: document.update(kernels="fused")))
    assert refused.value.hint == "planned(..., fused=True)"
    with pytest.raises(UsageError, match="regions=None asks for the whole step"):
        planned(Model(), file, regions=None)
    with pytest.raises(UsageError, match="regions are parts of one"):
        planned(lambda x: x, file)
    with pytest.raises(UsageError, match="a schedule from a file says itself"):
        planned(Model(), file, split=True)


def test_what_is_not_planned_by_blocks_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no blocks are planned yet"):
        plan_of(by_blocks(Model())).save(tmp_path / "blocks.json")
    with pytest.raises(UsageError, match="this is one of the whole step"):
        plan_of(planned(Model(), budget="90%", regions=None)).save(tmp_path / "blocks.json")
    assert not list(tmp_path.iterdir())


def test_plans_of_sizes_that_change_are_saved_for_the_largest(tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    first = by_blocks(Model())
    for count in (128, 256, 200):  # captured with symbols from the second on
        step(first, rows(count))
    before: Any = plan_of(first)
    before.save(path)
    torch.manual_seed(0)
    model = Model()
    twin = copy.deepcopy(model)
    planned(model, path)
    for _ in range(3):
        assert all(map(torch.equal, step(model, rows(256)), step(twin, rows(256))))
    record: Any = plan_of(model)
    assert not record.unplanned
    assert set(record.measured_peak_bytes) == {record.predicted_peak_bytes}
    assert record.predicted_peak_bytes == before.predicted_peak_bytes
    assert record.overhead > 0


class Moded(Model):
    """Masks in training."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(Block(), nn.Dropout(0.1)) for _ in range(2))


def test_plans_of_another_mode_are_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    model = by_blocks(Moded())
    step(model, rows(128))
    step(model, rows(256))
    plan_of(model).save(path)
    before = path.read_bytes()
    model.eval()
    with pytest.raises(UsageError, match=r"block 'blocks\.0' is captured as another graph than the planned one"):
        plan_of(model).save(path)
    assert path.read_bytes() == before


def test_a_budget_without_plans_writes_nothing(tmp_path: Path) -> None:
    model = planned(Model(), budget="1kB", regions="blocks.*", options={"time_limit": 0.05})
    with pytest.raises(DoesNotFit):
        step(model, rows())
    with pytest.raises(UsageError, match="no blocks are planned yet"):
        plan_of(model).save(tmp_path / "blocks.json")
