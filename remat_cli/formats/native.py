"""The native graph format, `remat.graph/1`: reading, writing, and the hash that ties a schedule to its graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from hashlib import sha256
from itertools import compress, islice
from operator import attrgetter, ne
from sys import intern
from typing import Any, TypeVar

from remat_cli.core.graph import TIME_UNITS, Graph, Kind, Op, Phase, Tensor, build_graph
from remat_cli.errors import GraphError
from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.formats.source import Source

Choice = TypeVar("Choice")

FORMAT = "remat.graph/1"
# At most so many unknown fields are named.
_MOST_TOLD = 10

_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of the format: its kind of value, and its default."""

    kind: str
    default: Any = _REQUIRED


_GRAPH_FIELDS: Mapping[str, _Field] = {
    "format": _Field("text"),
    "name": _Field("text", "graph"),
    "kind": _Field("text"),
    "time_unit": _Field("text", "unit"),
    "resident_bytes": _Field("size", 0),
    "tensors": _Field("list"),
    "ops": _Field("list"),
    "outputs": _Field("names", None),
}

# What an annotation of a field of `Tensor` or `Op` is in the file.
_KIND_OF = {
    "str": "text",
    "Phase": "text",
    "int": "size",
    "bool": "truth",
    "tuple[str, ...]": "names",
    "tuple[int, ...]": "sizes",
}


def _fields_of(cls: type[Tensor | Op]) -> dict[str, _Field]:
    """Return the fields of `Tensor` or `Op` as the format has them."""
    defaults = {item: _REQUIRED if item.default is MISSING else item.default for item in fields(cls)}
    return {
        item.name: _Field(_KIND_OF[str(item.type).removesuffix(" | None")], default)
        for item, default in defaults.items()
    }


_TENSOR_FIELDS = _fields_of(Tensor)
_OP_FIELDS = _fields_of(Op) | {"type": _Field("text", "")}
del _OP_FIELDS["grad_flops"]  # the file has what became of it: `grad_time`
# The place in the user's code is left out of the hash: adding a comment there must not change it.
_FOR_PEOPLE = ("module", "source")
_HASHED_OP_FIELDS = {name: field for name, field in _OP_FIELDS.items() if name not in _FOR_PEOPLE}
# Tensors and ops are written in lots of so many: large enough for speed, and small beside a graph of a million ops.
_LOT = 10_000

_KINDS_OF_GRAPH = {str(kind): kind for kind in Kind}
_TIME_UNITS = {unit: unit for unit in TIME_UNITS}
_PHASES = {str(phase): phase for phase in Phase}


_TEXT = {str}


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str), "text"),
    "size": (_is_size, "a whole number, 0 or more"),
    "truth": (lambda value: isinstance(value, bool), "true or false"),
    "list": (lambda value: isinstance(value, list), "a list"),
    "names": (lambda value: isinstance(value, list) and set(map(type, value)) <= {str}, "a list of names"),
    "sizes": (lambda value: isinstance(value, list) and all(map(_is_size, value)), "a list of whole numbers"),
}


