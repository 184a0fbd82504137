"""Exceptions of onnx and protobuf as errors that a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import DecodeError, EncodeError
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError

from remat_cli.errors import GraphError
from remat_cli.settings import Wording

_LONGEST = 300


@contextmanager
def onnx_faults(what: str, hint: Wording, kind: type[GraphError] = GraphError) -> Iterator[None]:
    """Turn exceptions of onnx and protobuf on bad files into `GraphError`.

    They share no base class: the checker's and the shape inference's errors derive from `Exception` directly, and
    protobuf adds errors of Python's own (`SystemError` for a message beyond 2 GiB). Failed assertions in C++ are
    `RuntimeError`.

    Args:
        what: the failed operation with its place; the reason is added.
        hint: the remedy.
        kind: class of the error.
    """
    try:
        yield
    except (DecodeError, EncodeError, ValidationError, InferenceError) as error:
        raise kind(f"{what}: {one_line(error)}", hint=hint) from error
    except (ValueError, TypeError, OSError, MemoryError, RuntimeError, SystemError) as error:
        raise kind(f"{what}: {one_line(error)}", hint=hint) from error


def one_line(error: BaseException) -> str:
    """Return the text of an exception in one printable line.

    Names in it come from the file and can contain anything.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    printable = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return printable if len(printable) <= _LONGEST else printable[: _LONGEST - 3] + "..."
