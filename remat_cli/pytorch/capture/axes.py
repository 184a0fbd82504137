"""Independent rows of torch's ops: the dimensions that carry rows through, and those that are summed over.

A region in parts needs them: each part works on some of the rows. Unlisted ops, random ops and ops with effects have no
rows; they bound a region. DTensor has similar rules, but needs a process group. These rules also say how an op's
constants change with the rows (the shape of a view), and know the kernels of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import fx

from remat_cli.pytorch.capture.op_properties import properties_of
from remat_cli.pytorch.capture.ops import arguments, draws, has_effects, is_item, nodes_in, numbered, short_name
from remat_cli.pytorch.unstable.ops import schema_of
from remat_cli.splitting import SUM, Axis, Part

# What a rule yields: the rows, the operands that have them (by argument, or its place in a list of tensors), and for
# each result, by its place, the dimension with the rows or SUM.
_Place = str | tuple[str, int]
_Rule = tuple[int, Mapping[_Place, Part], Mapping[int, Part | None]]


@dataclass(frozen=True)
class _Call:
    """An op with its arguments by name."""

    node: fx.Node
    given: Mapping[str, Any]
    results: tuple[torch.Tensor | None, ...]

    def shape(self, name: str) -> tuple[int, ...]:
        return _shape(self.given.get(name))

    def has(self, name: str) -> bool:
        return isinstance(self.given.get(name), fx.Node)

    def dim(self, name: str, rank: int) -> int:
        return int(self.given[name]) % max(1, rank)

    def along(self, rows: int, reads: Mapping[_Place, int], makes: Mapping[int, int | None]) -> _Rule:
        """Return rows of single entries; operands that are not given are left out."""
        read = {
            place: Part(dim)
            for place, dim in reads.items()
            if isinstance(self.given.get(place) if isinstance(place, str) else self.given[place[0]][place[1]], fx.Node)
        }
        return rows, read, {place: SUM if dim is None else Part(dim) for place, dim in makes.items()}


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.meta["val"].shape) if isinstance(value, fx.Node) else ()


def axes_of(node: fx.Node) -> tuple[Axis, ...]:
    """Return the rows that an op can work on one by one; none where each result depends on all it reads."""
    rule = rule_of(node)
    if rule is None or draws(node) or (has_effects(node) and not is_item(node)):
        return ()
    value = node.meta.get("val")
    results = tuple(value) if isinstance(value, tuple | list) else (value,)
    call = _Call(node, {name: numbered(given) for name, given in arguments(node).items()}, results)
    axes = (_named(call, *one) for one in rule(call))
    return tuple(axis for axis in axes if axis is not None and axis.rows > 1)


def rule_of(node: fx.Node) -> Callable[[_Call], Iterator[_Rule]] | None:
    """Return the rule for an op; None where there is none."""
    name = _name(node)
    if name in _RULES:
        return _RULES[name]
    return _pointwise if torch.Tag.pointwise in getattr(node.target, "tags", ()) else None


def _name(node: fx.Node) -> str:
    return short_name(node).removeprefix("aten.")


def _named(call: _Call, rows: int, reads: Mapping[_Place, Part], makes: Mapping[int, Part | None]) -> Axis | None:
    """Return an axis with the names of values; None where an operand stands in two places with other roles."""
    roles: dict[str, Part | None] = {}
    for name, given in call.given.items():
        for place, operand in enumerate(nodes_in(given)):
            role = reads.get(name if isinstance(given, fx.Node) else (name, place))
            if not isinstance(operand.meta.get("val"), torch.Tensor):
                continue
            if roles.setdefault(operand.name, role) != role:
                return None
            shape = _shape(operand)
            if role is not None and (role.dim >= len(shape) or shape[role.dim] != rows * role.unit):
                return None
    results: dict[str, Part | None] = {}
    for name, place in _results(call.node):
        if place not in makes:
            return None
        results[name] = makes[place]
    return Axis(rows, {name: part for name, part in roles.items() if part is not None}, results)


def _results(node: fx.Node) -> list[tuple[str, int]]:
    """Return the names of an op's results, with their places."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return [(node.name, 0)]
    return [(user.name, int(user.args[1])) for user in node.users if is_item(user)]  # type: ignore[arg-type]


