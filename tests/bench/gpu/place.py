"""Where the trial runs: steps of a model there, what is in memory at their peak, and how long they last."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import nn

from remat_cli.pytorch.capture.optimizer import kept_state
from remat_cli.pytorch.memory.live import bytes_in
from remat_cli.pytorch.memory.memory import allocations_of
from remat_cli.pytorch.unstable.tensors import local_part
from tests.bench.gpu.models import Kind, Sizes, built, inputs_of

Call = Callable[..., Any]


@dataclass(frozen=True)
class Peak:
    """The most bytes in memory at one time, with all that was there before.

    Attributes:
        allocated: by tensors and workspaces.
        reserved: by the allocator on the device; None on the CPU.
        before: what was there before.
    """

    allocated: int
    reserved: int | None
    before: int


@dataclass(frozen=True)
class Place:
    """A kind of device, "cuda" or "cpu", and whether models are small there."""

    device: str
    small: bool

    def sizes(self, kind: Kind) -> Sizes:
        """Return the sizes of a model here."""
        return kind.small if self.small else kind.sizes

    def training(self, kind: Kind) -> Training:
        """Build a model, its inputs and what is compared afterwards."""
        sizes = self.sizes(kind)
        model = built(kind, sizes, self.device)
        return Training(self, kind, model, inputs_of(sizes, self.device))

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued to it."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def name(self) -> str:
        """Return the name of the device, for people."""
        return torch.cuda.get_device_name() if self.device == "cuda" else "the CPU"

    def peak(self, call: Callable[[], object], there: Callable[[], int]) -> Peak:
        """Call, and return the peak.

        Args:
            call: what is measured, once.
            there: tells the bytes that are in memory; it is asked where the device cannot tell.
        """
        gc.collect()
        if self.device != "cuda":
            before = there()
            return Peak(before + allocations_of(call).peak, None, before)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), before)

    def milliseconds(self, calls: Mapping[str, Callable[[], object]], turns: int | None = None) -> dict[str, float]:
        """Return the median time of each call, which run by turns; each runs twice before that."""
        for call in calls.values():
            call()
            call()
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(turns or (2 if self.small else 9)):
            for name, call in calls.items():
                times[name].append(self._timed(call))
        return {name: median(of_call) for name, of_call in times.items()}

    def _timed(self, call: Callable[[], object]) -> float:
        if self.device != "cuda":
            began = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - began)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))


Values = dict[str, torch.Tensor]


@dataclass
class Training:
    """A model that trains.

    Attributes:
        place: where.
        kind: of the model.
        model: is called, and has the gradients.
        inputs: of the model.
        optimizer: steps after each backward pass; None where no step of it is part of the trial.
    """

    place: Place
    kind: Kind
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    optimizer: torch.optim.Optimizer | None = None
    _weights: Values = field(init=False)

    def __post_init__(self) -> None:
        self._weights = {name: value.cpu().clone() for name, value in self.model.state_dict().items()}

    def with_optimizer(self) -> torch.optim.Optimizer:
        """Have a new optimizer step after each backward pass; return it."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        return self.optimizer

    def cast(self) -> AbstractContextManager[Any]:
        """Return the context in which the model is called."""
        return torch.autocast(self.place.device, torch.bfloat16) if self.kind.narrow else nullcontext()

    def there(self) -> int:
        """Return the bytes of what is in memory between steps."""
        values = [*self.model.parameters(), *self.model.buffers(), *self.inputs]
        values += [part.grad for part in self.model.parameters() if part.grad is not None]
        return bytes_in([*values, *(kept_state(self.optimizer) if self.optimizer is not None else [])])

    def loss(self, call: Call | None = None, inputs: Sequence[torch.Tensor] | None = None) -> torch.Tensor:
        """Run the forward and the backward pass; return the loss.

        Args:
            call: is called in the place of the model.
            inputs: of it, others than those of the training.
        """
        with self.cast():
            made = (self.model if call is None else call)(*(self.inputs if inputs is None else inputs))
        loss: torch.Tensor = made[0] if isinstance(made, tuple) else made
        torch.autograd.backward([loss])
        return loss.detach()

    def step(self, call: Call | None = None) -> torch.Tensor:
        """Run a whole step, from gradients that are not there to the optimizer's step; return the loss."""
        self.model.zero_grad(set_to_none=True)
        loss = self.loss(call)
        if self.optimizer is not None:
            self.optimizer.step()
        return loss

    def reset(self) -> None:
        """Put weights, optimizer and random numbers back to where they began; drop gradients."""
        self.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                local_part(value).copy_(self._weights[name])
            for state in self.optimizer.state.values() if self.optimizer is not None else []:
                for value in state.values():
                    local_part(value).zero_()
        torch.manual_seed(1)

    def results(self, call: Call | None = None, steps: int = 3) -> Values:
        """Return what steps come to, from the same state: loss, gradients and buffers of the first; the last loss."""
        self.reset()
        first = self.step(call)
        found = {"loss first": first.cpu()}
        found |= self.gradients()
        found |= {f"buffer {name}": buffer.cpu().clone() for name, buffer in self.model.named_buffers()}
        for _ in range(steps - 1):
            found["loss last"] = self.step(call).cpu()
        return found

    def gradients(self) -> Values:
        """Return copies of the gradients that are there."""
        grads = {f"gradient {name}": part.grad for name, part in self.model.named_parameters()}
        return {name: local_part(grad).cpu().clone() for name, grad in grads.items() if grad is not None}

    def peak(self, call: Call | None = None) -> Peak:
        """Return the peak of a whole step; state of the optimizer is there."""
        self.model.zero_grad(set_to_none=True)
        return self.place.peak(lambda: self.step(call), self.there)
