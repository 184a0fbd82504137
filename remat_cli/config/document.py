"""YAML files with file and line of each value.

Frozen dataclasses are built from a file's values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from remat_cli.errors import UsageError
from remat_cli.settings import Declared, Settings, choices_of, declared

if TYPE_CHECKING:
    import yaml
    from pydantic import BaseModel

Built = TypeVar("Built")


@dataclass(frozen=True)
class Document:
    """Values from a file or the command line, with their places.

    Attributes:
        values: values by key.
        source: name of the file or the option in messages.
        lines: line of each value by its path of keys; empty for the command line.
    """

    values: Mapping[str, Any]
    source: str
    lines: Mapping[tuple[str | int, ...], int] = field(default_factory=dict)

    def place(self, path: tuple[str | int, ...]) -> str:
        """Return "file:line: key" of a value.

        The line is that of the nearest outer value if the value has none.
        """
        outer = path
        while outer and outer not in self.lines:
            outer = outer[:-1]
        line = f":{self.lines[outer]}" if outer in self.lines else ""
        return f"{self.source}{line}: {'.'.join(map(str, path))}"

    def section(self, key: str | int, values: Mapping[str, Any]) -> Document:
        """Return the values under one key as a document.

        The key may be a place in a list.
        """
        lines = {path[1:]: line for path, line in self.lines.items() if path[:1] == (key,)}
        return Document(values, self.source, lines)


def placed(document: Document, path: tuple[str | int, ...], parse: Callable[[], Built]) -> Built:
    """Parse the value at `path`; an error gets the value's place."""
    try:
        return parse()
    except UsageError as error:
        raise UsageError(f"{document.place(path)}: {error.message}", hint=error.remedy) from None


def unknown_name(place: str, name: str, known: Mapping[str, object] | tuple[str, ...]) -> UsageError:
    """Return the error for an unknown name at `place`."""
    close = get_close_matches(name, list(known), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"{place}: there is no {name!r}", hint=f"{hint}use one of {', '.join(known)}")


# A key of a file: its name, its type, and its default (... without one).
_Key = tuple[str, Any, Any]


@cache
def _keys(cls: type) -> tuple[_Key, ...]:
    """Return a dataclass's fields as keys of a file."""
    hints = get_type_hints(cls)
    keys: list[_Key] = []
    for item in fields(cls):
        default = item.default if item.default is not MISSING else ...
        if item.default_factory is not MISSING:
            default = item.default_factory()
        keys.append((item.name, hints[item.name], default))
    return tuple(keys)


@cache
def _keys_in_files(owner: type[Settings]) -> tuple[_Key, ...]:
    """Return settings as keys of a file, with types in files."""
    keys: list[_Key] = []
    written = {item.name: declared(item).written for item in fields(owner)}
    for name, hint, default in _keys(owner):  # type: ignore[arg-type]  # no hashable type, to mypy
        if written[name] is not None:
            hint = written[name] if default is not None else written[name] | None
        keys.append((name, hint, default))
    return tuple(keys)


_MODELS: dict[tuple[tuple[Any, ...], ...], type[BaseModel]] = {}


def _model(name: str, keys: Iterable[_Key]) -> type[BaseModel]:
    """Return the pydantic model of these keys, made once."""
    from pydantic import ConfigDict, PydanticUserError, create_model

    known: dict[str, Any] = {key: (hint, default) for key, hint, default in keys}
    identity = ((name, None), *((key, hint, default is ...) for key, (hint, default) in known.items()))
    if identity not in _MODELS:
        try:
            _MODELS[identity] = create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **known)
        except PydanticUserError as error:
            raise UsageError(f"options of {name} cannot be checked: {error.message.partition('. ')[0]}") from None
    return _MODELS[identity]


def options_schema(cls: type) -> dict[str, Any]:
    """Return a JSON Schema of the fields of a frozen dataclass."""
    return _model(cls.__name__, _keys(cls)).model_json_schema()


def checked(cls: type[Built], document: Document) -> Built:
    """Build the frozen dataclass `cls` from a document, with strict types.

    Raises:
        UsageError: a key or value is wrong; the message has the first fault's place, and for an unknown key the nearest
            known key.
    """
    values = _valid(_model(cls.__name__, _keys(cls)), document)  # type: ignore[arg-type]  # no hashable type, to mypy
    _check_choices(cls, values, document)
    return cls(**values)


