"""A file before its format is known: checked, and parsed if JSON."""

from __future__ import annotations

import json
import stat
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from pydantic_core import from_json

from remat_cli.errors import GraphError, RematError
from remat_cli.units import format_bytes

# The largest files, which are read whole. A graph of 100,000 ops takes some 40 MB, a table of as many times 2 MB. A
# protobuf message, such as an ONNX file, cannot be larger.
LARGEST_GRAPH = 2**31 - 1
LARGEST_CONFIG = 10**7
_SPACES_BEFORE_COLON = (b" :", b"\t:", b"\n:", b"\r:")
_LONGEST_NAME = 60
_TOO_LARGE_GRAPH = "is this the right file? An ONNX model can be saved without its weights, as external data"


def check_regular_file(path: Path, *, error: type[RematError] = GraphError, largest: int = LARGEST_GRAPH) -> None:
    """Raise `error` unless `path` is a readable, regular file.

    It must not be empty, nor have more than `largest` bytes.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise error(f"{path}: no such file", hint="check the path") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        raise error(f"{path}: cannot be read: {problem}", hint="check the path and its permissions") from None
    if stat.S_ISDIR(status.st_mode):
        raise error(f"{path} is a directory, not a file", hint="name the file inside it")
    if not stat.S_ISREG(status.st_mode):
        raise error(f"{path} is not a regular file", hint="save its content to a file first")
    if status.st_size == 0:
        raise error(f"{path} is empty", hint="was it written completely?")
    if status.st_size > largest:
        raise error(
            f"{path} has {format_bytes(status.st_size)}, more than the {format_bytes(largest)} that are read",
            hint=_TOO_LARGE_GRAPH if largest == LARGEST_GRAPH else "is this the right file?",
        )


def open_regular(path: Path, *, error: type[RematError] = GraphError, largest: int = LARGEST_GRAPH) -> BufferedReader:
    """Open a regular file to read its bytes.

    A device or a FIFO could give bytes without an end.

    Raises:
        RematError: as `check_regular_file`.
        OSError: the file cannot be opened.
    """
    check_regular_file(path, error=error, largest=largest)
    return path.open("rb")


def read_bytes(path: Path, *, error: type[RematError] = GraphError, largest: int = LARGEST_GRAPH) -> bytes:
    """Return the content of a regular file of 1 to `largest` bytes.

    Raises:
        RematError: of class `error`, if that is impossible.
    """
    try:
        with open_regular(path, error=error, largest=largest) as file:
            return file.read()
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror}", hint="check its permissions") from None
    except MemoryError:
        raise error(f"{path}: cannot be read: out of memory", hint="is this the right file?") from None


def parse_json(path: Path, content: bytes, *, error: type[RematError] = GraphError) -> Any:
    """Parse the JSON document in `content`.

    Raises:
        RematError: of class `error`, if the text is truncated, malformed, no UTF-8, holds NaN or Infinity, or has a key
            twice in one object.
    """

    try:
        document = from_json(content, allow_inf_nan=False, cache_strings="keys")
        if _has_each_key_once(document, content):
            return document
    except ValueError:
        pass  # parsed again below, to name the fault and its place, and to skip a byte order mark

    def refuse_constant(name: str) -> NoReturn:
        raise error(f"{path}: holds {name}, which is not a JSON number", hint="replace it by a whole number")

    def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            name = values.get("name")
            place = f" in the object named {name[:_LONGEST_NAME]!r}" if isinstance(name, str) and key != "name" else ""
            raise error(f"{path}: the key {key[:_LONGEST_NAME]!r} is given twice{place}", hint="keep one of the two")
        return values

    try:
        return json.loads(content.decode("utf-8-sig"), parse_constant=refuse_constant, object_pairs_hook=once_each)
    except json.JSONDecodeError as problem:
        at_end = problem.pos >= len(problem.doc.rstrip())
        what = "the JSON ends too early" if at_end else f"no valid JSON: {problem.msg}"
        raise error(
            f"{path}:{problem.lineno}:{problem.colno}: {what}",
            hint="the file looks truncated; write it again" if at_end else "correct the file at this place",
        ) from None
    except UnicodeDecodeError as problem:
        raise error(f"{path}: no valid UTF-8 at byte {problem.start}", hint="save it as UTF-8") from None
    except RecursionError:
        raise error(f"{path}: the JSON is nested too deeply", hint="is this the right file?") from None
    except ValueError as problem:  # a number with more digits than Python converts
        raise error(f"{path}: {problem}", hint="no size or time needs so many digits") from None


def _has_each_key_once(document: Any, content: bytes) -> bool:
    """Tell whether each object has each key once.

    False: a quick look cannot tell.

    The text has at most as many keys as colons. If no space stands before a colon, it also has at most as many keys as
    colons after a quotation mark, nearly all of which follow a key.
    """
    if content.count(b":") == _keys_in(document, everywhere=False):
        return True
    if any(space in content for space in _SPACES_BEFORE_COLON):
        return False
    return content.count(b'":') == _keys_in(document, everywhere=True)


def _keys_in(document: Any, *, everywhere: bool) -> int:
    """Count the keys of a JSON document, or fewer.

    Lists of mixed values are skipped.

    Args:
        document: the parsed document.
        everywhere: whether to look into the objects of lists, too, which takes several times as long.
    """
    count, left = 0, [document]
    while left:
        item = left.pop()
        if type(item) is dict:
            count += len(item)
            left += [value for value in item.values() if type(value) is dict or type(value) is list]
        elif item and type(item[0]) is dict and set(map(type, item)) == {dict}:
            if everywhere:
                left += item
            else:
                count += sum(map(len, item))
    return count


@dataclass(frozen=True)
class Source:
    """A file to read a graph from.

    Attributes:
        path: path of the file.
    """

    path: Path

    @cached_property
    def content(self) -> bytes:
        """All bytes of the file, which is opened once.

        Raises:
            GraphError: the file is missing, empty, too large, not regular, or cannot be read.
        """
        return read_bytes(self.path)

    def forget(self) -> None:
        """Release the content, which may be as large as all weights.

        After parsing, it is no longer needed.
        """
        vars(self).pop("content", None)

    @cached_property
    def is_json(self) -> bool:
        """Whether the content begins like a JSON object or list."""
        return self.content[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")

    @cached_property
    def document(self) -> dict[str, Any]:
        """The JSON object in the file; an empty one for other files.

        Raises:
            GraphError: the file looks like JSON but is not valid, or is no object.
        """
        if not self.is_json:
            return {}
        document = parse_json(self.path, self.content)
        self.forget()
        if not isinstance(document, dict):
            raise GraphError(f"{self.path}: holds a JSON list, not an object", hint="a graph file begins with {")
        return document
