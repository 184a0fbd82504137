"""What is read of a training step: memory, order, phases, places; and that it is the graph that runs."""

from __future__ import annotations

import gc
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from remat_cli import prepare
from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.native import from_document, graph_sha256
from remat_cli.pytorch.capture.convert import graph_of, signature, written
from remat_cli.pytorch.capture.joint import BOUNDARY, Joint
from remat_cli.pytorch.capture.joint_capture import compiled, seen_by
from remat_cli.pytorch.capture.reader import callable_of, capture
from remat_cli.pytorch.capture.step import Step, as_step
from remat_cli.pytorch.capture.weightless import Weightless
from remat_cli.pytorch.unstable.front_end import forgetting
from tests.documents import to_document
from tests.places import GRAPHS
from tests.torch_steps import CASES, Case, awkward, changing_buffer, conv, gpt, mlp, repetitive

TRAIN = GRAPHS / "train.py"


def read(case: Case, **dims: int) -> tuple[Joint, Graph]:
    """Return the joint graph and the graph that are read of a case, without data."""
    with Weightless():
        step = as_step(case(**dims), "case")
    joint = Joint.of(capture(step, "cpu", "case")[1])
    return joint, graph_of(joint, "case")


def run_signatures(case: Case) -> dict[str, str]:
    """Return the signatures of the graph that is captured when the case runs on real tensors."""
    step = as_step(case(), "case")
    with forgetting():
        captured = seen_by(lambda look: compiled(callable_of(step.model), look)(*step.inputs, **step.keyword_inputs))
    assert captured is not None
    return {op.name: signature(op) for op in Joint.of(captured).ops}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_graph_read_without_data_is_the_one_that_runs(case: Case) -> None:
    assert {op.name: signature(op) for op in read(case)[0].ops} == run_signatures(case)


def test_another_size_has_another_signature() -> None:
    one, other = (read(mlp, batch=batch)[0] for batch in (4, 5))
    assert [op.name for op in one.ops] == [op.name for op in other.ops]
    differ = [a.name for a, b in zip(one.ops, other.ops, strict=True) if signature(a) != signature(b)]
    assert differ[0] == "addmm"
    assert BOUNDARY not in differ


def test_parameters_are_graph_inputs_under_their_own_names() -> None:
    _, graph = read(mlp)
    sizes = {name: graph.tensors[name].bytes for name in graph.inputs}
    assert sizes == {
        "layers.0.weight": 16 * 16 * 4, "layers.0.bias": 64, "layers.1.weight": 1024, "layers.1.bias": 64, "x": 512
    }  # fmt: skip


def test_outputs_are_loss_and_gradients() -> None:
    _, graph = read(mlp)
    assert sorted(graph.tensors[name].bytes for name in graph.outputs) == [4, 64, 64, 1024, 1024]


def test_tied_weight_is_in_memory_once() -> None:
    _, graph = read(gpt)
    names = [name for name in graph.inputs if graph.tensors[name].shape == (20, 16)]
    assert len(names) == 1


def test_boundary_parts_forward_from_backward() -> None:
    _, graph = read(gpt)
    place = graph.arrays.op_index[BOUNDARY]
    assert all(op.phase is Phase.FORWARD for op in graph.ops[:place])
    assert all(op.phase is Phase.BACKWARD for op in graph.ops[place:])
    assert not graph.op[BOUNDARY].recomputable
    assert graph.kind is Kind.TRAINING


def test_views_are_no_ops_and_share_their_base() -> None:
    _, graph = read(gpt)
    kinds = {op.type for op in graph.ops}
    assert kinds.isdisjoint({"aten.view", "aten.t", "aten.permute", "aten.detach", "aten.transpose", "aten.select"})
    (attention,) = [op for op in graph.ops if op.type == "aten._scaled_dot_product_flash_attention_for_cpu"]
    # Queries, keys and values are views of what one product made.
    assert [graph.producer[name].type for name in attention.inputs] == ["aten.addmm"]


def test_what_is_computed_twice_is_computed_once() -> None:
    graph = read(repetitive)[1]
    types = [op.type for op in graph.ops if op.phase is Phase.FORWARD]
    assert [types.count(f"aten.{kind}") for kind in ("exp", "arange", "lt", "cat")] == [1, 1, 1, 2]
    assert types.count("aten.native_dropout") == 2
    assert not {"aten.view", "aten.unbind"} & set(types)  # views of what took the place of what was merged


