"""`remat check` as a user and a CI server call it: exit codes, forms, files, and the samples of the repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from time import sleep
from xml.etree.ElementTree import fromstring

import onnx
import pytest
import yaml
from onnx import helper

from remat_cli.checks.check import CheckOutcome, check_model
from remat_cli.checks.project import ModelCheck
from tests.cli.calls import Remat
from tests.documents import chain_document
from tests.places import GRAPHS, ROOT

CHAIN = chain_document(12)
# By a planner that answers at once: what is tested here is what becomes of the answer.
HOLDS = "- {name: fits, path: chain.json, budget: 70%, planner: dtr}\n"
FAILS = "- {name: tight, path: chain.json, budget: 250B, planner: dtr}\n"
BROKEN = "- {name: lost, path: gone.json, budget: 70%}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a graph, which is where the calls are made."""
    (tmp_path / "chain.json").write_text(json.dumps(CHAIN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


def project(*models: str, more: str = "") -> None:
    Path("remat.yaml").write_text(f"{more}models:\n{''.join(models)}")


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("path", ["evil.py:step", "./evil.py:step", "evil:step", "evil.pkg.mod:step"])
def test_code_that_a_project_names_is_run_but_for_no_code(path: str, jobs: str, remat: Remat, folder: Path) -> None:
    ran = folder / "ran"
    Path("evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    project(f"- {{path: '{path}', budget: 70%}}\n", HOLDS)
    ended = remat("check", "--no-code", "--jobs", jobs)
    assert ended.code == 2
    assert not ran.exists()
    assert "which --no-code does not run" in " ".join(ended.out.split())
    assert "holds  fits" in ended.out, "the others are checked"


def test_with_code_the_same_file_is_imported(remat: Remat, folder: Path) -> None:
    pytest.importorskip("torch")
    ran = folder / "ran"
    Path("evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    project("- {path: 'evil.py:step', budget: 70%}\n")
    assert remat("check").code == 2, "there is no function of that name"
    assert ran.exists()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_no_data_that_a_models_code_reads_is_overwritten(jobs: str, remat: Remat) -> None:
    """With several jobs, the code runs in other processes."""
    pytest.importorskip("torch")
    Path("data.txt").write_text("16")
    read = "from pathlib import Path\nPath('data.txt').read_text()\n"
    Path("reader.py").write_text(f"{read}def step(): ...\n")
    sys.modules.pop("reader", None)
    project("- {path: 'reader.py:step', budget: 70%}\n", HOLDS)
    ended = remat("check", "--jobs", jobs, "--format", "json=data.txt")
    assert (ended.code, "which is read, would be lost" in ended.err) == (2, True), ended.err
    assert Path("data.txt").read_text() == "16"


@pytest.mark.parametrize(
    ("models", "code"),
    [
        ((HOLDS,), 0),
        ((HOLDS, FAILS), 3),
        ((BROKEN, HOLDS), 6),
        ((FAILS, BROKEN, HOLDS), 6),
        ((FAILS, "- {name: odd, path: chain.json, budget: 70%, optimizer: adam}\n"), 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst_line(models: tuple[str, ...], code: int, remat: Remat) -> None:
    project(*models)
    ended = remat("check")
    assert ended.code == code
    lines = re.findall(r"^(holds|fails|error)  (\S+)", ended.out, re.MULTILINE)
    assert len(lines) == len(models), "every model has its line"


def test_what_fails_says_why_and_what_helps(remat: Remat) -> None:
    project(HOLDS, FAILS, BROKEN)
    ended = remat("check")
    assert re.search(r"No plan fits 250 B: op '\S+' alone needs \d+ B\.", ended.out)
    assert re.search(r"· Raise budget to \S+, where a plan of \S+ % overhead fits\.", ended.out)
    assert "gone.json: no such file." in ended.out
    assert ended.out.endswith("1 of 3 models fails, 1 could not be checked.\n")
    assert ended.err == ""


def test_a_project_in_another_folder_names_its_files_from_there(remat: Remat, folder: Path) -> None:
    project(HOLDS)
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")
    assert remat("check", "../remat.yaml").code == 0
    assert remat("check", folder / "remat.yaml").code == 0


def test_without_a_project_it_shows_how_to_write_one(remat: Remat) -> None:
    ended = remat("check")
    assert (ended.code, ended.out) == (2, "")
    assert "remat.yaml: no such file" in ended.err
    hint = ended.err.split("or write")[1].strip()
    Path("remat.yaml").write_text(hint)
    assert remat("check").code == 6, "what the hint shows is a project, of a model that is not there"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [\n", "no valid YAML"),
        ("models:\n- {path: chain.json, bugdet: 70%}\n", "remat.yaml:2: bugdet: unknown key"),
        ("models:\n- {path: chain.json}\n", "remat.yaml:2: 'chain' is held to nothing"),
    ],
)
def test_a_wrong_project_ends_with_2_and_its_line(text: str, message: str, remat: Remat) -> None:
    Path("remat.yaml").write_text(text)
    ended = remat("check")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert "hint:" in ended.err


class TestForms:
    def test_junit(self, remat: Remat) -> None:
        project(HOLDS, FAILS, BROKEN)
        ended = remat("check", "--format", "junit")
        assert ended.code == 6
        suite = fromstring(ended.out)[0]
        assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")

    def test_github(self, remat: Remat) -> None:
        project(HOLDS, FAILS, BROKEN)
        lines = remat("check", "--format", "github").out.splitlines()
        assert [line.split("::")[1] for line in lines[:-1]] == [
            "error file=remat.yaml,line=3,title=remat check%3A tight fails",
            "error file=remat.yaml,line=4,title=remat check%3A lost could not be checked",
        ]

    def test_markdown(self, remat: Remat) -> None:
        project(HOLDS)
        assert remat("check", "--format", "markdown").out.startswith("### remat check: The model holds.\n")

    def test_json(self, remat: Remat) -> None:
        project(HOLDS, FAILS)
        ended = remat("check", "--json")
        assert ended.out == remat("check", "--format", "json").out
        assert [(model["name"], model["verdict"]) for model in ended.json["models"]] == [
            ("fits", "holds"),
            ("tight", "fails"),
        ]

    def test_one_check_can_be_reported_in_several_forms(self, remat: Remat) -> None:
        project(HOLDS, FAILS)
        ended = remat("check", "--format", "github", "--format", "markdown=s.md", "--format", "json=r.json")
        assert ended.code == 3
        assert ended.out == remat("check", "--format", "github").out
        assert Path("s.md").read_text() == remat("check", "--format", "markdown").out
        assert Path("r.json").read_text() == remat("check", "--json").out

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("--json", "--format", "junit"), "stdout takes one form, not junit and json"),
            (("--format", "github", "--format", "json=-"), "stdout takes one form"),
            (("--format", "junt"), "did you mean 'junit'?"),
            (("--format", "junit="), "names no file"),
        ],
    )
    def test_forms_that_cannot_be_are_refused(self, args: tuple[str, ...], message: str, remat: Remat) -> None:
        project(HOLDS)
        ended = remat("check", *args)
        assert (ended.code, ended.out) == (2, "")
        assert message in ended.err

    @pytest.mark.parametrize("form", ["table", "json", "junit", "github", "markdown"])
    def test_a_file_gets_the_form_and_the_terminal_the_table(self, form: str, remat: Remat) -> None:
        project(HOLDS)
        alone = remat("check", "--format", form)
        ended = remat("check", "--format", form, "-o", "report")
        assert (alone.code, ended.code, ended.err) == (0, 0, "")
        assert ended.out == remat("check").out
        without_times = re.compile(r'time="[\d.]+"')
        assert without_times.sub("", Path("report").read_text()) == without_times.sub("", alone.out)

    def test_a_dash_moves_the_table_to_stderr(self, remat: Remat) -> None:
        project(HOLDS)
        ended = remat("check", "--json", "-o", "-")
        assert ended.json["holds"] is True
        assert ended.err == remat("check").out

    @pytest.mark.parametrize("form", ["table", "json", "junit"])
    def test_quiet_prints_nothing(self, form: str, remat: Remat) -> None:
        project(FAILS)
        ended = remat("check", "-q", "--format", form)
        assert (ended.code, ended.out, ended.err) == (3, "", "")

    def test_a_report_that_cannot_be_written_ends_with_2(self, remat: Remat) -> None:
        project(HOLDS)
        ended = remat("check", "--format", "junit", "-o", "no/report.xml")
        assert ended.code == 2
        assert "cannot be written" in ended.err

    def test_the_same_check_says_the_same(self, remat: Remat) -> None:
        project(HOLDS, FAILS, BROKEN)
        assert remat("check", "--json").out == remat("check", "--json").out


class TestOnly:
    def test_only_the_named_models_are_checked(self, remat: Remat) -> None:
        project(HOLDS, FAILS, BROKEN)
        ended = remat("check", "--only", "fits", "--only", "ti*", "--json")
        assert ended.code == 3
        assert [model["name"] for model in ended.json["models"]] == ["fits", "tight"]

    def test_a_name_that_is_not_there_is_refused_with_one_that_is(self, remat: Remat) -> None:
        project(HOLDS, FAILS)
        ended = remat("check", "--only", "tigt")
        assert ended.code == 2
        assert "did you mean 'tight'?" in ended.err


class TestBaseline:
    REGRESSION = "defaults: {max_regression: 5%}\n"
    FILE = Path("remat.baseline.json")

    def grow(self) -> None:
        tensors = [{"name": tensor["name"], "bytes": 110} for tensor in CHAIN["tensors"]]
        Path("chain.json").write_text(json.dumps({**CHAIN, "tensors": tensors}))

    def test_from_the_first_baseline_to_a_regression_that_is_accepted(self, remat: Remat) -> None:
        project(HOLDS, more=self.REGRESSION)
        assert remat("check").code == 3, "there is no baseline yet"
        written = remat("check", "--update-baseline")
        assert (written.code, written.err) == (0, "note: remat.baseline.json: 1 added, 0 changed, 0 removed\n")
        assert remat("check").code == 0
        self.grow()
        grown = remat("check")
        assert grown.code == 3
        assert "The plain peak grew by 10.00 %, from 1.500 kB to 1.650 kB" in " ".join(grown.out.split())
        accepted = remat("check", "--update-baseline")
        assert (accepted.code, accepted.err) == (0, "note: remat.baseline.json: 0 added, 1 changed, 0 removed\n")
        assert remat("check").code == 0

    def test_a_baseline_that_says_the_same_is_not_touched(self, remat: Remat) -> None:
        project(HOLDS)
        remat("check", "--update-baseline")
        os.utime(self.FILE, (0, 0))
        assert remat("check", "--update-baseline").code == 0
        assert self.FILE.stat().st_mtime == 0

    def test_another_limit_that_is_broken_still_fails(self, remat: Remat) -> None:
        project(HOLDS, FAILS, more=self.REGRESSION)
        assert remat("check", "--update-baseline").code == 3
        assert list(json.loads(self.FILE.read_text())["models"]) == ["fits", "tight"]

    def test_a_model_that_is_gone_leaves_it_and_one_that_is_broken_stays(self, remat: Remat) -> None:
        project(HOLDS, FAILS)
        remat("check", "--update-baseline")
        before = json.loads(self.FILE.read_text())["models"]
        project("- {name: fits, path: gone.json, budget: 70%}\n")
        assert remat("check", "--update-baseline").code == 6
        assert json.loads(self.FILE.read_text())["models"] == {"fits": before["fits"]}

    def test_a_model_that_was_measured_in_part_keeps_its_figures(self, remat: Remat) -> None:
        model = "- {{path: {}, mode: inference, planner: approx_dp, budget: {}}}\n"
        project(model.format(ROOT / "graphs/long_skip.json", "100%"))
        remat("check", "--update-baseline")
        before = self.FILE.read_bytes()
        project(model.format(ROOT / "graphs/long_skip.json", "99%"))
        ended = remat("check", "--update-baseline")
        assert ended.code == 2
        assert "no backward ops" in ended.out, "what approx_dp does not plan is measured all the same"
        assert self.FILE.read_bytes() == before

    def test_with_only_the_others_keep_theirs(self, remat: Remat) -> None:
        project(HOLDS, FAILS)
        remat("check", "--update-baseline")
        before = json.loads(self.FILE.read_text())["models"]
        self.grow()
        assert remat("check", "--update-baseline", "--only", "fits").code == 0
        after = json.loads(self.FILE.read_text())["models"]
        assert (after["tight"] == before["tight"], after["fits"] == before["fits"]) == (True, False)

    def test_a_baseline_that_cannot_be_written_names_the_key(self, remat: Remat) -> None:
        project(HOLDS, more="baseline: no/where.json\n")
        ended = remat("check", "--update-baseline")
        assert ended.code == 2
        assert "'baseline: FILE'" in ended.err

    def test_a_broken_baseline_is_named_and_can_be_written_anew(self, remat: Remat) -> None:
        project(HOLDS)
        self.FILE.write_text("<<<<<<< ours\n")
        ended = remat("check")
        assert ended.code == 2
        assert "remat.baseline.json:1:1: no valid JSON" in ended.err
        assert remat("check", "--update-baseline", "--only", "fits").code == 2
        assert remat("check", "--update-baseline").code == 0
        assert remat("check").code == 0


class TestJobs:
    def test_several_at_a_time_say_the_same_as_one(self, remat: Remat) -> None:
        project(HOLDS, BROKEN, FAILS)
        one, several = remat("check", "--json"), remat("check", "--json", "--jobs", "2")
        assert several == one

    def test_a_process_that_dies_is_a_line_of_its_own(self, remat: Remat, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("remat_cli.checks.check.check_model", _die)
        project(HOLDS, FAILS)
        ended = remat("check", "--jobs", "2")
        assert ended.code == 4
        assert "was killed, as happens" in ended.out
        assert ended.err == ""

    @pytest.mark.parametrize("jobs", ["1", "2"])
    def test_ctrl_c_writes_nothing_and_says_how_far_it_came(
        self, jobs: str, remat: Remat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("remat_cli.checks.check.check_model", _check_or_stop)
        project(HOLDS, FAILS, HOLDS.replace("fits", "slow"))
        ended = remat("check", "--json", "-o", "report.json", "--update-baseline", "--jobs", jobs)
        assert (ended.code, ended.out) == (130, "")
        assert "1 of 3 models were checked" in ended.err
        assert sorted(path.name for path in Path().iterdir()) == ["chain.json", "remat.yaml"]


def _die(*_: object, **__: object) -> CheckOutcome:
    os._exit(9)


def _check_or_stop(model: ModelCheck, *_: object, **__: object) -> CheckOutcome:
    if model.name == "tight":
        raise KeyboardInterrupt
    if model.name == "slow":
        sleep(20)
        model.path.with_name("a process went on").touch()
    return check_model(model, {})


def test_nothing_in_a_name_reaches_the_terminal(remat: Remat) -> None:
    project('- {name: "\\e[31mred\\a", path: "gone\\e[0m.json", budget: 70%}\n')
    ended = remat("check")
    assert ended.code == 6
    assert "\x1b" not in ended.out + ended.err


class TestSamples:
    def test_the_example_graphs_keep_to_their_project_and_baseline(self, remat: Remat) -> None:
        ended = remat("check", GRAPHS / "remat.yaml", "--json")
        assert ended.code == 0
        assert [model["figures"] == model["baseline"] for model in ended.json["models"]] == [True] * 4

    def test_limits_that_are_too_tight_fail_in_each_of_three_ways(self, remat: Remat) -> None:
        ended = remat("check", GRAPHS / "too-tight.yaml", "--json")
        assert ended.code == 6
        failures = [[failure["limit"] for failure in model["failures"]] for model in ended.json["models"]]
        assert failures == [["max_overhead"], ["budget"], ["error"]]


class TestHook:
    HOOK = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]

    def test_its_entry_is_a_call_that_works(self) -> None:
        project(FAILS)
        command = [str(Path(sys.executable).with_name("remat")), *self.HOOK["entry"].split()[1:]]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        assert (done.returncode, done.stderr) == (3, "")
        assert "1 of 1 model fails." in done.stdout

    @pytest.mark.parametrize(
        ("changed", "runs"),
        [
            ("remat.yaml", True),
            ("models/unet.onnx", True),
            ("graphs/g.json", True),
            ("remat.baseline.json", True),
            ("train.py", False),
            ("README.md", False),
        ],
    )
    def test_it_runs_where_a_model_or_its_limits_changed(self, changed: str, runs: bool) -> None:
        assert (re.search(self.HOOK["files"], changed) is not None) == runs


def test_init_names_each_file_that_it_leaves_out(folder: Path, remat: Remat) -> None:
    """Also where the message about it does not: here, that no node reads a value of this name."""
    (folder / "sub").mkdir()
    (folder / "chain.json").write_text(json.dumps(CHAIN))
    reads_nothing = CHAIN | {"ops": [{"name": "a", "inputs": ["missing"], "outputs": ["b"], "time": 1}]}
    (folder / "sub" / "bad.json").write_text(json.dumps(reads_nothing))
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "x"], ["y"], name="product")],
            "clash",
            [helper.make_tensor_value_info("x", 1, [2, 3])],
            [helper.make_tensor_value_info("y", 1, None)],
        )
    )
    onnx.save(model, folder / "sub" / "clash.onnx")
    written = remat("check", "--init")
    assert written.code == 0
    assert "left out: sub/clash.onnx: op 'product' (MatMul) does not fit its inputs" in written.err
    assert re.search(r"left out: .*sub/bad\.json", written.err)


