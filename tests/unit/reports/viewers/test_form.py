"""The form of a report from the name of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.errors import UsageError
from remat_cli.reports.viewers import Form, form_of


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("r.html", Form.HTML),
        ("report", Form.HTML),
        ("-", Form.HTML),
        ("a.trace.json", Form.TRACE),
        ("a.b.json.gz", Form.TRACE),
        ("A.TRACE.JSON", Form.TRACE),
        ("snapshot.pickle", Form.SNAPSHOT),
        ("a.nodes.json", Form.NODES),
        ("m.onnx", Form.ONNX),
    ],
)
def test_name_says_the_form(name: str, form: Form) -> None:
    assert form_of(Path(name)) is form


def test_json_may_be_several_forms() -> None:
    with pytest.raises(UsageError, match="several forms are JSON"):
        form_of(Path("plan.json"))
