"""Options shared by verbs, merged over a config file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from remat_cli.cli.help import GRAPH, OUTPUT, PLANNER, SectionedOption
from remat_cli.cli.stdin import READ, NameToRead
from remat_cli.config import (
    GraphOptions,
    Request,
    RunConfig,
    check_is_option,
    load_config,
    parse_option,
    shipped_names,
)
from remat_cli.errors import UsageError
from remat_cli.planners import PLANNERS
from remat_cli.planners.plugins import planner_names as known_planners
from remat_cli.settings import Settings, declared, option_of, without
from remat_cli.units import parse_duration

Command = TypeVar("Command", bound=Callable[..., Any])
_graph = partial(click.option, cls=SectionedOption, section=GRAPH)
_planner = partial(click.option, cls=SectionedOption, section=PLANNER)
_output = partial(click.option, cls=SectionedOption, section=OUTPUT)
_OUTPUT_OPTIONS = (
    _output("--json", "as_json", is_flag=True, help="Print a machine-readable summary to stdout."),
    _output("-q", "--quiet", is_flag=True, help="Print nothing but errors."),
)
graph_argument = click.argument("graph", type=READ, metavar="GRAPH")


def planner_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the planners whose names begin like this."""
    return _beginning(known_planners(), incomplete)


def planner_lists(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the last name in a list of planners."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{item.value}") for item in _beginning(known_planners(), last)]


def option_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the options, with equals sign, of the named planner."""
    planner = PLANNERS.get(ctx.params.get("planner") or "")
    return [] if planner is None else _beginning((f"{option.name}=" for option in fields(planner)), incomplete)


def config_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of shipped configs and of files."""
    return [*_beginning(shipped_names("configs"), incomplete), CompletionItem(incomplete, type="file")]


