"""Values of inputs as they are written on a command line."""

from __future__ import annotations

from typing import Any

import pytest

from remat_cli.errors import UsageError
from remat_cli.formats.input_values import parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sr=16000", 16000),
        ("x=-0.5", -0.5),
        ("x=1e3", 1000.0),
        ("x=true", True),
        ("x=1,2", [1, 2]),
        ("x=[[1],[2]]", [[1], [2]]),
        ("x=a=b.npy", "a=b.npy"),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parse_value(text) == ("x" if text.startswith("x") else "sr", value)


@pytest.mark.parametrize("text", ["x", "=5", "x=", "x=five", "x={}", "x=null", 'x="a"', "x=1,", "x=" + "[" * 10**5])
def test_texts_that_are_no_values(text: str) -> None:
    with pytest.raises(UsageError, match="is not understood"):
        parse_value(text)
