"""Values that users give to inputs: NAME=5, NAME=[1,2,3], NAME=FILE.npy."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.errors import UsageError
from remat_cli.formats.source import read_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SUFFIX = ".npy"
_LIKE_TEXT = """write it like words=[["a text"],["another"]] or x=x.npy"""
_LIKE = "write it like sr=16000, ids=[1,2,3] or x=x.npy"


def parse_value(text: str) -> tuple[str, Any]:
    """Parse the name of an input and its value.

    The value is a number, a list of numbers, or the name of a file.

    Raises:
        UsageError: the value is none of these.
    """
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"{text!r} is not understood", hint=_LIKE)
    if value.endswith(_SUFFIX):
        return name, value
    try:
        parsed = json.loads(value if "," not in value or value.startswith("[") else f"[{value}]")
    except (ValueError, RecursionError):
        raise UsageError(f"{text!r} is not understood", hint=_LIKE) from None
    if isinstance(parsed, str | dict) or parsed is None:
        raise UsageError(f"{text!r} is not understood", hint=_LIKE)
    return name, parsed


def is_file_name(value: object) -> bool:
    """Whether a value is the name of a file."""
    return isinstance(value, str)


def as_array(name: str, value: Any, *, of_text: bool = False) -> NDArray[Any]:
    """Return a value as an array, read from its file if it names one.

    Args:
        name: name of the input, for messages.
        value: a number, nested lists of numbers or text, an array, or the name of a file.
        of_text: whether it must hold text, instead of numbers.

    Raises:
        UsageError: the value holds no numbers, or no text, or the file cannot be read.
    """
    import numpy as np

    try:
        array = np.asarray(_loaded(name, value) if isinstance(value, str) else value)
    except (ValueError, OverflowError):  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in ("U" if of_text else "biuf"):
        kind, like = ("text", _LIKE_TEXT) if of_text else ("numbers", _LIKE)
        raise UsageError(f"the value of input {name!r} is no array of {kind}", hint=like)
    return array


def _loaded(name: str, file: str) -> NDArray[Any]:
    import numpy as np

    if not file.endswith(_SUFFIX):
        raise UsageError(f"the value of input {name!r}, {file!r}, is neither a number nor a {_SUFFIX} file", hint=_LIKE)
    content = read_bytes(Path(file), error=UsageError)
    try:
        array: NDArray[Any] = np.lib.format.read_array(BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError, TypeError, KeyError, SyntaxError, MemoryError) as error:
        raise UsageError(f"{file} is no array that numpy saved: {error}", hint="write it with numpy.save") from None
    return array
