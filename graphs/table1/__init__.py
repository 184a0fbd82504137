"""The seven networks of Kusumoto et al. 2019, Table 1: forward passes with one op for every vertex of theirs.

What makes a vertex follows Chainer 5 and chainercv, which the paper's authors used.
"""

from __future__ import annotations

from collections.abc import Callable

from table1 import densenet, googlenet, pspnet, resnet, unet, vgg
from table1.value_graph import ValueGraph

NETWORKS: dict[str, Callable[[], ValueGraph]] = {
    "pspnet": pspnet.build,
    "unet": unet.build,
    "resnet50": resnet.build_resnet50,
    "resnet152": resnet.build_resnet152,
    "vgg19": vgg.build,
    "densenet161": densenet.build,
    "googlenet": googlenet.build,
}
