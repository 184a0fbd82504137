"""Llama."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.generate.generator import Generated, check_range
from remat_cli.generate.network import NetworkBuilder, Shape


@dataclass(frozen=True)
class Llama:
    """A Llama 3 decoder in bfloat16, with fused attention.

    By default it has 8 billion parameters.

    Source: Grattafiori et al., The Llama 3 Herd of Models, 2024, table 3.
    Makes: forward graphs, from which training graphs are derived; they end with the logits.
    Size: 16 forward ops a layer, 37 in training.

    Attributes:
        layers: depth; 80 in the model of 70 billion parameters.
        width: width of the model, a multiple of the heads; 8192 in the model of 70 billion.
        heads: heads of attention; 64 in the model of 70 billion.
        groups: heads of keys and values, a divisor of the heads.
        hidden: width of the feed-forward part; 28672 in the model of 70 billion.
        sequence: tokens of a text.
        batch: number of texts.
        vocabulary: number of tokens.
    """

    grows_by: ClassVar[str] = "layers"

    layers: int = 32
    width: int = 4096
    heads: int = 32
    groups: int = 8
    hidden: int = 14_336
    sequence: int = 8192
    batch: int = 1
    vocabulary: int = 128_256

    def __post_init__(self) -> None:
        names = ("layers", "width", "heads", "groups", "hidden", "sequence", "batch", "vocabulary")
        check_range(self, **dict.fromkeys(names, (1, inf)))
        if self.width % self.heads:
            raise UsageError(
                f"width is {self.width}, no multiple of {self.heads} heads",
                hint=f"give heads a divisor of the width, or a width like {-(-self.width // self.heads) * self.heads}",
            )
        if self.heads % self.groups:
            raise UsageError(
                f"groups is {self.groups}, no divisor of {self.heads} heads", hint="each group serves as many heads"
            )

    def generate(self) -> Generated:
        """Generate the graph."""
        return _Decoder(self).generated()


class _Decoder:
    """The decoder while it is built."""

    def __init__(self, options: Llama) -> None:
        self._options = options
        self._network = NetworkBuilder("bfloat16")

    def generated(self) -> Generated:
        """Return the whole model."""
        options, network = self._options, self._network
        ids = network.input("input_ids", (options.batch, options.sequence), "int64")
        table = network.weight("embed.weight", options.vocabulary, options.width)
        x = network.op("Gather", "embed", (table, ids), self._tokens(options.width))
        for layer in range(1, options.layers + 1):
            x = self._attention(x, f"layer{layer}.attn")
            x = self._feed_forward(x, f"layer{layer}.mlp")
        logits = self._linear(self._norm(x, "final.norm"), "head", options.width, options.vocabulary)
        name = (
            f"llama_l{options.layers}_w{options.width}_h{options.heads}_g{options.groups}_f{options.hidden}"
            f"_s{options.sequence}_b{options.batch}_v{options.vocabulary}"
        )
        return network.generated(name, logits)

    def _tokens(self, width: int) -> Shape:
        """Return the shape of values with `width` elements a token."""
        return (self._options.batch, self._options.sequence, width)

    def _attention(self, x: str, name: str) -> str:
        """Add causal self-attention with its residual connection.

        Queries share keys and values in groups.
        """
        options, network = self._options, self._network
        size = options.width // options.heads
        shared = options.groups * size
        normed = self._norm(x, f"{name}.norm")
        q = self._rotated(self._linear(normed, f"{name}.q", options.width, options.width), options.heads)
        k = self._rotated(self._linear(normed, f"{name}.k", options.width, shared), options.groups)
        v = self._linear(normed, f"{name}.v", options.width, shared)
        mixed = network.op(
            "Attention",
            f"{name}.mixed",
            (q, k, v),
            self._tokens(options.width),
            is_causal=1,
            q_num_heads=options.heads,
            kv_num_heads=options.groups,
        )
        result = self._linear(mixed, f"{name}.out", options.width, options.width)
        return network.op("Add", f"{name}.residual", (x, result), self._tokens(options.width))

    def _rotated(self, x: str, heads: int) -> str:
        """Add the rotary embedding of queries or keys."""
        options, network = self._options, self._network
        half = options.width // options.heads // 2
        waves = tuple(network.constant(name, options.sequence, half) for name in ("cos", "sin"))
        width = heads * (options.width // options.heads)
        return network.op("RotaryEmbedding", f"{x}.rotated", (x, *waves), self._tokens(width), num_heads=heads)

    def _feed_forward(self, x: str, name: str) -> str:
        """Add the gated feed-forward part with its residual connection."""
        options, network = self._options, self._network
        normed = self._norm(x, f"{name}.norm")
        gate = self._linear(normed, f"{name}.gate", options.width, options.hidden)
        gate = network.op("Swish", f"{name}.swish", (gate,), self._tokens(options.hidden))
        up = self._linear(normed, f"{name}.up", options.width, options.hidden)
        inner = network.op("Mul", f"{name}.gated", (gate, up), self._tokens(options.hidden))
        result = self._linear(inner, f"{name}.down", options.hidden, options.width)
        return network.op("Add", f"{name}.residual", (x, result), self._tokens(options.width))

    def _linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        weight = self._network.weight(f"{name}.weight", inputs, outputs)
        return self._network.op("MatMul", name, (x, weight), self._tokens(outputs))

    def _norm(self, x: str, name: str) -> str:
        width = self._options.width
        scale = self._network.weight(f"{name}.weight", width)
        return self._network.op("RMSNormalization", name, (x, scale), self._tokens(width), axis=-1)
