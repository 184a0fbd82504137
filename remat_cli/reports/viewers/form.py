"""The forms of a report, and their file name endings."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from remat_cli.errors import UsageError


class Form(StrEnum):
    """The form of the file that `remat report` writes."""

    HTML = "html"
    TRACE = "trace"
    SNAPSHOT = "snapshot"
    NODES = "nodes"
    ONNX = "onnx"
    PYTORCH_CSV = "pytorch-csv"


# Longer endings come before their own endings.
_ENDINGS: Mapping[str, Form] = {
    ".nodes.json": Form.NODES,
    ".trace.json": Form.TRACE,
    ".json.gz": Form.TRACE,
    ".pickle": Form.SNAPSHOT,
    ".pkl": Form.SNAPSHOT,
    ".onnx": Form.ONNX,
    ".csv": Form.PYTORCH_CSV,
}


def form_of(path: Path) -> Form:
    """Return the form of a file name; HTML without a known ending.

    Raises:
        UsageError: the name ends with ".json", which several forms share.
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
