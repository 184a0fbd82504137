"""A first project file: the models of a folder at today's memory.

Each model is held to the peak of its plain run today.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remat_cli.checks.advice import written
from remat_cli.config import GraphOptions, in_yaml
from remat_cli.core.problem import Observer
from remat_cli.core.solve import baseline_of
from remat_cli.errors import RematError
from remat_cli.formats.native import FORMAT
from remat_cli.formats.source import open_regular
from remat_cli.prepare import Prepared, prepare
from remat_cli.settings import Setting

# folders with other people's files
_PASSED_OVER = ("node_modules", "site-packages", "__pycache__")
_SIZES = ("dims", "input_shapes")
# The size of a native graph's head, which names the format.
_HEAD_BYTES = 4096
_HEADER = """\
# What `remat check` holds these models to. Paths are relative to this file.
# Sizes that a model leaves open were taken to be 8: set them to those it runs with.
# max_peak is what the plain run takes, of a training step unless a model says `mode: inference`.
# `budget: 80%` asks for a plan. A PyTorch step is written `path: train.py:step`.
models:
"""


@dataclass(frozen=True)
class FirstProject:
    """A project file that holds today.

    Attributes:
        content: content of the file.
        models: number of models in the file.
        left_out: a line for each model that was left out, with the reason.
    """

    content: bytes
    models: int
    left_out: tuple[str, ...]


def first_project(folder: Path, observe: Observer) -> FirstProject:
    """Return a project file for the models in a folder and its subfolders.

    Models are ONNX files and native graphs.

    Args:
        folder: folder of the project file.
        observe: receives each file read.
    """
    entries: dict[str, dict[str, Any]] = {}
    left_out = []
    for path in _models(folder):
        shown = path.relative_to(folder).as_posix()
        observe.phase(f"reading {shown}")
        try:
            shown.encode()
            entry = {"path": shown, **_limits(path)}
        except UnicodeEncodeError:
            left_out.append(f"{path}: YAML holds no name that is not UTF-8")
            continue
        except RematError as error:
            named = shown in error.message or str(path) in error.message
            left_out.append(error.message if named else f"{shown}: {error.message}")
            continue
        names = (Path(shown).stem, str(Path(shown).with_suffix("")), shown)
        name = next(name for name in names if name not in entries)
        entries[name] = entry if name == names[0] else {"name": name, **entry}
    text = "".join(map(_as_item, entries.values()))
    return FirstProject((_HEADER + text).encode(), len(entries), tuple(left_out))


def _models(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _PASSED_OVER)
        yield from (path for name in sorted(files) if _is_model(path := Path(place, name)))


def _is_model(path: Path) -> bool:
    if path.suffix != ".json":
        return path.suffix == ".onnx"
    try:
        with open_regular(path) as file:
            return FORMAT.encode() in file.read(_HEAD_BYTES)
    except (OSError, RematError):
        return False


def _limits(path: Path) -> dict[str, Any]:
    """Return the keys with which a model is read, and its plain peak."""
    try:
        prepared = _prepared(path, GraphOptions())
        if prepared.exported_to_run:
            prepared = _prepared(path, GraphOptions(mode="inference"))
    except RematError:
        prepared = _prepared(path, GraphOptions(mode="inference"))
    options = prepared.options
    said = {"mode": options.mode, "dims": dict(options.dims), "input_shapes": _lists(options.input_shapes)}
    peak = written(baseline_of(prepared.graph).peak_bytes)
    return {key: value for key, value in said.items() if value} | {"max_peak": peak}


def _prepared(path: Path, options: GraphOptions) -> Prepared:
    """Prepare the graph in a file.

    Open sizes are those that the refusal gives as an example.
    """
    try:
        return prepare(path, options)
    except RematError as error:
        sizes = _sizes_in(error)
        if not sizes:
            raise
    return prepare(path, replace(options, **sizes))


def _sizes_in(error: RematError) -> dict[str, Any]:
    parts = error.remedy if isinstance(error.remedy, tuple) else ()
    return {part.name: part.value for part in parts if isinstance(part, Setting) and part.name in _SIZES and part.value}


def _lists(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in shapes.items()}


def _as_item(entry: Mapping[str, Any]) -> str:
    return "  - " + "    ".join(f"{key}: {in_yaml(value)}\n" for key, value in entry.items())
