"""Policies for selective checkpoints: what they do to memory, which one is best, and the code that torch runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remat_cli.config import GraphOptions, PlannerChoice, Request
from remat_cli.core.problem import Observer
from remat_cli.errors import ExitCode
from remat_cli.formats.functions import load_function
from remat_cli.formats.reader import ReadOptions
from remat_cli.prepare import prepare_reading
from remat_cli.pytorch.capture.eager import run_eagerly
from remat_cli.pytorch.capture.reader import callable_of, modules_of, take_step
from remat_cli.pytorch.capture.step import as_step
from remat_cli.pytorch.checkpoints import PolicyPlanning, plan_policy
from remat_cli.pytorch.checkpoints.candidates import Candidates
from remat_cli.pytorch.checkpoints.policy_choice import choose_policy
from remat_cli.pytorch.checkpoints.policy_memory import Call, Place, Policy, PolicyMemory, repeated_paths
from remat_cli.pytorch.checkpoints.study import saved_in
from remat_cli.pytorch.checkpoints.words import policy_code
from remat_cli.pytorch.run.execution import StepRuns
from remat_cli.units import parse_budget
from tests.torch_steps import ChangesItsMind, Stages
from tests.unit.pytorch.checkpoints.test_checkpoints import is_as_judged, judged

NOTHING = Policy({}, {})
STAGES, DEEP, CONVS = "tests.torch_steps:stages", "tests.torch_steps:deep_gpt", "tests.torch_steps:silu_in_place"
# Of the generator, which a checkpoint keeps.
STATE_BYTES = torch.get_rng_state().numel()


class Draws(nn.Module):
    """Two draws beside each other: who leaves the first one out in the second run changes the numbers of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 64), nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = torch.native_dropout(self.one(x).tanh(), 0.5, True)[0]
        right = torch.native_dropout(self.other(x).tanh(), 0.5, True)[0]
        mixed: torch.Tensor = (left * right)[:, :16]
        return x + mixed


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Draws(), Draws())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.blocks(x).square().mean()
        return result


def drawing() -> Any:
    return Drawing(), torch.randn(32, 16)


def changing() -> Any:
    """Two blocks of which the first part may run again, and the second not."""
    blocks = [nn.Sequential(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), ChangesItsMind()) for _ in range(2)]
    model = Drawing()
    model.blocks = nn.Sequential(*blocks)
    return model, torch.randn(32, 16)


DRAWING = f"{__name__}:drawing"


@cache
def looked_at(reference: str) -> tuple[Candidates, PolicyMemory]:
    step = run_eagerly(reference, ReadOptions(), looked_at=True)
    graph = prepare_reading(step.reading("step"), reference, GraphOptions()).graph
    candidates = Candidates(step, graph)
    return candidates, PolicyMemory(candidates)


def in_order(memory: PolicyMemory, policy: Policy) -> list[int]:
    """Return the bytes at each op that runs, in order, first or again."""
    peaks = memory.peaks(policy)
    found = []
    for at in sorted(place.at for place in peaks if place.block is None):
        for path in policy.paths:
            block = memory.blocks[path]
            saved = policy.saved[block.candidate.kind]
            again = [number for number, rerun in enumerate(block.reruns) if rerun.call not in saved]
            found += [peaks[Place(at, path, number)] for number in again if block.candidate.asked == at]
        found.append(peaks[Place(at)])
    return found


def drawn(memory: PolicyMemory, generator: random.Random) -> Policy:
    blocks: dict[str, tuple[str, ...]] = {}
    for path, block in memory.blocks.items():
        around = {outer for pair in memory.nested if path in pair for outer in pair}
        if generator.random() < 0.7 and around.isdisjoint(path for paths in blocks.values() for path in paths):
            blocks[block.candidate.kind] = (*blocks.get(block.candidate.kind, ()), path)
    share = generator.random()
    return Policy(
        blocks,
        {kind: frozenset(call for call in memory.calls[kind] if generator.random() < share) for kind in blocks},
    )


@pytest.mark.parametrize("reference", [STAGES, DEEP, CONVS, DRAWING])
def test_memory_and_time_of_a_policy_are_those_of_torch_with_it(reference: str) -> None:
    memory, generator = looked_at(reference)[1], random.Random(0)
    plain, plain_time = judged(reference, ())
    assert memory.peak(NOTHING) == max(used for _, used in plain)
    seen = set()
    for _ in range(3 if reference == DEEP else 5):
        policy = drawn(memory, generator)
        ran, time = judged(reference, policy.paths, saved=saved_in(policy))
        told = in_order(memory, policy)
        assert all(is_as_judged(used, at, kind) for (kind, used), at in zip(ran, told, strict=True))
        assert memory.peak(policy) == max(told)
        assert time == plain_time + memory.time(policy)
        seen.add(memory.peak(policy))
    assert len(seen) > 1


