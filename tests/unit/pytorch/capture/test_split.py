"""Regions in parts: whatever op they are around, the step computes the same to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import UsageError
from remat_cli.pytorch.capture import axes
from remat_cli.pytorch.capture.axes import axes_of
from remat_cli.pytorch.capture.convert import graph_of, operators_of
from remat_cli.pytorch.capture.joint import Joint, rewritten
from remat_cli.pytorch.capture.joint_capture import Captured, compiled, tangents_of
from remat_cli.pytorch.capture.split import row_ops, split
from remat_cli.pytorch.memory.measure import measure_once
from remat_cli.splitting import Split
from tests.torch_steps import Block

Step = tuple[Callable[..., Any], tuple[Any, ...]]


class Language(nn.Module):
    """A block, and a head as transformers has it: labels are shifted, and the logits are returned with the loss."""

    def __init__(self, logits: bool, smoothing: float = 0.1) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(11, 4), Block(4, 2, 0.0), nn.Linear(4, 11, bias=False)
        self.logits, self.smoothing = logits, smoothing

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        scores = self.head(self.block(self.embed(tokens)))
        before, after = scores[:, :-1].contiguous(), labels[:, 1:].contiguous()
        loss = F.cross_entropy(before.view(-1, 11), after.view(-1), label_smoothing=self.smoothing)
        return (loss, scores) if self.logits else loss


class Tied(nn.Module):
    """Two losses of the same scores, of which one is no cross entropy; the head's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.embed(tokens) @ self.embed.weight.t()
        likely = scores.softmax(-1)
        entropy = (likely * likely.log()).sum(-1).mean()
        loss: torch.Tensor = F.cross_entropy(scores.view(-1, 9), labels.view(-1)) + 0.1 * entropy
        return loss


class Images(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), norm()
        self.second, self.head = nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Linear(6, 5)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = F.max_pool2d(F.relu(self.norm(self.first(images))), 2)
        return F.cross_entropy(self.head(F.silu(self.second(hidden)).mean((2, 3))), labels)


class Added(nn.Module):
    """A norm of tokens, and running sums along both other dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.randn(6)), nn.LayerNorm(6)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(torch.tanh(hidden * self.scale))
        return normed.cumsum(0).cumsum(1).square().mean()


class Contrast(nn.Module):
    """Each row of the loss sees all of the other side."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 4), nn.Linear(5, 4)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        scores = F.normalize(self.one(one), dim=-1) @ F.normalize(self.other(other), dim=-1).t()
        return F.cross_entropy(scores, torch.arange(len(one))) + F.cross_entropy(scores.t(), torch.arange(len(one)))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.down(F.dropout(F.gelu(self.up(x)), 0.3)), wanted)


class Squared(nn.Module):
    """One op reads a value twice, another one two values laid out alike."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.up(x)
        return (y * y + y * y.sin()).sum()


class Indexed(nn.Module):
    """An index bounds the region, and the loss is not linear in what the region computes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        heads = self.up(x)[:, [3, 1, 0, 2]].view(4, 4, 2, 3).transpose(1, 2)
        seen = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)
        return F.mse_loss(seen.reshape(4, 4, 6), wanted).sqrt()


class Flipped(nn.Module):
    """Ops that bound the region read a view in the backward pass, of a view of the forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.glu(torch.cat([x, x + 1], -1)).softmax(1)
        return (hidden.cumsum(0) * 0.3).tanh().flip(0).sin().sum()


class Frames(nn.Module):
    """Frames are images of a batch: a row of films is several rows of the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, films: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = self.norm(films.cumsum(1).flatten(0, 1))
        return images.tanh().reshape(films.shape).cumsum(1).square().mean()


class Summed(nn.Module):
    """The gradient is a sum of two values, of which none is laid out as the other: the first one's layout is its."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x + x.max(1, keepdim=True)[0]
        return hidden.transpose(1, 2).tanh().softmax(-1).sin().sum()


class Turned(nn.Module):
    """The backward pass computes a cosine in the region, and multiplies a gradient with it outside."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.down(F.gelu(self.up(x).sin().cumsum(1))), wanted)


def words() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(9, (4, 6))
    labels[0, 2] = -100
    return torch.randint(9, (4, 6)), labels


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.randint(5, (4,))


def numbers(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)


