"""`remat plan --stages`, and `remat verify` of its files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from remat_cli.formats.native import graph_bytes
from tests.cli.calls import Remat
from tests.graphs import layered_step, residual_step


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "step.json"
    path.write_bytes(graph_bytes(residual_step(5)))
    return path


def test_pipeline_is_planned_written_and_verified(remat: Remat, graph: Path, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    call = ("plan", graph, "--stages", 2, "--microbatches", 3, "--budget", "95%")
    ended = remat(*call, "-o", file)
    assert ended.code == 0, ended.err
    assert "All ranks fit" in ended.out
    document = json.loads(file.read_text())
    assert document["format"] == "remat.pipeline/1"
    summary = remat(*call, "--json").json
    assert summary["plan"]["makespan"] == document["makespan"] >= summary["bound"]
    verified = remat("verify", graph, file)
    assert verified.code == 0, verified.err
    assert remat("verify", graph, file, "--json").json["peaks_bytes"] == document["peaks_bytes"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"makespan": 1}, "the file says makespan 1"),
        ({"budgets_bytes": [1, 1]}, "above its budget"),
        ({"orders": [["0F0"], []]}, "never runs"),
        ({"orders": [["zero"], []]}, "is no job"),
        ({"microbatches": "three"}, "microbatches is missing or is no whole number"),
        ({"rank_of": [0, 5]}, "rank_of"),
        ({"plans": []}, "has no plan"),
        ({"bytes_per_time": "fast"}, "is no rate"),
        ({"cuts": ["nothing"]}, "no forward op"),
        ({"split_backward": 1}, "split_backward is missing or is no truth value"),
        ({"split_backward": True}, "no job 0B0"),
    ],
)
def test_changed_file_is_refused(
    remat: Remat, graph: Path, tmp_path: Path, change: dict[str, object], said: str
) -> None:
    file = tmp_path / "pipeline.json"
    assert remat("plan", graph, "--stages", 2, "--microbatches", 2, "--budget", "100%", "-o", file).code == 0
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    ended = remat("verify", graph, file)
    assert ended.code not in (0, 1)
    assert said in " ".join(ended.err.split())


def test_gradients_of_weights_run_apart(remat: Remat, tmp_path: Path) -> None:
    graph, file, order = (tmp_path / name for name in ("step.json", "pipeline.json", "order.csv"))
    graph.write_bytes(graph_bytes(layered_step(4)))
    call = ("plan", graph, "--stages", 2, "--microbatches", 2, "--budget", "110%", "--split-backward")
    ended = remat(*call, "-o", file)
    assert ended.code == 0, ended.err
    assert "W gradients of weights" in " ".join(ended.out.split())
    assert json.loads(file.read_text())["split_backward"] is True
    assert remat("verify", graph, file, "-q").code == 0
    assert remat("report", graph, file, "-o", order, "-q").code == 0
    assert {job[1] for line in order.read_text().splitlines() for job in line.split(",")} == {"F", "I", "W"}


def test_rank_that_cannot_fit_is_named(remat: Remat, graph: Path) -> None:
    ended = remat("plan", graph, "--stages", 2, "--microbatches", 2, "--budget", "10kB,10")
    assert ended.code == 3
    assert "rank 1 needs" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--stages", 2), "a pipeline needs a budget"),
        (("--stages", 3, "--budget", "1GB,1GB"), "2 budgets do not fit 3 ranks"),
        (("--stages", 2, "--budget", "1GB", "--cuts", "a,b,c"), "3 cuts do not make 2 chunks"),
        (("--stages", 99, "--budget", "1GB"), "cannot be cut into 99 stages"),
        (("--microbatches", 2, "--budget", "1GB"), "--microbatches goes with --stages"),
        (("--split-backward", "--budget", "1GB"), "--split-backward goes with --stages"),
        (("--stages", 2, "--budget", "1GB", "--split"), "--split has no meaning for pipelines"),
        (("--stages", 2, "--budget", "1GB", "--stage-bandwidth", "1GB/s"), "per second"),
    ],
)
def test_wrong_call_is_refused(remat: Remat, graph: Path, options: tuple[object, ...], said: str) -> None:
    ended = remat("plan", graph, *options)
    assert ended.code == 2
    assert said in " ".join(ended.err.split())


def test_pipeline_is_written_as_torch_and_perfetto_read_it(remat: Remat, graph: Path, tmp_path: Path) -> None:
    file, order, trace = (tmp_path / name for name in ("pipeline.json", "order.csv", "ranks.trace.json"))
    assert remat("plan", graph, "--stages", 2, "--microbatches", 2, "--budget", "100%", "-o", file).code == 0
    assert remat("report", graph, file, "-o", order, "-q").code == 0
    assert order.read_text() == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    assert remat("report", graph, file, "-o", trace, "-q").code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    makespan = json.loads(file.read_text())["makespan"]
    assert max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") == makespan
    assert {event["pid"] for event in events} == {0, 1}
    refused = remat("report", graph, file, "-o", tmp_path / "plan.pickle")
    assert refused.code == 2
    assert "html, trace or pytorch-csv" in " ".join(refused.err.split())


def test_page_is_written_with_the_plan_and_of_its_file(remat: Remat, graph: Path, tmp_path: Path) -> None:
    file, planned, replayed = (tmp_path / name for name in ("pipeline.json", "planned.html", "replayed.html"))
    call = ("plan", graph, "--stages", 2, "--microbatches", 2, "--budget", "100%", "-o", file)
    assert remat(*call, "--html", planned).code == 0
    assert remat("report", graph, file, "-o", replayed, "--as", "html", "-q").code == 0
    data = [re.findall(r'id="data">(.*)</script>', page.read_text(encoding="utf-8")) for page in (planned, replayed)]
    assert data[0] == data[1]
    assert [rank["jobs"] for rank in json.loads(data[0][0])["ranks"]] == [
        ["0F0", "0F1", "0B0", "0B1"],
        ["1F0", "1B0", "1F1", "1B1"],
    ]


def test_schedule_of_one_rank_has_no_order_of_ranks(remat: Remat, graph: Path, tmp_path: Path) -> None:
    schedule, order = tmp_path / "schedule.json", tmp_path / "order.csv"
    assert remat("plan", graph, "--budget", "100%", "-o", schedule, "-q").code == 0
    ended = remat("report", graph, schedule, "-o", order)
    assert ended.code == 2
    assert "a form of pipelines" in ended.err
    assert not order.exists()
