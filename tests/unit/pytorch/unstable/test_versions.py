"""What a release of torch lacks is told as such; that there is no torch at all is told elsewhere."""

from __future__ import annotations

import pytest
import torch

from remat_cli.errors import UsageError
from remat_cli.pytorch.unstable.versions import explained_as_unsupported


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("a part", name="part"),
        ModuleNotFoundError("z", name="z"),
        ImportError("b"),
        AttributeError(),
    ],
)
def test_a_missing_part_names_the_releases_that_were_tested(error: Exception) -> None:
    with pytest.raises(UsageError) as refused, explained_as_unsupported():
        raise error
    assert f"torch {torch.__version__} does not work with this version of remat: {error}" in refused.value.message
    assert "2.13" in (refused.value.hint or "")


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'torch'", name="torch"), ValueError()])
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, explained_as_unsupported():
        raise error
    assert raised.value is error