def said_in(
    document: Document,
    *owners: type[Settings],
    more: Mapping[str, Any] | None = None,
    without: Iterable[str] = (),
    required: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a section's settings and its other keys.

    Null counts as not given.

    Args:
        document: the section.
        owners: classes of the settings that the section may have.
        more: types of the other keys, by name.
        without: settings that the section may not have.
        required: name of the other key that has to be there.

    Raises:
        UsageError: a key or value is wrong; as `checked` raises.
    """
    if not document.values and required is None:
        return {}, {}  # and pydantic need not be loaded
    left_out, others = tuple(without), dict(more or {})
    of_owners = (_keys_in_files(owner) for owner in owners)  # type: ignore[arg-type]
    keys = [key for keys in of_owners for key in keys if key[0] not in left_out]
    keys += [(name, hint, ...) if name == required else (name, hint | None, None) for name, hint in others.items()]
    values = _valid(_model("Keys", keys), document)
    said: dict[str, Any] = {}
    for owner in owners:
        _check_choices(owner, values, document)
        for item in fields(owner):
            if values.get(item.name) is not None:
                said[item.name] = _read(declared(item), values[item.name], item.name, document)
    return said, {name: values[name] for name in others if values.get(name) is not None}


def _read(setting: Declared, value: Any, name: str, document: Document) -> Any:
    if setting.read is not None:
        return setting.read(value, document)
    if setting.written is None:
        return value
    return placed(document, (name,), lambda: setting.parse(str(value)))


def _valid(model: type[BaseModel], document: Document) -> dict[str, Any]:
    """Validate a document against a model; return the given values."""
    from pydantic import ValidationError

    try:
        # Through JSON, where text may stand for an enum's member and a whole number for a float. Objects that Python
        # callers give, such as a bank or a path, count as their text.
        valid = model.model_validate_json(json.dumps(document.values, default=str))
    except ValidationError as error:
        raise _first_fault(error.errors()[0], document, list(model.model_fields)) from None
    return {name: getattr(valid, name) for name in valid.model_fields_set}


def _check_choices(cls: type, values: Mapping[str, Any], document: Document) -> None:
    for item in fields(cls):
        choices = choices_of(item)
        if choices and values.get(item.name) is not None and values[item.name] not in choices:
            raise unknown_name(document.place((item.name,)), values[item.name], choices)


def _first_fault(fault: Mapping[str, Any], document: Document, known: list[str]) -> UsageError:
    path = tuple(fault["loc"])
    # A union adds the names of its branches to the path; they mean nothing to a user.
    while len(path) > 1 and path not in document.lines:
        path = path[:-1]
    place = document.place(path)
    if fault["type"] == "extra_forbidden":
        close = get_close_matches(str(path[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known) or 'nothing'}"
        return UsageError(f"{place}: unknown key", hint=hint)
    if fault["type"] == "missing":
        return UsageError(f"{place}: is missing", hint="add it")
    return UsageError(f"{place}: {fault['msg'].lower()}, not {fault['input']!r}", hint="correct the value")


def read_yaml(path: Path, called: Path | None = None) -> Document:
    """Read a YAML file with a mapping at the top.

    The document has the line of every value. JSON is YAML, too.

    Args:
        path: path of the file.
        called: name of the file in messages, if not `path`.
    """
    import yaml

    from remat_cli.formats.source import LARGEST_CONFIG, read_bytes

    content = read_bytes(path, error=UsageError, largest=LARGEST_CONFIG)
    path = called or path
    try:
        text = content.decode("utf-8-sig")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no valid UTF-8 at byte {error.start}", hint="save it as UTF-8") from None
    except RecursionError:
        raise UsageError(f"{path}: is nested too deeply", hint="is this the right file?") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UsageError(f"{path}{line}: no valid YAML: {problem}", hint="correct the file at this line") from None
    if node is None:
        return Document({}, str(path))
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{path}: is not a mapping of keys to values", hint="write it like 'budget: 80%'")
    lines: dict[tuple[str | int, ...], int] = {}
    values = _value(node, (), str(path), lines, set())
    return Document(values, str(path), lines)


def in_yaml(value: object) -> str:
    """Return a value as YAML on one line, for a place after a key."""
    import yaml

    text = yaml.safe_dump(value, allow_unicode=True, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("...\n").rstrip("\n")


def _value(
    node: yaml.Node, path: tuple[str | int, ...], source: str, lines: dict[tuple[str | int, ...], int], seen: set[int]
) -> Any:
    """Return the value of a YAML node, read strictly.

    Repeated keys and aliases are errors, and `010` is not 8.
    """
    import yaml

    line = node.start_mark.line + 1
    if path:
        lines[path] = line
    if isinstance(node, yaml.ScalarNode):
        return scalar(node.value) if node.style is None else node.value
    if id(node) in seen:
        raise UsageError(f"{source}:{line}: YAML aliases are not supported", hint="write the value out")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, i), source, lines, seen) for i, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        key_line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise UsageError(f"{source}:{key_line}: a key must be a plain name", hint="correct the file at this line")
        if key in values:
            raise UsageError(f"{source}:{key_line}: {key!r} is given twice", hint="keep one of the two")
        values[key] = _value(value_node, (*path, key), source, lines, seen)
        lines[(*path, key)] = key_line
    return values


_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_NUMBER = re.compile(r"[-+]?(0|[1-9]\d*(?:_\d+)*)(\.\d+)?([eE][-+]?\d+)?")


def scalar(text: str) -> Any:
    """Return the value of a plain YAML scalar.

    The value is a decimal number, true, false or null; other scalars are text.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > 300:
        return text
    return int(text) if match[2] is None and match[3] is None else float(text)
