"""Options that verbs share, and how they go together with a config file: the command line wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from remat_cli.cli.help import GRAPH, OUTPUT, PLANNER, SectionedOption
from remat_cli.cli.value_completion import config_names, device_names, option_keys, planner_names
from remat_cli.config import GIVEN_COSTS, MODES, GraphOptions, RunConfig, load_config, make_planner, parse_option
from remat_cli.costs import COST_MODELS
from remat_cli.errors import UsageError
from remat_cli.formats import Aliasing
from remat_cli.planners import PLANNERS
from remat_cli.problem import Planner
from remat_cli.training import OPTIMIZERS
from remat_cli.units import parse_budget, parse_duration, parse_share

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_PLANNER = "auto"

_graph = partial(click.option, cls=SectionedOption, section=GRAPH)
_planner = partial(click.option, cls=SectionedOption, section=PLANNER)
_output = partial(click.option, cls=SectionedOption, section=OUTPUT)

_CONFIG = _graph(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    shell_complete=config_names,
    help="YAML file, or the name of one that comes with remat (such as approx_dp). The command line wins over it.",
)

_DIM = _graph("--dim", "dims", multiple=True, metavar="NAME=N", help="Value of a symbolic dimension. Repeatable.")
_SEARCHED_DIM = _graph(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME[=N]",
    help="The symbolic dimension to search; written NAME=N, the value of another one. Repeatable.",
)

_GRAPH_OPTIONS = (
    _graph("--mode", type=click.Choice(MODES), help="Derive the training graph, or plan the graph as it is."),
    _DIM,
    _graph(
        "--input-shape", "input_shapes", multiple=True, metavar="X:1,3,224,224", help="Shape of an input. Repeatable."
    ),
    _graph(
        "--value-shape",
        "value_shapes",
        multiple=True,
        metavar="Y:1,64,56,56",
        help="Shape of a value that cannot be inferred. Repeatable.",
    ),
    _graph("--optimizer", type=click.Choice(list(OPTIMIZERS)), help="Whose state stays in memory."),
    _graph("--accumulate", is_flag=True, default=None, help="A PyTorch step adds to gradients that are there before."),
    _graph("--cost-model", type=click.Choice([GIVEN_COSTS, *COST_MODELS]), help="What gives each op its time."),
    _graph(
        "--device",
        metavar="NAME|FILE",
        shell_complete=device_names,
        help="Device profile, such as a100, or a YAML file.",
    ),
    _graph(
        "--measurements", metavar="FILE", help="What 'remat measure' wrote, or a table of nanoseconds by op or type."
    ),
    _graph("--aliasing", type=click.Choice([str(a) for a in Aliasing]), help="Which ops are views or work in place."),
    _graph("--strict", is_flag=True, default=None, help="Make every estimate an error."),
    _graph("--link-bandwidth", metavar="RATE", help="Of the link to the host, such as 12GB/s."),
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
    _planner("--time-limit", metavar="30s", help="Stop the planner after this time."),
    _planner("--seed", type=int, help="Seed of a planner that draws."),
    _planner("-j", "--jobs", type=click.IntRange(min=0), metavar="N", help="Cores that the planner may use; 0: all."),
)

_OUTPUT_OPTIONS = (
    _output("--json", "as_json", is_flag=True, help="Print a machine-readable summary to stdout."),
    _output("-q", "--quiet", is_flag=True, help="Print nothing but errors."),
)


def _apply(options: tuple[Callable[[Command], Command], ...]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


graph_settings = _apply(_GRAPH_OPTIONS)
graph_options = _apply((_CONFIG, *_GRAPH_OPTIONS))
searched_graph_options = _apply((_CONFIG, *(_SEARCHED_DIM if option is _DIM else option for option in _GRAPH_OPTIONS)))
planner_options = _apply(_PLANNER_OPTIONS)
output_options = _apply(_OUTPUT_OPTIONS)
graph_argument = click.argument("graph", type=click.Path(path_type=Path), metavar="GRAPH")


@dataclass(frozen=True)
class Call:
    """What a user asks for, config file and command line put together.

    Attributes:
        config: everything that was said; what only the command line said has replaced what the file said.
        planner_name: as in PLANNERS.
        planner: with its options.
    """

    config: RunConfig
    planner_name: str
    planner: Planner


def merge_config(given: dict[str, Any]) -> RunConfig:
    """Put the options of a command line on top of the config file that it names.

    Args:
        given: the options by their parameter names, as click hands them to a command.

    Raises:
        UsageError: the file or an option is wrong.
    """
    config = load_config(given["config"]) if given.get("config") is not None else RunConfig()
    said: dict[str, Any] = {"graph": _merge_graph_options(config.graph, given)}
    if given.get("planner") is not None:
        said["planner"] = given["planner"]
        # Options of another planner mean nothing to this one.
        said["options"] = config.options if given["planner"] == config.planner else {}
    if given.get("budget") is not None:
        said["budget"] = parse_budget(given["budget"])
    if given.get("max_overhead") is not None:
        said["max_overhead"] = parse_share(given["max_overhead"])
    return replace(config, **said)


def _merge_graph_options(options: GraphOptions, given: dict[str, Any]) -> GraphOptions:
    plain = ("mode", "optimizer", "cost_model", "device", "measurements", "strict", "accumulate", "link_bandwidth")
    said: dict[str, Any] = {key: given[key] for key in plain if given.get(key) is not None}
    if given.get("aliasing") is not None:
        said["aliasing"] = Aliasing(given["aliasing"])
    said["dims"] = {**options.dims, **dict(_dim(text) for text in given.get("dims", ()))}
    for key in ("input_shapes", "value_shapes"):
        option = f"--{key[:-1].replace('_', '-')}"
        said[key] = {**getattr(options, key), **dict(_shape(text, option) for text in given.get(key, ()))}
    return replace(options, **said)


def read_call(given: dict[str, Any]) -> Call:
    """Put config file and command line together, the planner and its options too.

    Raises:
        UsageError: the file or an option is wrong, or the planner does not have an option.
    """
    config = merge_config(given)
    name = config.planner or DEFAULT_PLANNER
    options = {**config.options, **dict(parse_option(text) for text in given.get("options", ()))}
    for option, value in (("time_limit", given.get("time_limit")), ("seed", given.get("seed"))):
        if value is not None:
            options[option] = parse_duration(value) if option == "time_limit" else value
    if given.get("jobs") is not None:
        _check_uses_cores(name)
        options["cores"] = given["jobs"]
    planner = make_planner(name, options, source="--option")
    return Call(replace(config, planner=name, options=options), name, planner)


def _check_uses_cores(planner: str) -> None:
    """Check that a planner can be told how many cores it may use.

    Raises:
        UsageError: it uses one whatever it is told.
    """
    if planner in PLANNERS and all(option.name != "cores" for option in fields(PLANNERS[planner])):
        raise UsageError(f"--jobs: {planner} uses one core", hint="leave it out")


def _dim(text: str) -> tuple[str, int]:
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value.isdecimal() or len(value) > 18:
        raise UsageError(f"--dim {text!r} is not understood", hint="write it like --dim batch=8")
    return name, int(value)


def _shape(text: str, option: str) -> tuple[str, tuple[int, ...]]:
    """Accept the three spellings in use: x:1,3,224,224 and x:1x3x224x224 and x:[1,3,224,224]; x: is a scalar."""
    name, colon, shape = text.rpartition(":")
    sizes = shape.strip().removeprefix("[").removesuffix("]").replace("x", ",")
    parts = [part.strip() for part in sizes.split(",")] if sizes else []
    if not colon or not name or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise UsageError(f"{option} {text!r} is not understood", hint=f"write it like {option} x:1,3,224,224")
    return name, tuple(int(part) for part in parts)
