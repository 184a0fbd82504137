"""A plan that is run and measured: what it holds, and what is said where it does not."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from remat_cli.config import GraphOptions
from remat_cli.core.link import Link
from remat_cli.core.problem import Observer
from remat_cli.core.schedule import Schedule, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.errors import GraphError
from remat_cli.prepare import prepare
from remat_cli.pytorch.memory.memory import allocations_of, peak_of
from remat_cli.pytorch.programs.program import divided
from remat_cli.pytorch.run import execution as execution_module
from remat_cli.pytorch.run.execution import StepExecution, StepRuns, execute_step
from tests.torch_steps import moved, run_again

# Wide enough that activations, not parameters, make the peak.
MODEL = """
import torch
from tests.torch_steps import GPT, MLP

def mlp(batch=1024):
    return MLP(depth=5, width=64), torch.randn(batch, 64)

def convolution():
    return torch.nn.Conv2d(16, 16, 3), torch.randn(16, 16, 34, 34, requires_grad=True)

def gpt(batch=8):
    return GPT(), (torch.randint(20, (batch, 32)), torch.randint(20, (batch, 32)))
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("steps") / "wide.py"
    path.write_text(MODEL)
    return str(path)


@pytest.fixture(scope="module")
def execution(reference: str) -> StepExecution:
    return executed(f"{reference}:mlp")


def planned_again(reference: str) -> tuple[Any, Schedule]:
    """Return the graph of a step, and a schedule of few bytes: what may run again does, before each backward op."""
    graph = prepare(Path(reference), GraphOptions()).graph
    return graph, with_frees(graph, run_again(graph))


def executed(reference: str, observe: Observer | None = None) -> StepExecution:
    graph, schedule = planned_again(reference)
    return execute_step(reference, GraphOptions(), graph, schedule, observe=observe)


def test_measured_peaks_are_the_predicted_ones(execution: StepExecution) -> None:
    assert execution.holds
    for peak in (execution.plain, execution.plan):
        assert peak.predicted is not None
        assert abs(peak.measured - peak.predicted) < 0.01 * peak.predicted
    assert execution.plain.predicted is not None
    assert execution.plan.measured < 0.6 * execution.plain.measured
    assert execution.predicted_overhead > 0.3
    assert execution.results == 11
    assert execution.changed == execution.beside_eager == execution.unrepeatable == ()


