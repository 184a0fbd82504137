"""Cuts: around which op a graph is split, and in how many parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remat_cli.errors import UsageError

_CUT = re.compile(r"(?P<parts>\d{1,6})(?P<wide>,wide)?(?P<again>,again)?", re.ASCII)

# What a part is called after the op that it is a part of.
_PART = re.compile(r"_(part\d+|rows\d*|sum\d+|slice\d+|scaled|mean|viewed|of_one)$", re.ASCII)


@dataclass(frozen=True)
class Split:
    """A cut of the region around an op.

    Attributes:
        parts: how many there are.
        wide: the region takes in small values, too; else those of a quarter of the op's largest value, or more.
        again: gradients are made in the backward pass, although their factor is known.
    """

    parts: int
    wide: bool = False
    again: bool = False

    def __str__(self) -> str:
        """Return the cut as it is written."""
        return f"{self.parts}{',wide' if self.wide else ''}{',again' if self.again else ''}"

    @classmethod
    def parse(cls, text: str) -> Split:
        """Read a cut as it is written.

        Raises:
            UsageError: it is not understood.
        """
        match = _CUT.fullmatch(text)
        if match is None or int(match["parts"]) < 1:
            raise UsageError(f"{text!r} is no number of parts", hint="write it like 8, or 8,wide, or 8,again")
        return cls(int(match["parts"]), bool(match["wide"]), bool(match["again"]))

    def least_bytes(self, largest: int) -> int:
        """Return the least bytes of a value that joins two ops."""
        return 1 if self.wide else largest // 4


def read_cuts(written: Mapping[str, object]) -> dict[str, Split]:
    """Return cuts from a file, by the name of an op.

    Raises:
        UsageError: one is not understood.
    """
    return {str(name): Split.parse(str(text)) for name, text in written.items()}


def written_cuts(cuts: Mapping[str, Split]) -> dict[str, str]:
    """Return cuts in the form of files."""
    return {name: str(cut) for name, cut in sorted(cuts.items())}


def cuts_in_words(cuts: Mapping[str, Split]) -> str:
    """Return the regions in parts, in words."""
    alike: dict[int, list[str]] = {}
    for name, cut in sorted(cuts.items()):
        alike.setdefault(cut.parts, []).append(name)
    return ", ".join(f"{regions_in_words(names)} in {parts} parts" for parts, names in alike.items())


def regions_in_words(ops: Sequence[str]) -> str:
    """Return the regions around ops, in words."""
    if len(ops) == 1:
        return f"the region around {ops[0]!r}"
    return f"the regions around {ops[0]!r} and {repr(ops[1]) if len(ops) == 2 else f'{len(ops) - 1} others'}"


def original(op: str) -> str:
    """Return the name of the op that an op is a part of, or was made for."""
    while (shorter := _PART.sub("", op)) != op:
        op = shorter
    return op
