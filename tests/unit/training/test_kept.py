"""How much is kept of the forward pass for the backward."""

from __future__ import annotations

from remat_cli.core.graph import Graph
from remat_cli.training import annotate_saves, kept_for_backward, training_graph
from tests.operators import Model, constant, value, weight


def trained(model: Model) -> Graph:
    graph, _ = annotate_saves(model.graph(), model.operators)
    return training_graph(graph)


def test_u_net_level_keeps_inputs_of_convolutions_and_normalisations_and_outputs_of_activations() -> None:
    model = Model()
    full, half = (2, 4, 8, 8), (2, 4, 4, 4)  # 2048 and 512 bytes
    norm = [weight(name, 4) for name in ("scale", "bias", "mean", "variance")]
    c = model.add("Conv", [value("image", 2, 3, 8, 8), weight("w", 4, 3, 3, 3)], value("c", *full))
    n = model.add("BatchNormalization", [c, *norm], value("n", *full))
    r = model.add("Relu", [n], value("r", *full))
    p = model.add("MaxPool", [r], value("p", *half))
    d = model.add("Conv", [p, weight("v", 4, 4, 3, 3)], value("d", *half))
    u = model.add("ConvTranspose", [d, weight("u", 4, 4, 2, 2)], value("up", *full))
    joined = model.add("Concat", [r, u], value("joined", 2, 8, 8, 8))
    model.add("Conv", [joined, weight("out", 2, 8, 1, 1)], value("y", 2, 2, 8, 8))
    kept = kept_for_backward(trained(model))
    statistics = {"BatchNormalization.n.mean", "BatchNormalization.n.inv_std"}
    assert set(kept.tensors) == {"c", "r", "MaxPool.p.indices", "p", "d", "joined", *statistics}
    assert kept.float_bytes == 2048 + 2048 + 512 + 512 + 4096 + 2 * 4 * 4
    assert kept.integer_bytes == 512 * 2


def test_attention_keeps_copies_of_keys_and_values_instead_of_the_row_that_they_are_part_of() -> None:
    model = Model()
    tokens, split, heads, scores = (2, 8, 16), (2, 8, 4, 4), (2, 4, 8, 4), (2, 4, 8, 8)
    packed = model.add("MatMul", [value("in", *tokens), weight("w", 16, 48)], value("packed", 2, 8, 48))
    parts = [value(name, *tokens) for name in "qkv"]
    model.add("Split", [packed], *parts, view_of=packed)
    q, k, v = (
        model.add(
            "Transpose",
            [model.add("Reshape", [part], value(f"{part.name}_split", *split), view_of=packed)],
            value(f"{part.name}_heads", *shape),
            view_of=packed,
            attributes={"perm": axes},
        )
        for part, axes, shape in zip(
            parts, [(0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)], [heads, (2, 4, 4, 8), heads], strict=True
        )
    )
    scaled = model.add("Mul", [q, constant("c", 1)], value("scaled", *heads))
    score = model.add("MatMul", [scaled, k], value("score", *scores))
    weights = model.add("Softmax", [score], value("weights", *scores))
    model.add("MatMul", [weights, v], value("y", *heads))
    kept = kept_for_backward(trained(model))
    # The queries are kept scaled, which leaves their dimensions in the same order; the scores are not kept.
    copies = {f"MatMul.{copy}" for copy in ("score.copy of scaled", "score.copy of k_heads", "y.copy of v_heads")}
    assert set(kept.tensors) == {"weights", *copies}
    assert kept.float_bytes == 1024 + 2048 + 2 * 1024
    assert kept.integer_bytes == 0


def test_gather_keeps_what_it_gathers_from() -> None:
    model = Model()
    x = model.add("MatMul", [value("in", 4, 8), weight("w", 8, 8)], value("x", 4, 8))
    indices = constant("indices", 4, 2, dtype="int64")
    model.add("GatherElements", [x, indices], value("y", 4, 2), attributes={"axis": 1})
    assert kept_for_backward(trained(model)).tensors == ("x",)


def test_the_weights_of_a_recurrent_layer_are_no_activations_in_whatever_order_a_file_needs_them() -> None:
    model = Model()
    x = model.add("MatMul", [value("in", 5, 2, 4), weight("w", 4, 4)], value("x", 5, 2, 4))
    ordered = [
        model.add("Concat", [weight(f"{name}_new", 1, 8, 4), weight(f"{name}_reset", 1, 4, 4)], value(name, 1, 12, 4))
        for name in ("input_weights", "state_weights")
    ]
    model.add("GRU", [x, *ordered], value("y", 5, 1, 2, 4), attributes={"hidden_size": 4})
    assert set(kept_for_backward(trained(model)).tensors) == {"x", "y", "GRU.y.gates"}


def test_graph_inputs_and_what_only_the_loss_reads_do_not_count() -> None:
    model = Model()
    model.add("Conv", [value("image", 2, 3, 8, 8), weight("w", 4, 3, 3, 3)], value("y", 2, 4, 8, 8))
    kept = kept_for_backward(trained(model))
    assert kept.tensors == ()
    assert kept.float_bytes == kept.integer_bytes == 0


def test_masks_count_with_the_integers() -> None:
    model = Model()
    x = model.add("MatMul", [value("in", 4, 4), weight("w", 4, 4)], value("x", 4, 4))
    model.add("Dropout", [x, constant("ratio")], value("y", 4, 4))
    kept = kept_for_backward(trained(model))
    assert (kept.float_bytes, kept.integer_bytes) == (0, 16)
