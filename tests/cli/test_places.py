"""Where output goes and cannot go: read-only folders, full disks, closed pipes, and two writers of one file."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import click
import pytest

from remat_cli.cli import VERBS
from tests.cli.calls import Remat
from tests.places import GRAPHS, ROOT
from tests.unit.formats.onnx.models import Model, elsewhere, float_input, node

GRAPH = GRAPHS / "skip_chain.json"
PLAN = ("plan", str(GRAPH), "--budget", "80%", "-c", "dtr")
ROOT_WRITES_EVERYWHERE = pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")


def started(*args: str | Path, **more: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "remat_cli", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)  # type: ignore[call-overload,no-any-return]


# Every verb that writes files, with each kind of file that it reads: that file, and a call that would write over it.
OVERWRITING = (
    ("model.onnx", "convert model.onnx --dim batch=1 -o OUT"),
    ("times.yaml", "convert model.onnx --dim batch=1 --measurements times.yaml -o OUT"),
    ("graph.json", "plan graph.json --budget 80% -o OUT"),
    ("graph.json", "plan graph.json --budget 80% --html OUT"),
    ("config.yaml", "plan graph.json --budget 80% -c config.yaml -o OUT"),
    ("device.yaml", "plan graph.json --budget 80% -c device_config.yaml -o OUT"),
    ("device.yaml", "plan graph.json --budget 80% --device device.yaml -o OUT"),
    ("graph.json", "sweep graph.json --csv OUT"),
    ("graph.json", "sweep graph.json --plot OUT"),
    ("config.yaml", "sweep graph.json --planners dtr,config.yaml --csv OUT"),
    ("other.json", "compare graph.json other.json --csv OUT"),
    ("config.yaml", "compare graph.json --planners config.yaml,keep_all --markdown OUT"),
    ("model.onnx", "fit model.onnx --dim batch --budget 2GB -o OUT"),
    ("schedule.json", "report schedule.json graph.json -o OUT"),
    ("graph.json", "report schedule.json graph.json -o OUT"),
    ("model.onnx", "apply model.onnx schedule.json -o OUT"),
    ("schedule.json", "apply model.onnx schedule.json -o OUT"),
    ("device.yaml", "generate chain --device device.yaml -o OUT"),
    ("graph.json", "batch graph.json --budget 80% -o OUT"),
    ("config.yaml", "batch graph.json --budget 80% -c config.yaml -o OUT --resume"),
    ("manifest.yaml", "batch manifest.yaml -o OUT"),
    ("graph.json", "batch manifest.yaml -o OUT"),
    ("project.yaml", "check project.yaml -o OUT"),
    ("graph.json", "check project.yaml --format json=OUT"),
    ("config.yaml", "check project.yaml --format junit=OUT"),
    ("project.baseline.json", "check project.yaml --format markdown=OUT"),
    ("weights.bin", "convert external.onnx -o OUT"),
    ("weights.bin", "plan external.onnx --budget 80% -o OUT"),
    ("weights.bin", "plan external.onnx --budget 80% --html OUT"),
    ("weights.bin", "report schedule.json external.onnx -o OUT"),
    ("weights.bin", "allocate external.onnx schedule.json -o OUT"),
    ("weights.bin", "measure external.onnx -o OUT"),
    ("weights.bin", "sweep external.onnx --csv OUT"),
    ("weights.bin", "compare graph.json external.onnx --markdown OUT"),
    ("weights.bin", "apply external.onnx schedule.json -o OUT"),
    ("weights.bin", "fuse external.onnx -o OUT"),
    ("weights.bin", "batch external.onnx --budget 80% -o OUT"),
    ("weights.bin", "check external.yaml -o OUT"),
    ("weights.bin", "check external.yaml --format junit=OUT"),
    ("times.yaml", "allocate graph.json schedule.json --measurements times.yaml -o OUT"),
    ("graph.json", "plan graph.json --budget 80% --stages 2 -o OUT"),
    ("weights.bin", "plan external.onnx --budget 80% --stages 2 -o OUT"),
    ("schedule.json", "report schedule.json external.onnx --as trace -o OUT"),
    ("values.npy", "plan external.onnx --value x=values.npy --budget 80% -o OUT"),
    ("values.npy", "compare graph.json external.onnx --value x=values.npy --csv OUT"),
    ("values.npy", "batch external.onnx --value x=values.npy --budget 80% -o OUT"),
    ("weights.bin", "check baseline.yaml --update-baseline"),
    ("config.json", "plan . --budget 80% -o OUT"),
    ("train.py", "plan train.py:step --budget 80% --as policy -o OUT"),
    ("train.py", "check steps.yaml -o OUT"),
    ("train.py", "plan train.py:step --budget 80% -o OUT"),
    ("train.py", "plan train:step --budget 80% -o OUT"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, which the test runs in, with a file of every kind that is read."""
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "graph.json": GRAPH.read_bytes(),
        "other.json": GRAPH.read_bytes(),
        "model.onnx": (GRAPHS / "unet.onnx").read_bytes(),
        "external.onnx": _with_external_data("weights.bin"),
        "external.yaml": b"models: [{path: external.onnx, budget: 80%}]\n",
        "baseline.yaml": b"baseline: weights.bin\nmodels: [{path: external.onnx, budget: 80%}]\n",
        "steps.yaml": b"models: [{path: 'train.py:step', budget: 80%}]\n",
        "config.json": b'{"model_type": "gpt2"}',
        "values.npy": b"",
        "weights.bin": bytes(24),
        "train.py": b"def step(): ...\n",
        "times.yaml": b"Relu: 7\n",
        "config.yaml": b"planner: dtr\n",
        "device_config.yaml": b"device: device.yaml\n",
        "device.yaml": (ROOT / "configs/devices/a100.yaml").read_bytes(),
        "manifest.yaml": b"graphs: [graph.json]\nbudgets: [80%]\nconfigs: [dtr]\n",
        "project.yaml": b"models: [{path: graph.json, config: config.yaml, budget: 80%}]\n",
        "schedule.json": b'{"format": "remat.schedule/1", "steps": []}',
        "project.baseline.json": b'{"format": "remat.baseline/1", "models": {}}\n',
    }.items():
        Path(name).write_bytes(content)
    return tmp_path