@pytest.mark.parametrize(
    ("limit", "runs", "last"),
    [("_TIMED_NS", 8, "the schedule, timed, pair 1"), ("_LONG_NS", 6, "the plain schedule, for its peak")],
)
def test_each_run_is_told_and_long_runs_are_few(
    limit: str, runs: int, last: str, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Listener(Observer):
        def __init__(self) -> None:
            self.runs: list[str] = []

        def phase(self, text: str) -> None:
            if text.startswith("run "):
                self.runs.append(text)

    monkeypatch.setattr(execution_module, limit, 0)
    calls: list[StepRuns] = []
    run = StepRuns.run

    def counted(self: StepRuns, *given: Any) -> None:
        calls.append(self)
        run(self, *given)

    monkeypatch.setattr(StepRuns, "run", counted)
    listener = Listener()
    execution = executed(f"{reference}:mlp", listener)
    assert execution.holds
    assert execution.measured_overhead > -0.9
    assert len(calls) == len(listener.runs) == runs
    assert re.fullmatch(rf"run {runs}: {last}; the last run took [\d.]+ m?s", listener.runs[-1])


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_memory_on_the_host_does_not_count(reference: str, name: str) -> None:
    graph = prepare(Path(f"{reference}:{name}"), GraphOptions()).graph
    execution = execute_step(f"{reference}:{name}", GraphOptions(), graph, moved(graph), link=Link(Fraction(1)))
    assert execution.holds
    assert execution.plan.predicted is not None
    assert execution.plain.predicted is not None
    assert execution.plan.predicted < 0.7 * execution.plain.predicted
    assert 0 <= execution.plan.measured - execution.plan.predicted < 0.05 * execution.plan.predicted
    assert execution.predicted_overhead > 0


def test_dropout_is_the_same_every_time(reference: str) -> None:
    execution = executed(f"{reference}:gpt")
    assert execution.holds
    assert execution.beside_eager == ()


def test_op_that_computes_something_else_is_named(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[Schedule] = []

    def faulty(joint: Any, schedule: Schedule, watch: Any = None) -> Any:
        """Have the plan, and not the plain schedule, which comes first, compute a GELU by another formula."""
        plain.append(schedule)
        if schedule == plain[0]:
            return divided(joint, schedule, watch)
        node = next(op.node for op in joint.ops if op.name == "gelu_2")
        node.kwargs = {"approximate": "tanh"}
        return divided(joint, schedule, watch)

    monkeypatch.setattr(execution_module, "divided", faulty)
    graph, schedule = planned_again(f"{reference}:mlp")
    execution = execute_step(f"{reference}:mlp", GraphOptions(), graph, schedule)
    assert not execution.holds
    assert execution.changed_by == "gelu_2"
    assert "output 0" in execution.changed
    error = execution.broken(graph)
    assert error is not None
    assert error.exit_code == 5
    assert "'gelu_2' (tests/torch_steps.py:" in error.message


def test_op_that_takes_memory_for_itself_is_named(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(joint: Any, schedule: Schedule, watch: Any = None) -> Any:
        graphs = divided(joint, schedule, watch)
        for module in graphs:
            for node in module.graph.nodes:
                if node.op == "call_function" and node.name == "addmm_3":
                    node.target = _takes_much
            module.recompile()
        return graphs

    def _takes_much(*arguments: Any) -> torch.Tensor:
        made: torch.Tensor = torch.ops.aten.addmm.default(*arguments)
        torch.empty(2**24)
        return made

    monkeypatch.setattr(execution_module, "divided", greedy)
    graph, schedule = planned_again(f"{reference}:mlp")
    execution = execute_step(f"{reference}:mlp", GraphOptions(), graph, schedule)
    assert execution.changed == ()
    assert not execution.plan.agrees
    assert execution.parted_at == "addmm_3"
    error = execution.broken(graph)
    assert error is not None
    assert "they part most at op 'addmm_3'" in error.message


def test_workspace_of_kernels_is_measured_and_held_against_the_budget(reference: str) -> None:
    """A convolution has a copy of its output on the CPU, which nothing but measuring tells."""
    graph = prepare(Path(f"{reference}:convolution"), GraphOptions()).graph
    plain = plain_run(graph)
    budget = simulate(graph, plain).peak_bytes
    execution = execute_step(
        f"{reference}:convolution", GraphOptions(), graph, plain, budget_bytes=budget + 2**20, measures=True
    )
    assert execution.kernels is not None
    assert execution.kernels.took_ns > 0
    assert execution.plan.predicted == budget - graph.fixed_bytes + execution.kernels.added_bytes
    assert 0 <= execution.plan.measured - execution.plan.predicted < 1000
    assert execution.kernels.added_bytes > 500_000
    assert execution.holds
    assert execution.broken(graph) is None
    above = replace(execution, budget_bytes=execution.plan.measured - 3 * 2**20)
    assert not above.holds
    error = above.broken(graph)
    assert error is not None
    assert re.search(r"above what the budget leaves .*: the kernel of op 'convolution.* has a workspace", error.message)


def test_schedule_for_another_step_is_refused(reference: str) -> None:
    graph, schedule = planned_again(f"{reference}:mlp")
    with pytest.raises(GraphError, match=r"op 'addmm' .* had other inputs, shapes or constants"):
        execute_step(f"{reference}:mlp", GraphOptions(dims={"batch": 8}), graph, schedule)


def test_results_beside_eager_beyond_rounding_are_an_error(execution: StepExecution, reference: str) -> None:
    graph, _ = planned_again(f"{reference}:mlp")
    assert execution.broken(graph) is None
    apart = replace(execution, beside_eager=("output 0",), eager_difference=0.1)
    error = apart.broken(graph)
    assert error is not None
    assert "than the step as it is" in error.message


def test_peak_is_what_is_in_use_at_one_time() -> None:
    def call() -> None:
        first = torch.empty(1000, dtype=torch.uint8)
        del first
        kept = [torch.empty(300, dtype=torch.uint8) for _ in range(2)]
        del kept

    assert peak_of(call, "cpu") == 1000
    allocations = allocations_of(call)
    last = allocations.times_ns[2]
    assert allocations.peak_between(last, allocations.times_ns[-1]) == 600


def test_measured_overhead_is_a_share_of_the_plain_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepRuns, "reset", lambda self: None)
    monkeypatch.setattr(StepRuns, "run", lambda self, call: call())
    monkeypatch.setattr(StepRuns, "device", "cpu")
    # A call takes as many seconds as it returns.
    monkeypatch.setattr(execution_module, "time_of", lambda run, device: run())
    monkeypatch.setattr(StepRuns, "tell", lambda self, what: None)
    runs = object.__new__(StepRuns)
    assert runs.overhead(lambda: 2, lambda: 5, runs=3) == [1.5, 1.5, 1.5]
