"""What few blocks of a model tell is what torch's trace of all of them says; where they do not tell, all are traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.pytorch.capture import blocks, reader
from remat_cli.pytorch.capture.joint_capture import Trace
from remat_cli.pytorch.capture.step import as_step
from remat_cli.pytorch.capture.weightless import Weightless
from tests.documents import to_document

BLOCKS = 11  # so that numbers of layers have one digit and two
SIZE = 8

Walk = Callable[["Chain", torch.Tensor], Any]


class Block(nn.Module):
    """A layer of a residual network."""

    def __init__(self, hidden: int = 2, dropout: float = 0.0, scale: float = 1.0, normed: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, hidden), nn.Linear(hidden, SIZE)
        self.norm = nn.BatchNorm1d(SIZE) if normed else nn.Identity()
        self.dropout, self.scale = dropout, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.down(self.up(x)))
        return x + F.dropout(y, self.dropout) * self.scale


class Chain(nn.Module):
    """Blocks that follow each other, in the way that `walk` says."""

    def __init__(self, walk: Walk, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.walk, self.blocks = walk, nn.ModuleList(layers)
        self.gate = nn.Linear(SIZE, SIZE)
        self.register_buffer("seen", torch.zeros(SIZE))
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.walk(self, self.gate(x))
        return y.square().mean()


def in_order(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    for block in chain.blocks:
        x = block(x)
    return x


def backwards(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    """Each block reads what the two before it made, and how many there are."""
    before = x
    for block in reversed(chain.blocks):
        before, x = x, block(x) + before / len(chain.blocks)
    return x


def gated(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    """All blocks read what comes before the first, share a layer, have attention, and change a buffer."""
    start = x
    for block in chain.blocks:
        x = F.scaled_dot_product_attention(*[block(x).view(1, 1, 4, SIZE)] * 3).view(4, SIZE)
        x = x * torch.sigmoid(chain.gate(start))
        chain.seen.add_(x.detach().mean(0))
        x = x + chain.seen
    return x


def dense(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    kept = [x]
    for block in chain.blocks:
        kept.append(block(sum(kept)))
    return kept[-1]


def all_kept(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    kept = []
    for block in chain.blocks:
        x = block(x)
        kept.append(x)
    return torch.stack(kept)


def like_a_u(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    kept = []
    for number, block in enumerate(chain.blocks):
        if number <= BLOCKS // 2:
            kept.append(x)
        x = block(x) + kept[min(number, BLOCKS - number - 1)]
    return x


def one_skip(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    kept = x
    for number, block in enumerate(chain.blocks):
        kept = x if number == 2 else kept
        x = block(x) + (kept if number == 5 else x)
    return x


def windows(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    near, far = torch.ones(SIZE).neg(), torch.ones(SIZE)
    for number, block in enumerate(chain.blocks):
        x = block(x) * (far if number % 6 == 5 else near)
    return x


def less_exact(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    for number, block in enumerate(chain.blocks):
        with torch.autocast("cpu", enabled=number == 5):
            x = block(x)
    return x


def without_gradient(chain: Chain, x: torch.Tensor) -> torch.Tensor:
    for number, block in enumerate(chain.blocks):
        with torch.set_grad_enabled(number != 5):
            x = block(x)
    return x


def chain(walk: Walk = in_order, **different: Callable[[int], Any]) -> Chain:
    return Chain(walk, [Block(**{name: of(number) for name, of in different.items()}) for number in range(BLOCKS)])


def tied(one: int, other: int) -> Chain:
    model = chain()
    model.blocks[other].get_submodule("up").weight = model.blocks[one].get_submodule("up").weight
    return model


def frozen() -> Chain:
    model = chain()
    model.blocks[5].requires_grad_(False)
    return model


def hooked() -> Chain:
    model = chain()
    model.blocks[5].register_forward_hook(lambda block, given, made: made * 2)
    return model


TOLD: dict[str, Callable[[], Chain]] = {
    "backwards": lambda: chain(backwards, dropout=lambda number: 0.1, hidden=lambda number: 2 + (number == BLOCKS - 1)),
    "gated": lambda: chain(gated),
}
DIFFERENT: dict[str, Callable[[], Chain]] = {
    "wider": lambda: chain(hidden=lambda number: 3 if number == 5 else 2),
    "more dropout": lambda: chain(dropout=lambda number: 0.01 * number),
    "scaled by number": lambda: chain(scale=lambda number: 1.0 / (number + 1)),
    "all read by all": lambda: chain(dense),
    "all kept": lambda: chain(all_kept),
    "like a U": lambda: chain(like_a_u),
    "one skip": lambda: chain(one_skip),
    "windows": lambda: chain(windows),
    "less exact": lambda: chain(less_exact),
    "without gradient": lambda: chain(without_gradient),
    "ends are tied": lambda: tied(0, BLOCKS - 1),
    "tied": lambda: tied(2, 5),
    "frozen": frozen,
    "hook": hooked,
}
CASES = TOLD | {"batch norm": lambda: chain(normed=lambda number: True)}


def step(case: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A training step that is read."""
    return list(CASES.values())[case](), (torch.randn(4, SIZE),)


