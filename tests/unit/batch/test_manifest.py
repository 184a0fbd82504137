"""The manifest: what it asks for, and what is wrong with it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from remat_cli.batch.manifest import load_manifest
from remat_cli.batch.requests import jobs_of
from remat_cli.errors import UsageError
from remat_cli.units import parse_budget
from tests.places import GRAPHS
from tests.unit.batch.models import write_graphs

SAMPLE = GRAPHS / "batch.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_graphs(tmp_path / "models", "b", "a")
    (tmp_path / "mine.yaml").write_text("planner: keep_all\nmode: training\ndims: {batch: 1, seq: 2}\nbudget: 90%\n")
    (tmp_path / "times.yaml").write_text("Relu: 7\n")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "zoo.yaml"
    path.write_text(text)
    return path


def test_the_sample_is_graphs_times_budgets_times_configs() -> None:
    groups = load_manifest(SAMPLE)
    jobs = jobs_of(groups, one_worker=False)
    assert [(job.graph.name, str(job.request.budget), job.request.chosen.name) for job in jobs] == [
        ("unet.onnx", "60%", "approx_dp"),
        ("unet.onnx", "60%", "dtr"),
        ("unet.onnx", "2.000 GB", "approx_dp"),
        ("unet.onnx", "2.000 GB", "dtr"),
        ("gpt.onnx", "95%", "approx_dp"),
        ("gpt.onnx", "95%", "dtr"),
    ]
    assert [dict(group.said["dims"]) for group in groups] == [{"batch": 4}, {"batch": 2, "seq": 256}]
    assert [(group.said["optimizer"], group.said["device"]) for group in groups] == [
        ("sgd", "a100"),
        ("adam", "a100"),
    ]
    assert jobs[1].config == "dtr heuristic=lru"


def test_what_is_said_of_a_graph_wins_over_the_top_and_that_over_a_config(folder: Path) -> None:
    path = write(
        folder,
        """
configs: [mine.yaml]
mode: inference
dims: {batch: 2}
max_overhead: 10%
graphs:
  - models/a.json
  - {path: models/b.json, mode: training, dims: {batch: 3}, max_overhead: 0.2, measurements: times.yaml}
""",
    )
    one, two = jobs_of(load_manifest(path), one_worker=False)
    assert (one.options.mode, dict(one.options.dims), one.request.max_overhead) == (
        "inference",
        {"batch": 2, "seq": 2},
        Fraction(1, 10),
    )
    assert (two.options.mode, dict(two.options.dims), two.request.max_overhead) == (
        "training",
        {"batch": 3, "seq": 2},
        Fraction(1, 5),
    )
    assert two.options.measurements == str(folder / "times.yaml")
    # No budget is said but in the config.
    assert one.request.budget == parse_budget("90%")
    assert (one.request.chosen.name, one.config) == ("keep_all", "mine")


def test_patterns_are_relative_to_the_manifest_and_sorted(folder: Path) -> None:
    (group,) = load_manifest(write(folder, "graphs: ['models/*.json']"))
    assert group.graphs == (folder / "models" / "a.json", folder / "models" / "b.json")


WRONG = {
    "budget: [80%]\ngraphs: [models/a.json]": ("zoo.yaml:1: budget: unknown key", "did you mean 'budgets'?"),
    "budgets: [80%]": ("zoo.yaml: graphs: names no graph", "write it like"),
    "graphs: []": ("zoo.yaml:1: graphs: names no graph", ""),
    "graphs: models/a.json": ("zoo.yaml:1: graphs: input should be a valid array", ""),
    "graphs:\n  - models": ("zoo.yaml:2: path: ", "name the files in it"),
    "graphs:\n  - {dims: {batch: 1}}": ("zoo.yaml:2: path: is missing", ""),
    "graphs:\n  - {path: models/a.json, dim: {}}": ("zoo.yaml:2: dim: unknown key", "did you mean 'dims'?"),
    "graphs:\n  - path: models/a.json\n    optimizer: adm": (
        "zoo.yaml:3: optimizer: there is no 'adm'",
        "did you mean 'adam'?",
    ),
    "budgets:\n  - 80%\n  - lots\ngraphs: [models/a.json]": ("zoo.yaml:3: budgets.1: budget 'lots'", "write it like"),
    "configs:\n  - dtrr\ngraphs: [models/a.json]": ("zoo.yaml:2: configs.0: dtrr: no such file", "did you mean 'dtr'?"),
    "configs: [{name: dtr, heuristc: lru}]\ngraphs: [models/a.json]": (
        "zoo.yaml:1: heuristc: unknown key",
        "did you mean 'heuristic'?",
    ),
    "configs: [{nme: dtr}]\ngraphs: [models/a.json]": ("zoo.yaml:1: planner: has no name", "add 'name: ...'"),
    "max_overhead: lots\ngraphs: [models/a.json]": ("zoo.yaml:1: max_overhead: share 'lots'", ""),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told_with_its_line(text: str, folder: Path) -> None:
    message, hint = WRONG[text]
    with pytest.raises(UsageError) as caught:
        load_manifest(write(folder, text))
    assert message in caught.value.message
    assert hint in caught.value.hint
