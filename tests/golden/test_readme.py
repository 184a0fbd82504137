"""The README shows what really happens."""

from __future__ import annotations

import pytest

from remat_cli.cli import EXIT_CODES, VERBS
from remat_cli.config import shipped_names
from remat_cli.costs import COST_MODELS
from remat_cli.planners import PLANNERS
from tests.golden.readme import README, blocks, planners_shown, planners_table, printed
from tests.graphs import graph_of, op
from tests.unit.test_simulate import refusal, run


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


# Of each step: a rule as the table says it, and steps that break it on a graph of two ops in a chain.
RULES = (
    ("compute", "every input in memory", "f2", 0),
    ("compute", "no prefetch of it still to be waited for", "f1, offload t1, wait t1, free t1, prefetch t1, f2", 5),
    ("compute", "no output on its way to or from the host", "f1, offload t1, f1", 2),
    ("compute", "an op that is not `recomputable` has not run yet", "f1, f2, f2", 2),
    ("inplace", "the first output is not in memory", "f1, f2, f1, inplace f2", 3),
    ("inplace", "not on its way to the host", "f1, offload t1, inplace f2", 2),
    ("inplace", "that input is no graph input", "inplace f1", 0),
    ("free", "it is in memory", "free t1", 0),
    ("free", "no graph input", "free in", 0),
    ("free", "none of its transfers is still to be waited for", "f1, offload t1, free t1", 2),
    ("offload", "it is in memory", "offload t1", 0),
    ("offload", "none of its transfers is still to be waited for", "f1, offload t1, offload t1", 2),
    ("prefetch", "it is on the host", "prefetch t1", 0),
    ("prefetch", "not in memory", "f1, offload t1, wait t1, prefetch t1", 3),
    ("prefetch", "no graph input", "offload in, wait in, prefetch in", 2),
    ("wait", "there was one", "f1, wait t1", 1),
)


@pytest.mark.parametrize(("step", "rule", "steps", "broken"), RULES)
def test_the_table_of_steps_has_what_the_judge_demands(step: str, rule: str, steps: str, broken: int) -> None:
    assert rule in row(step)
    may_repeat = "recomputable" not in rule
    graph = graph_of(op("f1", "in", "t1", inplace="in"), op("f2", "t1", "t2", inplace="t1", recomputable=may_repeat))
    assert refusal(graph, steps, link=1).step == broken


def test_the_table_of_steps_allows_what_the_judge_allows() -> None:
    assert "a graph input may go, and stays on the device too" in row("offload")
    assert run(graph_of(op("f1", "in", "t1")), "offload in, f1", link=1).memory_bytes == (1, 1, 2)


def row(step: str) -> str:
    (found,) = (line for line in README.read_text().splitlines() if line.startswith(f'| `["{step}", '))
    return found


@pytest.mark.parametrize("name", [*VERBS, *PLANNERS, *COST_MODELS, *shipped_names("configs/devices")])
def test_everything_with_a_name_is_mentioned(name: str) -> None:
    assert f"`{name}`" in README.read_text() or f"remat {name}" in README.read_text()
