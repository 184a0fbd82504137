"""Builds gpt.onnx: a decoder in the manner of GPT-2 (Radford et al., 2019), its attention written out in single ops.

Six layers, 512 wide, 8 heads, 32,000 tokens, up to 1024 positions; 52.2 million parameters; ends with the logits.
Causal mask and positions are computed from the length of the input, as exporters write them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_builder import ModelBuilder, write

LAYERS = 6
WIDTH = 512
HEADS = 8
HEAD_WIDTH = WIDTH // HEADS
TOKENS = 32_000
POSITIONS = 1024


def build() -> onnx.ModelProto:
    """Return the model; batch and sequence length are symbolic."""
    model = ModelBuilder("gpt")
    ids = model.input("input_ids", TensorProto.INT64, ["batch", "seq"])
    length = model.node("Shape", "length", [ids], start=1, end=2)
    mask = _causal_mask(model, length)
    x = _embeddings(model, ids, length)
    model.constant("heads_shape", np.array([0, 0, HEADS, HEAD_WIDTH], dtype=np.int64))
    model.constant("merged_shape", np.array([0, 0, WIDTH], dtype=np.int64))
    model.constant("score_scale", np.array(HEAD_WIDTH**-0.5, dtype=np.float32))
    for layer in range(1, LAYERS + 1):
        x = _attention(model, x, mask, f"layer{layer}.attn")
        x = _mlp(model, x, f"layer{layer}.mlp")
    x = _layer_norm(model, x, "final.norm")
    logits = model.node("MatMul", "logits", [x, model.weight("head.weight", WIDTH, TOKENS)])
    return model.model(logits, TensorProto.FLOAT, ["batch", "seq", TOKENS])


def _embeddings(model: ModelBuilder, ids: str, length: str) -> str:
    ones = model.node("ConstantOfShape", "ones", [length], value=helper.make_tensor("", TensorProto.INT64, [1], [1]))
    axis = model.constant("first_axis", np.array(0, dtype=np.int64))
    positions = model.node("CumSum", "positions", [ones, axis], exclusive=1)
    token = model.node("Gather", "embed.token", [model.weight("token.weight", TOKENS, WIDTH), ids])
    position = model.node("Gather", "embed.position", [model.weight("position.weight", POSITIONS, WIDTH), positions])
    return model.node("Add", "embed", [token, position])


def _causal_mask(model: ModelBuilder, length: str) -> str:
    """Add the [seq, seq] matrix that is 0 where a token may look and -inf above the diagonal."""
    square = model.node("Concat", "mask.shape", [length, length], axis=0)
    minus_infinity = helper.make_tensor("", TensorProto.FLOAT, [1], [-np.inf])
    full = model.node("ConstantOfShape", "mask.full", [square], value=minus_infinity)
    above = model.constant("mask.diagonal", np.array(1, dtype=np.int64))
    return model.node("Trilu", "mask", [full, above], upper=1)


def _attention(model: ModelBuilder, x: str, mask: str, name: str) -> str:
    """Add causal self-attention with its residual connection."""
    packed = _linear(model, _layer_norm(model, x, f"{name}.norm"), f"{name}.qkv", WIDTH, 3 * WIDTH)
    q, k, v = f"{name}.q", f"{name}.k", f"{name}.v"
    model.node("Split", q, [packed], further_outputs=[k, v], axis=2, num_outputs=3)
    q = _split_heads(model, q, perm=[0, 2, 1, 3])
    k = _split_heads(model, k, perm=[0, 2, 3, 1])
    v = _split_heads(model, v, perm=[0, 2, 1, 3])
    scores = model.node("MatMul", f"{name}.scores", [q, k])
    scores = model.node("Mul", f"{name}.scaled", [scores, "score_scale"])
    scores = model.node("Add", f"{name}.masked", [scores, mask])
    weights = model.node("Softmax", f"{name}.softmax", [scores], axis=-1)
    mixed = model.node("MatMul", f"{name}.mixed", [weights, v])
    mixed = model.node("Transpose", f"{name}.mixed.t", [mixed], perm=[0, 2, 1, 3])
    mixed = model.node("Reshape", f"{name}.merged", [mixed, "merged_shape"])
    return model.node("Add", f"{name}.residual", [x, _linear(model, mixed, f"{name}.out", WIDTH, WIDTH)])


def _split_heads(model: ModelBuilder, x: str, *, perm: list[int]) -> str:
    heads = model.node("Reshape", f"{x}.heads", [x, "heads_shape"])
    return model.node("Transpose", f"{x}.t", [heads], perm=perm)


def _mlp(model: ModelBuilder, x: str, name: str) -> str:
    """Add the feed-forward part with its residual connection."""
    inner = _linear(model, _layer_norm(model, x, f"{name}.norm"), f"{name}.up", WIDTH, 4 * WIDTH)
    inner = model.node("Gelu", f"{name}.gelu", [inner], approximate="tanh")
    return model.node("Add", f"{name}.residual", [x, _linear(model, inner, f"{name}.down", 4 * WIDTH, WIDTH)])


def _linear(model: ModelBuilder, x: str, name: str, inputs: int, outputs: int) -> str:
    product = model.node("MatMul", name, [x, model.weight(f"{name}.weight", inputs, outputs)])
    return model.node("Add", f"{name}.biased", [product, model.weight(f"{name}.bias", outputs)])


def _layer_norm(model: ModelBuilder, x: str, name: str) -> str:
    weights = [model.weight(f"{name}.weight", WIDTH), model.weight(f"{name}.bias", WIDTH)]
    return model.node("LayerNormalization", name, [x, *weights], axis=-1)


def main() -> None:
    """Write the model next to this script."""
    write(build(), Path(__file__).with_suffix(".onnx"))


if __name__ == "__main__":
    main()
