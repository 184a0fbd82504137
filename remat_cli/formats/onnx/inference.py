"""Types of a node's outputs from those of its inputs, and its schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import onnx
from onnx import defs, helper, numpy_helper, shape_inference

from remat_cli.errors import GraphError
from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute
from remat_cli.formats.onnx.errors import onnx_faults
from remat_cli.formats.onnx.first_forms import LaterForm, later_form
from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import Misfit, SequenceType, TensorType, Values, shape_text, type_proto
from remat_cli.settings import Setting

if TYPE_CHECKING:
    from onnx.defs import OpSchema

# Defined only by a function body, so that onnx infers nothing for a single node; their result is like the input.
_LIKE_FIRST_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})

# Outputs after the first for which no version of the op has rules: the position of an input of their shape.
_FURTHER_LIKE = {"BatchNormalization": 1, "Dropout": 0}

# The hint for a node that does not match its inputs.
CHECK_SIZES = (
    "the file is damaged, or a given size is wrong: check ",
    *(Setting("dims"), ", ", Setting("input_shapes"), ", ", Setting("value_shapes"), " and ", Setting("values")),
)

# Letters with one "..." among them; onnx hangs on most other texts.
_LABELS = r"[A-Za-z]*(?:\.\.\.[A-Za-z]*)?"
_EQUATION = re.compile(rf"{_LABELS}(?:,{_LABELS})*(?:->{_LABELS})?")
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class OperatorSets:
    """The operator sets imported by a file, as versions by domain.

    ONNX's own domain is "".
    """

    versions: Mapping[str, int]

    @cached_property
    def imports(self) -> list[onnx.OperatorSetIdProto]:
        """The operator sets in onnx's form."""
        return [helper.make_opsetid(domain, version) for domain, version in self.versions.items()]

    def version(self, domain: str) -> int:
        """Return the version of an operator set; 0 if not imported."""
        return self.versions.get(domain, 0)

    def schema(self, node: onnx.NodeProto) -> OpSchema | None:
        """Return the schema of a node's op, or None if onnx has none.

        Raises:
            GraphError: the node is from ONNX's own set, and the file does not import that.
        """
        if node.domain not in self.versions:
            if node.domain == "":
                raise GraphError(
                    f"op {node.name!r} ({node.op_type}) is from ONNX's own operator set, and the file imports none",
                    hint="the file is damaged; export it again",
                )
            return None
        return _schema(node.op_type, self.versions[node.domain], node.domain)


# ONNX's own set in the version of the installed onnx.
NEWEST = OperatorSets({"": defs.onnx_opset_version()})


@lru_cache(maxsize=4096)
def _schema(op_type: str, version: int, domain: str) -> OpSchema | None:
    try:
        schema = defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None
    known: Any = schema  # its type stubs omit functions
    # Ops defined by other ops can still be run by these (GroupNormalization 18 to 20).
    return schema if not schema.deprecated or known.has_context_dependent_function else None


def check_form(node: Node, schema: OpSchema) -> None:
    """Check that a node has the inputs and outputs of its schema.

    Raises:
        GraphError: a required input is absent, or there are too many.
    """
    proto = node.proto
    required = [formal.option == schema.FormalParameterOption.Single for formal in schema.inputs]
    absent = any(
        is_required and not (position < len(proto.input) and proto.input[position])
        for position, is_required in enumerate(required)
    )
    too_many = len(proto.input) > schema.max_input or len(proto.output) > schema.max_output
    if absent or too_many or not proto.output:
        raise GraphError(
            f"op {node.name!r} ({proto.op_type}) has {len(proto.input)} inputs and {len(proto.output)} outputs, "
            f"which is not how {schema.name} is defined",
            hint="the file is damaged; export it again",
        )
    _refuse_what_aborts(node)


