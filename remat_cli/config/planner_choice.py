"""The choice of a planner and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any

from remat_cli.config.document import Document, checked, options_schema, placed, scalar, unknown_name
from remat_cli.core.problem import Planner
from remat_cli.errors import UsageError
from remat_cli.planners import OFFLOADING
from remat_cli.planners.plugins import all_planners, package_of, planner_named, planner_names
from remat_cli.settings import Setting

DEFAULT_PLANNER = "auto"


@dataclass(frozen=True)
class PlannerChoice:
    """A planner's name with the given options.

    A choice can be pickled, and sent to another process.

    Attributes:
        name: as `remat planners` lists it.
        options: the given ones; the others keep the planner's defaults.
        source: where the options come from, for messages.
    """

    name: str = DEFAULT_PLANNER
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = field(default="--option", compare=False)

    def has(self, option: str) -> bool:
        """Tell whether the planner has an option of this name."""
        return any(item.name == option for item in fields(self.planner))

    def with_options(self, options: Mapping[str, Any], source: str | None = None) -> PlannerChoice:
        """Return the choice with more options, which win over earlier options.

        `source`, if given, is the origin of the options.
        """
        # The same object keeps its built planner.
        return replace(self, options={**self.options, **options}, source=source or self.source) if options else self

    @property
    def planner(self) -> type[Planner]:
        """The planner's class.

        Raises:
            UsageError: there is no planner of this name any more, or its package is broken.
        """
        planner = planner_named(self.name)
        if planner is None:
            raise unknown_name("planner", self.name, planner_names())
        return planner

    @cached_property
    def built(self) -> Planner:
        """The planner with these options.

        Raises:
            UsageError: there is no such option, or a value is wrong.
        """
        planner = self.planner
        # Without options there is nothing to check, and pydantic need not be loaded.
        return checked(planner, Document(self.options, self.source)) if self.options else planner()

    @property
    def can_offload(self) -> bool:
        """Whether the planner ever moves a tensor to the host."""
        return self.name in OFFLOADING or getattr(self.planner, "can_offload", False)

    def check_can_offload(self, place: str = "") -> None:
        """Raise a UsageError if the planner never uses the host.

        `place` is the origin of the request to offload, for messages.
        """
        if not self.can_offload:
            those = f"{', '.join(OFFLOADING[:-1])} or {OFFLOADING[-1]}"
            raise UsageError(
                f"{place}{self.name} moves nothing to the host",
                hint=("leave ", Setting("offload"), f" out, or plan with {those}"),
            )

    @property
    def record(self) -> dict[str, Any]:
        """The planner by its name in files and summaries: with its options, and the package that it comes from."""
        package = package_of(self.name)
        return {"name": self.name, "options": self.all_options()} | ({"package": package} if package else {})

    def all_options(self) -> dict[str, Any]:
        """Return all options of the planner, defaults included, as JSON values."""
        values = {item.name: getattr(self.built, item.name) for item in fields(self.built)}
        return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


def named_planner(name: str, place: str = "--planner") -> PlannerChoice:
    """Return the planner of this name.

    Raises:
        UsageError: there is none, or the package that has it is broken.
    """
    if planner_named(name) is None:
        raise unknown_name(place, name, planner_names())
    return PlannerChoice(name)


def check_is_option(planner: str, key: str) -> None:
    """Raise a UsageError if `key` is a setting, no planner's option."""
    if key == "offload" and not PlannerChoice(planner).has(key):
        raise UsageError(f"{key!r} is no option of {planner}", hint=("it stands by itself: ", Setting(key, True)))


def planner_section(section: str | dict[str, Any] | None, document: Document) -> PlannerChoice | None:
    """Return the planner of the key `planner`.

    Its value is a name, or a mapping with a name.

    Raises:
        UsageError: there is no such planner, or no such option, or a value is wrong.
    """
    if section is None:
        return None
    name = section if isinstance(section, str) else section.get("name")
    if not isinstance(name, str):
        raise UsageError(
            f"{document.place(('planner',))}: has no name", hint=f"add 'name: ...', one of {', '.join(planner_names())}"
        )
    choice = named_planner(name, document.place(("planner",)))
    if isinstance(section, str):
        return choice
    options = {key: value for key, value in section.items() if key != "name"}
    for key in options:
        placed(document, ("planner", key), partial(check_is_option, choice.name, key))
    checked(choice.planner, document.section("planner", options))
    return choice.with_options(options)


def planner_schemas() -> dict[str, Any]:
    """Return a JSON Schema of the options of each planner, by its name."""
    return {name: options_schema(planner) for name, planner in all_planners().items()}


def parse_option(text: str) -> tuple[str, Any]:
    """Return name and value of "key=value", with YAML's value types.

    Raises:
        UsageError: there is no "=".
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--option {text!r} is not understood", hint="write it like --option strategy=time")
    return key, scalar(value)
