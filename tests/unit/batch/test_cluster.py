"""Jobs on a real Dask cluster of several worker processes."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import distributed
import pytest

import remat_cli
from remat_cli import __version__
from remat_cli.batch import cluster as module
from remat_cli.batch import job_process, processes
from remat_cli.batch.cluster import Cluster, pack, unpack
from remat_cli.batch.job import Job, JobLimits, JobOutcome
from remat_cli.batch.result_lines import Ending
from remat_cli.batch.run_job import carry_out
from remat_cli.errors import ClusterLost, GraphError, UsageError
from tests.cli.calls import Remat
from tests.places import GRAPHS
from tests.unit.batch import faulty_child
from tests.unit.batch.models import jobs_on, needs_proc, write_graphs

# Types of its own are there for a part of it only.
DASK: Any = distributed


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    cluster = DASK.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=logging.CRITICAL
    )
    yield cluster.scheduler_address
    cluster.close()


def process_ids(scheduler: str) -> list[int]:
    client = DASK.Client(scheduler, set_as_default=False)
    ids = list(client.run(os.getpid).values())
    client.close()
    return ids


@needs_proc
def test_every_job_ends_once_though_a_worker_is_killed(scheduler: str, tmp_path: Path) -> None:
    graphs = [tmp_path / f"g{i}.json" for i in range(4)]
    for graph in graphs:
        shutil.copy(GRAPHS / "skip_chain.json", graph)
    waiting = jobs_on(*graphs, budget="60%", planner="retention", time_limit=0.5)
    asked = sorted(job.key for job in waiting)
    executor = Cluster(scheduler, JobLimits())
    killed = process_ids(scheduler)[0]
    outcomes: list[tuple[Job, JobOutcome]] = []
    try:
        while waiting and executor.has_room:
            executor.submit(waiting.pop())
        while not (left_behind := children_of([killed])):
            sleep(0.01)
        os.kill(killed, signal.SIGKILL)
        while len(outcomes) < len(asked):
            while waiting and executor.has_room:
                executor.submit(waiting.pop())
            outcomes += executor.finished(10)
        assert executor.finished(0.2) == []
    finally:
        executor.close()
    assert sorted(job.key for job, _ in outcomes) == asked
    # Half a second may bring no plan on a busy machine; that is an answer, too.
    assert not any(outcome.ended.can_differ for _, outcome in outcomes)
    assert dies(left_behind)


def test_the_command_line_runs_jobs_there_and_records_them_here(
    scheduler: str, tmp_path: Path, remat: Remat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_graphs(tmp_path, "a", "b")
    (tmp_path / "broken.json").write_text("{")
    asked = ["*.json", "--budget", "70%", "-c", "dtr", "--scheduler", scheduler, "--schedules", "plans"]
    ended = remat("batch", *asked, "-o", "results.jsonl", "-q")
    assert (ended.code, ended.out, ended.err) == (6, "", "")
    lines = {line["graph"]: line for line in map(json.loads, Path("results.jsonl").read_text().splitlines())}
    assert {name: line["status"] for name, line in lines.items()} == {
        "a.json": "feasible",
        "b.json": "feasible",
        "broken.json": "error",
    }
    assert lines["broken.json"]["error"].startswith("broken.json:1:2: the JSON ends too early")
    assert remat("verify", "a.json", lines["a.json"]["schedule"], "-q").code == 0


def test_a_model_travels_without_its_weights_and_is_planned_alike(tmp_path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import numpy_helper

    model = onnx.load(GRAPHS / "unet.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        if np.prod(tensor.dims) > 10**5:
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(np.ones(tuple(tensor.dims), np.float32), name))
            break
    path = tmp_path / "unet.onnx"
    onnx.save(model, path)
    (job,) = jobs_on(path, budget="70%", planner="dtr", candidates=1)
    job = type(job)(**{**vars(job), "options": type(job.options)(dims={"batch": 1})})
    parcel = pack(job)
    assert sum(map(len, parcel.files.values())) < path.stat().st_size / 2
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    assert carry_out(unpack(parcel, folder)).schedule == carry_out(job).schedule is not None


def test_files_that_options_name_travel_too(tmp_path: Path) -> None:
    (graph,) = write_graphs(tmp_path, "g")
    table = tmp_path / "times.yaml"
    table.write_text("Relu: 7\n")
    (job,) = jobs_on(graph)
    job = type(job)(**{**vars(job), "options": type(job.options)(measurements=str(table))})
    parcel = pack(job)
    here = carry_out(job)
    table.unlink()
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    assert carry_out(unpack(parcel, folder)).schedule == here.schedule is not None


def test_a_graph_that_has_changed_is_not_sent(tmp_path: Path) -> None:
    (graph,) = write_graphs(tmp_path, "g")
    (job,) = jobs_on(graph)
    write_graphs(tmp_path, "g", size=101)
    with pytest.raises(GraphError, match="has changed"):
        pack(job)


@needs_proc
def test_a_job_that_nobody_wants_any_more_is_ended(scheduler: str, tmp_path: Path) -> None:
    client = DASK.Client(scheduler, set_as_default=False)
    client.run(use_child, (faulty_child.__file__,))
    try:
        executor = Cluster(scheduler, JobLimits())
        executor.submit(jobs_on(*write_graphs(tmp_path, "slow"))[0])
        while not children_of(process_ids(scheduler)):
            sleep(0.05)
        executor.close()
        assert dies(children_of(process_ids(scheduler)))
    finally:
        client.run(use_child, processes.CHILD)
        client.close()


def use_child(child: tuple[str, ...]) -> None:
    processes.CHILD = child


def dies(children: set[int], within: float = 10) -> bool:
    end = monotonic() + within
    while (alive := any(command_of(child) for child in children)) and monotonic() < end:
        sleep(0.05)
    return not alive


def children_of(processes: list[int]) -> set[int]:
    """Processes that run a job for these workers."""
    found = set()
    for process in processes:
        for listed in Path(f"/proc/{process}/task").glob("*/children"):
            found |= {int(child) for child in listed.read_text().split() if _runs_job(command_of(int(child)))}
    return found


def _runs_job(command: str) -> bool:
    return job_process.__name__ in command or faulty_child.__file__ in command


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def test_no_scheduler_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TO_CONNECT", 0.2)
    with pytest.raises(UsageError, match="there is no scheduler at tcp://127"):
        Cluster("tcp://127.0.0.1:1", JobLimits())
    with pytest.raises(UsageError, match="there is no scheduler at carrier-pigeon"):
        Cluster("carrier-pigeon://loft", JobLimits())


def test_a_cluster_without_workers_is_waited_for_and_a_scheduler_that_goes_is_told(tmp_path: Path) -> None:
    cluster = DASK.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=logging.CRITICAL)
    executor = Cluster(cluster.scheduler_address, JobLimits())
    executor.submit(jobs_on(*write_graphs(tmp_path, "g"))[0])
    assert executor.has_room
    assert executor.trouble == "the cluster has no workers"
    assert executor.finished(0.1) == []
    cluster.close()
    with pytest.raises(ClusterLost, match="has gone"):
        wait_for_ever(executor)
    executor.close()


def wait_for_ever(executor: Cluster) -> None:
    while True:
        executor.finished(0.05)


def test_workers_of_another_version_are_refused(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__version__", "0.0.1")
    with pytest.raises(UsageError, match=rf"has remat {re.escape(__version__)}, and this is 0\.0\.1"):
        Cluster(scheduler, JobLimits())


def set_version(version: str) -> None:
    for each in (remat_cli, module):
        vars(each)["__version__"] = version


@pytest.fixture
def changed(scheduler: str) -> Iterator[Callable[..., None]]:
    """Give workers another version, as if they had joined with it."""
    client = DASK.Client(scheduler, set_as_default=False)
    workers = list(client.nthreads())
    yield lambda count: client.run(set_version, "9.9", workers=workers[:count])
    client.run(set_version, __version__)
    client.close()


def ended(executor: Cluster, count: int) -> list[JobOutcome]:
    outcomes: list[JobOutcome] = []
    while len(outcomes) < count:
        outcomes += [outcome for _, outcome in executor.finished(5)]
    return outcomes


def test_a_late_worker_of_another_version_runs_nothing_and_the_others_all(
    scheduler: str, changed: Callable[..., None], tmp_path: Path
) -> None:
    executor = Cluster(scheduler, JobLimits())
    changed(1)
    jobs = jobs_on(*write_graphs(tmp_path, "a", "b", "c", "d"))
    for job in jobs:
        executor.submit(job)
    assert [outcome.ended.status for outcome in ended(executor, len(jobs))] == [Ending.OPTIMAL] * len(jobs)
    assert "has remat 9.9" in executor.trouble
    executor.close()


def test_where_no_worker_has_this_version_jobs_say_so(
    scheduler: str, changed: Callable[..., None], tmp_path: Path
) -> None:
    executor = Cluster(scheduler, JobLimits())
    changed(2)
    executor.submit(jobs_on(*write_graphs(tmp_path, "a"))[0])
    (outcome,) = ended(executor, 1)
    executor.close()
    assert (outcome.ended.status, outcome.ended.exit_code) == (Ending.ERROR, 2)
    assert outcome.ended.error is not None
    assert f"has remat 9.9, and this is {__version__}" in outcome.ended.error
    assert outcome.ended.hint == f"on every worker: pip install 'remat[cluster]=={__version__}'"
    assert outcome.ended.can_differ


@needs_proc
def test_a_worker_without_remat_is_told_and_a_late_one_left_out(scheduler: str, tmp_path: Path) -> None:
    missing = tmp_path / "without" / "remat_cli.py"
    missing.parent.mkdir()
    missing.write_text("raise ModuleNotFoundError(\"No module named 'remat_cli'\", name='remat_cli')")
    executor = Cluster(scheduler, JobLimits())
    command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--no-nanny", "--no-dashboard"]
    environment = os.environ | {"PYTHONPATH": str(missing.parent)}
    worker = subprocess.Popen([*command, "--nthreads", "4"], env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        while executor._count_threads() < 6:
            sleep(0.1)
        with pytest.raises(
            UsageError, match=rf"worker tcp://.* does not have remat, and this is {re.escape(__version__)}"
        ):
            Cluster(scheduler, JobLimits())
        jobs = jobs_on(*write_graphs(tmp_path, "a", "b", "c", "d"))
        for job in jobs:
            executor.submit(job)
        assert [outcome.ended.status for outcome in ended(executor, len(jobs))] == [Ending.OPTIMAL] * len(jobs)
        assert "does not have remat" in executor.trouble
    finally:
        executor.close()
        worker.kill()
        worker.wait()


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError) as caught:
        Cluster("tcp://127.0.0.1:1", JobLimits())
    assert caught.value.hint == "pip install 'remat[cluster]'"


def test_a_job_that_the_cluster_gives_up_is_recorded(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Cluster(scheduler, JobLimits())
    monkeypatch.setattr(module, "_RUN", "open('/absent/folder')")
    executor.submit(jobs_on(*write_graphs(tmp_path, "g"))[0])
    (outcome,) = ended(executor, 1)
    executor.close()
    assert outcome.ended.status is Ending.CRASHED
    assert outcome.ended.error is not None
    assert "No such file or directory: '/absent/folder'" in outcome.ended.error
