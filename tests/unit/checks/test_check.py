"""Models held to their limits: what holds, what fails and why, and that what is advised helps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from onnx import TensorProto

from remat_cli.allocation.of_schedule import arena_of
from remat_cli.allocation.portfolio import Allocation
from remat_cli.checks.advice import round_up
from remat_cli.checks.baseline import Figures
from remat_cli.checks.check import CheckOutcome, Failure, Verdict, check_model, worst_exit_code
from remat_cli.checks.project import ModelCheck, load_project
from remat_cli.core.arena import Arena
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import simulate
from remat_cli.formats.onnx import workspace
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP
from remat_cli.planning import addresses
from remat_cli.reports.check.forms import check_junit, check_markdown, check_text
from remat_cli.units import format_share
from tests.documents import chain_document, to_document
from tests.graphs import training_chain
from tests.places import GRAPHS
from tests.plans import told
from tests.unit.formats.onnx.models import Model, float_input, node, value

FLOAT16 = TensorProto.FLOAT16
UNET = GRAPHS / "unet.onnx"
# Takes 10 in 400 bytes, and 11 in 300.
TEN = to_document(training_chain(3, size=100))
# Of the chain below: its input, 12 results and two gradients.
PLAIN_PEAK = 1500


def fan() -> dict[str, Any]:
    """An inference graph of four results of one input, then summed up: the plain run needs them all at once."""
    names = [f"{kind}{i}" for kind in "as" for i in range(4)]
    produce = [{"name": f"make{i}", "inputs": ["x"], "outputs": [f"a{i}"], "time": 1} for i in range(4)]
    add = [
        {"name": f"add{i}", "inputs": [f"a{i}"] + [f"s{i - 1}"] * (i > 0), "outputs": [f"s{i}"], "time": 1}
        for i in range(4)
    ]
    return {
        "format": "remat.graph/1",
        "name": "fan",
        "kind": "inference",
        "tensors": [{"name": name, "bytes": 100} for name in ("x", *names)],
        "ops": [{"type": "Add", **op} for op in (*produce, *add)],
    }


class Checks:
    """Checks one model at a time, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "chain.json").write_text(json.dumps(chain_document()))

    def model(self, **keys: object) -> ModelCheck:
        path = self.folder / "remat.yaml"
        path.write_text(json.dumps({"models": [{"path": "chain.json", "planner": "approx_dp"} | keys]}))
        return load_project(path).models[0]

    def __call__(self, before: Mapping[str, Figures] | None = None, /, **keys: object) -> CheckOutcome:
        return check_model(self.model(**keys), before or {})


@pytest.fixture
def check(tmp_path: Path) -> Checks:
    return Checks(tmp_path)


def only_failure(outcome: CheckOutcome) -> Failure:
    (failure,) = outcome.failures
    return failure


def test_a_plan_that_fits_holds(check: Checks) -> None:
    outcome = check(budget="70%", max_overhead="50%")
    assert (outcome.verdict, outcome.exit_code, outcome.failures) == (Verdict.HOLDS, 0, ())
    figures = outcome.figures
    assert figures is not None
    assert (figures.plain_peak_bytes, figures.limit_bytes) == (PLAIN_PEAK, 1050)
    assert figures.plan_peak_bytes is not None
    assert figures.plan_peak_bytes <= 1050
    assert figures.overhead is not None
    assert 0 < figures.overhead <= 0.5


def test_where_the_plain_run_fits_no_planner_is_asked(check: Checks) -> None:
    # approx_dp would refuse a graph without a backward.
    outcome = check(budget="100%", mode="inference", planner="approx_dp")
    assert outcome.verdict is Verdict.HOLDS
    assert outcome.figures is not None
    assert outcome.figures.overhead == 0


def test_a_budget_that_nothing_fits_fails_with_the_op_that_needs_more(check: Checks) -> None:
    outcome = check(budget="250B")
    assert (outcome.verdict, outcome.exit_code) == (Verdict.FAILS, 3)
    failure = only_failure(outcome)
    assert failure.limit == "budget"
    assert re.fullmatch(r"no plan fits 250 B: op '\S+' alone needs \d+ B", failure.reason)


