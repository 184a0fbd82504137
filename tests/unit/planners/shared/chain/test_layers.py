"""Cuts, layers and what they cost, one by one; test_linearisation.py has them together."""

from __future__ import annotations

import numpy as np
import pytest

from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.chain.cuts import Cut, ForwardValues
from remat_cli.planners.shared.chain.layers import cut_into_layers
from remat_cli.planners.shared.chain.measures import Gauge, array_of
from tests.graphs import training_chain, training_unet

CHAIN = training_chain(3, size=2)
UNET = training_unet(3)


def places(cuts: list[Cut]) -> list[int]:
    return [cut.place for cut in cuts]


@pytest.mark.parametrize("allowed", Cuts)
def test_a_chain_is_cut_after_each_op(allowed: Cuts) -> None:
    assert ForwardValues(CHAIN, "a test").cuts(allowed) == [Cut(0, 2), Cut(1, 2), Cut(2, 2)]


def test_across_skips_several_tensors_are_handed_on() -> None:
    values = ForwardValues(UNET, "a test")
    # down1 hands on d1 alone; after it, skips lie beside what comes last. The end always is a cut.
    assert places(values.cuts(Cuts.SINGLE)) == [0, len(values.ops) - 1]
    assert places(values.cuts(Cuts.EVERY)) == list(range(len(values.ops)))
    handed_on = values.handed_on({0, 1, 2})
    assert [len(handed_on[place]) for place in (0, 1, 2)] == [1, 2, 3]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_cuts_are_given_up_until_few_enough_are_left_and_the_last_stays(most: int) -> None:
    values = ForwardValues(UNET, "a test")
    left = values.thinned(values.cuts(Cuts.EVERY), most)
    assert len(left) == most
    assert left == sorted(left)
    assert left[-1] == len(values.ops) - 1


def test_each_backward_op_is_in_the_layer_whose_values_it_reads() -> None:
    layers = cut_into_layers(CHAIN, "a test", Cuts.EVERY, 100).layers
    assert [[CHAIN.ops[op].name for op in layer.backward] for layer in layers] == [[], ["b1"], ["b2"], ["b3"], ["loss"]]


def test_a_run_frees_each_tensor_at_its_last_use_and_leaves_out_what_nobody_wants() -> None:
    layers = cut_into_layers(CHAIN, "a test", Cuts.EVERY, 100)
    gauge = Gauge(layers)
    index = CHAIN.arrays.op_index
    tensor = {name: number for number, name in enumerate(CHAIN.arrays.tensor_names)}
    run = gauge.run([index["f1"], index["f2"], index["f3"]], frozenset({tensor["a2"]}), frozenset())
    assert run.ops == (index["f1"], index["f2"])
    assert run.peak == 4
    assert gauge.base_bytes == CHAIN.fixed_bytes
    assert gauge.bytes([tensor["a1"], tensor["a2"]]) == 4
    assert gauge.backward_time.tolist() == [0, 2, 2, 2, 1]


def test_activations_that_layers_have_in_common_are_carried() -> None:
    gauge = Gauge(cut_into_layers(CHAIN, "a test", Cuts.EVERY, 100))
    carried = gauge.carried([frozenset({0}), frozenset({0, 1}), frozenset({1})])
    size = int(CHAIN.arrays.tensor_bytes[0])
    assert carried.tolist() == [[0, size, 0], [0, 0, size], [0, 0, 0]]
    assert array_of(iter([1, 2**60])).dtype == np.int64