def _with_external_data(location: str) -> bytes:
    stored = elsewhere("w", [2, 3], location)
    model = Model([node("Add", ["x", "w"], ["y"])], inputs=[float_input("x", 2, 3)], stored=[stored])
    content: bytes = model.proto().SerializeToString()
    return content


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph may be read, or made: what would come of it would be a bug's exit code."""
    monkeypatch.setattr("remat_cli.prepare.read_graph", None)
    monkeypatch.setattr("remat_cli.cli.generate.synthesize", None)


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize(("read", "call"), OVERWRITING)
def test_what_is_read_is_not_written_over(read: str, call: str, remat: Remat, folder: Path) -> None:
    before = contents(folder)
    ended = remat(*call.replace("OUT", f"../{folder.name}/{read}").split())
    assert ended.code == 2
    assert "which is read, would be lost" in ended.err
    assert contents(folder) == before


def test_each_output_of_each_verb_is_held_against_what_is_read() -> None:
    held = {(call.split()[0], call[: call.find("OUT")].split()[-1].split("=")[0]) for _, call in OVERWRITING}
    names = {"json", "junit", "markdown"}  # after --format
    outputs = {
        (verb, option.opts[0])
        for verb in VERBS
        for option in import_module(f"remat_cli.cli.{verb}").command.params
        if isinstance(option, click.Option) and type(option.type) is click.Path
    }
    assert {flag for verb, flag in held if verb == "check"} > names
    assert outputs - held == {("batch", "--schedules")}  # names in that folder are hashes


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize("call", sorted({call for _, call in OVERWRITING if "OUT" in call}))
def test_what_is_write_protected_is_replaced_by_force_alone(call: str, remat: Remat, folder: Path) -> None:
    old = folder / ("old.png" if "--plot" in call else "old")
    old.write_bytes(b"old")
    old.chmod(0o444)
    before = contents(folder)
    command = call.replace("OUT", old.name).split()
    ended = remat(*command)
    assert ended.code == 2
    assert f"{old.name}: is write-protected" in ended.err
    assert "or replace it with --force" in ended.err
    assert contents(folder) == before
    assert "write-protected" not in remat(*command, "--force").err


