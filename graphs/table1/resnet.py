"""ResNet-50 and ResNet-152 of He et al. (2016), as Chainer has them.

Strides are in the first 1 x 1 convolution of a stage.
"""

from __future__ import annotations

from table1.value_graph import INPUT, ValueGraph

SIZE = 224
CLASSES = 1000
WIDTHS = (64, 128, 256, 512)
EXPANSION = 4


def build_resnet50() -> ValueGraph:
    """Return ResNet-50 for the paper's batch of 96."""
    return _build("resnet50", 96, (3, 4, 6, 3))


def build_resnet152() -> ValueGraph:
    """Return ResNet-152 for the paper's batch of 48."""
    return _build("resnet152", 48, (3, 8, 36, 3))


def _build(name: str, batch: int, blocks: tuple[int, ...]) -> ValueGraph:
    net = ValueGraph(name, batch, 3, SIZE, SIZE)
    # The stem's convolution comes from Caffe with a bias.
    x = net.conv(INPUT, "stem.conv", 64, 7, stride=2)
    x = net.relu(net.batch_norm(x, "stem.norm"), "stem.relu")
    x = net.max_pool(x, "stem.pool", 2)
    for stage, (width, count) in enumerate(zip(WIDTHS, blocks, strict=True), start=1):
        for block in range(1, count + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            x = bottleneck(net, x, f"stage{stage}.{block}", width, project=block == 1, strides=(stride, 1))
    x = net.average_pool(x, "pool", 7, 1)
    net.loss(net.flat_gemm(x, "head", CLASSES), "loss")
    return net


def bottleneck(
    net: ValueGraph, x: str, name: str, width: int, *, project: bool, strides: tuple[int, int] = (1, 1)
) -> str:
    """Add a 1 x 1, a 3 x 3 and a 1 x 1 convolution with the shortcut around them.

    Args:
        net: what to add to.
        x: the input.
        name: prefix of the values' names.
        width: channels of the 3 x 3 convolution; the result has four times as many.
        project: whether the shortcut is a convolution.
        strides: of the first 1 x 1 and of the 3 x 3 convolution.
    """
    y = conv_norm(net, x, name, "1", width, 1, stride=strides[0])
    y = net.relu(y, f"{name}.relu1")
    y = conv_norm(net, y, name, "2", width, 3, stride=strides[1])
    y = net.relu(y, f"{name}.relu2")
    y = conv_norm(net, y, name, "3", EXPANSION * width, 1)
    shortcut = x
    if project:
        shortcut = conv_norm(net, x, name, "4", EXPANSION * width, 1, stride=strides[0] * strides[1])
    return net.relu(net.add(y, shortcut, f"{name}.add"), f"{name}.relu")


def conv_norm(net: ValueGraph, x: str, name: str, number: str, channels: int, kernel: int, *, stride: int = 1) -> str:
    """Add a convolution without bias, `<name>.conv<number>`, and its batch normalization, `<name>.norm<number>`."""
    x = net.conv(x, f"{name}.conv{number}", channels, kernel, stride=stride, bias=False)
    return net.batch_norm(x, f"{name}.norm{number}")
