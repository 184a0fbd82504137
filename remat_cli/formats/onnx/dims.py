"""Binding of symbolic dimensions, so that every input size is known.

Shape inference needs all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.onnx.expressions import expression
from remat_cli.formats.onnx.given_values import fitted, shapes_of
from remat_cli.formats.onnx.load import FOLD_LIMIT
from remat_cli.formats.onnx.values import TensorType, ValueType, checked, shape_text, value_type
from remat_cli.formats.reader import ALL_OTHER_DIMS, ReadOptions, UnknownDim
from remat_cli.settings import Setting, Wording

if TYPE_CHECKING:
    import onnx

    from remat_cli.formats.onnx.values import Array

# A declared dimension: a size, a symbol or an expression of symbols, or None without a name.
Dimension = int | str | None

_Shapes = Mapping[str, Sequence[Dimension] | None]

# Names that exporters write for unknown sizes; two of them need not be equal.
_NAMELESS = frozenset(("", "?", "-1", "None"))
# tf2onnx counts these; users can give one by its name, but it names no other size.
_COUNTED = re.compile(r"unk__\d+")


@dataclass(frozen=True)
class BoundInputs:
    """The graph inputs with their sizes.

    Attributes:
        types: type of each input by name, in the order of the file.
        dims: value of every symbol and expression that the inputs name.
        data: elements of the inputs that are given a value.
    """

    types: Mapping[str, ValueType]
    dims: Mapping[str, int]
    data: Mapping[str, Array]


def bind_inputs(inputs: Sequence[onnx.ValueInfoProto], options: ReadOptions) -> BoundInputs:
    """Give every dimension of the graph inputs a size.

    It comes from the file, `options.dims` or `options.input_shapes`. An expression such as "2*seq" follows from its
    symbols. Placeholders such as "?" are sizes of their own.

    Args:
        inputs: the graph inputs that are not initializers.
        options: sizes by symbol, shapes and values by input; for a sequence, the shape of all its elements taken
            together.

    Raises:
        UsageError: a symbol has no value (all are listed, with their places), a symbol or input is unknown, a shape
            contradicts the file or a symbol's value, or an expression is no size.
        GraphError: the file has a negative dimension or an unknown element type.
    """
    declared = {value.name: _declared_shape(value.type) for value in inputs}
    options = _with_shapes_of_values(options, declared)
    _check_known_names(declared, options)
    dims = dict(options.dims)
    for name, size in dims.items():
        if size < 0:
            raise UsageError(f"dimension {name!r} is bound to {size}", hint="use a size of 0 or more")
    rest = dims.pop(ALL_OTHER_DIMS, None)
    for name, shape in options.input_shapes.items():
        _match(name, declared[name], shape, dims)
    shapes = {name: options.input_shapes.get(name, declared[name]) for name in declared}
    if rest is not None:
        dims = {**dict.fromkeys(_places(shapes, dims), rest), **dims}
    dims |= _computed(declared, dims)
    _check_all_bound(shapes, dims)
    types = {value.name: _bound_type(value, dims, options) for value in inputs}
    data = {name: _small(name, fitted(name, value, types.get(name))) for name, value in options.values.items()}
    return BoundInputs(types, {name: size for name, size in dims.items() if not _COUNTED.fullmatch(name)}, data)


def _with_shapes_of_values(options: ReadOptions, declared: _Shapes) -> ReadOptions:
    """Add the shapes of given arrays to the options."""
    for name in options.values:
        if name not in declared:
            hint = _one_of(name, declared, "its inputs are")
            raise UsageError(f"a value is given for {name!r}, and the model has no such input", hint=hint)
    return replace(options, input_shapes={**shapes_of(options.values), **options.input_shapes})


def _small(name: str, data: Array) -> Array:
    if data.size > FOLD_LIMIT:
        raise UsageError(
            f"the value of input {name!r} has {data.size:,} elements: shapes depend on at most {FOLD_LIMIT:,}",
            hint=("give its shape alone: ", Setting("input_shapes", {name: tuple(data.shape)})),
        )
    return data


def _declared_shape(proto: onnx.TypeProto) -> tuple[Dimension, ...] | None:
    """Return the dimensions of a tensor; None if their number is unknown."""
    kind = proto.WhichOneof("value")
    if kind == "optional_type":
        return _declared_shape(proto.optional_type.elem_type)
    if kind != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    return tuple(_dimension(dim) for dim in proto.tensor_type.shape.dim)


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> Dimension:
    if dim.WhichOneof("value") == "dim_param":
        name: str = dim.dim_param
        written = expression(name)
        if name.strip() in _NAMELESS:
            return None
        return name if written is None or written.symbols else written.size({})
    return dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value != -1 else None


def _check_known_names(declared: _Shapes, options: ReadOptions) -> None:
    places = _places(declared, {})
    expressions = set(_expressions(declared))
    for name in options.dims:
        if name not in places and name not in expressions and name != ALL_OTHER_DIMS:
            what = f"the model's inputs have no symbolic dimension {name!r}"
            raise UnknownDim(what, name, hint=_symbol_hint(name, places, declared))
    for name in options.input_shapes:
        if name not in declared:
            raise UsageError(f"the model has no input {name!r}", hint=_one_of(name, declared, "its inputs are"))


def _symbols(dim: Dimension, dims: Mapping[str, int]) -> tuple[str, ...]:
    """Return the symbols in a dimension.

    A dimension with a size as a whole is one symbol.
    """
    if not isinstance(dim, str):
        return ()
    written = None if dim in dims else expression(dim)
    return (dim,) if written is None else written.symbols


def _expressions(shapes: _Shapes) -> Iterator[str]:
    """Yield the dimensions that are expressions of symbols."""
    for shape in shapes.values():
        yield from (dim for dim in shape or () if isinstance(dim, str) and expression(dim) is not None)


def _computed(declared: _Shapes, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the expressions with known symbols.

    Raises:
        UsageError: an expression is given another size, or is no size.
    """
    sizes: dict[str, int] = {}
    for text in _expressions(declared):
        written = expression(text)
        if written is None or not all(symbol in dims for symbol in written.symbols):
            continue
        size = written.size(dims)
        where = " and ".join(f"{symbol} is {dims[symbol]}" for symbol in written.symbols)
        if size is None:
            raise UsageError(
                f"dimension {text!r} of the inputs is no size where {where}: it must be a whole number, 0 or more",
                hint=("change ", Setting("dims"), " or ", Setting("input_shapes")),
            )
        if dims.get(text, size) != size:
            raise UsageError(
                f"dimension {text!r} is given as {dims[text]}, but it is {size} where {where}",
                hint=("it follows from its symbols; correct ", Setting("dims"), " or ", Setting("input_shapes")),
            )
        sizes[text] = size
    return sizes