def test_force_leaves_the_mode_as_it_was(remat: Remat, folder: Path) -> None:
    old = folder / "old"
    old.touch(0o444)
    assert remat("convert", "graph.json", "-o", "old", "--force").code == 0
    assert (old.stat().st_mode & 0o777, json.loads(old.read_text())["format"]) == (0o444, "remat.graph/1")


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize(
    ("read", "call"),
    [
        ("graph.json", "convert graph.json -o link"),
        ("graph.json", "batch graph.json --budget 80% -o link"),
        ("weights.bin", "plan external.onnx --budget 80% -o link"),
    ],
)
def test_a_link_is_the_file_that_it_leads_to(
    read: str, call: str, link: Callable[[Path, str], None], remat: Remat, folder: Path
) -> None:
    link(Path("link"), read)
    ended = remat(*call.split())
    assert ended.code == 2
    assert "which is read, would be lost" in ended.err
    assert Path("graph.json").read_bytes() == GRAPH.read_bytes()


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize(
    "call",
    [
        "plan graph.json --budget 80% -o new.svg --html ./new.svg",
        "plan graph.json --budget 80% -o new.svg --html link.svg",
        "plan graph.json --budget 80% -o old.svg --html same.svg",
        "sweep graph.json --csv new.svg --plot ./new.svg",
        "compare graph.json --csv new.svg --markdown ./new.svg",
        "check project.yaml --format junit=new.svg -o ./new.svg",
        "check project.yaml --format junit=new.svg --format json=./new.svg",
        "check project.yaml --update-baseline -o project.baseline.json",
        "--log-file run.log plan graph.json --budget 80% -o ./run.log",
    ],
)
def test_two_outputs_do_not_go_to_one_file(call: str, remat: Remat, folder: Path) -> None:
    Path("link.svg").symlink_to("new.svg")
    Path("old.svg").write_text("old")
    Path("same.svg").hardlink_to("old.svg")
    ended = remat(*call.split())
    assert ended.code == 2
    assert "would be lost" in ended.err
    assert not Path("new.svg").exists()
    assert Path("old.svg").read_text() == "old"


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize(
    "call",
    [
        "convert graph.json -o absent/../graph.json",
        "plan graph.json --budget 80% -o absent/../graph.json",
        "plan graph.json --budget 80% -o new.svg --html absent/../new.svg",
        "batch graph.json --budget 80% -o absent/../graph.json",
        "--log-file absent/../run.log planners",
        "convert graph.json -o through/../graph.json",
        "--log-file through/../graph.json inspect graph.json",
    ],
)
def test_a_path_leads_where_the_system_goes(call: str, remat: Remat, folder: Path) -> None:
    """Not through a folder that is not there; and what is above a link is what is above the folder it leads to."""
    inner = folder / "elsewhere" / "inner"
    inner.mkdir(parents=True)
    (folder / "elsewhere" / "graph.json").hardlink_to("graph.json")
    Path("through").symlink_to(inner)
    before = sorted(folder.rglob("*"))
    ended = remat(*call.split())
    assert ended.code == 2
    assert any(reason in ended.err for reason in ("there is no folder 'absent/..'", "would be lost", "is not a log"))
    assert sorted(folder.rglob("*")) == before
    assert Path("graph.json").read_bytes() == GRAPH.read_bytes()


def test_devices_take_any_number_of_outputs(remat: Remat, folder: Path) -> None:
    call = "plan graph.json --budget 80% -c dtr -q -o /dev/null --html /dev/null"
    assert remat(*call.split()).code == 0


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("no/folder/out.svg", "there is no folder 'no/folder'"),
        ("graph.json/out.svg", "Not a directory"),
        ("there", "Is a directory"),
        (f"{'n' * 300}.svg", "File name too long"),
        ("loop.svg", "Too many levels of symbolic links"),
        ("/proc/out.svg", "cannot be written: "),
    ],
)
def test_a_place_that_takes_no_file_is_found_before_any_work(
    place: str, reason: str, remat: Remat, folder: Path
) -> None:
    Path("there").mkdir()
    Path("loop.svg").symlink_to("loop.svg")
    before = sorted(folder.iterdir())
    ended = remat("plan", "graph.json", "--budget", "80%", "--html", place)
    assert ended.code == 2
    assert f"{place}: cannot be written: " in ended.err
    assert reason in ended.err
    assert "choose another place with --html" in ended.err
    assert sorted(folder.iterdir()) == before


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize("call", sorted({call for _, call in OVERWRITING if "OUT" in call}))
def test_every_verb_finds_that_before_any_work(call: str, remat: Remat, folder: Path) -> None:
    ended = remat(*call.replace("OUT", "no/out.svg").split())
    assert ended.code == 2
    assert "no/out.svg: cannot be written: there is no folder 'no'" in ended.err


