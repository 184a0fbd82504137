"""`remat batch` as a user calls it."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from remat_cli.batch import processes
from remat_cli.batch.result_lines import EXIT_CODES, WORST_FIRST, Ending
from remat_cli.batch.results import Records
from remat_cli.config import DEFAULT_PLANNER
from remat_cli.errors import UsageError
from tests.cli.calls import Ended, Remat
from tests.places import GRAPHS
from tests.unit.batch import faulty_child
from tests.unit.batch.models import Here, needs_proc, write_graphs

SAMPLE = GRAPHS / "batch.yaml"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two good graphs in a folder of their own, and processes in which a graph's name says what goes wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "CHILD", (faulty_child.__file__,))
    monkeypatch.setenv("STRAY", str(tmp_path / "stray"))
    write_graphs(tmp_path, "a", "b")


@pytest.fixture
def batch(remat: Remat) -> Callable[..., Ended]:
    def call(*args: str | Path) -> Ended:
        return remat("batch", *args)

    return call


Batch = Callable[..., Ended]
NAMES = ("a.json", "b.json")
TWICE = (*NAMES, "--budget", "70%,100%", "-c", "dtr", "--jobs", "2")
RESULTS = Path("results.jsonl")


def lines(path: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def plan(name: str) -> Path:
    """The one plan for graph, budget and way."""
    (path,) = Path("plans").glob(f"{name}-*.json")
    return path


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes take their time to start; most of what is tested here does not need them."""
    monkeypatch.setattr("remat_cli.cli.batch._executor", lambda *_: Here())