def test_a_budget_below_what_is_always_there_fails(check: Checks) -> None:
    failure = only_failure(check(budget="50B"))
    assert failure.reason == "no plan fits 50 B: 100 B are in memory from start to end"


def test_a_plan_that_was_not_found_is_not_said_to_be_impossible(check: Checks) -> None:
    failure = only_failure(check(budget="70%", planner={"name": "approx_dp", "candidates": 0}))
    assert failure.reason == "no plan was found that fits 1.050 kB; that there is none is not proven"


def test_a_proof_names_the_plans_that_it_holds_for(check: Checks) -> None:
    failure = only_failure(check(budget="70%", planner="keep_all"))
    assert failure.reason == "no plan of this planner fits 1.050 kB: proven"


def test_too_slow_a_plan_fails(check: Checks) -> None:
    outcome = check(budget="60%", max_overhead="1%")
    failure = only_failure(outcome)
    assert failure.limit == "max_overhead"
    assert outcome.figures is not None
    assert outcome.figures.overhead is not None
    assert f"{outcome.figures.overhead * 100:.2f} % more time" in failure.reason
    assert "above max_overhead 1.00 %" in failure.reason


def test_a_plan_of_exactly_the_overhead_that_is_allowed_holds(check: Checks) -> None:
    (check.folder / "chain.json").write_text(json.dumps(TEN))
    assert check(budget="300B", max_overhead="10%").verdict is Verdict.HOLDS
    failure = only_failure(check(budget="300B", max_overhead="9.999%"))
    assert failure.remedies[-1] == "allow it: max_overhead: 10%"


def test_an_overhead_that_is_proven_to_be_out_of_reach_says_so(check: Checks) -> None:
    # On a chain of equal ops the exhaustive planner knows the fastest of its plans.
    (check.folder / "chain.json").write_text(json.dumps(chain_document(5)))
    failure = only_failure(check(budget="90%", max_overhead="1%", planner="exhaustive"))
    assert failure.reason.endswith("; proven: no plan of this planner keeps to it")


def test_without_a_budget_the_largest_peak_holds_for_the_plain_run(check: Checks) -> None:
    assert check(max_peak=PLAIN_PEAK).verdict is Verdict.HOLDS
    failure = only_failure(check(max_peak=PLAIN_PEAK - 1))
    assert failure.limit == "max_peak"
    assert failure.reason == "the plain run peaks at 1.500 kB, above max_peak 1.499 kB"
    assert failure.remedies[0] == "raise max_peak to 1.5kB"


def test_with_a_budget_the_largest_peak_holds_for_the_plan(check: Checks) -> None:
    outcome = check(budget="90%", max_peak=1000)
    assert outcome.verdict is Verdict.HOLDS
    assert outcome.figures is not None
    assert outcome.figures.limit_bytes == 1000
    assert only_failure(check(budget="90%", max_peak=250)).limit == "max_peak"


def test_advice_for_the_plain_run_does_not_fail_for_want_of_a_planner(check: Checks) -> None:
    outcome = check(max_peak=200, mode="inference")
    assert outcome.verdict is Verdict.FAILS
    assert only_failure(outcome).remedies == ("raise max_peak to 300B",)


