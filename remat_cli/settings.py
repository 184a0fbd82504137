"""Settings: what users choose by name, declared once, and named in messages in the words of whoever set them.

A setting is a field of a frozen dataclass, which `setting` makes. A config file takes it by the field's name, the
command line by an option. A message or a hint names them as `Setting`s: the command line shows "--mode inference", a
check of a project file shows "'mode: inference'".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


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


@dataclass(frozen=True)
class Declared:
    """How the command line takes a setting.

    Attributes:
        help: what it is, for people.
        metavar: an example of a value, or a word for it.
        choices: all values that there are; empty where they cannot be listed.
        parse: makes the value of the option's text; of a mapping, one entry.
    """

    help: str
    metavar: str | None
    choices: tuple[str, ...]
    parse: Callable[[str], Any]


_DECLARED = "declared"


def setting(
    default: Any,
    help: str,  # as click calls it
    *,
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    parse: Callable[[str], Any] = str,
) -> Any:
    """Return a field that is a setting; `default` is a value, or dict for a mapping. The others: see `Declared`."""
    metadata = {_DECLARED: Declared(help, metavar, choices, parse)}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


def declared(item: Any) -> Declared:
    """Return how the command line takes the setting that a field of a dataclass is."""
    said: Declared = item.metadata[_DECLARED]
    return said


def choices_of(item: Any) -> tuple[str, ...]:
    """Return all values that a field of a dataclass may have; none where they are not listed."""
    said: Declared | None = item.metadata.get(_DECLARED)
    return () if said is None else said.choices


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
    if name == "arena":  # what is asked for in words of the user: the addresses in it
        return "--addresses"
    plural = name in ("dims", "input_shapes", "value_shapes")
    return "--" + name.removesuffix("s" if plural else "").replace("_", "-")


def on_command_line(said: Setting) -> str:
    """Return a setting as options: --mode inference, --dim batch=8 --dim seq=512, --input-shape x:8,128, --strict."""
    option = option_of(said.name)
    if not isinstance(said.value, Mapping):
        return option if said.value is None or said.value is True else f"{option} {said.value}"
    return " ".join(f"{option} {key}{_size_text(size)}" for key, size in said.value.items())


def _size_text(size: object) -> str:
    return f":{','.join(map(str, size))}" if isinstance(size, tuple | list) else f"={size}"


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
