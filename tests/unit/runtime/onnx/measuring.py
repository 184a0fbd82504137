"""Measures many small models in one child process, as `remat verify --execute` measures one.

`python -m tests.unit.runtime.onnx.measuring REQUESTS RESULTS` is that child.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remat_cli.runtime.onnx import measured_process
from tests.places import ROOT


def measured(requests: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return what `remat_cli.runtime.onnx.measured_process.run` says to each request, or the error that it raises."""
    asked, results = folder / "requests.json", folder / "results.json"
    common = {"weights_folder": str(folder), "dims": {}, "seed": 0, "random_weights": [], "profile_prefix": None}
    common |= {"as_it_comes": False, "measured_runs": 1, "timed_runs": 0, "filled": {}, "words": [], "files": {}}
    common |= {"outputs_file": None}
    asked.write_text(json.dumps([{**common, **request} for request in requests]))
    subprocess.run(
        [sys.executable, "-m", "tests.unit.runtime.onnx.measuring", str(asked), str(results)],
        cwd=ROOT,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(results.read_text())
    return answers


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return measured_process.run(request)
    except Exception as error:
        return {"error": str(error)}


if __name__ == "__main__":
    measured_process.settle()
    answers = [_answer(request) for request in json.loads(Path(sys.argv[1]).read_text())]
    Path(sys.argv[2]).write_text(json.dumps(answers))
