"""Memory that a training step holds from start to end."""

from __future__ import annotations

import pytest

from remat_cli.errors import UsageError
from remat_cli.training import OPTIMIZERS, training_resident_bytes
from remat_cli.training.shards import ShardedBlock
from tests.operators import weight


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2), ("lion", 1)])
def test_each_trained_weight_has_a_gradient_and_the_optimizers_state(optimizer: str, copies: int) -> None:
    trained = [weight("w", 10), weight("v", 5)]  # 60 bytes
    assert training_resident_bytes(100, trained, optimizer) == 100 + 60 + copies * 60


def test_unknown_optimizer_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="'lyon'") as caught:
        training_resident_bytes(0, [], "lyon")
    assert all(name in caught.value.hint for name in OPTIMIZERS)


def test_adafactor_keeps_rows_and_columns_of_matrices() -> None:
    trained = [weight("w", 3, 40, 20), weight("v", 5)]
    assert training_resident_bytes(0, trained, "adafactor", gradients=False) == 4 * (3 * 40 + 3 * 20 + 5)


def test_8_bit_adam_keeps_a_scale_for_each_block_and_small_parameters_in_float32() -> None:
    assert training_resident_bytes(0, [weight("w", 4097)], "adam8bit", gradients=False) == 2 * (4097 + 4 * 17)
    assert training_resident_bytes(0, [weight("v", 4095)], "adam8bit", gradients=False) == 2 * 4 * 4095


def test_8_bit_adam_of_a_shard_counts_its_own_elements() -> None:
    shard = ShardedBlock("w", (weight("w", 100, 100),), 2).shard
    assert training_resident_bytes(0, [shard], "adam8bit", gradients=False) == 2 * (5000 + 4 * 20)
