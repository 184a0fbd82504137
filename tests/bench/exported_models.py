"""Models of public kinds, exported and taken through the verbs: what holds, and what does not.

`python -m tests.bench.exported_models [--kept] [NAME ...]` prints the tables for these models alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from remat_cli.cli import main
from remat_cli.errors import ExitCode
from remat_cli.units import format_bytes, format_share
from tests.bench.exported import EXPORTERS, FOUND, TRAINING_RECIPES, file_of
from tests.bench.onnx_models import HELD, MODELS
from tests.places import ROOT

BUDGET, SECONDS = "70% of activations", 3
# Of the tables, so that no row is broken.
WIDTH = 340


class Stopped(Exception):
    """A verb that did not do what it was asked."""


@dataclass(frozen=True)
class Exports:
    """A model in a folder.

    Attributes:
        name: of the model.
        folder: where its files are.
        kept: bytes of floats that PyTorch keeps.
        failed: why there is no file, by recipe; empty where there is one.
    """

    name: str
    folder: Path
    kept: int
    failed: dict[str, str]


def exports(names: Sequence[str], recipes: Sequence[str]) -> Iterator[Exports]:
    """Yield each model, exported by these recipes; its files are gone afterwards."""
    for name in names:
        with TemporaryDirectory() as made:
            folder = Path(made)
            command = [sys.executable, "-m", "tests.bench.exported", name, made, *recipes]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            found = json.loads((folder / FOUND).read_text())
            yield Exports(name, folder, found["kept"], found["failed"])


def remat(*arguments: object) -> dict[str, Any]:
    """Run a verb in this process and return what it prints as JSON.

    Raises:
        Stopped: it ended with an error; says with which.
    """
    printed, errors = StringIO(), StringIO()
    with mock.patch.object(sys, "argv", ["remat", *map(str, arguments)]):
        try:
            with redirect_stdout(printed), redirect_stderr(errors):
                main()
        except SystemExit as ended:
            if ended.code:
                said = next((line[7:127] for line in errors.getvalue().splitlines() if line.startswith("error")), "")
                meaning = next(code.meaning for code in ExitCode if code == ended.code)
                raise Stopped(f"{arguments[0]} ends with {ended.code}: {said or meaning}") from None
        except Exception as error:  # a cell of the table: a bug
            raise Stopped(f"{arguments[0]}: a traceback, {type(error).__name__}") from error
    found: dict[str, Any] = json.loads(printed.getvalue()) if "--json" in arguments else {}
    return found


def kept(console: Console, names: Sequence[str] = HELD) -> None:
    """What a training graph keeps for its backward, beside what PyTorch keeps, by the way in which it was exported."""
    table = Table(title="Floats kept for the backward: predicted / kept by PyTorch", title_justify="left", box=MARKDOWN)
    table.add_column("model")
    table.add_column("PyTorch", justify="right")
    for recipe in TRAINING_RECIPES:
        table.add_column(recipe, justify="right")
    for model in exports(names, TRAINING_RECIPES):
        ratios = (_ratio(model, recipe) for recipe in TRAINING_RECIPES)
        table.add_row(model.name, format_bytes(model.kept), *ratios)
    console.print(table)


def _ratio(model: Exports, recipe: str) -> str:
    if model.failed[recipe]:
        return "no export"
    try:
        found = remat("inspect", file_of(model.folder, recipe), "--json")
    except Stopped as error:
        return str(error)
    return f"{found['kept_for_backward']['float_bytes'] / model.kept:.3f}"


def verbs(console: Console, names: Sequence[str] = tuple(MODELS)) -> None:
    """Every model, by both exporters, through the verbs, for training and for inference in onnxruntime."""
    table = Table(
        title=f"Exported models: training in {BUDGET}, inference in the smallest budget of dtr; "
        "peaks beside weights and inputs",
        title_justify="left",
        box=MARKDOWN,
    )
    for column in (
        "model", "exporter", "ops", "kept / PyTorch", "training plain", "plan", "overhead",
        "inference plain", "measured", "plan", "measured", "overhead", "",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column in ("model", "exporter", "") else "right")
    recipes = [recipe for pair in EXPORTERS.values() for recipe in pair]
    for model in exports(names, recipes):
        for exporter, (training, inference) in EXPORTERS.items():
            table.add_row(model.name, exporter, *_cells(model, training, inference))
    console.print(table)


def _cells(model: Exports, training: str, inference: str) -> list[str]:
    """Return the cells of a row; those that a verb did not come to stay empty, and the last one says why."""
    said: list[str] = []
    cells: list[str] = []
    for part, recipe, width in (
        (_training_cells, training, 5),
        (_inference_cells, inference, 5),
    ):
        found: list[str] = []
        try:
            if model.failed[recipe]:
                raise Stopped(f"no export: {model.failed[recipe]}")
            for cell in part(file_of(model.folder, recipe), model):
                found.append(cell)
        except Stopped as stopped:
            said.append(str(stopped))
        cells += [*found, *[""] * (width - len(found))]
    return [*cells, "; ".join(dict.fromkeys(said))]


def _training_cells(path: Path, model: Exports) -> Iterator[str]:
    found = remat("inspect", path, "--json")
    fixed = found["resident_bytes"] + found["input_bytes"]
    yield f"{found['graph']['ops']:,}"
    yield f"{found['kept_for_backward']['float_bytes'] / model.kept:.3f}"
    yield format_bytes(found["plain"]["peak_bytes"] - fixed)
    plan = remat("plan", path, "--budget", BUDGET, "--time-limit", f"{SECONDS}s", "--json")
    yield format_bytes(plan["peak_bytes"] - fixed)
    yield format_share(plan["overhead"])


def _inference_cells(path: Path, model: Exports) -> Iterator[str]:
    schedule = path.with_suffix(".json")
    options = ("--mode", "inference", "--budget", "min", "-c", "dtr")
    plan = remat("plan", path, *options, "-o", schedule, "--json")
    remat("apply", path, schedule, "-o", path.with_name("planned.onnx"), "-q")
    ran = remat("verify", path, schedule, "--execute", "--json")["execution"]
    for run in (ran["plain"], ran["plan"]):
        yield from (format_bytes(run[key]) for key in ("predicted_bytes", "measured_bytes"))
    gains = ran["plan"]["predicted_bytes"] < ran["plain"]["predicted_bytes"]
    yield format_share(plan["overhead"]) if gains else "nothing to gain"


def exported_models(console: Console) -> None:
    """Both tables."""
    wide = Console(width=max(WIDTH, console.width), file=console.file)
    kept(wide)
    verbs(wide)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    names = [name for name in arguments if name != "--kept"]
    (kept if "--kept" in arguments else verbs)(Console(width=WIDTH), *([names] if names else []))
