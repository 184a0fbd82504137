"""U-Nets."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.generate.generator import Generated, check_range
from remat_cli.generate.network import NetworkBuilder

_COLOURS = 3
_KERNEL = 3


@dataclass(frozen=True)
class UNet:
    """A U-Net with padded convolutions, which ends with the logits.

    Each convolution has batch normalization.

    Source: Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015.
    Makes: forward graphs, from which training graphs are derived; their long skips hold the memory.
    Size: 3 forward ops a convolution, 6 in training; each level has its convolutions twice.

    Attributes:
        levels: number of times that height and width are halved on the way down.
        convolutions: number of convolutions of each level, down and up, and at the bottom.
        width: channels of the first level; each lower level has twice as many.
        image: height and width; a multiple of 2 ** levels.
        batch: number of images.
        classes: channels of the logits.
    """

    grows_by: ClassVar[str] = "convolutions"

    levels: int = 4
    convolutions: int = 2
    width: int = 64
    image: int = 256
    batch: int = 8
    classes: int = 2

    def __post_init__(self) -> None:
        check_range(
            self, levels=(1, 20), **dict.fromkeys(("convolutions", "width", "image", "batch", "classes"), (1, inf))
        )
        if self.image % 2**self.levels:
            multiple = 2**self.levels
            raise UsageError(
                f"image is {self.image}, which cannot be halved {self.levels} times",
                hint=f"give a multiple of {multiple}, such as {-(-self.image // multiple) * multiple}; or fewer levels",
            )

    def generate(self) -> Generated:
        """Generate the graph."""
        return _Network(self).generated()


class _Network:
    """The U-Net while it is built; level 0 has the size of the image."""

    def __init__(self, options: UNet) -> None:
        self._options = options
        self._network = NetworkBuilder()

    def generated(self) -> Generated:
        """Return the whole network."""
        options, network = self._options, self._network
        x, channels = network.input("image", self._shape(_COLOURS, 0)), _COLOURS
        skips: list[str] = []
        for level in range(options.levels):
            name = f"down{level + 1}"
            skips.append(self._block(x, name, channels, level))
            channels = self._channels(level)
            pooled = self._shape(channels, level + 1)
            x = network.op("MaxPool", f"{name}.pool", (skips[-1],), pooled, kernel_shape=(2, 2), strides=(2, 2))
        x = self._block(x, "bottom", channels, options.levels)
        for level in reversed(range(options.levels)):
            x = self._up(x, skips[level], level)
        weight = network.weight("head.weight", options.classes, options.width, 1, 1)
        bias = network.weight("head.bias", options.classes)
        logits = network.op("Conv", "logits", (x, weight, bias), self._shape(options.classes, 0))
        name = (
            f"unet_l{options.levels}_c{options.convolutions}_w{options.width}_i{options.image}_b{options.batch}"
            f"_k{options.classes}"
        )
        return network.generated(name, logits)

    def _channels(self, level: int) -> int:
        return self._options.width << level

    def _shape(self, channels: int, level: int) -> tuple[int, ...]:
        size = self._options.image // 2**level
        return (self._options.batch, channels, size, size)

    def _up(self, x: str, skip: str, level: int) -> str:
        """Add one level of the way up, joined with the skip.

        Height and width are doubled, channels halved.
        """
        network, name, channels = self._network, f"up{level + 1}", self._channels(level)
        weights = (
            network.weight(f"{name}.grow.weight", 2 * channels, channels, 2, 2),
            network.weight(f"{name}.grow.bias", channels),
        )
        grown = network.op("ConvTranspose", f"{name}.grow", (x, *weights), self._shape(channels, level), strides=(2, 2))
        joined = network.op("Concat", f"{name}.join", (skip, grown), self._shape(2 * channels, level), axis=1)
        return self._block(joined, name, 2 * channels, level)

    def _block(self, x: str, name: str, channels: int, level: int) -> str:
        """Add the convolutions of one level.

        Each has its normalization and activation.
        """
        network, shape = self._network, self._shape(self._channels(level), level)
        for number in range(1, self._options.convolutions + 1):
            conv, norm = f"{name}.conv{number}", f"{name}.norm{number}"
            weight = network.weight(f"{conv}.weight", shape[1], channels, _KERNEL, _KERNEL)
            x = network.op("Conv", conv, (x, weight), shape)
            scale = (network.weight(f"{norm}.weight", shape[1]), network.weight(f"{norm}.bias", shape[1]))
            running = (network.constant(f"{norm}.mean", shape[1]), network.constant(f"{norm}.var", shape[1]))
            x = network.op("BatchNormalization", norm, (x, *scale, *running), shape, training_mode=1)
            x = network.op("Relu", f"{name}.relu{number}", (x,), shape)
            channels = shape[1]
        return x