@pytest.mark.parametrize("reference", [STAGES, DEEP, CONVS, DRAWING])
def test_terms_of_the_solver_add_up_to_the_memory_of_a_policy(reference: str) -> None:
    memory, generator = looked_at(reference)[1], random.Random(1)
    for _ in range(3):
        policy = drawn(memory, generator)
        wrapped = set(policy.paths)

        def is_saved(path: str, call: Call, policy: Policy = policy) -> bool:
            return call in policy.saved.get(memory.blocks[path].candidate.kind, ())

        for place, used in memory.peaks(policy).items():
            terms = memory.terms(place)
            total = terms.constant
            for held, size in terms.held.items():
                is_kept = any(wrapped.isdisjoint(group) for group in held.unless) or bool(wrapped & held.where)
                is_kept = is_kept or any(path in wrapped and is_saved(path, call) for path, call in held.saved)
                total += size if is_kept else 0
            again = ((path, call) for path, call in terms.rerun if path in wrapped and not is_saved(path, call))
            total += sum(terms.rerun[key] for key in again)
            total += sum(size for call, size in terms.saved.items() if is_saved(place.block or "", call))
            assert total == used, place


def policies(memory: PolicyMemory) -> Iterator[Policy]:
    (kind,) = memory.calls
    for chosen in product((False, True), repeat=len(memory.blocks)):
        blocks = {kind: tuple(path for path, take in zip(memory.blocks, chosen, strict=True) if take)}
        for saved in product((False, True), repeat=len(memory.calls[kind])):
            calls = frozenset(call for call, take in zip(memory.calls[kind], saved, strict=True) if take)
            policy = Policy(blocks, {kind: calls})
            if all(draws_the_same(memory, path, calls) for path in blocks[kind]):
                yield policy


def draws_the_same(memory: PolicyMemory, path: str, saved: frozenset[tuple[str, int]]) -> bool:
    left_out = [rerun.call in saved for rerun in memory.blocks[path].reruns if rerun.is_random]
    return left_out == sorted(left_out)


@pytest.mark.parametrize("reference", [CONVS, DRAWING])
def test_choice_is_the_best_of_all_policies(reference: str) -> None:
    memory = looked_at(reference)[1]
    known = [(memory.peak(policy), memory.time(policy)) for policy in policies(memory)]
    low, high = min(peak for peak, _ in known), memory.peak(NOTHING)
    assert choose_policy(memory, None).peak == low < high
    for share in (0.0, 0.2, 0.5, 0.8, 0.95):
        budget = low + int(share * (high - low))
        found = choose_policy(memory, budget)
        assert found.policy is not None
        assert found.proven
        assert memory.peak(found.policy) == found.peak <= budget
        best = min(took for peak, took in known if peak <= budget)
        assert memory.time(found.policy) == best == found.least_time
    assert choose_policy(memory, high).policy == NOTHING
    none = choose_policy(memory, low - 1)
    assert (none.policy, none.proven) == (None, True)


def test_policy_takes_no_more_time_than_whole_blocks() -> None:
    candidates, memory = looked_at(DEEP)
    modules = PolicyMemory(candidates, saves=False)
    low, high = choose_policy(memory, None).peak, memory.peak(NOTHING)
    less = 0
    for share in (0.1, 0.4, 0.6, 0.9):
        budget = low + int(share * (high - low))
        policy, whole = (choose_policy(each, budget).policy for each in (memory, modules))
        assert policy is not None
        assert whole is not None
        assert memory.time(policy) <= modules.time(whole)
        less += memory.time(policy) < modules.time(whole)
    assert less >= 2


def test_without_repeated_blocks_all_that_may_be_wrapped_comes_into_question() -> None:
    modules = looked_at("tests.torch_steps:gpt")[0]
    assert repeated_paths(modules) == tuple(modules.by_path)