CASES: Mapping[str, Callable[[], Step]] = {
    "language": lambda: (Language(False).double(), words()),
    "with_logits": lambda: (Language(True).double(), words()),
    "shifted": lambda: (Language(True, 0.0).double(), words()),
    "tied": lambda: (Tied().double(), words()),
    "group_norm": lambda: (Images(lambda: nn.GroupNorm(2, 4)).double(), images()),
    "batch_norm": lambda: (Images(lambda: nn.BatchNorm2d(4)).double(), images()),
    "added": lambda: (Added().double(), numbers((2, 6, 6))),
    "contrast": lambda: (Contrast().double(), numbers((5, 6), (5, 5))),
    "dropping": lambda: (Dropping().double(), numbers((6, 6), (6, 6))),
    "squared": lambda: (Squared().double(), numbers((6, 6))),
    "indexed": lambda: (Indexed().double(), numbers((4, 4, 6), (4, 4, 6))),
    "turned": lambda: (Turned().double(), numbers((4, 4, 6), (4, 4, 6))),
    "frames": lambda: (Frames().double(), numbers((4, 2, 4, 5))),
    "summed": lambda: (Summed(), (numbers((4, 4, 6))[0].requires_grad_(),)),
    "flipped": lambda: (Flipped(), (numbers((4, 4, 6))[0].requires_grad_(),)),
}


class _Seen(BaseException):
    """Ends a capture."""


def captured_of(step: Step) -> Captured:
    """Return what torch captures of a call, rewritten, with the tensors of the call."""
    found: list[Captured] = []

    def divide(captured: Captured) -> Any:
        found.append(rewritten(captured))
        raise _Seen

    torch._dynamo.reset()
    with suppress(_Seen):
        compiled(step[0], divide)(*step[1])
    return found[0]


def outcome(captured: Captured) -> list[torch.Tensor]:
    """Return what a joint graph makes, and what it leaves in its inputs."""
    torch.manual_seed(0)
    given: list[Any] = [primal.value for primal in captured.primals]
    given += [torch.randn(node.meta["val"].shape, dtype=torch.float64) for node in tangents_of(captured.module.graph)]
    given = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in given]
    with torch.no_grad():
        made = pytree.tree_leaves(fx.Interpreter(captured.module).run(*given))
    return [value for value in (*made, *given) if isinstance(value, torch.Tensor)]


