"""The README shows what really happens."""

from __future__ import annotations

import pytest

from remat_cli.cli import EXIT_CODES, VERBS
from remat_cli.config import shipped_names
from remat_cli.costs import COST_MODELS
from remat_cli.planners import PLANNERS
from tests.golden.readme import README, blocks, planners_shown, planners_table, printed


def test_every_command_prints_what_the_readme_says() -> None:
    shown = list(blocks())
    assert len(shown) >= 6
    outputs = printed([command for command, _ in shown])
    for (command, claimed), output in zip(shown, outputs, strict=True):
        assert output == claimed, command


def test_the_table_of_planners_says_what_they_say_of_themselves() -> None:
    assert planners_shown() == planners_table()


def test_every_exit_code_is_in_the_table() -> None:
    codes = [line.split()[0] for line in EXIT_CODES.splitlines() if line[:3] == "  1" or line[:3].strip().isdigit()]
    assert len(codes) == 8
    assert all(f"| {code} | " in README.read_text() for code in codes)


@pytest.mark.parametrize("name", [*VERBS, *PLANNERS, *COST_MODELS, *shipped_names("configs/devices")])
def test_everything_with_a_name_is_mentioned(name: str) -> None:
    assert f"`{name}`" in README.read_text() or f"remat {name}" in README.read_text()