def test_what_the_caller_gets_twice_has_memory_of_its_own() -> None:
    def twice(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return layer(x).exp(), layer(x).exp()

    graph = read(lambda: (twice, (nn.Linear(4, 4), torch.randn(3, 4))))[1]
    assert len([name for name in graph.outputs if graph.producer[name].phase is Phase.FORWARD]) == 2


def test_random_ops_run_once_and_in_order() -> None:
    _, graph = read(gpt)
    first, second = [op for op in graph.ops if op.type == "aten.native_dropout"]
    assert not first.recomputable
    assert set(first.outputs) & set(second.inputs) == {"native_dropout.random"}
    assert "native_dropout_1.random" in graph.op[BOUNDARY].inputs
    assert graph.tensors["native_dropout.random"].bytes == 0


def test_batch_norm_may_run_again_and_its_statistics_are_written_once() -> None:
    _, graph = read(conv)
    (norm,) = [op for op in graph.ops if op.type == "aten._native_batch_norm_legit_functional"]
    writes = [op for op in graph.ops if op.type == "aten.copy_"]
    assert norm.recomputable
    assert len(writes) == 3
    assert not any(op.recomputable for op in writes)
    assert {op.outputs[0] for op in writes} <= set(graph.op[BOUNDARY].inputs)
    assert not any(op.type == "aten.clone" for op in graph.ops)


def test_old_value_of_a_changed_buffer_is_read_from_a_copy() -> None:
    _, graph = read(changing_buffer)
    (copy,) = [op for op in graph.ops if op.name.endswith("_before")]
    (written,) = [op for op in graph.ops if copy.outputs[1] in op.inputs]
    assert copy.inputs == ("scale",)
    assert not copy.recomputable
    assert written.type == "aten.copy_"
    readers = [op.type for op in graph.consumers["scale"]]
    assert readers == ["aten.clone"]


def test_frozen_and_unused_parameters_get_no_gradient() -> None:
    _, graph = read(awkward)
    assert {"used.weight", "used.bias", "frozen.weight", "frozen.bias"} <= set(graph.inputs)
    assert "unused.weight" not in graph.inputs
    gradients = [name for name in graph.outputs if graph.producer[name].phase is Phase.BACKWARD]
    assert sorted(graph.tensors[name].bytes for name in gradients) == [32, 256]


def test_ops_know_their_module_and_line() -> None:
    _, graph = read(gpt)
    op = graph.op["gelu"]
    assert op.module == "blocks.0"
    assert op.source is not None
    assert op.source.startswith("tests/torch_steps.py:")
    backward = graph.op["gelu_backward"]
    assert (backward.module, backward.source) == (op.module, op.source)
    assert backward.grad_of == "gelu"


def test_file_format_carries_all_of_it() -> None:
    _, graph = read(gpt)
    again = from_document(to_document(graph), "again").graph
    assert again.ops == graph.ops
    assert graph_sha256(again) == graph_sha256(graph)


def test_moved_line_changes_no_hash_and_another_constant_does() -> None:
    _, graph = read(mlp)
    moved = replace(graph, ops=tuple(replace(op, source="elsewhere.py:1", module="m") for op in graph.ops))
    changed = replace(graph, ops=tuple(replace(op, signature="0") for op in graph.ops))
    assert graph_sha256(moved) == graph_sha256(graph) != graph_sha256(changed)


def test_example_is_read_with_its_dims() -> None:
    reading = prepare.read(Path(f"{TRAIN}:step"), GraphOptions(dims={"batch": 3}))
    assert reading.graph.tensors["images"].shape == (3, 1, 28, 28)
    assert reading.graph.name == "train.step"
    assert sum(parameter.bytes for parameter in reading.parameters) == 201_512
    assert "CPU" in reading.notes[0]


def test_unused_parameters_and_optimizer_state_are_resident(tmp_path: Path) -> None:
    (tmp_path / "extra.py").write_text(
        "import torch\n"
        "def step():\n"
        "    model = torch.nn.ModuleDict({'a': torch.nn.Linear(4, 4), 'unused': torch.nn.Linear(4, 4)})\n"
        "    def loss(model, x):\n"
        "        return model['a'](x).sum()\n"
        "    optimizer = torch.optim.AdamW(model['a'].parameters())\n"
        "    return {'model': loss, 'inputs': (model, torch.ones(2, 4)), 'optimizer': optimizer}\n"
    )
    reading = prepare.read(Path(f"{tmp_path}/extra.py:step"), GraphOptions())
    of_one = (16 + 4) * 4
    assert reading.graph.resident_bytes == of_one + 2 * of_one
    assert reading.optimizer == "AdamW"


def test_python_looks_for_no_garbage_while_a_step_is_read(tmp_path: Path) -> None:
    body = "    assert not gc.isenabled()\n    return torch.nn.Linear(2, 2), torch.ones(2, 2)\n"
    (tmp_path / "step.py").write_text(f"import gc, torch\ndef step():\n{body}")
    prepare.read(Path(f"{tmp_path}/step.py:step"), GraphOptions())
    assert gc.isenabled()


def failure(tmp_path: Path, body: str, name: str = "step", **dims: int) -> Any:
    """Return the error that reading a file with this body ends in."""
    (tmp_path / "mine.py").write_text(f"import torch\nfrom torch import nn\n{body}\n")
    with pytest.raises((GraphError, UsageError)) as caught:
        prepare.read(Path(f"{tmp_path}/mine.py:{name}"), GraphOptions(dims=dims))
    return caught.value


STEP = "def step(batch=2):\n    return f, (nn.Linear(4, 4), torch.ones(batch, 4))\n"


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        ("def f(m, x):\n    y = m(x)\n    return y if y.sum() > 0 else -y\n", "mine.py:5: Data-dependent", "where"),
        ("def f(m, x):\n    y = m(x)\n    return y[y > 0].sum()\n", "size depends on data", "mask"),
        ("def f(m, x):\n    return m(x) @ torch.ones(7, 7)\n", "mine.py:4: RuntimeError", "run by itself"),
        ("def f(m, x):\n    return m(torch.ones(7, 7))\n", "mine.py:4: RuntimeError", "run by itself"),
        ("def f(m, x):\n    print('shape', x.shape)\n    return m(x).sum()\n", "mine.py:4", "print takes tensors"),
        ("def f(m, x):\n    y = m(x).exp()\n    y.mul_(2)\n    return y.sum()\n", "mine.py:4: a value that", "clone"),
        (
            "def f(m, x):\n    with torch.no_grad():\n        return m(x)\n",
            "nothing in the step needs a gradient",
            "require",
        ),
        ("def f(m, x):\n    return m(x).sum().item()\n", "nothing in the step needs a gradient", "not its .item()"),
        ("def f(m, x):\n    open('x')\n    return m(x)\n", "mine.py:4", "move it out of the step"),
    ],
    ids=["branch", "size", "shape", "shape in a layer", "print", "in place", "no gradient", "number", "unsupported"],
)
def test_step_that_cannot_be_captured(tmp_path: Path, body: str, message: str, hint: str) -> None:
    error = failure(tmp_path, body + STEP)
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def step():\n    return nn.Linear(2, 2)\n", "of type 'Linear', not a model and its inputs"),
        ("def step():\n    return None\n", "what it returns is nothing"),
        ("def step():\n    return 3, 4\n", "the model that it returns is of type 'int'"),
        ("def step():\n    return {'modle': 1}\n", "'modle'"),
        ("def step():\n    return {}\n", "has no 'model'"),
        ("def step():\n    return (nn.Linear(2, 2),)\n", "returned 1 things"),
        ("def step():\n    return nn.Linear(2, 2), (), 3\n", "its keyword inputs are of type 'int', not a dict"),
        ("def step():\n    return nn.Linear(2, 2), (), {}, None\n", "returned 4 things"),
        ("def step():\n    return nn.Linear(2, 2), ()\n", "missing a required argument: 'input'"),
        (
            "def f(m, x, *, mask):\n    return m(x)\ndef step():\n    return f, (nn.Linear(2, 2), torch.ones(1, 2))\n",
            "argument: 'mask'",
        ),
        ("def step():\n    return nn.Linear(2, 2), (torch.ones(1, 2), 3)\n", "too many positional arguments"),
        ("def step():\n    return torch.ones(1).item()\n", "mine.py:4: RuntimeError"),
        ("step = 3\n", "has no function 'step'"),
        ("def step(batch, seq=2):\n    pass\n", "needs 'batch'"),
        ("1 / 0\n", "mine.py:3"),
        ("def f(:\n", "SyntaxError: invalid syntax (mine.py, line 3)"),
        ("import sys\nsys.exit(7)\n", "SystemExit: 7"),
        ("def step():\n    raise SystemExit(7)\n", "SystemExit: 7"),
    ],
)
def test_function_that_returns_no_step(tmp_path: Path, body: str, message: str) -> None:
    assert message in failure(tmp_path, body).message


