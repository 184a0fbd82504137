"""Builds resnet50.onnx: ResNet-50 of He et al. (2016), strides in the 3 x 3 convolutions, batch normalization kept.

25.6 million parameters, 224 x 224 images, 1000 classes; ends with the logits.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto
from onnx_builder import ModelBuilder, conv_batch_norm, write

SIZE = 224
CLASSES = 1000
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # (blocks, width)
EXPANSION = 4


def build() -> onnx.ModelProto:
    """Return the model; the batch is symbolic."""
    model = ModelBuilder("resnet50")
    x = model.input("image", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])
    x = conv_batch_norm(model, x, "stem.conv", (3, 64), 7, stride=2, norm="stem.norm")
    x = model.node("Relu", "stem.relu", [x])
    x = model.node("MaxPool", "stem.pool", [x], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    channels = 64
    for stage, (blocks, width) in enumerate(STAGES, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            x = _bottleneck(model, x, f"stage{stage}.{block}", channels, width, stride)
            channels = EXPANSION * width
    x = model.node("GlobalAveragePool", "pool", [x])
    x = model.node("Flatten", "features", [x], axis=1)
    weights = [model.weight("head.weight", CLASSES, channels), model.weight("head.bias", CLASSES)]
    logits = model.node("Gemm", "logits", [x, *weights], transB=1)
    return model.model(logits, TensorProto.FLOAT, ["batch", CLASSES])


def _bottleneck(model: ModelBuilder, x: str, name: str, channels: int, width: int, stride: int) -> str:
    """Add a 1 x 1, a 3 x 3 and a 1 x 1 convolution with the shortcut around them."""
    wide = EXPANSION * width
    shortcut = x
    if channels != wide:
        norm = f"{name}.short.norm"
        shortcut = conv_batch_norm(model, x, f"{name}.short.conv", (channels, wide), 1, stride=stride, norm=norm)
    x = conv_batch_norm(model, x, f"{name}.conv1", (channels, width), 1, norm=f"{name}.norm1")
    x = model.node("Relu", f"{name}.relu1", [x])
    x = conv_batch_norm(model, x, f"{name}.conv2", (width, width), 3, stride=stride, norm=f"{name}.norm2")
    x = model.node("Relu", f"{name}.relu2", [x])
    x = conv_batch_norm(model, x, f"{name}.conv3", (width, wide), 1, norm=f"{name}.norm3")
    x = model.node("Add", f"{name}.add", [x, shortcut])
    return model.node("Relu", f"{name}.relu3", [x])


def main() -> None:
    """Write the model next to this script."""
    write(build(), Path(__file__).with_suffix(".onnx"))


if __name__ == "__main__":
    main()