@pytest.mark.usefixtures("_here")
class TestResults:
    def test_fewer_jobs_run_at_a_time_where_few_files_may_be_open(
        self, batch: Batch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (len(os.listdir("/dev/fd")) + 30, 4096))
        ended = batch(*TWICE[:-1], "4", "-o", RESULTS)
        assert (ended.code, len(lines())) == (0, 4)
        assert ended.err == "note: 3 jobs at a time, not 4: the system allows no more open files (ulimit -n)\n"

    def test_a_line_and_a_schedule_for_every_job(self, batch: Batch, remat: Remat) -> None:
        ended = batch(*TWICE, "-o", RESULTS, "--schedules", "plans")
        assert (ended.code, ended.err) == (0, "")
        assert "4 of 4 jobs have a plan." in ended.out
        assert sorted((line["graph"], line["budget"]) for line in lines()) == [
            ("a.json", "100%"),
            ("a.json", "70%"),
            ("b.json", "100%"),
            ("b.json", "70%"),
        ]
        for line in lines():
            assert remat("verify", line["graph"], line["schedule"], "-q").code == 0
            assert line["schedule_sha256"] == sha256(Path(line["schedule"]).read_bytes()).hexdigest()
            assert line["error"] is None
        names = sorted(path.name.rpartition("-")[0] for path in Path("plans").iterdir())
        assert names == ["a-100pct-dtr", "a-70pct-dtr", "b-100pct-dtr", "b-70pct-dtr"]

    def test_the_figures_and_the_schedule_are_those_of_plan(self, batch: Batch, remat: Remat) -> None:
        planned = remat("plan", "a.json", "--budget", "70%", "-c", "dtr", "-o", "one.json", "--json").json
        batch("a.json", "--budget", "70%", "-c", "dtr", "-o", RESULTS, "--schedules", "plans")
        (line,) = lines()
        assert Path(line["schedule"]).read_bytes() == Path("one.json").read_bytes()
        for key in ("status", "budget_bytes", "peak_bytes", "overhead", "scope"):
            assert line[key] == planned[key]
        assert line["plain_peak_bytes"] == planned["baseline"]["peak_bytes"]
        assert line["bound_overhead"] == planned["bound"]["overhead"]

    def test_on_stdout_there_are_lines_and_nothing_else(self, batch: Batch) -> None:
        ended = batch(*TWICE, "-o", "-")
        assert len([json.loads(line) for line in ended.out.splitlines()]) == 4
        assert "4 of 4 jobs have a plan." in ended.err
        quiet = batch(*TWICE, "-o", "-", "-q")
        assert (len(quiet.out.splitlines()), quiet.err) == (4, "")

    def test_the_summary_has_the_lines_in_the_order_in_which_they_were_asked_for(self, batch: Batch) -> None:
        summary = batch(*TWICE, "--json").json
        asked = [(graph, budget) for graph in NAMES for budget in ("70%", "100%")]
        assert [(line["graph"], line["budget"]) for line in summary["results"]] == asked
        assert (summary["jobs"], summary["exit_code"], summary["interrupted"]) == (4, 0, False)
        assert sum(summary["endings"].values()) == 4

    def test_a_name_with_control_characters_stays_harmless(self, batch: Batch, tmp_path: Path) -> None:
        write_graphs(tmp_path, "\x1b[31mred\n[bold]x")
        ended = batch("*red*", "--budget", "90%", "-c", "dtr", "-o", RESULTS, "--schedules", "plans")
        assert (ended.code, "\x1b" in ended.out) == (0, False)
        assert "[bold]x" in ended.out
        assert lines()[0]["graph"] == "\x1b[31mred\n[bold]x.json"
        assert [path.name.rpartition("-")[0] for path in Path("plans").iterdir()] == ["__31mred__bold_x-90pct-dtr"]

    def test_the_sample_manifest_runs(self, batch: Batch) -> None:
        ended = batch(SAMPLE, "--budget", "100%", "-c", "keep_all", "--json")
        assert ended.code == 0
        assert [(line["status"], line["config"]) for line in ended.json["results"]] == [("optimal", "keep_all")] * 2

    def test_options_of_the_command_line_reach_graph_and_planner(self, batch: Batch) -> None:
        asked = ("-c", "dtr", "-c", "keep_all", "--budget", "100%", "--mode", "inference", "--option", "limit=2")
        batch("a.json", *asked, "-o", RESULTS, "--schedules", "plans", "--time-limit", "5s")
        document = json.loads(plan("a-100pct-dtr").read_text())
        assert document["graph"]["mode"] == "inference"
        assert (document["planner"]["options"]["limit"], document["planner"]["options"]["time_limit"]) == (2, 5)

    def test_plans_of_too_much_overhead_are_not_taken(self, batch: Batch) -> None:
        ended = batch("a.json", "--budget", "60%,100%", "-c", "dtr", "--max-overhead", "0%", "--json")
        statuses = [line["status"] for line in ended.json["results"]]
        assert (ended.code, statuses[1]) == (EXIT_CODES[Ending(statuses[0])], "optimal")
        assert "above the 0 % allowed" in ended.json["results"][0]["error"]