def _pointwise(call: _Call) -> Iterator[_Rule]:
    (result,) = call.results[:1]
    if result is None or len(call.results) != 1:
        return
    yield from _broadcast(call, tuple(result.shape))


def _broadcast(call: _Call, shape: tuple[int, ...], results: int = 1) -> Iterator[_Rule]:
    for dim, rows in enumerate(shape):
        reads: dict[_Place, int] = {}
        for name, given in call.given.items():
            for place, operand in enumerate(nodes_in(given)):
                own = dim - len(shape) + len(_shape(operand))
                if own >= 0 and _shape(operand)[own] == rows:
                    reads[name if isinstance(given, fx.Node) else (name, place)] = own
        yield call.along(rows, reads, dict.fromkeys(range(results), dim))


def _view(call: _Call) -> Iterator[_Rule]:
    before, after = call.shape("self"), _result_shape(call)
    starts = {}
    start = 1
    for dim, size in enumerate(before):
        if size != 1:
            starts[start] = dim
        start *= size
    start = 1
    for dim, size in enumerate(after):
        if size != 1 and start in starts:
            own = starts[start]
            rows = gcd(before[own], size)
            yield rows, {"self": Part(own, before[own] // rows)}, {0: Part(dim, size // rows)}
        start *= size


def _result_shape(call: _Call, place: int = 0) -> tuple[int, ...]:
    value = call.results[place]
    return () if value is None else tuple(value.shape)


def _moved(order: Callable[[_Call, int], list[int]]) -> Callable[[_Call], Iterator[_Rule]]:
    def rule(call: _Call) -> Iterator[_Rule]:
        shape = call.shape("self")
        for dim, own in enumerate(order(call, len(shape))):
            yield call.along(shape[own], {"self": own}, {0: dim})

    return rule


def _transposed(call: _Call, rank: int) -> list[int]:
    order = list(range(rank))
    one, other = call.dim("dim0", rank), call.dim("dim1", rank)
    order[one], order[other] = order[other], order[one]
    return order


def _unsqueezed(call: _Call) -> Iterator[_Rule]:
    shape = call.shape("self")
    place = int(call.given["dim"]) % (len(shape) + 1)
    for dim, rows in enumerate(shape):
        yield call.along(rows, {"self": dim}, {0: dim + (dim >= place)})


def _without(*names: str, first: str = "self", keeps: bool = True, results: int = 1, gone: str = "dim") -> Any:
    """Return the rule of an op along one dimension: all others are carried through by all operands alike."""

    def rule(call: _Call) -> Iterator[_Rule]:
        shape = call.shape(first)
        along = call.dim(gone, len(shape))
        for dim, rows in enumerate(shape):
            if dim != along:
                out = dim if keeps else dim - (dim > along)
                operands: dict[_Place, int] = {first: dim, **dict.fromkeys(names, dim)}
                yield call.along(rows, operands, dict.fromkeys(range(max(results, len(call.results))), out))

    return rule


def _joined(call: _Call) -> Iterator[_Rule]:
    operands = list(nodes_in(call.given["tensors"]))
    rank = len(_result_shape(call))
    stacked = short_name(call.node) == "aten.stack"
    along = int(call.given.get("dim", 0)) % rank
    for dim, rows in enumerate(_result_shape(call)):
        if dim != along:
            own = dim - (stacked and dim > along)
            yield call.along(rows, {("tensors", place): own for place in range(len(operands))}, {0: dim})


def _padded(call: _Call) -> Iterator[_Rule]:
    shape, pad = call.shape("self"), call.given["pad"]
    for dim, rows in enumerate(shape[: len(shape) - len(pad) // 2]):
        yield call.along(rows, {"self": dim}, {0: dim})


def _mm(call: _Call) -> Iterator[_Rule]:
    (one, _), (_, other) = call.shape("self"), call.shape("mat2")
    yield call.along(one, {"self": 0}, {0: 0})
    yield call.along(other, {"mat2": 1}, {0: 1})
    yield call.along(call.shape("self")[1], {"self": 1, "mat2": 0}, {0: SUM})


def _addmm(call: _Call) -> Iterator[_Rule]:
    bias = call.shape("self")
    for dim, rows in enumerate(_result_shape(call)):
        operands: dict[_Place, int] = {("mat1", "mat2")[dim]: dim}
        own = dim - 2 + len(bias)
        if own >= 0 and bias[own] == rows:
            operands["self"] = own
        yield call.along(rows, operands, {0: dim})


def _bmm(call: _Call) -> Iterator[_Rule]:
    batch, one, inner = call.shape("self")
    yield call.along(batch, {"self": 0, "mat2": 0}, {0: 0})
    yield call.along(one, {"self": 1}, {0: 1})
    yield call.along(call.shape("mat2")[2], {"mat2": 2}, {0: 2})
    yield call.along(inner, {"self": 2, "mat2": 1}, {0: SUM})


def _reduced(sums: bool, results: int = 1) -> Callable[[_Call], Iterator[_Rule]]:
    """Return the rule of a reduction; sums split along reduced dimensions, as well."""

    def rule(call: _Call) -> Iterator[_Rule]:
        shape, dims = call.shape("self"), call.given.get("dim")
        dims = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
        gone = {dim % max(1, len(shape)) for dim in dims} or set(range(len(shape)))
        keeps = bool(call.given.get("keepdim", False))
        for dim, rows in enumerate(shape):
            if dim in gone and sums:
                yield call.along(rows, {"self": dim}, {0: SUM})
            elif dim not in gone:
                out = dim if keeps else dim - sum(other < dim for other in gone)
                yield call.along(rows, {"self": dim}, dict.fromkeys(range(max(results, len(call.results))), out))

    return rule


def _normed(call: _Call) -> Iterator[_Rule]:
    shape = call.shape("input")
    for dim, rows in enumerate(shape[: len(shape) - len(call.given["normalized_shape"])]):
        yield call.along(rows, {"input": dim}, dict.fromkeys(range(len(call.results)), dim))


def _normed_back(call: _Call) -> Iterator[_Rule]:
    shape = call.shape("input")
    for dim, rows in enumerate(shape[: len(shape) - len(call.given["normalized_shape"])]):
        operands: dict[_Place, int] = dict.fromkeys(("grad_out", "input", "mean", "rstd"), dim)
        yield call.along(rows, operands, {0: dim, 1: SUM, 2: SUM})


def _batch(*names: str, sums: tuple[int, ...] = ()) -> Callable[[_Call], Iterator[_Rule]]:
    """Return the rule of an op whose first dimension is a batch in these operands; results at `sums` are summed."""

    def rule(call: _Call) -> Iterator[_Rule]:
        if (rows := (call.shape(names[0]) or (0,))[0]) and len(call.shape(names[0])) > 3:
            makes = {place: SUM if place in sums else 0 for place in range(len(call.results))}
            yield call.along(rows, dict.fromkeys(names, 0), makes)

    return rule


def _group_norm(call: _Call) -> Iterator[_Rule]:
    yield call.along(call.shape("input")[0], {"input": 0}, {0: 0, 1: 0, 2: 0})


def _group_norm_back(call: _Call) -> Iterator[_Rule]:
    operands: dict[_Place, int] = dict.fromkeys(("grad_out", "input", "mean", "rstd"), 0)
    yield call.along(call.shape("input")[0], operands, {0: 0, 1: SUM, 2: SUM})


def _embedding(call: _Call) -> Iterator[_Rule]:
    for dim, rows in enumerate(call.shape("indices")):
        yield call.along(rows, {"indices": dim}, {0: dim})


def _embedding_back(call: _Call) -> Iterator[_Rule]:
    if not call.given["scale_grad_by_freq"]:
        for dim, rows in enumerate(call.shape("indices")):
            yield call.along(rows, {"grad_output": dim, "indices": dim}, {0: SUM})


def _nll(call: _Call) -> Iterator[_Rule]:
    if len(call.shape("self")) > 1 and call.given["reduction"] == 2:
        yield call.along(call.shape("self")[0], {"self": 0, "target": 0}, {0: SUM, 1: SUM})
    elif len(call.shape("self")) > 1 and call.given["reduction"] == 0:
        yield call.along(call.shape("self")[0], {"self": 0, "target": 0}, {0: 0, 1: SUM})


def _nll_back(call: _Call) -> Iterator[_Rule]:
    if len(call.shape("self")) > 1:
        operands: dict[_Place, int] = {"self": 0, "target": 0}
        if call.given["reduction"] == 0:
            operands["grad_output"] = 0
        yield call.along(call.shape("self")[0], operands, {0: 0})


def _loss(call: _Call) -> Iterator[_Rule]:
    """Yield the rows of a loss of two tensors of one shape: summed, or one for each entry."""
    if call.given.get("weight") is not None or call.given.get("pos_weight") is not None:
        return
    for dim, rows in enumerate(call.shape("self") if call.shape("self") == call.shape("target") else ()):
        if call.given["reduction"] == 2:
            yield call.along(rows, {"self": dim, "target": dim}, {0: SUM})
        elif call.given["reduction"] == 0:
            yield call.along(rows, {"self": dim, "target": dim}, {0: dim})


def _loss_back(call: _Call) -> Iterator[_Rule]:
    if call.given.get("weight") is not None or call.shape("self") != call.shape("target"):
        return
    for dim, rows in enumerate(call.shape("self") if call.given["reduction"] != 1 else ()):
        operands: dict[_Place, int] = {"self": dim, "target": dim}
        if call.shape("grad_output") == call.shape("self"):
            operands["grad_output"] = dim
        yield call.along(rows, operands, {0: dim})


def _attention(*names: str, results: int) -> Callable[[_Call], Iterator[_Rule]]:
    """Return the rule of attention on [batch, heads, tokens, width]: batches and heads do not see each other."""

    def rule(call: _Call) -> Iterator[_Rule]:
        shape, mask = call.shape("query"), call.shape("attn_mask")
        for dim in (0, 1):
            operands: dict[_Place, int] = dict.fromkeys(names, dim)
            if len(mask) == 4 and mask[dim] == shape[dim]:
                operands["attn_mask"] = dim
            if {call.shape(name)[dim] for name in ("query", "key", "value")} == {shape[dim]}:
                yield call.along(shape[dim], operands, dict.fromkeys(range(results), dim))

    return rule


def _gathered(call: _Call) -> Iterator[_Rule]:
    shape, index = call.shape("self"), call.shape("index")
    along = call.dim("dim", len(shape))
    for dim, rows in enumerate(shape):
        if dim != along and len(index) == len(shape) and index[dim] == rows:
            yield call.along(rows, {"self": dim, "index": dim, "src": dim}, {0: dim})


def _filled(call: _Call) -> Iterator[_Rule]:
    for dim, rows in enumerate(_result_shape(call)):
        yield call.along(rows, {}, {0: dim})


def _of_parts(call: _Call) -> Iterator[_Rule]:
    """Yield the rows of the backward of `select` or `slice`: all dimensions but the one that was cut."""
    rank = len(_result_shape(call))
    along = call.dim("dim", rank)
    gone = short_name(call.node) == "aten.select_backward"
    for dim, rows in enumerate(_result_shape(call)):
        if dim != along:
            yield call.along(rows, {"grad_output": dim - (gone and dim > along)}, {0: dim})


_same = _without(results=1)
_RULES: Mapping[str, Callable[[_Call], Iterator[_Rule]]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), _view),
    "t": _moved(lambda _, rank: list(range(rank))[::-1]),
    "transpose": _moved(_transposed),
    "permute": _moved(lambda call, rank: [dim % rank for dim in call.given["dims"]]),
    **dict.fromkeys(("detach", "alias", "expand", "_to_copy", "clone", "fill"), _pointwise),
    **dict.fromkeys(("full_like", "zeros_like", "ones_like", "empty_like"), _pointwise),
    **dict.fromkeys(
        tuple(
            f"{name}_backward"
            for name in ("hardtanh", "leaky_relu", "elu", "hardswish", "softplus", "mish", "log_sigmoid", "hardsigmoid")
        ),
        _pointwise,
    ),
    "unsqueeze": _unsqueezed,
    "select": _without(keeps=False),
    **dict.fromkeys(("slice", "split", "split_with_sizes", "glu", "cumsum"), _same),
    "unbind": _without(keeps=False),
    **dict.fromkeys(("cat", "stack"), _joined),
    "constant_pad_nd": _padded,
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
    "sum": _reduced(sums=True),
    **dict.fromkeys(("mean", "amax", "amin", "logsumexp", "var", "var_mean", "argmax", "prod"), _reduced(sums=False)),
    **dict.fromkeys(("_softmax", "_log_softmax"), _same),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _without("output", first="grad_output")),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _normed),
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), _normed_back),
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_back,
    "convolution": _batch("input"),
    "convolution_backward": _batch("grad_output", "input", sums=(1, 2)),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"), _batch("self")),
    "max_pool2d_with_indices_backward": _batch("grad_output", "self", "indices"),
    **dict.fromkeys(("avg_pool2d_backward", "_adaptive_avg_pool2d_backward"), _batch("grad_output", "self")),
    **dict.fromkeys(("upsample_nearest2d", "upsample_bilinear2d"), _batch("self")),
    **dict.fromkeys(("upsample_nearest2d_backward", "upsample_bilinear2d_backward"), _batch("grad_output")),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_back,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _nll),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_back),
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"), _loss),
    **dict.fromkeys(("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward"), _loss_back),
    "_scaled_dot_product_flash_attention_for_cpu": _attention("query", "key", "value", results=2),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(
        "grad_out", "query", "key", "value", "out", "logsumexp", results=3
    ),
    **dict.fromkeys(("gather", "scatter"), _gathered),
    **dict.fromkeys(("full", "zeros", "ones", "empty"), _filled),
    **dict.fromkeys(("select_backward", "slice_backward"), _of_parts),
}

