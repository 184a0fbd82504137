"""Settings as the command line and a config file name them."""

from __future__ import annotations

import pytest

from remat_cli.settings import Setting, as_text, in_config, on_command_line


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
