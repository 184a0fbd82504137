"""U-Net of Ronneberger et al. (2015), as published: unpadded convolutions, and skips cropped to the smaller images.

On the way up, images are upsampled and then convolved with a 2 x 2 kernel, without a rectifier. (Its authors' release
has one transposed convolution with a rectifier instead, which makes as many vertices.)
"""

from __future__ import annotations

from table1.value_graph import INPUT, ValueGraph

BATCH = 8
SIZE = 572
WIDTHS = (64, 128, 256, 512, 1024)
CLASSES = 2
LEVELS_WITH_DROPOUT = (4, 5)


def build() -> ValueGraph:
    """Return U-Net for the paper's batch of 8."""
    net = ValueGraph("unet", BATCH, 1, SIZE, SIZE)
    x = INPUT
    skips: list[str] = []
    for level, width in enumerate(WIDTHS, start=1):
        if skips:
            x = net.max_pool(x, f"down{level}.pool", 2)
        x = _double_conv(net, x, f"down{level}", width)
        if level in LEVELS_WITH_DROPOUT:
            x = net.elementwise("Dropout", x, f"down{level}.dropout")
        skips.append(x)
    for level in range(len(WIDTHS) - 1, 0, -1):
        x = _up(net, x, skips[level - 1], f"up{level}", WIDTHS[level - 1])
    net.loss(net.conv(x, "head", CLASSES, 1), "loss")
    return net


def _double_conv(net: ValueGraph, x: str, name: str, width: int) -> str:
    for number in (1, 2):
        x = net.conv(x, f"{name}.conv{number}", width, 3, padded=False)
        x = net.relu(x, f"{name}.relu{number}")
    return x


def _up(net: ValueGraph, x: str, skip: str, name: str, width: int) -> str:
    """Add one level of the decoder: twice the height and width, half the channels, joined with the skip."""
    side = 2 * net.shape(x)[-1]
    x = net.scaled_to(x, f"{name}.upsample", "Upsample", side)
    x = net.conv(x, f"{name}.conv", width, 2)
    joined = net.concat([net.scaled_to(skip, f"{name}.crop", "Crop", side), x], f"{name}.join")
    return _double_conv(net, joined, name, width)
