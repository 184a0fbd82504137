"""Settings as the command line and a config file name them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest

import remat_cli.formats  # noqa: F401  # declares the settings of readers
from remat_cli.settings import Setting, Settings, as_text, in_config, on_command_line, over, setting


@pytest.mark.parametrize(
    ("setting", "option", "key"),
    [
        (Setting("strict"), "--strict", "strict"),
        (Setting("dims"), "--dim", "dims"),
        (Setting("cost_model", "unit"), "--cost-model unit", "'cost_model: unit'"),
        (Setting("dims", {"batch": 8, "seq": 512}), "--dim batch=8 --dim seq=512", "'dims: {batch: 8, seq: 512}'"),
        (
            Setting("input_shapes", {"x": (8, 3), "y": (1,)}),
            "--input-shape x:8,3 --input-shape y:1",
            "'input_shapes: {x: [8, 3], y: [1]}'",
        ),
    ],
)
def test_each_names_a_setting_in_its_own_way(setting: Setting, option: str, key: str) -> None:
    assert on_command_line(setting) == option
    assert in_config(setting) == key


def test_a_hint_is_text_with_settings_in_it() -> None:
    hint = ("leave ", Setting("strict"), " out, or give ", Setting("device", "a100"))
    assert as_text(hint, on_command_line) == "leave --strict out, or give --device a100"
    assert as_text("use a file", in_config) == "use a file"


def test_what_is_given_above_wins_be_it_false_nothing_or_the_default() -> None:
    below = {"strict": True, "alignment": 512, "max_overhead": 0.1, "mode": "training"}
    above = {"strict": False, "alignment": 64, "max_overhead": 0}
    assert over(below, above) == {"strict": False, "alignment": 64, "max_overhead": 0, "mode": "training"}
    assert over(below, {}) == over({}, below) == below


def test_mappings_are_merged_entry_by_entry() -> None:
    assert over({"dims": {"a": 1, "b": 1}}, {"dims": {"b": 2}}) == {"dims": {"a": 1, "b": 2}}
    assert over({}, {"dims": {"b": 2}}) == {"dims": {"b": 2}}


@dataclass(frozen=True)
class Sample(Settings):
    colour: str = setting("red", "Of the box.", flag="--color")
    sizes: dict[str, int] = setting(dict, "Of its sides.")
    share: Fraction | None = setting(None, "Of the box that is full.")


def test_a_class_takes_its_own_settings_and_tells_those_that_differ_from_their_defaults() -> None:
    sample = Sample.of({"colour": "red", "share": Fraction(1, 4), "budget": "of another class"})
    assert sample == Sample(share=Fraction(1, 4))
    assert sample.in_json == {"colour": "red", "sizes": {}, "share": 0.25}
    assert sample.not_default == {"share": 0.25}


def test_an_option_may_be_called_otherwise_than_its_setting() -> None:
    assert on_command_line(Setting("colour", "blue")) == "--color blue"
    assert on_command_line(Setting("strict", False)) == "--no-strict"
    assert in_config(Setting("strict", False)) == "'strict: false'"
