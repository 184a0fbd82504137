"""Small values computed while reading, as in shape arithmetic.

Operands have at most `FOLD_LIMIT` elements, results are known to be as small, and the effort of the op is bounded by
both. Otherwise a file of a few bytes could ask for 2^60 elements or steps (a padding that a stride skips again, a loop,
an Einsum).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from remat_cli.errors import GraphError
from remat_cli.formats.onnx.dtypes import ElementType
from remat_cli.formats.onnx.errors import onnx_faults
from remat_cli.formats.onnx.load import FOLD_LIMIT
from remat_cli.formats.onnx.values import TensorType, ValueType

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

    from remat_cli.formats.onnx.values import Array

_ELEMENTWISE = (
    "Abs Add And BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Clip Cos DequantizeLinear Div "
    "Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow "
    "QuantizeLinear Reciprocal Round Sigmoid Sign Sin Sqrt Sub Sum Tanh Where Xor"
)
_REDUCTIONS = "ArgMax ArgMin CumSum MatMul ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
_MOVES = (
    "Compress Concat ConstantOfShape Expand EyeLike Flatten Gather GatherND Identity NonZero OneHot Range "
    "Reshape ScatterElements ScatterND Slice Split Squeeze Tile TopK Transpose Trilu Unique Unsqueeze"
)
_FOLDABLE = frozenset(f"{_ELEMENTWISE} {_REDUCTIONS} {_MOVES}".split())
# The size of their results depends on data, but is at most a few times the input's.
_BOUNDED_BY_INPUT = frozenset({"Compress", "NonZero", "Unique"})


def can_fold(op_type: str, outputs: Iterable[ValueType | None]) -> bool:
    """Whether an op's results on small constants are small enough to compute."""
    if op_type not in _FOLDABLE:
        return False
    return op_type in _BOUNDED_BY_INPUT or all(_is_small(output) for output in outputs)


def _is_small(kind: ValueType | None) -> bool:
    if not isinstance(kind, TensorType) or not kind.is_sized:
        return False
    return kind.elements <= FOLD_LIMIT and not kind.element.is_string


def no_elements(element: ElementType) -> Array:
    """Return an array that only has an element type."""
    return np.empty(0, dtype=helper.tensor_dtype_to_np_dtype(element.id))


def compute(node: onnx.NodeProto, opsets: Mapping[str, int], data: Mapping[str, Array]) -> dict[str, Array] | None:
    """Run one node with onnx's reference implementation.

    Args:
        node: a node of ONNX's own operator set that can be folded.
        opsets: operator set versions by domain.
        data: inputs by name.

    Returns:
        outputs by name; None if the reference implementation cannot compute them, and the node stays an op.
    """
    outputs = [name for name in node.output if name]
    try:
        # numpy warns of overflows and empty means; these come from the model, and are the user's business.
        with (
            warnings.catch_warnings(action="ignore"),
            np.errstate(all="ignore"),
            onnx_faults(f"{node.op_type} cannot be computed", hint=""),
        ):
            evaluator = _evaluator(_without_names(node), tuple(opsets.items()))
            results = evaluator.run(None, {str(place): data[name] for place, name in enumerate(node.input) if name})
    except (GraphError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError):
        return None
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    return {name: np.asarray(result) for name, result in zip(outputs, results, strict=True)}


def _without_names(node: onnx.NodeProto) -> bytes:
    """Return a node with inputs and outputs named by position.

    Many nodes of a file share this form.
    """
    proto = type(node)()
    proto.CopyFrom(node)
    proto.name = proto.doc_string = ""
    for names in (proto.input, proto.output):
        names[:] = [str(place) if name else "" for place, name in enumerate(names)]
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


@lru_cache(maxsize=1024)
def _evaluator(node: bytes, opsets: tuple[tuple[str, int], ...]) -> ReferenceEvaluator:
    """Return the evaluator of a node.

    Creating it takes longer than running it on a few elements.
    """
    from onnx.reference import ReferenceEvaluator

    proto = onnx.NodeProto.FromString(node)
    read, written = (
        [helper.make_empty_tensor_value_info(name) for name in names if name] for names in (proto.input, proto.output)
    )
    return ReferenceEvaluator(helper.make_graph([proto], "one-node", read, written), opsets=dict(opsets))
