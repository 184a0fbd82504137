"""The choice of parts: whatever the search tries, its plan is never worse than the one without."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.config import GraphOptions, PlannerChoice, Request
from remat_cli.planning import plan, plan_split
from remat_cli.planning.split_choice import original
from remat_cli.prepare import prepare_in_parts
from remat_cli.units import parse_budget

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

def step(seen=0):
    return Head(seen), (torch.randn(64, 8), torch.randint(2000, (64,)))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(STEP)
    return Path(f"{tmp_path / 'train.py'}:step")


def request(budget: str) -> Request:
    return Request(parse_budget(budget), PlannerChoice("auto", {"time_limit": 1.0}))


@pytest.mark.parametrize("budget", ["min", "95%", "60%", "40%"])
def test_a_plan_with_split_is_never_worse(path: Path, budget: str) -> None:
    prepared_with = prepare_in_parts(path, GraphOptions())
    found, without = plan_split(prepared_with, request(budget)), plan(prepared_with({}), request(budget))
    assert found.planning.trace is not None
    assert found.planning.trace.peak_bytes <= found.planning.budget_bytes
    if without.trace is None:
        assert found.cuts
    elif budget == "min":
        assert found.planning.trace.peak_bytes < without.trace.peak_bytes
    else:
        assert found.planning.trace.time <= without.trace.time


def test_where_all_rows_are_seen_the_note_says_what_is_in_the_way(path: Path) -> None:
    prepared_with = prepare_in_parts(path, GraphOptions(dims={"seen": 1}))
    found = plan_split(prepared_with, request("20%"))
    assert found.planning.trace is None
    assert "split was tried" in found.noted.prepared.notes[-1]


@pytest.mark.parametrize(
    ("part", "op"),
    [("mm_1_part3", "mm_1"), ("view_rows12", "view"), ("getitem_2_sum1_slice0", "getitem_2"), ("mm_rows", "mm")],
)
def test_parts_are_named_after_their_op(part: str, op: str) -> None:
    assert original(part) == op
