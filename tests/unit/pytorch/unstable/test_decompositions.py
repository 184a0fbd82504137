"""Rules of torch are changed for the time of a capture, and only where no other part of torch sees them."""

from __future__ import annotations

import torch
from torch._decomp import decomposition_table

from remat_cli.pytorch.unstable.decompositions import as_eager_computes


def test_a_capture_adds_no_decompositions() -> None:
    """Where the environment has CI, inductor fails as it loads if an op has one that it does not take."""
    before = dict(decomposition_table)
    enlarged = torch.ops.aten.upsample_linear1d.vec
    kernels = dict(enlarged.py_kernels)
    with as_eager_computes():
        assert decomposition_table == before
        assert enlarged.py_kernels != kernels
    assert enlarged.py_kernels == kernels
