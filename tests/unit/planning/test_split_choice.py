"""The choice of parts: whatever the search tries, its plan is never worse than the one without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from remat_cli.config import GraphOptions, PlannerChoice, Request
from remat_cli.core.simulate import simulate
from remat_cli.planning import plan, plan_split, split_choice, try_split
from remat_cli.prepare import Prepared, prepare_in_parts
from remat_cli.splitting import Split, original
from remat_cli.units import format_bytes, parse_budget

pytest.importorskip("torch", reason="the steps are PyTorch's")

STEP = """
import torch
from torch import nn
from torch.nn import functional as F

class Head(nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.head, self.seen = nn.Linear(8, 2000), seen
    def forward(self, x, labels):
        scores = self.head(x)
        if self.seen:
            scores = scores - scores.mean(0)
        return F.cross_entropy(scores, labels)

def step(seen=0, rows=64):
    return Head(seen), (torch.randn(rows, 8), torch.randint(2000, (rows,)))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(STEP)
    return Path(f"{tmp_path / 'train.py'}:step")


def request(budget: str) -> Request:
    return Request(parse_budget(budget), PlannerChoice("auto", {"time_limit": 0.5}))


@pytest.mark.parametrize("budget", ["min", "95%", "80%"])
def test_a_plan_with_split_is_never_worse(path: Path, budget: str) -> None:
    prepared_with = prepare_in_parts(path, GraphOptions(dims={"rows": 8}))
    found, without = plan_split(prepared_with, request(budget)), plan(prepared_with({}), request(budget))
    assert found.planning.trace is not None
    assert found.planning.trace.peak_bytes <= found.planning.budget_bytes
    if without.trace is None:
        assert found.cuts
    elif budget == "min":
        assert found.planning.trace.peak_bytes < 0.7 * without.trace.peak_bytes  # two parts need more
    else:
        assert found.planning.trace.time <= without.trace.time


@pytest.mark.parametrize(("parts", "is_enough"), [(2, True), (80, False)], ids=["enough_rows", "too_few_rows"])
def test_former_cuts_are_tried_first(path: Path, parts: int, *, is_enough: bool) -> None:
    prepared_with = prepare_in_parts(path, GraphOptions())
    former = {"_log_softmax_backward_data": Split(parts, again=True)}
    tried: list[Mapping[str, Split]] = []

    def noted(cuts: Mapping[str, Split]) -> Prepared:
        tried.append(cuts)
        return prepared_with(cuts)

    found = plan_split(noted, request("60%"), former=[former])
    assert tried[:2] == [{}, former]
    assert found.cuts
    assert all(cut.again for cuts in tried for cut in cuts.values()) == is_enough


def test_where_all_rows_are_seen_the_note_says_what_is_in_the_way(path: Path) -> None:
    prepared_with = prepare_in_parts(path, GraphOptions(dims={"seen": 1}))
    found = plan_split(prepared_with, request("20%"))
    assert found.planning.trace is None
    note = found.noted.prepared.notes[-1]
    assert note.startswith("split was tried: with the region around op '_log_softmax_backward_data' in parts, op 'add'")


def test_a_refused_step_is_tried_in_parts(path: Path) -> None:
    refused = plan(prepare_in_parts(path, GraphOptions())({}), request("60%"))
    tried = try_split(refused, path, GraphOptions(), seconds=10)
    assert tried is not None
    assert tried.planning.peak_bytes is not None
    assert tried.planning.peak_bytes <= refused.budget_bytes
    assert tried.peak_bytes == tried.planning.peak_bytes
    assert "--split fits: the region around" in tried.in_words("--split")


def test_without_a_fit_the_trial_has_the_least_peak_of_a_schedule(path: Path) -> None:
    refused = plan(prepare_in_parts(path, GraphOptions())({}), request("10%"))
    tried = try_split(refused, path, GraphOptions(), seconds=10)
    assert tried is not None
    assert tried.closest is not None
    assert not tried.cuts
    closest = tried.closest.solution.result.closest
    assert closest is not None
    assert simulate(tried.closest.prepared.graph, closest).peak_bytes == tried.peak_bytes
    assert f"the least peak found is {format_bytes(tried.peak_bytes or 0)}" in tried.in_words("--split")


def test_without_time_one_graph_is_tried_and_the_reason_says_so(path: Path) -> None:
    refused = plan(prepare_in_parts(path, GraphOptions())({}), request("12%"))
    tried = plan_split(prepare_in_parts(path, GraphOptions()), refused.request, whole=refused, seconds=1e-6)
    assert not tried.cuts
    assert tried.bound_by.endswith("(tried for 1 µs)")
    assert tried.in_words("--split").startswith("--split may fit, but the trial was short: ")


def test_no_parts_are_tried_where_the_user_gives_them(path: Path) -> None:
    options = GraphOptions(parts={"_log_softmax": "2"})
    refused = plan(prepare_in_parts(path, GraphOptions())({}), request("10%"))
    assert try_split(refused, path, options, seconds=10) is None


def test_large_steps_are_not_tried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = plan(prepare_in_parts(path, GraphOptions())({}), request("10%"))
    monkeypatch.setattr(split_choice, "_MOST_OPS_OF_TRIAL", len(refused.prepared.graph.ops) - 1)
    assert try_split(refused, path, GraphOptions(), seconds=10) is None


@pytest.mark.parametrize(
    ("part", "op"),
    [("mm_1_part3", "mm_1"), ("view_rows12", "view"), ("getitem_2_sum1_slice0", "getitem_2"), ("mm_rows", "mm")],
)
def test_parts_are_named_after_their_op(part: str, op: str) -> None:
    assert original(part) == op