def test_inputs_of_a_function_without_a_signature_are_taken_as_they_are() -> None:
    step = Step(torch.maximum, (torch.ones(2, requires_grad=True), torch.zeros(2)))
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(step.model)
    assert {op.name for op in Joint.of(capture(step, "cpu", "the test")[1]).ops} >= {"maximum"}


def test_unknown_dim_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    error = failure(tmp_path, "def f(m, x): return m(x)\n" + STEP, size=2)
    assert "takes no dim 'size'" in error.message
    assert "batch" in error.hint


def test_missing_file_and_module() -> None:
    with pytest.raises(GraphError, match=r"nowhere.py: no such file"):
        prepare.read(Path("nowhere.py:step"), GraphOptions())
    with pytest.raises(UsageError, match=r"nowhere.py names no function"):
        prepare.read(Path("nowhere.py"), GraphOptions())
    with pytest.raises(GraphError, match=r"there is no module 'nowhere.at_all'"):
        prepare.read(Path("nowhere.at_all:step"), GraphOptions())


def test_model_is_built_without_memory() -> None:
    with Weightless() as weightless:
        big = nn.Linear(2**20, 2**20).to("cuda").bfloat16()
        small = torch.linspace(0, 1, 3, device="cpu")
    assert big.weight.is_meta
    assert big.weight.dtype is torch.bfloat16
    assert small.tolist() == [0.0, 0.5, 1.0]
    assert weightless.device_type == "cuda"