def test_only_a_log_is_added_to(remat: Remat, folder: Path) -> None:
    before = contents(folder)
    ended = remat("--log-file", "graph.json", "inspect", "graph.json")
    assert ended.code == 2
    assert "is not a log of remat" in ended.err
    assert contents(folder) == before
    for _ in range(2):
        assert remat("--log-file", "run.log", "planners", "-h").code == 0


@ROOT_WRITES_EVERYWHERE
def test_a_read_only_folder_is_told(remat: Remat, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    ended = remat(*PLAN, "-o", tmp_path / "s.json")
    assert ended.code == 2
    assert "cannot be written: Permission denied" in ended.err


def test_a_place_in_a_system_folder_that_takes_no_files_is_told(remat: Remat) -> None:
    ended = remat(*PLAN, "-o", "/proc/s.json")
    assert ended.code == 2
    assert "/proc/s.json: cannot be written" in ended.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_told_and_the_device_is_left_alone(remat: Remat) -> None:
    ended = remat(*PLAN, "-o", "/dev/full")
    assert ended.code == 2
    assert "No space left on device" in ended.err
    assert Path("/dev/full").is_char_device()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("args", [PLAN, (*PLAN, "--json"), ("planners",), ("inspect", str(GRAPH)), (*PLAN, "-o", "-")])
def test_a_full_disk_behind_stdout_is_told(args: Sequence[str]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "remat_cli", *args]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_log_on_a_full_disk_costs_one_warning(remat: Remat, tmp_path: Path) -> None:
    output = tmp_path / "s.json"
    ended = remat("--log-file", "/dev/full", *PLAN, "-q", "-o", output)
    assert ended.code == 0
    assert ended.err == "warning: --log-file /dev/full: No space left on device; the log ends here\n"
    assert json.loads(output.read_text())["format"] == "remat.schedule/1"


def test_a_file_that_grows_too_large_leaves_the_old_one(tmp_path: Path) -> None:
    """As on a disk that fills up while the file is written: the limit is on the size of any file of the process."""
    path = tmp_path / "s.json"
    path.write_text("the old one")

    def allow_little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    process = started(*PLAN, "-q", "-o", path, preexec_fn=allow_little)
    _, err = process.communicate()
    assert process.returncode == 2
    assert b"cannot be written: File too large" in err
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("args", [PLAN, ("planners",), ("planners", "--schema"), ("inspect", str(GRAPH), "--json")])
def test_a_reader_that_leaves_early_ends_it_quietly(args: Sequence[str]) -> None:
    process = started(*args)
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def in_shell(redirected: str, *args: str | Path) -> int:
    """The exit code of a call with its streams redirected; with several in a pipe, the first one's."""
    call = shlex.join([sys.executable, "-m", "remat_cli", *map(str, args)])
    script = f"{call} {redirected}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", script], stdout=-3, stderr=-3, check=False).returncode