def infer(node: Node, schema: OpSchema, values: Values, opsets: OperatorSets) -> dict[str, onnx.TypeProto]:
    """Return the types of a node's outputs that onnx infers.

    Raises:
        GraphError: the node breaks its op's rules: shapes do not match, or attributes or inputs are missing.
    """
    proto = node.proto
    inputs = {name: values[name] for name in proto.input if name}
    types = {name: _proto_of(value.type) for name, value in inputs.items()}
    if proto.op_type in _LIKE_FIRST_INPUT and proto.domain == "":
        return dict.fromkeys(node.outputs, types[proto.input[0]])
    arrays = {name: value.data for name, value in inputs.items()}
    data = {name: numpy_helper.from_array(array, name) for name, array in arrays.items() if array is not None}
    with onnx_faults(f"op {node.name!r} ({proto.op_type}) does not fit its inputs", CHECK_SIZES, Misfit):
        inferred = shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets.imports)
    if proto.domain == "" and (form := later_form(proto, opsets.version(""), values)) is not None:
        _add_by_later_form(node, form, schema, (types, data), inferred)
    if proto.op_type == "Reshape":
        _check_reshape(node, values, inferred)
    if proto.domain == "" and not all(_has_shape(inferred.get(name)) for name in node.outputs):
        _add_later_rules(node, schema, (types, data), inferred)
    return inferred


def _has_shape(proto: onnx.TypeProto | None) -> bool:
    """Whether a tensor's type has a shape, of known or unknown sizes.

    Any other type counts as complete.
    """
    return proto is not None and (not proto.HasField("tensor_type") or proto.tensor_type.HasField("shape"))


def _add_by_later_form(
    node: Node,
    form: LaterForm,
    schema: OpSchema,
    known: tuple[dict[str, onnx.TypeProto], dict[str, onnx.TensorProto]],
    inferred: dict[str, onnx.TypeProto],
) -> None:
    """Add the shapes that onnx infers of a node in the form of a later operator set.

    Raises:
        GraphError: the node breaks the op's rules.
    """
    later = _schema(node.proto.op_type, form.version, "")
    assert later is not None, "a version that has the op"
    constants = {name: numpy_helper.from_array(array, name) for name, array in form.constants.items()}
    kinds = {name: helper.make_tensor_type_proto(one.data_type, one.dims) for name, one in constants.items()}
    imports = [helper.make_opsetid("", form.version)]
    with onnx_faults(f"op {node.name!r} ({node.proto.op_type}) does not fit its inputs", CHECK_SIZES, Misfit):
        shapes = shape_inference.infer_node_outputs(
            later, form.node, known[0] | kinds, known[1] | constants, opset_imports=imports
        )
    if node.proto.op_type == "Cast":
        inferred.update(shapes)
    _add(node, schema, known[0], shapes, inferred)


def _add_later_rules(
    node: Node,
    schema: OpSchema,
    known: tuple[dict[str, onnx.TypeProto], dict[str, onnx.TensorProto]],
    inferred: dict[str, onnx.TypeProto],
) -> None:
    """Add shapes that onnx infers only for later versions of the op.

    Element types stay those of the file's version: in the first versions the mask of Dropout was not boolean.
    """
    for later in later_schemas(node.proto.op_type, schema.since_version):
        proto = _without_hints(node.proto)
        fits = len(proto.input) <= later.max_input and len(proto.output) <= later.max_output
        if not fits or any(attribute.name not in later.attributes for attribute in proto.attribute):
            continue
        imports = [helper.make_opsetid("", later.since_version)]
        with suppress(GraphError), onnx_faults("the later version does not take it", hint=""):
            shapes = shape_inference.infer_node_outputs(later, proto, *known, opset_imports=imports)
            _add(node, schema, known[0], shapes, inferred)
    if node.proto.op_type in _FURTHER_LIKE:
        like = node.proto.input[_FURTHER_LIKE[node.proto.op_type]]
        _add(node, schema, known[0], dict.fromkeys(node.proto.output[1:], known[0][like]), inferred)


def _add(
    node: Node,
    schema: OpSchema,
    types: Mapping[str, onnx.TypeProto],
    shapes: Mapping[str, onnx.TypeProto],
    inferred: dict[str, onnx.TypeProto],
) -> None:
    """Add shapes to outputs without one, with their declared element type."""
    for place, name in enumerate(node.proto.output):
        if name and not _has_shape(inferred.get(name)) and name in shapes and _has_shape(shapes[name]):
            inferred[name] = _with_own_element(shapes[name], place, node.proto, schema, types)


