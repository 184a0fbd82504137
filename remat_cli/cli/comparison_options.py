"""Options of verbs that ask several planners at several budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click

from remat_cli.cli.help import PLANNER, SectionedOption
from remat_cli.cli.options import DEFAULT_PLANNER
from remat_cli.cli.value_completion import planner_lists
from remat_cli.config import RunConfig, load_config, make_planner, parse_option, shipped_names, unknown_name
from remat_cli.errors import RematError, UsageError
from remat_cli.planners import PLANNERS
from remat_cli.studies.sweep import Curve, NamedPlanner
from remat_cli.units import parse_duration

ALL = "all"
# Label, name and options of a planner.
Entry = tuple[str, str, dict[str, Any]]
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


def read_planners(given: Mapping[str, Any], config: RunConfig) -> tuple[NamedPlanner, ...]:
    """Return the planners that are asked for, each with its options.

    Args:
        given: the options by their parameter names, as click hands them to a command.
        config: names the planner, where the command line does not, and its options.

    Raises:
        UsageError: there is no such planner or config, one is named twice, or an option is wrong or nobody's.
    """
    entries = list(_entries(_listed(given) or [config.planner or DEFAULT_PLANNER], config))
    labels = [label for label, _, _ in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"--planner {label!r} is given twice", hint="name each once")
    give_options(given, entries)
    return tuple(
        NamedPlanner(label, make_planner(name, with_short_limit(name, options), source="--option"))
        for label, name, options in entries
    )


def planner_files(given: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the config files among the planners that are asked for; a planner's name is that of no file."""
    return tuple(map(Path, _listed(given)))


def _listed(given: Mapping[str, Any]) -> list[str]:
    return [name.strip() for text in given["planners"] for name in text.split(",")]


def give_options(given: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Set the options of a command line in those of the planners that have them.

    Args:
        given: the options by their parameter names, as click hands them to a command.
        entries: label, name and options of each planner.

    Raises:
        UsageError: an option is nobody's.
    """
    for text in given["options"]:
        _give_option(*parse_option(text), entries)
    for option, value in (("time_limit", given["time_limit"]), ("seed", given["seed"])):
        if value is not None:
            _give_option(option, parse_duration(value) if option == "time_limit" else value, entries)


def with_short_limit(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a planner's options with a time limit that suits a run of many, where they have none."""
    own = next((item.default for item in fields(PLANNERS[name]) if item.name == "time_limit"), None)
    is_long = isinstance(own, float | int) and own > _SECONDS_A_POINT
    # Where the work is counted, the clock is not what ends it.
    if not is_long or "time_limit" in options or options.get("work_limit") is not None:
        return dict(options)
    return {**options, "time_limit": _SECONDS_A_POINT}


def refused_by_all(curves: Sequence[Curve]) -> RematError:
    """Return the error for a call of which no planner could take any graph."""
    refusals = [curve.refusal for curve in curves if curve.refusal is not None]
    if len(refusals) == 1:
        return refusals[0]
    reasons = "; ".join(dict.fromkeys(refusal.message for refusal in refusals))
    return UsageError(f"none of these planners can take it: {reasons}", hint=refusals[0].hint)


def _entries(listed: list[str], config: RunConfig) -> Iterator[Entry]:
    """Yield label, name and options of each planner that is listed."""
    for entry in listed:
        if entry == ALL:
            yield from ((name, name, {}) for name in PLANNERS)
        elif entry in PLANNERS:
            yield entry, entry, dict(config.options) if entry == config.planner else {}
        elif Path(entry).suffix in (".yaml", ".yml") or entry in shipped_names("configs"):
            file = load_config(Path(entry))
            if file.planner is None:
                raise UsageError(f"--planner {entry}: the file names no planner", hint="add 'planner: ...' to it")
            yield Path(entry).stem, file.planner, dict(file.options)
        else:
            raise unknown_name("--planner", entry, PLANNERS)


def _give_option(key: str, value: Any, entries: Sequence[Entry]) -> None:
    """Set an option of every planner that has it; written PLANNER.KEY, of that one alone."""
    label, dot, own_key = key.rpartition(".")
    if dot:
        chosen = [(name, options) for other, name, options in entries if other == label]
        if not chosen:
            raise unknown_name(f"--option {key}", label, tuple(other for other, _, _ in entries))
    else:
        chosen = [
            (name, options) for _, name, options in entries if key in {item.name for item in fields(PLANNERS[name])}
        ]
        if not chosen and key not in ("time_limit", "seed"):
            raise UsageError(
                f"--option {key}: none of these planners has such an option",
                hint="`remat planners` lists the options of each",
            )
    for _, options in chosen:
        options[own_key if dot else key] = value
