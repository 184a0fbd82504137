"""PSPNet of Zhao et al. (2017) on a dilated ResNet-101, as chainercv trains it on the 19 classes of Cityscapes.

Strides are in the 3 x 3 convolutions; the last two stages dilate theirs instead. The loss of an auxiliary head on
the last stage but one has a weight of 0.4.
"""

from __future__ import annotations

from table1.resnet import bottleneck, conv_norm
from table1.value_graph import INPUT, ValueGraph

BATCH = 2
SIZE = 713
CLASSES = 19
STAGES = ((3, 64, 1), (4, 128, 2), (23, 256, 1), (3, 512, 1))  # (blocks, width, stride)
PYRAMID = (6, 3, 2, 1)  # sides of the pooled images


def build() -> ValueGraph:
    """Return PSPNet for the paper's batch of 2."""
    net = ValueGraph("pspnet", BATCH, 3, SIZE, SIZE)
    features, x = _extractor(net)
    # chainercv's auxiliary head ends in a 3 x 3 convolution, the main one in a 1 x 1.
    auxiliary = _head(net, features, "aux", 3)
    main = _head(net, _pyramid(net, x), "head", 1)
    auxiliary_loss = net.elementwise("Mul", net.loss(auxiliary, "aux.loss"), "aux.weighted")
    net.add(auxiliary_loss, net.loss(main, "head.loss"), "loss")
    return net


def _extractor(net: ValueGraph) -> tuple[str, str]:
    """Add the dilated ResNet-101, and return the features of its third stage and of its last."""
    x = INPUT
    for number, (channels, stride) in enumerate(((64, 2), (64, 1), (128, 1)), start=1):
        x = _conv_norm_relu(net, x, "stem", f"{number}", channels, 3, stride)
    x = net.max_pool(x, "stem.pool", 2)
    stages = []
    for stage, (blocks, width, stride) in enumerate(STAGES, start=1):
        for block in range(1, blocks + 1):
            first = block == 1
            strides = (1, stride if first else 1)
            x = bottleneck(net, x, f"stage{stage}.{block}", width, project=first, strides=strides)
        stages.append(x)
    return stages[-2], stages[-1]


def _pyramid(net: ValueGraph, x: str) -> str:
    """Add the pyramid pooling: means over regions of four sizes, each beside the features that they were taken of."""
    _, channels, side, _ = net.shape(x)
    parts = [x]
    for level in PYRAMID:
        name = f"pyramid{level}"
        y = net.average_pool(x, f"{name}.pool", side // level, side // level)
        y = _conv_norm_relu(net, y, name, "", channels // len(PYRAMID), 1)
        parts.append(net.scaled_to(y, f"{name}.resize", "Resize", side))
    return net.concat(parts, "pyramid")


def _head(net: ValueGraph, x: str, name: str, kernel: int) -> str:
    """Add the layers from features to the classes of all pixels; `kernel` is that of the last convolution."""
    x = _conv_norm_relu(net, x, name, "1", 512, 3)
    x = net.elementwise("Dropout", x, f"{name}.dropout")
    x = net.conv(x, f"{name}.conv2", CLASSES, kernel)
    return net.scaled_to(x, f"{name}.resize", "Resize", SIZE)


def _conv_norm_relu(
    net: ValueGraph, x: str, name: str, number: str, channels: int, kernel: int, stride: int = 1
) -> str:
    x = conv_norm(net, x, name, number, channels, kernel, stride=stride)
    return net.relu(x, f"{name}.relu{number}")
