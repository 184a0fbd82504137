"""What the report of a run in onnxruntime says beside its figures."""

from __future__ import annotations

from dataclasses import replace

from rich.text import Text

from remat_cli.reports.terminal.execution import executed_report
from remat_cli.runtime.onnx.execution import ModelExecution, ProcessPeak, UsualRun
from tests.unit.reports.rendering import rendered

MB = 10**6
RUN = ModelExecution(
    version="1.31",
    usual=UsualRun(peak_bytes=90 * MB, time_ns=MB),
    plain=ProcessPeak(60 * MB, 60 * MB),
    plan=ProcessPeak(40 * MB, 40 * MB),
    plain_time_ns=2 * MB,
    plan_time_ns=3 * MB,
    fused=False,
    nodes=7,
    outputs=("y",),
    changed=(),
    not_finite=(),
    out_of_order=None,
    parted_at=None,
    random_weights=0,
)
FUSE = "plan the model of fused ops that `remat fuse` writes"
SIZES = "where a file leaves out sizes"


def said(run: ModelExecution) -> str:
    return " ".join(rendered(executed_report(Text(""), run)).split())


def test_what_the_schedule_saves_beside_onnxruntime_as_it_comes() -> None:
    text = said(RUN)
    assert "The schedule needs 50.00 MB less than onnxruntime as it comes." in text
    assert "without a plan" not in text


def test_that_onnxruntime_as_it_comes_needs_less() -> None:
    text = said(replace(RUN, usual=UsualRun(peak_bytes=25 * MB, time_ns=MB)))
    assert (
        "As it comes, onnxruntime needs 15.00 MB less than the schedule: run the model without a plan, with "
        "onnxruntime's own options." in text
    )
    assert "The schedule needs" not in text


def test_as_much_is_not_less() -> None:
    text = said(replace(RUN, usual=UsualRun(peak_bytes=RUN.plan.measured, time_ns=MB)))
    assert "The schedule needs 0 B less than onnxruntime as it comes." in text


def test_it_does_not_run_as_it_comes() -> None:
    text = said(replace(RUN, usual=UsualRun(failure="its process was killed")))
    assert "As it comes, onnxruntime does not run the model: its process was killed." in text
    assert "less than" not in text


def test_fused_ops_are_named_where_they_would_take_less_time() -> None:
    assert FUSE in said(RUN)
    assert FUSE not in said(replace(RUN, fused=True))
    assert FUSE not in said(replace(RUN, usual=UsualRun(peak_bytes=90 * MB, time_ns=4 * MB)))


def test_a_model_that_leaves_out_sizes_needs_more_than_predicted() -> None:
    more = replace(RUN, plain=ProcessPeak(60 * MB, 70 * MB))
    assert "The model as it is needs 10.00 MB more than predicted" in said(more)
    assert SIZES in said(more)
    for other in (
        RUN,
        replace(RUN, plain=ProcessPeak(60 * MB, 50 * MB)),  # less
        replace(more, plan=ProcessPeak(40 * MB, 50 * MB)),  # a kernel that is not known
    ):
        assert SIZES not in said(other)


def test_the_most_that_it_may_take_is_told_as_such() -> None:
    most = replace(
        RUN,
        plain=ProcessPeak(60 * MB, 20 * MB, at_most=True),
        plan=ProcessPeak(40 * MB, 20 * MB, at_most=True),
        upper_bounds=("loop", "choice"),
    )
    text = said(most)
    assert "at most 40.00 MB" in text
    assert "depends on data: 'loop', 'choice'." in text
    assert "The model runs as planned." in text
    assert "most" not in said(RUN)