def test_init_writes_a_project_file_that_holds(folder: Path, remat: Remat) -> None:
    (folder / "sub" / ".git").mkdir(parents=True)
    for name in ("sub/chain.json", "sub/.git/chain.json", "served.json"):
        (folder / name).write_text(json.dumps(CHAIN | ({"kind": "inference"} if name == "served.json" else {})))
    (folder / "gpt.onnx").write_bytes((GRAPHS / "gpt.onnx").read_bytes())
    (folder / "broken.onnx").write_bytes(b"no model")
    (folder / "other.json").write_text("{}")
    written = remat("check", "--init")
    assert (written.code, written.out) == (0, "")
    assert "left out: broken.onnx is not an ONNX model" in written.err
    assert "remat.yaml: 4 models" in written.err
    models = yaml.safe_load((folder / "remat.yaml").read_text())["models"]
    assert [model.get("name", model["path"]) for model in models] == [
        "chain.json",
        "gpt.onnx",
        "served.json",
        "sub/chain",
    ]
    assert models[1]["dims"] == {"batch": 8, "seq": 8}
    assert remat("check", "--only", "*chain").code == 0
    assert remat("check", "--only", "gpt").code == 0


@pytest.mark.parametrize(("bias", "mode"), [("w_bias", "inference"), ("b", None)])
def test_init_takes_a_file_with_folded_norms_for_inference(
    bias: str, mode: str | None, folder: Path, remat: Remat
) -> None:
    """PyTorch's exporter names the bias that it made of a norm after the weight."""
    stored = [helper.make_tensor("w", 1, [2, 2, 1, 1], [1.0] * 4), helper.make_tensor(bias, 1, [2], [0.0] * 2)]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", bias], ["y"], name="conv")],
        "net",
        [helper.make_tensor_value_info("x", 1, [1, 2, 4, 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        stored,
    )
    onnx.save(helper.make_model(graph), folder / "net.onnx")
    assert remat("check", "--init").code == 0
    models = yaml.safe_load((folder / "remat.yaml").read_text())["models"]
    assert [one.get("mode") for one in models if one["path"] == "net.onnx"] == [mode]
    assert remat("check", "--only", "net").code == 0


@pytest.mark.parametrize("there", ["file", "link"])
def test_init_overwrites_nothing(there: str, folder: Path, remat: Remat) -> None:
    path = folder / "remat.yaml"
    if there == "file":
        path.write_text("models: []")
    else:
        path.symlink_to("elsewhere.yaml")
    refused = remat("check", "--init")
    assert refused.code == 2
    assert "is there, and is not overwritten" in refused.err
    assert not (folder / "elsewhere.yaml").exists()
    assert there == "link" or path.read_text() == "models: []"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["--update-baseline"], "takes no --update-baseline"),
        (["--format", "json"], "takes no --format"),
        (["none/remat.yaml"], "there is no folder"),
        (["empty/remat.yaml"], "there is no model in"),
    ],
)
def test_init_refuses_what_it_cannot_do(call: list[str], said: str, folder: Path, remat: Remat) -> None:
    (folder / "empty").mkdir()
    refused = remat("check", "--init", *call)
    assert (refused.code, list(folder.rglob("remat.yaml"))) == (2, [])
    assert said in refused.err
