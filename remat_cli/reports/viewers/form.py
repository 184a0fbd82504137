"""The forms that a report takes, and the endings of file names that stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from remat_cli.errors import UsageError


class Form(StrEnum):
    """What `remat report` writes."""

    HTML = "html"
    TRACE = "trace"
    SNAPSHOT = "snapshot"
    NODES = "nodes"
    ONNX = "onnx"


# Longer endings stand before those that they end with.
_ENDINGS: Mapping[str, Form] = {
    ".nodes.json": Form.NODES,
    ".trace.json": Form.TRACE,
    ".json.gz": Form.TRACE,
    ".pickle": Form.SNAPSHOT,
    ".pkl": Form.SNAPSHOT,
    ".onnx": Form.ONNX,
}


def form_of(path: Path) -> Form:
    """Return the form that a file name stands for; HTML where the name says nothing.

    Raises:
        UsageError: the name ends with ".json", which several forms do.
    """
    name = path.name.lower()
    for ending, form in _ENDINGS.items():
        if name.endswith(ending):
            return form
    if name.endswith(".json"):
        raise UsageError(
            f"{path}: several forms are JSON",
            hint="call it *.trace.json or *.nodes.json, or say which: --as trace, --as nodes",
        )
    return Form.HTML
