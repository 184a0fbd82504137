"""Rows of the trial: each builds a model, plans it, and holds what it sees against what was predicted."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from remat_cli.errors import RematError
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.joint_capture import compiled, seen_by
from remat_cli.pytorch.capture.ops import short_name
from remat_cli.pytorch.memory.live import bytes_in
from remat_cli.pytorch.memory.measure import measure_once
from remat_cli.pytorch.memory.transfers import COPIES
from remat_cli.pytorch.plan.record import PlanRecord, waited
from remat_cli.pytorch.plan.region_record import RegionsRecord
from remat_cli.torch import plan_of, planned
from remat_cli.units import format_bytes, format_share
from tests.bench.gpu.models import KINDS, Kind, inputs_of
from tests.bench.gpu.overlap import hidden_share, profiled
from tests.bench.gpu.place import Call, Place, Training
from tests.bench.gpu.table import Line, beside_eager
from tests.bench.torch_execution import share_off

SIX = ("llama", "vit", "unet", "resnet", "lstm", "gpt by blocks")
BUDGETS = ("70%", "50%", "min", "100%")
_WARM_UP = 2  # steps: the first steps of a planned model are measured, and reset what the allocator counts
_LINK_BYTES = 2**28


@dataclass(frozen=True)
class Row:
    """A row of the trial.

    Attributes:
        name: for the table.
        run: finds its line.
        alone: it tells times, which what runs beside it would spoil.
    """

    name: str
    run: Callable[[Place], Line]
    alone: bool = False

    def line(self, place: Place) -> Line:
        """Return what the row finds, or how remat refuses it."""
        began = perf_counter()
        try:
            found = self.run(place)
        except RematError as refusal:
            found = Line("", refused=" ".join(str(refusal).split()))
        return replace(found, row=self.name, seconds=perf_counter() - began).judged()


def rows() -> list[Row]:
    """Return all rows, the most telling ones first."""
    return [*_first_rows(), *_other_rows()]


def _first_rows() -> Iterator[Row]:
    yield from (_memory_row(name, "70%") for name in SIX)
    yield _beside_row("llama", "checkpoints of all blocks", partial(_with_checkpoints, every=1))
    yield Row("llama at 50%, offloading", partial(offloading, "llama", "50%"), alone=True)
    yield _compiled_row("llama", None)
    yield Row("gpt, lengths that change", lengths)
    yield Row("gpt, gradients accumulated", accumulated)
    yield Row("gpt by blocks, FSDP2", sharded)


def _other_rows() -> Iterator[Row]:
    yield from (_memory_row(name, budget) for budget in BUDGETS[1:] for name in SIX)
    yield Row("gpt, CUDA graphs", cuda_graphs)
    for name in ("llama", "unet"):
        yield Row(f"{name}, kernels measured", partial(kernels, name), alone=True)
    yield _beside_row("llama", "checkpoints of every second block", partial(_with_checkpoints, every=2))
    yield _beside_row("llama", "activation_memory_budget 0.5", partial(_within_share, share=0.5))
    yield _compiled_row("llama", 0.5)
    yield Row("unet at 50%, offloading", partial(offloading, "unet", "50%"), alone=True)
    for name in ("vit", "gpt"):
        yield _beside_row(name, "checkpoints of all blocks", partial(_with_checkpoints, every=1))
    yield _compiled_row("gpt", None)


def _memory_row(name: str, budget: str) -> Row:
    return Row(f"{name} at {budget}", partial(memory, name, budget))


def _beside_row(name: str, label: str, other: Callable[[nn.Module], Call]) -> Row:
    return Row(f"{name} beside {label}", partial(beside, name, other), alone=True)


def _compiled_row(name: str, share: float | None) -> Row:
    label = "" if share is None else f", activation_memory_budget {share:g}"
    other = partial(_compiled, share=share)
    return Row(f"{name}, Triton's kernels beside torch.compile{label}", partial(beside, name, other, fused=True), True)


def memory(name: str, budget: str, place: Place) -> Line:
    """Train a model for some steps as it is, and as planned: results and peaks."""
    training = place.training(KINDS[name])
    optimizer = training.with_optimizer()
    eager, again = training.results(), training.results()
    peak = training.peak()
    planned(training.model, budget=budget, optimizer=optimizer, **_options(place, training.kind))
    return _of_planned(training, eager, again, Line("", other_peak=peak.allocated))


def _of_planned(training: Training, eager: Any, again: Any, line: Line) -> Line:
    """Fill in a line what a planned model comes to.

    Args:
        training: has the planned model.
        eager: results without the plan.
        again: the same once more.
        line: what is known already.
    """
    found = training.results()
    own, plan = share_off(eager, again), share_off(eager, found)
    for _ in range(_WARM_UP):
        training.step()
    peak = training.peak()
    record = plan_of(training.model)
    predicted, budget, overhead = _predicted(record)
    words, faults = beside_eager(plan, own, narrow=training.kind.narrow)
    says = f"{format_share(overhead)} more time predicted; the first call waited {waited(record.waited_ns)}"
    return replace(
        line,
        budget=budget,
        predicted=predicted,
        allocated=peak.allocated,
        reserved=peak.reserved,
        results=words,
        says="; ".join(filter(None, [line.says, says])),
        faults=faults,
    )


def _predicted(record: PlanRecord) -> tuple[int, int | None, float]:
    """Return the predicted peak of a planned step, its budget and its predicted overhead.

    A record by blocks has those of the whole step.
    """
    of: Any = record if isinstance(record, RegionsRecord) else record.last
    return of.predicted_peak_bytes, of.budget_bytes, of.overhead


def _options(place: Place, kind: Kind | None = None) -> Mapping[str, Any]:
    limit = {"options": {"work_limit": 0.3, "time_limit": 60}} if place.small else {}
    return {**limit, **((kind and kind.options) or {})}


def beside(name: str, other: Callable[[nn.Module], Call], place: Place, *, fused: bool = False) -> Line:
    """Hold a plan against another way to save memory, at its peak: the times of both, and of eager.

    Args:
        name: of the kind of model.
        other: makes what is called in the place of a model.
        place: where.
        fused: the plan runs compiled kernels.
    """
    training = place.training(KINDS[name])
    theirs, ours = (replace(training, model=copy.deepcopy(training.model)) for _ in range(2))
    their_call = other(theirs.model)
    theirs.step(their_call)
    theirs.step(their_call)
    their_peak = theirs.peak(their_call)
    theirs.model.zero_grad(set_to_none=True)
    fixed = bytes_in([*ours.model.parameters(), *ours.model.buffers(), *ours.inputs])
    budget = fixed + their_peak.allocated - their_peak.before
    planned(ours.model, budget=budget, fused=fused, **_options(place))
    for _ in range(3 + _WARM_UP):
        ours.step()
    peak = ours.peak()
    predicted, _, overhead = _predicted(plan_of(ours.model))
    times = place.milliseconds({"eager": training.step, "theirs": lambda: theirs.step(their_call), "plan": ours.step})
    eager, found = training.results(), ours.results()
    words, faults = beside_eager(share_off(eager, found), 0.0, narrow=fused or training.kind.narrow)
    return Line(
        "",
        budget=budget,
        other_peak=budget,
        predicted=predicted,
        allocated=fixed + peak.allocated - peak.before,
        reserved=peak.reserved,
        results=words,
        eager_ms=times["eager"],
        other_ms=times["theirs"],
        plan_ms=times["plan"],
        says=f"{format_share(overhead)} more time predicted",
        faults=faults,
    )


def _with_checkpoints(model: nn.Module, every: int) -> Call:
    blocks: Any = model.blocks
    for block in list(blocks)[::every]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return model


def _within_share(model: nn.Module, share: float) -> Call:
    """Return a model's call as torch divides it by a share of memory, with eager's kernels."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    compilers: Any = {"fw_compiler": boxed_nop, "bw_compiler": boxed_nop}
    backend = aot_autograd(**compilers, partition_fn=min_cut_rematerialization_partition)
    return _patched(torch.compile(model, backend=backend, dynamic=False), share)


