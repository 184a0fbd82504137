"""Jobs: their identity, and the names of their files."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from remat_cli.batch.job import Job
from remat_cli.batch.requests import JobGroup, jobs_of, matching_files, schedule_name
from remat_cli.errors import GraphError, UsageError
from remat_cli.units import parse_budget
from tests.places import ROOT
from tests.unit.batch.models import config_of, write_graphs


@pytest.fixture
def group(tmp_path: Path) -> JobGroup:
    return JobGroup(
        tuple(write_graphs(tmp_path, "g")), budgets=(parse_budget("80%"),), configs=(config_of("retention"),)
    )


def jobs(*groups: JobGroup, one_worker: bool = False) -> list[Job]:
    return jobs_of(groups, one_worker=one_worker)


def key(group: JobGroup, **changes: Any) -> str:
    return jobs(replace(group, **changes))[0].key


def test_everything_that_the_result_depends_on_is_in_the_identity(
    group: JobGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "times.yaml"
    table.write_text("Relu: 7\n")
    device = tmp_path / "mine.yaml"
    device.write_text((ROOT / "configs" / "devices" / "a100.yaml").read_text())
    keys = [
        key(group),
        key(group, budgets=(parse_budget("81%"),)),
        key(group, budgets=(parse_budget("min"),)),
        key(group, said={"max_overhead": Fraction(1, 10)}),
        key(group, said={"offload": True}, configs=(config_of("pofo"),)),
        key(group, configs=(config_of("pofo"),)),
        key(group, configs=(config_of("keep_all"),)),
        key(group, configs=(config_of("retention", seed=1),)),
        key(group, said={"mode": "inference"}),
        key(group, said={"measurements": str(table)}),
        key(group, said={"device": str(device)}),
        key(group, graphs=tuple(write_graphs(tmp_path, "other_name"))),
    ]
    table.write_text("Relu: 8\n")
    keys.append(key(group, said={"measurements": str(table)}))
    write_graphs(tmp_path, "g", size=101)
    keys.append(key(group))
    monkeypatch.setattr("remat_cli.batch.requests.__version__", "99")
    keys.append(key(group))
    assert len(set(keys)) == len(keys)


def test_what_the_result_does_not_depend_on_is_not_in_the_identity(group: JobGroup, tmp_path: Path) -> None:
    same = key(group)
    assert key(group, configs=(config_of("retention", seed=0),)) == same  # the default, written out
    assert key(group, graphs=tuple(write_graphs(tmp_path / "elsewhere", "g"))) == same
    assert jobs(group, one_worker=True)[0].key == same


def test_beside_others_a_planner_gets_one_worker_unless_told_otherwise(group: JobGroup) -> None:
    told = replace(group, configs=(config_of("retention", cores=3), config_of("keep_all")))
    assert [job.request.chosen.options for job in jobs(group)] == [{}]
    assert [job.request.chosen.options for job in jobs(group, one_worker=True)] == [{"cores": 1}]
    assert [job.request.chosen.options for job in jobs(told, one_worker=True)] == [{"cores": 3}, {}]


def test_what_is_asked_for_twice_is_done_once(group: JobGroup) -> None:
    twice = replace(group, budgets=(parse_budget("80%"), parse_budget("0.8%"), parse_budget("80.0%")))
    assert [str(job.request.budget) for job in jobs(twice, group)] == ["80%", "0.8%"]


def test_a_missing_budget_and_a_missing_device_are_found_before_anything_runs(group: JobGroup) -> None:
    with pytest.raises(UsageError, match="retention has no budget"):
        jobs(replace(group, budgets=()))
    with pytest.raises(UsageError, match="no such file"):
        jobs(replace(group, said={"device": "a1000"}))


def test_a_file_that_cannot_be_read_is_left_for_its_job_to_tell(group: JobGroup) -> None:
    group.graphs[0].chmod(0)
    assert len(jobs(group)) == 1


def test_names_of_schedules_are_safe_and_tell_contents_apart(group: JobGroup, tmp_path: Path) -> None:
    graphs = tuple(write_graphs(tmp_path, "plain", "\u00e9t\u00e9 %7 x"))
    asked = jobs(replace(group, graphs=graphs, budgets=(parse_budget("8GB"),)))
    names = [schedule_name(job, 64 * digit) for job in asked for digit in "ab"]
    assert names == [
        "plain-8.000GB-retention-aaaaaaaaaaaa.json",
        "plain-8.000GB-retention-bbbbbbbbbbbb.json",
        "_t__pct7_x-8.000GB-retention-aaaaaaaaaaaa.json",
        "_t__pct7_x-8.000GB-retention-bbbbbbbbbbbb.json",
    ]


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_graphs(tmp_path / "m", "b", "a", "[1]")
    assert [path.name for path in matching_files("m/*.json")] == ["[1].json", "a.json", "b.json"]
    assert matching_files("**/a.json") == (Path("m/a.json"),)
    assert matching_files("m/[1].json") == (Path("m/[1].json"),)
    for pattern, message in (("m/c.json", "no such file"), ("m/*.onnx", "no file matches"), ("m", "is a directory")):
        with pytest.raises(GraphError, match=message):
            matching_files(pattern)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
def test_a_fifo_is_left_for_its_job_to_tell(group: JobGroup, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.json")
    assert len(jobs(replace(group, graphs=(tmp_path / "endless.json", Path("/dev/zero"))))) == 2
