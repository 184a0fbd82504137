"""The native graph format, `remat.graph/1`: reading, writing, hashing.

The hash ties a schedule to its graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from sys import intern
from typing import Any, TypeVar

from remat_cli.core.graph import TIME_UNITS, Graph, Kind, Op, Phase, Residency, Tensor, build_graph
from remat_cli.errors import GraphError
from remat_cli.formats.native_compiled import UNWRITTEN, each_once, encoded, interned, ops_in, tensors_in
from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.formats.source import Source

Choice = TypeVar("Choice")
Item = TypeVar("Item")

FORMAT = "remat.graph/1"
# The largest number of unknown fields in notes.
_MOST_NOTES = 10

_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of the format: the kind of its value, and its default."""

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
    "residents": _Field("texts", None),
}

# The kind of a field's value in the file, by the annotation in `Tensor` or `Op`.
_KIND_OF = {
    "str": "text",
    "Phase": "text",
    "int": "size",
    "bool": "truth",
    "tuple[str, ...]": "names",
    "tuple[int, ...]": "sizes",
}


def _fields_of(cls: type[Tensor | Op]) -> dict[str, _Field]:
    """Return the fields of `Tensor` or `Op` in the format."""
    defaults = {item: _REQUIRED if item.default is MISSING else item.default for item in fields(cls)}
    return {
        item.name: _Field(_KIND_OF[str(item.type).removesuffix(" | None")], default)
        for item, default in defaults.items()
        if item.name not in UNWRITTEN
    }


_TENSOR_FIELDS = _fields_of(Tensor)
_OP_FIELDS = _fields_of(Op) | {"type": _Field("text", "")}
# Fields without effect on the hash: the place in the user's code, which a comment must not change, and fields that no
# op computes.
_NOT_HASHED = ("module", "source", "held")
# The number of tensors or ops to read and write at a time: enough for speed, and few compared with a graph of a million
# ops.
_LOT = 10_000

_KINDS_OF_GRAPH = {str(kind): kind for kind in Kind}
_TIME_UNITS = {unit: unit for unit in TIME_UNITS}
_PHASES = {str(phase): phase for phase in Phase}
_RESIDENCIES = {str(role): role for role in Residency}


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str), "text"),
    "size": (_is_size, "a whole number, 0 or more"),
    "truth": (lambda value: isinstance(value, bool), "true or false"),
    "list": (lambda value: isinstance(value, list), "a list"),
    "names": (lambda value: isinstance(value, list) and set(map(type, value)) <= {str}, "a list of names"),
    "sizes": (lambda value: isinstance(value, list) and all(map(_is_size, value)), "a list of whole numbers"),
    "texts": (
        lambda value: isinstance(value, dict) and all(isinstance(text, str) for text in value.values()),
        "an object of names",
    ),
}


def recognises(source: Source) -> bool:
    """Tell whether the file names this format, in any version."""
    label = source.document.get("format")
    return isinstance(label, str) and label.startswith("remat.graph/")


def read(source: Source, options: ReadOptions) -> Reading:
    """Read a graph in the native format; `options` have no effect.

    Raises:
        GraphError: a field is missing or of the wrong type, a version is unknown, or the graph is not valid.
    """
    del options
    return from_document(source.document, str(source.path))


