"""Training graphs as chains: where they are cut, what belongs to which layer, what the layers cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given

from remat_cli.core.graph import Graph, Kind, Op, Phase
from remat_cli.core.schedule import with_frees
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.rotor.needs import RotorNeeds
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.chain.linearisation import Linearised, linearise
from remat_cli.planners.shared.chain.model import ChainStep, Operation
from tests.graphs import diamond, graph_of, op, training_chain, training_graphs, training_unet


def chain_of(graph: Graph, cuts: Cuts = Cuts.EVERY, segments: int = 100) -> Linearised:
    return linearise(graph, "a test", cuts, segments)


def needs_of(graph: Graph) -> RotorNeeds:
    return RotorNeeds.measured(chain_of(graph).gauge)


def plain_steps(layers: int) -> list[ChainStep]:
    """Recompute nothing."""
    forward = [ChainStep(Operation.FORWARD_ALL, layer) for layer in range(1, layers + 1)]
    return [*forward, *(ChainStep(Operation.BACKWARD, layer) for layer in range(layers, 0, -1))]


def ops(linearised: Linearised, numbers: Iterable[int]) -> list[str]:
    return [linearised.graph.ops[number].name for number in numbers]


def tensors(linearised: Linearised, numbers: Iterable[int]) -> set[str]:
    return {linearised.graph.arrays.tensor_names[number] for number in numbers}


def forward_ops(linearised: Linearised) -> list[list[str]]:
    return [ops(linearised, layer.forward) for layer in linearised.cut.layers[1:]]


def backward_ops(linearised: Linearised) -> list[list[str]]:
    return [ops(linearised, layer.backward) for layer in linearised.cut.layers[1:]]


def backward(name: str, reads: str, makes: str, **fields: Any) -> Op:
    return op(name, reads, makes, phase=Phase.BACKWARD, **fields)


@pytest.mark.parametrize("cuts", Cuts)
def test_chain_is_cut_after_every_op_and_the_loss_is_the_last_layer(cuts: Cuts) -> None:
    linearised = chain_of(training_chain(3, size=2), cuts)
    assert len(linearised) == 4
    assert forward_ops(linearised) == [["f1"], ["f2"], ["f3"], []]
    assert backward_ops(linearised) == [["b1"], ["b2"], ["b3"], ["loss"]]
    assert [tensors(linearised, layer.activation) for layer in linearised.cut.layers] == [
        set(),
        {"a1"},
        {"a2"},
        {"a3"},
        set(),
    ]


def test_chain_costs_what_its_ops_do() -> None:
    needs = needs_of(training_chain(3, size=2, time=5))
    assert needs.forward_time.tolist() == [0, 5, 5, 5, 0]
    assert needs.no_grad_time.tolist() == [0, 5, 5, 5, 0]
    assert needs.backward_time.tolist() == [0, 10, 10, 10, 5]
    # b1 makes g0, which nobody reads: it is an output of the graph.
    assert needs.gradient.tolist() == [2, 2, 2, 2, 0]
    # a3 is read by the loss, whose input it is.
    assert needs.saved.tolist() == [0, 2, 2, 2, 0]
    assert needs.all_need.tolist() == [0, 2, 2, 2, 0]
    assert needs.backward_need.tolist() == [0, 4, 4, 4, 2]
    # F_ck(1), F_none(2), F_none(3): a1, then a1 and a2, then a2 and a3.
    assert needs.check_need[1].tolist() == [0, 2, 4, 4, 4]
    assert needs.kept[1].tolist() == [0, 2, 2, 2, 0]
    # Once b3 is done, nobody needs a2 but b3: to make it again for b2 would be in vain.
    assert needs.closing_time.tolist() == needs.closing_need.tolist() == [0, 0, 0, 0, 0]


def test_workspace_and_what_an_op_makes_beside_are_counted() -> None:
    graph = graph_of(
        op("f1", "", "a1 extra", workspace_bytes=3),
        op("f2", "a1", "a2"),
        backward("loss", "a2", "g2"),
        backward("b2", "a1 a2 g2", "g1", workspace_bytes=7, grad_of="f2"),
        backward("b1", "a1 g1", "end", grad_of="f1"),
        sizes={"a1": 2, "extra": 4},
        kind=Kind.TRAINING,
        outputs=["end"],
    )
    needs = needs_of(graph)
    assert needs.all_need.tolist() == [0, 2 + 4 + 3, 1, 0]
    assert needs.check_need[1, 1] == 2 + 4 + 3
    assert needs.backward_need.tolist() == [0, 2 + 1 + 1, 1 + 1 + 1 + 7, 1]


def test_op_that_works_in_place_needs_less() -> None:
    graph = graph_of(
        op("f1", "", "a1"),
        op("f2", "a1", "a2"),
        op("f3", "a2", "a3"),
        backward("loss", "a3", "g3"),
        backward("b3", "a3 g3", "g2", inplace="g3", grad_of="f3"),
        backward("b2", "a2 g2", "g1", grad_of="f2"),
        backward("b1", "a1 g1", "end", grad_of="f1"),
        sizes={"g3": 4, "g2": 4},
        kind=Kind.TRAINING,
    )
    assert needs_of(graph).backward_need.tolist() == [0, 3, 1 + 4 + 1, 1 + 4, 4]


def test_what_no_backward_reads_passes() -> None:
    graph = graph_of(
        op("f1", "", "a1"),
        op("f2", "a1", "a2"),
        op("f3", "a2", "a3"),
        backward("loss", "a3", "g3"),
        backward("b3", "a3 g3", "g2", grad_of="f3"),
        backward("b2", "a1 g2", "g1", grad_of="f2"),
        backward("b1", "g1", "end", grad_of="f1"),
        sizes={"a1": 2, "a2": 8, "a3": 1},
        kind=Kind.TRAINING,
    )
    needs = needs_of(graph)
    assert needs.passing.tolist() == [0, 0, 8, 0, 0]
    assert needs.saved.tolist() == [0, 2, 0, 1, 0]
    # F_all(3) finds a2, and frees it.
    assert needs.all_need.tolist() == [0, 2, 8, 9, 0]


def test_unet_has_one_large_segment_unless_cuts_may_hand_on_several_tensors() -> None:
    graph = training_unet(3)
    single, every = chain_of(graph, Cuts.SINGLE), chain_of(graph, Cuts.EVERY)
    assert [len(layer) for layer in forward_ops(single)] == [1, 6, 0]
    assert ops(single, single.largest_segment.forward) == ["down2", "down3", "bottom", "up3", "up2", "up1"]
    assert [len(layer) for layer in forward_ops(every)] == [1] * 7 + [0]
    assert tensors(every, every.cut.layers[3].activation) == {"d1", "d2", "d3"}
    size = {name: tensor.bytes for name, tensor in graph.tensors.items()}
    kept = RotorNeeds.measured(every.gauge).kept
    assert kept[1, 3] == size["d1"] + size["d2"] + size["d3"]
    # d1 and d2 were there when layer 3 began.
    assert kept[3, 3] == size["d3"]


def test_several_does_not_cut_where_the_backward_reads_nothing_that_is_handed_on() -> None:
    graph = graph_of(
        op("conv", "", "a"),
        op("norm", "a", "b"),
        op("relu", "b", "c"),
        op("head", "c", "d"),
        backward("loss", "d", "gd"),
        backward("b_head", "c gd", "gc", grad_of="head"),
        backward("b_relu", "c gc", "gb", grad_of="relu"),
        backward("b_norm", "a gb", "ga", grad_of="norm"),
        kind=Kind.TRAINING,
    )
    assert forward_ops(chain_of(graph, Cuts.SEVERAL)) == [["conv"], ["norm", "relu"], ["head"], []]
    assert forward_ops(chain_of(graph, Cuts.EVERY)) == [["conv"], ["norm"], ["relu"], ["head"], []]


def test_of_too_many_cuts_those_that_hand_on_little_are_kept() -> None:
    graph = training_chain(7)
    wide = {f"a{number}": 9 for number in (1, 3, 4, 6)}
    narrow = graph_of(*graph.ops, sizes=wide, kind=Kind.TRAINING)
    linearised = chain_of(narrow, segments=3)
    assert forward_ops(linearised) == [["f1", "f2"], ["f3", "f4", "f5"], ["f6", "f7"], []]


def test_values_that_a_gradient_needs_too_early_join_the_segments_between() -> None:
    # b1 runs right after the loss and reads a2, which then is still far ahead; b3 waits for it.
    graph = graph_of(
        op("f1", "", "a1"),
        op("f2", "a1", "a2"),
        op("f3", "a2", "a3"),
        op("f4", "a3", "a4"),
        backward("loss", "a4", "g4"),
        backward("b1", "a1 g4", "g"),
        backward("b3", "a3 g", "end"),
        kind=Kind.TRAINING,
    )
    assert forward_ops(chain_of(graph)) == [["f1"], ["f2", "f3"], ["f4"], []]


def test_backward_of_a_value_may_belong_to_the_op_that_reads_it() -> None:
    # As in the public data sets: g2 is the gradient of a2, and is made from a2 and a3.
    graph = graph_of(
        op("f1", "", "a1"),
        op("f2", "a1", "a2"),
        op("f3", "a2", "a3"),
        backward("loss", "a3", "g3"),
        backward("b2", "a2 a3 g3", "g2", grad_of="f2"),
        backward("b1", "a1 a2 g2", "g1", grad_of="f1"),
        kind=Kind.TRAINING,
    )
    linearised = chain_of(graph)
    assert forward_ops(linearised) == [["f1"], ["f2"], ["f3"], []]
    assert backward_ops(linearised) == [[], ["b1"], ["b2"], ["loss"]]


def with_dropout() -> Graph:
    """`drop` must run once; its mask is read by the backward, and its result by f2."""
    return graph_of(
        op("f1", "", "a1"),
        op("drop", "a1", "dropped mask", recomputable=False, time=9),
        op("f2", "dropped", "a2"),
        op("f3", "a2", "a3"),
        backward("loss", "a3", "g3"),
        backward("b3", "a2 g3", "g2", grad_of="f3"),
        backward("b2", "dropped g2", "gd", grad_of="f2"),
        backward("b_drop", "mask gd", "g1", grad_of="drop"),
        sizes={"mask": 3, "dropped": 2},
        kind=Kind.TRAINING,
    )


def test_what_cannot_be_made_again_stays_and_is_none_of_the_chains_business() -> None:
    linearised = chain_of(with_dropout())
    assert tensors(linearised, linearised.cut.pinned) == {"mask", "dropped"}
    assert ops(linearised, linearised.cut.once) == ["drop"]
    assert linearised.base_bytes == 5
    assert linearised.base_time == 9
    # dropped goes with the backward of f2, and the mask with that of drop; one gradient is there at a time.
    assert RotorNeeds.measured(linearised.gauge).gradient.tolist() == [1 - 5, 1 - 5, 1 - 2, 1, 1, 0]


def test_what_runs_once_does() -> None:
    linearised = chain_of(with_dropout())
    every_layer_twice = [
        *(ChainStep(Operation.FORWARD_CHECK, layer) for layer in (1,)),
        *(ChainStep(Operation.FORWARD_NONE, layer) for layer in range(2, len(linearised))),
        ChainStep(Operation.FORWARD_ALL, len(linearised)),
        ChainStep(Operation.BACKWARD, len(linearised)),
        *plain_steps(len(linearised) - 1),
    ]
    computes = linearised.computes(every_layer_twice)
    assert computes.count("drop") == 1
    assert computes.count("f2") == 2
    simulate(linearised.graph, with_frees(linearised.graph, computes))


def test_results_of_the_forward_pass_stay() -> None:
    chain = training_chain(3)
    graph = graph_of(*chain.ops, sizes={"a3": 5}, outputs=["a3", "g0"], kind=Kind.TRAINING)
    linearised = chain_of(graph)
    assert tensors(linearised, linearised.cut.pinned) == {"a3"}
    assert linearised.base_bytes == 5
    assert RotorNeeds.measured(linearised.gauge).gradient.tolist() == [1, 1, 1, 1, 0]


def test_head_with_a_loss_of_its_own_is_handed_on_to_the_loss() -> None:
    graph = graph_of(
        op("f1", "", "a1"),
        op("head", "a1", "h"),
        op("f2", "a1", "a2"),
        op("f3", "a2", "a3"),
        backward("loss", "a3 h", "g3 gh"),
        backward("b3", "a2 g3", "g2"),
        backward("b2", "a1 g2 gh", "g1"),
        kind=Kind.TRAINING,
    )
    linearised = chain_of(graph)
    assert backward_ops(linearised)[-1] == ["loss"]
    assert tensors(linearised, linearised.cut.layers[-2].activation) == {"a3", "h"}


def test_steps_run_their_ops_and_nothing_in_vain() -> None:
    linearised = chain_of(training_chain(3))
    block = [
        ChainStep(Operation.FORWARD_CHECK, 1),
        ChainStep(Operation.FORWARD_NONE, 2),
        ChainStep(Operation.FORWARD_ALL, 3),
        ChainStep(Operation.FORWARD_ALL, 4),
        ChainStep(Operation.BACKWARD, 4),
        ChainStep(Operation.BACKWARD, 3),
        ChainStep(Operation.FORWARD_ALL, 1),
        ChainStep(Operation.FORWARD_ALL, 2),
        ChainStep(Operation.BACKWARD, 2),
        ChainStep(Operation.BACKWARD, 1),
    ]
    runs = [ops(linearised, each) for each in linearised.runs(block)]
    # a2 is there no more when b2 runs, which reads a1 only.
    assert runs == [["f1"], ["f2"], ["f3"], [], ["loss"], ["b3"], ["f1"], [], ["b2"], ["b1"]]


@pytest.mark.parametrize("cuts", Cuts)
@given(graph=training_graphs(max_forward_ops=8))
def test_every_op_belongs_to_one_layer_and_recomputing_nothing_is_the_plain_run(cuts: Cuts, graph: Graph) -> None:
    linearised = chain_of(graph, cuts)
    layers = linearised.cut.layers
    assert sorted(op for layer in layers for op in (*layer.forward, *layer.backward)) == list(range(len(graph.ops)))
    trace = simulate(graph, with_frees(graph, linearised.computes(plain_steps(len(linearised)))))
    assert trace.time == baseline_of(graph).time
    needs = RotorNeeds.measured(linearised.gauge)
    assert trace.time == linearised.base_time + int((needs.forward_time + needs.backward_time).sum())


def test_graph_without_a_backward_is_refused() -> None:
    with pytest.raises(PlannerRefuses, match="a test plans training graphs"):
        chain_of(diamond())
