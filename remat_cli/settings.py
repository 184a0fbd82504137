"""Settings: choices that users make by name, each declared once.

A setting is a field of a frozen dataclass, created by `setting`. A config file has it as a key with the field's name,
the command line as an option. Messages and hints contain `Setting`s, shown in the words of the place where the user
sets them: the command line shows "--mode inference", a check of a project file shows "'mode: inference'".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from fractions import Fraction
from typing import Any, Self


@dataclass(frozen=True)
class Setting:
    """A setting within a message.

    Attributes:
        name: name of the field, which is the key in a config file.
        value: the value to set; for a mapping, the entries to add; None to show only the name.
    """

    name: str
    value: object = None


# A message or hint, independent of where it is shown: plain text, or parts to be joined.
Wording = str | tuple[str | Setting, ...]


# Given values by setting name. A setting that was not given is absent. No value means "not given", so that False, 0 and
# the default itself can be given, and win.
Said = Mapping[str, Any]


@dataclass(frozen=True)
class Declared:
    """The declaration of a setting, for command line, files and pages.

    Attributes:
        help: the meaning, for people.
        metavar: an example of a value, or a word for it; an ending FILE marks the name of a file.
        choices: all possible values; empty if they cannot be listed.
        parse: converts the option's text to the value; for a mapping, to one entry.
        written: type of the value in a YAML file, if `parse` can convert that, too; otherwise None.
        read: converts the value in a YAML file, given its document; None if `parse` does, or if no conversion is
            needed.
        flag: the option on the command line; empty to derive it from the name.
        needs: name of a setting without which this setting has no meaning.
        changes_graph: whether another value may make another graph; a schedule file records such settings.
    """

    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] = str
    written: Any = None
    read: Callable[[Any, Any], Any] | None = None
    flag: str = ""
    needs: str | None = None
    changes_graph: bool = True

    @property
    def names_file(self) -> bool:
        """Whether the value may be the path of a file."""
        return (self.metavar or "").endswith("FILE")


_DECLARED = "declared"


def setting(default: Any, help: str, **different: Any) -> Any:  # click, too, calls it `help`
    """Return a dataclass field that is a setting.

    `default` is a value, or dict for a mapping. For the other arguments see `Declared`.
    """
    metadata = {_DECLARED: Declared(help, **different)}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


def declared(item: Any) -> Declared:
    """Return the declaration behind a dataclass field."""
    said: Declared = item.metadata[_DECLARED]
    return said


def choices_of(item: Any) -> tuple[str, ...]:
    """Return all possible values of a dataclass field; empty if not listed."""
    said: Declared | None = item.metadata.get(_DECLARED)
    return () if said is None else said.choices


@dataclass(frozen=True)
class Settings:
    """A frozen dataclass whose fields are settings from `setting`."""

    def __init_subclass__(cls) -> None:
        """Register each option whose name differs from its setting's."""
        super().__init_subclass__()
        items = {name: item for name, item in vars(cls).items() if isinstance(item, Field)}
        _FLAGS.update({name: declared(item).flag for name, item in items.items() if declared(item).flag})

    @classmethod
    def of(cls, said: Said) -> Self:
        """Build the settings from given values, ignoring other classes' values."""
        names = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in said.items() if name in names})

    @property
    def in_json(self) -> dict[str, Any]:
        """All settings by name, as JSON values."""
        return {item.name: in_json(getattr(self, item.name)) for item in fields(self)}

    @property
    def not_default(self) -> dict[str, Any]:
        """The settings that differ from their defaults by name, as JSON values."""
        default = type(self)().in_json
        return {name: value for name, value in self.in_json.items() if value != default[name]}


_FLAGS: dict[str, str] = {}


def over(below: Said, above: Said) -> dict[str, Any]:
    """Merge two mappings of given settings; `above` wins.

    Mappings are merged entry by entry. There is no other merge.
    """
    entries = {
        name: {**below[name], **value}
        for name, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(name), Mapping)
    }
    return {**below, **above, **entries}


def in_json(value: Any) -> Any:
    """Convert a setting's value to JSON; a budget becomes text."""
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, Mapping):
        return {key: in_json(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [in_json(entry) for entry in value]
    if hasattr(value, "tolist"):  # an array
        return value.tolist()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def as_text(wording: Wording, write: Callable[[Setting], str]) -> str:
    """Convert a wording to text; `write` converts the settings."""
    return "".join(part if isinstance(part, str) else write(part) for part in parts(wording))


def parts(wording: Wording) -> tuple[str | Setting, ...]:
    """Split a wording into parts, to which others can be joined."""
    return (wording,) if isinstance(wording, str) else wording


def listed(settings: Iterable[Setting]) -> tuple[str | Setting, ...]:
    """Return settings as parts of a text, separated by commas."""
    separated = tuple(part for setting in settings for part in (", ", setting))
    return separated[1:]


def option_of(name: str) -> str:
    """Return the option for a setting.

    For a mapping, the option is repeated, once for each entry.
    """
    return _FLAGS.get(name) or "--" + name.replace("_", "-")


def without(option: str) -> str:
    """Return the option that negates a flag: --no-strict."""
    return f"--no-{option.removeprefix('--')}"


def on_command_line(said: Setting) -> str:
    """Write a setting as options, such as --dim batch=8 --dim seq=512.

    Other examples: --mode inference, --input-shape x:8,128, --strict.
    """
    option = option_of(said.name)
    if said.value is False:
        return without(option)
    if not isinstance(said.value, Mapping):
        return option if said.value is None or said.value is True else f"{option} {said.value}"
    return " ".join(f"{option} {key}{_entry_text(said.name, entry)}" for key, entry in said.value.items())


def _entry_text(name: str, entry: object) -> str:
    if name == "values":
        return f"={entry}" if isinstance(entry, str) else f"={json.dumps(in_json(entry), separators=(',', ':'))}"
    return f":{','.join(map(str, entry))}" if isinstance(entry, tuple | list) else f"={entry}"


def in_config(said: Setting) -> str:
    """Write a setting as keys of a file, such as 'mode: inference'.

    Other examples: 'dims: {batch: 8, seq: 512}', strict.
    """
    if said.value is None:
        return said.name
    if isinstance(said.value, bool):
        return f"'{said.name}: {str(said.value).lower()}'"
    if not isinstance(said.value, Mapping):
        return f"'{said.name}: {said.value}'"
    entries = (f"{key}: {list(size) if isinstance(size, tuple) else size}" for key, size in said.value.items())
    return f"'{said.name}: {{{', '.join(entries)}}}'"
