"""Floating-point operations of PyTorch's ops; a multiply-add counts 2.

Operands are the tensors of the op's schema, in its order. The contractions agree with `torch.utils.flop_counter`,
except that it has no formula for attention on the CPU, and counts gradients of grouped weights as if there were one
group. The factors of all other ops are the usual estimates, as in `formulas`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from remat_cli.core.operators import Operator

Shape = tuple[int, ...]


def aten_flops(operator: Operator) -> int | None:
    """Return the FLOPs of one run of an op; None without a formula.

    Data movement has 0 FLOPs.
    """
    name = operator.type.partition(".")[2]
    if name in _DATA_MOVEMENT:
        return 0
    if name in _PER_RESULT_ELEMENT:
        return _PER_RESULT_ELEMENT[name] * _largest(operator.outputs)
    if name in _PER_INPUT_ELEMENT:
        return _PER_INPUT_ELEMENT[name] * _largest(operator.inputs)
    formula = _FORMULAS.get(name)
    return None if formula is None else formula(operator)


def _shape(operator: Operator, place: int) -> Shape:
    """Return the shape of an operand; empty for an absent operand."""
    operand = operator.inputs[place] if place < len(operator.inputs) else None
    return () if operand is None or operand.shape is None else operand.shape


def _result(operator: Operator, place: int = 0) -> Shape:
    result = operator.outputs[place]
    return () if result is None or result.shape is None else result.shape


def _largest(operands: tuple[object, ...]) -> int:
    return max((getattr(operand, "elements", 0) for operand in operands if operand is not None), default=0)


# --- Contractions -----------------------------------------------------------------------------------------------------


def _product(place: int) -> Callable[[Operator], int]:
    """Return the formula of a matrix product, batched or not.

    `place` is the position of the operand [..., rows, summed].
    """

    def flops(operator: Operator) -> int:
        return 2 * prod(_result(operator)) * prod(_shape(operator, place)[-1:])

    return flops


def _convolution(operator: Operator) -> int:
    """Return the FLOPs of a convolution.

    Weights are [output channels, input channels of a group, *kernel]; for a transposed convolution the first two change
    places.
    """
    if operator.integer("transposed", 0):
        return 2 * prod(_shape(operator, 0)) * prod(_shape(operator, 1)[1:])
    return 2 * prod(_result(operator)) * prod(_shape(operator, 1)[1:])


def _convolution_backward(operator: Operator) -> int:
    """Return the FLOPs of a convolution's backward.

    Each wanted gradient of input and weight costs one convolution; the bias costs next to nothing.
    """
    gradient, given, weight = (_shape(operator, place) for place in range(3))
    one = 2 * prod(given if operator.integer("transposed", 0) else gradient) * prod(weight[1:])
    mask = operator.attributes.get("output_mask", (1, 1, 1))
    wanted = mask[:2] if isinstance(mask, tuple) else (1, 1)
    return one * sum(map(bool, wanted))


def _attention_product(query: Shape, key: Shape, last: int) -> int:
    """Return the FLOPs of one product in attention.

    The product is of all queries with all keys, or of the weights with the values, and has `last` columns.
    """
    return 2 * prod(query[:-1]) * prod(key[-2:-1]) * last


def _attention(operator: Operator) -> int:
    """Return the FLOPs of attention: two products.

    The products are queries times keys, and weights times values, all [batch, heads, length, size]. A causal mask saves
    nothing.
    """
    query, key, value = (_shape(operator, place) for place in range(3))
    return _attention_product(query, key, prod(query[-1:])) + _attention_product(query, key, prod(value[-1:]))


def _attention_backward(operator: Operator) -> int:
    """Return the FLOPs of attention's backward: five products.

    They are the weights again, and the gradients of weights, values, queries and keys.
    """
    _, query, key, value = (_shape(operator, place) for place in range(4))
    by_query, by_value = (_attention_product(query, key, prod(shape[-1:])) for shape in (query, value))
    return 3 * by_query + 2 * by_value


def _pooling(operator: Operator) -> int:
    kernel = operator.attributes.get("kernel_size")
    size = prod(int(side) for side in kernel) if isinstance(kernel, tuple) else 4
    return prod(_result(operator)) * (size**2 if isinstance(kernel, tuple) and len(kernel) == 1 else size)


def _recurrent(operator: Operator) -> int:
    """Return the FLOPs of a recurrent layer.

    At each step the input, or a state, is multiplied by each weight of two dimensions.
    """
    layer = next(operand for operand in operator.inputs if operand is not None and len(operand.shape or ()) == 3)
    weights = sum(prod(operand.shape or ()) for operand in operator.inputs if operand and len(operand.shape or ()) == 2)
    return 2 * prod((layer.shape or ())[:2]) * weights


def _lstm_cell(operator: Operator) -> int:
    return 30 * prod(_result(operator))


_FORMULAS: Mapping[str, Callable[[Operator], int]] = {
    "mm": _product(0),
    "bmm": _product(0),
    "mv": _product(0),
    "dot": _product(0),
    "addmm": _product(1),
    "baddbmm": _product(1),
    "addmv": _product(1),
    "_scaled_mm": _product(0),
    "_int_mm": _product(0),
    "linear": _product(0),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        _attention,
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_cudnn_attention_backward",
            "_scaled_dot_product_fused_attention_overrideable_backward",
        ),
        _attention_backward,
    ),
    "max_pool2d_with_indices": _pooling,
    "max_pool3d_with_indices": _pooling,
    "avg_pool2d": _pooling,
    "avg_pool3d": _pooling,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "recurrent": _recurrent,
    "recurrent_backward": lambda operator: 2 * _recurrent(operator),
}

# --- Everything else --------------------------------------------------------------------------------------------------

# fmt: off
_PER_RESULT_ELEMENT: Mapping[str, int] = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "neg", "abs", "sign", "sgn", "reciprocal", "relu", "hardtanh",
                     "clamp", "clamp_min", "clamp_max", "floor", "ceil", "round", "trunc", "square", "maximum",
                     "minimum", "fmod", "remainder", "floor_divide", "leaky_relu", "threshold", "prelu",
                     "_prelu_kernel", "threshold_backward", "leaky_relu_backward", "hardtanh_backward",
                     "masked_fill", "where",
                     "addcmul", "addcdiv", "lerp", "cumsum", "cumprod", "_foreach_add", "_foreach_mul"), 1),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor",
                     "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor", "isnan", "isinf", "isfinite",
                     "__rshift__", "__lshift__"), 1),
    **dict.fromkeys(("native_dropout_backward", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
                     "avg_pool2d_backward", "_adaptive_avg_pool2d_backward", "upsample_nearest2d", "upsample_nearest1d",
                     "upsample_nearest3d", "nll_loss_backward", "nll_loss2d_backward", "embedding_dense_backward"), 1),
    **dict.fromkeys(("native_dropout", "bernoulli", "rand", "randn", "rand_like", "randn_like", "uniform",
                     "normal_functional", "mse_loss", "mse_loss_backward", "glu", "_softmax_backward_data",
                     "_log_softmax_backward_data", "sigmoid_backward", "tanh_backward", "hardsigmoid",
                     "hardsigmoid_backward"), 4),
    **dict.fromkeys(("sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "hardswish",
                     "smooth_l1_loss", "huber_loss"), 4),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax", "elu", "celu", "selu", "elu_backward",
                     "hardswish_backward", "glu_backward", "binary_cross_entropy", "logsumexp"), 5),
    **dict.fromkeys(("sigmoid", "tan", "asin", "acos", "atan", "sinh", "cosh", "upsample_bilinear2d",
                     "upsample_bilinear2d_backward", "_upsample_bilinear2d_aa", "upsample_linear1d",
                     "upsample_trilinear3d", "log_sigmoid_forward"), 7),
    **dict.fromkeys(("silu", "mish", "silu_backward", "mish_backward", "softplus", "softplus_backward"), 8),
    **dict.fromkeys(("erf", "erfc", "tanh", "pow", "atan2", "gelu", "gelu_backward", "lgamma", "digamma"), 10),
    **dict.fromkeys(("upsample_bicubic2d", "upsample_bicubic2d_backward", "grid_sampler_2d",
                     "grid_sampler_2d_backward"), 30),
}

_PER_INPUT_ELEMENT: Mapping[str, int] = {
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "prod", "argmax", "argmin", "any", "all", "norm",
                     "_adaptive_avg_pool2d", "adaptive_max_pool2d", "nll_loss_forward", "nll_loss2d_forward",
                     "linalg_vector_norm", "count_nonzero", "upsample_nearest2d_backward",
                     "upsample_nearest1d_backward", "_embedding_bag"), 1),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), 4),
    **dict.fromkeys(("topk", "sort", "argsort"), 10),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
                     "_native_batch_norm_legit_no_training", "_batch_norm_with_update_functional",
                     "cudnn_batch_norm", "_fused_rms_norm"), 5),
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "native_batch_norm_backward", "batch_norm_backward",
                     "cudnn_batch_norm_backward", "_fused_rms_norm_backward"), 8),
    **dict.fromkeys(("native_layer_norm_backward", "native_group_norm_backward"), 12),
    **dict.fromkeys(("binary_cross_entropy_with_logits", "binary_cross_entropy_backward", "smooth_l1_loss_backward",
                     "huber_loss_backward", "log_sigmoid_backward"), 8),
    **dict.fromkeys(("_thnn_fused_lstm_cell_backward_impl",), 30),
}

_DATA_MOVEMENT = frozenset((
    "clone", "copy", "copy_", "_to_copy", "contiguous", "cat", "stack", "split", "slice", "slice_backward",
    "slice_scatter", "select_backward", "select_scatter", "index", "index_select", "index_put", "_unsafe_index",
    "_unsafe_index_put", "gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "embedding",
    "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad2d", "roll", "flip", "repeat",
    "expand_copy", "tril", "triu", "arange", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like",
    "new_zeros", "new_ones", "new_full", "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided",
    "fill", "scalar_tensor",
    "lift_fresh_copy", "one_hot", "masked_select", "im2col", "col2im", "pixel_shuffle", "pixel_unshuffle", "eye",
    "linspace", "unfold_backward", "diagonal_backward", "as_strided_scatter", "diagonal_scatter",
    "_unsafe_masked_index", "bincount", "channel_shuffle", "meshgrid", "empty_permuted", "as_strided_copy", "view_copy",
))
# fmt: on

# These ops read only as much of their first operand as they write; other variants of them read all of it.
READS_WHAT_IT_WRITES = frozenset(
    f"aten.{name}" for name in ("embedding", "index", "index_select", "gather", "slice", "roll", "_unsafe_index")
)
