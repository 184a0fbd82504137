"""Neighbours of a chain are chains of the same family, one change away."""

from __future__ import annotations

import pytest

from remat_cli.planners.published.lower_sets.families import LowerSets, pruned_family
from remat_cli.planners.published.lower_sets.search import neighbours
from remat_cli.planners.shared.forward_part import ForwardPart
from tests.graphs import training_chain, training_unet


def family(length: int) -> LowerSets:
    """Of a chain of ops the family is every prefix: set number i holds the first i ops."""
    return pruned_family(ForwardPart.of(training_chain(length), "a test"))


def last(sets: LowerSets) -> int:
    return len(sets) - 1


def test_a_single_block_can_only_be_split() -> None:
    sets = family(4)
    assert list(neighbours(sets, [last(sets)])) == [[cut, last(sets)] for cut in range(1, last(sets))]


def test_blocks_are_merged_split_and_their_cuts_moved() -> None:
    sets = family(4)
    found = list(neighbours(sets, [2, last(sets)]))
    assert [last(sets)] in found
    assert [1, 2, last(sets)] in found
    assert [2, 3, last(sets)] in found
    assert [3, last(sets)] in found
    assert [2, last(sets)] not in found


@pytest.mark.parametrize("levels", [2, 3])
def test_every_neighbour_is_a_chain_that_ends_with_all_vertices(levels: int) -> None:
    sets = pruned_family(ForwardPart.of(training_unet(levels), "a test"))
    chain = [last(sets) // 2, last(sets)]
    if not (sets.members[chain[0]] < sets.members[chain[1]]).any():
        pytest.fail("the chain to start from is none")
    for neighbour in neighbours(sets, chain):
        assert neighbour[-1] == last(sets)
        for inner, outer in zip([0, *neighbour], neighbour, strict=False):
            assert (sets.members[inner] <= sets.members[outer]).all()
            assert sets.members[inner].sum() < sets.members[outer].sum()
