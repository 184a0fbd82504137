"""Regions: what is joined to an op, and what bounds a region."""

from __future__ import annotations

from collections.abc import Mapping

from remat_cli.splitting import SUM, Axis, Part, Region, RowOp, region_of, runs_in_one_go

ROW = Part(0)


def row_op(name: str, reads: str, makes: str, *, whole: str = "", total: str = "", group: int = 0) -> RowOp:
    """Return an op with 4 rows.

    Args:
        name: of the op.
        reads: what it reads row by row, with spaces between.
        makes: what it makes row by row.
        whole: what it reads as a whole.
        total: what it sums up.
        group: of the op.
    """
    made: Mapping[str, Part | None] = {**dict.fromkeys(makes.split(), ROW), **dict.fromkeys(total.split(), SUM)}
    axis = Axis(4, dict.fromkeys(reads.split(), ROW), made)
    return RowOp(name, (*reads.split(), *whole.split()), tuple(made), (axis,), group)


def region(ops: list[RowOp], seed: str, least_bytes: int = 1, **sizes: int) -> Region | None:
    values = {value for op in ops for value in (*op.reads, *op.makes)}
    return region_of(ops, seed, {value: sizes.get(value, 100) for value in values}, lambda _: least_bytes)


def test_ops_on_the_same_rows_are_one_region() -> None:
    ops = [row_op("up", "x", "y", whole="w"), row_op("act", "y", "z"), row_op("loss", "z", "", total="l")]
    found = region(ops, "act")
    assert found is not None
    assert list(found.members) == ["up", "act", "loss"]
    assert set(found.parts) == {"y", "z"}


def test_an_op_that_sees_all_rows_bounds_a_region() -> None:
    ops = [row_op("up", "x", "y"), RowOp("norm", ("y",), ("z",), ()), row_op("down", "z", "out")]
    found = region(ops, "up")
    assert found is not None
    assert list(found.members) == ["up"]
    assert region(ops, "norm") is None
    assert region(ops, "nothing") is None


def test_small_values_join_only_where_they_are_asked_for() -> None:
    ops = [row_op("up", "x", "y"), row_op("down", "y", "z"), row_op("next", "z", "out")]
    narrow, wide = region(ops, "up", 50, z=10), region(ops, "up", 1, z=10)
    assert narrow is not None
    assert wide is not None
    assert list(narrow.members) == ["up", "down"]
    assert list(wide.members) == ["up", "down", "next"]


def test_a_member_that_needs_all_rows_of_another_is_left_out() -> None:
    """The second matmul reads the sum that the first region makes: no part can come to it before all are through."""
    ops = [
        row_op("first", "x", "y"),
        row_op("add", "y", "", total="s"),
        row_op("scale", "y", "z", whole="s"),
        row_op("last", "z", "out"),
    ]
    found = region(ops, "first")
    assert found is not None
    assert list(found.members) == ["first", "add"]


def test_passes_run_in_one_go_only_where_nothing_between_them_needs_all_rows() -> None:
    forward = row_op("forward", "x", "y", total="loss")
    alone = [forward, row_op("backward", "y", "g", group=1)]
    waiting = [forward, row_op("backward", "y", "g", whole="loss", group=1)]
    for ops, answer in ((alone, True), (waiting, False)):
        found = region(ops, "forward")
        assert found is not None
        assert list(found.members) == ["forward", "backward"]
        one_group = [RowOp(op.name, op.reads, op.makes, op.axes) for op in ops]
        assert runs_in_one_go(one_group, found) is answer
