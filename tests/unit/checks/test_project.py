"""Project files: what is read, what models inherit, and what is refused with which place and hint."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from remat_cli.checks.project import Project, load_project
from remat_cli.config import PlannerChoice, Request
from remat_cli.errors import UsageError
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP
from remat_cli.planners.published.moccasin.planner import Moccasin
from remat_cli.planners.retention.planner import Retention
from remat_cli.units import BudgetSpec


def written(tmp_path: Path, text: str, name: str = "remat.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def project(tmp_path: Path, text: str) -> Project:
    return load_project(written(tmp_path, text))


def test_every_key_of_a_model_is_read(tmp_path: Path) -> None:
    (model,) = project(
        tmp_path,
        """
models:
  - name: training step
    path: graphs/m.onnx
    planner: {name: approx_dp, candidates: 3}
    budget: 80%
    max_overhead: 10%
    max_peak: 8GB
    max_regression: 2%
    mode: training
    dims: {batch: 8}
    optimizer: adam
    device: a100
    measurements: times.json
    strict: true
    arena: true
    alignment: 128
""",
    ).models
    assert (model.request.arena, model.request.alignment) == (True, 128)
    assert (model.name, model.path, model.line) == ("training step", tmp_path / "graphs/m.onnx", 3)
    assert model.request.planner == PlannerChoice("approx_dp", {"candidates": 3})
    assert (model.request.budget, model.request.max_overhead) == (BudgetSpec(share=Fraction(4, 5)), Fraction(1, 10))
    assert (model.max_peak, model.max_regression) == (8 * 10**9, Fraction(1, 50))
    graph = model.graph
    assert (graph.mode, graph.dims, graph.optimizer, graph.strict) == ("training", {"batch": 8}, "adam", True)
    assert (graph.device, graph.measurements) == ("a100", str(tmp_path / "times.json"))


def test_a_model_is_named_after_its_file_and_planned_by_the_default_planner(tmp_path: Path) -> None:
    (model,) = project(tmp_path, "models: [{path: zoo/unet.onnx, max_peak: 100}]").models
    assert (model.name, model.request.chosen.name) == ("unet", "auto")
    assert (model.request.budget, model.request.max_overhead, model.max_regression) == (None, None, None)


def test_a_model_inherits_what_it_does_not_say(tmp_path: Path) -> None:
    first, second = project(
        tmp_path,
        """
defaults:
  dims: {batch: 8, seq: 64}
  planner: {name: approx_dp, candidates: 3}
  budget: 80%
  max_regression: 5%
  strict: true
models:
  - path: a.onnx
  - path: b.onnx
    dims: {batch: 1}
    planner: keep_all
    budget: 1GB
    max_regression: 1%
""",
    ).models
    assert first.graph.dims == {"batch": 8, "seq": 64}
    assert second.graph.dims == {"batch": 1, "seq": 64}
    share, size = BudgetSpec(share=Fraction(4, 5)), BudgetSpec(device_bytes=10**9)
    assert first.request == Request(share, PlannerChoice("approx_dp", {"candidates": 3}))
    assert second.request == Request(size, PlannerChoice("keep_all"))
    assert (first.max_regression, second.max_regression) == (Fraction(1, 20), Fraction(1, 100))
    assert first.graph.strict
    assert second.graph.strict


def test_a_config_file_says_more_than_the_defaults_and_less_than_the_model(tmp_path: Path) -> None:
    written(tmp_path, "planner: keep_all\nbudget: 50%\ndims: {batch: 2}\n", "own.yaml")
    (model,) = project(
        tmp_path,
        """
defaults: {planner: approx_dp, budget: 80%, dims: {batch: 8, seq: 64}}
models:
  - {path: a.onnx, config: own.yaml, budget: 60%}
""",
    ).models
    assert model.request == Request(BudgetSpec(share=Fraction(3, 5)), PlannerChoice("keep_all"))
    assert model.graph.dims == {"batch": 2, "seq": 64}


def test_a_config_that_comes_with_remat_is_found_by_name(tmp_path: Path) -> None:
    (model,) = project(tmp_path, "models: [{path: a.onnx, config: keep_all}]").models
    assert model.request.planner == PlannerChoice("keep_all")


def test_a_config_that_asks_for_the_smallest_budget_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "budget: min\n", "own.yaml")
    with pytest.raises(UsageError, match=r"remat\.yaml:2: budget: a check needs a budget"):
        project(tmp_path, "models:\n- {path: a.onnx, config: own.yaml}")


def test_the_file_of_a_value_is_named_relative_to_the_project(tmp_path: Path) -> None:
    (model,) = project(
        tmp_path, "models: [{path: a.onnx, budget: 80%, values: {sr: 16000, x: x.npy, ids: [1, 2]}}]"
    ).models
    assert model.graph.values == {"sr": 16000, "x": str(tmp_path / "x.npy"), "ids": [1, 2]}


def test_a_device_profile_beside_the_project_goes_before_one_that_comes_with_remat(tmp_path: Path) -> None:
    written(tmp_path, "", "own.yaml")
    first, second = project(
        tmp_path,
        "models: [{path: a.onnx, budget: 80%, device: own.yaml}, {path: b.onnx, budget: 80%, device: a100}]",
    ).models
    assert (first.graph.device, second.graph.device) == (str(tmp_path / "own.yaml"), "a100")


def test_the_baseline_lies_beside_the_project_unless_it_says_where(tmp_path: Path) -> None:
    text = "models: [{path: a.onnx, budget: 80%}]\n"
    assert project(tmp_path, text).baseline == tmp_path / "remat.baseline.json"
    assert project(tmp_path, f"{text}baseline: ci/memory.json\n").baseline == tmp_path / "ci/memory.json"


def test_a_search_that_ends_by_counted_work_is_not_ended_by_the_clock(tmp_path: Path) -> None:
    text = """
