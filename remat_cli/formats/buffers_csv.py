"""Buffers as CSV, in the format of MiniMalloc.

The columns are `id,lower,upper,size`, and `offset` in the output. A column `traffic` has the bytes moved to and from
each buffer; without it, each buffer is moved once.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from remat_cli.core.buffers import Buffer
from remat_cli.core.graph import LARGEST_TOTAL
from remat_cli.errors import GraphError
from remat_cli.formats.source import read_bytes

_COLUMNS = ("id", "lower", "upper", "size")


@dataclass(frozen=True)
class BufferFile:
    """The content of a file of buffers.

    Attributes:
        header: names of the columns, in the file's order.
        rows: the cells of each buffer.
        buffers: in the order of the rows.
        traffic: bytes moved to and from each buffer.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    buffers: tuple[Buffer, ...]
    traffic: tuple[int, ...]

    def with_offsets(self, offsets: Sequence[int], banks: Sequence[str] | None = None) -> bytes:
        """Return the file with columns `offset` and, with banks, `bank`.

        Offsets are in bytes; old columns of these names are replaced.
        """
        columns: dict[str, Sequence[object]] = (
            {"offset": offsets} if banks is None else {"bank": banks, "offset": offsets}
        )
        kept = [index for index, name in enumerate(self.header) if name not in ("bank", "offset")]
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*(self.header[index] for index in kept), *columns])
        for row, *added in zip(self.rows, *columns.values(), strict=True):
            writer.writerow([*(row[index] for index in kept), *added])
        return text.getvalue().encode()


def read_buffers(path: Path) -> BufferFile:
    """Read a file of buffers.

    Columns may be in any order; others are kept.

    Raises:
        GraphError: the file is missing or malformed; the message names the line.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise GraphError(f"{path}: no valid UTF-8 at byte {problem.start}", hint="save it as UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        lines = [(reader.line_num, tuple(cell.strip() for cell in row)) for row in reader if row]
    except csv.Error as problem:
        raise GraphError(f"{path}:{reader.line_num}: no valid CSV: {problem}", hint="correct the file there") from None
    header = lines[0][1] if lines else ()
    missing = [name for name in _COLUMNS if header.count(name) != 1]
    if missing:
        raise GraphError(
            f"{path}: not one column {', '.join(map(repr, missing))} in the first line",
            hint=f"a file of buffers begins with {','.join(_COLUMNS)}",
        )
    columns = {name: header.index(name) for name in _COLUMNS}
    rows = lines[1:]
    if not rows:
        raise GraphError(f"{path}: holds no buffers", hint="write one a line below the first line")
    buffers = tuple(_buffer(row, columns, len(header), f"{path}:{line}") for line, row in rows)
    if sum(buffer.size for buffer in buffers) > LARGEST_TOTAL:
        raise GraphError(f"{path}: the sizes add up to more than 2^60 bytes", hint="are they in bytes?")
    return BufferFile(header, tuple(row for _, row in rows), buffers, _traffic(header, rows, buffers, path))


def _traffic(
    header: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], buffers: Sequence[Buffer], path: Path
) -> tuple[int, ...]:
    if "traffic" not in header:
        return tuple(buffer.size for buffer in buffers)
    if header.count("traffic") > 1:
        raise GraphError(f"{path}: two columns are named 'traffic'", hint="leave one of them out")
    column = header.index("traffic")
    traffic = tuple(_whole(row[column], "traffic", f"{path}:{line}") for line, row in rows)
    for moved, (line, _) in zip(traffic, rows, strict=True):
        if moved < 0:
            raise GraphError(f"{path}:{line}: traffic {moved} is below 0", hint="give bytes that are written and read")
    if sum(traffic) > LARGEST_TOTAL:
        raise GraphError(f"{path}: the traffic adds up to more than 2^60 bytes", hint="is it in bytes?")
    return traffic


def _buffer(row: Sequence[str], columns: Mapping[str, int], width: int, where: str) -> Buffer:
    if len(row) != width:
        raise GraphError(f"{where}: {len(row)} cells, but the first line has {width}", hint="correct the line")
    lower, upper, size = (_whole(row[columns[name]], name, where) for name in _COLUMNS[1:])
    if upper <= lower:
        raise GraphError(
            f"{where}: upper {upper} is not above lower {lower}",
            hint="a buffer is needed from lower to before upper",
        )
    if size <= 0:
        raise GraphError(f"{where}: size {size} is not above 0", hint="leave out what takes no memory")
    return Buffer(lower, upper, size)


def _whole(cell: str, name: str, where: str) -> int:
    # Far larger than any real time or size, and well within the range of arrays.
    if cell.isascii() and cell.removeprefix("-").isdigit() and len(cell) < 19:
        return int(cell)
    raise GraphError(f"{where}: {name} {cell[:40]!r} is no whole number of at most 18 digits", hint="correct the cell")
