"""Options of verbs that ask several planners at several budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from remat_cli.cli.help import PLANNER, SectionedOption
from remat_cli.cli.options import PLAN_SETTINGS, planner_lists, said_on_command_line
from remat_cli.config import (
    DEFAULT_PLANNER,
    PlannerChoice,
    Request,
    RunConfig,
    check_is_option,
    load_config,
    parse_option,
    shipped_names,
    unknown_name,
)
from remat_cli.errors import RematError, UsageError
from remat_cli.planners import OFFLOADERS, PLANNERS
from remat_cli.studies.sweep import Curve
from remat_cli.units import parse_duration

ALL = "all"
# The default limit of each search, as there are many points.
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
    *PLAN_SETTINGS,
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


def read_planners(given: Mapping[str, Any], config: RunConfig, *, twice: bool = False) -> dict[str, Request]:
    """Return the request for each planner, by displayed name.

    The budget is set later.

    Args:
        given: options by parameter name, as click passes them to a command.
        config: config with planner and options, used if the command line names none.
        twice: whether to list a planner that may offload a second time without offloading, unless it is made for
            offloading.

    Raises:
        UsageError: a planner or config is unknown or named twice, an option is wrong, or no planner has it; or with
            `twice`, plans may offload and none of the planners does.
    """
    asked: dict[str, Request] = {}
    for label, request in _requests(_listed(given) or [config.request.chosen.name], config, given):
        if label in asked:
            raise UsageError(f"--planner {label!r} is given twice", hint="name each once")
        asked[label] = request
    choices = with_given_options({label: request.chosen for label, request in asked.items()}, given)
    requests = {
        label: replace(
            request,
            budget=None,
            max_overhead=None,  # all overheads are shown
            planner=with_short_limit(choices[label]),
            offload=request.offload and request.chosen.can_offload,
        )
        for label, request in asked.items()
    }
    for request in requests.values():
        request.check()
    if not twice:
        return requests
    if config.request.offload and not any(request.offload for request in requests.values()):
        next(iter(choices.values())).check_can_offload()
    return _twice(requests)


def _twice(requests: Mapping[str, Request]) -> dict[str, Request]:
    shown: dict[str, Request] = {}
    for label, request in requests.items():
        exists_for_it = request.chosen.name in OFFLOADERS
        shown[label] = replace(request, offload=request.offload and exists_for_it)
        if request.offload and not exists_for_it:
            shown[f"{label}, offloading"] = request
    return shown


def planner_files(given: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the config files among the listed planners.

    These are the entries that are not a planner's name.
    """
    return tuple(map(Path, _listed(given)))


def _listed(given: Mapping[str, Any]) -> list[str]:
    return [name.strip() for text in given["planners"] for name in text.split(",")]


def with_given_options(choices: Mapping[str, PlannerChoice], given: Mapping[str, Any]) -> dict[str, PlannerChoice]:
    """Give each planner the command line's options that it has.

    Args:
        choices: planners by displayed name.
        given: options by parameter name, as click passes them to a command.

    Raises:
        UsageError: an option belongs to none of the planners.
    """
    chosen = dict(choices)
    for text in given["options"]:
        _give_option(*parse_option(text), chosen)
    for option, value in (("time_limit", given["time_limit"]), ("seed", given["seed"])):
        if value is not None:
            _give_option(option, parse_duration(value) if option == "time_limit" else value, chosen)
    return chosen


def with_short_limit(choice: PlannerChoice) -> PlannerChoice:
    """Return a planner with the limit for one of many searches.

    A planner with a limit of its own keeps that.
    """
    own = next((item.default for item in fields(PLANNERS[choice.name]) if item.name == "time_limit"), None)
    is_long = isinstance(own, float | int) and own > _SECONDS_A_POINT
    # If the work is limited, the clock does not end the search.
    if not is_long or "time_limit" in choice.options or choice.options.get("work_limit") is not None:
        return choice
    return choice.with_options({"time_limit": _SECONDS_A_POINT})


def refused_by_all(curves: Sequence[Curve]) -> RematError:
    """Return the error for a call in which all planners refused all graphs."""
    refusals = [curve.refusal for curve in curves if curve.refusal is not None]
    if len(refusals) == 1:
        return refusals[0]
    reasons = "; ".join(dict.fromkeys(refusal.message for refusal in refusals))
    return UsageError(f"none of these planners can take it: {reasons}", hint=refusals[0].remedy)


def _requests(listed: list[str], config: RunConfig, given: Mapping[str, Any]) -> Iterator[tuple[str, Request]]:
    """Yield the request for each listed planner, by displayed name."""
    for entry in listed:
        if entry == ALL:
            yield from ((name, replace(config.request, planner=PlannerChoice(name))) for name in PLANNERS)
        elif entry in PLANNERS:
            of_config = config.request.chosen
            yield entry, replace(config.request, planner=of_config if of_config.name == entry else PlannerChoice(entry))
        elif Path(entry).suffix in (".yaml", ".yml") or entry in shipped_names("configs"):
            file = load_config(Path(entry))
            named = file.request.planner
            if named is None:
                raise UsageError(f"--planner {entry}: the file names no planner", hint="add 'planner: ...' to it")
            request = config.under(file.said).under(said_on_command_line(given)).request
            if file.request.offload and request.offload:
                named.check_can_offload(f"--planner {entry}: ")
            yield file.label, replace(request, planner=named)
        else:
            raise unknown_name("--planner", entry, PLANNERS)


def _give_option(key: str, value: Any, choices: dict[str, PlannerChoice]) -> None:
    """Set an option in every planner that knows this option.

    PLANNER.KEY sets it for that planner alone.
    """
    label, dot, own_key = key.rpartition(".")
    if dot and label not in choices:
        raise unknown_name(f"--option {key}", label, tuple(choices))
    given_to = False
    for other, choice in choices.items():
        option = own_key if dot else key
        check_is_option(choice.name, option)
        if other == label if dot else choice.has(option):
            choices[other] = choice.with_options({option: value})
            given_to = True
    if not given_to and key not in ("time_limit", "seed"):
        raise UsageError(
            f"--option {key}: none of these planners has such an option",
            hint="`remat planners` lists the options of each",
        )
