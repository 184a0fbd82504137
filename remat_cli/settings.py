"""Settings: what users choose by name, declared once, and named in messages in the words of whoever set them.

A setting is a field of a frozen dataclass, which `setting` makes. A config file takes it by the field's name, the
command line by an option. A message or a hint names them as `Setting`s: the command line shows "--mode inference", a
check of a project file shows "'mode: inference'".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from fractions import Fraction
from typing import Any, Self


@dataclass(frozen=True)
class Setting:
    """A setting that a text speaks of.

    Attributes:
        name: of the field, which is the key in a config file.
        value: what to set it to; of a mapping, the entries to add. None where only the name is told.
    """

    name: str
    value: object = None


# A message or hint, independent of where it is shown: plain text, or parts to be joined.
Wording = str | tuple[str | Setting, ...]


# Given values by setting name. A setting that is absent was not given. No value stands for "not given", so that
# False, 0 and the default itself can be given, and win.
Said = Mapping[str, Any]


@dataclass(frozen=True)
class Declared:
    """The declaration of a setting: all that command line, files and pages are made of.

    Attributes:
        help: the meaning, for people.
        metavar: an example of a value, or a word for it. One that ends in FILE names a file.
        choices: all values that there are; empty where they cannot be listed.
        parse: makes the value of the option's text; of a mapping, one entry.
        written: type of the value in a YAML file, if `parse` makes the setting's value of it, too; else None.
        read: makes the setting's value of the one in a YAML file, given its document; None: `parse` does, or nobody.
        flag: the option on the command line; empty: made of the name.
        needs: name of the setting without which this one means nothing.
        changes_graph: another value makes another graph, or may; a schedule file records it.
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
        """Whether the value is the path of a file, or may be."""
        return (self.metavar or "").endswith("FILE")


_DECLARED = "declared"


def setting(default: Any, help: str, **different: Any) -> Any:  # `help` as click calls it
    """Return a field that is a setting; `default` is a value, or dict for a mapping. The others: see `Declared`."""
    metadata = {_DECLARED: Declared(help, **different)}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


def declared(item: Any) -> Declared:
    """Return the declaration of the setting that a field of a dataclass is."""
    said: Declared = item.metadata[_DECLARED]
    return said


def choices_of(item: Any) -> tuple[str, ...]:
    """Return all values that a field of a dataclass may have; none where they are not listed."""
    said: Declared | None = item.metadata.get(_DECLARED)
    return () if said is None else said.choices


@dataclass(frozen=True)
class Settings:
    """A frozen dataclass whose fields are settings, each declared by `setting` and nowhere else."""

    def __init_subclass__(cls) -> None:
        """Register each option whose name differs from its setting's."""
        super().__init_subclass__()
        items = {name: item for name, item in vars(cls).items() if isinstance(item, Field)}
        _FLAGS.update({name: declared(item).flag for name, item in items.items() if declared(item).flag})

    @classmethod
    def of(cls, said: Said) -> Self:
        """Build the settings from the given values; values of other classes are ignored."""
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
    """Merge two mappings of given settings; `above` wins, entry by entry in mappings. There is no other merge."""
    entries = {
        name: {**below[name], **value}
        for name, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(name), Mapping)
    }
    return {**below, **above, **entries}


def in_json(value: Any) -> Any:
    """Return a setting's value as JSON has it; a budget as text."""
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
    """Return a wording as text, in which `write` says the settings."""
    return "".join(part if isinstance(part, str) else write(part) for part in parts(wording))


def parts(wording: Wording) -> tuple[str | Setting, ...]:
    """Return a wording as parts, to which others can be joined."""
    return (wording,) if isinstance(wording, str) else wording


def listed(settings: Iterable[Setting]) -> tuple[str | Setting, ...]:
    """Return settings as parts of a text, separated by commas."""
    separated = tuple(part for setting in settings for part in (", ", setting))
    return separated[1:]


def option_of(name: str) -> str:
    """Return the option that gives a setting; one that is repeated gives one entry of a mapping."""
    return _FLAGS.get(name) or "--" + name.replace("_", "-")


def without(option: str) -> str:
    """Return the option that takes a flag back: --no-strict."""
    return f"--no-{option.removeprefix('--')}"


def on_command_line(said: Setting) -> str:
    """Return a setting as options: --mode inference, --dim batch=8 --dim seq=512, --input-shape x:8,128, --strict."""
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
    """Return a setting as keys of a file: 'mode: inference', 'dims: {batch: 8, seq: 512}', strict."""
    if said.value is None:
        return said.name
    if isinstance(said.value, bool):
        return f"'{said.name}: {str(said.value).lower()}'"
    if not isinstance(said.value, Mapping):
        return f"'{said.name}: {said.value}'"
    entries = (f"{key}: {list(size) if isinstance(size, tuple) else size}" for key, size in said.value.items())
    return f"'{said.name}: {{{', '.join(entries)}}}'"
