"""The format of plans by blocks: writing, reading, and what is refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remat_cli.core.graph import Kind, Op, Tensor, build_graph
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.schedule import plain_run
from remat_cli.core.solve import solve
from remat_cli.errors import ScheduleFileError
from remat_cli.formats.blocks_json import FORMAT, BlockPlan, blocks_bytes, holds_blocks, read_blocks
from remat_cli.formats.schedule_json import schedule_bytes
from remat_cli.planning.given import Given

GRAPH = build_graph(
    name="block",
    kind=Kind.TRAINING,
    time_unit="ns",
    resident_bytes=0,
    tensors=[Tensor("made", 4)],
    ops=[Op("op", "Op", (), ("made",), 1, signature="op of nothing")],
    outputs=["made"],
)
BLOCKS = {"blocks.0": BlockPlan("a"), "blocks.1": BlockPlan("a", input_on_host=True)}


def content() -> bytes:
    solution = solve(Problem(GRAPH, Budget(4)), Given(plain_run(GRAPH)))
    schedule = schedule_bytes(solution, "training", {"name": "blocks", "options": {}})
    return blocks_bytes(BLOCKS, {"a": schedule}, fused=False, budget_bytes=9, peak_bytes=8, other_bytes=1)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    path.write_bytes(content())
    assert holds_blocks(path)
    file = read_blocks(path)
    assert (file.blocks, file.fused, file.offloads) == (BLOCKS, False, True)
    assert (file.budget_bytes, file.peak_bytes, file.other_bytes) == (9, 8, 1)
    assert file.schedules["a"].schedule == plain_run(GRAPH)
    assert file.schedules["a"].structure == {"op": "op of nothing"}
    assert (
        '  "blocks.1": {"schedule": "a", "input_on_host": true, "saved_on_host": false}'
        in content().decode().splitlines()
    )


def changed(change: Callable[[Any], object]) -> Any:
    document = json.loads(content())
    change(document)
    return document


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "unknown format None"),
        (changed(lambda file: file.update(format="remat.blocks/9")), "unknown format 'remat.blocks/9'"),
        (changed(lambda file: file.update(peak_bytes="8")), "peak_bytes: '8' is no number of bytes"),
        (changed(lambda file: file.update(other_bytes=-1)), "other_bytes: -1 is no number of bytes"),
        (changed(lambda file: file.update(kernels="quick")), "kernels: 'quick' is neither eager nor fused"),
        (changed(lambda file: file.update(blocks={})), "blocks is no object with entries"),
        (changed(lambda file: file.pop("schedules")), "schedules is no object with entries"),
        (changed(lambda file: file["blocks"].update(other={"schedule": "b"})), "block 'other' names none of"),
        (changed(lambda file: file["blocks"].update(other="a")), "block 'other' names none of"),
        (changed(lambda file: file["schedules"]["a"].update(steps=[["run", "op"]])), "schedule 'a' of .*unknown step"),
        (changed(lambda file: file["schedules"]["a"]["graph"].pop("structure")), "does not say which graph"),
        (changed(lambda file: file["schedules"].update(a=3)), "schedule 'a' of .*unknown format None"),
    ],
)
def test_a_wrong_file_is_refused_in_words(document: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ScheduleFileError, match=said):
        read_blocks(path)


def test_other_files_hold_no_blocks(tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    assert not holds_blocks(path)
    path.write_text(json.dumps({"format": "remat.schedule/1"}))
    assert not holds_blocks(path)
    path.write_text(json.dumps({"format": FORMAT}))
    assert holds_blocks(path)
