"""How docstrings read: first lines are short, name their object, and do not end on a pronoun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tests.places import ROOT

PACKAGE = ROOT / "remat_cli"
# Rooms whose docstrings are not mended yet: mend one and take it off the list.
NOT_MENDED = ("pytorch",)

_HIDES = re.compile(r"\b(what|whatever|that which|of which|whose is|such as there)\b", re.IGNORECASE)
_DANGLES = re.compile(
    r"\b(it|them|these|those|this|so|too|there|one|ones|else|is|are|do|does|can|may)[.;:]?$", re.IGNORECASE
)
_END_OF_FIRST = re.compile(r"(?<=[.:])\s|\n\n")
_MOST_WORDS = 10
_LARGEST_SHARE = 0.02


@dataclass(frozen=True)
class FirstLine:
    """The first sentence of a docstring.

    Attributes:
        place: file and line of the definition.
        text: the sentence.
    """

    place: str
    text: str

    @property
    def hides(self) -> bool:
        """Whether a clause such as "what ..." stands for the object."""
        return _HIDES.search(self.text) is not None

    @property
    def dangles(self) -> bool:
        """Whether the sentence ends on a pronoun or an adverb."""
        return _DANGLES.search(self.text) is not None


def first_lines(source: str, file: str) -> Iterator[FirstLine]:
    """Yield the first sentences of a module's docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                place = f"{file}:{getattr(node, 'lineno', 1)}"
                yield FirstLine(place, _END_OF_FIRST.split(text.strip().replace("\n", " "))[0])


def faults(lines: list[FirstLine]) -> list[str]:
    """Return the faults of first lines: too many hide, too many dangle, or all are too long."""
    found = []
    for what, bad in (
        ("hide their object", [line for line in lines if line.hides]),
        ("end on a pronoun or adverb", [line for line in lines if line.dangles]),
    ):
        if len(bad) > _LARGEST_SHARE * len(lines):
            shown = "".join(f"\n{line.place}: {line.text}" for line in bad)
            found.append(f"{len(bad)} of {len(lines)} first lines {what}:{shown}")
    words = mean(len(line.text.split()) for line in lines)
    if words > _MOST_WORDS:
        found.append(f"first lines have {words:.1f} words on the mean, more than {_MOST_WORDS}")
    return found


def package_lines() -> list[FirstLine]:
    return [
        line
        for path in sorted(PACKAGE.rglob("*.py"))
        if not _is_not_mended(path.relative_to(PACKAGE))
        for line in first_lines(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]


def _is_not_mended(path: Path) -> bool:
    return any(path.is_relative_to(room) for room in NOT_MENDED)


def test_first_lines_name_their_object_and_are_short() -> None:
    lines = package_lines()
    assert len(lines) > 2000
    assert not faults(lines), "\n".join(faults(lines))


def test_a_hidden_object_is_a_fault() -> None:
    good = ["def f() -> int:", '    """Return the peak of a schedule."""']
    bad = ["def g() -> int:", '    """Return what the plan needs."""']
    lines = [line for text in [good] * 9 + [bad] for line in first_lines("\n".join(text), "planted.py")]
    assert [line.hides for line in lines] == [False] * 9 + [True]
    assert faults(lines) == ["1 of 10 first lines hide their object:\nplanted.py:1: Return what the plan needs."]


def test_a_dangling_end_is_a_fault() -> None:
    lines = list(first_lines('"""Replays a schedule, and measures it."""', "planted.py"))
    assert [line.dangles for line in lines] == [True]
    assert "end on a pronoun or adverb" in faults(lines)[0]


def test_a_long_first_line_is_a_fault() -> None:
    lines = list(first_lines('"""Return the bytes' + " of a tensor" * 4 + '.\n\nMore."""', "planted.py"))
    assert faults(lines) == ["first lines have 15.0 words on the mean, more than 10"]


def test_only_the_first_sentence_counts() -> None:
    source = '"""A plan: what it needs.\n\nSee what it does."""\nclass A:\n    """Runs ops. It frees them."""\n'
    assert [line.text for line in first_lines(source, "planted.py")] == ["A plan:", "Runs ops."]


def test_rooms_that_are_not_mended_exist() -> None:
    assert [room for room in NOT_MENDED if not (PACKAGE / room).is_dir()] == []