def everything(reading: Reading) -> list[Any]:
    operators = [(name, repr(operator)) for name, operator in reading.operators.items()]
    return [
        to_document(reading.graph),
        [*reading.graph.tensors],
        operators,
        reading.parameters,
        reading.gradients,
        reading.notes,
    ]


@pytest.fixture(name="told")
def reading_by_few(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note for each reading whether few blocks told it."""
    told = []

    def spied(*asked: Any) -> Reading | None:
        reading = blocks.read_by_few(*asked)
        told.append(reading is not None)
        return reading

    monkeypatch.setattr(reader, "read_by_few", spied)
    return told


def read(case: str) -> Reading:
    return reader.read_step(f"{__name__}:step", ReadOptions(dims={"case": list(CASES).index(case)}))


def check_both_ways(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Check that the same is read of all blocks as where few may tell."""
    readings = []
    for share in (blocks.LARGEST_SHARE, 0.3):
        monkeypatch.setattr(blocks, "LARGEST_SHARE", share)
        readings.append(read(case))
    assert everything(readings[0]) == everything(readings[1])


@pytest.fixture(autouse=True)
def few_blocks_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LARGEST_SHARE", 2.5)  # of 7 blocks or more, 15 are traced


@pytest.mark.parametrize("case", TOLD)
def test_equal_blocks_are_told_by_few(monkeypatch: pytest.MonkeyPatch, told: list[bool], case: str) -> None:
    check_both_ways(monkeypatch, case)
    assert told == [True, False]


def test_model_whose_traces_are_on_no_line_is_traced_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, told: list[bool]
) -> None:
    check_both_ways(monkeypatch, "batch norm")
    assert told == [False, False]


def test_lines_that_lead_to_other_inputs_are_not_taken(monkeypatch: pytest.MonkeyPatch, told: list[bool]) -> None:
    def misled(readings: Sequence[Reading], more: int) -> Reading:
        return readings[-1]  # of fewer blocks than the model has

    monkeypatch.setattr(blocks, "followed", misled)
    monkeypatch.setattr(blocks, "_TRACED", (2,))
    read("backwards")
    assert told == [False]


class _Seen(BaseException):
    """Ends a capture."""


def repetition(
    model: nn.Module, given: Callable[[torch.Tensor], torch.Tensor] = lambda value: value
) -> blocks.Repetition | None:
    """Return what repeats in a model, if each of its inputs is what `given` makes of it."""
    seen = []

    def foresee(module: fx.GraphModule, inputs: Sequence[Any], trace: Trace) -> None:
        seen.append(blocks.repetition_of(module.graph, [*map(given, inputs)]))
        raise _Seen

    with pytest.raises(_Seen):
        reader.capture(as_step((model, (torch.randn(4, SIZE),)), "case"), "cpu", "case", foresee)
    return seen[0]


def test_blocks_repeat() -> None:
    with Weightless():
        model = chain()
    found = repetition(model)
    assert found is not None
    assert (found.blocks, [len(own) for own in found.own_inputs]) == (BLOCKS, [4] * BLOCKS)


@pytest.mark.parametrize("case", DIFFERENT)
def test_blocks_that_differ_do_not_repeat(case: str) -> None:
    with Weightless():
        model = DIFFERENT[case]()
    assert repetition(model) is None


@pytest.mark.parametrize(
    "given",
    [
        lambda value: value.to("meta") if value.shape == (4, SIZE) else value,
        lambda value: value.detach() if value.shape == (4, SIZE) else value.to_sparse(),
    ],
    ids=["another device", "not dense"],
)
def test_inputs_of_another_kind_are_no_matter_of_blocks(given: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with Weightless():
        model = chain()
    assert repetition(model, given) is None


def test_inputs_that_share_memory_are_no_matter_of_blocks() -> None:
    shared = torch.zeros(SIZE)
    with Weightless():
        model = chain()
    assert repetition(model, lambda value: shared if value.shape == (SIZE,) else value) is None
