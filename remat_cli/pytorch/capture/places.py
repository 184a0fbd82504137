"""Where in the user's code an op comes from: its module's path, and file and line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import fx

import remat_cli
from remat_cli.formats.code_places import frames_of, shown_place

_ATTRIBUTE = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_INDEX = re.compile(r"\['?([^'\]]*)'?\]")
_LOCAL = re.compile(r"^[LG]\['([^']*)'\]")


def module_of(node: fx.Node, root: str) -> str | None:
    """Return the path of an op's innermost module.

    A backward op has the module of its forward op.

    Args:
        node: the op.
        root: the name under which the whole model stands in paths, which is left out; empty where it is a function.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return readable(paths[-1], root) if paths else None


def readable(source: str, root: str) -> str:
    """Return a readable path for torch's name of a value.

    "L['self']._modules['a']._parameters['b']" becomes "a.b".
    """
    text = _LOCAL.sub(r"\1", source, count=1)
    text = _INDEX.sub(r".\1", _ATTRIBUTE.sub(r".\1", text))
    if text == root:
        return ""
    return text.removeprefix(f"{root}.") if root else text


def root_of(sources: tuple[str, ...]) -> str:
    """Return the variable that holds the model in parameters' sources.

    It is "self" for "L['self']._modules['head']._parameters['weight']", and empty if no source names a parameter.
    """
    for source in sources:
        if "._parameters[" in source and (match := _LOCAL.match(source)) is not None:
            return match[1]
    return ""


def source_of(node: fx.Node) -> str | None:
    """Return "file:line" of the user's code that an op comes from; None where torch does not know."""
    return last_place(node.meta.get("stack_trace") or "")


def last_place(trace: str) -> str | None:
    """Return "file:line" of the innermost frame of a trace that is not torch's or ours; None where there is none."""
    return innermost(frames_of(trace))


def innermost(frames: Sequence[tuple[str, int]]) -> str | None:
    """Return "file:line" of the last frame, if possible of the user's.

    None without frames.
    """
    outside = [frame for frame in frames if not frame[0].startswith(_not_the_users())]
    return shown_place(*(outside or frames)[-1]) if frames else None


def current_place() -> str | None:
    """Return "file:line" of the user's code that runs now; None where there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(("<", *_not_the_users())):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else shown_place(frame.f_code.co_filename, frame.f_lineno)


@cache
def _not_the_users() -> tuple[str, ...]:
    return tuple(str(Path(str(package.__file__)).parent) + os.sep for package in (torch, remat_cli))