def _compiled(model: nn.Module, share: float | None) -> Call:
    call = torch.compile(model, dynamic=False)
    return call if share is None else _patched(call, share)


def _patched(call: Call, share: float) -> Call:
    def patched(*args: Any) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=share):
            return call(*args)

    return patched


def offloading(name: str, budget: str, place: Place) -> Line:
    """Train a model that is planned with the link to the host: results, peak, and whether copies are hidden."""
    training = place.training(KINDS[name])
    optimizer = training.with_optimizer()
    eager, again = training.results(), training.results()
    peak, link = training.peak(), _link_bytes_per_second(place)
    options = {**_options(place), "offload": True, "link_bandwidth": link}
    planned(training.model, budget=budget, optimizer=optimizer, **options)
    line = _of_planned(training, eager, again, Line("", other_peak=peak.allocated))
    record = plan_of(training.model)
    moves = Counter(type(step).__name__ for step in record.graphs[-1].schedule.steps)
    pool = COPIES[place.device].memory
    before = pool.free_bytes()
    training.step()
    place.synchronize()
    more = pool.free_bytes() - before
    says = [
        f"link {format_bytes(int(link))}/s, {moves['Offload']} tensors out, {moves['Prefetch']} back",
        f"{format_bytes(before)} of the host in the pool" + (f", {format_bytes(more)} more each step" if more else ""),
    ]
    faults = list(line.faults)
    if more:
        faults.append("host memory is not used again")
    if place.device == "cuda":
        copies, computed, pinned = profiled(training.step)
        share = hidden_share(copies, computed)
        says.append("no copies" if share is None else f"{format_share(share)} of the copies' time beside kernels")
        if not pinned:
            faults.append("copies between the GPU and pageable memory")
    return replace(line, says="; ".join([line.says, *says]), faults=tuple(faults))