def test_fake_tensors_keep_ties_and_views() -> None:
    with Weightless():
        base = torch.ones(4, 4)
        step = Step(lambda a, b: None, (base, {"again": base, "row": base[1]}))
    captured, _ = _faked(step)
    whole, named = captured.inputs
    assert named["again"] is whole
    assert named["row"].untyped_storage()._cdata == whole.untyped_storage()._cdata
    assert named["row"].storage_offset() == 4


def _faked(step: Step) -> tuple[Step, Any]:
    from remat_cli.pytorch.capture.weightless import with_fake_tensors

    return with_fake_tensors(step, "cpu")


def test_what_dropout_returns_may_be_made_again_from_its_mask() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8))
    _, captured = capture(Step(lambda x: model(x).sum(), (torch.ones(4, 8),)), "cpu", "the test")
    graph = graph_of(Joint.of(captured), "g")
    drawn, applied = graph.op["native_dropout"], graph.op["native_dropout_applied"]
    assert not drawn.recomputable
    assert applied.recomputable
    assert applied.inputs == ("addmm", "native_dropout:1")
    assert not any("native_dropout:0" in op.inputs for op in graph.ops)
    assert applied.phase is Phase.FORWARD


def test_exchange_between_ranks_is_written_alike_by_each_group() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    asked = [("sum", "0"), ("sum", "1"), ("max", "0")]
    sums = [graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, *how)) for how in asked]
    one, other, most = map(written, sums)
    assert one == other != most


class WithCheckpoints(nn.Module):
    """Two layers, each in a checkpoint of the model's own."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x.sum()


def with_checkpoints() -> tuple[nn.Module, torch.Tensor]:
    return WithCheckpoints(checkpointed=True), torch.ones(2, 4)


def without_checkpoints() -> tuple[nn.Module, torch.Tensor]:
    return WithCheckpoints(checkpointed=False), torch.ones(2, 4)


def test_a_note_says_that_own_checkpoints_are_left_out() -> None:
    has, hasnt = (
        prepare.prepare(Path(f"{__name__}:{name}_checkpoints"), GraphOptions()) for name in ("with", "without")
    )
    said = "the step's own checkpoints are left out of the captured step"
    assert [note for note in has.notes if note.startswith(said)]
    assert not [note for note in hasnt.notes if said in note]