class TestFailures:
    def test_what_fails_is_recorded_and_the_rest_goes_on(self, batch: Batch, tmp_path: Path) -> None:
        write_graphs(tmp_path, "segfault", "bug")
        (tmp_path / "broken.json").write_text("{")
        ended = batch("*.json", "--budget", "100%,1", "-c", "keep_all", "-o", RESULTS)
        assert ended.code == 1
        found = {(line["graph"], line["budget"]): (line["status"], line["exit_code"]) for line in lines()}
        assert found == {
            ("a.json", "100%"): ("optimal", 0),
            ("a.json", "1 B"): ("infeasible", 3),
            ("b.json", "100%"): ("optimal", 0),
            ("b.json", "1 B"): ("infeasible", 3),
            **{("broken.json", budget): ("error", 6) for budget in ("100%", "1 B")},
            **{(f"{name}.json", budget): ("crashed", 1) for name in ("segfault", "bug") for budget in ("100%", "1 B")},
        }
        assert "2 of 10 jobs have a plan." in ended.out
        assert "ZeroDivisionError: by design" in ended.out
        assert "Traceback" not in ended.out + ended.err

    @pytest.mark.parametrize(
        ("graphs", "budget", "code"),
        [
            (["a", "b"], "100%", 0),
            (["a", "b"], "100%,1", 3),
            (["a", "bad_alloc"], "1", 4),
            (["bad_alloc", "no_training"], "1", 2),
            (["no_training", "broken"], "1", 6),
            (["broken", "exit"], "1", 1),
        ],
    )
    def test_the_worst_job_gives_the_exit_code(
        self, graphs: Sequence[str], budget: str, code: int, batch: Batch, tmp_path: Path
    ) -> None:
        for path in write_graphs(tmp_path, *graphs):
            if path.stem == "no_training":
                path.write_text(path.read_text().replace('"forward"', '"inference"'))
            if path.stem == "broken":
                path.write_text("{")
        asked = [f"{name}.json" for name in graphs]
        assert batch(*asked, "--budget", budget, "-c", "keep_all", "-q", "--mode", "training").code == code

    def test_every_ending_has_its_place_in_the_order_of_exit_codes(self) -> None:
        assert {*EXIT_CODES.values(), 2, 5, 6} == set(WORST_FIRST)
        assert set(EXIT_CODES) == set(Ending) - {Ending.ERROR}

    def test_time_is_limited(self, batch: Batch, tmp_path: Path) -> None:
        write_graphs(tmp_path, "slow")
        ended = batch("slow.json", "--budget", "100%", "-c", "keep_all", "--job-timeout", "300ms", "-o", RESULTS)
        assert (ended.code, lines()[0]["status"]) == (4, "timed-out")

    def test_memory_is_limited(self, batch: Batch, tmp_path: Path) -> None:
        write_graphs(tmp_path, "hoard")
        ended = batch("hoard.json", "--budget", "100%", "-c", "keep_all", "--memory-limit", "400MB", "-o", RESULTS)
        assert (ended.code, lines()[0]["status"]) == (4, "out-of-memory")


