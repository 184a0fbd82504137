"""Builds unet.onnx: the U-Net of Ronneberger et al. (2015) with padded convolutions and batch normalization.

31 million parameters, four levels, 256 x 256 images, two classes; ends with the logits. Its long skips make it the
classic case for rematerialization.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto
from onnx_builder import ModelBuilder, conv_batch_norm, write

SIZE = 256
WIDTHS = (64, 128, 256, 512, 1024)
CLASSES = 2


def build() -> onnx.ModelProto:
    """Return the model; the batch is symbolic."""
    model = ModelBuilder("unet")
    x = model.input("image", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])
    channels = 3
    skips: list[str] = []
    for level, width in enumerate(WIDTHS[:-1], start=1):
        skip = _double_conv(model, x, f"down{level}", (channels, width))
        x = model.node("MaxPool", f"down{level}.pool", [skip], kernel_shape=[2, 2], strides=[2, 2])
        skips.append(skip)
        channels = width
    x = _double_conv(model, x, "bottom", (channels, WIDTHS[-1]))
    for level in range(len(skips), 0, -1):
        x = _up(model, x, skips[level - 1], f"up{level}", WIDTHS[level - 1])
    weight = model.weight("head.weight", CLASSES, WIDTHS[0], 1, 1)
    logits = model.node("Conv", "logits", [x, weight, model.weight("head.bias", CLASSES)], kernel_shape=[1, 1])
    return model.model(logits, TensorProto.FLOAT, ["batch", CLASSES, SIZE, SIZE])


def _double_conv(model: ModelBuilder, x: str, name: str, channels: tuple[int, int]) -> str:
    inputs, outputs = channels
    for number, fan_in in ((1, inputs), (2, outputs)):
        norm = f"{name}.norm{number}"
        x = conv_batch_norm(model, x, f"{name}.conv{number}", (fan_in, outputs), 3, norm=norm)
        x = model.node("Relu", f"{name}.relu{number}", [x])
    return x


def _up(model: ModelBuilder, x: str, skip: str, name: str, width: int) -> str:
    """Add one level of the decoder: twice the height and width, half the channels, joined with the skip."""
    weights = [model.weight(f"{name}.grow.weight", 2 * width, width, 2, 2), model.weight(f"{name}.grow.bias", width)]
    grown = model.node("ConvTranspose", f"{name}.grow", [x, *weights], kernel_shape=[2, 2], strides=[2, 2])
    joined = model.node("Concat", f"{name}.join", [skip, grown], axis=1)
    return _double_conv(model, joined, name, (2 * width, width))


def main() -> None:
    """Write the model next to this script."""
    write(build(), Path(__file__).with_suffix(".onnx"))


if __name__ == "__main__":
    main()
