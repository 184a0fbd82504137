"""Rebuilds every example graph: `python graphs/rebuild.py [FOLDER]`, by default the folder of this script."""

from __future__ import annotations

import sys
from pathlib import Path

import gpt
import long_skip
import onnx_builder
import resnet50
import skip_chain
import unet
from table1 import NETWORKS

from remat_cli.config import GraphOptions
from remat_cli.formats.native import graph_bytes
from remat_cli.prepare import prepare

MODELS = {"gpt": gpt.build, "long_skip": long_skip.build, "resnet50": resnet50.build, "unet": unet.build}
# What is bound in the JSON forms, which have no symbolic dimensions.
DIMS = {
    "gpt": {"batch": 8, "seq": 512},
    "long_skip": {"batch": 1, "height": 512, "width": 512},
    "resnet50": {"batch": 32},
    "unet": {"batch": 8},
}


def rebuild(folder: Path) -> None:
    """Write all example graphs into `folder`."""
    skip_chain.write(folder / "skip_chain.json")
    for name, build in MODELS.items():
        model = folder / f"{name}.onnx"
        onnx_builder.write(build(), model)
        forward = prepare(model, GraphOptions(dims=DIMS[name]), derive_training=False).graph
        model.with_suffix(".json").write_bytes(graph_bytes(forward))
    (folder / "table1").mkdir(exist_ok=True)
    for name, network in NETWORKS.items():
        (folder / "table1" / f"{name}.json").write_bytes(graph_bytes(network().graph()))


if __name__ == "__main__":
    rebuild(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
