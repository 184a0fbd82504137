"""The dims of a step are the arguments of its function."""

from __future__ import annotations

import pytest

from remat_cli.errors import UsageError
from remat_cli.formats.functions import checked_dims
from remat_cli.formats.reader import UnknownDim


def step(batch: int, seq: int, *, width: int = 64) -> None: ...


@pytest.mark.parametrize(
    ("given", "called_with"),
    [
        ({"batch": 1, "seq": 2}, {"batch": 1, "seq": 2}),
        ({"*": 2}, {"batch": 2, "seq": 2}),
        ({"*": 2, "seq": 8}, {"batch": 2, "seq": 8}),
        ({"*": 2, "width": 8}, {"batch": 2, "seq": 2, "width": 8}),
    ],
)
def test_all_others_are_those_that_have_no_value_of_their_own(
    given: dict[str, int], called_with: dict[str, int]
) -> None:
    assert checked_dims(step, "train.py:step", given) == called_with


def test_a_missing_and_an_unknown_dim_are_refused() -> None:
    with pytest.raises(UsageError, match="needs 'seq'"):
        checked_dims(step, "train.py:step", {"batch": 1})
    with pytest.raises(UnknownDim, match="takes no dim 'depth'"):
        checked_dims(step, "train.py:step", {"*": 2, "depth": 1})
