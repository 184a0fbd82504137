"""Cards that describe planners, from their class docstrings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from typing import Any

from remat_cli.core.problem import Planner
from remat_cli.generate import Generator
from remat_cli.planners import PLANNERS

_ENTRY = re.compile(r"(\w+): +(\S.*)")
_OPTIONS_HEADING = "Attributes:"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a planner.

    Attributes:
        name: as in a config file.
        default: its default, as in a config file.
        meaning: its meaning, from the docstring.
    """

    name: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class PlannerCard:
    """A planner as described by its class docstring.

    Attributes:
        name: as in PLANNERS.
        summary: the first paragraph.
        facts: the entries of the docstring: "Source", "Takes", "Searches", "Complexity".
        options: in the order of the class.
    """

    name: str
    summary: str
    facts: Mapping[str, str]
    options: tuple[Option, ...]


def planner_cards(planners: Mapping[str, type[Planner | Generator]] = PLANNERS) -> tuple[PlannerCard, ...]:
    """Return a card for each planner, in the order of the table.

    Generators describe themselves in the same form.
    """
    return tuple(_card(name, planner) for name, planner in planners.items())


def _card(name: str, planner: type[Planner | Generator]) -> PlannerCard:
    # Options that planners share are described at their declaration.
    docstrings = [inspect.cleandoc(base.__doc__ or "").partition(_OPTIONS_HEADING) for base in planner.__mro__]
    summary, _, entries = docstrings[0][0].partition("\n\n")
    meanings: dict[str, str] = {}
    for _, _, options in reversed(docstrings):
        meanings |= _entries(inspect.cleandoc(options).splitlines())
    return PlannerCard(
        name=name,
        summary=" ".join(summary.split()),
        facts=_entries(entries.splitlines()),
        options=tuple(Option(item.name, _default(item), meanings.get(item.name, "")) for item in fields(planner)),
    )


def _entries(lines: Iterable[str]) -> dict[str, str]:
    """Parse entries such as "Source: ..." by their label.

    A line without a label continues the entry before.
    """
    entries: dict[str, str] = {}
    label = ""
    for line in lines:
        start = _ENTRY.match(line)
        if start is not None:
            label, entries[start[1]] = start[1], start[2]
        elif label and line.strip():
            entries[label] += f" {line.strip()}"
    return entries


def _default(item: Field[Any]) -> str:
    """Write an option's default as in a config file."""
    value = item.default if item.default_factory is MISSING else item.default_factory()
    if value is MISSING:
        return "required"
    if isinstance(value, Enum):
        value = value.value
    return value if isinstance(value, str) else json.dumps(value)
