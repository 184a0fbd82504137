"""Planners of other packages: entry points of the group `remat.planners`, loaded only where a planner is looked up."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from remat_cli.core.problem import Planner
from remat_cli.errors import UsageError
from remat_cli.planners import PLANNERS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "remat.planners"
_LOG = logging.getLogger("remat")
# Names stand in lists with commas, before the dot of `--option PLANNER.KEY=VALUE`, and beside the word "all".
_NAME = re.compile(r"(?!all$)[A-Za-z]\w*", re.ASCII)


@dataclass(frozen=True)
class Plugin:
    """A planner that another package announces.

    Attributes:
        name: as users write it.
        package: name and version of the package.
        planner: the class; None where it cannot be used.
        fault: why the planner cannot be used; empty where it can.
    """

    name: str
    package: str
    planner: type[Planner] | None
    fault: str = ""

    @property
    def error(self) -> UsageError:
        """The error for a planner that cannot be used."""
        return UsageError(
            f"planner {self.name!r} of the package {self.package} cannot be used: {self.fault}",
            hint=f"mend that package, or remove it: pip uninstall {self.package.partition(' ')[0]}",
        )


def planner_named(name: str) -> type[Planner] | None:
    """Return the planner of this name, built in or of another package; None where there is none.

    Raises:
        UsageError: the package that has it is broken.
    """
    if name in PLANNERS:
        return PLANNERS[name]
    plugin = _plugin(name) if name in _entries() else None
    if plugin is not None and plugin.planner is None:
        raise plugin.error
    return None if plugin is None else plugin.planner


def all_planners() -> Mapping[str, type[Planner]]:
    """Return all planners by name, those of other packages last; warn of each that cannot be used."""
    planners = dict(PLANNERS)
    for name in _entries():
        plugin = _plugin(name)
        if plugin.planner is None:
            _LOG.warning("%s", plugin.error.message)
        else:
            planners[name] = plugin.planner
    return planners


def planner_names() -> tuple[str, ...]:
    """Return the names of all planners, loading none."""
    return tuple(dict.fromkeys((*PLANNERS, *_entries())))


def package_of(name: str) -> str | None:
    """Return name and version of the package that a planner comes from; None for one of remat's own."""
    return None if name in PLANNERS or name not in _entries() else _packages(_entries()[name])


def _entries() -> Mapping[str, tuple[EntryPoint, ...]]:
    return _entries_on(tuple(sys.path))


@cache
def _entries_on(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points by name; the path, from which they are read, is there for the cache."""
    from importlib.metadata import entry_points

    entries: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, _packages((entry,)))):
        entries[entry.name] = (*entries.get(entry.name, ()), entry)
    return entries


def _packages(entries: tuple[EntryPoint, ...]) -> str:
    return " and ".join(f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown" for entry in entries)


def _plugin(name: str) -> Plugin:
    entries = _entries()[name]
    planner, fault = _loaded(name, entries)
    return Plugin(name, _packages(entries), planner, fault)


def _loaded(name: str, entries: tuple[EntryPoint, ...]) -> tuple[type[Planner] | None, str]:
    """Return the class of a planner, or None and its fault."""
    if name in PLANNERS:
        return None, "remat has a planner of its own of this name"
    if not _NAME.fullmatch(name):
        return None, "a name consists of letters, digits and underscores, begins with a letter, and is not 'all'"
    if len(entries) > 1:
        return None, "two packages have a planner of this name"
    try:
        planner = entries[0].load()
    except (Exception, SystemExit) as error:
        return None, f"{entries[0].value} cannot be imported: {_described(error)}"
    fault = fault_of(planner)
    return (None, f"{entries[0].value} {fault}") if fault else (planner, "")


def fault_of(planner: Any) -> str:
    """Return the fault of an object as a planner, or an empty text."""
    if not isinstance(planner, type) or not is_dataclass(planner):
        return "is no dataclass"
    if not planner.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # typeshed leaves it out
        return "is no frozen dataclass: write @dataclass(frozen=True)"
    if not callable(getattr(planner, "plan", None)):
        return "has no method plan(problem, observe)"
    return _fault_of_options(planner)


def _fault_of_options(planner: type) -> str:
    for item in fields(planner):
        if item.default is MISSING and item.default_factory is MISSING:
            return f"has an option without a default: {item.name}"
    try:
        get_type_hints(planner)
    except Exception as error:
        return f"has an option of an unknown type: {error}"
    try:
        built = planner()
    except Exception as error:
        return f"cannot be made with its defaults: {_described(error)}"
    for item in fields(planner):
        try:
            json.dumps(getattr(built, item.name))
        except (TypeError, ValueError):
            return f"has a default that JSON cannot hold: {item.name}"
    return ""


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