class _AsUsual:
    """Takes the values of most objects of a file at once: those with no null, nothing unknown and nothing wrong."""

    def __init__(self, cls: type[Tensor | Op], known: Mapping[str, _Field]) -> None:
        defaults = {item.name: None if item.name not in known else known[item.name].default for item in fields(cls)}
        self._defaults: dict[str, Any] = defaults
        self._checks = {name: _KINDS[field.kind][0] for name, field in known.items()}
        self._required = {name for name, default in defaults.items() if default is _REQUIRED}
        self._kinds = {name: field.kind for name, field in known.items()}
        # A million objects have some dozen forms: the names of their fields, and the types of the values. Of a form
        # that held before, only what its types leave open is looked at: the fields of numbers, of names and of sizes.
        self._forms: dict[tuple[object, ...], tuple[list[str], list[str], list[str]]] = {}

    def values(self, item: Any) -> dict[str, Any] | None:
        """Return all values in the order of the class's fields; None where `_fields` has to look."""
        if type(item) is not dict:
            return None
        form = (*item, *map(type, item.values()))
        left_open = self._forms.get(form)
        if left_open is None:
            if not self._holds(item):
                return None
            left_open = self._forms[form] = self._left_open(item)
        numbers, names, sizes = left_open
        for name in numbers:
            if item[name] < 0:
                return None
        for name in names:
            if not _TEXT.issuperset(map(type, item[name])):
                return None
        for name in sizes:
            if not all(map(_is_size, item[name])):
                return None
        return self._defaults | item

    def _holds(self, item: Mapping[str, Any]) -> bool:
        checks = self._checks
        known = all(name in checks and checks[name](value) for name, value in item.items())
        return known and self._required <= item.keys()

    def _left_open(self, item: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
        of_kind = {kind: [name for name in item if self._kinds[name] == kind] for kind in ("size", "names", "sizes")}
        return of_kind["size"], of_kind["names"], of_kind["sizes"]


_USUAL_TENSOR = _AsUsual(Tensor, _TENSOR_FIELDS)
_USUAL_OP = _AsUsual(Op, _OP_FIELDS)


def recognises(source: Source) -> bool:
    """Tell whether the file names this format, in any version."""
    label = source.document.get("format")
    return isinstance(label, str) and label.startswith("remat.graph/")


def read(source: Source, options: ReadOptions) -> Reading:
    """Read a graph in the native format; `options` have no bearing on it.

    Raises:
        GraphError: a field is missing or of the wrong type, a version is unknown, or the graph is not valid.
    """
    del options
    return from_document(source.document, str(source.path))


def from_document(document: Mapping[str, Any], where: str) -> Reading:
    """Build the graph that a JSON document describes.

    Args:
        document: the parsed file; its tensors and ops are let go of one by one, as large graphs are there only once.
        where: the file's name, for messages.

    Raises:
        GraphError: as `read`.
    """
    if document.get("format") != FORMAT:
        raise GraphError(
            f"{where}: unknown format version {document.get('format')!r}",
            hint=f"this version of remat reads {FORMAT!r}; convert the file, or use a newer remat",
        )
    unknown: dict[str, str] = {}
    top = _fields(document, _GRAPH_FIELDS, where, unknown)
    kind = _choice(top["kind"], _KINDS_OF_GRAPH, f"{where}: kind")
    time_unit = _choice(top["time_unit"], _TIME_UNITS, f"{where}: time_unit")
    tensors = [_tensor(item, i, where, unknown) for i, item in enumerate(_taken(top["tensors"]))]
    ops = [_op(item, i, where, unknown) for i, item in enumerate(_taken(top["ops"]))]
    try:
        graph = build_graph(
            name=top["name"],
            kind=kind,
            time_unit=time_unit,
            resident_bytes=top["resident_bytes"],
            tensors=tensors,
            ops=ops,
            outputs=top["outputs"],
        )
    except GraphError as error:
        raise GraphError(f"{where}: {error.message}", hint=error.remedy) from None
    return Reading(graph, notes=_unknown_notes(unknown))


def _taken(items: list[Any]) -> Iterator[Any]:
    """Yield the items of a list, which is empty in the end."""
    items.reverse()
    while items:
        yield items.pop()


def _unknown_notes(unknown: Mapping[str, str]) -> tuple[str, ...]:
    told = tuple(f"{place}: unknown field {name!r} is ignored" for name, place in islice(unknown.items(), _MOST_TOLD))
    rest = len(unknown) - len(told)
    return (*told, f"and {rest:,} more unknown fields") if rest else told


def _fields(item: Any, known: Mapping[str, _Field], where: str, unknown: dict[str, str]) -> dict[str, Any]:
    """Check one object of the file against its fields, and fill in the defaults."""
    if not isinstance(item, dict):
        raise GraphError(f"{where}: expected an object, found {_short(item)}", hint="put its fields in { }")
    values: dict[str, Any] = {}
    for name, field in known.items():
        value = item.get(name)
        if value is None:
            if field.default is _REQUIRED:
                raise GraphError(f"{where}: {name!r} is missing", hint=f"it must be {_KINDS[field.kind][1]}")
            values[name] = field.default
            continue
        holds, wanted = _KINDS[field.kind]
        if not holds(value):
            raise GraphError(f"{where}.{name}: {_short(value)} is not {wanted}", hint=f"write {wanted}")
        values[name] = value
    if len(item) > len(known) or not item.keys() <= known.keys():
        for name in sorted(item.keys() - known.keys()):
            unknown.setdefault(name, where)
    return values


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _choice(text: str, choices: Mapping[str, Choice], where: str) -> Choice:
    if text not in choices:
        raise GraphError(f"{where}: {text!r} is not known", hint=f"use one of {', '.join(choices)}")
    return choices[text]


def _tensor(item: Any, number: int, where: str, unknown: dict[str, str]) -> Tensor:
    values = _USUAL_TENSOR.values(item)
    if values is None:
        values = _fields(item, _TENSOR_FIELDS, f"{where}: tensors[{number}]", unknown)
    values["name"] = intern(values["name"])
    if values["shape"] is not None:
        values["shape"] = tuple(values["shape"])
    return Tensor(**values)


def _op(item: Any, number: int, where: str, unknown: dict[str, str]) -> Op:
    values = _USUAL_OP.values(item)
    if values is None:
        values = _fields(item, _OP_FIELDS, f"{where}: ops[{number}]", unknown)
    # A name is there once, however often it is read; an operand that is read twice (a square, say) is one tensor.
    values["inputs"] = tuple(dict.fromkeys(map(intern, values["inputs"])))
    values["outputs"] = tuple(map(intern, values["outputs"]))
    for name in ("saves", "grad_inputs"):
        if values[name] is not None:
            values[name] = tuple(dict.fromkeys(map(intern, values[name])))
    phase = _PHASES.get(values["phase"])
    values["phase"] = phase or _choice(values["phase"], _PHASES, f"{where}: ops[{number}].phase")
    return Op(**values)


def canonical_json(document: object) -> bytes:
    """Return the document as UTF-8 with sorted keys and no white space: the bytes that are hashed and written."""
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")


_in_order: Callable[[object], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def graph_bytes(graph: Graph) -> bytes:
    """Return the file that `remat convert` writes for `graph`."""
    return b"".join(_parts(graph, _OP_FIELDS))


@lru_cache(maxsize=4)  # whoever verifies, plans and reports asks for it again: seconds, for 100,000 ops
def graph_sha256(graph: Graph) -> str:
    """Return the hash that ties a schedule to its graph: of the native file without `module` and `source`."""
    digest = sha256()
    for part in _parts(graph, _HASHED_OP_FIELDS):
        digest.update(part)
    return digest.hexdigest()


def _parts(graph: Graph, op_fields: Mapping[str, _Field]) -> Iterator[bytes]:
    """Yield the canonical JSON of a graph part by part; fields that hold their default are left out."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "kind": str(graph.kind),
        "tensors": (tuple(graph.tensors.values()), _TENSOR_FIELDS),
        "ops": (graph.ops, op_fields),
        "outputs": graph.outputs,
        **next(_written([graph], {name: _GRAPH_FIELDS[name] for name in ("name", "time_unit", "resident_bytes")})),
    }
    for number, key in enumerate(sorted(document)):
        yield f'{"," if number else "{"}"{key}":'.encode()
        if key in ("tensors", "ops"):
            yield b"["
            yield from _lots(*document[key])
            yield b"]"
        else:
            yield canonical_json(document[key])
    yield b"}"


def _lots(items: Sequence[Tensor | Op], known: Mapping[str, _Field]) -> Iterator[bytes]:
    for start in range(0, len(items), _LOT):
        if start:
            yield b","
        # Their fields come in order, and hold no objects: to sort them would take a tenth longer.
        yield _in_order(list(_written(items[start : start + _LOT], known)))[1:-1].encode()


def _written(items: Iterable[Tensor | Op | Graph], known: Mapping[str, _Field]) -> Iterator[dict[str, Any]]:
    names = tuple(sorted(known))
    defaults = tuple(known[name].default for name in names)
    values_of = attrgetter(*names)
    for item in items:
        values = values_of(item)
        yield dict(compress(zip(names, values, strict=True), map(ne, values, defaults)))
