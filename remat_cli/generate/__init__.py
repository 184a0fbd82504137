"""Generators of synthetic graphs.

Each family has one file and one line in GENERATORS.
"""

from __future__ import annotations

from collections.abc import Mapping

from remat_cli.generate.chain import Chain
from remat_cli.generate.generator import Generated, Generator
from remat_cli.generate.layered import Layered
from remat_cli.generate.llama import Llama
from remat_cli.generate.transformer import Transformer
from remat_cli.generate.unet import UNet

__all__ = ["GENERATORS", "Generated", "Generator"]

GENERATORS: Mapping[str, type[Generator]] = {
    "layered": Layered,
    "transformer": Transformer,
    "llama": Llama,
    "unet": UNet,
    "chain": Chain,
}
