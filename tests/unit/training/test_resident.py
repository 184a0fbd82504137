"""Memory that a training step holds from start to end."""

from __future__ import annotations

import pytest

from remat_cli.errors import UsageError
from remat_cli.training import OPTIMIZERS, training_resident_bytes
from tests.operators import weight


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_each_trained_weight_has_a_gradient_and_the_optimizers_state(optimizer: str, copies: int) -> None:
    trained = [weight("w", 10), weight("v", 5)]  # 60 bytes
    assert training_resident_bytes(100, trained, optimizer) == 100 + 60 + copies * 60


def test_unknown_optimizer_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="'lion'") as caught:
        training_resident_bytes(0, [], "lion")
    assert all(name in caught.value.hint for name in OPTIMIZERS)