defaults: {budget: 80%}
models:
  - {path: a.onnx, planner: {name: retention, seed: 3, cores: 0}}
  - {path: b.onnx, planner: {name: retention, time_limit: 5}}
  - {path: c.onnx, planner: {name: moccasin}}
  - {path: d.onnx, planner: {name: moccasin, work_limit: 7}}
  - {path: e.onnx, planner: approx_dp}
"""
    free, timed, endless, counted, other = (model.request.chosen.built for model in project(tmp_path, text).models)
    assert free == Retention(time_limit=600, seed=3, cores=0)
    assert timed == Retention(time_limit=5)
    assert endless == Moccasin(time_limit=600, work_limit=30, cores=1)
    assert counted == Moccasin(work_limit=7)
    assert other == ApproxDP()


ONE = "models:\n  - path: a.onnx\n"
FAULTS = {
    "no models": ("baseline: b.json\n", "remat.yaml: models: is missing", "add it"),
    "an empty list": ("models: []\n", "remat.yaml:1: models: is empty", "- path: model.onnx"),
    "a model that is none": ("models:\n  - a.onnx\n", "remat.yaml:2: models.0: is no model", "- path: g.onnx"),
    "a model without a path": (
        "models:\n  - path: a.onnx\n    budget: 80%\n  - budget: 80%\n",
        "remat.yaml:4: path: is missing",
        "add it",
    ),
    "a path of nothing": ("models:\n  - path: ''\n    budget: 80%\n", "remat.yaml:2: path: '' names no file", "g.onnx"),
    "a model held to nothing": (ONE, "remat.yaml:2: 'a' is held to nothing", "a budget, a max_peak"),
    "a name twice": (
        "defaults: {budget: 80%}\nmodels:\n  - path: a.onnx\n  - path: b/a.onnx\n",
        "remat.yaml:4: models.1: the name 'a' is taken by the model at line 3",
        "another 'name: ...'",
    ),
    "an unknown key at the top": (
        "model: []\nmodels: []\n",
        "remat.yaml:1: model: unknown key",
        "did you mean 'models'",
    ),
    "an unknown key of a model": (
        f"{ONE}    max_pek: 8GB\n",
        "remat.yaml:3: max_pek: unknown key",
        "did you mean 'max_peak'?",
    ),
    "a name as a default": (
        "defaults:\n  name: a\nmodels: [{path: a}]\n",
        "remat.yaml:2: name: unknown key",
        "known here",
    ),
    "an unknown planner": (
        f"defaults:\n  planner: aprox_dp\n{ONE}",
        "remat.yaml:2: planner: there is no 'aprox_dp'",
        "did you mean 'approx_dp'?",
    ),
    "an unknown option": (
        f"{ONE}    budget: 80%\n    planner:\n      name: approx_dp\n      candidate: 3\n",
        "remat.yaml:6: candidate: unknown key",
        "did you mean 'candidates'?",
    ),
    "an unknown mode": (f"{ONE}    mode: trainin\n", "remat.yaml:3: mode: there is no 'trainin'", "did you mean"),
    "an unknown config": (f"{ONE}    config: aprox_dp\n", "aprox_dp: no such file", "did you mean 'approx_dp'?"),
    "a bad budget": (f"{ONE}    budget: lots\n", "remat.yaml:3: budget: budget 'lots' is not understood", "8GB"),
    "the smallest budget": (f"{ONE}    budget: min\n", "remat.yaml:3: budget: a check needs", "8GB, 80% or"),
    "a share as the largest peak": (f"{ONE}    max_peak: 80%\n", "remat.yaml:3: max_peak: size '80%'", "use B, KB"),
    "a bad regression": (f"{ONE}    max_regression: some\n", "remat.yaml:3: max_regression: share 'some'", "10%"),
    "an overhead of nothing": (
        f"{ONE}    max_peak: 8GB\n    max_overhead: 5%\n",
        "remat.yaml:4: max_overhead: needs a budget",
        "add 'budget: 80%'",
    ),
    "an alignment of nothing": (
        f"{ONE}    max_peak: 8GB\n    alignment: 0\n",
        "remat.yaml:4: alignment: an alignment of 0",
        "give 64",
    ),
    "a wrong type": (f"{ONE}    dims: {{batch: many}}\n", "remat.yaml:3: dims.batch: ", "correct the value"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_line_and_a_way_out(fault: str, tmp_path: Path) -> None:
    text, message, hint = FAULTS[fault]
    with pytest.raises(UsageError) as raised:
        project(tmp_path, text)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_an_overhead_that_is_inherited_needs_no_budget(tmp_path: Path) -> None:
    (model,) = project(tmp_path, "defaults: {max_overhead: 5%}\nmodels: [{path: a.onnx, max_peak: 8GB}]\n").models
    assert model.max_peak == 8 * 10**9


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_project(tmp_path / "remat.yaml")