@pytest.mark.usefixtures("_here")
class TestResume:
    @pytest.fixture
    def begun(self, batch: Batch) -> list[bytes]:
        """The lines of a run that is complete."""
        batch(*TWICE, "-o", RESULTS, "--schedules", "plans")
        return RESULTS.read_bytes().splitlines(keepends=True)

    def resumed(self, batch: Batch, *more: str, args: Sequence[str] = TWICE) -> Any:
        return batch(*args, "-o", RESULTS, "--schedules", "plans", "--resume", "--json", *more).json

    def test_what_is_done_is_not_done_again(self, batch: Batch, begun: list[bytes]) -> None:
        summary = self.resumed(batch)
        assert (summary["done_before"], summary["endings"]) == (4, {"feasible": 2, "optimal": 2})
        assert RESULTS.read_bytes() == b"".join(begun)

    def test_half_a_line_at_the_end_is_done_again(self, batch: Batch, begun: list[bytes]) -> None:
        RESULTS.write_bytes(b"".join(begun[:2]) + begun[2][:40])
        assert self.resumed(batch)["done_before"] == 2
        assert len(lines()) == 4
        assert {line["job"] for line in lines()} == {json.loads(line)["job"] for line in begun}

    @pytest.mark.parametrize(
        "damage",
        [
            b"\x00\xff garbage\n",
            b"\n",
            b"[]\n",
            b'{"bound_overhead": 1, "budg{"bound_overhead": 0}\n',
            b'{"job": "of another version"}\n',
            b"9" * 5000 + b"\n",
            b"[" * 100_000 + b"\n",
            b'{"bound_overhead": \r nothing\n',
        ],
        ids=range(8),
    )
    def test_damaged_lines_cost_their_own_jobs_only(self, damage: bytes, batch: Batch, begun: list[bytes]) -> None:
        RESULTS.write_bytes(b"".join((begun[0], damage, begun[2], damage, begun[3])))
        ended = batch(*TWICE, "-o", RESULTS, "--schedules", "plans", "--resume", "--json")
        assert (ended.code, ended.json["done_before"]) == (0, 3)
        assert "results.jsonl: cannot be read at line 2, 4: moved to results.jsonl.damaged" in ended.err
        assert Path("results.jsonl.damaged").read_bytes() == 2 * damage
        done = RESULTS.read_bytes().splitlines(keepends=True)
        assert done[:3] == [begun[0], begun[2], begun[3]]
        assert {line["job"] for line in lines()} == {json.loads(line)["job"] for line in begun}
        assert batch(*TWICE, "-o", RESULTS, "--schedules", "plans", "--resume", "--json").err == ""

    def test_a_file_that_lost_its_damage_stays_locked(self, begun: list[bytes]) -> None:
        RESULTS.write_bytes(b"damage\n" + begun[0])
        with RESULTS.open("ab") as opened_before, Records(RESULTS, None, [], resume=True, retry=False):
            with pytest.raises(BlockingIOError):
                fcntl.flock(opened_before, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with pytest.raises(UsageError, match="is being written by another"):
                Records(RESULTS, None, [], resume=True, retry=False)

    def test_a_plan_whose_file_is_gone_or_changed_is_made_again(self, batch: Batch, begun: list[bytes]) -> None:
        gone, changed = plan("a-70pct-dtr"), plan("b-70pct-dtr")
        wanted = changed.read_bytes()
        gone.unlink()
        changed.write_text("{}")
        assert self.resumed(batch)["done_before"] == 2
        assert gone.exists()
        assert changed.read_bytes() == wanted
        assert len(lines()) == 4
        assert {line["job"] for line in lines()} == {json.loads(line)["job"] for line in begun}

    def test_results_and_schedules_that_are_deleted_meanwhile_are_written_anew(
        self, batch: Batch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add, added = Records.add, list[str]()

        def delete_first(records: Records, *given: Any) -> Any:
            if len(added) == 2:
                RESULTS.unlink()
                shutil.rmtree("plans")
            line = add(records, *given)
            added.append(line.job)
            return line

        monkeypatch.setattr(Records, "add", delete_first)
        assert batch(*TWICE, "-o", RESULTS, "--schedules", "plans").code == 0
        assert [line["job"] for line in lines()] == added
        assert len(list(Path("plans").iterdir())) == 2

    def test_a_file_that_takes_the_place_of_the_results_is_left_alone(
        self, batch: Batch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add = Records.add

        def replace_first(records: Records, *given: Any) -> Any:
            Path("other").write_bytes(b"of somebody else")
            Path("other").replace(RESULTS)
            return add(records, *given)

        monkeypatch.setattr(Records, "add", replace_first)
        ended = batch(*TWICE, "-o", RESULTS)
        assert ended.code == 2
        assert "results.jsonl was replaced by another file while the batch ran" in ended.err
        assert RESULTS.read_bytes() == b"of somebody else"

    def test_results_and_schedules_of_one_name_are_refused(self, batch: Batch) -> None:
        ended = batch(*TWICE, "-o", RESULTS, "--schedules", RESULTS)
        assert ended.code == 2
        assert "results.jsonl is to be the file of results and the folder of schedules" in ended.err
        assert not RESULTS.exists()

    def test_a_changed_graph_and_a_changed_option_are_other_jobs(
        self, batch: Batch, begun: list[bytes], tmp_path: Path
    ) -> None:
        write_graphs(tmp_path, "a", size=101)
        assert self.resumed(batch)["done_before"] == 2
        assert self.resumed(batch, "--option", "limit=2")["done_before"] == 0

    def test_more_jobs_are_added_to_those_that_are_done(self, batch: Batch, begun: list[bytes], tmp_path: Path) -> None:
        write_graphs(tmp_path, "c", size=7)
        summary = self.resumed(batch, args=("c.json", *TWICE))
        assert (summary["jobs"], summary["done_before"], len(lines())) == (6, 4, 6)

    def test_what_failed_is_tried_again_where_that_is_asked_for(self, batch: Batch, tmp_path: Path) -> None:
        (tmp_path / "broken.json").write_text("{")
        asked = ("broken.json", "a.json", "--budget", "100%", "-c", "keep_all")
        assert batch(*asked, "-o", RESULTS, "-q", "--schedules", "plans").code == 6
        assert self.resumed(batch, args=asked)["done_before"] == 2
        assert self.resumed(batch, "--retry", args=asked)["done_before"] == 1
        assert [line["status"] for line in lines()].count("error") == 1

    def test_a_plan_that_was_not_written_is_made_again_where_it_shall_be(self, batch: Batch) -> None:
        batch(*TWICE, "-o", RESULTS)
        assert batch(*TWICE, "-o", RESULTS, "--resume", "--json").json["done_before"] == 4
        assert self.resumed(batch)["done_before"] == 0
        assert len(list(Path("plans").iterdir())) == 4

    def test_results_are_not_lost_by_a_second_run(self, batch: Batch, begun: list[bytes]) -> None:
        ended = batch(*TWICE, "-o", RESULTS)
        assert (ended.code, ended.out) == (2, "")
        assert "results.jsonl is not empty" in ended.err
        assert "--resume" in ended.err
        assert RESULTS.read_bytes() == b"".join(begun)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"some notes\n", "results.jsonl:1: is no line of 'remat batch'"),
            (b"[]\n", "results.jsonl:1: is no line of 'remat batch'"),
            (b"\xff\n", "results.jsonl:1: is no line of 'remat batch'"),
            (b'{"job": 3}\n', "results.jsonl:1: "),
            # Without a newline, as graphs and models are written.
            (b'{"format": "remat.graph/1"}', "results.jsonl:1: "),
            (b"\x08\x07\x12\x07pytorch", "results.jsonl:1: is no line of 'remat batch'"),
            (b"notes\n" + b'{"bound_overhead": nul', "results.jsonl:1: is no line of 'remat batch'"),
        ],
    )
    @pytest.mark.parametrize("more", [(), ("--resume",)])
    def test_another_file_is_not_written_into(
        self, content: bytes, message: str, more: Sequence[str], batch: Batch
    ) -> None:
        RESULTS.write_bytes(content)
        ended = batch(*TWICE, "-o", RESULTS, *more)
        assert (ended.code, RESULTS.read_bytes()) == (2, content)
        assert (message if more else "results.jsonl is not empty") in ended.err
        assert {path.name for path in Path().iterdir()} == {*NAMES, "results.jsonl"}

    def test_a_run_that_was_killed_with_half_its_first_line_goes_on(self, batch: Batch, begun: list[bytes]) -> None:
        for length in (0, 1, 10, len(begun[0]) - 1):
            RESULTS.write_bytes(begun[0][:length])
            assert self.resumed(batch)["done_before"] == 0
            assert len(lines()) == 4

    def test_plans_of_two_runs_do_not_take_each_others_place(self, batch: Batch, begun: list[bytes]) -> None:
        """The same graph, budget and way by name; but not the same graph, nor the same options."""
        plans = {path: path.read_bytes() for path in Path("plans").iterdir()}
        write_graphs(Path(), "a", size=101)
        batch(*TWICE, "--option", "limit=2", "-o", "other.jsonl", "--schedules", "plans")
        assert {path: path.read_bytes() for path in plans} == plans
        assert len(list(Path("plans").iterdir())) == 8
        write_graphs(Path(), "a")
        assert self.resumed(batch)["done_before"] == 4