def _places(shapes: _Shapes, dims: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the places of each symbol, in the order of the file.

    Expressions without a size as a whole count, too.
    """
    places: dict[str, list[str]] = {}
    for name, shape in shapes.items():
        for axis, dim in enumerate(shape or ()):
            for symbol in _symbols(dim, dims):
                inside = f": {dim}" if dim != symbol else ""
                places.setdefault(symbol, []).append(f"input {name!r}, axis {axis}{inside}")
    return places


def _symbol_hint(name: str, places: Mapping[str, list[str]], declared: _Shapes) -> Wording:
    nameless = _nameless(declared)
    if nameless and (not places or name in _NAMELESS):
        return ("sizes without a name are given by ", Setting("input_shapes", nameless))
    if not places:
        return (
            "all its dimensions are fixed: leave ",
            Setting("dims"),
            " out, or export the model with a symbolic one",
        )
    return _one_of(name, places, "its symbols are")


def _nameless(shapes: _Shapes) -> dict[str, tuple[int, ...]]:
    """Return example shapes of the inputs with nameless sizes."""
    return {
        name: (8, 128) if shape is None else _example(shape)
        for name, shape in shapes.items()
        if shape is None or None in shape
    }


def _one_of(name: str, known: Iterable[str], introduction: str) -> str:
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}{introduction} {', '.join(names) or 'none'}"


def _match(name: str, declared: tuple[Dimension, ...] | None, shape: tuple[int, ...], dims: dict[str, int]) -> None:
    """Check a given shape against the file, and bind its symbols."""
    if any(size < 0 for size in shape):
        raise UsageError(f"shape {shape_text(shape)} of input {name!r} has a negative size", hint="use 0 or more")
    if declared is None:
        return
    text = shape_text(tuple("?" if dim is None else dim for dim in declared))
    if len(shape) != len(declared):
        raise UsageError(
            f"input {name!r} has {len(declared)} dimensions, {text}, but the given shape has {len(shape)}",
            hint=(f"give all {len(declared)} sizes, such as ", Setting("input_shapes", {name: _example(declared)})),
        )
    for axis, (dim, size) in enumerate(zip(declared, shape, strict=True)):
        if isinstance(dim, int) and dim >= 0 and dim != size:
            raise UsageError(
                f"axis {axis} of input {name!r} is fixed to {dim} in the file, but given as {size}",
                hint=f"the declared shape is {text}; to change a fixed size, export the model again",
            )
        if isinstance(dim, str) and not _COUNTED.fullmatch(dim) and dims.setdefault(dim, size) != size:
            raise UsageError(
                f"the shape given for input {name!r} makes {dim!r} {size}, but it is {dims[dim]} elsewhere",
                hint=("one symbol has one value; correct ", Setting("dims"), " or ", Setting("input_shapes")),
            )


def _example(shape: Sequence[Dimension]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) and dim >= 0 else 8 for dim in shape)


def _check_all_bound(shapes: _Shapes, dims: Mapping[str, int]) -> None:
    unbound = {symbol: where for symbol, where in _places(shapes, dims).items() if symbol not in dims}
    nameless = _nameless(shapes)
    if not unbound and not nameless:
        return
    lines = [f"{symbol} ({'; '.join(where)})" for symbol, where in unbound.items()]
    for name in nameless:
        shape = shapes[name]
        if shape is None:
            lines.append(f"the shape of input {name!r}")
        else:
            lines.extend(f"input {name!r}, axis {axis} (no name)" for axis, dim in enumerate(shape) if dim is None)
    remedies: list[str | Setting] = ["bind them: "]
    # A given shape binds its symbols, too.
    rest = _places({name: shape for name, shape in shapes.items() if name not in nameless}, dims)
    if named := [symbol for symbol in unbound if symbol in rest]:
        remedies += [Setting("dims", dict.fromkeys(named, 8)), " "]
    if nameless:
        remedies += [Setting("input_shapes", nameless), " "]
    raise UsageError(f"these sizes are not known: {', '.join(lines)}", hint=tuple(remedies[:-1]))


def _bound_type(value: onnx.ValueInfoProto, dims: Mapping[str, int], options: ReadOptions) -> ValueType:
    where = f"input {value.name!r}"
    given = options.input_shapes.get(value.name)
    declared = value_type(_without_shape(value.type) if given is not None else value.type, dims, where)
    if declared is None:
        raise GraphError(f"{where} is neither a tensor nor a sequence of tensors", hint="such inputs cannot be sized")
    if given is None:
        return declared
    whole = checked(TensorType(declared.element, given), where)
    return whole if isinstance(declared, TensorType) else replace(declared, total_bytes=whole.bytes)


def _without_shape(proto: onnx.TypeProto) -> onnx.TypeProto:
    bare = type(proto)()
    bare.CopyFrom(proto)
    tensor = bare.optional_type.elem_type.tensor_type if bare.HasField("optional_type") else bare.tensor_type
    if bare.HasField("tensor_type") or bare.HasField("optional_type"):
        tensor.ClearField("shape")
    return bare
