"""The trial on GPUs, in small on the CPU: every kind of row, and what becomes of rows that fail."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.bench.gpu.__main__ import Limits, Trial, chosen_rows, main
from tests.bench.gpu.models import KINDS
from tests.bench.gpu.overlap import hidden_share
from tests.bench.gpu.place import Place
from tests.bench.gpu.rows import BUDGETS, SIX, Row, rows
from tests.bench.gpu.table import Line, beside_eager, markdown, row_summary, write
from tests.bench.torch_execution import share_off

SMALL = Place("cpu", small=True)


@pytest.mark.parametrize(
    "name",
    [
        "llama at 70%",
        "llama beside checkpoints of all blocks",
        "llama at 50%, offloading",
        "gpt, lengths that change",
        "gpt, gradients accumulated",
        "gpt by blocks, FSDP2",
    ],
)
def test_a_row_holds_in_small(name: str) -> None:
    (row,) = chosen_rows([name])
    line = row.line(SMALL)
    assert line.faults == ()
    assert line.holds
    assert not line.refused
    assert line.predicted
    assert line.allocated
    assert line.results


def test_measured_kernels_tell_times_and_workspace() -> None:
    (row,) = chosen_rows(["unet, kernels measured"])
    assert "workspace of convolutions" in row.line(SMALL).says


@pytest.mark.parametrize("name", KINDS)
def test_a_model_trains_the_same_way_again(name: str) -> None:
    training = SMALL.training(KINDS[name])
    training.with_optimizer()
    first, again = training.results(), training.results()
    assert share_off(first, again) == 0
    assert first["loss first"] > first["loss last"] > 0


def test_rows_have_names_of_their_own_and_begin_with_the_six_models() -> None:
    names = [row.name for row in rows()]
    assert len(set(names)) == len(names)
    assert names[:6] == [f"{model} at 70%" for model in SIX]
    assert {f"{model} at {budget}" for model in SIX for budget in BUDGETS} <= set(names)


LIMITS = Limits(row=20, all=60, together=2)


def lines(programs: dict[str, str], limits: Limits = LIMITS, *, alone: bool = False) -> dict[str, Line]:
    """Return the lines of rows that run these programs of Python, which find their result's path in `result`."""

    def command(row: Row, result: Path) -> list[str]:
        return [sys.executable, "-c", f"result = {str(result)!r}\n{programs[row.name]}"]

    chosen = [Row(name, lambda _: Line(""), alone=alone) for name in programs]
    return {line.row: line for line in Trial(command, limits).lines(chosen)}


WRITES = "open(result, 'w').write({!r})".format


def test_a_row_that_fails_leaves_the_others_alone() -> None:
    found = lines(
        {
            "exits": "import sys; sys.exit('no memory\\n')",
            "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "says nothing": "pass",
            "holds": WRITES(Line("holds", predicted=100, allocated=100).written()),
        }
    )
    assert found["holds"].holds
    assert found["exits"].failed == "ended with code 1: no memory"
    assert found["is killed"].failed == "ended by SIGKILL"
    assert found["says nothing"].failed == "no result"


def test_a_row_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    program = f"import os, time\nif not (n := os.fork()): time.sleep(60)\nopen({str(child)!r}, 'w').write(str(n))\n"
    found = lines({"long": program + "time.sleep(60)"}, Limits(row=1.5, all=60, together=1))
    assert found["long"].failed == "took longer than 2 s"
    for _ in range(100):
        try:
            state = Path(f"/proc/{int(child.read_text())}/stat").read_text().split()[2]
        except FileNotFoundError:
            return
        if state == "Z":  # ended; who takes it over has not looked yet
            return
        time.sleep(0.05)
    raise AssertionError("the child still runs")


def test_rows_that_come_too_late_are_not_begun() -> None:
    found = lines({"first": "import time; time.sleep(60)", "late": "pass"}, Limits(1, 1, 1), alone=True)
    assert found["late"].failed == "not begun: the 1 seconds of the trial were up"


def test_rows_that_tell_times_run_alone(tmp_path: Path) -> None:
    program = "import os, time\nassert not os.path.exists({0!r})\nopen({0!r}, 'w')\ntime.sleep(0.3)\nos.remove({0!r})\n"
    program = program.format(str(tmp_path / "running")) + WRITES(Line("").written())
    assert all(line.holds for line in lines({"one": program, "two": program}, alone=True).values())


def test_the_trial_writes_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--device", "cpu", "--small", "--rows", "gpt, CUDA graphs", "--out", str(tmp_path / "new")]
    assert main(given) == 0
    assert "1 rows: 0 hold, 1 refused, 0 do not hold" in capsys.readouterr().out
    assert "refused: the CPU has no CUDA graphs" in (tmp_path / "new" / "table.md").read_text(encoding="utf-8")
    (row,) = json.loads((tmp_path / "new" / "table.json").read_text(encoding="utf-8"))["rows"]
    assert row["holds"]
    assert row["refused"] == "the CPU has no CUDA graphs"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--device", "cpu", "--rows", "nothing"], "no row is named 'nothing'"),
        pytest.param([], "finds no GPU", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")),
    ],
)
def test_wrong_arguments_are_told(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_peaks_are_judged() -> None:
    good = Line("a | b", budget=10_000_000, predicted=9_900_000, allocated=9_950_000, results="same bits").judged()
    assert good.holds
    assert r"a \| b" in markdown([good], "here")
    off = Line("off", budget=10_000_000, predicted=9_000_000, allocated=10_200_000).judged()
    assert [fault.split(" ")[-3:] for fault in off.faults] == [["the", "predicted", "one"], ["above", "the", "budget"]]
    assert "off is off" in row_summary(off)
    assert Line.read(off.written()) == off


def test_results_are_judged_beside_how_eager_differs_from_itself() -> None:
    assert beside_eager(0.0, 0.1, narrow=False) == ("same bits", ())
    assert beside_eager(1e-3, 2e-4, narrow=False)[1] == ()
    assert beside_eager(1e-3, 0.0, narrow=True)[1] == ()
    assert beside_eager(1e-3, 0.0, narrow=False)[1]
    assert beside_eager(float("inf"), 0.0, narrow=True)[1]


def test_a_missing_result_and_no_number_are_infinitely_far_away() -> None:
    one = {"loss": torch.ones(2)}
    assert share_off(one, {}) == float("inf")
    assert share_off(one, {"loss": torch.tensor([1.0, float("nan")])}) == float("inf")


@pytest.mark.parametrize(
    ("copies", "kernels", "share"),
    [
        ([], [(0, 9)], None),
        ([(0, 10)], [], 0.0),
        ([(0, 10)], [(5, 7), (6, 8), (20, 30)], 0.3),
        ([(0, 10), (5, 20)], [(0, 40)], 1.0),
        ([(0, 2), (8, 10)], [(1, 9)], 0.5),
    ],
)
def test_the_hidden_share_of_copies(
    copies: list[tuple[int, int]], kernels: list[tuple[int, int]], share: float | None
) -> None:
    assert hidden_share(copies, kernels) == share


def test_the_table_is_written_into_a_new_folder(tmp_path: Path) -> None:
    write([Line("one", says="two")], "a machine", tmp_path / "a" / "b")
    assert "| one |" in (tmp_path / "a" / "b" / "table.md").read_text(encoding="utf-8")