# The arguments that are the shape of an op's result, or of its operand: they shrink with the rows.
_SHAPES: Mapping[str, str] = {
    **dict.fromkeys(("view", "_unsafe_view", "expand", "full", "zeros", "ones", "empty"), "size"),
    "reshape": "shape",
    **dict.fromkeys(("select_backward", "slice_backward"), "input_sizes"),
    **dict.fromkeys(("upsample_nearest2d_backward", "upsample_bilinear2d_backward"), "input_size"),
}


def taken_for_contiguous(node: fx.Node) -> frozenset[fx.Node]:
    """Return the operands that an op reads right only where they are contiguous, as slices may not be."""
    names = properties_of(node.target).contiguous
    given = arguments(node) if names else {}
    return frozenset(operand for name in names for operand in nodes_in(given[name]))


def in_part(node: fx.Node, axis: Axis, rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an op that works on some of its rows.

    Constants that depend on the number of rows differ from the whole op's.

    Args:
        node: the op.
        axis: the axis of the cut.
        rows: number of rows.
    """
    name = _name(node)
    args, kwargs = list(node.args), dict(node.kwargs)
    changed: dict[str, Any] = {}
    given = arguments(node)
    if name in _SHAPES and (part := axis.makes.get(node.name)) is not None:
        sizes = list(given[_SHAPES[name]])
        place = part.dim - len(_shape(node)) + len(sizes)
        sizes[place] = rows * part.unit
        changed[_SHAPES[name]] = sizes
    elif name in ("native_group_norm", "native_group_norm_backward"):
        changed["N"] = rows * axis.reads[given["input"].name].unit
    declared = [argument.name for argument in schema_of(node.target).arguments]
    for argument, value in changed.items():
        place = declared.index(argument)
        if place < len(args):
            args[place] = value
        else:
            kwargs[argument] = value
    return tuple(args), kwargs
