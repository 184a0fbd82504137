"""A PyTorch step on the command line: every verb takes it, its JSON form plans alike, and its plan runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remat_cli.cli.output import Output
from remat_cli.core.graph import Graph
from remat_cli.errors import ExitCode, InvalidSchedule, UsageError
from remat_cli.pytorch.plan.file_source import FileSource
from remat_cli.pytorch.run.execution import StepExecution
from remat_cli.studies import eager
from tests.cli.calls import Ended, Remat
from tests.places import GRAPHS, ROOT

STEP = f"{GRAPHS / 'train.py'}:step"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("steps") / "small.py"
    path.write_text(
        "import torch\n"
        "from tests.torch_steps import MLP\n"
        "def step(batch=256, depth=4):\n"
        "    return MLP(depth), torch.randn(batch, 16)\n"
    )
    return f"{path}:step"


def test_json_form_plans_alike_and_needs_no_torch(remat: Remat, small: str, tmp_path: Path) -> None:
    converted, direct, by_json = tmp_path / "g.json", tmp_path / "1.json", tmp_path / "2.json"
    budget = ("--budget", "70%", "--planner", "dtr", "-q")
    assert remat("convert", small, "--dim", "batch=64", "-o", converted, "-q").code == 0
    assert remat("plan", small, "--dim", "batch=64", *budget, "-o", direct).code == 0
    without_torch = "import sys; sys.modules['torch'] = None; from remat_cli.cli import main; main()"
    command = [sys.executable, "-c", without_torch, "plan", str(converted), *budget, "-o", str(by_json)]
    subprocess.run(command, cwd=ROOT, check=True)
    of_step, of_json = (json.loads(path.read_text()) for path in (direct, by_json))
    # Only the step was given a size.
    assert (of_step["graph"].pop("options"), of_json["graph"].pop("options")) == ({"dims": {"batch": 64}}, {})
    assert of_step == of_json
    assert remat("verify", converted, direct, "-q").code == 0
    ops = {op["name"]: op for op in json.loads(converted.read_text())["ops"]}
    assert ops["gelu_1"]["source"].startswith("tests/torch_steps.py:")
    assert ops["addmm_1"]["module"] == "layers.1"
    assert json.loads(direct.read_text())["graph"]["structure"]["gelu_1"] == ops["gelu_1"]["signature"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--device", "nope"),
        ("--measurements", "nope.json"),
        ("--link-bandwidth", "fast"),
        ("--link-bandwidth", "0"),
        ("--ranks", "1"),
    ],
)
def test_options_are_checked_before_the_model_is_built(remat: Remat, tmp_path: Path, option: str, value: str) -> None:
    path = tmp_path / "step.py"
    path.write_text("raise AssertionError('imported')")
    for verb in (("inspect",), ("measure", "-o", tmp_path / "times.json"), ("plan", "--budget", "80%", "--split")):
        run = remat(*verb, f"{path}:step", option, value)
        assert run.code == ExitCode.USAGE
        assert value in run.err
        assert "imported" not in run.err


def test_a_step_may_name_its_optimizer(remat: Remat, small: str, tmp_path: Path) -> None:
    path = tmp_path / "named.py"
    module = "import torch\nfrom tests.torch_steps import MLP\ndef step(name='adam'):\n    model = MLP(4)\n"
    # The model is out of sight: its parameters are those of the captured step.
    inputs = "(torch.randn(64, 16),)"
    path.write_text(
        f"{module}    return {{'model': lambda x: model(x).mean(), 'inputs': {inputs}, 'optimizer': name}}\n"
        "def sgd():\n    return {**step(), 'optimizer': None}\n"
        "def sdg():\n    return {**step(), 'optimizer': 'sdg'}\n"
    )
    named = remat("inspect", f"{path}:step", "--json").json
    asked = remat("inspect", f"{path}:sgd", "--optimizer", "adam", "--json").json
    without = remat("inspect", f"{path}:sgd", "--json").json
    assert named["plain"] == asked["plain"]
    assert named["plain"]["peak_bytes"] - without["plain"]["peak_bytes"] == 2 * 4 * (16 * 16 + 16) * 4
    assert "unknown optimizer 'sdg'" in remat("inspect", f"{path}:sdg").err


def test_gradients_are_not_in_the_scaled_part_of_a_budget_of_activations(remat: Remat, small: str) -> None:
    """They are 4.4 kB, as much as the parameters, and far more than the activations."""
    asked = ("plan", small, "--dim", "batch=2", "--budget", "60% of activations", "--planner", "dtr", "--json")
    summary = remat(*asked).json
    parameters = 4 * (16 * 16 + 16) * 4
    assert summary["status"] in ("optimal", "feasible")
    assert 0 < summary["budget_bytes"] - summary["fixed_bytes"] - parameters < parameters


def test_without_torch_the_step_is_refused(small: str) -> None:
    script = "import sys; sys.modules['torch'] = None; from remat_cli.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "inspect", small], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "needs torch" in done.stderr
    assert "pip install 'remat[torch]'" in done.stderr


def test_without_torch_python_says_what_to_install() -> None:
    script = "import sys; sys.modules['torch'] = None; import remat_cli.torch"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert "needs torch: pip install 'remat[torch]'" in done.stderr


def test_plan_is_verified_by_running_it(remat: Remat, small: str, tmp_path: Path) -> None:
    schedule = tmp_path / "s.json"
    assert remat("plan", small, "--budget", "60%", "-o", schedule, "-q").code == 0
    ended = remat("verify", small, schedule, "--execute")
    assert ended.code == 0
    assert "The step runs as planned." in ended.out
    assert "9 of 9 the same bit by bit" in ended.out
    assert "USDT" not in ended.err
    found = remat("verify", small, schedule, "--execute", "--json").json["execution"]
    assert found["holds"]
    assert found["changed"] == []
    assert found["plan"]["predicted_bytes"] < found["plain"]["predicted_bytes"]


def test_plan_for_fused_kernels_is_verified_by_compiling_it(remat: Remat, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def step():\n    return nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(8, 4)\n"
    )
    small, schedule = f"{tmp_path}/tiny.py:step", tmp_path / "s.json"
    made = remat("plan", small, "--fused", "--budget", "min", "-o", schedule)
    assert made.code == 0
    assert "known once they are compiled" in made.out
    ended = remat("verify", small, schedule, "--execute", "--json")
    assert ended.code == 0
    execution = ended.json["execution"]
    assert (execution["fused"], execution["holds"]) == (True, True)
    assert execution["plan"]["agrees"]
    with pytest.raises(UsageError, match="was planned for the kernels of torch"):
        FileSource.at(schedule)
    assert json.loads(schedule.read_text())["graph"]["options"]["fused"] is True
    moving = remat(
        "plan", small, "--fused", "--offload", "--link-bandwidth", "1TB/s", "--budget", "min", "-o", schedule
    )
    assert moving.code == 0
    assert remat("verify", small, schedule, "--execute").code == 0


def test_plan_that_offloads_is_verified_by_running_it(remat: Remat, small: str, tmp_path: Path) -> None:
    schedule = tmp_path / "s.json"
    options = ("--device", "a100", "--link-bandwidth", "20GB/s", "--planner", "pofo", "--offload")
    assert remat("plan", small, "--budget", "60%", *options, "-o", schedule, "-q").code == 0
    assert '"prefetch"' in schedule.read_text()
    ended = remat("verify", small, schedule, "--execute")
    assert ended.code == 0
    assert "The step runs as planned." in ended.out
    assert "and without copies on the host" in " ".join(ended.out.split())
    assert "copies and ops take turns" in " ".join(ended.out.split())


def test_schedule_of_another_size_is_refused(remat: Remat, small: str, tmp_path: Path) -> None:
    schedule = tmp_path / "s.json"
    assert remat("plan", small, "--budget", "100%", "-o", schedule, "-q").code == 0
    ended = remat("verify", small, schedule, "--dim", "batch=8")
    assert ended.code == 6
    assert "another graph" in ended.err


def test_largest_batch_is_searched(remat: Remat, small: str) -> None:
    ended = remat(
        "fit", small, "--dim", "batch", "--budget", "200kB", "--at-most", "256", "--planner", "keep_all", "--json"
    )
    assert ended.code == 0
    assert ended.json["plain"]["value"] == ended.json["found"]["value"] > 100


def test_inspect_says_what_is_kept_for_the_backward_pass(remat: Remat, small: str) -> None:
    found = remat("inspect", small, "--json").json
    kept, one = found["kept_for_backward"], 256 * 16 * 4
    assert kept["float_bytes"] == 8 * one
    # Each layer keeps what it makes; what gelu makes of it is the caller's, in no part.
    assert {part["module"]: part["bytes"] for part in kept["by_module"]} == {
        "": 4 * one, "layers.0": one, "layers.1": one, "layers.2": one, "layers.3": one,
    }  # fmt: skip
    assert kept["by_module"][0]["source"].startswith("tests/torch_steps.py:")
    report = remat("inspect", small).out
    assert "Kept for the backward pass, by module" in report
    assert re.search(r"layers.2 +16.38 kB +12.50 % +1  …sts/torch_steps.py:", report)


def test_inspect_tells_first_what_the_step_takes_without_a_plan(remat: Remat, small: str) -> None:
    found = remat("inspect", small, "--json").json
    assert found["eager"]["peak_bytes"] >= found["plain"]["peak_bytes"]
    assert {part["module"] for part in found["eager"]["kept_by_module"]} >= {"layers.0", "layers.3"}
    report = remat("inspect", small).out
    assert report.index("Eager: without a plan") < report.index("plain run: what a plan at 100 % takes")


def test_inspect_tells_what_outputs_cost_after_the_first_figure(remat: Remat, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    first, run = Output.first, eager._run

    def run_said(*args: Any, outputs_held: bool) -> eager.EagerReplay:
        order.append("run with outputs" if outputs_held else "run without")
        return run(*args, outputs_held=outputs_held)

    def first_said(*args: Any) -> None:
        order.append("first part")
        first(*args)

    monkeypatch.setattr(Output, "first", first_said)
    monkeypatch.setattr(eager, "_run", run_said)
    report = remat("inspect", "tests.unit.studies.test_eager:logits").out
    assert order == ["run with outputs", "first part", "run without"]
    assert "if the loss alone is held" in " ".join(report.split())


def test_inspect_of_a_step_that_cannot_be_captured_tells_what_it_takes(remat: Remat) -> None:
    step = "tests.unit.studies.test_eager:uncapturable"
    found = remat("inspect", step, "--json")
    assert found.code == 0
    assert found.json["eager"]["peak_bytes"] > 0
    assert "there is no plan for the step" in found.json["notes"][0]
    assert re.search(r"Notes\n +· there is no plan for the step", remat("inspect", step).out)


def test_plan_names_first_what_eager_takes(remat: Remat, small: str) -> None:
    asked = ("plan", small, "--budget", "90%", "--planner", "dtr")
    peak = remat(*asked, "--json").json["eager_peak_bytes"]
    assert peak == remat("inspect", small, "--json").json["eager"]["peak_bytes"]
    assert re.match(r"eager +[\d.]+ kB · without a plan", remat(*asked).out)


def test_plan_says_before_it_runs_that_workspace_breaks_its_budget(remat: Remat, small: str, tmp_path: Path) -> None:
    path = tmp_path / "images.py"
    path.write_text(
        "import torch\n"
        "from tests.unit.studies.test_eager import Images\n"
        "def step():\n"
        "    return Images().half(), torch.zeros(8, 3, 32, 32, dtype=torch.float16)\n"
    )
    said = " ".join(remat("plan", f"{path}:step", "--budget", "100%", "--planner", "keep_all", "--json").json["notes"])
    assert re.search(
        r"with the workspace of kernels .* peaks at .*, above the budget, at op convolution_backward", said
    )
    assert "workspace" not in " ".join(
        remat("plan", small, "--budget", "90%", "--planner", "dtr", "--json").json["notes"]
    )


def test_comparisons_name_first_what_eager_takes(remat: Remat, small: str) -> None:
    peak = remat("inspect", small, "--json").json["eager"]["peak_bytes"]
    asked = (small, "--budget", "90%", "--planner", "dtr")
    assert remat("sweep", *asked, "--json").json["eager_peak_bytes"] == peak
    assert remat("compare", *asked, "--json").json["graphs"][0]["eager_peak_bytes"] == peak
    for verb in ("sweep", "compare"):
        assert re.match(r"eager +[\d.]+ kB · without a plan", remat(verb, *asked).out)
    sides = remat("diff", small, small, "--json").json
    assert sides["old"]["eager_peak_bytes"] == sides["new"]["eager_peak_bytes"] == peak
    assert re.search(r"eager peak +([\d.]+ kB) +\1\s+plain peak", remat("diff", small, small).out)


def test_fit_searches_the_largest_batch_that_fits_in_eager_mode(remat: Remat, tmp_path: Path) -> None:
    path = tmp_path / "words.py"
    path.write_text(
        "import torch\n"
        "from tests.unit.studies.test_eager import Words\n"
        "def step(batch=64):\n"
        "    return Words(), tuple(torch.zeros(batch, 8, dtype=torch.int64) for _ in range(2))\n"
    )
    step = f"{path}:step"
    figures = remat("inspect", step, "--dim", "batch=64", "--json").json
    eager = figures["eager"]["peak_bytes"]
    asked = ("fit", step, "--dim", "batch", "--at-most", "80", "--multiple-of", "4", "--planner", "keep_all")
    found = remat(*asked, "--budget", f"{eager}B", "--json").json
    assert found["eager"] == {"value": 64, "eager_peak_bytes": eager}
    assert found["plain"]["value"] > 64
    assert found["plain"]["eager_peak_bytes"] > eager
    said = " ".join(remat(*asked, "--budget", f"{eager}B").out.split())
    assert f"with a plan is {found['plain']['value']}; without, 64." in said
    none = remat(*asked, "--budget", f"{figures['eager']['fixed_bytes']}B", "--json")
    assert none.json["eager"] is None


def test_check_holds_eager_to_limits_and_baseline_where_no_plan_is_asked_for(
    remat: Remat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = "tests.unit.studies.test_eager:logits"
    figures = remat("inspect", step, "--json").json
    eager, plain, let_go = (
        figures["eager"]["peak_bytes"],
        figures["plain"]["peak_bytes"],
        figures["eager"]["peak_bytes_without_outputs"],
    )
    assert plain < let_go < eager - 1000

    def check(limits: str, *options: str) -> Ended:
        Path("remat.yaml").write_text(f"models:\n- {{name: step, path: '{step}', {limits}}}\n")
        return remat("check", *options)

    assert check(f"max_peak: {eager}B, max_regression: 1%", "--update-baseline").code == 0
    failed = check(f"max_peak: {eager - 1}B")
    said = " ".join(failed.out.split())
    assert failed.code == 3
    assert "Eager peaks at" in said
    assert "Hold the loss alone during the backward pass" in said
    assert "where the captured step's plain run fits" in said
    assert check(f"budget: {plain}B").code == 0, "a plan is held to the plan's peak"
    baseline = json.loads(Path("remat.baseline.json").read_text())
    assert baseline["models"]["step"]["eager_peak_bytes"] == eager
    baseline["models"]["step"]["eager_peak_bytes"] = eager // 2
    Path("remat.baseline.json").write_text(json.dumps(baseline))
    assert "the eager peak grew" in " ".join(check("max_regression: 1%").out.split()).lower()


def test_optimizer_and_accumulated_gradients_are_resident(remat: Remat, small: str) -> None:
    parameters = 4 * (16 * 16 + 16) * 4

    def resident(*options: str) -> int:
        size: int = remat("inspect", small, "--json", *options).json["resident_bytes"]
        return size

    assert resident() == 0
    assert resident("--optimizer", "adam") == 2 * parameters
    assert resident("--optimizer", "momentum", "--accumulate") == 2 * parameters


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("inspect", "{step}", "--dim", "bacth=3"), "takes no dim 'bacth'"),
        (("inspect", "{step}", "--input-shape", "x:1,2"), "--input-shape has no meaning"),
        (("inspect", "{folder}/none.py:step"), "no such file"),
        (("inspect", "{step}s"), "has no function 'steps'"),
        (("inspect", "{graphs}/skip_chain.json", "--accumulate"), "--accumulate needs a PyTorch step"),
        (("plan", "{graphs}/skip_chain.json", "--fused", "--budget", "80%"), "--fused has no meaning for"),
        (("plan", "{step}", "--budget", "80%", "-o", "{file}"), "which is read, would be lost"),
        (("apply", "{step}", "{folder}/s.json", "-o", "x.onnx"), "is no ONNX model"),
    ],
)
def test_wrong_call_is_refused(remat: Remat, small: str, tmp_path: Path, call: tuple[str, ...], message: str) -> None:
    (tmp_path / "s.json").write_text('{"format": "remat.schedule/1", "steps": []}')
    ended = remat(
        *(part.format(step=small, file=small.rpartition(":")[0], folder=tmp_path, graphs=GRAPHS) for part in call)
    )
    assert ended.code in (2, 6)
    assert message in ended.err
    assert "hint" in ended.err


@pytest.mark.parametrize("lost", ["helper.py", "early.txt", "late.bin", "mapped.bin", "package/__init__.py"])
def test_no_module_and_no_data_of_the_users_code_is_overwritten(remat: Remat, tmp_path: Path, lost: str) -> None:
    files = {
        "helper.py": "WIDTH = 16",
        "package/__init__.py": "",
        "early.txt": "4",
        "late.bin": "256",
        "mapped.bin": "four" * 16,
        "old.json": '{"format": "remat.schedule/1"}',
        "train.py": "from pathlib import Path\nimport torch, helper\nfrom tests.torch_steps import MLP\n"
        "HERE = Path(__file__).parent\nDEPTH = int((HERE / 'early.txt').read_text())\n"
        "def step():\n    import package\n    (HERE / 'old.json').read_text()\n"
        "    model = MLP(DEPTH)\n"
        "    model.weights = torch.from_file(str(HERE / 'mapped.bin'), size=16)\n"
        "    return model, torch.randn(int((HERE / 'late.bin').read_bytes()), helper.WIDTH)\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    for imported in ("helper", "package", "train"):
        sys.modules.pop(imported, None)
    call = ("plan", tmp_path / "train.py:step", "--budget", "90%", "-c", "dtr", "-o")
    refused = remat(*call, tmp_path / lost)
    assert (refused.code, "which is read, would be lost" in refused.err) == (ExitCode.USAGE, True), refused.err
    assert (tmp_path / lost).read_text() == files[lost]
    assert remat(*call, tmp_path / "old.json").code == 0  # the last plan, which the code runs


@pytest.mark.parametrize("call", [("inspect", "STEP", "--json"), ("convert", "STEP", "-o", "-")])
def test_what_the_users_code_prints_is_not_in_the_json(call: tuple[str, ...], remat: Remat, tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(
        "import os, torch\nfrom tests.torch_steps import MLP\nprint('imported')\n"
        "def step():\n    os.system('echo built')\n    return MLP(2), torch.randn(8, 16)\n"
    )
    ended = remat(*(f"{tmp_path}/talks.py:step" if part == "STEP" else part for part in call))
    assert ended.code == 0, ended.err
    assert isinstance(ended.json, dict)
    assert "imported" in ended.err
    assert "built" in ended.err


def test_example_is_planned(remat: Remat) -> None:
    ended = remat("plan", STEP, "--dim", "batch=8", "--budget", "90%", "--planner", "dtr", "--json")
    assert ended.code == 0
    assert ended.json["peak_bytes"] <= 0.9 * ended.json["baseline"]["peak_bytes"]


def test_plan_on_what_was_measured_keeps_to_its_peak(remat: Remat, tmp_path: Path) -> None:
    """Without, the convolutions of this step take 3 MB for themselves that nobody counts."""
    measured, schedule = tmp_path / "m.json", tmp_path / "s.json"
    batch = ("--dim", "batch=32")
    ended = remat("measure", STEP, *batch, "-o", measured)
    assert ended.code == 0
    assert "The largest workspace of a kernel" in ended.out
    known = (*batch, "--measurements", measured)
    assert remat("plan", STEP, *known, "--budget", "90%", "--planner", "dtr", "-o", schedule, "-q").code == 0
    found = remat("verify", STEP, schedule, *known, "--execute", "--json").json["execution"]
    assert found["holds"]
    assert abs(found["plan"]["measured_bytes"] - found["plan"]["predicted_bytes"]) < 10_000
    assert remat("inspect", STEP, "--measurements", measured, "--dim", "batch=31").code == 2
    assert "fit tries many" in remat("fit", STEP, "--dim", "batch", "--budget", "1GB", *known[2:]).err


def test_json_graph_cannot_be_measured(remat: Remat, tmp_path: Path) -> None:
    ended = remat("measure", GRAPHS / "skip_chain.json", "-o", tmp_path / "m.json")
    assert ended.code == 2
    assert "no kernels" in ended.err
    assert not (tmp_path / "m.json").exists()


def test_check_runs_the_plan_where_it_is_asked_to(
    remat: Remat, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "remat.yaml"
    project.write_text(f"models: [{{path: '{small}', budget: 60%, execute: true}}]\n")
    ended = remat("check", project)
    assert ended.code == 0, ended.out
    both = tmp_path / "both.yaml"
    both.write_text(
        "defaults: {execute: true}\n"
        f"models: [{{path: '{small}', budget: 60%}}, {{name: buffer, path: 'tests.torch_steps:changing_buffer', "
        "budget: 100%}]\n"
    )
    ended = remat("check", both)
    assert ended.code == 0, ended.out
    assert "All 2 models hold" in ended.out

    def broken(execution: StepExecution, graph: Graph) -> InvalidSchedule:
        assert execution.holds
        return InvalidSchedule("the plan gives other bits", hint="report it")

    monkeypatch.setattr(StepExecution, "broken", broken)
    ended = remat("check", project, "--json")
    assert ended.code == 3
    assert ended.json["models"][0]["failures"][0]["limit"] == "execute"


def test_without_a_plan_check_and_verify_run_the_step_as_it_is(remat: Remat, small: str, tmp_path: Path) -> None:
    project = tmp_path / "remat.yaml"
    project.write_text(f"models: [{{path: '{small}', max_peak: 1GB, execute: true}}]\n")
    ended = remat("check", project)
    assert ended.code == 0, ended.out
    project.write_text(f"models: [{{path: '{small}', max_regression: 1%, execute: true}}]\n")
    assert "execute: needs a budget or a max_peak" in remat("check", project).err
    ended = remat("verify", small, "--execute")
    assert ended.code == 0, ended.err
    assert "The step runs as planned." in ended.out


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("steps") / "stages.py"
    path.write_text("from tests.torch_steps import stages as step\n")
    return f"{path}:step"


def test_checkpoints_are_chosen_and_written_as_a_schedule_that_runs(
    remat: Remat, stages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "s.json"
    asked = ("plan", stages, "--dim", "depth=4", "--as", "checkpoints", "--planner", "dtr")
    ended = remat(*asked, "--budget", "75%", "--json", "-o", written)
    assert ended.code == 0
    found = ended.json
    assert found["checkpoints"]["modules"]
    assert found["checkpoints"]["proven"]
    assert found["checkpoints"]["peak_bytes"] <= found["budget_bytes"] < found["eager"]["peak_bytes"]
    figures = remat("inspect", stages, "--dim", "depth=4", "--json").json
    assert found["eager"]["peak_bytes"] == figures["eager"]["peak_bytes"]
    assert '"stages.0"' in found["code"]
    assert found["free"]["overhead"] is not None
    assert remat("verify", stages, written, "-q").code == 0
    monkeypatch.setenv("COLUMNS", "40")
    text = remat(*asked, "--budget", "75%").out
    assert "module.forward = partial(checkpoint, module.forward, use_reentrant=False)\n" in text
    assert "the free plan, by" in text


def test_policy_is_printed_as_code_and_written(remat: Remat, stages: str, tmp_path: Path) -> None:
    asked = ("plan", stages, "--dim", "depth=4", "--as", "policy", "--planner", "dtr", "--budget", "80%")
    file = tmp_path / "policy.py"
    found = remat(*asked, "-o", str(file), "--json").json
    assert found["policy"]["proven"]
    assert found["policy"]["peak_bytes"] <= found["budget_bytes"] < found["eager"]["peak_bytes"]
    assert file.read_text() == found["code"]
    compile(found["code"], "policy.py", "exec")
    printed = remat(*asked)
    assert found["code"] in printed.out
    assert "whole modules (--as checkpoints)" in printed.out
    roomy = remat(*asked[:-1], "1GB", "-o", str(tmp_path / "empty.py"))
    assert roomy.code == ExitCode.DONE
    assert "The step fits 1.000 GB without checkpoints." in roomy.out
    assert not (tmp_path / "empty.py").exists()


def test_budget_that_no_policy_reaches_is_refused_and_writes_nothing(remat: Remat, stages: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.py"
    ended = remat("plan", stages, "--as", "policy", "--budget", "1kB", "--planner", "dtr", "-o", str(file))
    assert ended.code == ExitCode.NO_FIT
    assert "No policy fits 1.000 kB." in ended.out
    assert "the least peak that a policy reaches is" in ended.out
    assert not file.exists()


def test_policy_of_another_format_is_refused(remat: Remat) -> None:
    ended = remat("plan", GRAPHS / "unet.onnx", "--as", "policy", "--budget", "80%")
    assert ended.code == ExitCode.USAGE
    assert "--as policy wraps modules of PyTorch" in ended.err


def test_budget_that_no_checkpoints_reach_is_refused_with_the_least_peaks(remat: Remat, stages: str) -> None:
    ended = remat("plan", stages, "--as", "checkpoints", "--budget", "1kB", "--planner", "dtr")
    assert ended.code == 3
    assert "No checkpoints of whole modules fit 1.000 kB." in ended.out
    assert "the least peak that checkpoints reach is" in ended.out
    assert "the least peak that was found for a free plan is" in ended.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--offload", "--link-bandwidth", "1GB/s"), "--offload has no meaning for checkpoints"),
        (("--addresses",), "--addresses has no meaning for checkpoints"),
        (("--fused",), "--fused has no meaning for checkpoints"),
        (("--ranks", "8"), "--ranks has no meaning for checkpoints"),
        (("--html", "page.html"), "--html has no meaning for checkpoints"),
    ],
)
def test_what_checkpoints_cannot_do_is_refused(remat: Remat, stages: str, more: tuple[str, ...], said: str) -> None:
    ended = remat("plan", stages, "--as", "checkpoints", "--budget", "80%", *more)
    assert ended.code == 2
    assert said in ended.err


def test_checkpoints_of_another_format_are_refused(remat: Remat) -> None:
    ended = remat("plan", GRAPHS / "unet.onnx", "--as", "checkpoints", "--budget", "80%")
    assert ended.code == 2
    assert "--as checkpoints wraps modules of PyTorch" in ended.err
