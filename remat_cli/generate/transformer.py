"""Transformers."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.generate.generator import Generated, check_range
from remat_cli.generate.network import NetworkBuilder, Shape

_UP = 4  # the feed-forward part is this many times as wide as the model


@dataclass(frozen=True)
class Transformer:
    """A GPT-2 decoder of single ops, which ends with the logits.

    Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    Makes: forward graphs, from which training graphs are derived.
    Size: 27 forward ops a layer, 56 in training; with fused attention 23 and 48.

    Attributes:
        layers: depth.
        width: width of the model, a multiple of the heads.
        heads: heads of attention.
        sequence: tokens of a text.
        batch: number of texts.
        vocabulary: number of tokens.
        fused_attention: attention is one op, which keeps no attention weights; false: attention is spelled out in ops.
    """

    grows_by: ClassVar[str] = "layers"

    layers: int = 12
    width: int = 768
    heads: int = 12
    sequence: int = 512
    batch: int = 8
    vocabulary: int = 32_000
    fused_attention: bool = False

    def __post_init__(self) -> None:
        names = ("layers", "width", "heads", "sequence", "batch", "vocabulary")
        check_range(self, **dict.fromkeys(names, (1, inf)))
        if self.width % self.heads:
            raise UsageError(
                f"width is {self.width}, no multiple of {self.heads} heads",
                hint=f"give heads a divisor of the width, or a width like {-(-self.width // self.heads) * self.heads}",
            )

    def generate(self) -> Generated:
        """Generate the graph."""
        return _Decoder(self).generated()


class _Decoder:
    """The decoder while it is built."""

    def __init__(self, options: Transformer) -> None:
        self._options = options
        self._network = NetworkBuilder()

    def generated(self) -> Generated:
        """Return the whole model."""
        options, network = self._options, self._network
        x = self._embeddings()
        for layer in range(1, options.layers + 1):
            x = self._attention(x, f"layer{layer}.attn")
            x = self._feed_forward(x, f"layer{layer}.mlp")
        x = self._layer_norm(x, "final.norm")
        head = network.weight("head.weight", options.width, options.vocabulary)
        logits = network.op("MatMul", "logits", (x, head), self._tokens(options.vocabulary))
        name = (
            f"transformer_l{options.layers}_w{options.width}_h{options.heads}_s{options.sequence}_b{options.batch}"
            f"_v{options.vocabulary}{'_fused' if options.fused_attention else ''}"
        )
        return network.generated(name, logits)

    def _tokens(self, width: int) -> Shape:
        """Return the shape of values with `width` elements a token."""
        return (self._options.batch, self._options.sequence, width)

    def _embeddings(self) -> str:
        options, network = self._options, self._network
        ids = network.input("input_ids", (options.batch, options.sequence), "int64")
        table = network.weight("token.weight", options.vocabulary, options.width)
        token = network.op("Gather", "embed.token", (table, ids), self._tokens(options.width))
        position = network.weight("position.weight", options.sequence, options.width)
        return network.op("Add", "embed", (token, position), self._tokens(options.width))

    def _attention(self, x: str, name: str) -> str:
        """Add causal self-attention with its residual connection."""
        options, network = self._options, self._network
        packed = self._linear(self._layer_norm(x, f"{name}.norm"), f"{name}.qkv", options.width, 3 * options.width)
        parts = (f"{name}.q", f"{name}.k", f"{name}.v")
        q, k, v = network.views("Split", f"{name}.split", packed, parts, self._tokens(options.width))
        mixed = self._mix(q, k, v, name)
        size = options.width // options.heads
        mixed = network.view(
            "Transpose", f"{name}.mixed.t", mixed, (options.batch, options.sequence, options.heads, size)
        )
        # A transposed value has no reshaped view: this one is a copy.
        mixed = network.op("Reshape", f"{name}.merged", (mixed,), self._tokens(options.width))
        result = self._linear(mixed, f"{name}.out", options.width, options.width)
        return network.op("Add", f"{name}.residual", (x, result), self._tokens(options.width))

    def _mix(self, q: str, k: str, v: str, name: str) -> str:
        """Add each head's weighted sum of values.

        The weights come from queries and keys.
        """
        options, network = self._options, self._network
        size = options.width // options.heads
        by_head = (options.batch, options.heads, options.sequence, size)
        q, v = self._split_heads(q, by_head), self._split_heads(v, by_head)
        if options.fused_attention:
            k = self._split_heads(k, by_head)
            return network.op("Attention", f"{name}.mixed", (q, k, v), by_head, is_causal=1)
        k = self._split_heads(k, (options.batch, options.heads, size, options.sequence))
        square = (options.batch, options.heads, options.sequence, options.sequence)
        scale = network.constant("score_scale", 1)
        mask = network.constant("mask", options.sequence, options.sequence)
        scores = network.op("MatMul", f"{name}.scores", (q, k), square)
        scores = network.op("Mul", f"{name}.scaled", (scores, scale), square)
        scores = network.op("Add", f"{name}.masked", (scores, mask), square)
        weights = network.op("Softmax", f"{name}.softmax", (scores,), square, axis=-1)
        return network.op("MatMul", f"{name}.mixed", (weights, v), by_head)

    def _split_heads(self, x: str, shape: Shape) -> str:
        options = self._options
        heads = (options.batch, options.sequence, options.heads, options.width // options.heads)
        return self._network.view("Transpose", f"{x}.t", self._network.view("Reshape", f"{x}.heads", x, heads), shape)

    def _feed_forward(self, x: str, name: str) -> str:
        """Add the feed-forward part with its residual connection."""
        width, network = self._options.width, self._network
        inner = self._linear(self._layer_norm(x, f"{name}.norm"), f"{name}.up", width, _UP * width)
        inner = network.op("Gelu", f"{name}.gelu", (inner,), self._tokens(_UP * width), approximate="tanh")
        result = self._linear(inner, f"{name}.down", _UP * width, width)
        return network.op("Add", f"{name}.residual", (x, result), self._tokens(width))

    def _linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        network = self._network
        weight, bias = network.weight(f"{name}.weight", inputs, outputs), network.weight(f"{name}.bias", outputs)
        product = network.op("MatMul", name, (x, weight), self._tokens(outputs))
        return network.op("Add", f"{name}.biased", (product, bias), self._tokens(outputs))

    def _layer_norm(self, x: str, name: str) -> str:
        width, network = self._options.width, self._network
        weights = (network.weight(f"{name}.weight", width), network.weight(f"{name}.bias", width))
        return network.op("LayerNormalization", name, (x, *weights), self._tokens(width), axis=-1)
