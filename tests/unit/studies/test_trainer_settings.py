"""Settings of trainers: which are tried, and the largest value with each."""

from __future__ import annotations

from dataclasses import replace

from remat_cli.config import GraphOptions, Request
from remat_cli.core.problem import Observer
from remat_cli.studies.fit import Question
from remat_cli.studies.trainer_settings import fit_settings
from remat_cli.units import BudgetSpec

QUESTION = Question("batch", Request(budget=BudgetSpec(1000)))


def run(options: GraphOptions) -> tuple[int, int]:
    """Return peak and time of a step whose memory is known: parameters, state, and activations a sample."""
    weights = 100 if options.lora is None else 30
    state = 8 * weights if options.optimizer == "adamw" else 2 * weights
    sample = 10 if options.checkpointing else 90
    batch = options.dims["batch"]
    return weights + state + sample * batch, batch * (4 if options.checkpointing else 3)


def found(**given: object) -> dict[str, tuple[int | None, int, int]]:
    options = replace(GraphOptions(optimizer="adamw"), **given)  # type: ignore[arg-type]
    fits = fit_settings(QUESTION, lambda value: replace(options, dims={"batch": value}), run, Observer())
    return {" ".join(fit.changes): (fit.value, fit.peak_bytes, fit.time) for fit in fits}


def test_each_setting_has_its_largest_value_peak_and_time() -> None:
    assert found() == {
        "checkpointing": (10, 1000, 40),
        "optimizer": (7, 930, 21),
        "checkpointing optimizer": (70, 1000, 280),
        "lora": (8, 990, 24),
        "checkpointing lora": (73, 1000, 292),
    }


def test_settings_in_force_and_without_meaning_are_left_out() -> None:
    assert found(checkpointing=True).keys() == {"optimizer", "lora"}
    assert found(optimizer="adafactor").keys() == {"checkpointing", "lora", "checkpointing lora"}
    assert found(lora="8").keys() == {"checkpointing", "optimizer", "checkpointing optimizer"}


def test_a_setting_that_does_not_suffice_has_the_peak_of_the_smallest_value() -> None:
    small = replace(QUESTION, request=Request(budget=BudgetSpec(350)))
    options = GraphOptions(optimizer="adamw")
    fits = fit_settings(small, lambda value: replace(options, dims={"batch": value}), run, Observer())
    assert (fits[0].value, fits[0].peak_bytes, fits[0].time) == (None, 910, 4)
    assert fits[1].value is None


def test_a_step_whose_peak_is_unknown_has_none() -> None:
    options = GraphOptions(optimizer="adamw", dims={"batch": 1})
    assert fit_settings(QUESTION, lambda value: options, lambda options: None, Observer()) == ()
