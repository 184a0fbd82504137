"""Tensors and ops of the native format, read and written by pydantic-core.

Compiled code takes half the time. Everything it reads is right. `native.py` reads again whatever it refuses, field by
field, to name the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from sys import intern
from typing import Any

from pydantic_core import SchemaSerializer, SchemaValidator, ValidationError
from pydantic_core import core_schema as of

from remat_cli.core.graph import Op, Phase, Residency, Tensor

# Not in the file's tensors and ops: it has `grad_time` instead, and `residents` beside them.
UNWRITTEN = ("grad_flops", "resident")
_SIZE, _TEXT = of.int_schema(ge=0, strict=True), of.str_schema(strict=True)
_NAMES = of.tuple_schema([_TEXT], variadic_item_index=0)
# The schema of a field in the file, by the annotation in `Tensor` or `Op`.
_SCHEMA_OF: Mapping[str, of.CoreSchema] = {
    "str": _TEXT,
    "Phase": of.enum_schema(Phase, list(Phase)),
    "Residency": of.enum_schema(Residency, list(Residency)),
    "int": _SIZE,
    "bool": of.bool_schema(strict=True),
    "tuple[str, ...]": _NAMES,
    "tuple[int, ...]": of.tuple_schema([_SIZE], variadic_item_index=0),
}


def interned(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names; each is stored once, however often it is read."""
    return tuple(map(intern, names))


def each_once(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without repetition.

    An operand that is read twice (a square, say) is one tensor.
    """
    return tuple(dict.fromkeys(map(intern, names)))


# Conversions of some fields' values.
_TAKEN_OVER: Mapping[str, Callable[[Any], Any]] = {
    "name": intern,
    "inputs": each_once,
    "outputs": interned,
    "saves": each_once,
    "grad_inputs": each_once,
    "writes": each_once,
}


def tensors_in(items: list[Any]) -> list[Tensor] | None:
    """Return the tensors of a file's objects; None if any is unusual."""
    return _read(Tensor, items)


def ops_in(items: list[Any]) -> list[Op] | None:
    """Return the ops of a file's objects; None if any is unusual."""
    return _read(Op, items)


def _read(cls: Any, items: list[Any]) -> list[Any] | None:
    try:
        built: list[Any] = _reader(cls).validate_python(items)
    except ValidationError:
        return None
    return built


def encoded(items: Sequence[Tensor | Op], left_out: Collection[str] = ()) -> bytes:
    """Write tensors or ops as a JSON list.

    Keys are sorted, there is no white space, and fields with their default are left out.

    Args:
        items: all tensors, or all ops; at least one.
        left_out: other fields to leave out.
    """
    cls: Any = type(items[0])
    return _writer(cls, frozenset(left_out)).to_json(list(items), exclude_defaults=True)


@cache
def _reader(cls: Any) -> SchemaValidator:
    return SchemaValidator(of.list_schema(_object(cls), fail_fast=True))


@cache
def _writer(cls: Any, left_out: frozenset[str]) -> SchemaSerializer:
    return SchemaSerializer(of.list_schema(_object(cls, left_out)))


def _object(cls: type[Tensor | Op], left_out: Collection[str] = ()) -> of.CoreSchema:
    """Return the schema of a tensor or an op in the file.

    Fields in `left_out` are read, but not written.
    """
    described = []
    for item in sorted(fields(cls), key=lambda item: item.name):
        annotation = str(item.type)
        schema = _SCHEMA_OF[annotation.removesuffix(" | None")]
        if item.name in _TAKEN_OVER:
            schema = of.no_info_after_validator_function(_TAKEN_OVER[item.name], schema)
        if annotation.endswith(" | None"):
            schema = of.nullable_schema(schema)
        default = "" if item.name == "type" else item.default
        if default is not MISSING:
            schema = of.with_default_schema(schema, default=default)
        described.append(
            of.dataclass_field(
                item.name,
                schema,
                init=item.name not in UNWRITTEN,
                serialization_exclude=item.name in UNWRITTEN or item.name in left_out,
            )
        )
    names = [field["name"] for field in described]
    arguments = of.dataclass_args_schema(cls.__name__, described, extra_behavior="forbid")
    return of.dataclass_schema(cls, arguments, names, slots=True)