class TestEndings:
    """A run in a process of its own that is ended from outside."""

    ARGS = ("a.json", "stubborn.json", "b.json", "--budget", "100%", "-c", "keep_all", "--jobs", "2")
    COMMAND = (*ARGS, "-o", "results.jsonl", "--schedules", "plans")

    @pytest.fixture
    def running(self, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
        """A run of which two jobs are done, and one never will be."""
        write_graphs(tmp_path, "stubborn")
        script = f"""
import sys
from remat_cli.batch import processes
from remat_cli.config import DEFAULT_PLANNER
from remat_cli.cli import main
processes.CHILD = ({faulty_child.__file__!r},)
sys.argv = ["remat", "batch", *{self.COMMAND!r}]
main()
"""
        run = subprocess.Popen([sys.executable, "-c", script], stdout=-1, stderr=-1, text=True)
        while not (RESULTS.exists() and RESULTS.read_bytes().count(b"\n") == 2 and self.stray().exists()):
            assert run.poll() is None
            sleep(0.02)
        yield run
        run.kill()
        run.communicate()

    def stray(self) -> Path:
        return Path("stray")

    def assert_nothing_is_left(self) -> None:
        process = int(self.stray().read_text())
        for _ in range(500):
            stat = Path(f"/proc/{process}/stat")
            if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return
            sleep(0.02)
        os.kill(process, signal.SIGKILL)
        pytest.fail("what a job had started is still there")

    @needs_proc
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_ctrl_c_loses_nothing_that_was_finished(
        self, number: signal.Signals, running: subprocess.Popen[str], batch: Batch
    ) -> None:
        running.send_signal(number)
        out, err = running.communicate()
        assert (running.returncode, err) == (130, "")
        assert "Interrupted: 1 job has not ended; the same command with --resume goes on." in out
        self.assert_nothing_is_left()
        assert [line["status"] for line in lines()] == ["optimal", "optimal"]
        processes.CHILD = ("-P", "-m", "remat_cli.batch.job_process")
        summary = batch(*self.COMMAND, "--resume", "--json").json
        assert (summary["done_before"], summary["endings"]) == (2, {"optimal": 3})

    @needs_proc
    def test_nothing_is_lost_or_left_by_kill_9(self, running: subprocess.Popen[str], batch: Batch) -> None:
        running.kill()
        running.communicate()
        self.assert_nothing_is_left()
        processes.CHILD = ("-P", "-m", "remat_cli.batch.job_process")
        summary = batch(*self.COMMAND, "--resume", "--json").json
        assert (summary["done_before"], summary["endings"]) == (2, {"optimal": 3})

    def test_a_second_run_cannot_write_the_same_results(self, running: subprocess.Popen[str], batch: Batch) -> None:
        ended = batch("a.json", "--budget", "100%", "-c", "keep_all", "-o", RESULTS, "--resume")
        assert (ended.code, ended.out) == (2, "")
        assert "is being written by another 'remat batch'" in ended.err

    def test_a_closed_pipe_ends_quietly(self) -> None:
        command = f"{sys.executable} -m remat_cli batch a.json b.json --budget 100% -c keep_all -o - | head -n 1"
        done = subprocess.run(command, shell=True, capture_output=True, check=False, text=True)
        assert "Traceback" not in done.stderr
        assert json.loads(done.stdout)["status"] == "optimal"


WRONG_CALLS: dict[str, tuple[Sequence[str], int, str]] = {
    "no graphs": ((), 2, "Missing argument"),
    "a missing graph": (("c.json", "--budget", "80%"), 6, "c.json: no such file"),
    "a pattern without a match": (("*.onnx", "--budget", "80%"), 6, "*.onnx: no file matches"),
    "no budget": (("a.json",), 2, f"{DEFAULT_PLANNER} has no budget"),
    "a budget that is none": (("a.json", "--budget", "lots"), 2, "budget 'lots' is not understood"),
    "an unknown config": (("a.json", "-c", "dtrr"), 2, "did you mean 'dtr'?"),
    "an option of no planner": (("a.json", "-c", "dtr", "--option", "heuristc=lru"), 2, "--option heuristc"),
    "a wrong option": (("a.json", "-c", "dtr", "--option", "heuristic=luck"), 2, "heuristic: "),
    "resume without results": (("a.json", "-c", "dtr", "--resume"), 2, "--resume needs the results"),
    "retry without resume": (("a.json", "-c", "dtr", "--retry", "-o", "r"), 2, "--retry goes with --resume"),
    "jobs on a cluster": (
        ("a.json", "-c", "dtr", "-j", "2", "--scheduler", "tcp://x:1"),
        2,
        "--jobs is for this machine",
    ),
    "a time that is none": (("a.json", "-c", "dtr", "--job-timeout", "soon"), 2, "duration 'soon'"),
    "a size that is none": (("a.json", "-c", "dtr", "--memory-limit", "some"), 2, "size 'some'"),
    "a manifest beside graphs": (("m.yaml", "a.json"), 2, "m.yaml is a manifest, and stands alone"),
    "a missing manifest": (("m.yaml",), 2, "m.yaml: no such file"),
    "results where there is no folder": (("a.json", "-c", "dtr", "-o", "no/r.jsonl"), 2, "cannot be written"),
    "results in a device": (("a.json", "-c", "dtr", "-o", "/dev/full"), 2, "/dev/full is not a regular file"),
    "schedules where there is a file": (
        ("a.json", "-c", "dtr", "--schedules", "b.json"),
        2,
        "cannot be written: File exists",
    ),
}


@pytest.mark.parametrize("fault", WRONG_CALLS)
def test_a_wrong_call_ends_at_once_with_a_message(fault: str, batch: Batch) -> None:
    args, code, message = WRONG_CALLS[fault]
    ended = batch(*args)
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err


def test_a_name_that_is_no_utf8_is_gone_on_with(batch: Batch) -> None:
    odd = os.fsdecode(b"odd\xff.json")
    try:
        Path(odd).write_bytes(Path("a.json").read_bytes())
    except OSError:
        pytest.skip("this file system takes no such name")
    call = (odd, "--budget", "70%", "-c", "dtr", "-o", RESULTS)
    assert batch(*call).code == 0
    written = RESULTS.read_bytes()
    assert lines()[0]["graph"] == "odd\\udcff.json"
    assert batch(*call, "--resume", "--json").json["done_before"] == 1
    assert RESULTS.read_bytes() == written


@pytest.fixture
def models(tmp_path: Path) -> None:
    """Two ONNX models, of which only one has a dimension of that name."""
    for name in ("unet.onnx", "gpt.onnx"):
        (tmp_path / name).write_bytes((GRAPHS / name).read_bytes())


@pytest.mark.usefixtures("models")
def test_a_dim_is_given_where_it_exists(batch: Batch) -> None:
    call = ("unet.onnx", "gpt.onnx", "--dim", "batch=1", "--dim", "seq=16", "--budget", "100%", "-c", "dtr")
    ended = batch(*call, "-o", RESULTS)
    assert ended.code == 0
    assert ended.out.count("--dim seq: not in 'unet.onnx'; read without it") == 1
    read = {line["graph"]: (line["mode"], line["dims"]) for line in lines()}
    assert read == {"unet.onnx": ("training", {"batch": 1}), "gpt.onnx": ("training", {"batch": 1, "seq": 16})}
    assert batch(*call, "--json").json["absent_dims"] == {"seq": ["unet.onnx"]}
    absent = batch("a.json", *call[2:], "--json").json["absent_dims"]
    assert absent == {"batch": ["a.json"], "seq": ["a.json"]}


@pytest.mark.usefixtures("models")
def test_all_other_dims_take_one_value(batch: Batch) -> None:
    ended = batch("*.onnx", "--dim", "seq=16", "--dim", "*=1", "--budget", "100%", "-c", "dtr", "-o", RESULTS)
    assert ended.code == 0
    assert "dims" in ended.out
    peaks = {line["graph"]: line["plain_peak_bytes"] for line in lines()}
    batch("*.onnx", "--dim", "seq=16", "--dim", "batch=1", "--budget", "100%", "-c", "dtr", "-o", "named.jsonl")
    assert peaks == {line["graph"]: line["plain_peak_bytes"] for line in lines(Path("named.jsonl"))}


@pytest.mark.usefixtures("models")
def test_a_manifest_goes_on_without_a_graph_that_is_not_there(batch: Batch) -> None:
    Path("m.yaml").write_text(
        "dims: {batch: 1, seq: 16}\nbudgets: [100%]\nconfigs: [dtr]\n"
        "graphs: [absent.onnx, none*.onnx, unet.onnx, {path: unet.onnx, dims: {seq: 3}}]\n"
    )
    assert batch("m.yaml", "-o", RESULTS).code == 6
    ended = sorted((line["graph"], line["status"]) for line in lines())
    # What is said of one graph alone has to be there.
    assert ended == [
        ("absent.onnx", "error"),
        ("none*.onnx", "error"),
        ("unet.onnx", "error"),
        ("unet.onnx", "optimal"),
    ]
    assert "absent.onnx: no such file" in str(lines())
