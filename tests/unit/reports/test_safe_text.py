"""Names out of files cannot act on the terminal, break the layout, or fail on a narrow encoding."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from remat_cli.reports.safe_text import Name, Report, Verbatim, clean, shorten, shorten_path


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\x1b[31mred\x07", id="escape sequence"),
        pytest.param("two\nlines\tand\ttabs", id="line break"),
        pytest.param("\u202etfel ot thgir", id="writing turned round"),
        pytest.param("\ud800", id="lone surrogate"),
        pytest.param("a\u2028b", id="line separator"),
        pytest.param("zero\u200bwidth", id="invisible character"),
    ],
)
def test_what_a_terminal_would_act_on_is_replaced(text: str) -> None:
    cleaned = clean(text)
    assert "\N{REPLACEMENT CHARACTER}" in cleaned
    assert cleaned.isprintable()


@pytest.mark.parametrize("text", ["conv1", "/d.0/Conv_output_0", "[red]no markup[/red]", "名前", "é"])
def test_ordinary_names_stay_as_they_are(text: str) -> None:
    assert clean(text) == text


def test_shortening_keeps_both_ends() -> None:
    assert shorten("encoder.layer.11.attention.output", 15) == "encoder….output"


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("layer.1.act", 11, "layer.1.act"), ("layer.1.act", 7, "….1.act"), ("層層.1", 4, "….1"), ("abc", 0, "")],
)
def test_of_a_path_the_end_is_shown(text: str, width: int, shown: str) -> None:
    assert shorten_path(text, width) == shown


@pytest.mark.parametrize("width", [0, 1, 2, 7, 8])
@pytest.mark.parametrize("text", ["x" * 100, "名前" * 20, "👩" * 30])
def test_a_shortened_name_fits(text: str, width: int) -> None:
    assert cell_len(shorten(text, width)) <= width


def test_a_name_of_ten_megabytes_is_cut_to_its_ends() -> None:
    assert shorten("a" * 5_000_000 + "b" * 5_000_000, 5) == "aa…bb"
    assert len(clean("x" * 10_000_000)) < 2000


def test_names_in_a_table_share_its_width_without_wrapping() -> None:
    table = Table.grid()
    table.add_row(Name("a" * 100), Name("b" * 100))
    console = Console(width=40, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    (line,) = console.file.getvalue().splitlines()
    assert line.count("…") == 2


def test_what_is_to_be_copied_is_whole_in_a_narrow_terminal() -> None:
    console, text = Console(width=20, file=io.StringIO()), "names = [\n    " + "x" * 50 + ",\n]\n"
    console.print(Report(Text("before"), Verbatim("In code", text), Text("after")), crop=False)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == f"before\n\nIn code\n{text}\nafter\n"


def test_a_report_leaves_one_blank_line_between_parts_and_no_trailing_space() -> None:
    console = Console(width=40, file=io.StringIO())
    console.print(Report(Text("one   "), Text("two"), Text("")))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "one\n\ntwo\n\n\n"


def test_an_ascii_output_gets_ascii_of_the_same_width() -> None:
    raw = io.BytesIO()
    console = Console(width=40, file=io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    console.print(Report(Text("█▂░╌━·×µ└┤…é名")))
    assert raw.getvalue().decode("ascii") == "#_:-=.xu++~???\n"
