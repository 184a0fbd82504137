"""What is gathered again, kept and made again is chosen jointly: never worse than by a rule, at the rule's own peak."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.config import GraphOptions
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import solve
from remat_cli.generate.llama import Llama
from remat_cli.planners import PLANNERS
from remat_cli.synthesis import synthesize
from tests.reshard_rules import Rules


@settings(max_examples=10)
@given(
    layers=st.integers(1, 3),
    hidden=st.sampled_from((256, 2048)),
    sequence=st.sampled_from((64, 1024, 8192)),
    ranks=st.sampled_from((2, 8, 24)),
    device=st.sampled_from(("h100", "v100")),
    kept=st.sets(st.integers(1, 3)),
    checkpoints=st.booleans(),
)
def test_at_the_peak_of_a_rule_the_plan_takes_no_more_time(
    layers: int, hidden: int, sequence: int, ranks: int, device: str, kept: set[int], checkpoints: bool
) -> None:
    model = Llama(layers, width=512, heads=8, groups=2, hidden=hidden, sequence=sequence, vocabulary=1000)
    graph = synthesize(model, GraphOptions(device=device, ranks=ranks)).graph
    rules = Rules(graph)
    rule = simulate(graph, rules.schedule({f"layer{layer}" for layer in kept}, checkpoints=checkpoints))
    plan = solve(Problem(graph, Budget(rule.peak_bytes)), PLANNERS["min_cut"]())  # which `auto` asks, too
    assert plan.trace is not None
    assert plan.trace.time <= rule.time
    assert plan.trace.peak_bytes <= rule.peak_bytes


@settings(max_examples=10)
@given(layers=st.integers(1, 4), share=st.floats(0, 1), checkpoints=st.booleans())
def test_the_rules_are_what_they_say(layers: int, share: float, checkpoints: bool) -> None:
    model = Llama(layers, width=512, heads=8, groups=2, hidden=2048, sequence=64, vocabulary=1000)
    graph = synthesize(model, GraphOptions(device="h100", ranks=8)).graph
    rules = Rules(graph)
    always = simulate(graph, rules.schedule((), checkpoints=checkpoints))
    never = simulate(graph, rules.schedule(rules.layers, checkpoints=checkpoints))
    gathers = {layer: f"{layer}.all_gather" for layer in rules.layers}
    assert len(gathers) == layers
    assert {always.runs[name] for name in gathers.values()} == {2}
    assert {never.runs[name] for name in gathers.values()} == {1}
    assert always.time - never.time == sum(graph.op[name].time for name in gathers.values())
    # At the end of the last layer's forward pass, its own parameters are there by either rule.
    assert (always.peak_bytes < never.peak_bytes) is (layers > 1)
    budget = always.peak_bytes + int(share * (never.peak_bytes - always.peak_bytes))
    greedy = simulate(graph, rules.greedy(budget, checkpoints=checkpoints))
    assert greedy.peak_bytes <= budget
    assert never.time <= greedy.time <= always.time
    again = max(graph.op[name].time for name in gathers.values())
    assert (greedy.runs["layer1.mlp.up"] == 2) is checkpoints
    assert share < 1 or greedy.time - never.time < again
