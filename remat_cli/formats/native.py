"""The native graph format, `remat.graph/1`: reading, writing, and the hash that ties a schedule to its graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from hashlib import sha256
from itertools import islice
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

_KINDS_OF_GRAPH = {str(kind): kind for kind in Kind}
_TIME_UNITS = {unit: unit for unit in TIME_UNITS}
_PHASES = {str(phase): phase for phase in Phase}


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
        document: the parsed file.
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
    tensors = [_tensor(item, f"{where}: tensors[{i}]", unknown) for i, item in enumerate(top["tensors"])]
    ops = [_op(item, f"{where}: ops[{i}]", unknown) for i, item in enumerate(top["ops"])]
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


def _tensor(item: Any, where: str, unknown: dict[str, str]) -> Tensor:
    values = _fields(item, _TENSOR_FIELDS, where, unknown)
    if values["shape"] is not None:
        values["shape"] = tuple(values["shape"])
    return Tensor(**values)


def _op(item: Any, where: str, unknown: dict[str, str]) -> Op:
    values = _fields(item, _OP_FIELDS, where, unknown)
    # An operand that is read twice (a square, say) is one tensor in memory.
    values["inputs"] = tuple(dict.fromkeys(values["inputs"]))
    values["outputs"] = tuple(values["outputs"])
    for name in ("saves", "grad_inputs"):
        if values[name] is not None:
            values[name] = tuple(dict.fromkeys(values[name]))
    values["phase"] = _choice(values["phase"], _PHASES, f"{where}.phase")
    return Op(**values)


def to_document(graph: Graph) -> dict[str, Any]:
    """Return `graph` as the JSON document of the native format; fields that hold their default are left out."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "kind": str(graph.kind),
        "tensors": [_written(tensor, _TENSOR_FIELDS) for tensor in graph.tensors.values()],
        "ops": [_written(op, _OP_FIELDS) for op in graph.ops],
        "outputs": list(graph.outputs),
    }
    return document | _written(graph, {name: _GRAPH_FIELDS[name] for name in ("name", "time_unit", "resident_bytes")})


def _written(item: Tensor | Op | Graph, known: Mapping[str, _Field]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name, field in known.items():
        value = getattr(item, name)
        if value != field.default:
            written[name] = list(value) if isinstance(value, tuple) else value
    return written


def canonical_json(document: Mapping[str, Any]) -> bytes:
    """Return the document as UTF-8 with sorted keys and no white space: the bytes that are hashed and written."""
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")


def graph_bytes(graph: Graph) -> bytes:
    """Return the file that `remat convert` writes for `graph`."""
    return canonical_json(to_document(graph))


@lru_cache(maxsize=4)  # whoever verifies, plans and reports asks for it again: seconds, for 100,000 ops
def graph_sha256(graph: Graph) -> str:
    """Return the hash that ties a schedule to its graph: of the native file without `module` and `source`."""
    document = to_document(graph)
    for op in document["ops"]:
        for name in _FOR_PEOPLE:
            op.pop(name, None)
    return sha256(canonical_json(document)).hexdigest()
