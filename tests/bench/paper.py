"""Figures printed by Kusumoto et al. 2019 in Tables 1 and 2, in GB (10^9 bytes), as the appendix gives them.

Table 2's percentages do not follow from its own GB columns (only GoogLeNet's do), so GB are what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One network's rows.

    Attributes:
        title: as in the paper.
        vanilla: peak of the plain run.
        table1: with liveness: approximate MC, approximate TC, exact MC, exact TC.
        table2: without liveness, in the same order.
        chen: with and without liveness; None where the paper says only that it is more than the device's 11.4 GB.
        smallest_budget: approximate and exact, from a careful reimplementation: the paper does not print B.
        smallest_simulated: the smallest peak that a sweep over B reached there, of an executor like PyTorch's.
    """

    title: str
    vanilla: float
    table1: tuple[float, float, float, float]
    table2: tuple[float, float, float, float]
    chen: tuple[float | None, float | None]
    smallest_budget: tuple[float, float]
    smallest_simulated: float


PUBLISHED: Mapping[str, Published] = {
    "pspnet": Published("PSPNet", 9.4, (2.7, 3.1, 2.8, 3.2), (3.2, 3.3, 3.3, 3.3), (4.0, 7.6), (2.454, 2.388), 2.00),
    "unet": Published("U-Net", 9.1, (5.0, 6.7, 4.7, 5.3), (6.8, 6.8, 6.8, 6.8), (7.4, None), (5.225, 4.878), 3.93),
    "resnet50": Published(
        "ResNet50", 8.9, (3.4, 4.4, 3.4, 4.3), (4.7, 4.4, 4.7, 4.4), (3.7, 6.7), (3.931, 3.776), 2.55
    ),
    "resnet152": Published(
        "ResNet152", 9.2, (2.3, 2.5, 2.3, 2.5), (2.8, 2.8, 2.8, 2.8), (2.4, 4.1), (2.197, 2.197), 1.81
    ),
    "vgg19": Published("VGG19", 7.0, (4.5, 5.5, 4.5, 5.5), (5.5, 5.5, 5.5, 5.5), (4.7, 6.3), (4.213, 4.213), 4.48),
    "densenet161": Published(
        "DenseNet161", 8.5, (1.6, 1.9, 1.7, 1.8), (1.9, 2.0, 1.9, 2.0), (1.8, 3.4), (1.676, 1.676), 1.49
    ),
    "googlenet": Published(
        "GoogLeNet", 8.5, (5.2, 5.5, 5.2, 5.9), (6.0, 6.0, 6.0, 6.0), (6.5, None), (3.905, 3.905), 4.17
    ),
}