def _link_bytes_per_second(place: Place) -> float:
    """Return how fast copies to the host and back are, the slower of both."""
    if place.device != "cuda":
        return 2e9
    on_device = torch.empty(_LINK_BYTES, dtype=torch.uint8, device="cuda")
    on_host = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    times = place.milliseconds(
        {
            "out": lambda: on_host.copy_(on_device, non_blocking=True),
            "back": lambda: on_device.copy_(on_host, non_blocking=True),
        }
    )
    return 1e3 * _LINK_BYTES / max(times.values())


def lengths(place: Place) -> Line:
    """Train on texts of several lengths: results of each, plans, and the peak of the longest."""
    kind = KINDS["gpt"]
    longest = place.sizes(kind)["length"]
    eighths = (4, 8) if place.small else (4, 8, 6, 5, 7, 8)
    tried = [share * longest // 8 for share in eighths]
    eager = place.training(kind)
    eager.step()
    other = eager.peak()
    fixed = bytes_in([*eager.model.parameters(), *eager.inputs])
    ours = replace(eager, model=copy.deepcopy(eager.model))
    ours.model.zero_grad(set_to_none=True)
    budget = fixed + 4 * (other.allocated - other.before) // 5
    planned(ours.model, budget=budget, **_options(place))
    worst = 0.0
    for length in tried:
        inputs = inputs_of({**place.sizes(kind), "length": length}, place.device, seed=length)
        both = [replace(training, inputs=inputs).results(steps=1) for training in (eager, ours)]
        worst = max(worst, share_off(*both))
    for _ in range(_WARM_UP):
        ours.step()
    eager.model.zero_grad(set_to_none=True)
    peak = ours.peak()
    record = plan_of(ours.model)
    words, faults = beside_eager(worst, 0.0, narrow=kind.narrow)
    last, allocated = record.last, fixed + peak.allocated - peak.before
    assert last is not None
    # A plan that is carried over has the workspaces of larger sizes: its peak may be above by the largest one.
    most = max(op.workspace_bytes for op in last.graph.ops)
    above = max(0, last.predicted_peak_bytes - allocated)
    return Line(
        "",
        budget=budget,
        other_peak=fixed + other.allocated - other.before,
        predicted=last.predicted_peak_bytes - min(most, above),
        allocated=allocated,
        reserved=peak.reserved,
        results=words,
        says=f"{len(set(tried))} lengths, {len(record.graphs)} plans; calls waited {waited(record.waited_ns)}",
        faults=faults,
    )


def accumulated(place: Place) -> Line:
    """Train with gradients of two calls added up: results, and the peak of the second call."""
    kind = KINDS["gpt"]
    training = place.training(kind)
    training.with_optimizer()
    second = inputs_of(place.sizes(kind), place.device, seed=2)

    def step(call: Call | None = None) -> torch.Tensor:
        training.loss(call)
        return training.loss(call, second)

    def gradients() -> dict[str, torch.Tensor]:
        training.reset()
        step()
        return training.gradients()

    def peak() -> Any:
        training.model.zero_grad(set_to_none=True)
        training.loss()
        return place.peak(lambda: training.loss(None, second), training.there)

    eager, again, other = gradients(), gradients(), peak()
    planned(training.model, budget="70%", accumulate=True, **_options(place))
    found = gradients()
    for _ in range(_WARM_UP):
        training.model.zero_grad(set_to_none=True)
        step()
    measured = peak()
    predicted, budget, overhead = _predicted(plan_of(training.model))
    words, faults = beside_eager(share_off(eager, found), share_off(eager, again), narrow=kind.narrow)
    return Line(
        "",
        budget=budget,
        other_peak=other.allocated,
        predicted=predicted,
        allocated=measured.allocated,
        reserved=measured.reserved,
        results=words,
        says=f"{format_share(overhead)} more time predicted",
        faults=faults,
    )


def sharded(place: Place) -> Line:
    """Train a model that FSDP2 shards, on one rank, planned by blocks: results and peak."""
    kind = KINDS["gpt by blocks"]
    eager = place.training(kind)
    eager.with_optimizer()
    results, again = eager.results(), eager.results()
    del eager
    backend = "nccl" if place.device == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        training = place.training(kind)
        blocks: Any = training.model.blocks
        for block in blocks:
            fully_shard(block)
        fully_shard(training.model)
        optimizer = training.with_optimizer()
        training.results()
        peak = training.peak()
        planned(training.model, budget="80%", optimizer=optimizer, **_options(place, kind))
        return _of_planned(training, results, again, Line("", other_peak=peak.allocated, says=f"one rank, {backend}"))
    finally:
        dist.destroy_process_group()


def cuda_graphs(place: Place) -> Line:
    """Record a planned step as a CUDA graph and replay it: results beside those of a call, or why it is refused."""
    if place.device != "cuda":
        return Line("", refused="the CPU has no CUDA graphs")
    training = place.training(KINDS["llama"])
    planned(training.model, budget="70%", **_options(place))
    for _ in range(3 + _WARM_UP):
        training.step()
    expected = {"loss": training.step().cpu(), **training.gradients()}
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        training.step()
    torch.cuda.current_stream().wait_stream(side)
    training.model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            loss = training.loss()
    except RuntimeError as error:
        return Line("", refused=str(error).splitlines()[0])
    graph.replay()
    torch.cuda.synchronize()
    words, faults = beside_eager(share_off(expected, {"loss": loss.cpu(), **training.gradients()}), 0.0, narrow=True)
    return Line("", results=words, says="recorded, and replayed once", faults=faults)


_FAMILIES = {"convolutions": "convolution", "matrix products": "mm", "attention": "attention"}


def kernels(name: str, place: Place) -> Line:
    """Measure the kernels of a model twice: how long it takes, and the workspace of the libraries' kernels."""
    training = place.training(KINDS[name])

    def step(*inputs: torch.Tensor) -> Any:
        with training.cast():
            return training.model(*inputs)

    captured = seen_by(lambda look: compiled(step, look)(*training.inputs))
    assert captured is not None
    joint = Joint.of(captured)
    found = []
    seconds = []
    for _ in range(2):
        began = perf_counter()
        found.append(measure_once(joint, place.device, {}))
        seconds.append(perf_counter() - began)
    times = place.milliseconds({"eager": training.step})
    says = [f"measured in {seconds[0]:.1f} s, again in {seconds[1]:.1f} s"]
    says.append(f"times of all ops {sum(found[1].times_ns.values()) / 1e6:.1f} ms")
    kinds = {op.name: short_name(op.node) for op in joint.ops if op.node is not None}
    for family, part in _FAMILIES.items():
        of_family = [op for op, kind in kinds.items() if part in kind]
        predicted, again = (max((one.workspace_bytes.get(op, 0) for op in of_family), default=0) for one in found)
        if of_family:
            says.append(f"workspace of {family}: {format_bytes(predicted)} predicted, {format_bytes(again)} again")
    return Line("", eager_ms=times["eager"], says="; ".join(says))
