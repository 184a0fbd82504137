"""A training step for remat: `remat plan graphs/train.py:step --dim batch=64 --budget 80%`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Digits(nn.Module):
    """A small convolutional classifier of 28 x 28 images, with its loss."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * width * 7 * 7, 10))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return cross_entropy(self.head(self.features(images)), labels)


def step(batch: int = 64) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the model and what it is called with: all that remat needs to know of a training step."""
    return Digits(), (torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,)))
