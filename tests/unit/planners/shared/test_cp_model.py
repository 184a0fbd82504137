"""CP-SAT's models come without pandas; who wants that part of ortools still gets it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import remat_cli.planners.shared.cp_model
print("pandas" in sys.modules)
from ortools.sat.python.cp_model import CpModel
import pandas as pd
print(CpModel().new_int_var_series("x", pd.Index(["a", "b"]), 0, 3).map(str).tolist())
print(pd.__name__, isinstance(pd.Series([1]), pd.Series))
"""


def test_pandas_is_imported_by_whoever_asks_for_it() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["False", "['x[a]', 'x[b]']", "pandas True"]
