"""The device profiles in `configs/devices`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from remat_cli.core.link import Duplex
from remat_cli.costs import Device
from tests.places import ROOT

PROFILES = sorted((ROOT / "configs" / "devices").glob("*.yaml"))


def test_the_promised_profiles_are_there() -> None:
    assert {path.stem for path in PROFILES} == {
        "generic",
        "v100",
        "a10",
        "a100",
        "h100",
        "h200",
        "gh200",
        "laptop-cpu",
        "edge-npu",
    }


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_profile_describes_a_device(path: Path) -> None:
    device = Device(**yaml.safe_load(path.read_text(encoding="utf-8")))
    assert device.link_bandwidth < device.bandwidth
    assert all(type(peak) is int for peak in device.peak_flops.values())


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_says_of_which_kind_its_link_is_and_why(path: Path) -> None:
    (said,) = re.findall(r"^link_duplex: (\w+)  # .+$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert said in list(Duplex)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_figure_names_its_source(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    sources = set(re.findall(r"^# .*?(\[\w+\])", text, flags=re.MULTILINE))
    figures = re.findall(r"^ *\w+: +([0-9][0-9_.]*) *(.*)$", text, flags=re.MULTILINE)
    assert len(figures) >= 8
    for figure, comment in figures:
        named = set(re.findall(r"\[\w+\]", comment))
        assert named <= sources, f"{figure} names a source that is not given"
        assert named or "assumption" in comment or re.search(r"# (as|half of) \w+\d", comment), figure
