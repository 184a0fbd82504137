"""Files of measured times and workspace.

`remat measure` writes format `remat.measurements/1`; a plain table of times can be read, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remat_cli.config.document import Document, read_yaml
from remat_cli.costs import Measurements
from remat_cli.errors import UsageError
from remat_cli.formats.source import parse_json, read_bytes

FORMAT = "remat.measurements/1"
_TIME, _WORKSPACE, _SIGNATURE = "time_ns", "workspace_bytes", "signature"


def measurements_bytes(measurements: Measurements, graph: str) -> bytes:
    """Return a measurements file: UTF-8, one op a line, sorted.

    Args:
        measurements: measured times and workspace.
        graph: name of the measured graph, for people.
    """
    tables = {
        _TIME: measurements.times_ns,
        _WORKSPACE: measurements.workspace_bytes,
        _SIGNATURE: measurements.signatures,
    }
    head = {"format": FORMAT, "graph": graph, "machine": measurements.machine, "dims": dict(measurements.dims)}
    lines = [f" {_json(key)}: {_json(value)}" for key, value in head.items()]
    ops = (
        f"  {_json(name)}: {_json({key: table[name] for key, table in tables.items() if name in table})}"
        for name in sorted(measurements.times_ns)
    )
    lines.append(' "ops": {\n' + ",\n".join(ops) + "\n }")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def load_measurements(path: Path) -> Measurements:
    """Read a file of `remat measure`, or a table in YAML or JSON.

    The table maps names of ops, or types of ops, to nanoseconds.

    Raises:
        UsageError: the file is missing or malformed, or a time is no whole number, 0 or more.
    """
    document = _document(path)
    if document.values.get("format") != FORMAT:
        return Measurements({name: _size(document, (name,), time) for name, time in document.values.items()})
    ops, dims = (_mapping(document, (key,), document.values.get(key, {})) for key in ("ops", "dims"))
    tables: dict[str, dict[str, Any]] = {_TIME: {}, _WORKSPACE: {}, _SIGNATURE: {}}
    for name, measured in ops.items():
        for key, value in _mapping(document, ("ops", name), measured).items():
            if key not in tables:
                raise UsageError(f"{document.place(('ops', name, key))}: there is no such key", hint=_hint(tables))
            tables[key][name] = str(value) if key == _SIGNATURE else _size(document, ("ops", name, key), value)
        if name not in tables[_TIME]:
            raise UsageError(f"{document.place(('ops', name))}: has no {_TIME}", hint=_hint(tables))
    return Measurements(
        tables[_TIME],
        tables[_WORKSPACE],
        tables[_SIGNATURE],
        {name: _size(document, ("dims", name), size) for name, size in dims.items()},
        str(document.values.get("machine", "")),
    )


def _document(path: Path) -> Document:
    """Return the file's values.

    JSON, which `remat measure` writes, takes far less time to read than YAML.
    """
    content = read_bytes(path, error=UsageError)
    if FORMAT.encode() in content[:200]:
        return Document(parse_json(path, content, error=UsageError), str(path))
    return read_yaml(path)


def _mapping(document: Document, place: tuple[str, ...], value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{document.place(place)}: {value!r} is not a mapping", hint="write it anew: remat measure")
    return value


def _size(document: Document, place: tuple[str, ...], value: object) -> int:
    if type(value) is not int or value < 0:
        unit = {_WORKSPACE: "bytes", "dims": "elements"}.get(
            place[-1] if place[0] == "ops" else place[0], "nanoseconds"
        )
        raise UsageError(
            f"{document.place(place)}: {value!r} is not a whole number of {unit}", hint="write it like 812500"
        )
    return value


def _hint(tables: Mapping[str, object]) -> str:
    return f"an op has {', '.join(tables)}"
