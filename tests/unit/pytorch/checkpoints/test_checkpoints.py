"""Choices of modules to checkpoint: what they do to memory, which one is best, and how it is written down."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cache
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remat_cli.config import GraphOptions, PlannerChoice, Request, measurements_bytes
from remat_cli.core.graph import Phase
from remat_cli.core.problem import Observer
from remat_cli.core.schedule import Compute, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.costs import Measurements
from remat_cli.errors import GraphError
from remat_cli.formats.reader import ReadOptions
from remat_cli.prepare import prepare_reading, read
from remat_cli.pytorch.capture.eager import run_eagerly
from remat_cli.pytorch.checkpoints import CheckpointPlanning, plan_checkpoints
from remat_cli.pytorch.checkpoints.candidates import Candidates, candidate_paths
from remat_cli.pytorch.checkpoints.captured import captured_schedule
from remat_cli.pytorch.checkpoints.policy_choice import PolicyChoice, choose_policy
from remat_cli.pytorch.checkpoints.policy_memory import Place, PolicyMemory
from remat_cli.pytorch.checkpoints.words import code, settings
from remat_cli.units import BudgetSpec
from tests.torch_steps import Stages

STAGES, DEEP = "tests.torch_steps:stages", "tests.torch_steps:deep_gpt"


@cache
def looked_at(reference: str) -> Candidates:
    step = run_eagerly(reference, ReadOptions(), looked_at=True)
    return Candidates(step, prepare_reading(step.reading("step"), reference, GraphOptions()).graph)


@cache
def memory_of(reference: str) -> PolicyMemory:
    return PolicyMemory(looked_at(reference), saves=False)


def peak(memory: PolicyMemory, paths: Iterable[str]) -> int:
    return memory.peak(memory.wrapping(paths))


def chosen_paths(choice: PolicyChoice) -> tuple[str, ...]:
    assert choice.policy is not None
    return choice.policy.paths


def judged(reference: str, paths: tuple[str, ...], **options: Any) -> tuple[list[tuple[str, int]], int]:
    """Return the type of each op that torch runs, with the bytes in memory, and the time of all."""
    step = run_eagerly(reference, ReadOptions(), checkpoints=paths, **options)
    graph = prepare_reading(step.reading("step"), reference, GraphOptions()).graph
    trace = simulate(graph, step.schedule)
    runs = zip(step.schedule.steps, trace.memory_bytes[1:], strict=True)
    return [(graph.op[run.op].type, used) for run, used in runs if isinstance(run, Compute)], trace.time


def is_as_judged(judged_bytes: int, told_bytes: int, kind: str) -> bool:
    """Tell whether memory at an op is as it was told: what the gradient of a bias sums may be let go of before."""
    return judged_bytes == told_bytes or (kind == "aten.sum" and judged_bytes < told_bytes)


def choices(memory: PolicyMemory) -> Iterator[tuple[str, ...]]:
    paths = list(memory.blocks)
    for count in range(len(paths) + 1):
        for chosen in combinations(paths, count):
            if not any(set(pair) <= set(chosen) for pair in memory.nested):
                yield chosen


def time(memory: PolicyMemory, paths: Iterable[str]) -> int:
    return memory.time(memory.wrapping(paths))


def test_candidates_are_repeated_blocks_and_their_children() -> None:
    paths = candidate_paths(looked_at(DEEP).step)
    assert {"embedding", "head", "blocks.0", "blocks.3", "blocks.0.norm", "blocks.3.down"} <= set(paths)
    assert "" not in paths
    assert not any(path.count(".") > 2 for path in paths)


@pytest.mark.parametrize("reference", [STAGES, DEEP])
def test_memory_and_time_of_a_choice_are_those_of_torch_with_its_checkpoints(reference: str) -> None:
    memory, generator = memory_of(reference), random.Random(0)
    candidates, all_choices = looked_at(reference).by_path, list(memory.blocks)
    plain, plain_time = judged(reference, ())
    assert peak(memory, ()) == max(used for _, used in plain)
    assert peak(memory, chosen_paths(choose_policy(memory, None))) < 0.8 * peak(memory, ())
    for _ in range(4):
        chosen: list[str] = []
        for path in generator.sample(all_choices, len(all_choices) // 2):
            if not any(path.startswith(f"{other}.") or other.startswith(f"{path}.") for other in chosen):
                chosen.append(path)
        ran, took = judged(reference, tuple(chosen))
        peaks = memory.peaks(memory.wrapping(chosen))
        runs = iter(ran)
        for at in range(len(plain)):
            for path in sorted(chosen, key=lambda path: candidates[path].ops):
                if candidates[path].asked == at:
                    first, last = candidates[path].ops
                    again = [used for _, used in islice(runs, last - first)]
                    assert not again or max(again) == peaks[Place(at, path)]
            kind, used = next(runs)
            assert is_as_judged(used, peaks[Place(at)], kind)
        assert took == plain_time + time(memory, tuple(chosen))


@pytest.mark.parametrize("reference", [STAGES, DEEP])
def test_terms_of_the_solver_add_up_to_the_memory_of_a_choice(reference: str) -> None:
    memory, generator = memory_of(reference), random.Random(1)
    paths = list(memory.blocks)
    for _ in range(3):
        chosen = set(generator.sample(paths, len(paths) // 2))
        for place, used in memory.peaks(memory.wrapping(chosen)).items():
            terms = memory.terms(place)
            total = terms.constant + sum(size for (path, _), size in terms.rerun.items() if path in chosen)
            for held, size in terms.held.items():
                is_kept = any(chosen.isdisjoint(group) for group in held.unless)
                total += size if is_kept or chosen & held.where else 0
            assert total == used, place
            assert not terms.saved


def test_memory_that_a_kernel_takes_for_itself_counts_in_each_of_its_runs() -> None:
    candidates, memory = looked_at(STAGES), memory_of(STAGES)
    graph = candidates.graph
    block = max(candidates.candidates, key=lambda item: item.time)
    at, taken = block.ops[0], 10**9
    op = graph.ops[at]
    with_taken = Measurements({}, {op.name: op.workspace_bytes + taken}).with_workspace(graph).checked()
    greedy = PolicyMemory(Candidates(candidates.step, with_taken), saves=False)
    nothing, wrapping = memory.wrapping(()), memory.wrapping((block.path,))
    assert greedy.peaks(nothing)[Place(at)] == memory.peaks(nothing)[Place(at)] + taken
    in_rerun = greedy.peaks(wrapping)[Place(block.asked, block.path)]
    assert taken < in_rerun - graph.fixed_bytes < taken + memory.peak(nothing)


@pytest.mark.parametrize("name", ["silu_in_place", "hardswish_in_place", "relu_first_in_place"])
def test_a_module_whose_input_is_overwritten_is_no_candidate(name: str) -> None:
    reference = f"tests.torch_steps:{name}"
    candidates = looked_at(reference)
    assert candidates.overwritten
    for path in candidates.overwritten:
        with pytest.raises(GraphError, match="modified by an inplace operation"):
            judged(reference, (path,))
    for path in candidates.by_path:
        judged(reference, (path,))


@pytest.mark.parametrize("share", [70, 80, 90, 95])
@pytest.mark.parametrize("name", ["silu_in_place", "hardswish_in_place"])
def test_a_module_whose_input_is_overwritten_is_left_out(name: str, share: int) -> None:
    request = Request(BudgetSpec(share=Fraction(share, 100)), PlannerChoice("dtr"))
    found = plan_checkpoints(Path(f"tests.torch_steps:{name}"), GraphOptions(), request, Observer())
    assert found.wrapped is not None
    assert found.wrapped.trace.peak_bytes <= found.budget_bytes
    note = next(note for note in found.notes if "overwritten before they could run again" in note)
    assert note.endswith("blocks.0.2, blocks.1.2, blocks.2.2 and 1 more")


def test_a_module_that_fails_to_run_again_is_left_out() -> None:
    request = Request(BudgetSpec(smallest=True), PlannerChoice("dtr"))
    reference = "tests.torch_steps:changes_its_mind"
    found = plan_checkpoints(Path(reference), GraphOptions(), request, Observer())
    failing = next(note for note in found.notes if "the step fails with their checkpoints" in note)
    assert "blocks.0" in failing
    assert found.wrapped is not None
    assert found.wrapped.trace.peak_bytes == found.budget_bytes
    assert not any(path.endswith(".2") for path in found.wrapped.paths)


def test_choice_is_the_best_of_all_choices() -> None:
    memory = memory_of(STAGES)
    known = [(peak(memory, paths), time(memory, paths)) for paths in choices(memory)]
    low, high = min(used for used, _ in known), peak(memory, ())
    assert choose_policy(memory, None).peak == low
    for share in (0.0, 0.2, 0.5, 0.8):
        budget = low + int(share * (high - low))
        found = choose_policy(memory, budget)
        paths = chosen_paths(found)
        assert found.proven
        assert peak(memory, paths) <= budget
        assert time(memory, paths) == min(took for used, took in known if used <= budget) == found.least_time
    assert chosen_paths(choose_policy(memory, high)) == ()
    none = choose_policy(memory, low - 1)
    assert (none.policy, none.proven) == (None, True)


def test_of_equal_blocks_the_first_are_chosen() -> None:
    memory = memory_of(DEEP)
    least = choose_policy(memory, None).peak
    found = chosen_paths(choose_policy(memory, (least + peak(memory, ())) // 2))
    assert found == tuple(f"blocks.{number}" for number in range(len(found)))


def test_captured_step_runs_the_same_modules_again_and_draws_once() -> None:
    graph = prepare_reading(read(Path(STAGES), GraphOptions()), STAGES, GraphOptions()).graph
    schedule = captured_schedule(graph, ("stages.0", "stages.1"))
    runs = [graph.op[name] for name in schedule.computes]
    again = {op.module for op in runs if runs.count(op) > 1}
    assert {"stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1"} <= again
    assert all(module is not None and module.startswith("stages.") for module in again)
    assert all(op.recomputable for op in runs if runs.count(op) > 1)
    assert simulate(graph, schedule).peak_bytes < simulate(graph, plain_run(graph)).peak_bytes


def test_code_wraps_the_modules_and_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    model, plain = Stages(2), Stages(2)
    plain.load_state_dict(model.state_dict())
    exec(code(("stages.0", "stages.1.0")), {"model": model})
    x = torch.randn(8, 32)
    for each in (model, plain):
        torch.manual_seed(1)
        each(x).backward()
    assert "forward" in vars(model.stages[0])
    assert "forward" in vars(model.get_submodule("stages.1.0"))
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("name", ["a-b", "one two", 'quo"te', "back\\slash", "é", "x" * 90, "new\nline"])
def test_code_names_modules_whatever_they_are_called(name: str) -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2), "other": nn.Linear(2, 2)})
    written = code((name, "other"))
    exec(written, {"model": model})
    assert all("forward" in vars(part) for part in model.values())
    assert written.isascii()
    assert [line for line in written.splitlines() if "names" not in line and len(line) > 80] == (
        [f'    "{name}",'] if len(name) > 80 else []
    )


def test_measured_times_of_a_choice_are_those_of_its_run_whatever_was_not_measured(tmp_path: Path) -> None:
    reading = read(Path(STAGES), GraphOptions())
    # Measured beside its estimate, the forward pass takes longer, and it is that which runs again; of what eager runs
    # for dropout nothing was measured.
    times = {op.name: 9000 if op.phase is Phase.FORWARD else 10 for op in reading.graph.ops}
    path = tmp_path / "measured.json"
    path.write_bytes(measurements_bytes(Measurements(times), "step"))
    options, request = (
        GraphOptions(measurements=str(path)),
        Request(BudgetSpec(share=Fraction(7, 10)), PlannerChoice("dtr")),
    )
    found = plan_checkpoints(Path(STAGES), options, request, Observer())
    assert found.wrapped is not None
    assert found.wrapped.paths
    assert found.wrapped.trace.time == found.plain.time + found.wrapped.least_time


def test_settings_are_the_ones_that_run_least_again_and_fit() -> None:
    candidates = looked_at(DEEP)
    every = tuple(f"blocks.{number}" for number in range(4))
    budget = peak(memory_of(DEEP), every[::2])
    found = {item.trainer: item for item in settings(candidates, budget)}
    assert found["transformers"].setting == "gradient_checkpointing_enable(every_n_layers=2)"
    assert found["transformers"].paths == every[::2]
    assert found["Megatron-LM"].setting.endswith("recompute_method=block, recompute_num_layers=2")
    assert all(item.peak <= budget for item in found.values())
    assert settings(candidates, 1) == ()


def planned(budget: BudgetSpec) -> CheckpointPlanning:
    request = Request(budget=budget, planner=PlannerChoice("dtr"))
    return plan_checkpoints(Path(DEEP), GraphOptions(), request, Observer())


def test_smallest_budget_is_the_least_peak_of_checkpoints() -> None:
    found = planned(BudgetSpec(smallest=True))
    assert found.wrapped is not None
    assert found.wrapped.trace.peak_bytes == found.budget_bytes
    within = planned(BudgetSpec(device_bytes=found.budget_bytes))
    assert within.wrapped is not None
    assert within.wrapped.trace.peak_bytes == found.budget_bytes < choose_policy(memory_of(DEEP), None).peak
    below = planned(BudgetSpec(device_bytes=found.budget_bytes - 2048))
    assert below.wrapped is None
    assert below.none_fits
    assert below.least is not None
    assert below.least.trace.peak_bytes <= found.budget_bytes
