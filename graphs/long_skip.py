"""Builds long_skip.onnx: a network for inference whose skips span it all, as in a U-Net without pooling.

Twelve levels down and eleven up, each a convolution that keeps height and width; level i on the way up adds what level
i made on the way down. With 512 x 512 pixels every tensor takes 16 MiB, and thirteen of them are there at once, most of
them skips that are cheap to make again: rematerialization saves memory in inference here, as it seldom does.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto
from onnx_builder import Dims, ModelBuilder, write

LEVELS = 12
CHANNELS = 16


def build() -> onnx.ModelProto:
    """Return the model; batch, height and width are symbolic."""
    model = ModelBuilder("long_skip")
    dims: Dims = ["batch", CHANNELS, "height", "width"]
    x = model.input("image", TensorProto.FLOAT, dims)
    skips = []
    for level in range(1, LEVELS + 1):
        x = _conv_relu(model, x, f"down{level}")
        skips.append(x)
    for level in range(LEVELS - 1, 0, -1):
        joined = model.node("Add", f"up{level}.add", [x, skips[level - 1]])
        x = _conv_relu(model, joined, f"up{level}")
    return model.model(x, TensorProto.FLOAT, dims)


def _conv_relu(model: ModelBuilder, x: str, name: str) -> str:
    weights = [model.weight(f"{name}.weight", CHANNELS, CHANNELS, 3, 3), model.weight(f"{name}.bias", CHANNELS)]
    x = model.node("Conv", f"{name}.conv", [x, *weights], kernel_shape=[3, 3], pads=[1] * 4)
    return model.node("Relu", f"{name}.relu", [x])


def main() -> None:
    """Write the model next to this script."""
    write(build(), Path(__file__).with_suffix(".onnx"))


if __name__ == "__main__":
    main()
