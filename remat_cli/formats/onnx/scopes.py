"""The module and line of code of a node, noted by PyTorch's exporters."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import TYPE_CHECKING

from remat_cli.formats.code_places import frames_of, shown_place

if TYPE_CHECKING:
    import onnx

_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
_STACK_TRACE = "pkg.torch.onnx.stack_trace"
_LONGEST_NOTE = 10_000
_TORCH = "torch/"
# Only text of this form, which Python's repr produces, is parsed: Python's own parser overflows its stack on other
# nested text, and warns of other escapes.
_ESCAPE = r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"""
_TEXT = re.compile(rf"""'(?:[^'\\]|{_ESCAPE})*'|"(?:[^"\\]|{_ESCAPE})*\"""")
_LIST_OF_TEXTS = re.compile(rf"\[(?:(?:{_TEXT.pattern})(?:, *|(?=\])))*\]")


def module_of(node: onnx.NodeProto) -> str | None:
    """Return the path of a node's module.

    "" is the whole model; None means no note in the file. The dynamo exporter notes the module; the older exporter
    names its nodes "/layer1/layer1.0/conv1/Conv".
    """
    if _noted_scopes(node):
        return noted_module(node)
    if not node.name.startswith("/"):
        return None
    path: list[str] = []
    for part in node.name.split("/")[1:-1]:
        if path and part.startswith(f"{path[-1]}."):
            path.pop()  # an item of a list includes its list
        path.append(part)
    return ".".join(path)


def noted_module(node: onnx.NodeProto) -> str:
    """Return the path of the module that the exporter noted, or "".

    The text is also empty for the whole model.
    """
    return next(filter(None, reversed(_noted_scopes(node)[:-1])), "")


def source_of(node: onnx.NodeProto) -> str | None:
    """Return "file:line" of a node's code outside of torch, or None.

    It is the innermost such line.
    """
    places = [shown_place(*frame) for frame in frames_of(_note(node, _STACK_TRACE))]
    outside = [place for place in places if not place.startswith(_TORCH)] or places
    return outside[-1] if outside else None


def _noted_scopes(node: onnx.NodeProto) -> list[str]:
    """Return the noted modules, outermost first, then the program's node.

    The outermost module has no name.
    """
    note = _note(node, _NAME_SCOPES)
    if not _LIST_OF_TEXTS.fullmatch(note):
        return []
    try:
        return [str(literal_eval(text)) for text in _TEXT.findall(note)]
    except (ValueError, SyntaxError):  # a number that is no character
        return []


def _note(node: onnx.NodeProto, key: str) -> str:
    noted: str = next((entry.value for entry in node.metadata_props if entry.key == key), "")
    return noted if len(noted) <= _LONGEST_NOTE else ""