class TestUnderstated:
    """A model of float16, whose ops onnxruntime runs in float32 on the CPU."""

    @pytest.fixture(autouse=True)
    def half(self, tmp_path: Path) -> None:
        proto = Model([node("Exp", ["x"], ["a"]), node("Exp", ["a"], ["y"])], [value("x", [512], FLOAT16)]).proto()
        proto.graph.output[0].type.tensor_type.elem_type = FLOAT16
        (tmp_path / "half.onnx").write_bytes(proto.SerializeToString())

    @pytest.mark.parametrize("limit", [{"budget": "1MB"}, {"max_peak": "1MB"}])
    def test_what_is_predicted_to_fit_does_not_hold(self, limit: dict[str, object], check: Checks) -> None:
        outcome = check(path="half.onnx", mode="inference", **limit)
        assert (outcome.verdict, outcome.exit_code) == (Verdict.WARNS, 3)
        failure = only_failure(outcome)
        assert "2 ops of float16 (Exp and others)" in failure.reason
        assert "remat fuse" in failure.remedies[0]

    def test_what_is_predicted_not_to_fit_fails(self, check: Checks) -> None:
        outcome = check(path="half.onnx", mode="inference", max_peak="1kB")
        assert (outcome.verdict, only_failure(outcome).limit) == (Verdict.FAILS, "max_peak")

    def test_where_memory_is_not_that_of_onnxruntime_it_holds(self, check: Checks) -> None:
        assert check(path="half.onnx", mode="inference", aliasing="none", max_peak="1MB").verdict is Verdict.HOLDS


class TestEstimated:
    """A model with an op that remat does not know: its result is guessed to be as large as its input."""

    @pytest.fixture(autouse=True)
    def unknown(self, tmp_path: Path) -> None:
        model = Model([node("Blur", ["x"], ["a"], "blur", domain="com.acme"), node("Exp", ["a"], ["y"], "exp")])
        (tmp_path / "blur.onnx").write_bytes(model.proto().SerializeToString())

    @pytest.mark.parametrize("limit", [{"budget": "1MB"}, {"max_peak": "1MB"}])
    def test_what_is_guessed_to_fit_does_not_hold(self, limit: dict[str, object], check: Checks) -> None:
        outcome = check(path="blur.onnx", mode="inference", **limit)
        assert (outcome.verdict, outcome.exit_code, outcome.is_estimated) == (Verdict.WARNS, 3, True)
        failure = only_failure(outcome)
        assert (failure.limit, "'blur'" in failure.reason, "exp" in failure.reason) == ("estimated", True, False)
        assert "value_shapes: {a: " in failure.remedies[0]

    def test_with_the_shape_given_it_holds(self, check: Checks) -> None:
        outcome = check(path="blur.onnx", mode="inference", max_peak="1MB", value_shapes={"a": [2, 30]})
        assert (outcome.verdict, outcome.is_estimated) == (Verdict.HOLDS, False)

    def test_what_is_guessed_not_to_fit_fails(self, check: Checks) -> None:
        outcome = check(path="blur.onnx", mode="inference", max_peak="10B")
        assert (outcome.verdict, outcome.is_estimated) == (Verdict.FAILS, True)

    def test_every_form_says_so(self, tmp_path: Path, check: Checks) -> None:
        outcome = check(path="blur.onnx", mode="inference", max_peak="1MB")
        project = load_project(tmp_path / "remat.yaml")
        for form in (check_junit, check_markdown, check_text):
            assert b"B estimated" in form(project, [outcome])


