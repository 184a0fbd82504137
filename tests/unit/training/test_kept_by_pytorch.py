"""Exported models keep what PyTorch keeps for their backward (`saved_tensors_hooks`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from remat_cli.config import GraphOptions
from remat_cli.prepare import prepare
from tests.exports import NETWORKS, exported


@pytest.mark.parametrize("name", NETWORKS)
def test_kept_activations(name: str, tmp_path: Path) -> None:
    make, inputs = NETWORKS[name]
    model, x = make().train(), inputs(3)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), x)}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own and tensor.is_floating_point():
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that nothing else comes to lie there
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    prepared = prepare(exported(name, tmp_path), GraphOptions(dims={"batch": 3}))
    assert prepared.kept is not None
    ours = [prepared.graph.tensors[each] for each in prepared.kept.tensors]
    sizes = sorted(tensor.bytes for tensor in ours if tensor.dtype == "float32" and tensor.bytes)
    assert sizes == sorted(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert not [note for note in prepared.notes if "is not known" in note]