@lru_cache(maxsize=1024)
def later_schemas(op_type: str, version: int) -> tuple[OpSchema, ...]:
    """Return an op's schemas after a version, oldest first.

    The op is of ONNX's own set.
    """
    schemas: dict[int, OpSchema] = {}
    newest = _schema(op_type, defs.onnx_opset_version(), "")
    for later in range(version + 1, newest.since_version + 1 if newest else 0):
        schema = _schema(op_type, later, "")
        if schema is not None and schema.since_version > version:
            schemas[schema.since_version] = schema
    return tuple(schemas.values())


def _without_hints(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node without the attribute `consumed_inputs`.

    The first operator sets named inputs that may be overwritten there.
    """
    proto = type(node)()
    proto.CopyFrom(node)
    del proto.attribute[:]
    proto.attribute.extend(one for one in node.attribute if one.name != "consumed_inputs")
    return proto


def _with_own_element(
    proto: onnx.TypeProto, place: int, node: onnx.NodeProto, schema: OpSchema, types: Mapping[str, onnx.TypeProto]
) -> onnx.TypeProto:
    """Return a copy with the element type that the schema declares.

    It is that of an input declared to have the output's type.
    """
    proto = onnx.TypeProto.FromString(proto.SerializeToString())
    formal = schema.outputs[min(place, len(schema.outputs) - 1)].type_str
    like = [name for name, one in zip(node.input, schema.inputs, strict=False) if one.type_str == formal and name]
    if like:
        proto.tensor_type.elem_type = types[like[0]].tensor_type.elem_type
    return proto


def _refuse_what_aborts(node: Node) -> None:
    """Refuse faults on which onnx 1.23 aborts or hangs."""
    proto = node.proto
    if proto.op_type == "Einsum" and (equation := attribute_of(proto, "equation")) is not None:
        text = equation.s.decode(errors="backslashreplace")
        if not _EQUATION.fullmatch(text.replace(" ", "")):
            raise GraphError(
                f"op {node.name!r} (Einsum): the equation {text[:_LONGEST_SHOWN]!r} is not understood",
                hint="the file is damaged; an equation is written like bij,bjk->bik or ...ij,...jk->...ik",
            )
    match proto.op_type:
        case "Split":
            aborts = 0 < integer_attribute(proto, "num_outputs", 0) < len(proto.output)
        case "GatherND":
            aborts = integer_attribute(proto, "batch_dims", 0) < 0
        case "LayerNormalization":
            aborts = abs(integer_attribute(proto, "axis", -1)) >= 2**31
        case _:
            aborts = False
    if aborts:
        raise GraphError(
            f"op {node.name!r} ({proto.op_type}) does not fit its inputs: an attribute is out of range",
            hint=CHECK_SIZES,
        )


def _proto_of(kind: TensorType | SequenceType) -> onnx.TypeProto:
    if isinstance(kind, TensorType):
        return type_proto(kind)
    return helper.make_sequence_type_proto(type_proto(TensorType(kind.element, kind.item)))


def _check_reshape(node: Node, values: Values, inferred: Mapping[str, onnx.TypeProto]) -> None:
    """Check that a Reshape keeps the number of elements.

    onnx does not check this, and a fixed batch size shows only here.
    """
    source, result = node.proto.input[0], node.proto.output[0]
    before = values[source].type.shape
    dims = inferred[result].tensor_type.shape.dim if result in inferred else []
    after = tuple(dim.dim_value for dim in dims if dim.HasField("dim_value"))
    if before is None or not dims or len(after) < len(dims):
        return
    if _elements(before) != _elements(after):
        raise Misfit(
            f"op {node.name!r} (Reshape) makes {shape_text(after)} of {source!r}, which is {shape_text(before)}: "
            "the number of elements changes",
            hint=(
                "the file was exported for other sizes: use the values of ",
                Setting("dims"),
                " of its export, or export it again with symbolic sizes",
            ),
        )


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
