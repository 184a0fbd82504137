"""Models run in child processes, and what is found when they do not do as planned."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from remat_cli import session_options
from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import input_order, with_frees
from remat_cli.errors import GraphError, InvalidSchedule, UsageError
from remat_cli.runtime.onnx import measured_process
from remat_cli.runtime.onnx.apply import apply_schedule, read_for
from remat_cli.runtime.onnx.execution import NOISE_BYTES, ModelExecution, ProcessPeak, UsualRun, execute
from remat_cli.runtime.onnx.rewrite import Rewritten
from tests.places import GRAPHS
from tests.unit.formats.onnx.models import Model, body, elsewhere, float_input, integers, node, scalar, value
from tests.unit.runtime.onnx.rewriting import planned

LONG_SKIP = GRAPHS / "long_skip.onnx"
# Every tensor takes 4 MiB.
DIMS = {"batch": 1, "height": 256, "width": 256}
MIB = 2**20


def few_kept(every: int = 3, levels: int = 12) -> list[str]:
    """The ops of the long-skip network, every third skip kept and the others made again on the way up."""
    kept = {level for level in range(1, levels + 1) if level % every == 0}
    computes = [f"down{level}.{op}" for level in range(1, levels + 1) for op in ("conv", "relu")]
    for level in range(levels - 1, 0, -1):
        if level not in kept:
            start = max((other for other in kept if other < level), default=0) + 1
            computes += [f"down{again}.{op}" for again in range(start, level + 1) for op in ("conv", "relu")]
            kept |= set(range(start, level + 1))
        computes += [f"up{level}.{op}" for op in ("add", "conv", "relu")]
    return computes


def run(
    path: Path,
    computes: Sequence[str] = (),
    *,
    believed: Callable[[Graph], Graph] = lambda graph: graph,
    tampered: Callable[[Rewritten], Rewritten] = lambda rewritten: rewritten,
    time_limit: float = 600,
    beside_usual: bool = False,
    fed: Mapping[str, Any] | None = None,
    **options: Any,
) -> ModelExecution:
    """Execute a model by a schedule, by default the plain run.

    Args:
        path: the model.
        computes: the schedule.
        believed: changes the graph that predicts.
        tampered: changes the rewritten model.
        time_limit: of each process.
        beside_usual: run it with onnxruntime's own options, too.
        fed: values of inputs.
        options: how the model is read.
    """
    given = GraphOptions(mode="inference", **options)
    graph = planned(path, **options)
    computes = computes or input_order(graph)
    rewritten = tampered(apply_schedule(path, given, graph, with_frees(graph, computes), {}))
    model = read_for(path, given, keep_data=False)
    more: dict[str, Any] = {"fed": fed, "time_limit": time_limit, "beside_usual": beside_usual}
    return execute(path, model, rewritten, believed(graph), computes, **more)


@pytest.fixture(scope="module")
def found() -> ModelExecution:
    """The long-skip network with few skips kept."""
    return run(LONG_SKIP, few_kept(), dims=DIMS)


def test_a_schedule_runs_in_the_memory_that_was_predicted(found: ModelExecution) -> None:
    assert found.holds
    assert (found.plain.predicted, found.plan.predicted) == (13 * 4 * MIB, 7 * 4 * MIB)
    assert found.plain.agrees
    assert abs(found.plan.measured - found.plan.predicted) < MIB
    assert found.outputs == ("up1.relu",)
    assert (found.changed, found.not_finite, found.out_of_order, found.parted_at) == ((), (), None, None)
    assert (found.nodes, found.random_weights) == (73, 46)


def test_what_onnxruntime_takes_by_itself_stands_beside() -> None:
    found = run(LONG_SKIP, beside_usual=True, dims={"batch": 1, "height": 128, "width": 128})
    assert found.usual is not None
    # The first run fills the arena, and the second one takes a block beside it: the plain peak twice.
    assert found.usual.peak_bytes is not None
    assert found.usual.peak_bytes > 1.5 * found.plain.measured
    assert all(time is not None and time > 0 for time in (found.usual.time_ns, found.plain_time_ns, found.plan_time_ns))
    assert not found.fused


def test_that_onnxruntime_does_not_run_a_model_by_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run_process = subprocess.run

    def dying(command: Sequence[str], **more: Any) -> Any:
        asked = json.loads(Path(command[-2]).read_text())
        if asked["as_it_comes"]:
            command = [command[0], "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
        return run_process(command, **more)

    monkeypatch.setattr(subprocess, "run", dying)
    found = run(LONG_SKIP, beside_usual=True, dims={"batch": 1, "height": 8, "width": 8})
    assert found.holds
    assert found.usual == UsualRun(failure="its process was killed")


# So large that the C library maps each array by itself, and gives it back: how the heap lies makes no difference.
LARGE = 40 * MIB


def test_the_least_peak_of_some_runs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter((4, 1, 2, 3))

    def run_once() -> list[object]:
        np.ones(next(sizes) * LARGE, np.int8)
        return []

    assert measured_process._measured(run_once, 3)[1] == pytest.approx(LARGE, rel=0.2)
    assert next(sizes) == 3
    monkeypatch.setattr(measured_process, "_LONGEST_TIMING_NS", 0)
    sizes = iter((2, 1, 3))
    assert measured_process._measured(run_once, 3)[1] == pytest.approx(LARGE, rel=0.2)


def with_scratch(op: str, size: int) -> Callable[[Graph], Graph]:
    """Make a graph believe that an op takes this much memory for itself."""
    return lambda graph: replace(
        graph,
        ops=tuple(replace(one, workspace_bytes=size) if one.name == op else one for one in graph.ops),
    )


def test_the_op_by_which_memory_departs_is_named() -> None:
    # A tensor is still more than the tolerance: one that is counted wrong moves the place.
    dims = {"batch": 1, "height": 208, "width": 208}
    found = run(LONG_SKIP, few_kept(), believed=with_scratch("up5.conv", 40 * MIB), dims=dims)
    assert not found.holds
    assert not found.plan.agrees
    assert found.parted_at == "up5.conv"
    assert (found.changed, found.out_of_order) == ((), None)


@pytest.mark.parametrize("collects", [False, True])
def test_a_loop_runs_as_often_as_was_planned(collects: bool, tmp_path: Path) -> None:
    size = [256, 1024]
    made = ["more", "next", *(["item"] if collects else [])]
    steps = [node("Identity", ["go"], ["more"]), node("Sin", ["state"], ["next"]), node("Cos", ["state"], ["item"])]
    inner = body(
        steps if collects else steps[:2],
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("state", size)],
        made,
    )
    inner.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    model = Model(
        [
            node("Squeeze", ["count"], ["n"], "scalar"),
            node("Exp", ["x"], ["e"], "exp"),
            node("Loop", ["n", "", "e"], ["last", *(["all"] if collects else [])], "loop", body=inner),
            node("ReduceSum", ["all" if collects else "last"], ["y"], "sum"),
        ],
        inputs=[value("x", size), value("count", [1], TensorProto.INT64)],
    )
    found = run(model.save(tmp_path), value_shapes={"all": (20, *size)} if collects else {})
    assert found.plain.predicted >= (44 if collects else 4) * MIB
    assert abs(found.plain.measured - found.plain.predicted) < 0.5 * MIB


@pytest.mark.parametrize(("high", "off"), [(1e9, "less"), (-1e9, "none")])
def test_less_than_the_most_that_it_may_take_is_no_failure(high: float, off: str, tmp_path: Path) -> None:
    large = body([node("Expand", ["e", "four"], ["w"]), node("ReduceMax", ["w"], ["m"], keepdims=0)], outputs=["m"])
    small = body([node("ReduceMax", ["e"], ["l"], keepdims=0)], outputs=["l"])
    model = Model(
        [
            node("Exp", ["x"], ["e"]),
            node("ReduceMax", ["e"], ["highest"], keepdims=0),
            node("Greater", ["highest", "high"], ["c"]),
            node("If", ["c"], ["y"], "choice", then_branch=large, else_branch=small),
        ],
        inputs=[value("x", [256, 1024])],
        stored=[integers("four", 4, 256, 1024), numpy_helper.from_array(np.array(high, dtype=np.float32), "high")],
    )
    found = run(model.save(tmp_path))
    assert found.upper_bounds == ("choice",)
    assert (found.plan.at_most, found.plan.agrees, found.parted_at) == (True, True, None)
    assert (found.plan.measured < found.plan.predicted - 3 * MIB) == (off == "less")
    assert found.broken(planned(tmp_path / "model.onnx")) is None


def test_a_loop_whose_state_grows_takes_what_was_predicted(tmp_path: Path) -> None:
    part, times = 2**18, 10
    inner = body(
        [node("Concat", ["state", "x"], ["next"], axis=0), node("Identity", ["go"], ["more"])],
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("state")],
        ["more", "next"],
    )
    inner.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    model = Model(
        [
            node("Neg", ["x"], ["start"]),
            node("Loop", ["n", "", "start"], ["all"], "loop", body=inner),
            node("ReduceSum", ["all"], ["y"], keepdims=0),
        ],
        inputs=[float_input("x", part)],
        stored=[scalar("n", times)],
    )
    found = run(model.save(tmp_path), value_shapes={"all": ((times + 1) * part,)})
    assert found.upper_bounds == ()
    # The start, the state of the last iteration and the one before, and what the loop hands out.
    assert found.plain.predicted == pytest.approx((1 + times + 2 * (times + 1)) * MIB, abs=1000)
    assert abs(found.plain.measured - found.plain.predicted) < 0.5 * MIB


def test_more_than_the_most_that_it_may_take_is_a_failure() -> None:
    assert ProcessPeak(50 * MIB, MIB, at_most=True).agrees
    assert not ProcessPeak(50 * MIB, MIB).agrees
    assert not ProcessPeak(50 * MIB, 53 * MIB, at_most=True).agrees


def test_that_a_size_depends_on_data_is_told() -> None:
    found = run(LONG_SKIP, dims={"batch": 1, "height": 8, "width": 8})
    graph = planned(LONG_SKIP, dims={"batch": 1, "height": 8, "width": 8})
    far = replace(found, plan=ProcessPeak(0, 100 * MIB), plain=ProcessPeak(0, 100 * MIB), parted_at="up5.conv")
    kernel = far.broken(graph)
    assert kernel is not None
    assert "report it" in kernel.hint
    loop = far.broken(replace(graph, ops=tuple(replace(one, type="Loop") for one in graph.ops)))
    assert loop is not None
    assert "depends on its data" in loop.message
    assert "drawn at random" in loop.hint


def test_a_plan_that_takes_more_than_the_model_as_it_is_does_not_hold(found: ModelExecution) -> None:
    as_much = replace(found, plain=replace(found.plain, measured=found.plan.measured - NOISE_BYTES))
    assert as_much.holds
    more = replace(found, plain=replace(found.plain, measured=found.plan.measured - NOISE_BYTES - 1))
    assert more.plan.agrees
    assert not more.holds


def test_what_no_output_depends_on_is_left_out(tmp_path: Path) -> None:
    size = 4 * MIB
    model = Model(
        [
            node("Exp", ["x"], ["e"]),
            node("Neg", ["e"], ["dead"]),
            node("Relu", ["x"], ["r"]),
            node("Split", ["r"], ["a", "unread"], axis=0, num_outputs=2),
            node("Mul", ["a", "a"], ["y"]),
        ],
        inputs=[float_input("x", size // 4)],
    )
    found = run(model.save(tmp_path))
    assert found.holds
    # As it is, onnxruntime keeps what Neg makes to the end, beside r and both halves of it.
    assert (found.plain.predicted, found.plan.predicted) == (3 * size, 2 * size)
    assert found.plain.agrees
    assert found.nodes == 4  # Relu, Split, Mul, and a Shape that ends the half that nobody reads


def test_other_bits_are_found() -> None:
    def without_relu(rewritten: Rewritten) -> Rewritten:
        next(one for one in rewritten.proto.graph.node if one.name == "up7.relu").op_type = "LeakyRelu"
        return rewritten

    found = run(LONG_SKIP, tampered=without_relu, dims={"batch": 1, "height": 8, "width": 8})
    assert found.changed == ("up1.relu",)
    assert not found.holds


def test_another_order_is_found() -> None:
    def with_an_op_that_is_expanded(rewritten: Rewritten) -> Rewritten:
        relu = next(one for one in rewritten.proto.graph.node if one.name == "down2.relu")
        relu.op_type = "HardSwish"
        return rewritten

    found = run(LONG_SKIP, tampered=with_an_op_that_is_expanded, dims={"batch": 1, "height": 8, "width": 8})
    assert found.out_of_order == (3, "down2.relu", "down3.conv")
    assert not found.holds


def small(*nodes: onnx.NodeProto, **more: Any) -> Model:
    return Model(list(nodes), inputs=[float_input("x", 4, 8)], **more)


def test_weights_that_are_there_are_used(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(np.arange(64, dtype=np.float32).tobytes())
    path = small(node("MatMul", ["x", "w"], ["y"], "one"), stored=[elsewhere("w", [8, 8], "weights.bin")]).save(
        tmp_path
    )
    assert run(path).random_weights == 0
    (tmp_path / "weights.bin").unlink()
    assert run(path).random_weights == 1


def test_weights_that_nobody_reads_do_not_matter(tmp_path: Path) -> None:
    path = small(node("Neg", ["x"], ["y"], "neg"), stored=[elsewhere("w", [8, 8], "absent.bin")]).save(tmp_path)
    assert run(path).random_weights == 0


def test_infinities_are_told(tmp_path: Path) -> None:
    path = small(node("Sub", ["x", "x"], ["z"], "zero"), node("Log", ["z"], ["y"], "log")).save(tmp_path)
    found = run(path)
    assert found.not_finite == ("y",)
    assert found.holds


def test_bodies_do_not_disturb_the_order(tmp_path: Path) -> None:
    from tests.unit.runtime.onnx.test_rewrite import CONDITIONAL

    found = run(CONDITIONAL.save(tmp_path), ["neg", "exp", "neg", "exp", "if"])
    assert found.holds


def classifier(folder: Path) -> Path:
    """Write a pipeline as skl2onnx writes it: text, its words' numbers, their norm, and a map of scores."""
    ids: dict[str, Any] = {"cats_strings": ["red", "blue"], "cats_int64s": [2, -7]}
    model = Model(
        [
            node("CategoryMapper", ["x"], ["id"], domain="ai.onnx.ml", **ids),
            node("Cast", ["id"], ["number"], to=1),
            node("Mul", ["number", "scale"], ["scores"]),
            node("Normalizer", ["scores"], ["unit"], domain="ai.onnx.ml", norm="L2"),
            node("Neg", ["unit"], ["shown"]),
            node("ZipMap", ["shown"], ["map"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
            node("Identity", ["x"], ["text"]),
        ],
        inputs=[value("x", [4, 1], TensorProto.STRING)],
        outputs=("map", "text"),
        stored=[numpy_helper.from_array(np.array([1, -2, 3], dtype=np.float32), "scale")],
        other_opsets={"ai.onnx.ml": 1},
    ).proto()
    for output in model.graph.output:
        output.ClearField("type")
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_text_and_maps_are_compared(tmp_path: Path) -> None:
    """Where it writes over its input, the L2 norm of onnxruntime 1.32 is another one."""
    found = run(classifier(tmp_path))
    assert (found.outputs, found.changed, found.not_finite) == (("map", "text"), (), ())

    def positive(rewritten: Rewritten) -> Rewritten:
        next(one for one in rewritten.proto.graph.node if one.op_type == "Neg").op_type = "Identity"
        return rewritten

    assert run(classifier(tmp_path), tampered=positive).changed == ("map",)


def test_text_may_be_given(tmp_path: Path) -> None:
    path = classifier(tmp_path)
    texts = np.array([["red"], ["blue"], ["blue"], ["green"]])
    np.save(tmp_path / "x.npy", texts)
    for fed in (texts.tolist(), str(tmp_path / "x.npy")):
        assert not run(path, fed={"x": fed}).changed
    with pytest.raises(UsageError, match="no array of text"):
        run(path, fed={"x": 7})


class TestFailures:
    """What is said when something does not run."""

    def test_a_model_that_onnxruntime_cannot_run(self, tmp_path: Path) -> None:
        model = small(node("Frobnicate", ["x"], ["y"], "op", domain="com.acme"), other_opsets={"com.acme": 1})
        with pytest.raises(GraphError, match=r"does not run in onnxruntime: .*Frobnicate"):
            run(model.save(tmp_path))

    def test_a_rewritten_model_that_it_cannot_run(self, tmp_path: Path) -> None:
        def broken(rewritten: Rewritten) -> Rewritten:
            rewritten.proto.graph.node[0].input[0] = "nothing"
            return rewritten

        with pytest.raises(InvalidSchedule, match="the rewritten model does not run in onnxruntime"):
            run(small(node("Neg", ["x"], ["y"], "neg")).save(tmp_path), tampered=broken)

    def test_a_process_that_takes_too_long(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidSchedule, match=r"did not end within 0\.01 s") as refused:
            run(small(node("Neg", ["x"], ["y"], "neg")).save(tmp_path), time_limit=0.01)
        assert "--time-limit" in refused.value.hint

    def test_too_little_memory(self) -> None:
        with pytest.raises(InvalidSchedule, match="could not be verified") as refused:
            run(LONG_SKIP, dims={"batch": 10**7, "height": 1000, "width": 1000})
        assert "too little memory" in refused.value.hint

    @pytest.mark.parametrize(
        ("script", "message", "remedy"),
        [
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its process was killed", "out of memory"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV", "crashed"),
            ("import sys; sys.exit('no such thing')", "code 1: no such thing", "complete"),
            ("import os; os._exit(3)", "code 3: it said nothing", "complete"),
        ],
    )
    def test_a_process_that_dies(
        self, script: str, message: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_process = subprocess.run

        def dying(command: Sequence[str], **more: Any) -> Any:
            return run_process([command[0], "-c", script], **more)

        monkeypatch.setattr(subprocess, "run", dying)
        with pytest.raises(InvalidSchedule, match=message) as refused:
            run(small(node("Neg", ["x"], ["y"], "neg")).save(tmp_path))
        assert remedy in refused.value.hint

    def test_inputs_that_cannot_be_drawn(self, tmp_path: Path) -> None:
        model = Model([node("Identity", ["x"], ["y"], "same")], inputs=[value("x", [2], TensorProto.BFLOAT16)])
        with pytest.raises(UsageError, match="no random inputs for 'x'"):
            run(model.save(tmp_path))

    def test_weights_that_cannot_be_drawn(self, tmp_path: Path) -> None:
        outside = elsewhere("w", [8], "absent.bin")
        outside.data_type = TensorProto.BFLOAT16
        model = small(node("Cast", ["w"], ["c"], "cast", to=1), node("Add", ["x", "c"], ["y"], "add"), stored=[outside])
        with pytest.raises(UsageError, match="no random weights of type bfloat16") as refused:
            run(model.save(tmp_path))
        assert "absent.bin" in refused.value.hint

    def test_without_onnxruntime(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        for call in (session_options, lambda: run(small(node("Neg", ["x"], ["y"], "neg")).save(tmp_path))):
            with pytest.raises(UsageError, match="needs onnxruntime") as refused:
                call()
            assert refused.value.hint == "pip install 'remat[run]'"


@pytest.mark.parametrize(
    ("predicted", "measured", "agrees"),
    [
        (10 * MIB, 12 * MIB, True),
        (10 * MIB, 12 * MIB + 1, False),
        (10 * MIB, 8 * MIB - 1, False),
        (1000 * MIB, 1030 * MIB, True),
        (1000 * MIB, 1031 * MIB, False),
        (0, 0, True),
    ],
)
def test_the_tolerance_is_2_mib_or_3_percent(predicted: int, measured: int, agrees: bool) -> None:
    assert ProcessPeak(predicted, measured).agrees == agrees