def gradients(model: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model(*inputs).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.8, 0.95])
def test_code_gives_the_same_bits_with_dropout(share: float) -> None:
    memory = looked_at(DRAWING)[1]
    low, high = choose_policy(memory, None).peak, memory.peak(NOTHING)
    policy = choose_policy(memory, low + int(share * (high - low))).policy
    assert policy is not None
    model, plain = Drawing(), Drawing()
    plain.load_state_dict(model.state_dict())
    exec(policy_code(policy), {"model": model})
    assert any("forward" in vars(block) for block in model.blocks)
    x = torch.randn(32, 16)
    for one, other in zip(gradients(model, x), gradients(plain, x), strict=True):
        assert torch.equal(one, other)


def test_who_saves_an_early_draw_alone_gets_other_gradients() -> None:
    """The law that choices keep: torch runs the second draw with the numbers of the first."""
    memory = looked_at(DRAWING)[1]
    draws = [rerun.call for rerun in memory.blocks["blocks.0"].reruns if rerun.is_random]
    assert len(draws) == 2
    model, plain = Drawing(), Drawing()
    plain.load_state_dict(model.state_dict())
    exec(policy_code(Policy({"Draws": ("blocks.0",)}, {"Draws": frozenset(draws[:1])})), {"model": model})
    x = torch.randn(32, 16)
    pairs = list(zip(gradients(model, x), gradients(plain, x), strict=True))
    assert not all(torch.equal(one, other) for one, other in pairs)


@cache
def planned(reference: str, budget: str, planner: str = "dtr") -> PolicyPlanning:
    request = Request(parse_budget(budget), PlannerChoice(planner))
    return plan_policy(Path(reference), GraphOptions(), request, Observer())


def test_peak_that_is_predicted_is_the_measured_one() -> None:
    found = planned(DEEP, "70%")
    assert found.chosen is not None
    assert found.chosen.policy.saved["Block"]
    torch.manual_seed(0)
    step = as_step(load_function(DEEP)(), DEEP)
    exec(found.code, {"model": modules_of(step)[0]})
    runs = StepRuns(step, DEEP, take_step(DEEP, ReadOptions()).reading().graph, 0, False)
    runs.run(callable_of(step.model))
    measured = runs.peak(callable_of(step.model))
    beside = found.modules.eager.graph.fixed_bytes
    beyond = measured - (found.chosen.trace.peak_bytes - beside)
    assert 0 <= beyond <= len(found.chosen.policy.paths) * STATE_BYTES


def test_prices_of_whole_modules_and_of_the_free_plan_stand_beside_it() -> None:
    found = planned(DEEP, "70%")
    said = found.summary()
    assert found.exit_code == ExitCode.DONE
    assert found.chosen is not None
    assert found.chosen.proven
    assert said["policy"]["peak_bytes"] <= said["budget_bytes"]
    assert said["policy"]["overhead"] == said["policy"]["least_overhead"]
    assert said["policy"]["overhead"] <= said["modules"]["checkpoints"]["overhead"]
    assert said["free"]["peak_bytes"] <= said["budget_bytes"]
    assert said["policy"]["kinds"]["Block"]["modules"] == list(found.chosen.policy.paths)


def test_smallest_budget_is_the_least_peak_of_policies() -> None:
    found = planned(STAGES, "min")
    assert found.chosen is not None
    assert found.chosen.trace.peak_bytes == found.modules.budget_bytes
    below = planned(STAGES, str(found.modules.budget_bytes - 2048))
    assert below.chosen is None
    assert below.exit_code == ExitCode.NO_FIT
    assert below.least is not None
    assert below.code == ""


def test_a_module_that_fails_to_run_again_is_left_out() -> None:
    found = planned(f"{__name__}:changing", "min", "keep_all")
    failing = next(note for note in found.modules.notes if "the step fails with their checkpoints" in note)
    assert "blocks.0" in failing
    assert found.chosen is not None
    assert found.chosen.trace.peak_bytes <= found.modules.budget_bytes


def test_code_of_a_policy_wraps_each_kind_and_quotes_names() -> None:
    policy = Policy(
        {"GELU": ("stages.0.1",), "Linear": ("stages.0.0", "stages.1.3")},
        {"GELU": frozenset(), "Linear": frozenset({("aten.addmm.default", 0), ("aten.t.default", 2)})},
    )
    model = Stages(2)
    written = policy_code(policy)
    exec(written, {"model": model})
    assert {path for path, part in model.named_modules() if "forward" in vars(part)} == set(policy.paths)
    assert "torch.ops.aten.addmm.default: {0}" in written
    assert all(len(line) <= 88 for line in written.splitlines())
