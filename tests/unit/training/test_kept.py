"""How much is kept of the forward pass for the backward."""

from __future__ import annotations

from remat_cli.graph import Graph
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
    assert set(kept.tensors) == {"c", "r", "MaxPool.p.indices", "p", "d", "joined"}
    assert kept.float_bytes == 2048 + 2048 + 512 + 512 + 4096
    assert kept.integer_bytes == 512 * 2


def test_attention_keeps_queries_keys_values_and_weights_once() -> None:
    model = Model()
    tokens, heads, scores = (2, 8, 16), (2, 4, 8, 4), (2, 4, 8, 8)  # 1024, 1024 and 2048 bytes
    packed = model.add("MatMul", [value("in", *tokens), weight("w", 16, 48)], value("packed", 2, 8, 48))
    parts = [value(name, *tokens) for name in "qkv"]
    model.add("Split", [packed], *parts, view_of=packed)
    q, k, v = (model.add("Transpose", [part], value(f"{part.name}_heads", *heads), view_of=packed) for part in parts)
    scaled = model.add("Mul", [q, constant("c", 1)], value("scaled", *heads))
    score = model.add("MatMul", [scaled, k], value("score", *scores))
    weights = model.add("Softmax", [score], value("weights", *scores))
    model.add("MatMul", [weights, v], value("y", *heads))
    kept = kept_for_backward(trained(model))
    # Keys and values are views of one product; the queries are kept scaled; the scores are not kept.
    assert set(kept.tensors) == {"packed", "scaled", "weights"}
    assert kept.float_bytes == 3 * 1024 + 1024 + 2048
    assert kept.integer_bytes == 0


def test_graph_inputs_and_what_only_the_loss_reads_do_not_count() -> None:
    model = Model()
    model.add("Conv", [value("image", 2, 3, 8, 8), weight("w", 4, 3, 3, 3)], value("y", 2, 4, 8, 8))
    kept = kept_for_backward(trained(model))
    assert kept.tensors == ()
    assert kept.float_bytes == kept.integer_bytes == 0


def test_masks_count_with_the_integers() -> None:
    model = Model()
    x = model.add("MatMul", [value("in", 4, 4), weight("w", 4, 4)], value("x", 4, 4))
    model.add("Dropout", [x, constant("ratio"), constant("on", dtype="bool")], value("y", 4, 4))
    kept = kept_for_backward(trained(model))
    assert (kept.float_bytes, kept.integer_bytes) == (0, 16)
