"""VGG-19 of Simonyan and Zisserman (2015)."""

from __future__ import annotations

from table1.value_graph import INPUT, ValueGraph

BATCH = 64
SIZE = 224
CLASSES = 1000
STAGES = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))  # (convolutions, channels)
HIDDEN = 4096


def build() -> ValueGraph:
    """Return VGG-19 for the paper's batch of 64."""
    net = ValueGraph("vgg19", BATCH, 3, SIZE, SIZE)
    x = INPUT
    for stage, (convolutions, channels) in enumerate(STAGES, start=1):
        for number in range(1, convolutions + 1):
            x = net.conv(x, f"stage{stage}.conv{number}", channels, 3)
            x = net.relu(x, f"stage{stage}.relu{number}")
        x = net.max_pool(x, f"stage{stage}.pool", 2)
    x = net.relu(net.flat_gemm(x, "hidden1", HIDDEN), "hidden1.relu")
    x = net.elementwise("Dropout", x, "hidden1.dropout")
    x = net.relu(net.gemm(x, "hidden2", HIDDEN), "hidden2.relu")
    x = net.elementwise("Dropout", x, "hidden2.dropout")
    net.loss(net.gemm(x, "head", CLASSES), "loss")
    return net
