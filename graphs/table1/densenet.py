"""DenseNet-161 of Huang et al. (2017): every layer adds 48 channels to a concatenation that is made anew."""

from __future__ import annotations

from table1.value_graph import INPUT, ValueGraph

BATCH = 32
SIZE = 224
CLASSES = 1000
GROWTH = 48
BLOCKS = (6, 12, 36, 24)  # layers


def build() -> ValueGraph:
    """Return DenseNet-161 for the paper's batch of 32."""
    net = ValueGraph("densenet161", BATCH, 3, SIZE, SIZE)
    x = net.conv(INPUT, "stem.conv", 2 * GROWTH, 7, stride=2, bias=False)
    x = net.relu(net.batch_norm(x, "stem.norm"), "stem.relu")
    x = net.max_pool(x, "stem.pool", 2)
    for block, layers in enumerate(BLOCKS, start=1):
        if block > 1:
            x = _transition(net, x, f"block{block}.transition")
        for layer in range(1, layers + 1):
            x = _dense_layer(net, x, f"block{block}.{layer}")
    x = net.relu(net.batch_norm(x, "norm"), "relu")
    x = net.average_pool(x, "pool", 7, 1)
    net.loss(net.flat_gemm(x, "head", CLASSES), "loss")
    return net


def _dense_layer(net: ValueGraph, x: str, name: str) -> str:
    y = _norm_relu_conv(net, x, name, "1", 4 * GROWTH, 1)
    y = _norm_relu_conv(net, y, name, "2", GROWTH, 3)
    return net.concat([x, y], f"{name}.join")


def _transition(net: ValueGraph, x: str, name: str) -> str:
    """Halve channels, height and width."""
    x = _norm_relu_conv(net, x, name, "", net.shape(x)[1] // 2, 1)
    return net.average_pool(x, f"{name}.pool", 2, 2)


def _norm_relu_conv(net: ValueGraph, x: str, name: str, number: str, channels: int, kernel: int) -> str:
    x = net.relu(net.batch_norm(x, f"{name}.norm{number}"), f"{name}.relu{number}")
    return net.conv(x, f"{name}.conv{number}", channels, kernel, bias=False)
