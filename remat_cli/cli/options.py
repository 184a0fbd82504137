"""Options that verbs share, and how they go together with a config file: the command line wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields, replace
from functools import partial
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from remat_cli.cli.help import GRAPH, OUTPUT, PLANNER, SectionedOption
from remat_cli.cli.stdin import READ, NameToRead
from remat_cli.config import (
    DEFAULT_PLANNER,
    GraphOptions,
    Request,
    RunConfig,
    check_is_option,
    load_config,
    named_planner,
    parse_option,
    shipped_names,
)
from remat_cli.core.arena import USUAL_ALIGNMENT
from remat_cli.errors import UsageError
from remat_cli.planners import PLANNERS
from remat_cli.settings import declared, option_of
from remat_cli.units import parse_budget, parse_duration, parse_share

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
    return _beginning(PLANNERS, incomplete)


def planner_lists(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the lists of planners, separated by commas, that go on like this."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{item.value}") for item in _beginning(PLANNERS, last)]


def option_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the options, with the equals sign, of the planner that was named before."""
    planner = PLANNERS.get(ctx.params.get("planner") or "")
    return [] if planner is None else _beginning((f"{option.name}=" for option in fields(planner)), incomplete)


def config_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the configs that come with remat, and files."""
    return [*_beginning(shipped_names("configs"), incomplete), CompletionItem(incomplete, type="file")]


def device_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the device profiles that come with remat, and files."""
    return [*_beginning(shipped_names("configs/devices"), incomplete), CompletionItem(incomplete, type="file")]


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


_CONFIG = _graph(
    "-c",
    "--config",
    type=READ,
    shell_complete=config_names,
    help="YAML file, or the name of one that comes with remat (such as approx_dp). The command line wins over it.",
)

# What a shell can complete of a setting's values, where they cannot be listed.
_COMPLETIONS = {"device": device_names}


def graph_option(name: str, **different: Any) -> Callable[[Command], Command]:
    """Return the option that gives a field of `GraphOptions`, as it is declared there.

    Args:
        name: of the field.
        different: what click is told differently.
    """
    return _setting_option(next(item for item in fields(GraphOptions) if item.name == name), **different)


def _setting_option(item: Field[Any], **different: Any) -> Callable[[Command], Command]:
    said = declared(item)
    told: dict[str, Any] = {"help": said.help, "metavar": said.metavar, "shell_complete": _COMPLETIONS.get(item.name)}
    if said.choices:
        told["type"] = click.Choice(said.choices)
    if (said.metavar or "").endswith("FILE"):
        told["type"] = NameToRead()
    if item.default is False:
        told |= {"is_flag": True, "default": None}
    if item.default_factory is dict:
        told["multiple"] = True
    return _graph(option_of(item.name), item.name, **(told | different))


_OF_REQUEST = {item.name: item for item in fields(Request)}
OFFLOAD = _setting_option(_OF_REQUEST["offload"], section=PLANNER)
_GRAPH_OPTIONS = {item.name: graph_option(item.name) for item in fields(GraphOptions)}
_SEARCHED_DIMS = graph_option(
    "dims",
    metavar="NAME[=N]",
    help="The symbolic dimension to search; written NAME=N, the value of another one. Repeatable.",
)

_PLANNER_OPTIONS = (
    _planner(
        "--planner",
        metavar="NAME",
        shell_complete=planner_names,
        help=f"One of {', '.join(PLANNERS)}. [default: {DEFAULT_PLANNER}]",
    ),
    _planner(
        "--option",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=option_keys,
        help="Option of the planner. Repeatable.",
    ),
    OFFLOAD,
    _planner("--time-limit", metavar="30s", help="Stop the planner after this time."),
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

_ADDRESS_OPTIONS = (
    click.option(
        "--addresses",
        "arena",
        is_flag=True,
        help=declared(_OF_REQUEST["arena"]).help,
    ),
    click.option(
        "--alignment",
        type=click.IntRange(1, 2**40),
        metavar="BYTES",
        help=declared(_OF_REQUEST["alignment"]).help,
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
planner_options = _apply(_PLANNER_OPTIONS)
output_options = _apply(_OUTPUT_OPTIONS)
address_options = _apply(_ADDRESS_OPTIONS)


def merge_config(given: dict[str, Any]) -> RunConfig:
    """Put the options of a command line on top of the config file that it names.

    Args:
        given: the options by their parameter names, as click hands them to a command.

    Raises:
        UsageError: the file or an option is wrong.
    """
    config = load_config(given["config"]) if given.get("config") is not None else RunConfig()
    graph, request = graph_options_of(given), request_of(given)
    if "arena" in given and given.get("alignment") is not None and not (request.arena or config.request.arena):
        raise UsageError("--alignment goes with --addresses", hint="give --addresses, or leave it out")
    # The same planner keeps the options that the file gives it; to another one they mean nothing.
    if request.planner is not None and request.planner.name == config.request.chosen.name:
        request = replace(request, planner=config.request.planner)
    return replace(config, graph=config.graph.under(graph), request=config.request.under(request))


def request_of(given: Mapping[str, Any]) -> Request:
    """Return what a command line requests, without the options of the planner.

    Raises:
        UsageError: there is no such planner, or a value is not understood.
    """
    planner, budget, max_overhead = (given.get(name) for name in ("planner", "budget", "max_overhead"))
    return Request(
        budget=None if budget is None else parse_budget(budget),
        planner=None if planner is None else named_planner(planner),
        max_overhead=None if max_overhead is None else parse_share(max_overhead),
        offload=bool(given.get("offload")),
        arena=bool(given.get("arena")),
        alignment=given.get("alignment") or USUAL_ALIGNMENT,
    )


def graph_options_of(given: Mapping[str, Any]) -> GraphOptions:
    """Return the options with which a graph is read, among those of a command line.

    Raises:
        UsageError: a value is not understood.
    """
    said: dict[str, Any] = {}
    for item in fields(GraphOptions):
        value, parse = given.get(item.name), declared(item).parse
        try:
            if isinstance(value, str):
                said[item.name] = parse(value)
            elif isinstance(value, tuple | list):
                said[item.name] = dict(parse(text) for text in value)
            elif value is not None:
                said[item.name] = value
        except UsageError as error:
            raise UsageError(f"{option_of(item.name)} {error.message}", hint=error.remedy) from None
    return GraphOptions(**said)


def read_call(given: dict[str, Any]) -> RunConfig:
    """Merge config file and command line, including the options of the planner.

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
    config = replace(config, request=replace(config.request, planner=choice.with_options(said)))
    config.request.check()
    return config
