"""`remat apply` and `remat verify --execute` as a user calls them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from remat_cli import session_options
from remat_cli.core.schedule import STEP_NAMES, with_frees
from remat_cli.formats.onnx import workspace
from tests.cli.calls import Remat
from tests.documents import changed
from tests.unit.formats.onnx.models import Model, body, elsewhere, float_input, node, scalar, value, weight
from tests.unit.runtime.onnx.rewriting import planned


def skip_model(**more: Any) -> Model:
    """Two branches, of which one is made early and read late."""
    return Model(
        [
            node("Exp", ["x"], ["early"], "early"),
            node("MatMul", ["x", "w"], ["a"], "one"),
            node("Sin", ["a"], ["b"], "two"),
            node("MatMul", ["b", "w"], ["c"], "three"),
            node("Add", ["c", "early"], ["y"], "join"),
        ],
        inputs=[float_input("x", "rows", 16)],
        stored=[weight("w", 16, 16)],
        **more,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return skip_model().save(tmp_path)


DIM = ("--dim", "rows=4")


@pytest.fixture
def schedule(model: Path, tmp_path: Path, remat: Remat) -> Path:
    """A plan that makes `early` again when it is needed."""
    path = tmp_path / "s.json"
    assert remat("plan", model, *DIM, "--mode", "inference", "-c", "keep_all", "--budget", "100%", "-o", path).code == 0
    document = json.loads(path.read_text())
    steps = with_frees(planned(model, dims={"rows": 4}), ("early", "one", "two", "three", "early", "join")).steps
    written = [[STEP_NAMES[type(step)], getattr(step, "op", None) or getattr(step, "tensor", None)] for step in steps]
    kept = {key: document[key] for key in ("format", "graph", "planner", "budget_bytes")}
    path.write_text(json.dumps({**kept, "steps": written}))
    return path


def computed(path: Path, **inputs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(path, session_options(), providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(None, inputs)
    return results


def test_the_written_model_runs_the_schedule(
    model: Path, schedule: Path, tmp_path: Path, remat: Remat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = Path("planned.onnx")
    ended = remat("apply", model, schedule, *DIM, "-o", output)
    assert (ended.code, ended.err) == (0, "")
    assert "7, 1 of them repeats, 1 to free unread values" in ended.out
    assert "session = InferenceSession('planned.onnx', session_options())" in ended.out
    names = [one.name for one in onnx.load(output).graph.node]
    assert names == ["early", "early__unread", "one", "two", "three", "early__remat2", "join"]
    x = np.random.default_rng(0).random((4, 16), dtype=np.float32)
    assert computed(model, x=x)[0].tobytes() == computed(output, x=x)[0].tobytes()


def test_the_metadata_tells_of_the_plan(model: Path, schedule: Path, tmp_path: Path, remat: Remat) -> None:
    output = tmp_path / "planned.onnx"
    remat("apply", model, schedule, *DIM, "-o", output, "-q")
    found = {entry.key: entry.value for entry in onnx.load(output).metadata_props}
    asked = json.loads(schedule.read_text())
    assert found["remat.planner"] == "keep_all"
    assert int(found["remat.budget_bytes"]) == asked["budget_bytes"]
    assert found["remat.graph_sha256"] == asked["graph"]["sha256"]
    assert int(found["remat.peak_bytes"]) <= int(found["remat.plain_peak_bytes"])


def test_the_summary(model: Path, schedule: Path, tmp_path: Path, remat: Remat) -> None:
    summary = remat("apply", model, schedule, *DIM, "-o", tmp_path / "planned.onnx", "--json").json
    assert (summary["nodes"], summary["recomputations"], summary["released"]) == (7, 1, 1)
    assert summary["peak_bytes"] <= summary["baseline"]["peak_bytes"]


def test_a_dash_writes_to_stdout_and_moves_the_report_to_stderr(model: Path, schedule: Path) -> None:
    command = [sys.executable, "-m", "remat_cli", "apply", str(model), str(schedule), *DIM, "-o", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert len(onnx.load_model_from_string(done.stdout).graph.node) == 7
    assert b"1 of them repeats" in done.stderr


class TestRefusals:
    """What is not applied, and with which exit code."""

    def test_a_schedule_for_training(self, model: Path, tmp_path: Path, remat: Remat) -> None:
        path = tmp_path / "s.json"
        assert remat("plan", model, *DIM, "--budget", "100%", "-c", "keep_all", "-o", path).code == 0
        for verb in (["apply", "-o", tmp_path / "p.onnx"], ["verify", "--execute"]):
            ended = remat(verb[0], model, path, *DIM, *verb[1:])
            assert (ended.code, ended.out) == (2, "")
            assert "the backward pass is not in the model file" in ended.err
            assert "--mode inference" in ended.err

    def test_a_schedule_of_another_model(self, schedule: Path, tmp_path: Path, remat: Remat) -> None:
        (tmp_path / "other").mkdir()
        other = Model([node("Neg", ["x"], ["y"])], inputs=[float_input("x", "rows", 16)]).save(tmp_path / "other")
        ended = remat("apply", other, schedule, *DIM, "-o", tmp_path / "p.onnx")
        assert ended.code == 6
        assert "sha256 differs" in ended.err

    def test_other_sizes(self, model: Path, schedule: Path, tmp_path: Path, remat: Remat) -> None:
        assert remat("apply", model, schedule, "--dim", "rows=5", "-o", tmp_path / "p.onnx").code == 6

    def test_a_schedule_that_moves_tensors(self, model: Path, schedule: Path, tmp_path: Path, remat: Remat) -> None:
        moving = changed(schedule, lambda document: document["steps"].insert(1, ["offload", "early"]))
        ended = remat("apply", model, moving, *DIM, "-o", tmp_path / "p.onnx")
        assert ended.code == 2
        assert "moves 'early' to or from the host" in ended.err

    def test_a_schedule_that_cannot_be_carried_out(
        self, model: Path, schedule: Path, tmp_path: Path, remat: Remat
    ) -> None:
        broken = changed(schedule, lambda document: document["steps"].remove(["compute", "one"]))
        ended = remat("apply", model, broken, *DIM, "-o", tmp_path / "p.onnx")
        assert ended.code == 5
        assert "'a' is not in memory" in ended.err

    def test_the_model_itself_is_not_overwritten(self, model: Path, schedule: Path, remat: Remat) -> None:
        before = model.read_bytes()
        ended = remat("apply", model, schedule, *DIM, "-o", model)
        assert ended.code == 2
        assert "would be lost" in ended.err
        assert model.read_bytes() == before

    def test_a_folder_from_which_the_weights_cannot_be_reached(self, tmp_path: Path, remat: Remat) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "weights.bin").write_bytes(bytes(4 * 256))
        outside = skip_model()
        outside.stored = [elsewhere("w", [16, 16], "weights.bin")]
        path, schedule = outside.save(tmp_path), tmp_path / "s.json"
        remat("plan", path, *DIM, "--mode", "inference", "-c", "keep_all", "--budget", "100%", "-o", schedule, "-q")
        ended = remat("apply", path, schedule, *DIM, "-o", tmp_path / "other" / "p.onnx")
        assert ended.code == 2
        assert f"-o {tmp_path / 'p.onnx'}" in ended.err
        assert list((tmp_path / "other").iterdir()) == []
        ended = remat("apply", path, schedule, *DIM, "-o", tmp_path / "weights.bin")
        assert (ended.code, (tmp_path / "weights.bin").read_bytes()) == (2, bytes(4 * 256))
        assert "would be lost" in ended.err
        assert remat("apply", path, schedule, *DIM, "-o", tmp_path / "p.onnx").code == 0
        (tmp_path / "weights.bin").unlink()
        ended = remat("apply", path, schedule, *DIM, "-o", tmp_path / "other" / "p.onnx")
        assert ended.code == 0
        assert "put them beside the new file: weights.bin" in " ".join(ended.out.split())

    def test_a_place_that_cannot_be_written_to(self, model: Path, schedule: Path, tmp_path: Path, remat: Remat) -> None:
        ended = remat("apply", model, schedule, *DIM, "-o", tmp_path / "no" / "p.onnx")
        assert ended.code == 2
        assert "cannot be written" in ended.err


def takes_more() -> Model:
    """Return a model whose Einsum takes four times its operands for itself."""
    return Model(
        [node("Sin", ["x"], ["a"], "sin"), node("Einsum", ["a", "a"], ["y"], "sum", equation="bij,bkj->bik")],
        inputs=[float_input("x", 4, 512, 512)],
    )


class TestExecute:
    """`remat verify --execute`."""

    def test_it_says_what_was_predicted_and_what_was_measured(self, model: Path, schedule: Path, remat: Remat) -> None:
        ended = remat("verify", model, schedule, *DIM, "--execute")
        assert (ended.code, ended.err) == (0, "")
        assert f"Run by onnxruntime {onnxruntime.__version__}" in ended.out
        assert "1 of 1 the same bit by bit" in ended.out
        assert "that of the schedule, 7 nodes" in ended.out
        assert "The model runs as planned." in ended.out
        rows = re.findall(r"^  (as onnxruntime comes|the plain run|the schedule) .*\d (?:s|ms|µs)$", ended.out, re.M)
        assert len(rows) == 3
        assert re.search(r"The schedule needs .* less than onnxruntime as it comes\.|less than the schedule", ended.out)

    def test_the_summary(self, model: Path, schedule: Path, remat: Remat) -> None:
        found = remat("verify", model, schedule, *DIM, "--execute", "--json").json["execution"]
        assert found["holds"]
        assert found["outputs"] == ["y"]
        assert found["plan"]["agrees"]
        assert found["plan"]["predicted_bytes"] == 3 * 4 * 16 * 4
        assert found["as_it_comes"]["failure"] is None
        assert min(found[run]["time_ns"] for run in ("as_it_comes", "plain", "plan")) > 0

    def test_without_a_schedule_the_model_is_run_as_it_is_in_both_sessions(self, model: Path, remat: Remat) -> None:
        ended = remat("verify", model, *DIM, "--execute")
        assert (ended.code, ended.err) == (0, "")
        rows = re.findall(r"^  (as onnxruntime comes|session_options\(\)) .*\d (?:s|ms|µs)$", ended.out, re.M)
        assert len(rows) == 2
        found = remat("verify", model, *DIM, "--execute", "--json").json
        assert found["graph"]["mode"] == "inference"
        ran = found["execution"]
        assert ran["with_session_options"]["agrees"]
        assert min(ran[session]["measured_bytes"] for session in ("as_it_comes", "with_session_options")) >= 0

    def test_a_model_as_it_is_that_takes_more_than_predicted_ends_with_5(
        self, tmp_path: Path, remat: Remat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(workspace._RULES, "Einsum")
        path = takes_more().save(tmp_path)
        ended = remat("verify", path, "--execute")
        assert ended.code == 5
        assert "The model does not take what was predicted." in ended.out
        assert "is not the predicted one" in ended.err

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ((), "SCHEDULE is missing"),
            (("--execute", "--budget", "1MB"), "--budget needs SCHEDULE"),
            (("--execute", "--mode", "training"), "the backward pass is not in the model file"),
        ],
    )
    def test_without_a_schedule_other_calls_are_refused(
        self, args: tuple[str, ...], message: str, model: Path, remat: Remat
    ) -> None:
        ended = remat("verify", model, *DIM, *args)
        assert (ended.code, ended.out) == (2, "")
        assert message in ended.err

    def test_apply_measures_what_the_new_model_takes_in_both_sessions(
        self, model: Path, schedule: Path, tmp_path: Path, remat: Remat
    ) -> None:
        new = tmp_path / "p.onnx"
        assert "--execute measures what that takes" in " ".join(remat("apply", model, schedule, "-o", new).out.split())
        said = " ".join(remat("apply", model, schedule, "-o", new, "--execute").out.split())
        assert re.search(
            r"measured at \S+ k?B with remat_cli\.session_options\(\), at \S+ k?B with onnxruntime's own", said
        )
        found = remat("apply", model, schedule, "-o", new, "--execute", "--json").json["execution"]
        assert found["with_session_options"]["predicted_bytes"] == 3 * 4 * 16 * 4
        assert found["as_it_comes"]["failure"] is None

    def test_memory_that_is_not_known_ends_with_5_and_names_the_op(
        self, tmp_path: Path, remat: Remat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(workspace._RULES, "Einsum")
        path, schedule = takes_more().save(tmp_path), tmp_path / "s.json"
        remat("plan", path, "--mode", "inference", "-c", "keep_all", "--budget", "100%", "-o", schedule, "-q")
        ended = remat("verify", path, schedule, "--execute")
        assert ended.code == 5
        assert "The model does not run as planned." in ended.out
        assert "is not the predicted one" in ended.err
        assert "they part at op 'sum'" in ended.err

    def test_a_broken_claim_is_not_run(
        self, model: Path, schedule: Path, remat: Remat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ran(*_: object, **__: object) -> None:
            raise AssertionError("nothing is to be run")

        monkeypatch.setattr("remat_cli.runtime.onnx.execution.execute", ran)
        ended = remat("verify", model, schedule, *DIM, "--execute", "--budget", "1000")
        assert ended.code == 5
        assert "above the budget" in ended.err

    def test_without_onnxruntime_it_says_what_to_install(
        self, model: Path, schedule: Path, remat: Remat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        ended = remat("verify", model, schedule, *DIM, "--execute")
        assert ended.code == 2
        assert "pip install 'remat[run]'" in ended.err

    def test_apply_needs_no_onnxruntime(
        self, model: Path, schedule: Path, tmp_path: Path, remat: Remat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        assert remat("apply", model, schedule, *DIM, "-o", tmp_path / "p.onnx").code == 0

    def test_a_time_limit_that_is_none(self, model: Path, schedule: Path, remat: Remat) -> None:
        ended = remat("verify", model, schedule, *DIM, "--execute", "--time-limit", "soon")
        assert ended.code == 2


class TestValues:
    """Inputs on whose values branches depend: `--value` for shapes, `--input` for a run."""

    @pytest.fixture
    def chooser(self, tmp_path: Path) -> Path:
        """A model whose else_branch cannot run, as onnxruntime finds out when it does: it multiplies a long vector."""
        then_branch = body([node("Relu", ["x"], ["r"]), node("Exp", ["r"], ["e"])], outputs=["e"])
        else_branch = body(
            [
                node("Size", ["x"], ["n"]),
                node("Range", ["zero", "n", "one"], ["range"]),
                node("Cast", ["range"], ["vector"], to=TensorProto.FLOAT),
                node("MatMul", ["vector", "w"], ["m"], "product"),
            ],
            outputs=["m"],
            stored=[weight("w", 7, 7), scalar("zero", 0), scalar("one", 1)],
        )
        chosen = node("If", ["usual"], ["z"], "choice", then_branch=then_branch, else_branch=else_branch)
        return Model(
            [node("Equal", ["rate", "it"], ["usual"]), chosen, node("Relu", ["z"], ["y"])],
            inputs=[float_input("x", "n", 50), value("rate", [], TensorProto.INT64)],
            stored=[scalar("it", 16000)],
        ).save(tmp_path)

    OPTIONS = ("--mode", "inference", "--dim", "n=50")

    def test_a_schedule_records_the_value(self, chooser: Path, tmp_path: Path, remat: Remat) -> None:
        schedule = tmp_path / "s.json"
        planned = remat("plan", chooser, *self.OPTIONS, "--value", "rate=16000", "--budget", "100%", "-o", schedule)
        assert (planned.code, planned.err) == (0, "")
        assert "left out" not in planned.out
        verified = remat("verify", chooser, schedule, "--execute")
        assert (verified.code, verified.err) == (0, "")
        assert "--value rate=16000" in verified.out
        assert "1 of 1 the same bit by bit" in verified.out

    def test_a_value_from_a_file_has_to_be_given_again(self, chooser: Path, tmp_path: Path, remat: Remat) -> None:
        schedule, value = tmp_path / "s.json", tmp_path / "rate.npy"
        np.save(value, np.int64(16000))
        given = ("--value", f"rate={value}")
        remat("plan", chooser, *self.OPTIONS, *given, "--budget", "100%", "-o", schedule, "-q")
        assert "rate" not in schedule.read_text()
        assert remat("verify", chooser, schedule, *given, "--execute").code == 0
        document = json.loads(schedule.read_text())
        document["graph"]["options"]["values"] = {"rate": str(value)}
        schedule.write_text(json.dumps(document))
        refused = remat("verify", chooser, schedule)
        assert refused.code == 6
        assert "the schedule's graph.options name a file" in refused.err

    def test_no_output_overwrites_the_file_of_a_value(self, chooser: Path, tmp_path: Path, remat: Remat) -> None:
        value = tmp_path / "rate.npy"
        np.save(value, np.int64(16000))
        call = ("plan", chooser, *self.OPTIONS, "--value", f"rate={value}", "--budget", "100%", "-o", value, "--force")
        assert remat(*call).code == 2
        assert np.load(value) == 16000

    def test_without_values_the_branch_is_left_out_and_the_run_asks_for_them(self, chooser: Path, remat: Remat) -> None:
        ended = remat("verify", chooser, *self.OPTIONS, "--execute")
        assert ended.code == 6
        assert "--input NAME=5" in ended.err
        assert "kernel" not in ended.err.partition("hint:")[2]

    @pytest.mark.parametrize("form", ["16000", "FILE"])
    def test_an_input_is_fed(self, form: str, chooser: Path, tmp_path: Path, remat: Remat) -> None:
        np.save(tmp_path / "rate.npy", np.int64(16000))
        given = f"rate={form.replace('FILE', str(tmp_path / 'rate.npy'))}"
        ended = remat("verify", chooser, *self.OPTIONS, "--execute", "--input", given)
        assert (ended.code, ended.err) == (0, "")
        assert "the else_branch of op 'choice' cannot run at these sizes" in " ".join(ended.out.split())

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("--input", "rate=5"), "--input goes with --execute"),
            (("--execute", "--input", "Rate=5"), "the model has no such input"),
            (("--execute", "--input", "rate=0.5"), "does not fit its type, int64"),
            (("--execute", "--input", "x=[1,2]"), "has shape [2], but the input has [50,50]"),
            (("--execute", "--input", "rate"), "'rate' is not understood"),
            (("--execute", "--value", "rate=a"), "--value 'rate=a' is not understood"),
        ],
    )
    def test_values_that_do_not_fit(self, args: tuple[str, ...], message: str, chooser: Path, remat: Remat) -> None:
        ended = remat("verify", chooser, *(args if "--execute" in args else (chooser, *args)), *self.OPTIONS)
        assert (ended.code, ended.out) == (2, "")
        assert message in ended.err


class TestFuse:
    """`remat fuse`."""

    def test_what_it_writes_is_planned_and_applied(self, tmp_path: Path, remat: Remat) -> None:
        fusible = Model(
            [node("Gemm", ["x", "w"], ["a"], "one"), node("Relu", ["a"], ["y"], "two")],
            inputs=[float_input("x", "rows", 16)],
            stored=[weight("w", 16, 16)],
        )
        path, fused, schedule = fusible.save(tmp_path), tmp_path / "fused.onnx", tmp_path / "s.json"
        ended = remat("fuse", path, "-o", fused)
        assert (ended.code, ended.err) == (0, "")
        assert "2 before, 1 now" in ended.out
        assert "1 FusedGemm" in ended.out
        found = remat("fuse", path, "-o", fused, "--json").json
        assert found["nodes"] == {"before": 2, "after": 1}
        assert found["fused"] == {"com.microsoft.FusedGemm": 1}
        call = ("plan", fused, *DIM, "--mode", "inference", "-c", "keep_all", "--budget", "100%", "-o", schedule)
        assert remat(*call).code == 0
        applied = remat("apply", fused, schedule, "-o", tmp_path / "p.onnx")
        assert applied.code == 0
        assert "remat fuse" not in applied.out

    def test_apply_tells_of_it(self, model: Path, schedule: Path, tmp_path: Path, remat: Remat) -> None:
        assert "`remat fuse`" in remat("apply", model, schedule, *DIM, "-o", tmp_path / "p.onnx").out

    def test_weights_are_never_lost(self, tmp_path: Path, remat: Remat) -> None:
        path = skip_model().save(tmp_path)
        assert "would be lost" in remat("fuse", path, "-o", path).err
        outside = Model([node("MatMul", ["x", "w"], ["y"], "one")], stored=[elsewhere("w", [3, 8], "weights.bin")])
        path = outside.save(tmp_path)
        (tmp_path / "weights.bin").write_bytes(bytes(3 * 8 * 4))
        assert "would be lost" in remat("fuse", path, "-o", tmp_path / "weights.bin").err
        (tmp_path / "other").mkdir()
        refused = remat("fuse", path, "-o", tmp_path / "other" / "model.onnx")
        assert refused.code == 2
        assert "new_model.onnx" in refused.err

    def test_what_cannot_be_fused(self, tmp_path: Path, remat: Remat) -> None:
        path = tmp_path / "graph.json"
        path.write_text("{}")
        ended = remat("fuse", path, "-o", tmp_path / "p.onnx")
        assert ended.code == 2
        assert "is no ONNX model" in ended.err
        assert not (tmp_path / "p.onnx").exists()


def test_a_model_that_takes_more_than_predicted_is_not_run(tmp_path: Path, remat: Remat) -> None:
    proto = Model([node("Exp", ["x"], ["y"])], [value("x", [512], TensorProto.FLOAT16)]).proto()
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    path, plan = tmp_path / "half.onnx", tmp_path / "s.json"
    onnx.save(proto, path)
    assert remat("plan", path, "--mode", "inference", "--budget", "100%", "-o", plan).code == 0
    ended = remat("verify", path, plan, "--execute")
    assert (ended.code, ended.out) == (2, "")
    assert "cannot run as predicted" in ended.err
    assert "remat fuse" in ended.err
