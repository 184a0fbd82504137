"""Plans in parts that are compiled: corrected by the peak that inductor's code has, with compilation left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remat_cli.config import GraphOptions, PlannerChoice, Request
from remat_cli.core.problem import Observer
from remat_cli.errors import DoesNotFit
from remat_cli.planning import Planning, plan
from remat_cli.prepare import Prepared, prepare
from remat_cli.pytorch.plan import fused, fused_parts
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.units import parse_budget
from tests.cli.test_plan_split import STEP


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("step")
    (folder / "head.py").write_text(STEP)
    return prepare(Path(f"{folder / 'head.py'}:step"), GraphOptions(fused=True), split=True)


def asked(budget: str) -> Request:
    return Request(budget=parse_budget(budget), planner=PlannerChoice("keep_all"), split=True)


def compiled_with(monkeypatch: pytest.MonkeyPatch, prepared: Prepared, budget: str, more: Iterator[int]) -> Planning:
    """Plan and compile, where each compiled peak is so many bytes above the plan's."""

    def compiled(joint: Any, planned: GraphRecord, outputs: int, **_: Any) -> fused.CompiledPasses:
        assert outputs == 1
        assert {op.name for op in planned.graph.ops} == {op.name for op in joint.ops}
        peak = planned.predicted_peak_bytes + next(more)
        graphs: Any = type("Graph", (), {"kernels": ["cpp_fused_gelu_0"]})()
        memory = fused.CompiledMemory(peak, 0, peak, "cpp_fused_gelu_0")
        return fused.CompiledPasses(replace(planned, predicted_peak_bytes=peak), graphs, graphs, memory, False)

    monkeypatch.setattr(fused_parts, "compiled_plan", compiled)
    request = asked(budget)
    return fused_parts.within_budget_once_compiled(plan(prepared, request), request, Observer())


def test_a_plan_whose_compiled_peak_is_above_the_budget_is_made_smaller(
    monkeypatch: pytest.MonkeyPatch, prepared: Prepared
) -> None:
    first = compiled_with(monkeypatch, prepared, "60%", iter([0]))
    smaller = compiled_with(monkeypatch, prepared, "60%", iter([500_000, 0]))
    assert first.peak_bytes is not None
    assert smaller.peak_bytes is not None
    assert smaller.peak_bytes < first.peak_bytes < first.budget_bytes == smaller.budget_bytes
    assert smaller.prepared.options.parts != first.prepared.options.parts
    assert smaller.solution.baseline == first.solution.baseline
    assert [planning.prepared.notes[-1][:14] for planning in (first, smaller)] == ["compiled once ", "compiled 2 tim"]


def test_a_step_that_stays_above_the_budget_is_refused(monkeypatch: pytest.MonkeyPatch, prepared: Prepared) -> None:
    with pytest.raises(DoesNotFit, match=r"compiled 3 times .* above the budget of 2.886 MB: at kernel 'cpp_fused"):
        compiled_with(monkeypatch, prepared, "60%", iter([500_000, 1_500_000, 2_500_000]))


def test_the_smallest_budget_is_that_of_the_compiled_plan(monkeypatch: pytest.MonkeyPatch, prepared: Prepared) -> None:
    smallest = compiled_with(monkeypatch, prepared, "min", iter([1000]))
    assert smallest.peak_bytes is not None
    assert smallest.budget_bytes == smallest.peak_bytes + 1000
    assert "which is the budget that the schedule names" in smallest.prepared.notes[-1]


def test_without_parts_the_plan_is_of_the_step_as_inductor_decomposes_it(prepared: Prepared) -> None:
    planning = plan(prepared, asked("100%"))
    assert not planning.prepared.options.parts
    assert "gelu" in prepared.graph.op
    assert "gelu" not in planning.prepared.graph.op
