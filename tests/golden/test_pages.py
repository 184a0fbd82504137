"""The pages show what really happens, and name what is really there."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pytest

from remat_cli.cli import VERBS, cli
from remat_cli.config import shipped_names
from remat_cli.core.link import Duplex
from remat_cli.core.problem import Basis, Budget, Planner, Problem, Scope, Status
from remat_cli.core.solve import baseline_of, solve
from remat_cli.costs import COST_MODELS
from remat_cli.formats import Aliasing
from remat_cli.generate import GENERATORS
from remat_cli.planners import PLANNERS, plugins
from remat_cli.testing.__main__ import command as contract_command
from remat_cli.testing.contract import FIXED_CHECKS, RANDOM_CHECKS
from remat_cli.training import OPTIMIZERS
from tests.golden.pages import (
    ARENA,
    PAGES,
    READ_PAGES,
    arena_picture,
    commands_of,
    links_of,
    made,
    made_parts,
    name_of,
    outputs_of,
    text_of,
)
from tests.graphs import graph_of, op, training_chain
from tests.places import ROOT
from tests.plugins import install
from tests.unit.core.test_simulate import refusal, run

README = ROOT / "README.md"
LONGEST_README = 250
MOST_WORDS_ON_TRAINING = 1500
FORMATS = ROOT / "remat_cli/formats/README.md"
each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands_of(page))], ids=name_of)
def test_every_command_prints_what_the_page_says(page: Path) -> None:
    for (command, claimed), output in zip(commands_of(page), outputs_of(page), strict=True):
        assert output == claimed, command


@each_page
def test_what_is_made_of_the_code_is_of_today(page: Path) -> None:
    for name, shown in made_parts(page):
        assert shown == made(name), f"{name}: run make golden"


def test_the_picture_of_an_arena_is_of_today() -> None:
    assert ARENA.read_text(encoding="utf-8") == arena_picture(), "run make golden"


def test_the_readme_is_short_and_shows_a_run() -> None:
    assert len(text_of(README).splitlines()) <= LONGEST_README
    assert any(command.startswith("remat plan ") for command, _ in commands_of(README))


def test_the_page_on_training_is_short_and_sends_on_to_its_neighbours() -> None:
    page = next(page for page in PAGES if text_of(page).startswith("# Train in PyTorch"))
    assert len(text_of(page).split()) <= MOST_WORDS_ON_TRAINING
    assert {neighbour for neighbour in page.parent.glob("*.md") if neighbour != page} <= links_of(page)


# Links, paths, names


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if not re.match(r"\w+:", target):
            assert leads_somewhere(page, target), target


def leads_somewhere(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    place = page.parent / name if name else page
    return place.exists() and (not anchor or anchor in anchors_of(place))


def anchors_of(page: Path) -> set[str]:
    """The anchors that a page's headings have on servers that show Markdown."""
    headings = re.findall(r"^#+ (.*)$", without_fences(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [README]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [link for link in links_of(page) if link.suffix == ".md"]
    assert set(READ_PAGES) <= reached


@each_page
def test_every_path_is_in_the_tree(page: Path) -> None:
    tops = {path.name for path in ROOT.iterdir()} - {".venv", "build", "dist"}
    for path in re.findall(r"`([\w.][\w./-]*/[\w./-]*)`", without_fences(page)):
        if path.partition("/")[0] in tops:
            assert (ROOT / path).exists(), path
    for name in re.findall(r"(?<![\w/*.{-])((?:\w+/)*\w+\.py)\b", text_of(page)):
        assert name in modules() or (page.parent / name).exists(), name


@cache
def modules() -> set[str]:
    """The Python files of the tree, by every end of their paths that begins with a whole name."""
    folders = [ROOT / folder for folder in ("remat_cli", "graphs", "tests", "docs")]
    paths = [path.relative_to(ROOT).parts for folder in folders for path in folder.rglob("*.py")]
    return {"/".join(parts[start:]) for parts in paths for start in range(len(parts))}


@each_page
def test_every_dotted_name_can_be_imported(page: Path) -> None:
    for name in re.findall(r"\bremat_cli(?:\.\w+)+", text_of(page)):
        module, _, attribute = name.rpartition(".")
        if not (ROOT / f"{name.replace('.', '/')}.py").exists():
            assert hasattr(import_module(module), attribute), name


@each_page
def test_every_make_target_exists(page: Path) -> None:
    makefile = text_of(ROOT / "Makefile")
    calls = re.findall(r"(?:`|^)make ([\w-]+)((?: [A-Z]+=(?:\"[^\"]*\"|\S*))*)", text_of(page), re.MULTILINE)
    assert {target for target, _ in calls} <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    variables = {name for _, given in calls for name in re.findall(r" ([A-Z]+)=", given)}
    assert variables <= set(re.findall(r"\$\(([A-Z]+)", makefile))


@each_page
def test_every_call_has_a_verb_and_options_that_exist(page: Path) -> None:
    for verb, options in calls_in(page):
        assert verb in VERBS, verb
        assert options <= options_of(verb), verb


def calls_in(page: Path) -> Iterator[tuple[str, set[str]]]:
    """Calls of remat in a page, in its text and in what a shell is given: their verbs and options."""
    text = text_of(page)
    calls = re.findall(r"`remat\s+([a-z][^`]*)`", text) + re.findall(
        r"^(?:\$ |- run: | *)remat ([a-z].*)", text, re.MULTILINE
    )
    for call in calls:
        verb, *words = shlex.split(call.partition(" # ")[0].partition(" | ")[0])
        yield verb, {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}


def options_of(verb: str) -> set[str]:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return {"-h", "--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}


@each_page
def test_every_option_is_one_of_some_verb(page: Path) -> None:
    of_contract = {name for option in contract_command.params for name in option.opts}
    known = {"--debug", "--log-file", "--version"}.union(of_contract, *map(options_of, VERBS))
    assert {option for option in re.findall(r"`(--[a-z][a-z-]*)", text_of(page)) if option not in known} == set()


@each_page
def test_every_planner_option_is_one_of_some_planner_or_family(page: Path) -> None:
    of_planners = {item.name for planner in PLANNERS.values() for item in fields(planner)}
    of_families = {item.name for family in GENERATORS.values() for item in fields(family)}
    named = re.findall(r"--option (?:\w+\.)?([a-z]\w*)=", text_of(page))
    assert {name for name in named if name not in of_planners | of_families} == set()


@pytest.mark.parametrize(
    "name",
    [
        *(*VERBS, *PLANNERS, *COST_MODELS, *GENERATORS, *OPTIMIZERS),
        *(*Aliasing, *Scope, *Basis, *Status),
        *(*shipped_names("configs"), *shipped_names("configs/devices")),
    ],
)
def test_everything_with_a_name_is_mentioned(name: str) -> None:
    assert any(re.search(rf"`(?:remat )?{name}`", text_of(page)) for page in PAGES), name


def without_fences(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


# The table of steps

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


# Of each rule of a link: as the page says it, steps of two ops of 1 unit of time each (t1 has 7 bytes), and when they
# end on a link of each kind that moves 2 bytes in a unit of time.
LINK_RULES = (
    (
        "one transfer at a time, whichever way, in issue order",
        "f1, offload t1, wait t1, free t1, offload in, prefetch t1, wait t1, f2",
        (11, 10),
    ),
    ("so does each direction by itself", "f1, offload t1, offload in, wait in, f2", (7, 7)),
    ("rounded up to whole units of time", "f1, offload t1, wait t1, f2", (6, 6)),
    ("Ops run meanwhile. A `wait` idles until the transfer has ended", "f1, offload t1, f2, wait t1", (5, 5)),
    ("A transfer without a `wait` costs no time", "f1, offload t1, f2", (2, 2)),
)


@pytest.mark.parametrize(("rule", "steps", "ends"), LINK_RULES)
def test_the_page_has_the_rules_of_a_link(rule: str, steps: str, ends: tuple[int, int]) -> None:
    assert rule in " ".join(text_of(FORMATS).split())
    graph = graph_of(op("f1", "in", "t1"), op("f2", "in", "t2"), sizes={"t1": 7})
    assert tuple(run(graph, steps, link=2, duplex=duplex).time for duplex in Duplex) == ends


def row(step: str) -> str:
    (found,) = (line for line in text_of(FORMATS).splitlines() if line.startswith(f'| `["{step}", '))
    return found


# The example of a planner


def test_the_example_of_a_planner_is_a_package_that_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = text_of(ROOT / "remat_cli/planners/new_planner.md")
    source, toml = (
        re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0] for kind in ("python", "toml")
    )
    project = tomllib.loads(toml)
    entries = project["project"]["entry-points"][plugins.GROUP]
    (module,) = project["tool"]["setuptools"]["py-modules"]
    assert entries == {"one_rerun": f"{module}:OneRerun"}
    install(tmp_path, module, source, {"one_rerun": "OneRerun"})
    monkeypatch.syspath_prepend(tmp_path)
    for check in (*RANDOM_CHECKS.values(), *FIXED_CHECKS.values()):
        check("one_rerun")


def test_the_example_of_a_planner_plans() -> None:
    page = text_of(ROOT / "remat_cli/planners/new_planner.md")
    (source,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, type[Planner]] = {}
    exec(compile(source, "example.py", "exec", dont_inherit=True), names)
    planner = names["OneRerun"]()
    graph = training_chain(6)
    peak = baseline_of(graph).peak_bytes
    # One rerun of an op saves the one byte that it makes, and no more.
    assert solve(Problem(graph, Budget(peak - 1)), planner).status is Status.FEASIBLE
    assert solve(Problem(graph, Budget(peak - 2)), planner).status is Status.UNKNOWN
