"""The pages of the project: what their commands print, and what in them is made of the code.

`make golden` runs `python -m tests.golden.pages`, which brings all pages up to date. In a page,

    ```console          begins a command, `$ remat ...` or `$ python ...`, and what it prints;
    ```yaml mine.yaml   begins a file that the commands after it find in their folder;
    <!-- verbs -->      begins what is made of the code, by the entry of that name in MADE, up to <!-- end of verbs -->.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory

import click

import remat_cli
from remat_cli.cli import VERBS, cli
from remat_cli.config import GraphOptions, Request
from remat_cli.errors import ExitCode
from remat_cli.generate import GENERATORS
from remat_cli.planners import PLANNERS
from remat_cli.reports.html.arena import arena_svg
from remat_cli.reports.terminal.planner_cards import PlannerCard, planner_cards
from remat_cli.reports.timeline import Run
from remat_cli.settings import declared, option_of
from tests.architecture.test_imports import LAYERS
from tests.places import GRAPHS, ROOT

FOLDERS = (".github", "configs", "graphs", "remat_cli", "tests")
PAGES = (ROOT / "README.md", *sorted(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")))
# Without the forms that somebody fills in.
READ_PAGES = tuple(page for page in PAGES if "_TEMPLATE" not in str(page.relative_to(ROOT)))
PICTURE = "graphs/unet-sweep.svg"
ARENA = GRAPHS / "skip_chain-arena.svg"
# Where the README sends whoever wants to know more of a verb.
PAGE_OF_VERB = {
    "inspect": "remat_cli/reports/inspect.md",
    "convert": "remat_cli/formats/README.md",
    "plan": "remat_cli/reports/README.md",
    "budget": "remat_cli/studies/README.md",
    "sweep": "remat_cli/studies/README.md",
    "compare": "remat_cli/studies/README.md",
    "diff": "remat_cli/studies/README.md",
    "fit": "remat_cli/studies/README.md",
    "allocate": "remat_cli/allocation/README.md",
    "verify": "remat_cli/runtime/README.md",
    "measure": "remat_cli/config/README.md",
    "check": "remat_cli/checks/README.md",
    "report": "remat_cli/reports/viewers.md",
    "batch": "remat_cli/batch/README.md",
    "fuse": "remat_cli/runtime/README.md",
    "apply": "remat_cli/runtime/README.md",
    "generate": "remat_cli/generate/README.md",
    "completion": "remat_cli/cli/README.md",
    "planners": "remat_cli/planners/README.md",
}
_COLUMNS = {"source": "Source", "takes": "Takes", "proves": "Proves", "how it scales": "Complexity"}
_FENCE = re.compile(r"^```(?P<language>\w+)(?: (?P<file>\S+))?\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_MADE = re.compile(r"^<!-- (?P<name>[^>]*) -->\n(?P<content>.*?)^<!-- end of (?P=name) -->$", re.MULTILINE | re.DOTALL)
# A slow machine says where the time of a call went.
_TOOK = re.compile(r"^Took \d.*(\n.+)*\n\n", re.MULTILINE)
# What a shell says of colours must make no difference.
_LEFT_OUT = ("FORCE_COLOR", "REMAT_DEBUG", "NO_COLOR")


def text_of(page: Path) -> str:
    """The text of a page."""
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    """The path of a page in the tree."""
    return str(page.relative_to(ROOT))


def links_of(page: Path) -> set[Path]:
    """The files and folders of the tree that a page links to."""
    targets = re.findall(r"\]\(([^)\s#]+)[)#]", text_of(page))
    return {(page.parent / target).resolve() for target in targets if not re.match(r"\w+:", target)}


def commands_of(page: Path) -> Iterator[tuple[str, str]]:
    """The commands that a page shows, and the output that it claims for each."""
    for fence in _FENCE.finditer(text_of(page)):
        if fence["language"] == "console":
            yield _command(fence)


def _command(fence: re.Match[str]) -> tuple[str, str]:
    line, _, output = fence["body"].partition("\n")
    assert line.startswith(("$ remat ", "$ python ")), f"a console block begins with a command, not with {line!r}"
    return line.removeprefix("$ "), output


def outputs_of(page: Path) -> list[str]:
    """What the commands of a page print, run one after the other.

    Their folder holds nothing but the example graphs, and what the page puts there.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    environment |= {
        "COLUMNS": "80",
        "PYTHONIOENCODING": "utf-8",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    outputs = []
    with TemporaryDirectory() as folder:
        (Path(folder) / "graphs").symlink_to(GRAPHS)
        for fence in _FENCE.finditer(text_of(page)):
            if fence["file"] is not None:
                (Path(folder) / fence["file"]).write_text(fence["body"], encoding="utf-8")
            elif fence["language"] == "console":
                command, _ = _command(fence)
                call = subprocess.run(
                    command, shell=True, cwd=folder, env=environment, check=False, text=True, stdout=-1, stderr=-2
                )
                outputs.append(_TOOK.sub("", call.stdout))
    return outputs


def made_parts(page: Path) -> Iterator[tuple[str, str]]:
    """The names of the parts that are made of the code, and what stands there."""
    for part in _MADE.finditer(text_of(page)):
        yield part["name"], part["content"]


def made(name: str) -> str:
    """What should stand in the part of this name: an entry in MADE, or a file of the tree."""
    if name in MADE:
        return MADE[name]()
    path = ROOT / name
    return f"```{path.suffix.removeprefix('.')}\n{path.read_text(encoding='utf-8')}```\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in (headers, ["---"] * len(headers), *rows))
    return "".join(f"| {line} |\n" for line in lines)


def planners_table() -> str:
    """The planners, from what `remat planners` says of each."""
    rows = [
        [f"[`{card.name}`](options.md#{card.name})", *(card.facts[label].rstrip(".") for label in _COLUMNS.values())]
        for card in planner_cards()
    ]
    return table(["name", *_COLUMNS], rows)


def options_of(cards: Iterable[PlannerCard], labels: Sequence[str]) -> str:
    """What each planner, or family of graphs, does, the facts of these labels, and its options."""
    return "\n".join(_card(card, labels) for card in cards)


def _card(card: PlannerCard, labels: Sequence[str]) -> str:
    facts = "".join(f"- {label}: {card.facts[label]}\n" for label in labels)
    rows = [[f"`{option.name}`", f"`{option.default}`", option.meaning] for option in card.options]
    options = f"\n{table(['option', 'default', 'meaning'], rows)}" if rows else ""
    return f"### `{card.name}`\n\n{card.summary}\n\n{facts}{options}"


def verbs_table() -> str:
    """The verbs, with where to read more."""
    rows = [[f"[`{verb}`]({PAGE_OF_VERB[verb]})", sentence] for verb, sentence in VERBS.items()]
    return table(["verb", "what it does"], rows)


def exit_codes() -> str:
    """The exit codes."""
    return table(["exit code", "meaning"], [[str(int(code)), code.meaning] for code in ExitCode])


def keys() -> str:
    """The keys of a config file beside report, and the option that does the same."""
    rows = []
    for item in (*fields(Request), *fields(GraphOptions)):
        choices = (
            f" One of {', '.join(f'`{choice}`' for choice in declared(item).choices)}."
            if declared(item).choices
            else ""
        )
        meaning = declared(item).help.removesuffix(" Repeatable.")
        rows.append([f"`{item.name}`", meaning + choices, f"`{option_of(item.name)}`"])
    return table(["key", "meaning", "on the command line"], rows)


def verb_options() -> str:
    """The options of all verbs, from their help pages; those that several verbs have, once."""
    verbs_of: dict[tuple[str, str, str], list[str]] = {}
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        context = click.Context(command, info_name=verb)
        for option in command.get_params(context):
            record = option.get_help_record(context) if isinstance(option, click.Option) else None
            if record is not None and "--help" not in option.opts:
                verbs_of.setdefault((getattr(option, "section", "Options"), *record), []).append(verb)
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for (_, option_text, meaning), verbs in sorted(verbs_of.items(), key=lambda item: -len(item[1])):
        groups.setdefault(tuple(verbs), []).append([f"`{option_text}`", meaning])
    return "\n".join(
        f"{', '.join(f'`{verb}`' for verb in verbs)}:\n\n{table(['option', 'meaning'], rows)}"
        for verbs, rows in groups.items()
    )


def python_names() -> str:
    """What Python code may call, with what each says of itself."""
    names = [name for name in remat_cli.__all__ if not name.startswith("_")]
    return table(["name", "what it is"], [[f"`{name}`", _first_line(getattr(remat_cli, name))] for name in names])


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def places() -> str:
    """Every module and folder of the package, the lowest layer first, with what it says of itself."""
    rows = []
    for module in (module for layer in LAYERS for module in layer if module != "remat_cli"):
        path = ROOT / module.replace(".", "/")
        is_folder = path.is_dir()
        source = path / "__init__.py" if is_folder else path.with_suffix(".py")
        says = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
        name = path.relative_to(ROOT / "remat_cli").as_posix()
        place = f"`{name}{'/' if is_folder else '.py'}`"
        has_page = (path / "README.md").exists()
        rows.append(
            [f"[{place}]({name}/README.md)" if has_page else place, " ".join(says.partition("\n\n")[0].split())]
        )
    return table(["place", "what it holds"], rows)


MADE: Mapping[str, Callable[[], str]] = {
    "planners": planners_table,
    "options of planners": lambda: options_of(planner_cards(PLANNERS), ("Searches",)),
    "generators": lambda: options_of(planner_cards(GENERATORS), ("Source", "Makes", "Size")),
    "verbs": verbs_table,
    "exit codes": exit_codes,
    "keys": keys,
    "options of verbs": verb_options,
    "places": places,
    "python names": python_names,
}


def renew_parts(page: Path) -> None:
    """Write into a page what is made of the code."""

    def renewed(part: re.Match[str]) -> str:
        return f"<!-- {part['name']} -->\n{made(part['name'])}<!-- end of {part['name']} -->"

    page.write_text(_MADE.sub(renewed, text_of(page)), encoding="utf-8")


def renew_outputs(page: Path) -> None:
    """Write the real output under each command of a page."""
    outputs = iter(outputs_of(page))

    def renewed(fence: re.Match[str]) -> str:
        if fence["language"] != "console":
            return fence[0]
        return f"```console\n$ {_command(fence)[0]}\n{next(outputs)}```"

    page.write_text(_FENCE.sub(renewed, text_of(page)), encoding="utf-8")


def draw() -> None:
    """Draw the picture in the README, by the command that stands below it."""
    (command,) = re.findall(rf"^(remat sweep .*--plot {PICTURE})$", text_of(PAGES[0]), re.MULTILINE)
    subprocess.run([sys.executable, "-m", "remat_cli", *shlex.split(command)[1:], "-q"], cwd=ROOT, check=True)


def arena_picture() -> str:
    """Return the picture on the page of addresses: the plan that its command asks for."""
    planning = remat_cli.plan(remat_cli.read(GRAPHS / "skip_chain.json"), "80%", "approx_dp", arena=True)
    assert planning.schedule is not None
    assert planning.trace is not None
    assert planning.solution.arena is not None
    return arena_svg(Run(planning.prepared.graph, planning.schedule, planning.trace), planning.solution.arena)


def main() -> None:
    """Bring all pages up to date, and the pictures."""
    draw()
    ARENA.write_text(arena_picture(), encoding="utf-8")
    for page in PAGES:
        renew_parts(page)
        renew_outputs(page)


if __name__ == "__main__":
    main()
