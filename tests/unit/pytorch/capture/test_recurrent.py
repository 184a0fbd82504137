"""Recurrent layers are one op a layer, forward and backward, with eager's bits and the memory that eager takes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from remat_cli.pytorch.capture import recurrent
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.joint_capture import compiled, seen_by
from remat_cli.pytorch.capture.recurrent import saved_by
from remat_cli.pytorch.memory.memory import allocations_of
from remat_cli.pytorch.run.call import PlannedCall
from remat_cli.pytorch.unstable.front_end import captured_call
from tests.torch_steps import Again, Moved, Plain

STEPS, BATCH, WIDTH = 7, 3, 8
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(WIDTH, 5, 2),
    "lstm of both directions": lambda: nn.LSTM(WIDTH, 5, 2, bidirectional=True, batch_first=True),
    "lstm with projections": lambda: nn.LSTM(WIDTH, 6, proj_size=3),
    "gru": lambda: nn.GRU(WIDTH, 5, 2, bidirectional=True),
    "gru without biases": lambda: nn.GRU(WIDTH, 5, bias=False),
    "rnn": lambda: nn.RNN(WIDTH, 5, nonlinearity="relu"),
    "rnn in doubles": lambda: nn.RNN(WIDTH, 5).double(),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loss_of(call: Callable[..., Any], layer: nn.Module, steps: int = STEPS) -> torch.Tensor:
    torch.manual_seed(1)
    dtype = next(layer.parameters()).dtype
    made, states = call(torch.randn(steps, BATCH, WIDTH, dtype=dtype))
    loss: torch.Tensor = made.square().sum() + sum(state.sum() for state in _flat(states))
    return loss


def _flat(states: Any) -> tuple[torch.Tensor, ...]:
    return (states,) if isinstance(states, torch.Tensor) else tuple(states)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("source", [Plain, Again, Moved])
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_are_those_of_eager_bit_for_bit(kind: str, source: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    layer = LAYERS[kind]()
    twin = copy.deepcopy(layer)
    call = PlannedCall(twin, source())
    for _ in range(3):  # the first run of a layer finds out what it saves
        expected, found = loss_of(layer, layer), loss_of(call, twin)
        assert torch.equal(expected, found)
        (expected + found).backward()  # type: ignore[no-untyped-call]
    for parameter, other in zip(layer.parameters(), twin.parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.equal(parameter.grad, other.grad)


def types_of(layer: nn.Module) -> list[str]:
    """Return the types of the ops of which a step of a layer is made."""
    captured = seen_by(lambda look: compiled(captured_call(layer), look)(torch.randn(STEPS, BATCH, WIDTH)))
    assert captured is not None
    return [op.type for op in graph_of(Joint.of(captured), "step").ops]


def test_a_layer_is_one_op_for_each_pass() -> None:
    types = types_of(LAYERS["lstm"]())
    assert types.count("remat.recurrent") == 2
    assert types.count("remat.recurrent_backward") == 2


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("op", ["recurrent", "recurrent_flat"])
def test_a_layer_keeps_as_much_as_is_said(kind: str, op: str) -> None:
    width, gates, count = 64, {"lstm": 4, "gru": 3, "rnn_tanh": 1}[kind], 2 if kind == "lstm" else 1
    x, states = torch.randn(30, 16, 32), [torch.zeros(1, 16, width) for _ in range(count)]
    shapes = ((gates * width, 32), (gates * width, width), (gates * width,), (gates * width,))
    weights = [torch.randn(shape) for shape in shapes]
    run = getattr(torch.ops.remat, op)
    run(kind, x, states, weights, True, False)
    kept: list[torch.Tensor] = []
    allocations = allocations_of(lambda: kept.extend(run(kind, x, states, weights, True, False)))
    layouts = tuple((value.dtype, tuple(value.shape)) for value in (x, *states, *weights))
    said = saved_by(recurrent.LayerForm(kind, torch.device("cpu"), layouts, count, True, False)).bytes
    assert allocations.bytes[-1] == pytest.approx(said + sum(value.nbytes for value in kept[:-1]), rel=0.02)


def test_bytes_of_a_long_sequence_are_those_of_fewer_steps_taken_further(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = (
        (torch.float32, (40, 16, 32)),
        *[(torch.float32, (1, 16, 64))] * 2,
        (torch.float32, (256, 32)),
        (torch.float32, (256, 64)),
        *[(torch.float32, (256,))] * 2,
    )
    form = recurrent.LayerForm("lstm", torch.device("cpu"), layouts, 2, True, False)
    whole = saved_by(form)
    monkeypatch.setattr(recurrent, "_MOST_TRIED_BYTES", 10 * 16 * 512 * 4)
    saved_by.cache_clear()
    further = saved_by(form)
    assert whole.bytes <= further.bytes <= 1.05 * whole.bytes
    assert (whole.results, whole.read) == (further.results, further.read)


def test_what_hooks_give_back_as_a_copy_is_computed_again() -> None:
    torch.manual_seed(0)
    layer = nn.GRU(WIDTH, 5)
    twin = copy.deepcopy(layer)
    call = PlannedCall(twin, Plain())
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.numpy(), torch.from_numpy):
        found = loss_of(call, twin)
    (found + loss_of(layer, layer)).backward()  # type: ignore[no-untyped-call]
    for parameter, other in zip(layer.parameters(), twin.parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.equal(parameter.grad, other.grad)


def test_under_autocast_layers_are_written_out() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        types = types_of(nn.GRU(WIDTH, 5))
    assert "aten.sigmoid" in types
    assert "remat.recurrent" not in types