def cuts_of(captured: Captured) -> Iterator[dict[str, Split]]:
    """Yield cuts around ops all over a graph."""
    ops, _ = row_ops(captured.module.graph)
    for place, op in enumerate(ops[:: max(1, len(ops) // 7)]):
        yield {op.name: Split(2 + place % 2, wide=place % 3 > 0, again=place % 4 == 0)}


@pytest.mark.parametrize("name", CASES)
def test_a_step_in_parts_computes_the_same(name: str) -> None:
    torch.manual_seed(1)
    captured = captured_of(CASES[name]())
    wanted, tried = outcome(captured), 0
    for cuts in cuts_of(captured):
        try:
            in_parts = split(captured, cuts)
        except UsageError:
            continue
        made = outcome(in_parts)
        for one, other in zip(made, wanted, strict=True):
            assert one.stride() == other.stride(), cuts
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10, msg=f"{cuts} {one} {other}")
        graph = graph_of(Joint.of(in_parts), "step")
        simulate(graph, plain_run(graph))
        tried += 1
    assert tried > 2


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("indexed", "_scaled_dot_product_flash_attention_for_cpu_backward"),
        ("flipped", "_softmax"),
        ("turned", "gelu_backward"),
    ],
)
@pytest.mark.parametrize("cut", ["2", "3,wide", "4,again", "2,wide,again"])
def test_what_leaves_a_region_is_whole_and_scaled_once_if_it_is_a_gradient(name: str, seed: str, cut: str) -> None:
    torch.manual_seed(1)
    captured = captured_of(CASES[name]())
    in_parts = split(captured, {seed: Split.parse(cut)})
    for one, other in zip(outcome(in_parts), outcome(captured), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_what_a_kernel_takes_for_contiguous_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # The mean and the deviation of each token, which a part usually makes itself, are made for all at once.
    monkeypatch.delitem(axes._RULES, "native_layer_norm")
    torch.manual_seed(1)
    captured = captured_of((Added().double(), numbers((2, 6, 6))))
    in_parts = split(captured, {"native_layer_norm_backward": Split(3)})
    assert [node for node in in_parts.module.graph.nodes if node.name.startswith("getitem_1_slice")]
    for one, other in zip(outcome(in_parts), outcome(captured), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("batch", [1, 4])
def test_shifted_labels_leave_the_rows_of_all_tokens(batch: int) -> None:
    tokens, labels = words()
    captured = captured_of((Language(False, 0.0).double(), (tokens[:batch], labels[:batch])))
    wanted = outcome(captured)
    in_parts = split(captured, {"_log_softmax_backward_data": Split(6 * batch)})  # rows of the batch alone are fewer
    for one, other in zip(outcome(in_parts), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    shapes = [tuple(node.meta["val"].shape) for node in in_parts.module.graph.nodes if "slice" in node.name]
    assert (batch, 5, 11) not in shapes
    assert (batch, 6, 11) not in shapes


def test_shifted_scores_may_be_cast_after_the_slice() -> None:
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 11, dtype=torch.bfloat16)

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            scores = self.head(self.embed(tokens).bfloat16())[:, :-1]
            return F.cross_entropy(scores.reshape(-1, 11).double(), labels[:, 1:].reshape(-1))

    captured = captured_of((Halved(), words()))
    in_parts = split(captured, {"_log_softmax_backward_data": Split(8)})
    for one, other in zip(outcome(in_parts), outcome(captured), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    assert not any("slice_backward" in node.name for node in in_parts.module.graph.nodes)


def test_scores_that_another_loss_reads_keep_their_slice() -> None:
    captured = captured_of(CASES["language"]())  # smoothed labels
    in_parts = split(captured, {"_log_softmax_backward_data": Split(2)})
    assert any("slice_backward" in node.name for node in in_parts.module.graph.nodes)


def test_two_regions_are_split_one_after_the_other() -> None:
    captured = captured_of(CASES["language"]())
    ops = [op.name for op in row_ops(captured.module.graph)[0]]
    cuts = {next(name for name in ops if "gelu" in name): Split(2), "_log_softmax": Split(3)}
    in_parts = split(captured, cuts)
    names = {node.name for node in in_parts.module.graph.nodes}
    assert {"_log_softmax_part2", "gelu_part1"} <= names
    for one, other in zip(outcome(in_parts), outcome(captured), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_gradients_of_a_head_are_made_at_once_unless_again_is_asked_for() -> None:
    captured = captured_of(CASES["language"]())
    cuts = (Split(2, wide=True, again=again) for again in (False, True))
    at_once, again = (split(captured, {"_log_softmax": cut}) for cut in cuts)
    passes = []
    for in_parts in (at_once, again):
        (node,) = (n for n in in_parts.module.graph.nodes if n.name == "_log_softmax_backward_data_part1")
        passes.append(node.meta["partitioner_tag"])
    assert passes == ["is_forward", "is_backward"]


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ({"nothing": Split(2)}, "there is no op 'nothing'"),
        ({"_native_batch_norm_legit_functional": Split(2)}, "each of its results depends on all that it reads"),
        ({"relu": Split(5)}, "cannot be split in 5 parts: its region has 4 rows"),
    ],
)
def test_what_cannot_be_split_is_refused(cut: dict[str, Split], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(captured_of(CASES["batch_norm"]()), cut)


def test_what_is_written_in_place_takes_the_time_of_its_part_alone() -> None:
    joint = Joint.of(split(captured_of(CASES["with_logits"]()), {"mm": Split(2, again=True)}))
    sizes = {op.name: op for op in joint.ops}
    operator = operators_of(joint)["mm_rows1"]
    (whole,) = sizes["mm_rows1"].makes
    (part,) = (value.bytes for value in operator.inputs if value is not None)
    assert part < 0.6 * whole.bytes
    measured: dict[str, tuple[int, int]] = {}
    found = measure_once(joint, "cpu", measured)
    assert any(kind.endswith("in place") for kind in measured)

    assert found.workspace_bytes["mm_rows1"] == 0


def test_gradients_of_a_tied_weight_are_added_up_in_place() -> None:
    joint = Joint.of(split(captured_of(CASES["tied"]()), {"mm": Split(2)}))
    graph = graph_of(joint, "tied")
    weight = max(tensor.bytes for tensor in graph.tensors.values() if tensor.name in graph.outputs)
    sums = [op for op in graph.ops if op.name.startswith("add") and op.outputs[0] in graph.outputs]
    assert any(op.inplace is not None and graph.tensors[op.outputs[0]].bytes == weight for op in sums)


def test_what_the_forward_pass_hands_over_is_not_written_over() -> None:
    joint = Joint.of(split(captured_of(CASES["language"]()), {"_log_softmax": Split(2, wide=True)}))
    made = {storage: op.phase for op in joint.ops for storage in op.makes}
    assert any(op.name.endswith("_scaled") for op in joint.ops)
    assert all(op.inplace is None or made[op.inplace] is op.phase for op in joint.ops)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_holds_no_memory_of_its_entries(loss: Callable[..., torch.Tensor], reduction: str) -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 32)

        def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return loss(self.head(x), wanted, reduction=reduction)

    captured = captured_of((Head().double(), numbers((8, 3), (8, 32))))
    name = next(op.name for op in row_ops(captured.module.graph)[0] if "loss" in op.name and "backward" not in op.name)
    (made, *gradients), (wanted, *others) = outcome(split(captured, {name: Split(2)})), outcome(captured)
    assert made.untyped_storage().nbytes() == 8
    for one, other in zip((made, *gradients), (wanted, *others), strict=True):
        torch.testing.assert_close(one, other)


def test_an_empty_part_of_a_cat_has_no_rows() -> None:
    def joined(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.empty(0), x], -2)  # as caches of keys and values begin

    graph = make_fx(joined, tracing_mode="fake")(torch.randn(4, 6, 5)).graph
    cat = next(node for node in graph.nodes if node.op == "call_function" and "cat" in str(node.target))
    assert axes_of(cat) == ()
