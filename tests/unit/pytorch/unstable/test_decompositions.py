"""Rules of torch are changed for the time of a capture, and only where no other part of torch sees them."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
from remat_cli.pytorch.unstable.decompositions import as_eager_computes
with as_eager_computes():
    import torch._inductor.lowering
"""


def test_inductor_loads_in_a_capture_where_torch_checks_its_rules() -> None:
    environment = os.environ | {"CI": "1"}  # with it, torch demands that what has a decomposition is decomposed
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
