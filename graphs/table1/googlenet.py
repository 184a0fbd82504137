"""GoogLeNet of Szegedy et al. (2015) with its two auxiliary heads, as Chainer's example trains it.

The branches of an inception end without a rectifier; one follows their concatenation. The losses are summed as they
are: Chainer weights those of the auxiliary heads by 0.3, in one more op than the paper's graph has vertices.
"""

from __future__ import annotations

from table1.value_graph import INPUT, ValueGraph

BATCH = 256
SIZE = 224
CLASSES = 1000
# Channels of the 1 x 1 convolution, of those before and of the 3 x 3, before and of the 5 x 5, and after the pooling.
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
POOL_AFTER = ("3b", "4e")
HEAD_AFTER = {"4a": "aux1", "4d": "aux2"}


def build() -> ValueGraph:
    """Return GoogLeNet for the paper's batch of 256."""
    net = ValueGraph("googlenet", BATCH, 3, SIZE, SIZE)
    x = _stem(net)
    auxiliary = []
    for name, channels in INCEPTIONS.items():
        x = _inception(net, x, f"inception{name}", channels)
        if name in POOL_AFTER:
            x = net.max_pool(x, f"inception{name}.pool", 2)
        if name in HEAD_AFTER:
            auxiliary.append(_auxiliary_head(net, x, HEAD_AFTER[name]))
    x = net.average_pool(x, "pool", 7, 1)
    x = net.elementwise("Dropout", x, "dropout")
    main = net.loss(net.flat_gemm(x, "head", CLASSES), "head.loss")
    net.add(net.add(auxiliary[0], auxiliary[1], "aux.loss"), main, "loss")
    return net


def _stem(net: ValueGraph) -> str:
    x = net.relu(net.conv(INPUT, "stem.conv1", 64, 7, stride=2), "stem.relu1")
    x = net.elementwise("LRN", net.max_pool(x, "stem.pool1", 2), "stem.lrn1")
    x = net.relu(net.conv(x, "stem.conv2", 64, 1), "stem.relu2")
    x = net.relu(net.conv(x, "stem.conv3", 192, 3), "stem.relu3")
    return net.max_pool(net.elementwise("LRN", x, "stem.lrn2"), "stem.pool2", 2)


def _inception(net: ValueGraph, x: str, name: str, channels: tuple[int, int, int, int, int, int]) -> str:
    """Add four branches on one input; `channels` are a row of `INCEPTIONS`."""
    single, before_3, of_3, before_5, of_5, pooled = channels
    branches = [net.conv(x, f"{name}.conv1", single, 1)]
    for kernel, reduced, full in ((3, before_3, of_3), (5, before_5, of_5)):
        y = net.relu(net.conv(x, f"{name}.reduce{kernel}", reduced, 1), f"{name}.reduce{kernel}.relu")
        branches.append(net.conv(y, f"{name}.conv{kernel}", full, kernel))
    branches.append(net.conv(net.max_pool(x, f"{name}.max", 1), f"{name}.project", pooled, 1))
    return net.relu(net.concat(branches, f"{name}.join"), f"{name}.relu")


def _auxiliary_head(net: ValueGraph, x: str, name: str) -> str:
    x = net.average_pool(x, f"{name}.pool", 5, 3)
    x = net.relu(net.conv(x, f"{name}.conv", 128, 1), f"{name}.conv.relu")
    x = net.relu(net.flat_gemm(x, f"{name}.hidden", 1024), f"{name}.hidden.relu")
    return net.loss(net.gemm(x, f"{name}.logits", CLASSES), f"{name}.loss")
