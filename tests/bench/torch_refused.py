"""Models that cannot be captured as one graph, and are planned by regions: routing, masks, layers dropped at random."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.torch_steps import GPT

Step = tuple[nn.Module, Any]


class MaskedLoss(GPT):
    """A GPT with a loss over what a boolean mask picks: its size depends on data."""

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits, wanted = self.head(x).flatten(0, 1), targets.flatten()
        kept = wanted > 20
        return F.cross_entropy(logits[kept], wanted[kept])


class Routed(GPT):
    """A GPT that routes tokens to experts by `nonzero` between its blocks."""

    def __init__(self, depth: int, width: int, vocabulary: int) -> None:
        super().__init__(depth, width, vocabulary, 0.1)
        self.router, self.first, self.second = nn.Linear(width, 2), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
            flat = x.flatten(0, 1)
            choice, out = self.router(flat).argmax(-1), torch.zeros_like(flat)
            for number, expert in enumerate((self.first, self.second)):
                rows = (choice == number).nonzero()[:, 0]
                if rows.numel():
                    out = out.index_add(0, rows, expert(flat[rows]))
            x = x + out.view_as(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class GraphConvolution(nn.Module):
    """Sums over the edges of a graph, each divided by the degrees of its ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm, self.up = nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return new features of each node."""
        degrees = torch.ones(x.shape[0]).index_add(0, edges[1], torch.ones(edges.shape[1])).rsqrt()
        weights = (degrees[edges[0]] * degrees[edges[1]])[:, None]
        h = self.linear(x)
        h = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]] * weights)
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.norm(h))))
        return out


class GraphNetwork(nn.Module):
    """Leaves out edges from a node to itself: how many stay depends on data."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraphConvolution(width) for _ in range(depth))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        edges = edges[:, edges[0] != edges[1]]
        for layer in self.layers:
            x = layer(x, edges)
        return x.square().mean()


def _tokens(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(512, (batch, length)), torch.randint(512, (batch, length))


def masked_loss(batch: int = 4, length: int = 128) -> Step:
    """Return a GPT with a masked loss."""
    return MaskedLoss(8, 128, 512, 0.1), _tokens(batch, length)


def routed(batch: int = 4, length: int = 128) -> Step:
    """Return a GPT with experts between its blocks."""
    return Routed(8, 128, 512), _tokens(batch, length)


def graph_network(nodes: int = 512) -> Step:
    """Return a network of graph convolutions."""
    return GraphNetwork(8, 64), (torch.randn(nodes, 64), torch.randint(nodes, (2, 4 * nodes)))


def _speech(config: Any, model: Any) -> Step:
    made = model(
        config(
            hidden_size=96,
            num_hidden_layers=8,
            num_attention_heads=4,
            intermediate_size=384,
            conv_dim=(32, 32, 32),
            conv_kernel=(10, 3, 3),
            conv_stride=(5, 2, 2),
            num_feat_extract_layers=3,
            vocab_size=32,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            mask_time_length=2,
            layerdrop=0.1,
            ctc_loss_reduction="mean",
        )
    )
    return made, {"input_values": torch.randn(4, 3200), "labels": torch.randint(1, 31, (4, 12))}


def wav2vec2() -> Step:
    """Return a small wav2vec 2.0."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    return _speech(Wav2Vec2Config, Wav2Vec2ForCTC)


def hubert() -> Step:
    """Return a small HuBERT."""
    from transformers import HubertConfig, HubertForCTC

    return _speech(HubertConfig, HubertForCTC)


def yolos(batch: int = 4) -> Step:
    """Return a small YOLOS, whose loss matches boxes on the host; that needs SciPy."""
    from transformers import YolosConfig, YolosForObjectDetection

    config = YolosConfig(
        hidden_size=96,
        num_hidden_layers=8,
        num_attention_heads=4,
        intermediate_size=384,
        image_size=[64, 64],
        patch_size=8,
        num_detection_tokens=20,
        num_labels=4,
    )
    found = [{"class_labels": torch.tensor([1, 2]), "boxes": torch.rand(2, 4) * 0.4 + 0.3} for _ in range(batch)]
    return YolosForObjectDetection(config), {"pixel_values": torch.randn(batch, 3, 64, 64), "labels": found}