def from_document(document: Mapping[str, Any], where: str) -> Reading:
    """Build the graph of a JSON document.

    Args:
        document: the parsed file; its tensors and ops are released one by one, so that a large graph is in memory only
            once.
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
    tensors = _built(top["tensors"], tensors_in, lambda item, place: _tensor(item, place, where, unknown))
    ops = _built(top["ops"], ops_in, lambda item, place: _op(item, place, where, unknown))
    if top["residents"]:
        tensors = _with_residents(tensors, top["residents"], f"{where}: residents")
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


def _built(
    items: list[Any], at_once: Callable[[list[Any]], list[Item] | None], one: Callable[[Any, int], Item]
) -> list[Item]:
    """Build an item from each object of a list, which is emptied.

    Args:
        items: the objects.
        at_once: builds a whole lot; returns None if any object is unusual or wrong.
        one: builds the item at a place in the list, or raises the error for it.
    """
    built: list[Item] = []
    items.reverse()
    while items:
        lot = items[: -_LOT - 1 : -1]
        del items[-_LOT:]
        built += at_once(lot) or [one(item, place) for place, item in enumerate(lot, len(built))]
    return built


def _with_residents(tensors: Sequence[Tensor], roles: Mapping[str, str], where: str) -> list[Tensor]:
    """Return the tensors with their role where they are residents."""
    known = {name: _choice(role, _RESIDENCIES, f"{where}.{name}") for name, role in roles.items()}
    for name in known.keys() - {tensor.name for tensor in tensors}:
        raise GraphError(f"{where}: {name!r} is not in the graph", hint="list it among the tensors, or leave it out")
    return [replace(each, resident=known[each.name]) if each.name in known else each for each in tensors]


def _unknown_notes(unknown: Mapping[str, str]) -> tuple[str, ...]:
    notes = tuple(f"{place}: unknown field {name!r} is ignored" for name, place in islice(unknown.items(), _MOST_NOTES))
    rest = len(unknown) - len(notes)
    return (*notes, f"and {rest:,} more unknown fields") if rest else notes


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
    values = _fields(item, _TENSOR_FIELDS, f"{where}: tensors[{number}]", unknown)
    values["name"] = intern(values["name"])
    if values["shape"] is not None:
        values["shape"] = tuple(values["shape"])
    return Tensor(**values)


def _op(item: Any, number: int, where: str, unknown: dict[str, str]) -> Op:
    values = _fields(item, _OP_FIELDS, f"{where}: ops[{number}]", unknown)
    values["inputs"], values["outputs"] = each_once(values["inputs"]), interned(values["outputs"])
    for name in ("saves", "grad_inputs", "writes"):
        if values[name] is not None:
            values[name] = each_once(values[name])
    values["phase"] = _choice(values["phase"], _PHASES, f"{where}: ops[{number}].phase")
    return Op(**values)


def canonical_json(document: object) -> bytes:
    """Write the document as canonical JSON in UTF-8.

    Keys are sorted, and there is no white space: these bytes are hashed and written.
    """
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")


def graph_bytes(graph: Graph) -> bytes:
    """Return the file that `remat convert` writes for `graph`."""
    return b"".join(_parts(graph))


@lru_cache(maxsize=4)  # verifying, planning and reporting all ask for the hash, which takes seconds for 100,000 ops
def graph_sha256(graph: Graph) -> str:
    """Return the hash that ties a schedule to its graph.

    It is that of the native file without `_NOT_HASHED`.
    """
    digest = sha256()
    for part in _parts(graph, left_out=_NOT_HASHED):
        digest.update(part)
    return digest.hexdigest()


def _parts(graph: Graph, left_out: Collection[str] = ()) -> Iterator[bytes]:
    """Yield the canonical JSON of a graph part by part.

    Fields with their default are left out.

    Args:
        graph: the graph to write.
        left_out: fields of tensors and ops to leave out in any case.
    """
    document: dict[str, Any] = {
        "format": FORMAT,
        "kind": str(graph.kind),
        "tensors": _lots(tuple(graph.tensors.values()), left_out),
        "ops": _lots(graph.ops, left_out),
        "outputs": graph.outputs,
    }
    if graph.residents:
        document["residents"] = {name: str(graph.tensors[name].resident) for name in graph.residents}
    for name in ("name", "time_unit", "resident_bytes"):
        if getattr(graph, name) != _GRAPH_FIELDS[name].default:
            document[name] = getattr(graph, name)
    for number, key in enumerate(sorted(document)):
        yield f'{"," if number else "{"}"{key}":'.encode()
        if key in ("tensors", "ops"):
            yield b"["
            yield from document[key]
            yield b"]"
        else:
            yield canonical_json(document[key])
    yield b"}"


def _lots(items: Sequence[Tensor | Op], left_out: Collection[str] = ()) -> Iterator[bytes]:
    for start in range(0, len(items), _LOT):
        if start:
            yield b","
        yield encoded(items[start : start + _LOT], left_out)[1:-1]
