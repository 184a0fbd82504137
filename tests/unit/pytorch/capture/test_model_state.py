"""What a trial run writes into modules is put back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from remat_cli.pytorch.capture.model_state import ModelState


class Cache:
    """Holds tensors, as caches of keys and values do."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []


class Held(nn.Module):
    """Holds what modules hold: parameters, buffers, tensors, lists, dicts and objects."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.mask: torch.Tensor | None = None
        self.count = torch.zeros(2)
        self.seen: dict[str, Any] = {"sizes": [1], "names": {"a"}}
        self.cache = Cache()


def test_all_that_is_written_is_put_back() -> None:
    model = Held()
    before = ModelState([model])
    model.norm(torch.randn(8, 4))
    model.mask = torch.ones(3)
    model.count.add_(1)
    model.seen["sizes"].append(2)
    model.seen["names"].add("b")
    model.seen["more"] = 1
    model.cache.values.append(torch.ones(1))
    model.later = nn.Linear(2, 2)
    model.train(False)
    before.restore()
    assert model.mask is None
    assert model.count.tolist() == [0, 0]
    assert model.seen == {"sizes": [1], "names": {"a"}}
    assert model.cache.values == []
    assert not hasattr(model, "later")
    assert model.training
    assert torch.equal(model.get_buffer("norm.running_mean"), torch.zeros(4))
    assert model.get_buffer("norm.num_batches_tracked") == 0


def test_parameters_stay_as_they_are() -> None:
    model = Held()
    before = ModelState([model])
    with torch.no_grad():
        model.norm.weight.mul_(2)
    before.restore()
    assert model.norm.weight.tolist() == [2] * 4


def test_tensors_without_data_are_found_wherever_they_were_put() -> None:
    fake = FakeTensorMode().from_tensor(torch.ones(2))
    model = Held()
    before = ModelState([model])
    assert not before.has_fakes()
    for put in (
        lambda: setattr(model, "mask", fake),
        lambda: model.seen["sizes"].append(fake),
        lambda: model.cache.values.append(fake),
        lambda: model.register_buffer("late", fake),
    ):
        put()
        assert before.has_fakes()
        before.restore()
        assert not before.has_fakes()