@pytest.mark.parametrize(
    "redirected",
    [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", "2</dev/null", "| true"],
)
def test_files_are_written_though_nobody_hears_of_it(redirected: str, tmp_path: Path) -> None:
    output = tmp_path / "s.json"
    assert in_shell(redirected, "--log-file", tmp_path / "log", *PLAN, "-o", output) == 0
    assert json.loads(output.read_text())["format"] == "remat.schedule/1"
    assert "ended with exit code 0" in (tmp_path / "log").read_text()


def test_the_exit_code_tells_what_nobody_hears(tmp_path: Path) -> None:
    assert in_shell("| true", "plan", GRAPH, "--budget", "1B", "--json") == 3
    assert in_shell(">&-", "plan", GRAPH, "--budget", "1B") == 3
    assert in_shell("2>&-", "plan", tmp_path / "absent", "--budget", "80%") == 6
    assert in_shell("2>&1 | true", "plan", "--bogus") == 2


def test_notes_that_nobody_hears_keep_no_file_from_being_written(tmp_path: Path) -> None:
    graph, output = tmp_path / "g.json", tmp_path / "out.json"
    graph.write_text(json.dumps(json.loads(GRAPH.read_text()) | {"unknown": 1}))
    assert in_shell("2>&1 | true", "convert", graph, "-o", output) == 0
    assert output.exists()


def test_a_file_for_a_closed_stdout_is_refused_before_any_work(tmp_path: Path) -> None:
    assert in_shell(">&-", "--log-file", tmp_path / "log", *PLAN, "-o", "-") == 2
    assert "-o -: there is no stdout" in (tmp_path / "log").read_text()
    assert "found a plan" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("args", [("--help",), ("plan", "--help"), ("completion", "bash")])
def test_help_for_nobody_ends_quietly(args: Sequence[str]) -> None:
    assert in_shell("| true", *args) == 0
    assert in_shell(">&-", *args) == 0


def test_a_batch_ends_when_nobody_reads_its_lines(tmp_path: Path) -> None:
    budgets = ",".join(f"{share}%" for share in range(40, 100))
    assert in_shell("| true", "--log-file", tmp_path / "log", "batch", GRAPH, "--budget", budgets, "-o", "-") == 0
    assert "60 of 60 jobs done" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("columns", ["0", "00"])
def test_no_columns_mean_that_their_number_is_not_known(
    columns: str, remat: Remat, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = remat(*PLAN).out
    assert len(expected) > 1000
    monkeypatch.setenv("COLUMNS", columns)
    assert remat(*PLAN).out == expected


def test_two_writers_of_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    processes = [started("plan", GRAPH, "--budget", share, "-c", "dtr", "-q", "-o", path) for share in ("80%", "90%")]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0]
    assert json.loads(path.read_text())["format"] == "remat.schedule/1"
    assert list(tmp_path.iterdir()) == [path]


def test_names_of_ten_megabytes_stay_short_in_every_report(remat: Remat, tmp_path: Path) -> None:
    graph = json.loads(GRAPH.read_text())
    name = graph["ops"][3]["name"]
    text = GRAPH.read_text().replace(f'"{name}"', json.dumps("\x1b[31m<b>" + 10_000_000 * "n"))
    path = tmp_path / "huge.json"
    path.write_text(text)
    for args in (("inspect", path), ("plan", path, "--budget", "80%", "-c", "dtr")):
        ended = remat(*args)
        assert ended.code == 0
        assert len(ended.out) < 20_000
        assert "\x1b" not in ended.out


@pytest.mark.parametrize(
    "args",
    [
        ("plan", "NAME", "--budget", "1GB"),
        ("plan", GRAPH, "--budget", "80%", "-c", "NAME"),
        ("plan", GRAPH, "--budget", "80%", "--device", "NAME"),
        ("plan", GRAPH, "--budget", "80%", "-c", "dtr", "-o", "NAME"),
        ("verify", GRAPH, "NAME"),
        ("apply", GRAPH, "NAME", "-o", "out.onnx"),
        ("check", "NAME"),
        ("batch", "NAME", "--budget", "80%", "-o", "-"),
        ("batch", GRAPH, "--budget", "80%", "-c", "dtr", "-o", "NAME"),
        ("sweep", "NAME", "--budgets", "80%"),
        ("sweep", GRAPH, "--planner", "NAME", "--budgets", "80%"),
        ("compare", "NAME", "--planners", "dtr", "--budgets", "80%"),
        ("fit", "NAME", "--dim", "batch", "--budget", "1GB"),
        ("report", "NAME", GRAPH, "-o", "out.html"),
        ("--log-file", "NAME", "planners"),
    ],
    ids=lambda args: args[0],
)
@pytest.mark.parametrize("name", ["n" * 5000, "absent/\x1b[31mfile"])
def test_names_that_no_file_can_have_are_told(
    remat: Remat, args: Sequence[str | Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = remat(*(name if arg == "NAME" else arg for arg in args))
    assert ended.code in (2, 6)
    assert "a bug in remat" not in ended.err
    assert len(ended.err) < 5000
    assert "\x1b[31mfile" not in ended.err
    assert list(tmp_path.iterdir()) == []