class TestExecution:
    """A model that is run as it is, as it has no budget."""

    MODEL = Model(
        [node("Sin", ["x"], ["a"], "sin"), node("Einsum", ["a", "a"], ["y"], "sum", equation="bij,bkj->bik")],
        inputs=[float_input("x", 4, 512, 512)],
    )

    def test_what_runs_as_predicted_holds_and_tells_what_a_default_session_takes(
        self, tmp_path: Path, check: Checks
    ) -> None:
        self.MODEL.save(tmp_path)
        outcome = check(path="model.onnx", mode="inference", max_peak="100MB", execute=True)
        assert (outcome.verdict, outcome.failures) == (Verdict.HOLDS, ())
        assert re.fullmatch(
            r"'model': measured at .*B with remat_cli\.session_options\(\), at .*B with onnxruntime's own options, "
            r"beside weights and inputs\.",
            outcome.session,
        )

    def test_what_takes_more_than_predicted_fails(
        self, tmp_path: Path, check: Checks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(workspace._RULES, "Einsum")
        self.MODEL.save(tmp_path)
        keys = {"path": "model.onnx", "mode": "inference", "max_peak": "100MB"}
        silent = check(**keys)
        assert (silent.verdict, silent.session) == (
            Verdict.HOLDS,
            "Peaks hold with session_options(); a default session mostly takes more.",
        )
        outcome = check(**keys, execute=True)
        assert (outcome.verdict, only_failure(outcome).limit) == (Verdict.FAILS, "execute")
        assert "is not the predicted one" in only_failure(outcome).reason


class TestRegression:
    def test_no_more_than_before_holds(self, check: Checks) -> None:
        before = check(budget="70%").figures
        assert before is not None
        outcome = check({"chain": before}, budget="70%", max_regression="0%")
        assert (outcome.verdict, outcome.before) == (Verdict.HOLDS, before)

    @pytest.mark.parametrize(("peak", "holds"), [(PLAIN_PEAK, True), (1429, True), (1428, False)])
    def test_the_plain_peak_may_grow_by_the_share_that_is_allowed(self, peak: int, holds: bool, check: Checks) -> None:
        outcome = check({"chain": Figures(peak, 300)}, max_regression="5%")
        assert (outcome.verdict is Verdict.HOLDS) == holds

    def test_what_grew_is_told_with_the_way_to_accept_it(self, check: Checks) -> None:
        failure = only_failure(check({"chain": Figures(1200, 300)}, max_regression="5%"))
        assert failure.limit == "max_regression"
        assert (
            failure.reason == "the plain peak grew by 25.00 %, from 1.200 kB to 1.500 kB, above max_regression 5.00 %"
        )
        assert "remat check --update-baseline" in failure.remedies[0]

    def test_the_overhead_may_grow_by_so_many_points(self, check: Checks) -> None:
        now = check(budget="60%").figures
        assert now is not None
        assert now.plain_time is not None
        assert now.plan_time is not None
        before = replace(now, plan_time=now.plan_time - now.plain_time // 25)
        assert check({"chain": before}, budget="60%", max_regression="5%").verdict is Verdict.HOLDS
        failure = only_failure(check({"chain": before}, budget="60%", max_regression="3%"))
        assert failure.reason.startswith("the overhead grew from ")

    def test_growth_by_exactly_what_is_allowed_holds(self, check: Checks) -> None:
        (check.folder / "chain.json").write_text(json.dumps(TEN))
        before = check(budget="400B").figures
        now = check(budget="300B").figures
        assert before is not None
        assert now is not None
        assert (before.plain_time, before.plan_time, now.plan_time) == (10, 10, 11)
        assert 11 / 10 - 1 > 0.1, "rounding would let it fail"
        assert check({"chain": before}, budget="300B", max_regression="10%").verdict is Verdict.HOLDS
        assert check({"chain": before}, budget="300B", max_regression="9.999%").verdict is Verdict.FAILS

    def test_a_baseline_without_times_still_holds_the_overhead(self, check: Checks) -> None:
        now = check(budget="60%").figures
        assert now is not None
        older = replace(now, plain_time=None, plan_time=None, overhead=0.0)
        failure = only_failure(check({"chain": older}, budget="60%", max_regression="3%"))
        assert failure.reason.startswith("the overhead grew from 0 % to ")

    def test_a_model_that_the_baseline_does_not_know_fails(self, check: Checks) -> None:
        outcome = check({"other": Figures(1, 1)}, max_regression="5%")
        assert (outcome.exit_code, outcome.before) == (3, None)
        assert "not in the baseline" in only_failure(outcome).reason

    def test_where_the_baseline_is_written_anew_nothing_is_a_regression(self, check: Checks) -> None:
        model = check.model(max_regression="5%")
        assert check_model(model, {"chain": Figures(1, 1)}, accept=True).verdict is Verdict.HOLDS
        assert check_model(model, {}, accept=True).verdict is Verdict.HOLDS


class TestErrors:
    def test_a_missing_file_is_an_outcome(self, check: Checks) -> None:
        outcome = check(path="gone.json", budget="70%")
        assert (outcome.verdict, outcome.exit_code, outcome.figures) == (Verdict.ERROR, 6, None)
        assert only_failure(outcome) == Failure(
            "error", f"{check.folder / 'gone.json'}: no such file", ("check the path",)
        )

    def test_a_refusal_of_the_planner_is_an_outcome_that_knows_what_was_measured(self, check: Checks) -> None:
        (check.folder / "chain.json").write_text(json.dumps(fan()))
        outcome = check(budget="80%")
        assert (outcome.verdict, outcome.exit_code) == (Verdict.ERROR, 2)
        assert "no backward ops" in only_failure(outcome).reason
        assert outcome.figures is not None

    def test_a_hint_speaks_of_the_keys_of_the_project_file(self, check: Checks) -> None:
        gpt = str(UNET.with_name("gpt.onnx"))
        assert "'dims: {batch: 8, seq: 8}'" in only_failure(check(path=gpt, max_peak=1)).remedies[0]
        (check.folder / "chain.json").write_text(json.dumps(fan()))
        assert "'mode: inference'" in only_failure(check(mode="training", max_peak=1)).remedies[0]
        assert only_failure(check(cost_model="measured", max_peak=1)).remedies == ("give 'measurements: FILE'",)

    def test_running_out_of_memory_is_an_outcome(self, check: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> PlanResult:
            raise MemoryError

        monkeypatch.setattr(ApproxDP, "plan", fail)
        outcome = check(budget="70%")
        assert (outcome.verdict, outcome.exit_code) == (Verdict.ERROR, 4)

    def test_a_search_that_was_cut_short_is_not_judged(self, check: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = ApproxDP.plan

        def interrupted(self: ApproxDP, problem: Problem, observe: Observer) -> PlanResult:
            result = plan(self, problem, observe)
            assert result.schedule is not None
            observe.found(told(result.schedule))
            raise KeyboardInterrupt

        monkeypatch.setattr(ApproxDP, "plan", interrupted)
        with pytest.raises(KeyboardInterrupt):
            check(budget="70%")

    def test_what_could_not_be_measured_goes_before_what_fails(self, check: Checks) -> None:
        holds, fails, broken = check(budget="70%"), check(budget="250B"), check(path="gone.json", budget="70%")
        assert worst_exit_code((holds,)) == 0
        assert worst_exit_code((holds, fails)) == 3
        assert worst_exit_code((broken, holds, fails)) == 6
        assert worst_exit_code((fails, replace(broken, exit_code=2))) == 2


class TestAdvice:
    @pytest.mark.parametrize(
        "keys",
        [
            {"budget": "250B"},
            {"budget": "60%", "max_overhead": "1%"},
            {"budget": "50%", "max_overhead": "1%"},
            {"budget": 700, "max_overhead": "10%"},
            {"budget": "90%", "max_peak": 600, "max_overhead": "10%"},
            {"budget": 500, "max_peak": 600, "max_overhead": "10%"},
            {"max_peak": 700},
        ],
    )
    def test_a_larger_limit_helps(self, keys: dict[str, object], check: Checks) -> None:
        remedy = only_failure(check(**keys)).remedies[0]
        raised = re.match(r"raise (?P<limits>\w+(?: and \w+)?) to (?P<size>[\w.%]+)", remedy)
        assert raised is not None, remedy
        assert check(**{**keys, **dict.fromkeys(raised["limits"].split(" and "), raised["size"])}).failures == ()

    def test_the_overhead_that_is_advised_is_the_one_that_is_then_found(self, check: Checks) -> None:
        remedy = only_failure(check(budget="250B")).remedies[0]
        match = re.fullmatch(r"raise budget to (\S+), where a plan of ([\d.]+) % overhead fits", remedy)
        assert match is not None
        figures = check(budget=match[1]).figures
        assert figures is not None
        assert figures.overhead is not None
        assert f"{figures.overhead * 100:.2f}" == match[2]

    def test_allowing_the_overhead_helps(self, check: Checks) -> None:
        remedy = only_failure(check(budget="60%", max_overhead="1%")).remedies[-1]
        assert remedy.startswith("allow it: max_overhead: ")
        assert check(budget="60%", max_overhead=remedy.split()[-1]).verdict is Verdict.HOLDS

    def test_a_budget_in_place_of_the_largest_peak_helps(self, check: Checks) -> None:
        remedy = only_failure(check(max_peak=1000)).remedies[-1]
        budget = re.search(r"'budget: (\S+)'", remedy)
        assert budget is not None
        assert check(budget=budget[1]).verdict is Verdict.HOLDS

    @pytest.mark.parametrize("keys", [{"budget": "1.5GB", "max_overhead": "5%"}, {"max_peak": "3GB"}])
    def test_a_smaller_batch_helps(self, keys: dict[str, object], check: Checks) -> None:
        keys = {"path": str(UNET), "dims": {"batch": 8}, **keys}
        batch = re.search(r"set dims.batch to (\d+)", " ".join(only_failure(check(**keys)).remedies))
        assert batch is not None
        assert 1 <= int(batch[1]) < 8
        assert check(**{**keys, "dims": {"batch": int(batch[1])}}).verdict is Verdict.HOLDS

    def test_a_share_is_never_raised_above_the_whole(self, check: Checks) -> None:
        failure = only_failure(check(budget="90%", mode="inference"))
        assert failure.remedies == ("raise budget to 100%, where the plain run fits",)

    def test_no_batch_is_advised_where_the_budget_shrinks_with_it(self, check: Checks) -> None:
        failure = only_failure(check(path=str(UNET), dims={"batch": 8}, budget="25%"))
        assert not any("dims" in remedy for remedy in failure.remedies)

    def test_advice_takes_no_longer_than_the_check_did(self, check: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
        limits = []

        def recorded(self: ApproxDP, problem: Problem, observe: Observer) -> PlanResult:
            limits.append(self.time_limit)
            return PlanResult(Status.UNKNOWN)

        monkeypatch.setattr(ApproxDP, "plan", recorded)
        check(budget="70%", planner={"name": "approx_dp", "time_limit": 60})
        assert limits[0] == 60
        assert 0 < sum(limits[1:]) <= 60


@pytest.mark.parametrize(
    ("size", "rounded"), [(0, 0), (9999, 9999), (10_001, 10_010), (1_883_622_472, 1_884_000_000), (99_999, 100_000)]
)
def test_a_size_is_rounded_up_to_four_digits(size: int, rounded: int) -> None:
    assert round_up(size) == rounded


def test_another_order_that_fits_is_not_called_the_plain_run(check: Checks) -> None:
    sizes = {"wide1": 10, "wide2": 10, "narrow1": 1, "narrow2": 1, "out": 1}
    reads = ["", "", "wide1", "wide2", "narrow1 narrow2"]
    document = tight() | {
        "resident_bytes": 0,
        "tensors": [{"name": name, "bytes": size} for name, size in sizes.items()],
        "ops": [
            {"name": f"make_{made}", "type": "Make", "inputs": inputs.split(), "outputs": [made], "time": 1}
            for made, inputs in zip(sizes, reads, strict=True)
        ],
    }
    (check.folder / "wide.json").write_text(json.dumps(document))
    failure = only_failure(check(path="wide.json", planner="auto", max_peak=15))
    assert failure.remedies[-1] == "replace it by 'budget: 15B', where another order of the same runs fits"


def tight() -> dict[str, Any]:
    """An inference graph whose plain run holds 10 bytes at once, and for which no arena is smaller than 11."""
    sizes = {"t0": 6, "t1": 4, "t2": 4, "t3": 3, "t4": 3, "t5": 1, "t6": 1, "t7": 6, "t8": 4, "t9": 4, "out": 1}
    reads = ["", "t0", "t1", "", "t2", "", "t4 t5", "t3 t6", "t7", "", "t8 t9"]
    ops = [
        {"name": f"make_{made}", "type": "Make", "inputs": inputs.split(), "outputs": [made], "time": 1}
        for made, inputs in zip(sizes, reads, strict=True)
    ]
    return {
        "format": "remat.graph/1",
        "name": "tight",
        "kind": "inference",
        "resident_bytes": 1000,
        "tensors": [{"name": name, "bytes": size} for name, size in sizes.items()],
        "ops": ops,
    }


class TestArena:
    KEYS: ClassVar = {"path": "tight.json", "arena": True, "alignment": 1}

    @pytest.fixture(autouse=True)
    def tight(self, check: Checks) -> None:
        (check.folder / "tight.json").write_text(json.dumps(tight()))

    @pytest.mark.parametrize("limit", [{"max_peak": 11}, {"budget": 11}, {"budget": 20, "max_peak": 11}])
    def test_resident_bytes_lie_beside_an_arena_that_fits(self, limit: dict[str, object], check: Checks) -> None:
        outcome = check(**self.KEYS, **limit)
        assert outcome.verdict is Verdict.HOLDS
        assert outcome.figures is not None
        assert (outcome.figures.limit_bytes, outcome.figures.arena_bytes) == (11, 11)
        assert outcome.figures.plain_peak_bytes == 1010

    @pytest.mark.parametrize("limit", [{"max_peak": 10}, {"budget": 10, "planner": "keep_all"}])
    def test_where_the_sum_fits_and_no_arena_does_the_cost_is_told(
        self, limit: dict[str, object], check: Checks
    ) -> None:
        assert (
            check(path="tight.json", **{key: 1010 if key != "planner" else "keep_all" for key in limit}).exit_code == 0
        )
        failure = only_failure(check(**self.KEYS, **limit))
        assert failure.limit == next(iter(limit))
        assert failure.reason == (
            "the sum fits 10 B, but no arena of that size was found: fragmentation costs 1 B more, as the smallest "
            "arena that was found takes 11 B"
        )
        assert failure.remedies[0].startswith(f"raise {failure.limit} to 11B")

    @pytest.mark.parametrize(
        "limit", [{"max_peak": 9}, {"budget": 7, "planner": "dtr"}, {"budget": "60%", "planner": "keep_all"}]
    )
    def test_what_is_advised_for_a_sum_that_does_not_fit_has_an_arena(
        self, limit: dict[str, object], check: Checks
    ) -> None:
        failure = only_failure(check(**self.KEYS, **limit))
        assert "beside 1.000 kB of resident bytes" in failure.reason
        (raised,) = re.findall(r"raise \w+ to (\S+?)(?:,|$)", failure.remedies[0])
        assert check(**self.KEYS, **{**limit, failure.limit: raised}).verdict is Verdict.HOLDS

    def test_a_share_is_of_the_peak_without_resident_bytes(self, check: Checks) -> None:
        outcome = check(**self.KEYS, budget="100%", planner="keep_all")
        assert outcome.figures is not None
        assert outcome.figures.limit_bytes == 10

    def test_where_the_arena_of_the_plain_run_does_not_fit_another_plan_is_sought(
        self, check: Checks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def only_below(graph: Graph, schedule: Schedule, *args: Any, **said: Any) -> tuple[Allocation, Arena | None]:
            if said.get("capacity") and simulate(graph, schedule).peak_bytes > PLAIN_PEAK - 100:
                return Allocation(Status.UNKNOWN, None, None, PLAIN_PEAK, closest_bytes=PLAIN_PEAK + 1), None
            return arena_of(graph, schedule, *args, **said)

        monkeypatch.setattr(addresses, "arena_of", only_below)
        outcome = check(arena=True, alignment=4, budget="100%")
        assert outcome.verdict is Verdict.HOLDS
        assert outcome.figures is not None
        assert outcome.figures.arena_bytes is not None
        assert outcome.figures.arena_bytes <= PLAIN_PEAK - 100
        assert outcome.figures.overhead
        (failure,) = check(arena=True, alignment=4, budget="100%", max_overhead="1%").failures
        cost = f"{format_share(outcome.figures.overhead)} of it for want of an arena of a faster plan"
        assert (failure.limit, cost in failure.reason) == ("max_overhead", True)
