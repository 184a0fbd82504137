"""`--allocator`: plans held against what PyTorch's caching allocator reserves, written and verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remat_cli.errors import ExitCode
from tests.cli.calls import Remat
from tests.places import GRAPHS

UNET = str(GRAPHS / "unet.json")
ASKED = ("plan", UNET, "--budget", "70%", "--planner", "rotor", "--allocator")


@pytest.mark.parametrize("allocator", ["cuda", "cuda:expandable_segments:True"])
def test_plan_says_peak_and_reserved_and_its_file_is_verified(remat: Remat, tmp_path: Path, allocator: str) -> None:
    file = tmp_path / "schedule.json"
    said = remat(*ASKED, allocator, "-o", str(file), "--json").json
    written = json.loads(file.read_text())
    assert said["reserved"]["allocator"] == written["reserved"]["allocator"] == allocator
    assert said["peak_bytes"] < said["reserved"]["bytes"] <= said["budget_bytes"] < said["reserved"]["plain_bytes"]
    assert written["reserved"]["bytes"] == said["reserved"]["bytes"]
    verified = remat("verify", UNET, str(file))
    assert verified.code == ExitCode.DONE
    assert f"by {allocator} · untried on a GPU" in " ".join(verified.out.split())


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"bytes": 1}, "the file says reserved.bytes 1, but the replay gives"),
        ({"allocator": "cuda:max_split_size_mb:32"}, "are above the budget of"),
        ({"allocator": "mine"}, "reserved.allocator: allocator 'mine' is not known"),
        ({"allocator": None}, "reserved names no allocator"),
        ({"bytes": "much"}, "is of the wrong type"),
    ],
)
def test_file_that_says_what_is_not_so_is_refused(
    remat: Remat, tmp_path: Path, changed: dict[str, object], fault: str
) -> None:
    file = tmp_path / "schedule.json"
    remat("plan", UNET, "--budget", "3.7GB", "--planner", "keep_all", "--allocator", "cuda", "-o", str(file), "-q")
    written = json.loads(file.read_text())
    written["reserved"] |= changed
    file.write_text(json.dumps(written))
    refused = remat("verify", UNET, str(file))
    assert refused.code != ExitCode.DONE
    assert fault in " ".join(refused.err.split())


def test_plan_that_fits_by_its_peak_only_is_refused_in_words(remat: Remat) -> None:
    refused = remat("plan", UNET, "--budget", "40%", "--planner", "rotor", "--allocator", "cuda")
    assert refused.code == ExitCode.NO_PLAN
    assert "PyTorch's allocator reserves more" in " ".join(refused.out.split())


def test_config_file_names_an_allocator(remat: Remat, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("planner: rotor\nbudget: 70%\nallocator: cuda\n")
    assert remat("plan", UNET, "-c", str(config), "--json").json["reserved"]["allocator"] == "cuda"
    config.write_text("budget: 70%\nallocator: tcmalloc\n")
    refused = remat("plan", UNET, "-c", str(config))
    assert refused.code == ExitCode.USAGE
    assert "allocator 'tcmalloc' is not known" in refused.err