def device_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of shipped device profiles and of files."""
    return [*_beginning(shipped_names("configs/devices"), incomplete), CompletionItem(incomplete, type="file")]


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _only_config(context: click.Context, parameter: click.Parameter, values: tuple[Path, ...]) -> Path | None:
    """Return the one config file; click would drop all but the last.

    Raises:
        UsageError: there are several.
    """
    if len(values) > 1:
        raise UsageError(f"-c is given {len(values)} times", hint="put the settings of all into one file")
    return values[0] if values else None


_CONFIG = _graph(
    "-c",
    "--config",
    type=READ,
    multiple=True,
    callback=_only_config,
    shell_complete=config_names,
    help="YAML file, or the name of one that comes with remat (such as approx_dp). The command line wins over it.",
)

# Completions of settings whose values cannot be listed.
_COMPLETIONS = {"device": device_names, "planner": planner_names}


def setting_option(
    owner: type[Settings], name: str, section: str | None = None, **different: Any
) -> Callable[[Command], Command]:
    """Return the click option of a declared setting.

    Args:
        owner: the class of the setting's field.
        name: name of the field.
        section: section of the help page; None for the verb's own options.
        different: arguments of click that override the declaration.
    """
    item = next(item for item in fields(owner) if item.name == name)
    said, option = declared(item), option_of(name)
    arguments: dict[str, Any] = {"help": said.help, "metavar": said.metavar, "shell_complete": _COMPLETIONS.get(name)}
    if said.choices:
        arguments["type"] = click.Choice(said.choices)
    if said.names_file:
        arguments["type"] = NameToRead()
    if isinstance(item.default, bool):
        # Either value is given, or none: then the config file or the default decides.
        option, arguments["default"] = f"{option}/{without(option)}", None
    if item.default_factory is dict:
        arguments["multiple"] = True
    if section is not None:
        arguments |= {"cls": SectionedOption, "section": section}
    return click.option(option, name, **(arguments | different))


def graph_option(name: str, **different: Any) -> Callable[[Command], Command]:
    """Return the click option of a field of `GraphOptions`.

    See `setting_option`.
    """
    return setting_option(GraphOptions, name, GRAPH, **different)


# Each verb handles these in its own way, if at all; the other settings are the same for all verbs that plan.
_BY_THE_VERB = ("budget", "planner", "max_overhead")
PLAN_SETTINGS = tuple(
    setting_option(Request, item.name, PLANNER) for item in fields(Request) if item.name not in _BY_THE_VERB
)
_GRAPH_OPTIONS = {item.name: graph_option(item.name) for item in fields(GraphOptions)}
_SEARCHED_DIMS = graph_option(
    "dims",
    metavar="NAME[=N]",
    help="The symbolic dimension to search; written NAME=N, the value of another one. Repeatable.",
)

_PLANNER_OPTIONS = (
    setting_option(Request, "planner", PLANNER),
    _planner(
        "--option",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=option_keys,
        help="Option of the planner. Repeatable.",
    ),
    *PLAN_SETTINGS,
    _planner(
        "--time-limit",
        metavar="30s",
        help="Stop the planner after this time; to read the graph and to judge the plan takes more.",
    ),
    _planner("--seed", type=int, help="Seed of a planner that draws."),
    _planner(
        "-j",
        "--cores",
        "--jobs",
        "cores",
        type=click.IntRange(min=0),
        metavar="N",
        help="Cores that the planner may use; 0: all.",
    ),
)


def _apply(options: Iterable[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    in_order = tuple(options)

    def decorate(command: Command) -> Command:
        for option in reversed(in_order):
            command = option(command)
        return command

    return decorate


graph_settings = _apply(_GRAPH_OPTIONS.values())
graph_options = _apply((_CONFIG, *_GRAPH_OPTIONS.values()))
searched_graph_options = _apply((_CONFIG, *(_GRAPH_OPTIONS | {"dims": _SEARCHED_DIMS}).values()))
plan_settings = _apply(PLAN_SETTINGS)
planner_options = _apply(_PLANNER_OPTIONS)
output_options = _apply(_OUTPUT_OPTIONS)


def merge_config(given: dict[str, Any]) -> RunConfig:
    """Merge the options of a command line over its config file.

    Args:
        given: options by parameter name, as click passes them to a command.

    Raises:
        UsageError: the file or an option is wrong.
    """
    config = load_config(given["config"]) if given.get("config") is not None else RunConfig()
    said = said_on_command_line(given)
    # The same planner keeps its options from the file; they mean nothing to another planner.
    if "planner" in said and said["planner"].name == config.request.chosen.name:
        del said["planner"]
    merged = config.under(said)
    for item in fields(Request):
        needed = declared(item).needs
        if needed in given and item.name in said and not merged.said.get(needed):
            option, other = option_of(item.name), option_of(needed)
            raise UsageError(f"{option} goes with {other}", hint=f"give {other}, or leave it out")
    merged.graph.check()
    return merged


def said_on_command_line(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings on a command line, without planner options.

    Args:
        given: options by parameter name, as click passes them to a command.

    Raises:
        UsageError: a value is not understood.
    """
    said: dict[str, Any] = {}
    for item in (*fields(Request), *fields(GraphOptions)):
        value, parse = given.get(item.name), declared(item).parse
        try:
            if isinstance(value, str):
                said[item.name] = parse(value)
            elif isinstance(value, tuple | list):
                said |= {item.name: dict(parse(text) for text in value)} if value else {}
            elif value is not None:
                said[item.name] = value
        except UsageError as error:
            raise UsageError(_with_option(option_of(item.name), error.message), hint=error.remedy) from None
    return said


def _with_option(option: str, message: str) -> str:
    """Prefix a message with the option, unless it begins with that."""
    if message.startswith(option):
        return message
    return f"{option} {message}" if message.startswith("'") else f"{option}: {message}"


def read_call(given: dict[str, Any]) -> RunConfig:
    """Merge config file and command line, including planner options.

    Raises:
        UsageError: the file or an option is wrong, or the planner does not have an option.
    """
    config = merge_config(given)
    choice = config.request.chosen
    said: dict[str, Any] = {}
    for text in given.get("options", ()):
        key, value = parse_option(text)
        check_is_option(choice.name, key)
        said[key] = value
    if given.get("time_limit") is not None:
        said["time_limit"] = parse_duration(given["time_limit"])
    if given.get("seed") is not None:
        said["seed"] = given["seed"]
    if given.get("cores") is not None:
        if not choice.has("cores"):
            raise UsageError(f"--cores: {choice.name} uses one core", hint="leave it out")
        said["cores"] = given["cores"]
    if said:
        config = config.under({"planner": choice.with_options(said)})
    config.request.check()
    return config
