"""Options of verbs that ask several planners at several budgets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import click

from remat_cli.cli.help import PLANNER, SectionedOption
from remat_cli.cli.options import OFFLOAD, planner_lists
from remat_cli.config import (
    DEFAULT_PLANNER,
    PlannerChoice,
    RunConfig,
    load_config,
    option_name,
    parse_option,
    shipped_names,
    unknown_name,
)
from remat_cli.errors import RematError, UsageError
from remat_cli.planners import FORMER_NAMES, OFFLOADERS, OFFLOADING, PLANNERS
from remat_cli.problem import Planner
from remat_cli.studies.sweep import Curve
from remat_cli.units import parse_duration

ALL = "all"
# A planner that would search longer is stopped here, unless it is told otherwise: there are many points.
_SECONDS_A_POINT = 10.0

_planner = partial(click.option, cls=SectionedOption, section=PLANNER)
_OPTIONS = (
    _planner(
        "--planner",
        "--planners",
        "planners",
        multiple=True,
        metavar="NAME,...",
        shell_complete=planner_lists,
        help=f"Planners, or config files of planners, separated by commas; or all. Repeatable. "
        f"[default: {DEFAULT_PLANNER}]",
    ),
    _planner(
        "--option",
        "options",
        multiple=True,
        metavar="[PLANNER.]KEY=VALUE",
        help="Option of one planner, or of each that has it. Repeatable.",
    ),
    OFFLOAD,
    _planner(
        "--time-limit",
        metavar="30s",
        help=f"Of each planner at each budget. [default: {_SECONDS_A_POINT:g}s, or less where the planner says so]",
    ),
    _planner("--seed", type=int, help="Seed of planners that draw."),
)


def planners_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `read_planners` understands."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Entrants:
    """Planners that are asked for.

    Attributes:
        planners: each with its options, by the names under which they are shown.
        offloading: names of those whose plans may move tensors to the host.
    """

    planners: Mapping[str, Planner]
    offloading: Collection[str]


def read_planners(given: Mapping[str, Any], config: RunConfig, *, twice: bool = False) -> Entrants:
    """Return the planners that are asked for.

    Args:
        given: the options by their parameter names, as click hands them to a command.
        config: names the planner, where the command line does not, and its options.
        twice: a planner whose plans may offload is there without that, too, unless it exists to offload.

    Raises:
        UsageError: there is no such planner or config, one is named twice, or an option is wrong or nobody's; or with
            `twice`, plans may offload and no planner ever does.
    """
    listed = _listed(given)
    choices: dict[str, PlannerChoice] = {}
    offloading: list[str] = []
    for label, choice, may_offload in _choices(listed or [(config.planner or PlannerChoice()).name], config):
        if label in choices:
            raise UsageError(f"--planner {label!r} is given twice", hint="name each once")
        choices[label] = choice
        if may_offload:
            offloading.append(label)
    choices = {label: with_short_limit(choice) for label, choice in with_given_options(choices, given).items()}
    planners = {label: choice.planner() for label, choice in choices.items()}
    if not twice:
        return Entrants(planners, offloading)
    if config.graph.offload and not offloading:
        next(iter(choices.values())).check_can_offload()
    return _twice(choices, planners, offloading)


def _twice(choices: Mapping[str, PlannerChoice], planners: Mapping[str, Planner], offloading: list[str]) -> Entrants:
    shown: dict[str, Planner] = {}
    moving: list[str] = []
    for label, planner in planners.items():
        shown[label] = planner
        if label in offloading:
            exists_for_it = choices[label].name in OFFLOADERS
            moving.append(label if exists_for_it else f"{label}, offloading")
            shown[moving[-1]] = planner
    return Entrants(shown, moving)


def planner_files(given: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the config files among the planners that are asked for; a planner's name is that of no file."""
    return tuple(map(Path, _listed(given)))


def _listed(given: Mapping[str, Any]) -> list[str]:
    return [name.strip() for text in given["planners"] for name in text.split(",")]


def with_given_options(choices: Mapping[str, PlannerChoice], given: Mapping[str, Any]) -> dict[str, PlannerChoice]:
    """Return planners with the options of a command line, each where a planner has it.

    Args:
        choices: planners by the names under which they are shown.
        given: the options by their parameter names, as click hands them to a command.

    Raises:
        UsageError: an option is nobody's.
    """
    chosen = dict(choices)
    for text in given["options"]:
        _give_option(*parse_option(text), chosen)
    for option, value in (("time_limit", given["time_limit"]), ("seed", given["seed"])):
        if value is not None:
            _give_option(option, parse_duration(value) if option == "time_limit" else value, chosen)
    return chosen


def with_short_limit(choice: PlannerChoice) -> PlannerChoice:
    """Return a planner with a time limit that suits a run of many, where it has none."""
    own = next((item.default for item in fields(PLANNERS[choice.name]) if item.name == "time_limit"), None)
    is_long = isinstance(own, float | int) and own > _SECONDS_A_POINT
    # Where the work is counted, the clock is not what ends it.
    if not is_long or "time_limit" in choice.options or choice.options.get("work_limit") is not None:
        return choice
    return choice.with_options({"time_limit": _SECONDS_A_POINT})


def refused_by_all(curves: Sequence[Curve]) -> RematError:
    """Return the error for a call of which no planner could take any graph."""
    refusals = [curve.refusal for curve in curves if curve.refusal is not None]
    if len(refusals) == 1:
        return refusals[0]
    reasons = "; ".join(dict.fromkeys(refusal.message for refusal in refusals))
    return UsageError(f"none of these planners can take it: {reasons}", hint=refusals[0].remedy)


def _choices(listed: list[str], config: RunConfig) -> Iterator[tuple[str, PlannerChoice, bool]]:
    """Yield the planners that are listed: the name under which one is shown, itself, whether its plans may offload."""
    asked = config.graph.offload
    for entry in listed:
        name = FORMER_NAMES.get(entry, entry)
        if entry == ALL:
            yield from ((name, PlannerChoice(name), asked and name in OFFLOADING) for name in PLANNERS)
        elif name in PLANNERS:
            of_config = config.planner
            choice = of_config if of_config is not None and of_config.name == name else PlannerChoice(name)
            yield entry, choice, asked and choice.can_offload
        elif Path(entry).suffix in (".yaml", ".yml") or entry in shipped_names("configs"):
            file = load_config(Path(entry))
            if file.planner is None:
                raise UsageError(f"--planner {entry}: the file names no planner", hint="add 'planner: ...' to it")
            if file.graph.offload:
                file.planner.check_can_offload(f"--planner {entry}: ")
            yield file.label, file.planner, (asked or file.graph.offload) and file.planner.can_offload
        else:
            raise unknown_name("--planner", entry, PLANNERS)


def _give_option(key: str, value: Any, choices: dict[str, PlannerChoice]) -> None:
    """Set an option of every planner that has it; written PLANNER.KEY, of that one alone."""
    label, dot, own_key = key.rpartition(".")
    if dot and label not in choices:
        raise unknown_name(f"--option {key}", label, tuple(choices))
    given_to = False
    for other, choice in choices.items():
        today = option_name(choice.name, own_key if dot else key)
        if other == label if dot else choice.has(today):
            choices[other] = choice.with_options({today: value})
            given_to = True
    if not given_to and key not in ("time_limit", "seed"):
        raise UsageError(
            f"--option {key}: none of these planners has such an option",
            hint="`remat planners` lists the options of each",
        )
